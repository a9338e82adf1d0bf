//! The streams of a rank by lane.

use crate::trainer::Trainer;
use crossweave_hal::Stream;

impl Trainer {
    /// The stream reductions run on.
    pub(crate) fn reduce_stream(&self) -> &Stream {
        if self.spec.overlap {
            &self.reduce
        } else {
            &self.compute
        }
    }
}
