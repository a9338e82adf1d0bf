//! ZeRO (Rajbhandari et al., 2020; FSDP in PyTorch) as passes over a plan: `Place` puts gathers,
//! releases and reductions where a stage wants them, `Bucket` merges reductions, `Canonical` gives
//! sums one tree on any number of ranks, `Reuse` and `Prefetch` make gathers fewer and earlier,
//! `Updates` puts the optimizer steps. Beside them stand what they place: the layout of a unit's flat
//! buffer over the ranks ([`FlatLayout`]), the optimizers as data ([`optim`]), and the closed formulas for
//! memory and traffic ([`estimate`]).
//!
//! **Invariants** (`docs/invariants.md`). Everything here is pure data; nothing knows a device. Passes
//! give plans that `check` accepts under any settings, and any number of ranks adds logical shards along
//! one tree.
#![forbid(unsafe_code)]

pub mod canonical;
pub mod estimate;
mod gather;
mod keep;
pub mod lower;
mod offload;
mod place;
mod reduce_each;
mod spec;
mod update;

pub use canonical::{Canonical, Own};
pub use crossweave_flat::{Flat, FlatLayout, FlatParam, Partition, Piece, Placement, Residency};
/// Optimizers and parameter groups, as data.
pub use crossweave_optim as optim;
pub use gather::Prefetch;
pub use keep::{Hierarchical, Persist, Reuse};
pub use offload::{HostUpdates, OffloadDevice, ParamsAway, SpillInputs};
pub use place::{Bucket, Place, Ties, ZeroStage};
pub use reduce_each::ReduceEach;
pub use spec::{Persistent, ReduceGradients, UnitAt, ZeroSpec};
pub use update::Updates;
