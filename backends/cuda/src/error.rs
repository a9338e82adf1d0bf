//! What the CUDA driver's numbers mean, and what to do about them.

use crossweave_gpu::{Meaning, Status};

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
pub(crate) fn hint(status: Status) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys::cudaError_enum as E;

    #[test]
    fn a_lost_device_is_one_that_no_later_call_has() {
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
            assert_eq!(meaning(lost as i32), Meaning::Lost, "{lost:?}");
        }
        let of = |e: E| meaning(e as i32);
        assert_eq!(of(E::CUDA_ERROR_OUT_OF_MEMORY), Meaning::Memory);
        assert_eq!(of(E::CUDA_ERROR_NOT_SUPPORTED), Meaning::Unsupported);
        assert_eq!(of(E::CUDA_ERROR_INVALID_VALUE), Meaning::Invalid);
        assert_eq!(of(E::CUDA_ERROR_NO_DEVICE), Meaning::Environment);
        assert_eq!(meaning(31337), Meaning::Internal);
    }
}
