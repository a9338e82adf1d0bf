//! The only place where plan meets device: one rank's [`Engine`] runs the program of its plan over streams, and
//! knows no model and no algorithm.
//!
//! The host only enqueues. What it wants to know of a step (loss, gradient norm) is copied to pinned
//! memory by the device and read one step later, so that the steady state has no host synchronisation.
//!
//! **Invariants** (`docs/invariants.md`). Logits, loss and gradients are PyTorch's; recompute, the ZeRO
//! stage, graphs and (in f32) offload do not change a bit; after the second step nothing is allocated
//! on the device; every wait for data between streams is implied by the plan's edges.
#![forbid(unsafe_code)]

mod blocks;
mod caches;
mod devices;
mod dry;
mod engine;
mod error;
mod graphs;
mod groups;
mod in_flight;
mod kept;
mod lanes;
mod ledger;
mod nonfinite;
mod pipeline;
mod quantized;
mod scale;
mod timeline;
mod trace;
mod upload;
mod values;
mod whole;

/// Where a rank stands.
pub use crossweave_mesh::{Axis, Place, Topology};
pub use crossweave_planner::{
    AtFloor, Cost, Documents, Dry, FileEngine, FileSettings, LossScaler, Lowered, OffloadDevice,
    OffloadSpec, OptimizerOffload, PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute,
    ReduceGradients, Rows, ScaleRule, ScalerState, Units, ZeroSpec, ZeroStage, optimizers, played,
    side_programs,
};
pub use crossweave_program::StateKind;
pub use crossweave_state::{Shard, ShardPart, Snapshot};
pub use crossweave_store::{Counters as FileCounters, Layer as FaultLayer, Verdict};
pub use devices::{Devices, Files, Links};
pub use dry::{dry_run, dry_run_with, plan_for, prepare};
pub use engine::{
    Engine, ExpertFigures, MicroBatch, Prediction, StepMetrics, predict, rehearsal, rehearse,
};
pub use error::{Error, Result};
pub use graphs::GraphCounts;
pub use groups::MeshGroups;
pub use ledger::RankLedger;
pub use trace::Trace;
