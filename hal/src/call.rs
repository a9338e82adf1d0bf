//! Calling through the tables: a status becomes a result, and the error record travels with it.

use crate::error::{Code, Error, Result};
use crossweave_abi as abi;
use crossweave_plugin::Members;

impl Error {
    /// Puts `what` before the message: the caller's view of the same failure.
    pub fn context(mut self, what: impl std::fmt::Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// Runs a plugin call with an error record; anything but success is an error.
#[inline]
pub(crate) fn check(
    at: &'static str,
    f: impl FnOnce(*mut abi::Error) -> abi::Status,
) -> Result<()> {
    let mut record = abi::Error::new();
    match f(&mut record) {
        abi::OK => Ok(()),
        status => Err(Error::from_record(status, at, &record)),
    }
}

/// Like [`check`], of a call on a communicator with these members.
#[inline]
pub(crate) fn check_member(
    at: &'static str,
    members: &Members,
    f: impl FnOnce(*mut abi::Error) -> abi::Status,
) -> Result<()> {
    let mut record = abi::Error::new();
    match f(&mut record) {
        abi::OK => Ok(()),
        status => Err(Error::from_member(status, at, &record, members)),
    }
}

/// Like [`check`] for queries: `NOT_READY` is `Ok(false)`.
#[inline]
pub(crate) fn state(
    at: &'static str,
    f: impl FnOnce(*mut abi::Error) -> abi::Status,
) -> Result<bool> {
    match check(at, f) {
        Ok(()) => Ok(true),
        Err(e) if e.code == Code::NotReady => Ok(false),
        Err(e) => Err(e),
    }
}

/// A mandatory slot of a table. The loader has refused plugins that lack one, so absence here is `Unsupported` by construction of the tables.
macro_rules! call {
    ($api:expr, $slot:ident) => {
        $api.$slot.expect(concat!(
            "mandatory slot ",
            stringify!($slot),
            ", checked by the loader"
        ))
    };
}
