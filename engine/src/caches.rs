//! Kernels that were prepared for the launches of blocks, so that a launch that repeats prepares none.

use crossweave_program::Part;
use crossweave_tensor::KernelCache;
use std::cell::RefCell;

/// What launches: one part of a unit's work, or the sum of losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A block.
    Block(usize, Part),
    /// The loss of a micro-batch, added to those of the others.
    Loss,
}

/// A cache for each work.
pub(crate) struct Caches {
    units: Vec<[RefCell<KernelCache>; 5]>,
    loss: RefCell<KernelCache>,
}

impl Caches {
    pub fn new(units: usize) -> Caches {
        Caches {
            units: (0..units).map(|_| Default::default()).collect(),
            loss: Default::default(),
        }
    }

    pub fn of(&mut self, work: Work) -> &mut RefCell<KernelCache> {
        match work {
            Work::Block(u, part) => &mut self.units[u][part as usize],
            Work::Loss => &mut self.loss,
        }
    }
}
