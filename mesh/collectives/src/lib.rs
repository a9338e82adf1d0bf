//! Collectives over any plugin: what a plugin has runs natively, what it lacks is composed here, once,
//! for every vendor.
//!
//! Two laws hold for every route. **Owner computes**: each element of a reduction is computed by one
//! rank and copied to the others, so that all ranks hold the same bits. **Rank order**: where this crate
//! adds, it adds in rank order, 16-bit floats in f32 with one rounding at the end, so that the result
//! depends neither on how the vector is cut nor on which rank owns a piece. Their tests, and those of
//! the checker that compares the ranks' calls, are listed in `docs/invariants.md`.
//!
//! | Missing | Composed of |
//! |---|---|
//! | all_reduce (any dtype with a sum, any reduction) | pieces to their owners, reduction there, all_gather |
//! | AVG of f32, f64 | SUM, then division by the number of ranks; of 16-bit floats: division inside the f32 sum |
//! | PREMUL_SUM of f32, f64 | scale, then SUM; of 16-bit floats: owners scale inside the f32 sum |
//! | reduce_scatter | pieces to their owners, reduction there; all_reduce and slice when small |
//! | reduce | all_reduce, result dropped off the root |
//! | all_gather, all_to_all, and their `v` forms | one group of sends and receives; zero counts send nothing |
//! | broadcast | a binomial tree of sends |
//! | barrier | all_reduce of one element |
//!
//! [`Prefer`] replaces the composed ones by other algorithms: ring, recursive halving, trees, or
//! hierarchical ones that reduce inside nodes first ([`comm_plan`]).
//!
//! Grouped sends and receives are the base of all of it; a plugin that has only those runs everything. A
//! group whose ranks belong to several back ends uses two kinds of messages, inside islands and over the
//! bridge between them ([`Collectives::of_islands`]).
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
