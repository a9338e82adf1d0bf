//! What a rank of each pipeline stage was seen to do in one step, and how long its units took, as `ledger.json` has it.

use crossweave_timeline::Span;
use serde::{Deserialize, Serialize};

/// One step of a rank, and the times of its units in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The rank's stage.
    pub stage: u32,
    /// The step.
    pub step: u64,
    /// Nanoseconds from 1970 to the moment from which those of the spans are counted.
    pub began: u64,
    /// What it did in the step, in nanoseconds.
    pub spans: Vec<Span>,
    /// The units that it ran.
    pub units: Vec<UnitTimes>,
}

/// The time that a unit took for a micro-batch, on the mean, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitTimes {
    /// The unit.
    pub unit: u32,
    /// Its forward.
    pub forward: u64,
    /// Both parts of its backward: halves of it, where it was in one.
    pub backward: [u64; 2],
}
