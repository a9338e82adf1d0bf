//! Every integration test of this crate in one program, so that the crate is linked once.

mod collectives;
mod common;
mod device;
mod failures;
mod graph;
mod threads;
