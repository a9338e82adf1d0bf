//! Any GPU that Vulkan reaches, through wgpu: kernels are WGSL text, made for the adapter's limits when an op is prepared.
//!
//! It takes whatever adapter there is, a software one included, and needs nothing to build. A kernel is a [`kernel::Pass`]; the module
//! around its body is written by [`wgsl`].

pub mod kernel;
pub mod kernels;
pub mod math;
pub mod ops;
pub mod wgsl;
