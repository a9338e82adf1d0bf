//! Every integration test of this crate in one program, so that the crate is linked once.

mod accumulation;
mod boxes;
mod calls;
mod canonical;
mod common;
mod documents;
mod graphs;
mod host_updates;
mod labels;
mod ledgers;
mod lora;
mod lora_oracles;
mod nonfinite;
mod offload;
mod optimizers;
mod oracles;
mod pipeline;
mod precision;
mod random;
mod same_calls;
mod slices;
mod stages;
mod stalls;
mod tensor_parallel;
mod waits;
mod zero;
