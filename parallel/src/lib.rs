//! Pipeline parallelism and gradient accumulation as schedules that write the first list of a plan
//! (1F1B, GPipe), and the pass for recompute (activation checkpointing), which chooses what forwards
//! keep. Layers and functions over mesh axes belong here too; ranks are never named in them.
//!
//! **Invariants** (`docs/invariants.md`). In the plans of all stages every send meets its receive in the
//! same order, so that no schedule deadlocks under any library; ZeRO's passes compose with every
//! schedule.
#![forbid(unsafe_code)]

mod recompute;
pub mod schedule;

pub use recompute::{Pick, Recompute};
