//! Every integration test of this crate in one program, so that the crate is linked once.

mod checker;
mod comm_plans;
mod common;
mod compose;
mod islands;
mod prefer;
