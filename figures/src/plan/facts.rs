//! What is known of a job beside its engines: model, device and batch.

use crate::devices::Chosen;
use crate::gradients;
use crate::job::Job;
use crossweave_engine::{RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_mesh::Topology;
use crossweave_nn::desc::Model;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::Accumulation;

/// What is known of the job beside its engine.
pub struct JobFacts<'a> {
    /// The mesh of the job.
    pub mesh: Topology,
    /// Ranks of the data-parallel group.
    pub ranks: u64,
    /// ZeRO stage.
    pub stage: ZeroStage,
    /// Type of weights and activations.
    pub compute: DType,
    /// Name of the optimizer, as configs write it.
    pub optimizer: &'a str,
    /// Whether a moving average of the weights is kept.
    pub ema: bool,
    /// Sequences of a micro-batch on a rank.
    pub batch: u64,
    /// Micro-batches of a step, and how their gradients are reduced.
    pub accumulation: Accumulation,
    /// Logical shards, where sums go over those.
    pub shards: Option<u64>,
    /// Tokens of a sequence.
    pub seq: u64,
    /// What is recomputed.
    pub recompute: Recompute,
    /// The model.
    pub model: &'a Model,
    /// The device that it is to fit, and whose rates the advice is for.
    pub device: &'a Chosen,
}

impl<'a> JobFacts<'a> {
    /// The facts of a job of which `rank` is one.
    pub fn of(job: &'a Job, rank: &RankSpec, device: &'a Chosen) -> JobFacts<'a> {
        let optimizer = &job.resolved.settings.optimizer;
        JobFacts {
            mesh: rank.place.mesh(),
            ranks: rank.data_ranks().into(),
            stage: rank.zero.stage,
            compute: rank.compute,
            // Groups may freeze parameters or give them another optimizer: then no formula holds for all.
            optimizer: match optimizer.param_groups.is_empty() {
                true => &optimizer.kind,
                false => "groups",
            },
            ema: rank.optim.base.ema.is_some(),
            batch: rank.rows.batch,
            accumulation: gradients::accumulation(rank),
            shards: rank.canonical.map(u64::from),
            seq: job.seq_len,
            recompute: rank.recompute,
            model: job.source.spec.model(),
            device,
        }
    }
}
