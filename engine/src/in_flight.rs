//! Steps in flight: the pinned memory through which their batches pass, and their figures on the way to the host.

use crossweave_hal::{Device, Event, HostBuffer, Tag};
use crossweave_tensor::{Result, shape_error};
use std::collections::VecDeque;

/// Steps in flight whose figures have not been read.
pub(crate) const MOST: usize = crossweave_planner::IN_FLIGHT as usize;

/// The figures of a step on their way to the host.
pub(crate) struct Pending {
    pub step: u64,
    /// In which copy of pinned memory they arrive.
    pub turn: usize,
    pub event: Event,
    /// The step's learning rate.
    pub lr: f64,
    /// Predictions of the step over those that count.
    pub share: f64,
}

/// What the host keeps of the steps that the device has not finished.
pub(crate) struct InFlight {
    inputs: VecDeque<HostBuffer>,
    /// Oldest first.
    pub figures: VecDeque<Pending>,
}

impl InFlight {
    /// Room for the inputs of as many steps as may be in flight.
    pub fn new(device: &Device, input_bytes: u64) -> crossweave_hal::Result<InFlight> {
        let inputs = (0..MOST).map(|_| device.alloc_host(input_bytes, Tag::Staging));
        Ok(InFlight {
            inputs: inputs.collect::<crossweave_hal::Result<_>>()?,
            figures: VecDeque::new(),
        })
    }

    /// Whether no further step may begin before the figures of one are read.
    pub fn is_full(&self) -> bool {
        self.figures.len() >= MOST
    }

    /// Hands out the memory of the inputs that were uploaded longest ago.
    pub fn staging<T>(&mut self, f: impl FnOnce(&mut HostBuffer) -> Result<T>) -> Result<T> {
        let Some(mut memory) = self.inputs.pop_front() else {
            return shape_error("no input buffer is free");
        };
        let done = f(&mut memory);
        self.inputs.push_back(memory);
        done
    }
}
