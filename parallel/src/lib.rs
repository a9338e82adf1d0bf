//! Ways to run a model over micro-batches and ranks: schedules that write the first list of a plan, and the pass that
//! chooses what forwards keep. Layers and functions over mesh axes join here; ranks are never named in them.
#![forbid(unsafe_code)]

mod recompute;
pub mod schedule;

pub use recompute::{Pick, Recompute};
