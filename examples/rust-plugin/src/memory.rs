//! Memory of the device, which is the host's: allocations, and regions of them that commands read and write.
//!
//! All `unsafe` of the plugin is here. Every access is checked against the region; who may touch what when is ordered by the host through
//! streams and events, and the host keeps memory alive until every stream has passed its uses.

use crate::oom;
use crossweave_plugin::{Code, MemKind, Result, Span, fail, unsupported};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a device may give out and has given out.
pub struct Budget {
    pub total: u64,
    used: AtomicU64,
}

impl Budget {
    pub fn new(total: u64) -> Budget {
        Budget {
            total,
            used: AtomicU64::new(0),
        }
    }
    pub fn left(&self) -> u64 {
        self.total - self.used.load(Relaxed)
    }
}

/// An allocation.
pub struct Mem {
    at: NonNull<u8>,
    layout: Layout,
    bytes: u64,
    kind: MemKind,
    /// Bytes that the budget pays for: pinned memory is the host's.
    paid: u64,
    budget: Arc<Budget>,
}
// SAFETY: the block is owned by the handle; accesses to it are ordered by the host.
unsafe impl Send for Mem {}
// SAFETY: as above; the handle's own fields never change.
unsafe impl Sync for Mem {}

impl Mem {
    pub fn new(budget: &Arc<Budget>, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        if kind == MemKind::Symmetric {
            return unsupported("symmetric memory: there are no communicators");
        }
        if align != 0 && !align.is_power_of_two() {
            return fail(
                Code::Invalid,
                format!("alignment {align} is not a power of two"),
            );
        }
        let refuse = || {
            oom(format!(
                "{bytes} bytes, {} left; raise softdev.mem_total, or free memory",
                budget.left()
            ))
        };
        // At least one byte: the allocator knows no empty blocks.
        let layout = Layout::from_size_align(bytes.max(1) as usize, align.max(64) as usize)
            .map_err(|_| refuse())?;
        let paid = if kind == MemKind::Device { bytes } else { 0 };
        let take = |used: u64| used.checked_add(paid).filter(|n| *n <= budget.total);
        budget
            .used
            .fetch_update(Relaxed, Relaxed, take)
            .map_err(|_| refuse())?;
        // SAFETY: the size is not zero.
        let at = unsafe { std::alloc::alloc(layout) };
        let Some(at) = NonNull::new(at) else {
            budget.used.fetch_sub(paid, Relaxed);
            return Err(refuse());
        };
        Ok(Mem {
            at,
            layout,
            bytes,
            kind,
            paid,
            budget: budget.clone(),
        })
    }

    /// The host's address of pinned memory.
    pub fn address(&self) -> Result<*mut u8> {
        match self.kind {
            MemKind::HostPinned => Ok(self.at.as_ptr()),
            _ => unsupported("memory of the device has no host address; copy it through a stream"),
        }
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, freed once.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
        self.budget.used.fetch_sub(self.paid, Relaxed);
    }
}

/// A piece of memory that a command in a queue will touch.
#[derive(Clone, Copy)]
pub struct Region {
    at: *mut u8,
    pub bytes: usize,
}
// SAFETY: see the head of the file: the host orders accesses and keeps the memory alive.
unsafe impl Send for Region {}

/// The region of a span, which lies inside its memory.
pub fn region(s: &Span<'_, Mem>, what: &str) -> Result<Region> {
    match s.offset.checked_add(s.bytes) {
        Some(end) if end <= s.mem.bytes => Ok(Region {
            // SAFETY: the offset is at most the length of the allocation.
            at: unsafe { s.mem.at.as_ptr().add(s.offset as usize) },
            bytes: s.bytes as usize,
        }),
        _ => fail(
            Code::Invalid,
            format!(
                "{what}: span {}+{} leaves its memory of {} bytes",
                s.offset, s.bytes, s.mem.bytes
            ),
        ),
    }
}

impl Region {
    /// The place of `n` bytes from `at` on. A wrong one is a bug of a kernel: the panic fails the stream, nothing else is touched.
    fn place(&self, at: usize, n: usize) -> *mut u8 {
        assert!(
            at <= self.bytes && n <= self.bytes - at,
            "{n} bytes at {at} of {}",
            self.bytes
        );
        // SAFETY: inside the region.
        unsafe { self.at.add(at) }
    }
    pub fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        // SAFETY: `place` has checked it; any bytes are an array of bytes.
        unsafe { self.place(at, N).cast::<[u8; N]>().read() }
    }
    pub fn put<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        // SAFETY: as above.
        unsafe { self.place(at, N).cast::<[u8; N]>().write(bytes) }
    }
    /// Copies `n` bytes; the two may overlap.
    pub fn copy_from(&self, at: usize, src: &Region, from: usize, n: usize) {
        // SAFETY: both places have been checked.
        unsafe { std::ptr::copy(src.place(from, n), self.place(at, n), n) }
    }
    /// Repeats a pattern over all of it.
    pub fn fill(&self, pattern: &[u8]) {
        for i in 0..self.bytes {
            self.put(i, [pattern[i % pattern.len()]]);
        }
    }
    /// Is it where elements of `n` bytes may lie?
    pub fn aligned(&self, n: usize) -> bool {
        (self.at as usize).is_multiple_of(n)
    }
}
