//! Every integration test of this crate in one program, so that the crate is linked once.

mod corpus;
mod examples;
mod forms;
mod mixtures;
mod rows;
mod special_tokens;
mod tables;
