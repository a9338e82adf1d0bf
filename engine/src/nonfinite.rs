//! Where a NaN begins: while it is asked for, every op's results are looked at, and the first that is not finite is told with its rank, plan
//! step, unit, op and operand, in the same sentence on all ranks.
//!
//! A rank that has found something goes on to the end of the step, because the others wait for it there; then all ranks exchange what
//! they found, and the earliest launch of the earliest step of the plan wins, at the lowest rank; between pipeline stages, whose plans count
//! differently, the earliest in the order in which values flow. The run is then over: its parameters hold the value.

use crossweave_tensor::Probe;
use std::sync::Arc;

/// What one rank has found in this step.
#[derive(Default)]
pub(crate) struct Watch {
    probe: Arc<Probe>,
    /// Where it stands among the findings of all ranks, and the sentence.
    pub found: Option<(u64, String)>,
}

impl Watch {
    pub(crate) fn probe(&self) -> &Arc<Probe> {
        &self.probe
    }
    pub(crate) fn begin(&mut self) {
        self.found = None;
        self.probe.again();
    }
}
