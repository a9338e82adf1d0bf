//! The error a backend returns; the boundary turns it into the caller's 512-byte record.

use crate::GroupRank;
use crossweave_abi as abi;

/// What went wrong, in the ABI's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Code {
    NotReady,
    Unsupported,
    Invalid,
    Oom,
    DeviceLost,
    Comm,
    Timeout,
    Aborted,
    Internal,
    Panic,
    Version,
    /// A status of a newer minor.
    Other(i32),
}

impl Code {
    /// The status on the wire.
    pub fn status(self) -> abi::Status {
        match self {
            Code::NotReady => abi::NOT_READY,
            Code::Unsupported => abi::E_UNSUPPORTED,
            Code::Invalid => abi::E_INVALID,
            Code::Oom => abi::E_OOM,
            Code::DeviceLost => abi::E_DEVICE_LOST,
            Code::Comm => abi::E_COMM,
            Code::Timeout => abi::E_TIMEOUT,
            Code::Aborted => abi::E_ABORTED,
            Code::Internal => abi::E_INTERNAL,
            Code::Panic => abi::E_PANIC,
            Code::Version => abi::E_VERSION,
            Code::Other(x) => x,
        }
    }

    /// The code of a status.
    pub fn from_status(s: abi::Status) -> Code {
        match s {
            abi::NOT_READY => Code::NotReady,
            abi::E_UNSUPPORTED => Code::Unsupported,
            abi::E_INVALID => Code::Invalid,
            abi::E_OOM => Code::Oom,
            abi::E_DEVICE_LOST => Code::DeviceLost,
            abi::E_COMM => Code::Comm,
            abi::E_TIMEOUT => Code::Timeout,
            abi::E_ABORTED => Code::Aborted,
            abi::E_INTERNAL => Code::Internal,
            abi::E_PANIC => Code::Panic,
            abi::E_VERSION => Code::Version,
            x => Code::Other(x),
        }
    }
}

/// An error with its code, text, and, where known, the vendor's code and the member that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind.
    pub code: Code,
    /// The vendor library's own code, or 0.
    pub vendor_code: i64,
    /// The member of the communicator that failed, if known.
    pub peer: Option<GroupRank>,
    /// The handle is dead.
    pub sticky: bool,
    /// The same call may succeed later.
    pub retryable: bool,
    /// What happened, to whom, and what to do.
    pub message: String,
}

impl Error {
    /// A plain error.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            vendor_code: 0,
            peer: None,
            sticky: false,
            retryable: false,
            message: message.into(),
        }
    }
    /// Names the member of the communicator that failed.
    pub fn peer(mut self, rank: GroupRank) -> Error {
        self.peer = Some(rank);
        self
    }
    /// Marks the handle dead.
    pub fn sticky(mut self) -> Error {
        self.sticky = true;
        self
    }
    /// Marks the call worth repeating.
    pub fn retryable(mut self) -> Error {
        self.retryable = true;
        self
    }
}
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}
impl std::error::Error for Error {}

/// Result of a backend call.
pub type Result<T> = std::result::Result<T, Error>;

/// `Err` with a code and a text.
pub fn fail<T>(code: Code, message: impl Into<String>) -> Result<T> {
    Err(Error::new(code, message))
}

/// `Err(Unsupported)`: nothing has happened, take another route.
pub fn unsupported<T>(message: impl Into<String>) -> Result<T> {
    fail(Code::Unsupported, message)
}
