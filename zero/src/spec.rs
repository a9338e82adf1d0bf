//! What a job asks of ZeRO: the stage, and how far ahead and how long units are gathered.

use crate::place::ZeroStage;

/// The choices of ZeRO for one job, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroSpec {
    /// How much is sharded over the data-parallel group.
    pub stage: ZeroStage,
    /// Computations a gather may run ahead of its use (stage 3).
    pub prefetch: u32,
    /// Units that may be gathered at once (stage 3); none: as many as `prefetch` needs.
    pub slots: Option<u32>,
    /// Release a unit after its forward and gather it again for its backward (stage 3). Off: it stays from its first use to its last.
    pub reshard: bool,
    /// Units of fewer parameter elements stay gathered for the whole step (stage 3).
    pub persist_below: u64,
}

impl Default for ZeroSpec {
    fn default() -> ZeroSpec {
        ZeroSpec {
            stage: ZeroStage::Zero,
            prefetch: 1,
            slots: None,
            reshard: true,
            persist_below: 0,
        }
    }
}
