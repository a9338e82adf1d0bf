//! Every integration test of this crate in one program, so that the crate is linked once.

mod attacks;
mod balance;
mod canonical;
mod checkpoints;
mod common;
mod crowds;
mod documents;
mod explain;
mod explore;
mod faults;
mod find_nan;
mod folders;
mod graphs;
mod guide;
mod islands;
mod layers;
mod mixed_faults;
mod mpirun;
mod new_plugin;
mod odd_files;
mod offload;
mod oracles;
mod pipelines;
mod predict;
mod trace;
mod training;
