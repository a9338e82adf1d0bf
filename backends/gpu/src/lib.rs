//! What the back ends of GPUs share, written once over one table of a vendor's run time ([`Runtime`]): how libraries are found and their
//! functions declared, settings, memory, streams, events, graphs, host calls, copies, launches of our own kernels with their cache on disk,
//! and collectives by NCCL's interface, which RCCL has too.
//!
//! A vendor's back end adds its driver's functions behind that table, its compiler, and its libraries of products and attention; see
//! `README.md`. What must always hold is in `docs/invariants.md`.

pub mod backend;
mod cache;
mod caller;
pub mod copy;
mod device;
mod error;
mod graph;
mod held;
mod launch;
pub mod library;
pub mod lt;
mod memory;
mod modules;
mod nccl;
mod runtime;
mod settings;
mod stream;
mod turns;
mod wait;

pub use backend::{Gpu, OnGpu};
pub use cache::Recipe;
pub use device::{Api, Dev, Entered, Shared, Started};
pub use error::{error, text};
pub use graph::{GpuGraphs, Graph};
pub use launch::{Frame, Own, Work, launch};
pub use memory::{Mem, native};
pub use modules::{Function, Image, Images};
pub use nccl::{
    Comm, Config, GpuCollectives, IN_PROGRESS, Join, MakeId, Nccl, Other, Table as NcclTable,
    UniqueId,
};
pub use runtime::*;
pub use settings::{About, Settings};
pub use stream::{Event, Lane, Line, Stream};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is guarded is replaced whole, so a panic elsewhere leaves it usable.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
