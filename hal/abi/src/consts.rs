//! Every numeric constant of the ABI, as the header spells them (without the `CW_` prefix), and the names of collectives.

/// Status of a call: zero is success, positive is a state, negative is an error.
pub type Status = i32;
/// Success.
pub const OK: Status = 0;
/// Not finished yet; a state, not an error.
pub const NOT_READY: Status = 1;
/// Not provided. Free of side effects: the host may always take another route (R6).
pub const E_UNSUPPORTED: Status = -1;
/// The caller broke the contract (bad handle, span out of bounds, …).
pub const E_INVALID: Status = -2;
/// Out of memory; usually retryable after freeing.
pub const E_OOM: Status = -3;
/// The device is gone; sticky.
pub const E_DEVICE_LOST: Status = -4;
/// A communicator failed.
pub const E_COMM: Status = -5;
/// The timeout given to the call passed.
pub const E_TIMEOUT: Status = -6;
/// The communicator was aborted.
pub const E_ABORTED: Status = -7;
/// A bug inside the plugin or its vendor library.
pub const E_INTERNAL: Status = -8;
/// The plugin panicked or threw; caught at the boundary.
pub const E_PANIC: Status = -9;
/// Host and plugin do not fit; the message carries both versions.
pub const E_VERSION: Status = -10;

/// Error flag: the handle is dead and must be re-created.
pub const ERRF_STICKY: u32 = 1;
/// Error flag: the same call may succeed later.
pub const ERRF_RETRYABLE: u32 = 2;

/// Minor version of the ABI this crate mirrors; the major is in [`ENTRY_NAME`].
pub const ABI_MINOR: u32 = 0;
/// The one symbol a plugin exports.
pub const ENTRY_NAME: &str = "crossweave_plugin_v1";
/// Section holding the text manifest (ELF spelling).
pub const MANIFEST_SECTION: &str = ".crossweave";

/// Memory of the device itself.
pub const MEM_DEVICE: u32 = 1;
/// Page-locked host memory, mappable.
pub const MEM_HOST_PINNED: u32 = 2;
/// Device memory registered with communicators when allocated.
pub const MEM_SYMMETRIC: u32 = 3;

/// `Native::type_`: `value[0]` is a host address of `bytes` bytes that outlive the import.
pub const NATIVE_HOST_POINTER: u32 = 1;

/// Host and device share memory: `mem_map` works on [`MEM_DEVICE`].
pub const CAP_UNIFIED: u64 = 1;
/// Streams advance on host threads.
pub const CAP_HOST_PROGRESS: u64 = 2;
/// `MATH_DETERMINISTIC` is honoured by every claimed op.
pub const CAP_DETERMINISTIC: u64 = 4;
/// To launch a graph costs the host less than to enqueue what it holds.
pub const CAP_GRAPHS_PAY: u64 = 8;
/// Operands of ops begin at multiples of `device_info.align`; the host copies those that do not.
pub const CAP_ALIGNED_OPERANDS: u64 = 16;

/// `OpDesc::math_flags`: the same inputs give the same bits.
pub const MATH_DETERMINISTIC: u32 = 1;
/// `OpDesc::math_flags`: f32 products may drop mantissa bits.
pub const MATH_TF32: u32 = 2;

/// Collective kinds (`CollDesc::kind`).
pub const COLL_ALL_REDUCE: u32 = 1;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_REDUCE_SCATTER: u32 = 2;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_ALL_GATHER: u32 = 3;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_BROADCAST: u32 = 4;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_REDUCE: u32 = 5;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_ALL_TO_ALL: u32 = 6;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_ALL_TO_ALL_V: u32 = 7;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_ALL_GATHER_V: u32 = 8;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_SEND: u32 = 9;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_RECV: u32 = 10;
/// See [`COLL_ALL_REDUCE`].
pub const COLL_BARRIER: u32 = 11;

/// Reduce operators (`CollDesc::reduce`).
pub const RED_SUM: u32 = 1;
/// See [`RED_SUM`].
pub const RED_PROD: u32 = 2;
/// See [`RED_SUM`].
pub const RED_MIN: u32 = 3;
/// See [`RED_SUM`].
pub const RED_MAX: u32 = 4;
/// Sum divided by the number of ranks; refused for integers, never truncated.
pub const RED_AVG: u32 = 5;
/// `x * scale` before the sum.
pub const RED_PREMUL_SUM: u32 = 6;

/// Names of the collective kinds, from [`COLL_ALL_REDUCE`] on: as ledgers, configurations and messages have them.
pub const COLL_NAMES: [&str; 11] = [
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "all_gather_v",
    "send",
    "recv",
    "barrier",
];
/// Names of the reduce operators, from [`RED_SUM`] on.
pub const RED_NAMES: [&str; 6] = ["sum", "prod", "min", "max", "avg", "premul_sum"];

/// Name of a collective kind.
pub fn coll_name(kind: u32) -> Option<&'static str> {
    COLL_NAMES.get(kind.checked_sub(1)? as usize).copied()
}

/// Collective kind of a name.
pub fn coll_by_name(name: &str) -> Option<u32> {
    let at = COLL_NAMES.iter().position(|n| *n == name)?;
    Some(at as u32 + 1)
}

/// Name of a reduce operator.
pub fn red_name(reduce: u32) -> Option<&'static str> {
    RED_NAMES.get(reduce.checked_sub(1)? as usize).copied()
}

/// `CollDesc::flags`: sum 16-bit floats in f32 and round once.
pub const COLLF_ACC_F32: u32 = 1;
