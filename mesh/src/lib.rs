//! The device mesh: any set of axes gives a group, and a group of one rank is a real group. [`topology`]
//! is the arithmetic of ranks; [`groups`] holds the communicators, [`islands`] those of jobs of several
//! back ends. [`launch`] reads which process of how many this is from the launcher's variables,
//! [`store`] and [`mod@meet`] are the rendezvous of the processes of a job (what torchrun calls its store),
//! and [`roster`] maps processes to ranks.
//!
//! **Invariants** (`docs/invariants.md`). Threads and processes of a job train to the same bits, however
//! the ranks are divided over processes; an error names every rank that it concerns.
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
