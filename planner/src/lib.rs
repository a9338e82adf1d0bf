//! From what one rank is asked to do ([`RankSpec`]) to the plan and the program of its step.
//!
//! This crate chooses: which passes of `zero` and `parallel` make the plan and in which order, where the data of each unit is, which
//! groups there are, and which algorithm writes which step's instructions. It runs nothing: the engine executes what it returns.
#![forbid(unsafe_code)]

mod assign;
mod documents;
mod error;
mod lower;
mod planning;
mod rooms;
mod scaler;
mod spec;

pub use assign::{assign, recipes};
pub use crossweave_parallel::schedule::Order as PipelineOrder;
pub use documents::Documents;
pub use error::{Error, Result};
pub use lower::{GATHER, Given, Lowered, NODE, Outside, TIE, flat, lower};
pub use planning::plan_for;
pub use rooms::rooms;
pub use scaler::{AtFloor, LossScaler, ScaleRule, ScalerState};
pub use spec::{
    Faults, FlowShape, HostDevice, OffloadSpec, OptimizerOffload, PipelineSpec, Precision,
    RankSpec, Recompute, everyone, keep_stage, shared,
};
