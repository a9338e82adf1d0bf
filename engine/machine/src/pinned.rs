//! Pinned memory on its way to the host's thread: memory of its own, or a block of the pool of a file tier.

use crossweave_hal::{Buffer, HostBuffer};
use crossweave_store::Block;

/// Pinned memory.
pub enum Pinned {
    /// Memory of its own.
    Memory(HostBuffer),
    /// A block of the pool.
    Block(Block),
}

impl Pinned {
    /// What copies go to.
    pub fn buffer(&self) -> Option<&Buffer> {
        match self {
            Pinned::Memory(m) => Some(m.buffer()),
            Pinned::Block(b) => b.buffer(),
        }
    }
}
