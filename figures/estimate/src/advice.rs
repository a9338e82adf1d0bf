//! What to change, or why all is well. It is made of the ledgers that the verdict is made of, so that the two cannot contradict each other.

use super::job::Job;
use super::{STAGES, cut, number, states};
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::*;
use serde::Serialize;

/// Most ranks that are tried.
const MOST_RANKS: u64 = 1 << 24;

/// Advice on a job: a change that would make it fit, or the reason why none is needed.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The ZeRO stage that is advised.
    #[serde(serialize_with = "number")]
    pub stage: ZeroStage,
    /// Communication against computation, where the device's rates are known.
    #[serde(flatten)]
    pub rates: Option<CommOverCompute>,
    /// Changes of which each alone makes a job fit that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedies: Option<Vec<String>>,
    /// In a sentence.
    pub why: String,
}

/// Communication of a step against its computation.
#[derive(Clone, Debug, Serialize)]
pub struct CommOverCompute {
    /// Seconds over seconds, at the stage that is asked for.
    pub comm_over_compute: f64,
    /// Seconds of communication at stages 0 to 3.
    pub comm_seconds: [f64; 4],
    /// Seconds of computation.
    pub compute_seconds: f64,
    /// The formula of the quotient.
    pub formula: &'static str,
}

/// The advice for what [`Job::choose`] has chosen, of which `fits` says whether it fits; none where no limit and no rate is known.
pub fn advice(job: &Job, stage: ZeroStage, offload: Offload, fits: Option<bool>) -> Option<Advice> {
    let speeds = comm_seconds(job);
    if fits.is_none() && speeds.is_none() {
        return None;
    }
    let mut advice = Advice {
        stage,
        rates: speeds.map(|s| CommOverCompute {
            comm_over_compute: s.ratio(stage as usize),
            comm_seconds: s.comm,
            compute_seconds: s.compute,
            formula: match job.places.part {
                None => "(wire elements x w / link) over (6PT / sustained), of a step",
                Some(_) => "(the bytes of each axis over its link) over (6PT / sustained), P and T of a rank, of a step",
            },
        }),
        remedies: None,
        why: String::new(),
    };
    let device = |s: ZeroStage| ledger(&job.load(s, Offload::NONE)).total(Tier::Device);
    advice.why = match fits {
        Some(false) => {
            let ways = remedies(job, stage, offload);
            let why = match ways.is_empty() {
                true => "one layer and its activations are more than a device holds; take shorter sequences (--seq) or a larger device".to_string(),
                false => ways.join("; or "),
            };
            advice.remedies = Some(ways);
            why
        }
        Some(true) if offload != Offload::NONE => {
            let alone = device(stage);
            let there = job.on.memory.unwrap_or(u64::MAX);
            match alone <= there {
                true => format!(
                    "stage {} fits without offload too ({} on the device), which saves the transfers",
                    stage as u8,
                    Size(alone)
                ),
                false => format!(
                    "offload makes stage {} fit: without it a rank would need {} on the device",
                    stage as u8,
                    Size(alone)
                ),
            }
        }
        _ if job.places.ranks == 1 => "it fits, and one rank has nothing to shard".to_string(),
        _ if job.data_ranks() == 1 => {
            "it fits, and one data-parallel rank has no states to shard".to_string()
        }
        _ => {
            let sent = STAGES.map(|s| states::wire(job, s));
            let a = advise(stage, STAGES.map(device), job.on.memory, sent, speeds);
            advice.stage = a.stage;
            a.why
        }
    };
    Some(advice)
}

/// Changes of which each alone makes it fit, at most three.
fn remedies(job: &Job, stage: ZeroStage, offload: Offload) -> Vec<String> {
    let machine = job.machine();
    let fits = |l: &Load| ledger(l).overflow(&machine).is_none();
    let base = job.load(stage, offload);
    let three = Load {
        stage: ZeroStage::Three,
        ..base
    };
    let mut ways = vec![];
    let mut higher = STAGES.into_iter().filter(|s| *s > stage);
    if let Some(s) = higher.find(|s| fits(&Load { stage: *s, ..base })) {
        ways.push(format!("ZeRO stage {} fits (--stage {0})", s as u8));
    }
    let least = |batch| job.activations_of(&job.model.shape, batch, ActivationCase::Recompute);
    if fits(&Load {
        activations: least(job.batch),
        ..base
    }) {
        ways.push("recomputing every layer fits (--keep inputs, model.recompute full)".into());
    } else if fits(&Load {
        activations: least(1),
        ..base
    }) {
        ways.push(
            "one sequence a micro-batch with every layer recomputed fits (--batch 1 --keep inputs)"
                .into(),
        );
    }
    for (optimizer, param, flags) in [
        (Tier::Host, Tier::Device, "--offload-optimizer host"),
        (
            Tier::Host,
            Tier::Host,
            "--stage 3 --offload-optimizer host --offload-param host",
        ),
    ] {
        let load = Load {
            offload: Offload { optimizer, param },
            ..if param == Tier::Host { three } else { base }
        };
        let l = ledger(&load);
        let host = l.total(Tier::Host).saturating_mul(job.ranks_of_node());
        if l.total(Tier::Device) <= machine.device && job.on.host.is_none_or(|h| h < host) {
            ways.push(format!(
                "{} of host memory a node would do ({flags} --host SIZE)",
                Size(host)
            ));
            break;
        }
    }
    // As many more data-parallel ranks; what the mesh cuts stays as it is cut.
    let (mut times, data) = (1, job.data_ranks());
    while ways.len() < 3 && times * job.places.ranks < MOST_RANKS {
        times *= 2;
        let more = Load {
            ranks: times * data,
            experts: Apart {
                ranks: times * three.experts.ranks,
                ..three.experts
            },
            ..three
        };
        if fits(&more) {
            let ranks = times * job.places.ranks;
            ways.push(format!("{ranks} ranks fit at stage 3 (--ranks {ranks})"));
            break;
        }
    }
    let larger = profiles().iter().filter(|p| p.memory > machine.device);
    if let Some(p) = larger
        .min_by_key(|p| p.memory)
        .filter(|_| ways.len() < 3)
        .filter(|p| p.memory >= ledger(&base).total(Tier::Device))
    {
        ways.push(format!(
            "a device of {} would hold it (--device {})",
            Size(p.memory),
            p.name
        ));
    }
    ways.truncate(3);
    ways
}

/// Seconds that each stage's communication takes in a step, and those of its computation; with a device whose rates are known.
fn comm_seconds(job: &Job) -> Option<Speeds> {
    let d = job.on.rates?;
    // Ranks spread over the nodes that are asked for: none of their links is faster than that between nodes.
    let slow = job.places.part.is_none() && job.places.nodes > 1;
    let comm = STAGES.map(|s| {
        let seconds = |r: &cut::AxisTraffic| match slow {
            true => Some(r.bytes / d.network),
            false => r.seconds,
        };
        cut::by_axis(job, s).iter().filter_map(seconds).sum()
    });
    let tokens = (job.batch * job.accumulation.micro_batches * job.tokens_here()) as f64;
    let again = match job.keep.0 {
        ActivationCase::Recompute => 8.0 / 6.0,
        _ => 1.0,
    };
    let sustained = job.on.sustained.max(1.0);
    // What a rank has of the model computes for all tokens of its data-parallel rank.
    let compute = again * sixpt(job.active_here() as f64, tokens) / sustained;
    Some(Speeds { comm, compute })
}
