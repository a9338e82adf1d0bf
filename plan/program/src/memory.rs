//! The memory of a program as it is declared: what for, how long, where.

use crossweave_abi::DType;
pub use crossweave_abi::Tag;

/// The space that memory is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySpace {
    /// On the device.
    Device,
    /// Pinned host memory.
    Pinned,
}

/// The lifetime of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// As long as the program. Steps in flight take turns on so many copies.
    Always {
        /// Copies.
        turns: u32,
    },
    /// From its `Alloc` to its `Free`.
    Transient,
    /// The same, in memory that stays allocated and passes from one to the next of the same size: what comes and goes in every step
    /// then does not divide the pool.
    Slot,
}

/// Number of a piece of memory in the program's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemId(pub u32);

impl MemId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A piece of memory of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDecl {
    /// Name, unlike that of every other: `grad.3`.
    pub name: String,
    /// Bytes; of each copy where there are several.
    pub bytes: u64,
    /// Type of what is in it, where all of it is of one.
    pub dtype: DType,
    /// The purpose, under which the ledger counts it.
    pub tag: Tag,
    /// The space that it is in.
    pub home: MemorySpace,
    /// The lifetime.
    pub life: Life,
}

/// A place in memory: what a fragment's parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The memory's number.
    pub mem: MemId,
    /// First byte.
    pub at: u64,
}

impl From<MemId> for Place {
    fn from(mem: MemId) -> Place {
        Place { mem, at: 0 }
    }
}
