//! Every integration test of this crate in one program, so that the crate is linked once.

mod attacks;
mod forged;
mod given_up;
mod oracles;
mod steps;
