//! The host's services, as a backend sees them: logging, configuration, key-value exchange, threads, fault points.

use crate::{Code, Result, fail};
use crossweave_abi as abi;
use std::ffi::c_void;
use std::time::Duration;

const NO_THREAD: &str =
    "the system starts no further thread, for want of memory or by a limit of their number";

/// Host services; cheap to copy, live until the process ends (R9).
#[derive(Clone, Copy)]
pub struct Host(pub(crate) abi::Host);

/// A handle to a thread started by [`Host::spawn`]; joining is the backend's duty through its own channel.
pub struct HostThread(());

impl Host {
    /// A host that offers nothing: every service answers its default. For unit tests of a backend.
    pub fn none() -> Host {
        // SAFETY: a zeroed table is "nothing provided" by R1.
        let mut h: abi::Host = unsafe { std::mem::zeroed() };
        h.size = size_of::<abi::Host>() as u32;
        Host(h)
    }

    /// `level` 1 error … 5 trace.
    pub fn log(&self, level: u32, target: &str, message: &str) {
        if let Some(f) = self.0.log {
            // SAFETY: both strings live for the call.
            unsafe {
                f(
                    self.0.ctx,
                    level,
                    abi::Str::new(target),
                    abi::Str::new(message),
                )
            }
        }
    }

    /// A configuration value; only the host reads the environment.
    pub fn config(&self, key: &str) -> Option<String> {
        let f = self.0.config_get?;
        let mut buf = vec![0u8; 256];
        loop {
            let mut len = 0u64;
            // SAFETY: `buf` has `cap` bytes; the host writes at most that and states the full length.
            let s = unsafe {
                f(
                    self.0.ctx,
                    abi::Str::new(key),
                    buf.as_mut_ptr(),
                    buf.len() as u64,
                    &mut len,
                )
            };
            if s != abi::OK {
                return None;
            }
            if len as usize <= buf.len() {
                buf.truncate(len as usize);
                return String::from_utf8(buf).ok();
            }
            buf.resize(len as usize, 0);
        }
    }

    /// Publishes a value to the other ranks.
    pub fn kv_set(&self, key: &str, value: &[u8]) -> Result<()> {
        let Some(f) = self.0.kv_set else {
            return fail(Code::Unsupported, "the host gives no key-value store");
        };
        // SAFETY: key and value live for the call.
        match unsafe {
            f(
                self.0.ctx,
                abi::Str::new(key),
                value.as_ptr().cast(),
                value.len() as u64,
            )
        } {
            abi::OK => Ok(()),
            s => fail(Code::from_status(s), format!("kv_set {key}")),
        }
    }

    /// Waits for a value of another rank.
    pub fn kv_get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let Some(f) = self.0.kv_get else {
            return fail(Code::Unsupported, "the host gives no key-value store");
        };
        let mut buf = vec![0u8; 4096];
        loop {
            let mut len = 0u64;
            let ns = timeout.as_nanos().min(i64::MAX as u128) as i64;
            // SAFETY: `buf` has `cap` bytes; the host writes at most that and states the full length.
            match unsafe {
                f(
                    self.0.ctx,
                    abi::Str::new(key),
                    buf.as_mut_ptr().cast(),
                    buf.len() as u64,
                    &mut len,
                    ns,
                )
            } {
                abi::OK if len as usize <= buf.len() => {
                    buf.truncate(len as usize);
                    return Ok(buf);
                }
                abi::OK => buf.resize(len as usize, 0),
                s => return fail(Code::from_status(s), format!("kv_get {key}")),
            }
        }
    }

    /// A long-lived thread of the host running `body`; falls back to a thread of our own when the host gives none.
    pub fn spawn(&self, body: Box<dyn FnOnce() + Send>) -> Result<HostThread> {
        unsafe extern "C" fn run(arg: *mut c_void) {
            // SAFETY: `arg` is the box made below, handed over exactly once.
            let body = unsafe { Box::from_raw(arg.cast::<Box<dyn FnOnce() + Send>>()) };
            // R5: nothing unwinds into the host. The backend's own channel reports the failure.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        }
        match self.0.spawn {
            Some(f) => {
                let arg = Box::into_raw(Box::new(body));
                // SAFETY: `run` takes ownership of `arg` exactly once; on failure it is taken back.
                let s = unsafe { f(self.0.ctx, run, arg.cast()) };
                if s != abi::OK {
                    // SAFETY: the host refused, so it never calls `run`.
                    drop(unsafe { Box::from_raw(arg) });
                    return fail(Code::from_status(s), NO_THREAD);
                }
            }
            None => {
                std::thread::Builder::new()
                    .name("cw-plugin".into())
                    .spawn(body)
                    .map_err(|e| crate::Error::new(Code::Oom, format!("{NO_THREAD}: {e}")))?;
            }
        }
        Ok(HostThread(()))
    }

    /// Nanoseconds of the host's monotonic clock, or 0.
    pub fn now_ns(&self) -> u64 {
        // SAFETY: a plain query.
        self.0.now_ns.map_or(0, |f| unsafe { f(self.0.ctx) })
    }

    /// Non-zero: the conformance kit wants this place to fail.
    pub fn fault_point(&self, name: &str) -> u32 {
        // SAFETY: the name lives for the call.
        self.0
            .fault_point
            .map_or(0, |f| unsafe { f(self.0.ctx, abi::Str::new(name)) })
    }
}
