//! Collectives over any plugin: what a plugin has runs as it is, what it lacks is composed here, once, for every vendor.
//!
//! Two laws hold for every route. **Owner computes**: each element of a reduction is computed by one rank and copied to the others, so
//! all ranks hold the same bits. **Rank order**: where this crate adds, it adds in rank order, 16-bit floats in f32 with one rounding at
//! the end, so the result depends neither on how the vector is cut nor on which rank owns a piece.
//!
//! | Missing | Composed |
//! |---|---|
//! | all_reduce (any dtype with a sum, any reduction) | pieces to their owners, sum there, all_gather |
//! | AVG of f32, f64 | SUM, then division by the ranks; of 16-bit floats: division inside the f32 sum |
//! | PREMUL_SUM of f32, f64 | scale, then SUM; of 16-bit floats: owners scale inside the f32 sum |
//! | reduce_scatter | pieces to their owners, sum there; all_reduce and slice when small |
//! | reduce | all_reduce, result dropped off the root |
//! | all_gather, all_to_all, and their `v` forms | one group of sends and receives; zero counts send nothing |
//! | broadcast | a binomial tree of sends |
//! | barrier | all_reduce of one element |
//!
//! [`Prefer`] puts other algorithms in the place of the composed ones: ring, recursive halving, trees, or nodes first ([`comm_plan`]).
//!
//! Sends and receives in groups are the ground everything stands on; a plugin that has only those runs everything. A group whose ranks
//! are of several back ends stands on messages of two kinds, inside islands and over the bridge between them ([`Collectives::of_islands`]).
#![forbid(unsafe_code)]

mod by_plan;
pub mod comm_plan;
mod compose;
mod faults;
mod fold;
mod group;
mod islands;
mod route;
mod trace;
mod values;

pub use by_plan::Prefer;
pub use faults::{FaultKind, FaultRule, Faults};
pub use group::Collectives;
pub use route::{Route, RouteLine};
