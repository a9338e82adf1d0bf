//! The mesh: any set of axes gives a group, and a group of one is a real group. [`topology`] is the arithmetic; [`groups`] holds the
//! communicators, [`islands`] those of jobs of several back ends. [`launch`] tells which
//! process of how many this is, [`store`] and [`meet`] let the processes of a job find each other, and [`roster`] says which ranks each is.
#![forbid(unsafe_code)]

pub mod groups;
pub mod islands;
pub mod launch;
pub mod meet;
pub mod roster;
pub mod seats;
pub mod store;
pub mod topology;

/// Faults on purpose.
pub use crossweave_collectives::{Collectives, FaultKind, FaultRule, Faults};
pub use groups::{Mesh, MeshOptions};
pub use islands::{IslandOrder, Islands};
pub use launch::{Launch, LaunchError, Launcher, detect};
pub use meet::meet;
pub use roster::{Roster, told};
pub use seats::{seats, seats_in};
pub use store::{JobStore, LateStore, PeerFailure};
pub use topology::{Axis, Coords, Group, Topology, TopologyError};
