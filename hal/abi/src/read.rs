//! Rule R1: reading size-prefixed structs written by a side of another age.

use core::ffi::c_void;

/// A struct whose first field is its size in bytes and for which all-zero bytes are a valid value.
///
/// # Safety
/// The type is `repr(C)`, starts with a `u32` size, and any bit pattern copied over zeros is a valid value.
pub unsafe trait Sized32: Copy {}

/// Copies a table of unknown age over zeros: `min(size, size_of::<T>())` bytes. `None` for NULL or a size below 8.
///
/// # Safety
/// `p` is NULL or points at a live struct whose first `u32` is its size.
pub unsafe fn read_prefix<T: Sized32>(p: *const c_void) -> Option<T> {
    if p.is_null() {
        return None;
    }
    // SAFETY: the caller promises a size-prefixed struct; `Sized32` says zeros and any prefix are valid.
    unsafe {
        let theirs = (p as *const u32).read_unaligned() as usize;
        if theirs < 8 {
            return None;
        }
        // Every call brings some: the usual length is known here, and so copied by a few instructions.
        if theirs == size_of::<T>() {
            return Some((p as *const T).read_unaligned());
        }
        let mut out = core::mem::MaybeUninit::<T>::zeroed();
        core::ptr::copy_nonoverlapping(
            p as *const u8,
            out.as_mut_ptr() as *mut u8,
            theirs.min(size_of::<T>()),
        );
        Some(out.assume_init())
    }
}

/// Like [`read_prefix`] for per-call descriptors: a non-zero tail this side does not know is refused, never dropped.
///
/// # Safety
/// As [`read_prefix`].
pub unsafe fn read_desc<T: Sized32>(p: *const c_void) -> Result<T, &'static str> {
    // SAFETY: forwarded from the caller; the tail lies inside the size the writer stated.
    unsafe {
        let Some(t) = read_prefix::<T>(p) else {
            return Err("null or unsized descriptor");
        };
        let theirs = (p as *const u32).read_unaligned() as usize;
        let ours = size_of::<T>();
        if theirs > ours {
            let tail = core::slice::from_raw_parts((p as *const u8).add(ours), theirs - ours);
            if tail.iter().any(|b| *b != 0) {
                return Err("a descriptor field newer than this side is set");
            }
        }
        Ok(t)
    }
}
