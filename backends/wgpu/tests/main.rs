//! Every integration test of this crate in one program, so that the crate is linked once.

mod common;
mod faults;
mod ops;
mod ops_windows;
mod products;
mod products_naive;
mod products_plain;
mod training;
