//! What a vendor implements in safe Rust, and the macros that export it as C tables.
//!
//! A back end is an ordinary `rlib` that implements [`Backend`] (and, where it has them, [`Ops`] and
//! [`Collectives`]) and calls [`declare_backend!`]. A thin `cdylib` beside it calls [`export_plugin!`],
//! which adds the one exported symbol and the manifest. Linked or loaded with dlopen, the host reaches
//! the back end through the same C tables, so that there is no second code path.
//!
//! **Contract.** The host validates what it can see (spans inside their memory, live handles); a back end
//! validates what only it knows and answers `Unsupported` *without side effects*. Errors cover what the
//! caller cannot foresee. No function blocks longer than its timeout. No panic crosses the boundary
//! (`docs/invariants.md`).

mod awake;
mod backend;
pub mod collective;
mod error;
pub mod export;
mod host;
pub mod op;
pub mod operand;
mod rank;

pub use awake::Awake;
pub use backend::*;
pub use error::*;
pub use host::{Host, HostThread};
pub use rank::{GroupRank, JobRank, Members};
pub use {crossweave_abi as abi, crossweave_abi::DType};
