//! Runs programs: memory by number, kernels that are prepared once, step scalars, collectives. The nearest relatives are the
//! executors of IREE's and PJRT's command buffers.
//!
//! A [`Machine`] knows no algorithm, no model and no plan. The engine runs the program of a rank's step with it, the host executor
//! the updates of what rests off the device.
#![forbid(unsafe_code)]

mod machine;
mod pinned;

pub use machine::{Machine, once};
pub use pinned::Pinned;
