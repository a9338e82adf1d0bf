//! The mesh: any set of axes gives a group, and a group of one is a real group. [`topology`] is the arithmetic; what
//! holds communicators builds on it.
#![forbid(unsafe_code)]

pub mod topology;

pub use topology::{Axis, Coords, Group, Topology, TopologyError};
