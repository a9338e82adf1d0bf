//! Every integration test of this crate in one program, so that the crate is linked once.

mod attacks;
mod config;
mod corpus;
mod data;
mod deepspeed;
mod deepspeed_keys;
mod documents;
mod explained;
mod json;
mod keys;
mod resume;
mod sizes;
