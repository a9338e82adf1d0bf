//! What ACL's numbers mean, and what to do about them.

use crossweave_gpu::{Meaning, Status};

/// Numbers with their names and meanings (`acl_base_rt.h`, `rt_error_codes.h`); those of two layers for one thing stand together.
const KNOWN: &[(Status, &str, Meaning)] = &[
    (100000, "ACL_ERROR_INVALID_PARAM", Meaning::Invalid),
    (100001, "ACL_ERROR_UNINITIALIZE", Meaning::Environment),
    (107000, "ACL_ERROR_RT_PARAM_INVALID", Meaning::Invalid),
    (107001, "ACL_ERROR_RT_INVALID_DEVICEID", Meaning::Invalid),
    (107002, "ACL_ERROR_RT_CONTEXT_NULL", Meaning::Internal),
    (107003, "ACL_ERROR_RT_STREAM_CONTEXT", Meaning::Internal),
    (
        TASK_ABORT,
        "ACL_ERROR_RT_DEVICE_TASK_ABORT",
        Meaning::Internal,
    ),
    (STREAM_ABORT, "ACL_ERROR_RT_STREAM_ABORT", Meaning::Internal),
    (200000, "ACL_ERROR_BAD_ALLOC", Meaning::Memory),
    (200002, "ACL_ERROR_INVALID_DEVICE", Meaning::Invalid),
    (
        200006,
        "ACL_ERROR_FEATURE_UNSUPPORTED",
        Meaning::Unsupported,
    ),
    (
        NOT_SUPPORTED,
        "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        Meaning::Unsupported,
    ),
    (207001, "ACL_ERROR_RT_MEMORY_ALLOCATION", Meaning::Memory),
    (NO_DEVICE, "ACL_ERROR_RT_NO_DEVICE", Meaning::Environment),
    (207018, "ACL_ERROR_RT_DEVICE_OOM", Meaning::Memory),
    (500000, "ACL_ERROR_INTERNAL_ERROR", Meaning::Internal),
    (500003, "ACL_ERROR_RT_FAILURE", Meaning::Internal),
    (507000, "ACL_ERROR_RT_INTERNAL_ERROR", Meaning::Internal),
    (507014, "ACL_ERROR_RT_AICORE_TIMEOUT", Meaning::Lost),
    (507015, "ACL_ERROR_RT_AICORE_EXCEPTION", Meaning::Lost),
    (507035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION", Meaning::Lost),
    (507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR", Meaning::Lost),
    (
        507054,
        "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
        Meaning::Lost,
    ),
    (
        507899,
        "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        Meaning::Environment,
    ),
];

/// `ACL_ERROR_RT_FEATURE_NOT_SUPPORT`.
pub(crate) const NOT_SUPPORTED: Status = 207000;
/// `ACL_ERROR_RT_NO_DEVICE`.
pub(crate) const NO_DEVICE: Status = 207004;
/// `ACL_ERROR_RT_DEVICE_TASK_ABORT`.
pub(crate) const TASK_ABORT: Status = 107022;
/// `ACL_ERROR_RT_STREAM_ABORT`.
pub(crate) const STREAM_ABORT: Status = 107023;

pub(crate) fn meaning(status: Status) -> Meaning {
    let known = KNOWN.iter().find(|(s, ..)| *s == status);
    known.map_or(Meaning::Internal, |(.., m)| *m)
}

pub(crate) fn name(status: Status) -> &'static str {
    let known = KNOWN.iter().find(|(s, ..)| *s == status);
    known.map_or("", |(_, n, _)| n)
}

/// What to do about it, where that is known.
pub(crate) fn hint(status: Status) -> &'static str {
    match status {
        200000 | 207001 | 207018 => {
            "; free memory, or use a smaller micro-batch, recompute or more ranks"
        }
        NO_DEVICE => {
            "; no device is visible: check npu-smi info, ASCEND_RT_VISIBLE_DEVICES, and that /dev/davinci* can be opened"
        }
        STREAM_ABORT => {
            "; it waited for a stream whose communicator was given up, and what it was given since was thrown away"
        }
        507014 | 507015 | 507035 => {
            "; an operator went astray: run with ASCEND_LAUNCH_BLOCKING=1 to find it, and look at the plog files in ~/ascend/log"
        }
        507053 | 507054 => "; the hardware reported a memory error: take the device out of service",
        507899 => "; is the driver there, and does its version fit the toolkit's?",
        _ => "",
    }
}

#[cfg(test)]
pub(crate) fn numbers() -> impl Iterator<Item = (&'static str, Status)> {
    KNOWN.iter().map(|(s, n, _)| (*n, *s))
}
