//! A layer under the engine where tests put faults: each system request is shown to it first.

/// What happens to one request to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is made.
    Pass,
    /// It is made for at most so many bytes, so that it comes back short.
    Short(u64),
    /// It is not made; the system answers with this error number.
    Fail(i32),
}

/// Sees each request before it is made. Called from the engine's threads.
pub trait Layer: Send + Sync {
    /// `write`, the offset in the file, and the bytes asked for.
    fn before(&self, write: bool, offset: u64, bytes: u64) -> Verdict;
}

/// No faults: what runs outside tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl Layer for NoFaults {
    fn before(&self, _: bool, _: u64, _: u64) -> Verdict {
        Verdict::Pass
    }
}
