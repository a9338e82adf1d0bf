//! The NVMe tier (ZeRO-Infinity; DeepSpeed's `aio`): blocks of pinned memory go to files and come back
//! while the caller does something else.
//!
//! A [`Store`] is one rank's swap: a [`Folder`] of its own, a bounded pool of page-aligned [`Block`]s, and
//! an I/O engine that moves them (io_uring with O_DIRECT, registered buffers and files; where a machine
//! forbids either, a pool of threads). Every transfer returns a [`Ticket`]; the thread that waits for it
//! gets the block back, or an error with file, offset, bytes and a fix. Short transfers, EINTR and EAGAIN
//! are completed by the I/O engine and never seen by callers.
//!
//! | question | answer |
//! |---|---|
//! | Who owns the bytes of a transfer? | The request, until the kernel has released them; dropping a ticket changes nothing. |
//! | What if a disk is full? | Files are reserved when they are made, so that the error comes before training; a later one reaches the waiter, and the I/O engine continues. |
//! | What does a killed run leave? | An empty folder with the lock of a dead process: files have no name once they are open. The next run on that host removes it. |

mod block;
mod engine;
mod error;
mod file;
mod folder;
mod layer;
mod piece;
mod settings;
mod store;
mod threads;
#[cfg(target_os = "linux")]
mod uring;

pub use block::{Block, Lent, Pool};
pub use engine::{Failed, Ticket};
pub use error::{Error, Result};
pub use file::BlockFile;
pub use folder::Folder;
pub use layer::{Layer, NoFaults, Verdict};
pub use settings::{EngineKind, Settings};
pub use store::{Counters, Store};

/// Direct transfers begin, end and lie on multiples of so many bytes.
pub const ALIGN: u64 = crossweave_hal::PAGE;

/// Locks, also after a thread panicked while holding: what is guarded here is replaced whole.
fn lock<T>(m: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
