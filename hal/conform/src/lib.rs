//! The conformance kit: what a plugin claims must hold, and what it does not claim must be refused
//! without side effects.
//!
//! It calls the C tables only ([`raw`]). A case ([`Case`]) is one claim under a stable id. The cases of a
//! group run in a child process, which reports by lines of JSON which case begins and ends ([`child`]),
//! so that a crash, a hang or an exit is the failure of one named case and the rest continues in a new
//! child ([`run`]). Numbers come from the run's seed and the case's id, so that a case alone is the case
//! of a full run. Tolerances belong to error classes, never to a back end's name. The user's side is
//! `docs/conformance.md`; what must always hold of the kit is in `docs/invariants.md`.

pub mod abi;
pub mod capacity;
pub mod case;
pub mod cells;
pub mod child;
pub mod coll;
pub mod ctx;
pub mod expect;
pub mod fault;
pub mod graph;
pub mod launch;
pub mod leak;
pub mod life;
pub mod local_ranks;
pub mod mem;
pub mod op;
pub mod order;
pub mod perf;
pub mod raw;
pub mod report;
pub mod run;
pub mod threads;
pub mod timeouts;

pub use case::{
    Case, Check, Demanded, Effort, Group, Level, Outcome, Profile, Verdict, pass, pass_with,
    refused, registry, skip,
};
pub use child::{Job, Target};
pub use ctx::{Area, Ctx, Pinned, Rig, Rng, Stall};
pub use launch::Launcher;
pub use local_ranks::{Answer, Rank};
pub use report::Report;
pub use run::{Options, Trouble};

/// The kit's own version, in every scorecard: it goes up when a case is added or judged differently, and the case says so
/// ([`Case::since`], [`Case::judged_since`]).
pub const KIT: u32 = 12;
