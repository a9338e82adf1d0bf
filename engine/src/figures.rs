//! The small device words of a step: what it measures on the way and the host reads one step late.

use crossweave_hal::{Buffer, DType, Device, HostBuffer, Tag};
use crossweave_tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Small device words of one step in flight: `[loss, sum of squares, norm, coefficient, skip]`, then the sum of squares of each unit; and
/// where sums are canonical the squares of each logical slice and the loss of each micro-batch of all ranks, which only one of them writes.
pub(crate) struct Figures {
    pub words: Arc<Buffer>,
    pub host: HostBuffer,
    /// Learning rate of the step.
    pub lr: f64,
    /// Predictions of the step over those that count.
    pub share: f64,
    units: u64,
    /// Logical slices of all units, and micro-batches of all ranks.
    logical: [u64; 2],
}

impl Figures {
    /// Bytes of the words the host reads.
    pub const BYTES: u64 = 20;

    pub fn new(
        device: &Device,
        units: usize,
        logical: [u64; 2],
    ) -> crossweave_hal::Result<Figures> {
        let units = units as u64;
        let words = units + logical[0] + logical[1];
        Ok(Figures {
            words: Arc::new(device.alloc_state(Figures::BYTES + 4 * words, Tag::Staging)?),
            host: device.alloc_host(Figures::BYTES, Tag::Staging)?,
            lr: 0.0,
            share: 1.0,
            units,
            logical,
        })
    }
    /// The words of the squares of all logical slices.
    pub fn slices(&self) -> Range<u64> {
        let first = Figures::BYTES / 4 + self.units;
        first..first + self.logical[0]
    }
    /// The words of the losses of all micro-batches.
    pub fn losses(&self) -> Range<u64> {
        let first = self.slices().end;
        first..first + self.logical[1]
    }
    /// The word of unit `u`.
    pub fn of_unit(&self, u: usize) -> Tensor {
        self.word(Figures::BYTES / 4 + u as u64)
    }
    /// The words of all units.
    pub fn all_units(&self) -> Tensor {
        Tensor::dense(self.words.clone(), Figures::BYTES, [self.units], DType::F32)
    }
    /// Word `i` as a tensor of one element.
    pub fn word(&self, i: u64) -> Tensor {
        Tensor::dense(self.words.clone(), 4 * i, [1], DType::F32)
    }
}
