//! From the driver's status to the typed record: the code a host can act on, the vendor's number and name, and whether the device is lost.

use crate::driver::{Driver, Status};
use crossweave_plugin::{Code, Error};
use std::ffi::{CStr, c_char};

/// What a status means for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The context is dead: every later call fails, and only a new process has the device again.
    Lost,
    /// Memory ran out; the device works on.
    Memory,
    /// The driver or the device does not do this.
    Unsupported,
    /// The arguments were wrong.
    Invalid,
    /// Driver and machine do not fit together; nothing here can mend it.
    Environment,
    /// Anything else.
    Internal,
}

pub(crate) fn meaning(status: Status) -> Meaning {
    match status {
        // DEINITIALIZED, DEVICE_UNAVAILABLE, ECC, NVLINK, CONTAINED, and what a kernel leaves behind that went astray.
        4 | 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 => Meaning::Lost,
        2 => Meaning::Memory,
        // CALL_REQUIRES_NEWER_DRIVER, PEER_ACCESS_UNSUPPORTED, UNSUPPORTED_*, NOT_PERMITTED, NOT_SUPPORTED, CDP_*, STREAM_CAPTURE_*.
        36 | 215 | 217 | 222 | 224 | 225 | 800 | 801 | 811 | 812 | 900..=908 => {
            Meaning::Unsupported
        }
        1 | 101 | 201 | 400 | 401 => Meaning::Invalid,
        // STUB_LIBRARY, NO_DEVICE, NOT_LICENSED, the loader's, DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED, MPS.
        34 | 100 | 102 | 227 | 802..=809 => Meaning::Environment,
        _ => Meaning::Internal,
    }
}

/// What to do about it, where that is known.
fn hint(status: Status) -> &'static str {
    match status {
        2 => "; free memory, or use a smaller micro-batch, recompute or more ranks",
        34 => {
            "; a toolkit's stub of libcuda was opened instead of the driver's: take its folder off the library path"
        }
        36 | 803 => {
            "; the loaded kernel module is older than libcuda: reboot, or install matching versions"
        }
        46 => "; another process holds the device in exclusive mode",
        100 => "; no device is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES",
        214 | 220 => {
            "; the hardware reported an uncorrectable error: take the device out of service"
        }
        700 | 716..=719 => {
            "; a kernel went astray: run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer to find it"
        }
        802 => "; the driver is still starting (fabric manager?)",
        804 => "; the compatibility package does not support this device",
        _ => "",
    }
}

/// A text of the driver's, owned.
///
/// # Safety
/// `p` is NULL or a NUL-terminated text.
pub(crate) unsafe fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// The error of a failed call of function `f`.
pub(crate) fn error(d: &Driver, f: &str, status: Status) -> Error {
    let ask = |get: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
        let mut p = std::ptr::null();
        // SAFETY: the driver stores the address of a static text, or NULL for a number it does not know.
        unsafe {
            get(status, &mut p);
            text(p)
        }
    };
    let (name, words) = (ask(d.cuGetErrorName), ask(d.cuGetErrorString));
    compose(f, status, &name, &words)
}

pub(crate) fn compose(f: &str, status: Status, name: &str, words: &str) -> Error {
    let name = if name.is_empty() {
        "unknown error"
    } else {
        name
    };
    let colon = if words.is_empty() { "" } else { ": " };
    let message = format!("{f}: {name} ({status}){colon}{words}{}", hint(status));
    let (code, sticky, retryable) = match meaning(status) {
        Meaning::Lost => (Code::DeviceLost, true, false),
        Meaning::Memory => (Code::Oom, false, true),
        Meaning::Unsupported | Meaning::Environment => (Code::Unsupported, false, false),
        Meaning::Invalid => (Code::Invalid, false, false),
        Meaning::Internal => (Code::Internal, false, false),
    };
    Error {
        vendor_code: i64::from(status),
        sticky,
        retryable,
        ..Error::new(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys::cudaError_enum as E;

    #[test]
    fn memory_can_be_tried_again_and_a_lost_device_cannot() {
        let oom = compose(
            "cuMemAlloc_v2",
            E::CUDA_ERROR_OUT_OF_MEMORY as i32,
            "CUDA_ERROR_OUT_OF_MEMORY",
            "out of memory",
        );
        assert_eq!(
            (oom.code, oom.sticky, oom.retryable, oom.vendor_code),
            (Code::Oom, false, true, 2)
        );
        assert!(
            oom.message
                .starts_with("cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; ")
        );
        for lost in [
            E::CUDA_ERROR_ILLEGAL_ADDRESS,
            E::CUDA_ERROR_LAUNCH_FAILED,
            E::CUDA_ERROR_LAUNCH_TIMEOUT,
            E::CUDA_ERROR_MISALIGNED_ADDRESS,
            E::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            E::CUDA_ERROR_ASSERT,
            E::CUDA_ERROR_ECC_UNCORRECTABLE,
            E::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            E::CUDA_ERROR_HARDWARE_STACK_ERROR,
            E::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ] {
            let e = compose("f", lost as i32, "", "");
            assert_eq!((e.code, e.sticky), (Code::DeviceLost, true), "{lost:?}");
        }
    }

    #[test]
    fn a_refusal_is_unsupported_and_an_unknown_number_is_internal() {
        assert_eq!(
            compose("f", E::CUDA_ERROR_NOT_SUPPORTED as i32, "", "").code,
            Code::Unsupported
        );
        assert_eq!(
            compose("f", E::CUDA_ERROR_INVALID_VALUE as i32, "", "").code,
            Code::Invalid
        );
        let e = compose("cuNew", 31337, "", "");
        assert_eq!(
            (e.code, e.message.as_str()),
            (Code::Internal, "cuNew: unknown error (31337)")
        );
    }
}
