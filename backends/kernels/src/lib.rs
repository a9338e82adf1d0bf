//! Device kernels as one source for CUDA and HIP, and the Rust that turns an op into launches of them.
//! Nothing here touches a device.
//!
//! [`prepare`] reads an `Op` and a device's [`Facts`] and returns [`Prepared`]: the plan, and
//! [`Launch`]es in stream order. A launch names its [`Kernel`] (whose [`Kernel::source`] is a complete
//! translation unit without includes), grid, block, shared memory, and one argument struct, passed by
//! value as the kernel's only parameter. What a back end does with it:
//!
//! 1. prepare: for each launch, compile `kernel.source(dialect)` with [`options`] or [`hip_options`]
//!    (cached by its hash), load it, look up `kernel.entry`; where `shared` is above 48 KiB, raise the
//!    function's dynamic shared memory limit once.
//! 2. launch: `prepared.operands.addresses(…)?` and `.workspace(…)?` (the given memory holds what the
//!    layouts reach), `values = prepared.values(dynamic)?` (checks the launch-time parameters), then for
//!    each launch `launch.fill(&addresses, workspace, &values, &mut buffer)` writes the argument struct,
//!    and the driver gets a pointer to it.
//!
//! Nothing is allocated at launch. Addresses of absent operands are 0. The workspace must be 256-byte
//! aligned. Operands need the alignment of their elements only: kernels use 16-byte accesses where an
//! address allows them and plain ones elsewhere.

mod args;
mod launch;
mod ops;
mod source;
mod view;

pub use launch::{ARGS_MAX, ArgBuffer, Launch, Operands, Place, Prepared, Slot, Values};
pub use ops::{every_kernel, every_launch, prepare, survey};
pub use source::{Dialect, Facts, Family, Kernel, arch_name, hip_options, options, source};
