//! The system's allocator for a program's own memory, which remembers the first request that was refused: a program that
//! aborts because of it can then say how much was asked for and by which limit it was refused ([`crate::crash`]).
//!
//! Rust aborts where a collection cannot grow, and stable Rust has no hook that runs before. The allocator is the one
//! place that knows, and the handler of the abort the one place that may speak.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Use it with `#[global_allocator]` in a program.
pub struct HostMemory;

/// Bytes of a refused request, and when it was, in nanoseconds of the monotonic clock.
struct Refusal {
    bytes: AtomicU64,
    at: AtomicU64,
}

// Of the whole process, as its memory is.
static FIRST: Refusal = Refusal {
    bytes: AtomicU64::new(0),
    at: AtomicU64::new(0),
};
/// An abort that comes so soon after a refusal follows from it; a backtrace may come before it.
const SOON: u64 = 10_000_000_000;

#[cold]
fn refuse(bytes: usize) {
    // Other threads, and the report of the failure itself, are refused as well; the first request is the one to name.
    if refused().is_none() {
        FIRST.bytes.store(bytes as u64, Relaxed);
        FIRST.at.store(now(), Relaxed);
    }
}

/// The bytes of a request that was refused a moment ago. May be called in a signal handler.
pub(crate) fn refused() -> Option<u64> {
    let recent = now().saturating_sub(FIRST.at.load(Relaxed)) < SOON;
    Some(FIRST.bytes.load(Relaxed)).filter(|bytes| *bytes > 0 && recent)
}

/// Allocates nothing.
#[cfg(unix)]
fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to this frame.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(not(unix))]
fn now() -> u64 {
    0
}

// SAFETY: every call is the system allocator's, with the same arguments and result.
unsafe impl GlobalAlloc for HostMemory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        noted(unsafe { System.alloc(layout) }, layout.size())
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        noted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's block, which is the system's.
        unsafe { System.dealloc(at, layout) }
    }
    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's block, which is the system's.
        noted(unsafe { System.realloc(at, layout, size) }, size)
    }
}

#[inline]
fn noted(at: *mut u8, bytes: usize) -> *mut u8 {
    if at.is_null() {
        refuse(bytes);
    }
    at
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_refusals_is_remembered_for_a_moment() {
        assert_eq!(refused(), None);
        let large = Layout::from_size_align(1 << 62, 8).unwrap();
        // SAFETY: a layout of some bytes; nothing is read or written.
        let at = std::hint::black_box(unsafe { HostMemory.alloc(large) });
        assert!(at.is_null());
        assert_eq!(refused(), Some(1 << 62));
        // What follows from it is not the cause.
        refuse(7);
        assert_eq!(refused(), Some(1 << 62));
        FIRST.at.store(now().saturating_sub(2 * SOON), Relaxed);
        assert_eq!(refused(), None);
    }
}
