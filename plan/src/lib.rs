//! A training step as data. A [`Plan`] is the list of steps of one rank for one optimizer step, on
//! named lanes (streams); an algorithm is a [`Pass`] that rewrites it; [`check`] proves its laws before
//! anything runs. The nearest relatives are an instruction schedule of a compiler and the action lists
//! of PyTorch's pipeline schedules.
//!
//! A plan is made in four moves: a *schedule* writes the forwards and backwards; passes choose what is
//! kept, place gathers and reductions, bucket them, place updates; [`Depend`] writes the `after` edges;
//! [`check`] accepts it, or names the step and the law it breaks. The engine then walks [`Plan::walk`]
//! and knows no algorithm. Hazards between two consecutive plans are ordered by the execution layer.
//!
//! **Invariants** (all of them with their tests: `docs/invariants.md`). This crate uses no device, no
//! clock, no file and no thread. A plan that `check` accepts orders every hazard by its edges, and
//! ranks whose plans pass [`check_world`] call the collectives of each group in the same order; so do ranks
//! whose programs outside the step pass [`check_side_programs`].
#![forbid(unsafe_code)]

mod check;
mod depend;
mod error;
mod facts;
mod laws;
mod op;
mod pass;
mod plan;
mod recompute;
mod runs;
mod side;
mod text;
mod world;

pub use check::{Peak, check, trace};
/// The mesh whose ranks are held against each other.
pub use crossweave_axes as axes;
pub use depend::{Access, Depend, Order, Resource, accesses, slots};
pub use error::{Law, PlanError};
pub use facts::{Facts, KeptPart, Moves, Peer, Said, UnitFacts, UnitTalk};
pub use op::{Keep, Lane, Message, MicroBatch, PipelineStage, Rank, Reduction, StepKind, UnitId};
pub use pass::{Pass, PassManager, Stage, print_stages};
pub use plan::{Plan, Step, StepId, Storage, words};
pub use recompute::Recompute;
pub use runs::{Run, Runs};
pub use side::{SideEvent, SideProgram, check_representative_side_programs, check_side_programs};
pub use world::{check_representatives, check_world};
