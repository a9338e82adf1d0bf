//! Memory that is only a number, except where the host maps it: addresses without storage until somebody writes there.

use crate::{Count, Shared};
use crossweave_plugin::{Code, Error, MemKind, Result, fail, unsupported};
use crossweave_words::Size;
use std::ptr::NonNull;
use std::sync::Arc;

/// An allocation. Device memory has no bytes; page-locked memory is real and starts zeroed, so that staging code runs unchanged.
pub struct Mem {
    shared: Arc<Shared>,
    bytes: u64,
    host: Option<Mapping>,
}
// SAFETY: the block is owned; who writes it through the mapped address orders that by the streams, as on any device.
unsafe impl Send for Mem {}
// SAFETY: as above; this type itself never reads or writes the block.
unsafe impl Sync for Mem {}

impl Mem {
    pub(crate) fn new(shared: &Arc<Shared>, kind: MemKind, bytes: u64, align: u64) -> Result<Mem> {
        if align != 0 && !align.is_power_of_two() {
            return fail(
                Code::Invalid,
                format!("alignment {align} is not a power of two"),
            );
        }
        if bytes > shared.mem_total.saturating_sub(shared.get(Count::Bytes)) {
            return Err(oom(bytes));
        }
        let host = match kind {
            MemKind::HostPinned => Some(Mapping::new(bytes, align)?),
            MemKind::Device | MemKind::Symmetric => None,
        };
        shared.add(Count::Allocs, 1);
        shared.add(Count::LiveAllocs, 1);
        shared.add(Count::Bytes, bytes);
        Ok(Mem {
            shared: shared.clone(),
            bytes,
            host,
        })
    }

    pub(crate) fn address(&self) -> Result<*mut u8> {
        match &self.host {
            Some(m) => Ok(m.address()),
            None => unsupported("device memory of the null backend has no address"),
        }
    }
}

fn oom(bytes: u64) -> Error {
    Error::new(Code::Oom, format!("{}; raise null.mem_total", Size(bytes))).retryable()
}

/// Zeroed memory of which a rehearsal may ask for any amount: the system does not count it against what the machine has.
struct Mapping {
    begin: NonNull<u8>,
    len: usize,
    align: usize,
}

impl Mapping {
    /// Mappings begin at a page; a coarser alignment is found within.
    const PAGE: u64 = 4096;

    fn new(bytes: u64, align: u64) -> Result<Mapping> {
        let align = align.max(Mapping::PAGE);
        // At least one byte, since no mapping is empty.
        let len = bytes.max(1).checked_add(align - Mapping::PAGE);
        let len = len.ok_or_else(|| oom(bytes))? as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the system puts it.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        let begin = NonNull::new(p.cast()).filter(|_| p != libc::MAP_FAILED);
        let align = align as usize;
        begin
            .map(|begin| Mapping { begin, len, align })
            .ok_or_else(|| oom(bytes))
    }

    fn address(&self) -> *mut u8 {
        let p = self.begin.as_ptr();
        p.wrapping_add(p.align_offset(self.align))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and unmapped once.
        unsafe { libc::munmap(self.begin.as_ptr().cast(), self.len) };
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        self.shared.sub(Count::LiveAllocs, 1);
        self.shared.sub(Count::Bytes, self.bytes);
    }
}
