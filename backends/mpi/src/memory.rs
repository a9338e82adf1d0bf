//! Memory of the host: own allocations, and pieces of other owners by address.

use crossweave_abi as abi;
use crossweave_plugin::{Code, Error, Result, Span, fail, unsupported};
use crossweave_words::Size;
use std::alloc::Layout;

pub(crate) const PAGE: usize = 4096;
const MANY_PAGES: u64 = 64 << 10;
/// From here on huge pages: few addresses to look up, for us and for the kernel that copies between processes.
const HUGE_FROM: u64 = 4 << 20;
const HUGE: u64 = 2 << 20;

/// A piece of host memory.
pub struct Mem {
    at: *mut u8,
    bytes: u64,
    /// `None`: somebody else's.
    layout: Option<Layout>,
}
// SAFETY: a handle to bytes; who touches them when is ordered by streams, which is the host's duty.
unsafe impl Send for Mem {}
// SAFETY: as above.
unsafe impl Sync for Mem {}

impl Mem {
    /// Zeroed memory of our own.
    pub(crate) fn alloc(bytes: u64, align: u64) -> Result<Mem> {
        // The kernel copies between processes page by page: whole pages where there are many.
        let least = match bytes {
            0..MANY_PAGES => 64,
            MANY_PAGES..HUGE_FROM => PAGE as u64,
            _ => HUGE,
        };
        let layout = usize::try_from(bytes.max(1))
            .ok()
            .filter(|_| align == 0 || align.is_power_of_two())
            .and_then(|n| Layout::from_size_align(n, align.max(least) as usize).ok());
        let Some(layout) = layout else {
            return fail(
                Code::Invalid,
                format!("mem_alloc: {bytes} bytes aligned to {align}"),
            );
        };
        // Huge pages are asked for before the memory is touched.
        let huge = bytes >= HUGE_FROM;
        // SAFETY: the size is at least one.
        let at = unsafe {
            match huge {
                true => std::alloc::alloc(layout),
                false => std::alloc::alloc_zeroed(layout),
            }
        };
        if at.is_null() {
            let e = Error::new(
                Code::Oom,
                format!("mem_alloc: no {} of host memory", Size(bytes)),
            );
            return Err(e.retryable());
        }
        if huge {
            // SAFETY: the range was just allocated and begins where a huge page does; the advice changes no contents and may fail freely.
            #[cfg(target_os = "linux")]
            unsafe {
                libc::madvise(at.cast(), layout.size(), libc::MADV_HUGEPAGE)
            };
            // SAFETY: as above.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        Ok(Mem {
            at,
            bytes,
            layout: Some(layout),
        })
    }

    pub(crate) fn import(n: &abi::Native) -> Result<Mem> {
        if n.type_ != abi::NATIVE_HOST_POINTER {
            return unsupported(format!("mem_import of native type {}", n.type_));
        }
        Ok(Mem {
            at: n.value[0] as *mut u8,
            bytes: n.bytes,
            layout: None,
        })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for Mem {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `alloc` with this layout, freed once.
            unsafe { std::alloc::dealloc(self.at, layout) };
        }
    }
}

/// The address of a span.
pub(crate) fn address(span: &Span<'_, Mem>, what: &str) -> Result<*mut u8> {
    match span.offset.checked_add(span.bytes) {
        Some(end) if end <= span.mem.bytes => Ok(span.mem.at.wrapping_add(span.offset as usize)),
        _ => fail(
            Code::Invalid,
            format!(
                "{what}: span {}+{} leaves its memory of {} bytes",
                span.offset, span.bytes, span.mem.bytes
            ),
        ),
    }
}
