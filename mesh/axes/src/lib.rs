//! The device mesh as pure data: axes, the place of a rank on them, and the groups that sets of axes make (PyTorch's
//! `DeviceMesh`, Megatron's `RankGenerator`), without a device, a communicator or a rank that runs.
//!
//! [`Topology`] has the sizes of the axes and their order. [`Place`] is one rank on it: what is above asks a place for its
//! coordinate on an axis or its index in a group, never for its number in the job. [`GroupKey`] names a group by its axes,
//! and [`Topology::group`] says who is in it. [`Place::holds`] says what of a parameter a rank holds ([`TensorBox`]), and over
//! which axes ranks hold the same.
//!
//! **Invariants.** The groups of a set of axes hold every rank once, and all members of a group derive the same members in
//! the same order (`mesh/axes/tests/topology.rs: groups_partition_the_world_and_agree_on_every_rank`). The boxes of the ranks
//! that share a parameter hold each of its elements once (`mesh/axes/tests/boxes.rs: boxes_of_a_group_hold_every_element_once`).
#![forbid(unsafe_code)]

mod axis;
mod boxes;
mod coord;
mod group;
mod place;
mod representatives;
mod topology;

pub use axis::{Axis, AxisSet};
pub use boxes::{BoxPiece, BoxRun, Cut, Held, TensorBox};
pub use coord::Coord;
pub use group::{Channel, Group, GroupKey, Part};
pub use place::Place;
pub use representatives::Representatives;
pub use topology::{Topology, TopologyError};
