//! Every integration test of this crate in one program, so that the crate is linked once.

mod estimate;
mod golden;
mod lowering;
mod placements;
mod property;
mod steps;
