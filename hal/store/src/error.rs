//! What can go wrong below a ticket, in sentences: the file, the place in it, and what to do.

use std::path::PathBuf;

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system has no room.
    #[error(
        "{}: the disk is full: {bytes} bytes at offset {offset} were not written; fix: free space there, or name a folder on a larger disk (nvme_path). Checkpoints already written are intact: resume from the last one", file.display()
    )]
    Full {
        /// The file.
        file: PathBuf,
        /// Where the transfer began.
        offset: u64,
        /// How long it was.
        bytes: u64,
    },
    /// A transfer that the system refused.
    #[error("{}: {op} of {bytes} bytes at offset {offset} failed: {source}; fix: check the disk and the folder (nvme_path), then resume from the last checkpoint", file.display())]
    Io {
        /// `read` or `write`.
        op: &'static str,
        /// The file.
        file: PathBuf,
        /// Where the transfer began.
        offset: u64,
        /// How long it was.
        bytes: u64,
        /// The system's word.
        source: std::io::Error,
    },
    /// A read beyond what was ever written.
    #[error("{}: the file ends before offset {offset} + {bytes} bytes; somebody has cut it; fix: resume from the last checkpoint", file.display())]
    Ended {
        /// The file.
        file: PathBuf,
        /// Where the transfer began.
        offset: u64,
        /// How long it was.
        bytes: u64,
    },
    /// The folder cannot be used.
    #[error("{}: {what}: {source}; fix: {fix}", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: std::io::Error,
        /// What helps.
        fix: &'static str,
    },
    /// A setting that cannot be.
    #[error("{key} = {value}: {why}")]
    Setting {
        /// The key, as configurations write it.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
    /// A request that does not fit its block or its file.
    #[error("{what} ({})", file.display())]
    Request {
        /// The file.
        file: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// No block came free.
    #[error(
        "no block of {} came free in {seconds} s: all {count} are in use; raise buffer_count",
        crossweave_words::Size(*bytes)
    )]
    Exhausted {
        /// Bytes of a block.
        bytes: u64,
        /// Blocks of the pool.
        count: usize,
        /// How long was waited.
        seconds: u64,
    },
    /// The engine has ended.
    #[error("the file engine has ended ({0}); fix: open a new store")]
    Closed(String),
    /// The system starts no thread for the engine.
    #[error(
        "the file engine's threads cannot start: {0}; fix: raise the limits of the process (ulimit -u of threads, -v of memory)"
    )]
    Threads(std::io::Error),
    /// Memory of the device.
    #[error(transparent)]
    Hal(#[from] crossweave_hal::Error),
}

/// What the store answers.
pub type Result<T> = std::result::Result<T, Error>;

/// A copy of a system error: `io::Error` itself cannot be cloned, and several pieces of one transfer may meet the same.
pub(crate) fn copy(e: &std::io::Error) -> std::io::Error {
    match e.raw_os_error() {
        Some(code) => std::io::Error::from_raw_os_error(code),
        None => std::io::Error::new(e.kind(), e.to_string()),
    }
}
