//! The CPU device and its in-process collective: the oracle for every other backend, plain and correct first, then fast.
//!
//! It keeps device semantics from the first day: streams are queues served by their own threads, memory handles are opaque, events have
//! capture semantics. A kernel is a [`kernel::Kernel`] run on the stream's thread over the device's [`team::Team`].

pub mod gemm;
pub mod kernel;
pub mod ops;
pub mod team;
