//! The device mesh as ranks that run: any set of axes gives a group, and a group of one rank is a real group.
//! The arithmetic of ranks is the crate `axes`; [`groups`] holds the communicators, [`islands`] those of jobs of several
//! back ends. [`launch`] reads which process of how many this is from the launcher's variables,
//! [`store`] and [`mod@rendezvous`] are the rendezvous of the processes of a job (what torchrun calls its store),
//! and [`process_map`] maps processes to ranks.
//!
//! **Invariants** (`docs/invariants.md`). Threads and processes of a job train to the same bits, however
//! the ranks are divided over processes; an error names every rank that it concerns.
#![forbid(unsafe_code)]

pub mod checker;
mod door;
mod failure;
pub mod groups;
pub mod interface;
pub mod islands;
pub mod launch;
mod message;
pub mod process_map;
mod pulse;
pub mod rendezvous;
pub mod spread;
pub mod store;

pub use checker::{checker_state, checker_state_in, this_host};
/// Places and groups as data.
pub use crossweave_axes::{
    Axis, AxisSet, BoxPiece, BoxRun, Channel, Coord, Cut, Group, GroupKey, Held, Part, Place,
    TensorBox, Topology, TopologyError,
};
/// Faults on purpose.
pub use crossweave_collectives::{Collectives, FaultKind, FaultRule, Faults};
pub use failure::{Cause, PeerFailure, rank_words};
pub use groups::{GroupRef, Mesh, MeshOptions};
pub use interface::{Interface, InterfaceError};
pub use islands::{IslandOrder, Islands};
pub use launch::{Launch, LaunchError, Launcher, detect};
pub use process_map::ProcessMap;
pub use rendezvous::{Host, rendezvous};
pub use store::{JobStore, LateStore};
