//! Layers: a plugin around a plugin that sees every call, with the same C tables on both sides.
//!
//! | layer | what it does |
//! |---|---|
//! | [`Validate`] | compares every call with the header's contract; a violation is an error that names the call |
//! | [`Trace`] | writes every call with its host time as a timeline for Perfetto |
//! | [`Record`] | keeps every call and its contents in a file; [`replay`] makes the same calls on another plugin and compares |
//! | [`Fault`] | makes the n-th call of a kind fail with a status |
//! | [`Throttle`] | limits bandwidth and adds latency by kind of call |
//! | [`Census`] | counts ops, copies and collectives of a rehearsal: what `crossweave explain` reads |
//! | [`Lacks`] | refuses ops and types as if the plugin did not have them, to try a fallback or a planned device |
//! | [`Only`] | leaves what a profile asks for, and nothing else |
//!
//! [`wrap::wrap`] puts any [`Layer`] around any plugin; without one, no code of this crate runs. Handles
//! cross as boxes of the layer's own ([`Object`]), so that a late or wrong use of one is an error with a
//! message. **Invariant** (`docs/invariants.md`): layers do not change a bit.

mod call;
mod census;
mod compare;
mod device;
mod fault;
mod fields;
mod lacks;
mod object;
mod only;
mod ops;
mod record;
mod replay;
mod tape;
mod throttle;
mod trace;
mod validate;
mod words;
mod wrap;

pub use call::{Call, Member, OpFacts, Operand, collective_name};
pub use census::{Census, Counts, MoveKind, OfCollective};
pub use compare::Compare;
pub use fault::Fault;
pub use lacks::Lacks;
pub use object::{Facts, Kind, Object};
pub use only::Only;
pub use record::Record;
pub use replay::{Report, replay};
pub use tape::{Recording, TapeError};
pub use throttle::Throttle;
pub use trace::Trace;
pub use validate::Validate;
pub use wrap::{Layer, wrap};
