//! The mesh: any set of axes gives a group, and a group of one is a real group. [`topology`] is the arithmetic; [`groups`] holds the
//! communicators.
#![forbid(unsafe_code)]

pub mod groups;
pub mod topology;

pub use groups::{Mesh, MeshOptions};
pub use topology::{Axis, Coords, Group, Topology, TopologyError};
