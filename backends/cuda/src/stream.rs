//! Streams and events: always explicit and non-blocking, never the default stream.

use crate::caller::Caller;
use crate::device::{Dev, lock};
use crate::driver::*;
use crate::graph::Capture;
use crate::wait;
use crossweave_plugin::{Code, Error, HostCall, Result, fail, unsupported};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What went wrong on a stream that the driver knows nothing of: a collective that was given up. The first stays.
#[derive(Default)]
pub(crate) struct Fault {
    set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Fault {
    pub(crate) fn set(&self, e: Error) {
        lock(&self.error).get_or_insert(e);
        self.set.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<()> {
        if !self.set.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.error).clone().map_or(Ok(()), Err)
    }
}

/// An in-order queue.
pub struct Stream {
    pub(crate) dev: Arc<Dev>,
    pub(crate) raw: Handle,
    pub(crate) fault: Arc<Fault>,
    pub(crate) capture: Capture,
    /// Runs host calls; made by the first.
    caller: Mutex<Option<Caller>>,
}

/// The driver's priority for one where larger is more urgent. `least` and `greatest` are the driver's range, in which smaller is more
/// urgent (0 and -5, say).
pub(crate) fn priority(wanted: i32, least: i32, greatest: i32) -> i32 {
    match least >= greatest {
        true => wanted.saturating_neg().clamp(greatest, least),
        false => 0,
    }
}

impl Stream {
    pub(crate) fn new(dev: &Arc<Dev>, wanted: i32) -> Result<Stream> {
        let _in = dev.enter()?;
        let d = dev.driver();
        let (mut least, mut greatest, mut raw) = (0, 0, Handle::NULL);
        // SAFETY: out pointers live for the calls.
        unsafe {
            let s = (d.cuCtxGetStreamPriorityRange)(&mut least, &mut greatest);
            dev.check("cuCtxGetStreamPriorityRange", s)?;
            let p = priority(wanted, least, greatest);
            let s = (d.cuStreamCreateWithPriority)(&mut raw, STREAM_NON_BLOCKING, p);
            dev.check("cuStreamCreateWithPriority", s)?;
        }
        Ok(Stream {
            dev: dev.clone(),
            raw,
            fault: Arc::default(),
            capture: Capture::default(),
            caller: Mutex::new(None),
        })
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let done = self.ask()?;
        self.fault.check()?;
        Ok(done)
    }

    /// What the driver says.
    fn ask(&self) -> Result<bool> {
        let _in = self.dev.enter()?;
        // SAFETY: the stream is alive.
        match unsafe { (self.dev.driver().cuStreamQuery)(self.raw) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            s => Err(self.dev.failed("cuStreamQuery", s)),
        }
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        wait::until("the stream", timeout, || self.query())
    }

    pub(crate) fn wait_event(&self, e: &Event) -> Result<()> {
        self.not_captured("stream_wait_event")?;
        let _in = self.dev.enter()?;
        // SAFETY: both are alive.
        let s = unsafe { (self.dev.driver().cuStreamWaitEvent)(self.raw, e.raw, 0) };
        self.dev.check("cuStreamWaitEvent", s)
    }

    pub(crate) fn host_call(&self, f: HostCall) -> Result<()> {
        self.not_captured("stream_host_call")?;
        let mut caller = lock(&self.caller);
        if caller.is_none() {
            *caller = Some(Caller::new(&self.dev)?);
        }
        match &mut *caller {
            Some(c) => {
                if let Err(e) = c.call(self.raw, f)? {
                    // What comes next on the stream would not wait for the call.
                    self.fault.set(e);
                }
                Ok(())
            }
            None => fail(Code::Internal, "no thread for host calls"),
        }
    }

    /// The functions on words of memory, where device and driver have them.
    fn words(&self) -> Result<(WordFn, WordFn)> {
        let d = self.dev.driver();
        match (d.cuStreamWaitValue64_v2, d.cuStreamWriteValue64_v2) {
            (Some(wait), Some(write)) if self.dev.facts.mem_ops => Ok((wait, write)),
            _ => Err(Error::new(
                Code::Unsupported,
                "this device cannot wait for words of memory",
            )),
        }
    }

    pub(crate) fn wait_value(&self, word: Address, at_least: u64) -> Result<()> {
        self.not_captured("stream_wait_value")?;
        let (f, _) = self.words()?;
        ordered(at_least)?;
        let _in = self.dev.enter()?;
        // SAFETY: an aligned word of live memory (checked by the caller).
        let s = unsafe { f(self.raw, word, at_least, WAIT_GEQ) };
        self.dev.check("cuStreamWaitValue64_v2", s)
    }

    pub(crate) fn write_value(&self, word: Address, value: u64) -> Result<()> {
        self.not_captured("stream_write_value")?;
        let (_, f) = self.words()?;
        ordered(value)?;
        let _in = self.dev.enter()?;
        // SAFETY: as above.
        let s = unsafe { f(self.raw, word, value, 0) };
        self.dev.check("cuStreamWriteValue64_v2", s)
    }
}

/// The device compares words in a circle ([`WAIT_GEQ`]): from 2^63 on a larger number would count as smaller.
fn ordered(value: u64) -> Result<()> {
    match i64::try_from(value) {
        Ok(_) => Ok(()),
        Err(_) => unsupported(format!(
            "a word of {value}: this device orders words below 2^63 only"
        )),
    }
}

type WordFn = unsafe extern "C" fn(Handle, Address, u64, u32) -> Status;

impl Drop for Stream {
    fn drop(&mut self) {
        // First those who wait for the stream and whom the stream waits for.
        if let Some(c) = lock(&self.caller).take() {
            c.retire(|| self.ask());
        }
        if let Ok(_in) = self.dev.enter_anyway() {
            self.capture_drop();
            // SAFETY: created by us, destroyed once; the driver finishes what is queued.
            unsafe { (self.dev.driver().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A point in a stream. It takes times: the contract does not say beforehand which events will be asked for them.
pub struct Event {
    pub(crate) dev: Arc<Dev>,
    pub(crate) raw: Handle,
}

impl Event {
    pub(crate) fn new(dev: &Arc<Dev>, flags: u32) -> Result<Event> {
        let _in = dev.enter()?;
        let mut raw = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (dev.driver().cuEventCreate)(&mut raw, flags) };
        dev.check("cuEventCreate", s)?;
        Ok(Event {
            dev: dev.clone(),
            raw,
        })
    }

    pub(crate) fn record(&self, s: &Stream) -> Result<()> {
        if !Arc::ptr_eq(&self.dev, &s.dev) {
            return fail(
                Code::Invalid,
                format!(
                    "an event of device {} on a stream of device {}",
                    self.dev.index, s.dev.index
                ),
            );
        }
        s.not_captured("event_record")?;
        self.record_raw(s.raw)
    }

    pub(crate) fn record_raw(&self, stream: Handle) -> Result<()> {
        let _in = self.dev.enter()?;
        // SAFETY: both are alive and of one context.
        let status = unsafe { (self.dev.driver().cuEventRecord)(self.raw, stream) };
        self.dev.check("cuEventRecord", status)
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let _in = self.dev.enter()?;
        // SAFETY: the event is alive.
        match unsafe { (self.dev.driver().cuEventQuery)(self.raw) } {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            s => Err(self.dev.failed("cuEventQuery", s)),
        }
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        wait::until("the event", timeout, || self.query())
    }

    /// Nanoseconds from this record to that one.
    pub(crate) fn elapsed(&self, to: &Event) -> Result<u64> {
        if !Arc::ptr_eq(&self.dev, &to.dev) {
            return fail(
                Code::Invalid,
                "events of two devices have no time between them",
            );
        }
        if !self.query()? || !to.query()? {
            return fail(Code::Invalid, "event_elapsed: a record is still pending");
        }
        let _in = self.dev.enter()?;
        let mut ms = 0f32;
        // SAFETY: both events are alive and of one context.
        let s = unsafe { (self.dev.driver().cuEventElapsedTime)(&mut ms, self.raw, to.raw) };
        match s {
            NOT_READY => fail(Code::Invalid, "event_elapsed: a record is still pending"),
            s => self.dev.check("cuEventElapsedTime", s),
        }?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: created by us, destroyed once; waits on it stay.
            unsafe { (self.dev.driver().cuEventDestroy_v2)(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_priorities_become_the_drivers_smaller_ones_within_its_range() {
        assert_eq!(priority(0, 0, -5), 0);
        assert_eq!(priority(2, 0, -5), -2);
        assert_eq!(priority(100, 0, -5), -5);
        assert_eq!(priority(-3, 0, -5), 0);
        assert_eq!(priority(i32::MIN, 0, -5), 0);
        assert_eq!(priority(i32::MAX, 0, 0), 0);
    }
}
