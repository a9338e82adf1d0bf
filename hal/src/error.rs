//! The one error of the safe layer: what failed, where, whose fault, and whether trying again makes sense.

use crossweave_abi as abi;
pub use crossweave_plugin::Code;
use crossweave_plugin::{GroupRank, JobRank, Members};

/// A failure of a call below the safe layer, or a misuse the safe layer caught itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What kind.
    pub code: Code,
    /// The vendor library's own code, or 0.
    pub vendor_code: i64,
    /// The rank of the job that failed, if known.
    pub peer: Option<JobRank>,
    /// The function that failed.
    pub at: String,
    /// What happened, to whom, and what to do.
    pub message: String,
    /// The device or communicator is dead and must be made anew.
    pub sticky: bool,
    /// The same call may succeed later (after memory was freed, after a peer returned).
    pub retryable: bool,
}

/// Result of the safe layer.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A plain error.
    pub fn new(code: Code, at: impl Into<String>, message: impl Into<String>) -> Error {
        Error {
            code,
            vendor_code: 0,
            peer: None,
            at: at.into(),
            message: message.into(),
            sticky: false,
            retryable: false,
        }
    }

    /// The caller broke the contract.
    pub fn invalid(at: impl Into<String>, message: impl Into<String>) -> Error {
        Error::new(Code::Invalid, at, message)
    }

    /// Not provided; nothing has happened.
    pub fn unsupported(at: impl Into<String>, message: impl Into<String>) -> Error {
        Error::new(Code::Unsupported, at, message)
    }

    /// The same of a call on a communicator with these members.
    pub fn from_member(
        status: abi::Status,
        at: &str,
        record: &abi::Error,
        members: &Members,
    ) -> Error {
        let named = u32::try_from(record.peer_rank).ok();
        Error {
            peer: named.map(|n| members.of(GroupRank(n))),
            ..Error::from_record(status, at, record)
        }
    }

    /// The error a slot answered with `status`; the record holds the rest. A record that was not written (its code differs from the
    /// status) is not trusted. A plugin numbers ranks within one communicator: without its members nobody knows which rank of the job that is
    /// (see [`Error::from_member`]).
    pub fn from_record(status: abi::Status, at: &str, record: &abi::Error) -> Error {
        let mut e = Error::from(*record);
        if record.code != status {
            e = Error::new(Code::from_status(status), at, "");
        }
        if e.at.is_empty() {
            e.at = at.into();
        }
        if e.message.is_empty() {
            e.message = "the plugin gave no reason".into();
        }
        e
    }
}

/// Reads the record a plugin wrote; texts end at their NUL, invalid UTF-8 is replaced.
impl From<abi::Error> for Error {
    fn from(r: abi::Error) -> Error {
        let cut = |b: &[u8]| {
            let n = b.iter().position(|x| *x == 0).unwrap_or(b.len());
            String::from_utf8_lossy(&b[..n]).into_owned()
        };
        Error {
            code: Code::from_status(r.code),
            vendor_code: r.vendor_code,
            peer: None,
            at: cut(&r.where_),
            message: cut(&r.message),
            sticky: r.flags & abi::ERRF_STICKY != 0,
            retryable: r.flags & abi::ERRF_RETRYABLE != 0,
        }
    }
}

/// A backend's error, met without the boundary between (unit tests, host services).
impl From<crossweave_plugin::Error> for Error {
    fn from(e: crossweave_plugin::Error) -> Error {
        Error {
            code: e.code,
            vendor_code: e.vendor_code,
            peer: None,
            at: String::new(),
            message: e.message,
            sticky: e.sticky,
            retryable: e.retryable,
        }
    }
}

/// One sentence: `copy: out of memory (vendor code 2), rank 3: …`.
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.code {
            Code::NotReady => "not ready",
            Code::Unsupported => "not supported",
            Code::Invalid => "invalid call",
            Code::Oom => "out of memory",
            Code::DeviceLost => "device lost",
            Code::Comm => "communicator failed",
            Code::Timeout => "timed out",
            Code::Aborted => "aborted",
            Code::Internal => "internal error of the plugin",
            Code::Panic => "the plugin panicked",
            Code::Version => "versions do not fit",
            _ => "unknown status",
        };
        if !self.at.is_empty() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(kind)?;
        if let Code::Other(s) = self.code {
            write!(f, " {s}")?;
        }
        if self.vendor_code != 0 {
            write!(f, " (vendor code {})", self.vendor_code)?;
        }
        if let Some(p) = self.peer {
            write!(f, ", {p}")?;
        }
        write!(f, ": {}", self.message)
    }
}
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_record_in_one_sentence() {
        let mut r = abi::Error::new();
        r.code = abi::E_COMM;
        r.vendor_code = 6;
        r.peer_rank = 2;
        r.flags = abi::ERRF_STICKY;
        r.where_[..6].copy_from_slice(b"launch");
        r.message[..4].copy_from_slice(b"gone");
        let members = Members::new([0, 3, 5].map(JobRank));
        let e = Error::from_member(abi::E_COMM, "ignored", &r, &members);
        assert_eq!(
            e.to_string(),
            "launch: communicator failed (vendor code 6), rank 5: gone"
        );
        // Of a stream nobody knows which communicator has failed.
        let e = Error::from_record(abi::E_COMM, "ignored", &r);
        assert_eq!(e.peer, None);
        assert!(e.sticky && !e.retryable);
    }

    #[test]
    fn an_unwritten_record_still_names_the_call() {
        let e = Error::from_record(-77, "copy", &abi::Error::new());
        assert_eq!(e.code, Code::Other(-77));
        assert_eq!(
            e.to_string(),
            "copy: unknown status -77: the plugin gave no reason"
        );
    }
}
