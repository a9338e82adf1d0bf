//! Memory that is only a number, except where the host maps it.

use crate::{Count, Shared};
use crossweave_plugin::{Code, Error, MemKind, Result, fail, unsupported};
use crossweave_words::Size;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

/// An allocation. Device memory has no bytes; page-locked memory is real and starts zeroed, so that staging code runs unchanged.
pub struct Mem {
    shared: Arc<Shared>,
    bytes: u64,
    host: Option<(NonNull<u8>, Layout)>,
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
            MemKind::HostPinned => Some(zeroed(bytes, align)?),
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
        match self.host {
            Some((p, _)) => Ok(p.as_ptr()),
            None => unsupported("device memory of the null backend has no address"),
        }
    }
}

fn oom(bytes: u64) -> Error {
    Error::new(Code::Oom, format!("{}; raise null.mem_total", Size(bytes))).retryable()
}

fn zeroed(bytes: u64, align: u64) -> Result<(NonNull<u8>, Layout)> {
    // At least one byte: the allocator knows no empty blocks.
    let layout = Layout::from_size_align(bytes.max(1) as usize, align.max(64) as usize)
        .map_err(|_| oom(bytes))?;
    // SAFETY: the layout's size is not zero.
    let p = unsafe { std::alloc::alloc_zeroed(layout) };
    NonNull::new(p)
        .map(|p| (p, layout))
        .ok_or_else(|| oom(bytes))
}

impl Drop for Mem {
    fn drop(&mut self) {
        if let Some((p, layout)) = self.host {
            // SAFETY: allocated in `zeroed` with this layout and freed once.
            unsafe { std::alloc::dealloc(p.as_ptr(), layout) }
        }
        self.shared.sub(Count::LiveAllocs, 1);
        self.shared.sub(Count::Bytes, self.bytes);
    }
}
