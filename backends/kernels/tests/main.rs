//! Every integration test of this crate in one program, so that the crate is linked once.

#[path = "common/budget.rs"]
mod budget;
mod common;
#[path = "common/compiled.rs"]
mod compiled;
mod emulation;
mod ext;
#[path = "hip/main.rs"]
mod hip;
mod nvrtc;
mod training;
mod wgmma;
