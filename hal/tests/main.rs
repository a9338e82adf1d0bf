//! Every integration test of this crate in one program, so that the crate is linked once.

#[path = "abi_lock/main.rs"]
mod abi_lock;
mod crash;
mod death_watch;
