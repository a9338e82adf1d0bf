//! What HIP's numbers mean, and what to do about them.

use crossweave_gpu::{DISTRUSTED, Meaning, Status};

pub(crate) fn meaning(status: Status) -> Meaning {
    match status {
        // Deinitialized, ECCNotCorrectable, IllegalAddress, LaunchTimeOut, Assert, LaunchFailure, RuntimeMemory, RuntimeOther.
        4 | 214 | 700 | 702 | 710 | 719 | 1052 | 1053 => Meaning::Lost,
        2 => Meaning::Memory,
        // NoBinaryForGpu, PeerAccessUnsupported, NotSupported, StreamCapture….
        209 | 217 | 801 | 900..=908 => Meaning::Unsupported,
        // InvalidValue, InvalidMemcpyDirection, InvalidDevice, InvalidContext, InvalidHandle.
        1 | 21 | 101 | 201 | 400 => Meaning::Invalid,
        // NotInitialized, InsufficientDriver, NoDevice.
        3 | 35 | 100 => Meaning::Environment,
        _ => Meaning::Internal,
    }
}

/// What to do about it, where that is known.
pub(crate) fn hint(status: Status) -> &'static str {
    match status {
        DISTRUSTED => {
            ": graphs of ROCm 7.2 replay with wrong results (github.com/ROCm/clr/issues/279); use another version, or train without graphs"
        }
        2 => "; free memory, or use a smaller micro-batch, recompute or more ranks",
        35 => "; the kernel module (amdgpu) is older than the run time: install matching versions",
        100 => {
            "; no device is visible: check rocminfo, HIP_VISIBLE_DEVICES, and that /dev/kfd and /dev/dri can be opened"
        }
        209 => "; the code was compiled for another architecture or other features of it",
        214 => "; the hardware reported an uncorrectable error: take the device out of service",
        700 | 719 => {
            "; a kernel went astray: run with AMD_SERIALIZE_KERNEL=3 to find it, and look at dmesg"
        }
        _ => "",
    }
}
