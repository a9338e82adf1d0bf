//! What a rank keeps from step to step, read and written by the state table of its program: starting values, loads, checkpoints, and reads
//! for which several ranks put their parts together.
//!
//! [`States`] knows where each element of each state lies, and in which form: in device memory in f32, in 8 bits with scales, or in a room
//! of the host executor. All callers see f32. It knows neither a layout nor an optimizer nor a plan, and makes no decision: what it does
//! follows from the table (`crossweave_program::UnitState`).
//!
//! | file | what |
//! |---|---|
//! | `unit` | one unit's entries of the table, with the memory that they name |
//! | `view` | a run of a state in device memory, whatever form it is in |
//! | `init` | starting values |
//! | `owned` | reads and writes of what lies on this rank of a unit |
//! | `local` | loads by name or by place |
//! | `base` | the same of what adapters sit on |
//! | `shards` | this rank's part of a checkpoint |
//! | `together` | what rank 0 asks of the ranks that read together with it |
//! | `ranks` | reads for which ranks and pipeline stages put their parts together |
//! | `peers` | messages between pipeline stages |
#![forbid(unsafe_code)]

mod base;
mod error;
mod exchange;
mod init;
mod local;
mod owned;
mod peers;
mod ranks;
mod shards;
mod states;
mod together;
mod unit;
mod view;
mod ways;
mod words;

pub use error::{Error, Result};
pub use exchange::exchange_ema;
pub use peers::{Leg, Letter, Peers};
pub use shards::{Shard, ShardPart, Snapshot};
pub use states::States;
pub use together::{Request, Sharers, Together};
pub use view::StateView;
pub use ways::Ways;
