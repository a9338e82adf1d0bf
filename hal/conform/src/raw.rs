//! The plugin's C tables with handles that free themselves. Every call goes through one place, which watches the error record: it may
//! be written only when the status is negative, must end its texts, and must not be left by a byte (R1). What breaks that is kept as a
//! slip, and fails the case during which it happened.

use crossweave_abi as abi;
use crossweave_abi::{CollectiveApi, DeviceApi, EntryFn, ErrPtr, GraphApi, Handle, OpsApi, Status};
use crossweave_hal::RawPlugin;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Why a call failed: the plugin's error record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The slot.
    pub slot: &'static str,
    /// The status.
    pub status: Status,
    /// `abi::ERRF_*`.
    pub flags: u32,
    /// -1 = unknown.
    pub peer: i32,
    /// The code of the vendor's library.
    pub vendor_code: i64,
    /// In words.
    pub message: String,
}

impl Refusal {
    /// Not provided?
    pub fn unsupported(&self) -> bool {
        self.status == abi::E_UNSUPPORTED
    }
    /// Is the handle dead?
    pub fn sticky(&self) -> bool {
        self.flags & abi::ERRF_STICKY != 0
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.slot, status_name(self.status))?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

impl From<Refusal> for String {
    fn from(r: Refusal) -> String {
        r.to_string()
    }
}

/// A status as the header spells it.
pub fn status_name(s: Status) -> String {
    let name = match s {
        abi::OK => "OK",
        abi::NOT_READY => "NOT_READY",
        abi::E_UNSUPPORTED => "UNSUPPORTED",
        abi::E_INVALID => "INVALID",
        abi::E_OOM => "OOM",
        abi::E_DEVICE_LOST => "DEVICE_LOST",
        abi::E_COMM => "COMM",
        abi::E_TIMEOUT => "TIMEOUT",
        abi::E_ABORTED => "ABORTED",
        abi::E_INTERNAL => "INTERNAL",
        abi::E_PANIC => "PANIC",
        abi::E_VERSION => "VERSION",
        other => return format!("status {other}"),
    };
    name.into()
}

/// What a call answers.
pub type Raw<T> = Result<T, Refusal>;

/// An error record with guards around it.
#[repr(C)]
struct Record {
    before: [u8; 64],
    error: abi::Error,
    after: [u8; 64],
}

const GUARD: u8 = 0xC3;
const STALE: u8 = 0x5A;

impl Record {
    fn new() -> Record {
        let mut error = abi::Error::new();
        error.vendor_code = 0x5A5A;
        error.peer_rank = -77;
        error.where_ = [STALE; 48];
        error.message = [STALE; 440];
        Record {
            before: [GUARD; 64],
            error,
            after: [GUARD; 64],
        }
    }

    /// What the plugin did wrong with it.
    fn slip(&self, slot: &str, status: Status) -> Option<String> {
        let e = &self.error;
        if self.before != [GUARD; 64] || self.after != [GUARD; 64] {
            return Some(format!("{slot} wrote outside the error record"));
        }
        let touched = e.code != 0
            || e.vendor_code != 0x5A5A
            || e.peer_rank != -77
            || e.where_ != [STALE; 48]
            || e.message != [STALE; 440]
            || e.flags != 0;
        if status >= 0 {
            return touched.then(|| {
                format!(
                    "{slot} answered {} and wrote the error record",
                    status_name(status)
                )
            });
        }
        if !touched {
            return Some(format!(
                "{slot} answered {} and left the error record unwritten",
                status_name(status)
            ));
        }
        if e.code != status {
            return Some(format!(
                "{slot} answered {} and its error record says {}",
                status_name(status),
                status_name(e.code)
            ));
        }
        // A text that was not written at all keeps what the caller has put there.
        let open = |t: &[u8]| !t.contains(&0) && t.iter().any(|b| *b != STALE);
        if open(&e.message) || open(&e.where_) {
            return Some(format!(
                "{slot}: a text of the error record has no end within it"
            ));
        }
        None
    }
}

/// Bytes up to the first NUL.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A loaded plugin.
pub struct Plugin {
    /// What the loader read.
    pub raw: RawPlugin,
    /// `crossweave.device/1`.
    pub d: DeviceApi,
    /// `crossweave.ops/1`.
    pub ops: Option<OpsApi>,
    /// `crossweave.collective/1`.
    pub coll: Option<CollectiveApi>,
    /// `crossweave.graph/1`.
    pub graph: Option<GraphApi>,
    /// The entry function, to be called again.
    pub entry: EntryFn,
    slips: Mutex<Vec<String>>,
}

/// A mandatory slot: the loader has seen that it is there.
macro_rules! slot {
    ($table:expr, $name:ident) => {
        match $table.$name {
            Some(f) => f,
            None => {
                return Err(Refusal {
                    slot: stringify!($name),
                    status: abi::E_UNSUPPORTED,
                    flags: 0,
                    peer: -1,
                    vendor_code: 0,
                    message: "the slot is NULL".into(),
                });
            }
        }
    };
}

mod comm;
mod device;
mod graph;
mod handles;

pub use comm::coll_desc;
pub use device::{Dev, Joining};
pub use handles::{Comm, Event, Graph, Mem, OpHandle, Stream};

impl Plugin {
    /// A plugin from what the loader has read.
    pub fn new(raw: RawPlugin, entry: EntryFn) -> Result<Plugin, String> {
        let d = raw.device.ok_or("the device interface is missing")?;
        let (ops, coll, graph) = (raw.ops, raw.coll, raw.graph);
        Ok(Plugin {
            raw,
            d,
            ops,
            coll,
            graph,
            entry,
            slips: Mutex::default(),
        })
    }

    /// Breaches of the record's rules since the last question.
    pub fn take_slips(&self) -> Vec<String> {
        std::mem::take(&mut self.slips.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a slot with a watched error record.
    ///
    /// # Errors
    /// A negative status.
    pub fn call(&self, slot: &'static str, f: impl FnOnce(ErrPtr) -> Status) -> Raw<Status> {
        let mut r = Record::new();
        let status = f(&mut r.error);
        if let Some(s) = r.slip(slot, status) {
            let mut slips = self.slips.lock().unwrap_or_else(PoisonError::into_inner);
            if slips.len() < 8 {
                slips.push(s);
            }
        }
        if status >= 0 {
            return Ok(status);
        }
        Err(Refusal {
            slot,
            status,
            flags: r.error.flags,
            peer: match r.error.peer_rank {
                -77 => -1,
                rank => rank,
            },
            vendor_code: r.error.vendor_code,
            message: match r.error.message {
                m if m == [STALE; 440] => String::new(),
                m => text(&m),
            },
        })
    }

    /// Devices there are.
    ///
    /// # Errors
    /// The plugin's.
    pub fn device_count(&self) -> Raw<u32> {
        let f = slot!(self.d, device_count);
        let mut n = u32::MAX;
        // SAFETY: the plugin's own `self` and live out pointers.
        self.call("device_count", |e| unsafe { f(self.raw.self_, &mut n, e) })?;
        Ok(n)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// The plugin's.
    pub fn open(self: &Arc<Self>, index: u32) -> Raw<Dev> {
        let f = slot!(self.d, device_open);
        let mut h: Handle = std::ptr::null_mut();
        // SAFETY: as `device_count`.
        self.call("device_open", |e| unsafe {
            f(self.raw.self_, index, &mut h, e)
        })?;
        Ok(Dev::opened(self.clone(), h, index))
    }
}
