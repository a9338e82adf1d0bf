//! The parameters of a unit that the same ranks share, end to end: where each lies, which slice each rank owns, and where the data is.
//!
//! Everything that is sharded over the data-parallel group follows [`FlatLayout`]: parameters, gradients, master copies, moments, checkpoints, and
//! the bytes that are predicted for them. A [`Placement`] says of a flat how it is cut and what stays, comes and goes; ZeRO's stages, its
//! secondary shards and its offload differ in it. A [`Flat`] is both together, for one rank. All of it is pure data.
#![forbid(unsafe_code)]

mod layout;
mod placement;
mod unit;

pub use layout::{FlatLayout, Partition, Piece};
pub use placement::{Placement, Residency};
pub use unit::{Flat, FlatParam};
