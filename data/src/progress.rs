//! How a build reports its progress; this crate prints nothing.

/// The phases of making a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the corpus to find its cache entry.
    Hash,
    /// Turning text into tokens.
    Tokenize,
}

/// Receives progress, from any thread. Units are bytes of source text.
pub trait Progress: Sync {
    /// A phase of `total` bytes begins.
    fn begin(&self, phase: Phase, total: u64);
    /// `bytes` more are done.
    fn advance(&self, bytes: u64);
    /// The phase is over.
    fn end(&self);
    /// Something that the user should know before it is waited for.
    fn warn(&self, _words: &str) {}
}

/// Ignores progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _phase: Phase, _total: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn end(&self) {}
}
