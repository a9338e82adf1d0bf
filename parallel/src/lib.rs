//! Pipeline parallelism and gradient accumulation as schedules that write the first list of a plan
//! (1F1B, GPipe, interleaved, ZB-H1, ZB-V, DualPipeV), and the pass for recompute (activation checkpointing), which chooses what forwards
//! keep. Ranks are never named in them.
//!
//! Tensor parallelism is no pass: a layer is cut over the axis tp where it is declared, by `nn/src/split.rs`, which says of each of its
//! products what a rank holds. Its transitions and their gradients are ops of a block: `tensor/src/ops/comm.rs` (sums over the axis),
//! `tensor/src/ops/vocabulary.rs` and `tensor/src/ops/vocabulary_loss.rs` (rows of the vocabulary and the loss over them).
//!
//! **Invariants** (`docs/invariants.md`). In the plans of all stages every send meets its receive in the
//! same order, so that no schedule deadlocks under any library; ZeRO's passes compose with every
//! schedule.
#![forbid(unsafe_code)]

mod messages;
pub mod played;
mod recompute;
pub mod schedule;
pub mod timeline;
pub mod work;

pub use recompute::Keeps;
