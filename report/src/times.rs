//! Where the time of a rank's step went, as `ledger.json` has it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The mean step of one rank, in milliseconds; the five parts are the whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Steps that were looked at.
    pub steps: u64,
    /// From the end of the step before to the end of this one.
    pub step_ms: f64,
    /// Forward, recompute and backward.
    pub compute_ms: f64,
    /// Gradient norm and update, while nothing of the above runs.
    pub optimizer_ms: f64,
    /// Collectives and messages with what prepares them, waiting for other ranks included, while nothing of the above runs.
    pub communication_ms: f64,
    /// The share of each group of ranks in it, by the axes of the group; what is left prepares calls. A moment of two groups counts for the
    /// first by name.
    #[serde(default)]
    pub exposed_ms: BTreeMap<String, f64>,
    /// Reading the batch, while the device does nothing.
    pub input_ms: f64,
    /// The rest: the host is late, or work that is none of these.
    pub other_ms: f64,
}
