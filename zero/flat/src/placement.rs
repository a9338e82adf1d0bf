//! Where the data of a flat is, as data: which ranks share it, how it is cut, what stays and what comes and goes. ZeRO's
//! stages, its secondary shards and its offload differ in it; types and quantization are the job's (`lower::Job`).

use crate::layout::Partition;
use crossweave_program::DType;
use crossweave_program::axes::AxisSet;

/// Where the whole parameters of a flat are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Every rank holds them, always current: nothing is gathered.
    Resident,
    /// In memory that stays, current from the gather to the update (stages 1 and 2, persistent units).
    Cached,
    /// In a slot between gather and release (stage 3).
    Transient,
}

/// Where the data of one flat is: the parameters of a unit that the same ranks hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// The axes over which they differ that share it: `dp.cp`, and `edp` of experts.
    pub owners: AxisSet,
    /// Ranks that share it.
    pub ranks: u32,
    /// This one among them.
    pub rank: u32,
    /// How it is cut.
    pub partition: Partition,
    /// Logical shards that sums go over, where they are canonical.
    pub shards: Option<u32>,
    /// Type of parameters as blocks read them.
    pub compute: DType,
    /// Where whole parameters are.
    pub residency: Residency,
    /// Ranks of a node that hold a second copy of the whole parameters between them (ZeRO++ hpZ); 1: none.
    pub secondary: u32,
    /// Gradients are reduced into a slice of their own, and the whole one is freed (stages 2 and 3).
    pub sliced: bool,
    /// The part of what is owned whose state rests on the host: from 0 to 1.
    pub host: f64,
    /// Parameters rest there too: a slice comes for each gather.
    pub away: bool,
}
