//! From what one rank is asked to do ([`RankSpec`]) to the plan and the program of its step.
//!
//! This crate chooses: which passes of `zero` and `parallel` make the plan and in which order, where the data of each unit is, which
//! groups there are, and which algorithm writes which step's instructions. It runs nothing: the engine executes what it returns.
#![forbid(unsafe_code)]

mod assign;
mod documents;
mod dry;
mod error;
mod groups;
mod lower;
mod planning;
mod prepare;
mod rooms;
mod scaler;
mod side;
mod spec;
mod units;

/// Schedules and plans played against the clock.
pub use crossweave_parallel::played;
pub use crossweave_parallel::schedule::Order as PipelineOrder;
pub use crossweave_parallel::timeline::Cost;
pub use crossweave_plan::Recompute;
pub use crossweave_store::{EngineKind as FileEngine, Settings as FileSettings};
pub use crossweave_zero::lower::IN_FLIGHT;
pub use crossweave_zero::lower::quantized::BLOCK as QUANTIZED_BLOCK;
/// Optimizers and parameter groups, as data.
pub use crossweave_zero::optim as optimizers;
pub use crossweave_zero::{OffloadDevice, ReduceGradients, ZeroSpec, ZeroStage};
pub use documents::{Documents, are_lengths, positions_within};
pub use dry::{Dry, numel};
pub use error::{Error, Result};
pub use groups::{OwnerGroups, StepGroups};
pub use lower::{Lowered, Outside};
pub use planning::plan_for;
pub use prepare::prepare;
pub use scaler::{AtFloor, LossScaler, ScaleRule, ScalerState};
pub use side::{forwards_together, joins_forward, side_programs};
pub use spec::{FlowShape, OffloadSpec, OptimizerOffload, PipelineSpec, Precision, RankSpec, Rows};
pub use units::Units;
