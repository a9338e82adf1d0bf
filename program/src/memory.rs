//! The memory of a program as it is declared: what for, how long, where.

use crossweave_abi::DType;
pub use crossweave_abi::Tag;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemorySpace {
    /// On the device.
    Device,
    /// Pinned host memory.
    Pinned,
}

/// How long memory lives.
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
    /// What it is for.
    pub tag: Tag,
    /// Where it is.
    pub home: MemorySpace,
    /// How long it lives.
    pub life: Life,
}

/// A place in memory: what a fragment's parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which memory.
    pub mem: MemId,
    /// First byte.
    pub at: u64,
}

impl From<MemId> for Place {
    fn from(mem: MemId) -> Place {
        Place { mem, at: 0 }
    }
}
