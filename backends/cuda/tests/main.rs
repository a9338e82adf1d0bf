//! Every integration test of this crate in one program, so that the crate is linked once.

mod absent;
mod attention;
mod common;
mod device;
mod graph;
mod host;
mod nccl;
mod ops;
mod steady;
