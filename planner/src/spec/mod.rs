//! What one rank is asked to do, as data.

mod balance;
mod offload;
mod pipeline;
mod precision;
mod rows;

pub use offload::{OffloadSpec, OptimizerOffload};
pub use pipeline::{FlowShape, PipelineSpec};
pub(crate) use pipeline::{keep_stage, shared};
pub use precision::Precision;
use precision::check_accumulation;
pub(crate) use precision::facts_of_accumulation;
pub use rows::Rows;

use crate::error::{Error, Result};
use crate::scaler::LossScaler;
use crossweave_hal::DType;
use crossweave_mesh::{Axis, AxisSet, GroupKey, Place};
use crossweave_plan::Recompute;
use crossweave_zero::canonical::{fullest, shards_of};
use crossweave_zero::optim::{Adam, Optimizer, ParamGroups};
use crossweave_zero::{ReduceGradients, ZeroSpec, ZeroStage};
use std::ops::Range;

/// The work of one rank, as data. It is grouped by who reads it: `rows` by what feeds a step, `zero` by the passes of ZeRO and the lanes,
/// `precision` by scaling and sums, `offload` by the host executor, `pipeline` by schedules.
#[derive(Clone, Debug)]
pub struct RankSpec {
    /// The rank's place on the mesh: its stage, the samples it sees, the ranks it shares its parameters with.
    pub place: Place,
    /// Seed of starting values and dropout.
    pub seed: u64,
    /// Dtype of parameters and activations; masters and gradients are f32.
    pub compute: DType,
    /// Micro-batches a step on this rank; where sums are canonical, of each of its logical shards.
    pub micro_batches: u32,
    /// The rows of each of them.
    pub rows: Rows,
    /// Largest global gradient norm; 0 = no clipping.
    pub clip: f64,
    /// The optimizer of each parameter.
    pub optim: ParamGroups,
    /// The activations that the backward computes again.
    pub recompute: Recompute,
    /// The ranks that share layers keep a part each of the input of a recomputed unit, and gather them for its backward.
    pub cuts_kept_inputs: bool,
    /// The state that is sharded over the data-parallel group, and the way in which it is reduced and gathered.
    pub zero: ZeroSpec,
    /// At what scale and in what types gradients are computed and summed.
    pub precision: Precision,
    /// The state that rests off the device.
    pub offload: Option<OffloadSpec>,
    /// The division of the model over the stages of the mesh; none where it has one.
    pub pipeline: Option<PipelineSpec>,
    /// Logical shards of the global batch, at least as many as ranks: every sum goes over them in one tree, so that any number of ranks
    /// trains to the same bits. None: sums go over the ranks.
    pub canonical: Option<u32>,
}

impl RankSpec {
    /// A rank at this place: f32, one sequence of one token, AdamW with torch's numbers, nothing clipped, recomputed or sharded: the base
    /// from which callers say what they want.
    pub fn new(place: Place) -> RankSpec {
        RankSpec {
            place,
            seed: 0,
            compute: DType::F32,
            micro_batches: 1,
            rows: Rows::new(1, 1),
            clip: 0.0,
            optim: ParamGroups::all(Optimizer::Adam(Adam::default()), 0.01),
            recompute: Recompute::None,
            cuts_kept_inputs: false,
            zero: ZeroSpec::default(),
            precision: Precision::default(),
            offload: None,
            pipeline: None,
            canonical: None,
        }
    }
}

impl RankSpec {
    /// The pipeline stage it is.
    pub fn stage(&self) -> u32 {
        self.place.at(Axis::Pp)
    }
    /// Ranks that hold the same parameters and see other tokens, over which ZeRO shards.
    pub fn data_ranks(&self) -> u32 {
        self.place.size(AxisSet::DATA)
    }
    /// Its index among them.
    pub fn data_rank(&self) -> u32 {
        self.place.index(AxisSet::DATA)
    }
    /// The group of all ranks, over which figures of the whole model are summed.
    pub fn everyone(&self) -> GroupKey {
        let all = self.place.among(AxisSet::WORLD);
        all.unwrap_or_default()
    }

    /// Ranks as the batch and its means see them: the logical shards where sums are canonical, else those that see other samples.
    pub fn replicas(&self) -> u32 {
        self.canonical.unwrap_or(self.place.length(Axis::Dp))
    }
    /// Those that this rank computes.
    pub fn own_replicas(&self) -> Range<u32> {
        let at = self.place.at(Axis::Dp);
        match self.canonical {
            Some(shards) => shards_of(at, self.place.length(Axis::Dp), shards),
            None => at..at + 1,
        }
    }
    /// The most that any rank computes.
    pub fn most_replicas(&self) -> u32 {
        let dp = self.place.length(Axis::Dp);
        self.canonical.map_or(1, |s| fullest(dp, s))
    }
    /// Micro-batches of a step that this rank computes.
    pub fn own_micro_batches(&self) -> u32 {
        self.own_replicas().len() as u32 * self.micro_batches
    }
    /// Micro-batches of a step on the fullest rank: those whose gathers the plan has on every rank.
    pub fn most_micro_batches(&self) -> u32 {
        self.most_replicas() * self.micro_batches
    }
    /// The first micro-batch of this rank among those of all.
    pub fn own_first(&self) -> u32 {
        self.own_replicas().start * self.micro_batches
    }

    /// Refuses what no rank can do.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn check(&self) -> Result<()> {
        if self.micro_batches == 0 {
            return Err(Error::Invalid(format!(
                "rank {} with {} micro-batches",
                self.place.job_rank(),
                self.micro_batches
            )));
        }
        let stages = self.pipeline.as_ref().map_or(1, |p| p.runs.stages());
        if stages != self.place.length(Axis::Pp) {
            return Err(Error::Invalid(format!(
                "the model is divided over {stages} pipeline stages, and the mesh is {}",
                self.place.mesh()
            )));
        }
        let stage = self.place.size(AxisSet::STAGE);
        if self.canonical.is_some() && stage != self.place.length(Axis::Dp) {
            return Err(Error::Invalid(format!(
                "canonical sums on a mesh of {}: ranks that hold parts of parameters add in an order of their own; leave \
                 run.canonical_shards out",
                self.place.mesh()
            )));
        }
        let world = self.data_ranks();
        let node = self.zero.node;
        if node > 1 && (self.zero.stage != ZeroStage::Three || !world.is_multiple_of(node)) {
            return Err(Error::Invalid(format!(
                "nodes of {node} ranks with {world} ranks at stage {}: hierarchical partition needs stage 3 and a number that divides the ranks",
                self.zero.stage as u8
            )));
        }
        let weight = self.rows.weight;
        let uneven = weight != 1.0;
        if !(weight.is_finite() && weight > 0.0)
            || uneven && (self.canonical.is_some() || self.pipeline.is_some())
        {
            return Err(Error::Invalid(format!(
                "a rank of weight {weight}: a positive number, and 1 with logical shards or pipeline stages"
            )));
        }
        if self.zero.reduce == ReduceGradients::MicroBatch
            && (!self.may_reduce_each() || self.canonical.is_some())
        {
            return Err(Error::Invalid(format!(
                "gradients reduced for each micro-batch at stage {}{}: that needs slices of gradients (stage 2 or 3, or 1 with offload_optimizer) and sums over ranks; set zero_optimization.reduce_gradients to \"step\" or \"auto\"",
                self.zero.stage as u8,
                if self.canonical.is_some() {
                    " with logical shards"
                } else {
                    ""
                },
            )));
        }
        if self.quantizes() && self.compute.bits() != 16 {
            const KEY: &str = "zero_optimization.zero_quantized_weights";
            return Err(Error::Invalid(format!(
                "{KEY}: parameters are computed with in {}, and only 16-bit ones are gathered in 8 bits; fix: enable bf16 or fp16, or remove {KEY}",
                self.compute.name()
            )));
        }
        self.check_canonical()?;
        check_accumulation(self)
    }

    /// Returns true if gradients are multiplied before the update by a factor that is not 1 in every step.
    pub fn rescales(&self) -> bool {
        let scaler = self.precision.scaler.as_ref();
        let scale = scaler.map_or(1.0, LossScaler::scale);
        let [_, after] = self.divisions();
        scaler.is_some_and(|s| !s.is_static()) || after / scale != 1.0
    }

    /// Returns the divisor of gradients before they are summed over the ranks, and the factor of the sum.
    pub fn divisions(&self) -> [f64; 2] {
        if self.precision.sum {
            return [1.0, 1.0];
        }
        let ranks = f64::from(self.replicas());
        let before = self.precision.predivide.unwrap_or(ranks);
        [before, before / ranks]
    }

    /// Returns true if optimizer states, or a part of them, rest off the device.
    pub fn offloads_optimizer(&self) -> bool {
        let how = self.offload.as_ref().and_then(|o| o.optimizer);
        how.is_some_and(|how| how.ratio > 0.0)
    }

    /// Returns true if the gradient of a micro-batch is a slice on each rank, or leaves for the host: at stages 2 and 3, and beside an
    /// offloaded optimizer at stage 1 and where every parameter, those of experts too, is one rank's.
    fn may_reduce_each(&self) -> bool {
        let alone = self.data_ranks() == 1 && self.place.length(Axis::Edp) == 1;
        let leaves = self.zero.stage == ZeroStage::One || alone;
        self.zero.stage >= ZeroStage::Two || leaves && self.offloads_optimizer()
    }

    /// Returns true if each micro-batch's gradients are reduced by themselves: into the slices of the ranks, or on their way to the host. A
    /// rank alone has everything: it does so for the host, or where it is asked to.
    pub fn reduces_each(&self) -> bool {
        let several = self.micro_batches > 1 && self.canonical.is_none();
        several
            && self.may_reduce_each()
            && match self.zero.reduce {
                ReduceGradients::Auto => {
                    let pays = self.data_ranks() > 1 || self.offloads_optimizer();
                    self.pipeline.is_none() && pays
                }
                ReduceGradients::MicroBatch => true,
                ReduceGradients::Step => false,
            }
    }

    /// Returns true if gradients of micro-batches go to the host one by one, which adds them up.
    pub fn sums_on_the_host(&self) -> bool {
        self.reduces_each() && self.offloads_optimizer()
    }

    /// Returns true if gradients that one rank owns alone are summed micro-batch by micro-batch too.
    pub(crate) fn sums_alone(&self) -> bool {
        self.reduces_each() && (self.offloads_optimizer() || self.data_ranks() == 1)
    }

    /// Returns true if gathers travel in 8 bits (`zero_quantized_weights`, qwZ of ZeRO++); a rank alone, and stage 0, gather nothing.
    pub fn quantizes(&self) -> bool {
        self.zero.quantized && self.data_ranks() > 1 && self.zero.stage > ZeroStage::Zero
    }

    fn check_canonical(&self) -> Result<()> {
        let Some(shards) = self.canonical else {
            return Ok(());
        };
        let ranks = self.place.length(Axis::Dp);
        if shards < ranks {
            return Err(Error::Invalid(format!(
                "{shards} logical shards for {ranks} ranks: each rank needs one at least"
            )));
        }
        if self.pipeline.is_some() {
            return Err(Error::Invalid(
                "logical shards and pipeline stages together are not available: train with one stage, or without logical shards".into(),
            ));
        }
        if self.zero.quantized {
            return Err(Error::Invalid(
                "gathers in 8 bits round each rank's slice by itself, so their values follow from the number of ranks: not with logical shards"
                    .into(),
            ));
        }
        Ok(())
    }
}
