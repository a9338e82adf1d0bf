//! From a driver's number to the typed record: the code a host can act on, the vendor's number and name, and whether the device is lost.

use crate::runtime::{DISTRUSTED, MISSING, Meaning, Outcome, Runtime};
use crossweave_plugin::{Code, Error};
use std::ffi::{CStr, c_char};

/// A text of the driver's, owned.
///
/// # Safety
/// `p` is NULL or a NUL-terminated text.
pub unsafe fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// The error of a failed call.
pub fn error(rt: &dyn Runtime, o: Outcome) -> Error {
    if o.status == MISSING {
        let message = format!("the {} ({}) has no {}", rt.what(), rt.version(), o.name);
        return Error::new(Code::Unsupported, message);
    }
    if o.status == DISTRUSTED {
        let message = format!(
            "{} of the {} ({}) is not used{}",
            o.name,
            rt.what(),
            rt.version(),
            rt.hint(o.status)
        );
        return Error::new(Code::Unsupported, message);
    }
    let (name, words) = rt.words(o.status);
    let name = match name.is_empty() {
        true => "unknown error",
        false => &name,
    };
    let colon = if words.is_empty() { "" } else { ": " };
    let message = format!(
        "{}: {name} ({}){colon}{words}{}",
        o.name,
        o.status,
        rt.hint(o.status)
    );
    let (code, sticky, retryable) = match rt.meaning(o.status) {
        Meaning::Lost => (Code::DeviceLost, true, false),
        Meaning::Memory => (Code::Oom, false, true),
        Meaning::Unsupported | Meaning::Environment => (Code::Unsupported, false, false),
        Meaning::Invalid => (Code::Invalid, false, false),
        Meaning::Internal => (Code::Internal, false, false),
    };
    Error {
        vendor_code: i64::from(o.status),
        sticky,
        retryable,
        ..Error::new(code, message)
    }
}
