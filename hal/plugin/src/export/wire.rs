//! Between raw C arguments and safe Rust: handles, spans, sized structs, the error record, and the guard no panic passes.

use super::{Declared, Instance};
use crate::{Code, Error, Result, Span, fail};
use crossweave_abi as abi;
use crossweave_abi::read::Sized32;
use crossweave_abi::{ErrPtr, Handle, Status};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What a slot's body answers, as a status: nothing is success, `false` of a query is "not ready".
pub(crate) trait Answer {
    /// The status on the wire.
    fn status(self) -> Status;
}
impl Answer for () {
    fn status(self) -> Status {
        abi::OK
    }
}
impl Answer for bool {
    fn status(self) -> Status {
        if self { abi::OK } else { abi::NOT_READY }
    }
}

/// Defines the C function of one slot: fetches the instance, runs the body, reports errors, stops panics.
macro_rules! slot {
    ($name:ident($($a:ident: $t:ty),* $(,)?) |$b:ident| $body:expr) => {
        pub(super) unsafe extern "C" fn $name<B: $crate::export::Declared>(
            $($a: $t,)*
            e: crossweave_abi::ErrPtr,
        ) -> crossweave_abi::Status {
            // SAFETY: the host keeps R1-R8: a handle is NULL or one this table gave out for this backend and not yet
            // destroyed; pointers are NULL or valid for the call. NULL is checked before every use.
            unsafe {
                $crate::export::wire::guard(e, stringify!($name), || {
                    let $b = $crate::export::wire::instance::<B>()?;
                    Ok($crate::export::wire::Answer::status($body))
                })
            }
        }
    };
}
pub(super) use slot;

/// The text of a panic's payload. The payload itself is leaked: its destructor could panic again.
pub(crate) fn panic_text(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = match payload.downcast_ref::<&str>() {
        Some(s) => s.to_string(),
        None => match payload.downcast_ref::<String>() {
            Some(s) => s.clone(),
            None => "a panic without text".into(),
        },
    };
    std::mem::forget(payload);
    text
}

/// Runs a body under R5 (nothing unwinds into the host) and writes the caller's record when the status is negative.
///
/// # Safety
/// `e` is NULL or points at a live error record that states its size.
pub unsafe fn guard(e: ErrPtr, at: &str, body: impl FnOnce() -> Result<Status>) -> Status {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(s)) => return s,
        Ok(Err(x)) => x,
        Err(p) => Error::new(Code::Panic, panic_text(p)),
    };
    // SAFETY: forwarded from the caller.
    unsafe { report(e, at, &error) }
}

/// Copies `s`, cut at a character boundary and NUL-terminated.
pub(crate) fn fill_text(dst: &mut [u8], s: &str) {
    let mut n = s.len().min(dst.len() - 1);
    while !s.is_char_boundary(n) {
        n -= 1;
    }
    dst[..n].copy_from_slice(&s.as_bytes()[..n]);
    dst[n..].fill(0);
}

/// Writes the record, as much of it as the caller owns.
///
/// # Safety
/// R1: `e` is NULL or a record of as many bytes as its `size` says, which nobody else touches during the call.
unsafe fn report(e: ErrPtr, at: &str, x: &Error) -> Status {
    let status = x.code.status();
    if e.is_null() || status >= 0 {
        return status;
    }
    let mut r = abi::Error::new();
    r.code = status;
    r.vendor_code = x.vendor_code;
    r.flags = if x.sticky { abi::ERRF_STICKY } else { 0 }
        | if x.retryable { abi::ERRF_RETRYABLE } else { 0 };
    r.peer_rank = x.peer.map_or(-1, |p| p.0 as i32);
    fill_text(&mut r.where_, at);
    fill_text(&mut r.message, &x.message);
    // SAFETY: `e` is a record of `size` bytes (R1); only that many are written.
    unsafe {
        let owned = (e as *const u32).read() as usize;
        if owned >= 8 {
            r.size = owned as u32;
            std::ptr::copy_nonoverlapping(
                (&raw const r).cast::<u8>(),
                e.cast::<u8>(),
                owned.min(size_of::<abi::Error>()),
            );
            // A shorter record cuts the text; its last byte must still end it.
            if owned > 72 && owned < size_of::<abi::Error>() {
                e.cast::<u8>().add(owned - 1).write(0);
            }
        }
    }
    status
}

/// The backend's one instance.
pub(crate) fn instance<B: Declared>() -> Result<&'static B> {
    Ok(&whole::<B>()?.backend)
}

/// The instance with the boundary's own state.
pub(crate) fn whole<B: Declared>() -> Result<&'static Instance<B>> {
    match B::slot().get() {
        Some(i) => Ok(i),
        None => fail(
            Code::Invalid,
            "the plugin is not initialised: call its entry function first",
        ),
    }
}

/// A handle owning `x`; freed by [`drop_as`].
pub(crate) fn boxed<T>(x: T) -> Handle {
    Box::into_raw(Box::new(x)).cast()
}

/// The object behind a handle.
///
/// # Safety
/// `h` is NULL or came from [`boxed`] with the same `T` and was not dropped.
pub(crate) unsafe fn obj<'a, T>(h: Handle, what: &str) -> Result<&'a T> {
    if h.is_null() {
        return fail(Code::Invalid, format!("the {what} handle is NULL"));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { &*h.cast::<T>() })
}

/// The destroy slot of every handle type. NULL is allowed and does nothing.
///
/// # Safety
/// As [`obj`]; the handle is dead afterwards.
pub(super) unsafe extern "C" fn drop_as<T>(h: Handle) {
    if h.is_null() {
        return;
    }
    // SAFETY: promised by the caller.
    let b = unsafe { Box::from_raw(h.cast::<T>()) };
    if let Err(p) = catch_unwind(AssertUnwindSafe(move || drop(b))) {
        // No record to write to: a destroy function cannot fail. Leak the payload (R5).
        std::mem::forget(p);
    }
}

/// Writes an out parameter.
///
/// # Safety
/// `out` is NULL or writable.
pub(crate) unsafe fn put<T>(out: *mut T, what: &str, x: T) -> Result<()> {
    if out.is_null() {
        return fail(Code::Invalid, format!("the pointer for {what} is NULL"));
    }
    // SAFETY: promised by the caller.
    unsafe { out.write(x) };
    Ok(())
}

/// Refuses a NULL out pointer before work is done that would then be lost.
pub(crate) fn writable<T>(out: *mut T, what: &str) -> Result<()> {
    if out.is_null() {
        return fail(Code::Invalid, format!("the pointer for {what} is NULL"));
    }
    Ok(())
}

/// Writes a size-prefixed out struct: as many bytes as the host's `size` says, the rest stays (R1).
///
/// # Safety
/// `out` is NULL or a struct of the size its first field states.
pub(crate) unsafe fn put_sized<T: Sized32>(out: *mut T, what: &str, mut x: T) -> Result<()> {
    writable(out, what)?;
    // SAFETY: promised by the caller; `Sized32` says the first field of `x` is its u32 size.
    unsafe {
        let theirs = (out as *const u32).read() as usize;
        if theirs < 8 {
            return fail(
                Code::Invalid,
                format!("{what}: its size field says {theirs}; set it to sizeof before the call"),
            );
        }
        let n = theirs.min(size_of::<T>());
        (&raw mut x).cast::<u32>().write(n as u32);
        std::ptr::copy_nonoverlapping((&raw const x).cast::<u8>(), out.cast::<u8>(), n);
    }
    Ok(())
}

/// Writes a byte list with the capacity rule: capacity 0 (or NULL) asks for the length only.
///
/// # Safety
/// `out` is NULL or has `cap` bytes; `len` is NULL or writable.
pub(crate) unsafe fn put_bytes(
    out: *mut c_void,
    cap: u64,
    len: *mut u64,
    what: &str,
    bytes: &[u8],
) -> Result<()> {
    // SAFETY: promised by the caller; the copy is bounded by `cap`.
    unsafe {
        put(len, "len", bytes.len() as u64)?;
        if out.is_null() || cap == 0 {
            return Ok(());
        }
        if cap < bytes.len() as u64 {
            return fail(
                Code::Invalid,
                format!("{what} takes {} bytes, the buffer has {cap}", bytes.len()),
            );
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast::<u8>(), bytes.len());
    }
    Ok(())
}

/// Reads a per-call descriptor (R1): a set field this build does not know is `Unsupported`, NULL is `Invalid`.
///
/// # Safety
/// `p` is NULL or a live struct of the size it states.
pub unsafe fn desc<T: Sized32>(p: *const T, what: &str) -> Result<T> {
    if p.is_null() {
        return fail(Code::Invalid, format!("the {what} is NULL"));
    }
    // SAFETY: promised by the caller.
    unsafe {
        if (p as *const u32).read_unaligned() < 8 {
            return fail(Code::Invalid, format!("the {what} states no size"));
        }
        abi::read_desc(p.cast()).map_err(|m| Error::new(Code::Unsupported, format!("{what}: {m}")))
    }
}

/// Reads an array of descriptors; its stride is the writer's size, stated by the first element.
///
/// # Safety
/// `p` is NULL or an array of `n` structs, each stating the same size.
pub unsafe fn desc_array<T: Sized32>(p: *const T, n: u32, what: &str) -> Result<Vec<T>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    if p.is_null() {
        return fail(
            Code::Invalid,
            format!("{n} {what}s promised, the pointer is NULL"),
        );
    }
    // SAFETY: promised by the caller.
    unsafe {
        let stride = (p as *const u32).read_unaligned() as usize;
        let mut v = Vec::with_capacity(n as usize);
        for i in 0..n as usize {
            let q = p.cast::<u8>().add(i * stride).cast::<T>();
            if (q as *const u32).read_unaligned() as usize != stride {
                return fail(
                    Code::Invalid,
                    format!("{what} {i} states another size than {what} 0"),
                );
            }
            v.push(desc(q, what)?);
        }
        Ok(v)
    }
}

/// A span that must be there. Bounds are the host's duty (it knows the allocation).
///
/// # Safety
/// As [`obj`] for its memory handle.
pub(crate) unsafe fn span<'a, B: Declared>(s: abi::Span, what: &str) -> Result<Span<'a, B::Mem>> {
    Ok(Span {
        // SAFETY: promised by the caller.
        mem: unsafe { obj::<B::Mem>(s.mem, what)? },
        offset: s.offset,
        bytes: s.bytes,
    })
}

/// A span that may be absent (NULL memory).
///
/// # Safety
/// As [`span`].
pub(crate) unsafe fn maybe_span<'a, B: Declared>(s: abi::Span) -> Option<Span<'a, B::Mem>> {
    if s.mem.is_null() {
        return None;
    }
    // SAFETY: promised by the caller; not NULL.
    Some(Span {
        mem: unsafe { &*s.mem.cast::<B::Mem>() },
        offset: s.offset,
        bytes: s.bytes,
    })
}

/// Text of the host.
///
/// # Safety
/// `s` describes live memory.
pub(crate) unsafe fn text<'a>(s: abi::Str, what: &str) -> Result<&'a str> {
    // SAFETY: promised by the caller.
    match unsafe { s.as_str() } {
        Some(t) => Ok(t),
        None => fail(Code::Invalid, format!("{what} is not UTF-8")),
    }
}

/// A slice of the host; NULL is empty only when `n` is 0.
///
/// # Safety
/// `p` is NULL or has `n` elements, live for the call.
pub(crate) unsafe fn slice<'a, T>(p: *const T, n: u64, what: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if p.is_null() {
        return fail(
            Code::Invalid,
            format!("{what}: {n} elements promised, the pointer is NULL"),
        );
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(p, n as usize) })
}

/// A timeout of the wire: negative waits for ever.
pub fn timeout(ns: i64) -> Option<Duration> {
    (ns >= 0).then(|| Duration::from_nanos(ns as u64))
}

/// Flags of which this build knows none.
pub(crate) fn no_flags(flags: u32, what: &str) -> Result<()> {
    if flags != 0 {
        return fail(
            Code::Unsupported,
            format!("{what}: unknown flags {flags:#x}"),
        );
    }
    Ok(())
}
