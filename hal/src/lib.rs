//! The safe interface to a plugin: devices, streams, buffers, kernels, communicators. Algorithms depend
//! on this crate and on no back end.
//!
//! | question | answer |
//! |---|---|
//! | Who orders streams? | The stream: each buffer records its last uses (`track`), and a use on another stream inserts the wait. |
//! | How do operands outlive queued work? | Freed pool blocks keep their record of uses; other memory is freed after its last use. Dropping right after a launch is sound. |
//! | Who allocates? | A caching allocator here ([`Device::alloc`]); the plugin provides large slabs. |
//! | Who counts? | Two ledgers ([`ledger`]) in the only places through which memory and collectives pass. |
//! | What if ranks disagree? | The checker ([`CheckerState`]) compares their calls and names the rank that is wrong, in one message on all of them. |
//! | What if an op is missing? | [`Kernel`] runs the core's one decomposition; the type is the same, and [`Kernel::is_native`] answers which it is. |
//!
//! **Contract.** This layer validates bounds, lengths and overlap; a plugin validates what only it knows;
//! `Unsupported` has no side effects. What must always hold, with its tests, is in `docs/invariants.md`.

#[macro_use]
mod call;
mod aligned;
mod buffer;
mod carrier;
mod comm;
mod comm_desc;
mod comm_scope;
mod device;
pub mod error;
pub mod explore;
pub mod file;
mod graph;
pub mod header;
pub mod host;
mod hostop;
mod kernel;
pub mod ledger;
mod listing;
pub mod loader;
pub mod manifest;
mod mask;
mod memory;
mod pool;
mod recipe;
mod route;
mod stream;
pub mod trace;
mod track;
mod watch;
mod wider;

pub use buffer::{Buffer, HostBuffer, Region};
pub use carrier::Carrier;
pub use comm::{
    AbortHandle, Asked, Bootstrap, CollSupport, Collective, CommOptions, CommTag, Communicator,
    Counts, Reduce,
};
pub use comm_scope::Scope;
pub use crossweave_abi as abi;
pub use crossweave_abi::DType;
pub use crossweave_plugin::{Awake, GroupRank, JobRank, Members};
pub use device::{Device, DeviceInfo, PAGE, Plugin, Raw, list_calls};
pub use error::{Code, Error, Result};
pub use explore::{Account, Explorer, Found, Order, Played, Rank};
pub use graph::{Followed, Recordings};
pub use host::{HostServices, KvStore, LocalKv};
pub use kernel::{Kernel, OpRequest};
pub use ledger::{BridgeLine, CollectiveLine, MemoryReport, Tag};
pub use listing::{CallListing, ListedCall, ListedOperand};
pub use loader::{LoadError, RawPlugin};
pub use mask::CollectiveCell;
pub use memory::HostMemory;
pub use recipe::{Decompose, DynMap, NoDecompose, PatternMap, Recipe, RecipeStep, Slot};
pub use route::{Explained, Part, RouteKind};
pub use stream::{Event, Operand, Stream, Wait, WaitLog};
pub use watch::{
    Answers, CheckerState, CollectiveRecord, Distant, Fault, Flight, HostName, Observer, Purpose,
    RankFlight, Reply, Verdict, addresses, crash, death_watch, interfaces,
};
