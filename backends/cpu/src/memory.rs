//! Memory is an opaque handle over aligned, uninitialised, lazily committed pages; device memory is deliberately not mappable.

use crossweave_abi as abi;
use crossweave_plugin::{Code, Error, MemKind, Result, Span, fail, unsupported};
use crossweave_words::Size;
use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations from this size are aligned to huge pages and ask for them.
const HUGE_FROM: u64 = 4 << 20;
const HUGE: u64 = 2 << 20;
/// Every allocation is aligned to a cache line.
pub(crate) const ALIGN: u64 = 64;

/// What a device has given out.
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes the device may give.
    pub(crate) total: u64,
    /// Bytes given.
    pub(crate) bytes: AtomicU64,
    /// Allocations alive.
    pub(crate) live: AtomicU64,
}

/// A piece of memory of a CPU device.
#[derive(Debug)]
pub struct Mem {
    ptr: *mut u8,
    bytes: u64,
    kind: MemKind,
    /// `None`: imported, the pages are another's.
    layout: Option<Layout>,
    account: Arc<Account>,
}
// SAFETY: a `Mem` owns its pages; who touches them when is ordered by streams (the host's duty), never by this handle.
unsafe impl Send for Mem {}
// SAFETY: as above; shared access reads only the handle's immutable fields.
unsafe impl Sync for Mem {}

impl Mem {
    pub(crate) fn alloc(
        account: &Arc<Account>,
        kind: MemKind,
        bytes: u64,
        align: u64,
    ) -> Result<Mem> {
        if align > 1 && !align.is_power_of_two() {
            return fail(
                Code::Invalid,
                format!("mem_alloc: alignment {align} is not a power of two"),
            );
        }
        let oom = |why: &str| {
            Error::new(
                Code::Oom,
                format!(
                    "mem_alloc: {}: {why} ({} of {} are given out, the budget of cpu.memory_bytes)",
                    Size(bytes),
                    Size(account.bytes.load(Ordering::Relaxed)),
                    Size(account.total)
                ),
            )
            .retryable()
        };
        let huge = bytes >= HUGE_FROM;
        let align = align.max(if huge { HUGE } else { ALIGN });
        let layout = usize::try_from(bytes.max(1))
            .ok()
            .and_then(|n| Layout::from_size_align(n, align as usize).ok())
            .ok_or_else(|| oom("more than an address space"))?;
        // Pinned memory is the host's: the device's budget is not spent on it.
        let counted = counted(kind, bytes);
        account
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| {
                b.checked_add(counted).filter(|b| *b <= account.total)
            })
            .map_err(|_| oom("more than the device has left"))?;
        // SAFETY: the size is at least one.
        let ptr = unsafe { std::alloc::alloc(layout) };
        if ptr.is_null() {
            account.bytes.fetch_sub(counted, Ordering::Relaxed);
            return Err(oom("the system refused"));
        }
        #[cfg(target_os = "linux")]
        if huge {
            // SAFETY: the range was just allocated and starts on a huge-page boundary; the advice changes no contents and may fail freely.
            unsafe { libc::madvise(ptr.cast(), bytes as usize, libc::MADV_HUGEPAGE) };
        }
        account.live.fetch_add(1, Ordering::Relaxed);
        Ok(Mem {
            ptr,
            bytes,
            kind,
            layout: Some(layout),
            account: account.clone(),
        })
    }

    /// Names host memory that somebody else owns and keeps until this is dropped.
    pub(crate) fn import(account: &Arc<Account>, native: &abi::Native) -> Result<Mem> {
        if native.type_ != abi::NATIVE_HOST_POINTER {
            return unsupported(format!(
                "mem_import of native type {}: only host pointers (type {})",
                native.type_,
                abi::NATIVE_HOST_POINTER
            ));
        }
        let ptr = native.value[0] as usize as *mut u8;
        if ptr.is_null() {
            return fail(Code::Invalid, "mem_import: the host pointer is NULL");
        }
        account.live.fetch_add(1, Ordering::Relaxed);
        Ok(Mem {
            ptr,
            bytes: native.bytes,
            kind: MemKind::HostPinned,
            layout: None,
            account: account.clone(),
        })
    }

    pub(crate) fn map(&self) -> Result<*mut u8> {
        match self.kind {
            MemKind::HostPinned => Ok(self.ptr),
            // The CPU could, but then it would hide the bug every real device shows.
            k => unsupported(format!(
                "mem_map of {k:?} memory: only pinned memory is host-visible, copy through a stream"
            )),
        }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes of an allocation that the device's budget pays for.
fn counted(kind: MemKind, bytes: u64) -> u64 {
    match kind {
        MemKind::HostPinned => 0,
        MemKind::Device | MemKind::Symmetric => bytes,
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `alloc` with this layout and freed only here.
            unsafe { std::alloc::dealloc(self.ptr, layout) };
            let counted = counted(self.kind, self.bytes);
            self.account.bytes.fetch_sub(counted, Ordering::Relaxed);
        }
        self.account.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The address of a span. The bounds are the host's to check; they are checked again here because a wrong one would be memory corruption
/// and the comparison is free beside an enqueue.
pub(crate) fn address(span: &Span<'_, Mem>, what: &str) -> Result<*mut u8> {
    match span.offset.checked_add(span.bytes) {
        // SAFETY: the offset lies inside the allocation (or one past its end).
        Some(end) if end <= span.mem.bytes => Ok(unsafe { span.mem.ptr.add(span.offset as usize) }),
        _ => fail(
            Code::Invalid,
            format!(
                "{what}: span {}+{} leaves its memory of {} bytes",
                span.offset, span.bytes, span.mem.bytes
            ),
        ),
    }
}

/// Bytes of memory of this machine, or of the control group this process lives in when that is less.
pub(crate) fn machine_bytes() -> u64 {
    let mut total = u64::MAX;
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        let kib = text
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:"))
            .and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        total = kib.map_or(total, |k| k * 1024);
    }
    if let Ok(text) = std::fs::read_to_string("/sys/fs/cgroup/memory.max") {
        total = text.trim().parse::<u64>().map_or(total, |b| b.min(total));
    }
    if total == u64::MAX { 16 << 30 } else { total }
}
