//! What a job asks of ZeRO: the stage, how far ahead and how long units are gathered, and how gradients are reduced.

use crate::place::ZeroStage;
use crossweave_flat::Residency;

/// Which units stay gathered for the whole step at stage 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Persistent {
    /// Those of fewer parameter elements than a threshold.
    #[default]
    BySize,
    /// Those, and the first and the last layer whatever their size: the units next to the embedding and to the head.
    Ends,
}

impl Persistent {
    /// All of them, with their names in configs.
    pub const ALL: &[(&str, Persistent)] =
        &[("by_size", Persistent::BySize), ("ends", Persistent::Ends)];

    /// By its name in configs.
    pub fn named(name: &str) -> Option<Persistent> {
        let mut all = Persistent::ALL.iter();
        all.find(|(n, _)| *n == name).map(|(_, p)| *p)
    }
}

/// A unit among those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitAt {
    /// Its place in run order.
    pub unit: usize,
    /// Units of the model.
    pub units: usize,
    /// Its parameter elements.
    pub elements: u64,
}

/// When gradients are reduced where a step has several micro-batches (`zero_optimization.reduce_gradients`). It is one trade: a
/// reduction for each micro-batch keeps slices where one for the step keeps whole gradients, and moves as many times as much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReduceGradients {
    /// For each micro-batch at stages 2 and 3, without pipeline stages and canonical sums; else once a step.
    #[default]
    Auto,
    /// For each micro-batch, into the slice of the rank (stages 2 and 3).
    MicroBatch,
    /// Once, behind the last micro-batch.
    Step,
}

impl ReduceGradients {
    /// The choice of that name, as configurations write it.
    pub fn from_name(name: &str) -> Option<ReduceGradients> {
        match name {
            "auto" => Some(ReduceGradients::Auto),
            "micro_batch" => Some(ReduceGradients::MicroBatch),
            "step" => Some(ReduceGradients::Step),
            _ => None,
        }
    }
}

/// The choices of ZeRO for one job, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSpec {
    /// How much is sharded over the data-parallel group.
    pub stage: ZeroStage,
    /// Computations a gather may run ahead of its use (stage 3).
    pub prefetch: u32,
    /// Parameter elements that may be gathered at once (stage 3) before gathers stop running ahead; none: not limited.
    pub max_live: Option<u64>,
    /// Release a unit after its forward and gather it again for its backward (stage 3). Off: it stays from the one to the other.
    pub reshard: bool,
    /// Keep a unit gathered that is used again within so many parameter elements of other units (stage 3); none: whatever is used
    /// next, it is gathered for each forward and each backward, which is exactly 1.5 times the traffic of plain data parallelism.
    pub reuse_within: Option<u64>,
    /// Which units stay gathered for the whole step (stage 3); none where parameters rest with the host.
    pub persistent: Option<Persistent>,
    /// Units of fewer parameter elements do.
    pub persist_below: u64,
    /// Ranks of a node that hold a second copy of the parameters between them, from which a unit is gathered after its first gather in
    /// a step (stage 3, hpZ); it divides the ranks. 1: none.
    pub node: u32,
    /// When gradients are reduced where a step has several micro-batches.
    pub reduce: ReduceGradients,
    /// Gathers carry parameters as 8-bit floats with a scale a block (stages 1 to 3, 16-bit compute).
    pub quantized: bool,
    /// Gradients of neighbouring units are reduced together up to this many bytes.
    pub bucket_bytes: u64,
    /// Reduce and gather on streams of their own, beside the computation.
    pub overlap: bool,
}

impl ZeroSpec {
    /// Whether a unit stays gathered for the whole step at stage 3.
    pub fn persists(&self, at: UnitAt) -> bool {
        let small = at.elements < self.persist_below;
        match self.persistent {
            Some(Persistent::BySize) => small,
            Some(Persistent::Ends) => small || at.unit == 1 || at.unit + 2 == at.units,
            None => false,
        }
    }

    /// Where the whole parameters of a unit are.
    pub fn residency(&self, at: UnitAt) -> Residency {
        match self.stage {
            ZeroStage::Zero => Residency::Resident,
            ZeroStage::Three if !self.persists(at) => Residency::Transient,
            _ => Residency::Cached,
        }
    }
}

impl Default for ZeroSpec {
    fn default() -> ZeroSpec {
        ZeroSpec {
            stage: ZeroStage::Zero,
            prefetch: 1,
            max_live: None,
            reshard: true,
            reuse_within: None,
            persistent: Some(Persistent::default()),
            persist_below: 0,
            node: 1,
            reduce: ReduceGradients::Auto,
            quantized: false,
            bucket_bytes: 25 << 20,
            overlap: true,
        }
    }
}
