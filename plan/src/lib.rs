//! A training step is data: a [`Plan`] is a list of steps on lanes, an algorithm is a [`Pass`] that rewrites it, and
//! [`check`] proves its laws before anything runs. No device, no clock, no files: every algorithm is testable as text.
//!
//! A plan is made in four moves: a *schedule* writes the forwards and backwards; passes choose what is kept, place
//! gathers and reductions, bucket them, place updates; [`Depend`] writes the `after` edges; [`check`] accepts it, or says
//! in a sentence which step breaks which law. The engine then walks [`Plan::walk`] and knows no algorithm.
//!
//! A plan covers one optimizer step; hazards between two consecutive steps are the execution layer's to order.
#![forbid(unsafe_code)]

mod check;
mod depend;
mod error;
mod facts;
mod laws;
mod op;
mod pass;
mod plan;
mod text;
mod world;

pub use check::{Peak, check, trace};
pub use depend::{Access, Depend, Order, Resource, accesses, slots};
pub use error::{Law, PlanError};
pub use facts::{Facts, UnitFacts};
pub use op::{Keep, Lane, MicroBatch, Op, Rank, Reduction, UnitId};
pub use pass::{Pass, Pipeline, Stage, print_stages};
pub use plan::{Home, Plan, Step, StepId, words};
pub use world::check_world;
