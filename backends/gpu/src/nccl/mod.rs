//! Collectives by NCCL or RCCL, whose functions, types and numbers are NCCL's, where it is installed.

mod call;
mod comm;
mod joining;

use crate::error::text;
use crate::library::{self, Wanted};
use crate::runtime::Handle;
use crate::settings::Settings;
use crate::table;
pub(crate) use comm::Inner;
pub use comm::{Comm, GpuCollectives};
use crossweave_plugin::{Code, DType, Error, Result, fail};
#[cfg(test)]
use cudarc::nccl::sys as bindings;
use std::ffi::{c_char, c_void};

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; 128]);

#[cfg(test)]
impl library::shape::Class for UniqueId {
    const CLASS: &'static str = "S(128)";
}

/// The part of `ncclConfig_t` that every version since 2.17 knows; the library reads as much as `size` says.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
    cga: i32,
    min_ctas: i32,
    max_ctas: i32,
    net: *const c_char,
    split_share: i32,
    /// Padding before 2.26.
    traffic_class: i32,
}

impl Config {
    /// Calls return at once and say later what became of them.
    pub(crate) fn nonblocking() -> Config {
        const UNDEFINED: i32 = i32::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21700,
            blocking: 0,
            cga: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

pub(crate) const SUCCESS: i32 = 0;
/// The call is not over; [`Table::ncclCommGetAsyncError`] says when it is.
pub const IN_PROGRESS: i32 = 7;

table! {
    /// The library.
    Table {
        fn ncclGetVersion(*mut i32) -> i32;
        fn ncclGetErrorString(i32) -> *const c_char;
        fn ncclGetUniqueId(*mut UniqueId) -> i32;
        fn ncclCommInitRankConfig(*mut Handle, i32, UniqueId, i32, *mut Config) -> i32;
        fn ncclCommFinalize(Handle) -> i32;
        fn ncclCommDestroy(Handle) -> i32;
        fn ncclCommAbort(Handle) -> i32;
        fn ncclCommGetAsyncError(Handle, *mut i32) -> i32;
        fn ncclGroupStart() -> i32;
        fn ncclGroupEnd() -> i32;
        fn ncclAllReduce(*const c_void, *mut c_void, usize, u32, u32, Handle, Handle) -> i32;
        fn ncclReduceScatter(*const c_void, *mut c_void, usize, u32, u32, Handle, Handle) -> i32;
        fn ncclAllGather(*const c_void, *mut c_void, usize, u32, Handle, Handle) -> i32;
        fn ncclBroadcast(*const c_void, *mut c_void, usize, u32, i32, Handle, Handle) -> i32;
        fn ncclReduce(*const c_void, *mut c_void, usize, u32, u32, i32, Handle, Handle) -> i32;
        fn ncclSend(*const c_void, usize, u32, i32, Handle, Handle) -> i32;
        fn ncclRecv(*mut c_void, usize, u32, i32, Handle, Handle) -> i32;
        fn ncclRedOpCreatePreMulSum(*mut u32, *mut c_void, u32, u32, Handle) -> i32;
        fn ncclRedOpDestroy(u32, Handle) -> i32;
    } optional {
        fn ncclGetLastError(Handle) -> *const c_char;
        fn ncclCommSplit(Handle, i32, i32, *mut Handle, *mut Config) -> i32;
        fn ncclMemAlloc(*mut *mut c_void, usize) -> i32;
        fn ncclMemFree(*mut c_void) -> i32;
        fn ncclCommRegister(Handle, *mut c_void, usize, *mut *mut c_void) -> i32;
        fn ncclCommDeregister(Handle, *mut c_void) -> i32;
    }
}

/// A library of collectives behind NCCL's functions.
pub struct Nccl {
    /// Its functions.
    pub t: Table,
    /// NCCL, or whose interface is NCCL's.
    pub what: &'static str,
    /// As `2.23.4`.
    pub version: String,
    /// The file it came from.
    pub file: String,
    /// Its joining waits for ranks that are missing, whatever it is asked: a thread does it ([`Nccl::that_waits`]).
    pub waits: bool,
    /// Where it is none of NCCL's kin: what NCCL's functions do not say.
    pub other: Option<Other>,
}

/// Writes an id.
pub type MakeId = dyn Fn(&mut [u8]) -> (&'static str, i32) + Send + Sync;
/// Joins a group, which may wait for the other ranks: where the communicator's address goes, ranks, id, rank.
pub type Join = dyn Fn(*mut Handle, u32, &[u8], u32) -> (&'static str, i32) + Send + Sync;

/// How a library that only stands behind NCCL's functions forms groups, and what it reduces.
pub struct Other {
    /// Bytes of an id.
    pub id_bytes: usize,
    /// Writes an id; the function's name, and what it returned.
    pub id: Box<MakeId>,
    /// Joins the group of an id.
    pub join: Box<Join>,
    /// Enqueues what a group of calls has gathered, by communicator and stream, in place of `ncclGroupEnd`.
    pub flush: unsafe fn(Handle, Handle) -> i32,
    /// Does it reduce this type by this `RED_*`?
    pub reduces: fn(DType, u32) -> bool,
}

impl Nccl {
    /// NCCL, or RCCL, whose functions are the same.
    ///
    /// # Errors
    /// `Unsupported`: it is not there, lacks a function, or does not say its version, as one that cannot work on this machine. Ranks are then carried
    /// through pinned memory.
    pub fn open(settings: &Settings, wanted: &Wanted) -> Result<Nccl> {
        let opened = library::open(settings, wanted)?;
        let t = Table::of(&opened)?;
        let mut version = 0;
        // SAFETY: the out pointer lives for the call; a static text.
        let (s, words) = unsafe {
            let s = (t.ncclGetVersion)(&mut version);
            (s, text((t.ncclGetErrorString)(s)))
        };
        if s != SUCCESS {
            let message = format!("{}: ncclGetVersion: {words} ({s})", opened.name);
            return fail(Code::Unsupported, message);
        }
        Ok(Nccl {
            t,
            what: opened.what,
            version: spelled(version),
            file: opened.name,
            waits: false,
            other: None,
        })
    }

    /// One that waits for missing ranks where it forms a group, so that a thread must do it. What it splits would wait too, and cannot be given up:
    /// the core forms those groups from new ids.
    pub fn that_waits(self) -> Nccl {
        Nccl {
            waits: true,
            t: Table {
                ncclCommSplit: None,
                ..self.t
            },
            ..self
        }
    }

    /// A fresh id.
    pub(crate) fn id(&self) -> Result<Vec<u8>> {
        if let Some(o) = &self.other {
            let mut id = vec![0; o.id_bytes];
            let (name, s) = (o.id)(&mut id);
            return self.check(name, s, Handle::NULL).map(|()| id);
        }
        let mut id = UniqueId([0; 128]);
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (self.t.ncclGetUniqueId)(&mut id) };
        self.check("ncclGetUniqueId", s, Handle::NULL)?;
        Ok(id.0.to_vec())
    }

    /// Has an id the library's length?
    pub(crate) fn takes(&self, id: &[u8]) -> Result<()> {
        let wanted = self.other.as_ref().map_or(128, |o| o.id_bytes);
        match id.len() == wanted {
            true => Ok(()),
            false => fail(
                Code::Invalid,
                format!(
                    "an id of {} bytes, those of {} have {wanted}",
                    id.len(),
                    self.what
                ),
            ),
        }
    }

    /// Joins a group without waiting for it to form.
    ///
    /// # Safety
    /// `out` lives until the group has formed or been given up; the id has the library's length.
    pub(crate) unsafe fn join(
        &self,
        out: *mut Handle,
        nranks: u32,
        id: &[u8],
        rank: u32,
    ) -> Result<()> {
        // SAFETY: promised by the caller.
        let (name, s) = unsafe { self.join_raw(out, nranks, id, rank) };
        self.check(name, s, Handle::NULL)
    }

    /// The same, as the library answers.
    ///
    /// # Safety
    /// As for [`Nccl::join`]; the id has the library's length.
    pub(crate) unsafe fn join_raw(
        &self,
        out: *mut Handle,
        nranks: u32,
        id: &[u8],
        rank: u32,
    ) -> (&'static str, i32) {
        match &self.other {
            Some(o) => (o.join)(out, nranks, id, rank),
            None => {
                let (mut own, mut config) = (UniqueId([0; 128]), Config::nonblocking());
                own.0.copy_from_slice(id);
                // SAFETY: promised by the caller; the configuration, which states its size, is copied.
                let s = unsafe {
                    (self.t.ncclCommInitRankConfig)(
                        out,
                        nranks as i32,
                        own,
                        rank as i32,
                        &mut config,
                    )
                };
                ("ncclCommInitRankConfig", s)
            }
        }
    }

    /// The error of a failed call; `IN_PROGRESS` is none.
    pub(crate) fn check(&self, f: &str, status: i32, comm: Handle) -> Result<()> {
        if matches!(status, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: static texts, and one that the library keeps until its next error.
        let (words, last) = unsafe {
            let last = self
                .t
                .ncclGetLastError
                .map_or(std::ptr::null(), |l| l(comm));
            (text((self.t.ncclGetErrorString)(status)), text(last))
        };
        let code = match status {
            // Arguments and usage are the caller's; the rest is between ranks.
            4 => Code::Invalid,
            _ => Code::Comm,
        };
        let more = if last.is_empty() {
            String::new()
        } else {
            format!(" ({last})")
        };
        let e = Error {
            vendor_code: i64::from(status),
            ..Error::new(
                code,
                format!(
                    "{f}: {} {}: {words} ({status}){more}",
                    self.what, self.version
                ),
            )
        };
        Err(if code == Code::Comm { e.sticky() } else { e })
    }
}

fn spelled(v: i32) -> String {
    match v {
        // Before 2.9 there were three digits below the major version.
        v if v < 10_000 => format!("{}.{}.{}", v / 1000, v / 100 % 10, v % 100),
        v => format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert_eq!(Table::check(), 25);
        assert_eq!(size_of::<UniqueId>(), size_of::<bindings::ncclUniqueId>());
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(
            offset_of!(Config, net),
            offset_of!(bindings::ncclConfig_t, netName)
        );
        assert_eq!(
            offset_of!(Config, split_share),
            offset_of!(bindings::ncclConfig_t, splitShare)
        );
        assert_eq!(
            offset_of!(Config, traffic_class),
            offset_of!(bindings::ncclConfig_t, trafficClass)
        );
        assert_eq!(IN_PROGRESS, bindings::ncclResult_t::ncclInProgress as i32);
    }

    #[test]
    fn versions_are_spelled_as_they_were_numbered() {
        assert_eq!(
            (spelled(2804), spelled(22304), spelled(23203)),
            ("2.8.4".into(), "2.23.4".into(), "2.32.3".into())
        );
    }
}
