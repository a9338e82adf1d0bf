//! Every integration test of this crate in one program, so that the crate is linked once.

mod absent;
mod pages;
mod simulated;
