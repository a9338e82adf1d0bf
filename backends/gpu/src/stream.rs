//! Streams and events: always explicit and non-blocking, never the default stream.

use crate::caller::Caller;
use crate::device::Dev;
use crate::graph::Capture;
use crate::runtime::*;
use crate::{lock, wait};
use crossweave_plugin::{Code, Error, HostCall, Result, fail, unsupported};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What went wrong on a stream that the driver knows nothing of: a collective that was given up. The first stays.
#[derive(Default)]
pub(crate) struct Fault {
    /// Collectives have been launched on the stream.
    carries: AtomicBool,
    set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Fault {
    pub(crate) fn carry(&self) {
        self.carries.store(true, Ordering::Release);
    }

    fn carries(&self) -> bool {
        self.carries.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, e: Error) {
        lock(&self.error).get_or_insert(e);
        self.set.store(true, Ordering::Release);
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.set.load(Ordering::Acquire) {
            return Ok(());
        }
        lock(&self.error).clone().map_or(Ok(()), Err)
    }
}

/// An in-order queue.
pub struct Stream {
    /// Its device.
    pub dev: Arc<Dev>,
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
    /// A stream of the device; a larger priority is more urgent.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(dev: &Arc<Dev>, wanted: i32) -> Result<Stream> {
        let _in = dev.enter()?;
        let (mut least, mut greatest, mut raw) = (0, 0, Handle::NULL);
        // SAFETY: the device is current.
        unsafe {
            dev.check(dev.rt().priorities(&mut least, &mut greatest))?;
            let p = priority(wanted, least, greatest);
            dev.check(dev.rt().stream(&mut raw, STREAM_NON_BLOCKING, p))?;
        }
        Ok(Stream {
            dev: dev.clone(),
            raw,
            fault: Arc::default(),
            capture: Capture::default(),
            caller: Mutex::new(None),
        })
    }

    /// Has all of it ended?
    ///
    /// # Errors
    /// What ended the device, or was given up on the stream.
    pub fn query(&self) -> Result<bool> {
        let done = self.ask()?;
        self.fault.check()?;
        Ok(done)
    }

    /// What the driver says.
    fn ask(&self) -> Result<bool> {
        let _in = self.dev.enter()?;
        // SAFETY: the stream is alive.
        let o = unsafe { self.dev.rt().stream_query(self.raw) };
        match o.status {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            _ => Err(self.dev.failed(o)),
        }
    }

    /// Waits until all has ended (`None`: for ever).
    ///
    /// # Errors
    /// `Timeout`; what ended the device.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        wait::until("the stream", timeout, || self.query())
    }

    /// It waits for the event's last record.
    ///
    /// # Errors
    /// `Unsupported` while it captures. What the driver says.
    pub fn wait_event(&self, e: &Event) -> Result<()> {
        self.not_captured("stream_wait_event")?;
        let _in = self.dev.enter()?;
        // SAFETY: both are alive.
        self.dev
            .check(unsafe { self.dev.rt().stream_wait(self.raw, e.raw) })
    }

    /// It runs a function of the host's on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// `Unsupported` while it captures. What the driver says.
    pub fn host_call(&self, f: HostCall) -> Result<()> {
        self.not_captured("stream_host_call")?;
        let mut caller = lock(&self.caller);
        if caller.is_none() {
            *caller = Some(Caller::new(&self.dev)?);
        }
        match &mut *caller {
            Some(c) => {
                if let Err(e) = c.call(self.raw, &self.fault, f)? {
                    // What comes next on the stream would not wait for the call.
                    self.fault.set(e);
                }
                Ok(())
            }
            None => fail(Code::Internal, "no thread for host calls"),
        }
    }

    /// Can the device wait for words of memory?
    fn words(&self) -> Result<()> {
        match self.dev.facts.mem_ops {
            true => Ok(()),
            false => unsupported("this device cannot wait for words of memory"),
        }
    }

    /// It waits until a word is at least this.
    ///
    /// # Errors
    /// `Unsupported`: this device cannot, or not for this number. What the driver says.
    pub fn wait_value(&self, word: Address, at_least: u64) -> Result<()> {
        self.not_captured("stream_wait_value")?;
        self.words()?;
        ordered(at_least)?;
        let _in = self.dev.enter()?;
        // SAFETY: an aligned word of live memory (checked by the caller).
        self.dev
            .check(unsafe { self.dev.rt().wait_value(self.raw, word, at_least) })
    }

    /// It writes a word.
    ///
    /// # Errors
    /// As [`Stream::wait_value`].
    pub fn write_value(&self, word: Address, value: u64) -> Result<()> {
        self.not_captured("stream_write_value")?;
        self.words()?;
        ordered(value)?;
        let _in = self.dev.enter()?;
        // SAFETY: as above.
        self.dev
            .check(unsafe { self.dev.rt().write_value(self.raw, word, value) })
    }
}

/// The device compares words in a circle: from 2^63 on a larger number would count as smaller.
fn ordered(value: u64) -> Result<()> {
    match i64::try_from(value) {
        Ok(_) => Ok(()),
        Err(_) => unsupported(format!(
            "a word of {value}: this device orders words below 2^63 only"
        )),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // First those who wait for the stream and whom the stream waits for.
        if let Some(c) = lock(&self.caller).take() {
            c.retire(|| self.ask());
        }
        if let Ok(_in) = self.dev.enter_anyway() {
            self.capture_drop();
            // SAFETY: created by us, destroyed once; the driver finishes what is queued.
            let _ = unsafe { self.dev.rt().stream_destroy(self.raw) };
        }
    }
}

/// A point in a stream. It takes times: the contract does not say beforehand which events will be asked for them.
pub struct Event {
    /// Its device.
    pub dev: Arc<Dev>,
    pub(crate) raw: Handle,
    /// The fault of the stream that it was last recorded on, where collectives had been launched there: one that is given up lets the stream go on.
    after: Mutex<Option<Arc<Fault>>>,
}

impl Event {
    /// An event of the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(dev: &Arc<Dev>, flags: u32) -> Result<Event> {
        let _in = dev.enter()?;
        let mut raw = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        dev.check(unsafe { dev.rt().event(&mut raw, flags) })?;
        Ok(Event {
            dev: dev.clone(),
            raw,
            after: Mutex::default(),
        })
    }

    /// Marks a point of the stream.
    ///
    /// # Errors
    /// `Invalid`: a stream of another device. What the driver says.
    pub fn record(&self, s: &Stream) -> Result<()> {
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
        *lock(&self.after) = s.fault.carries().then(|| s.fault.clone());
        self.record_raw(s.raw)
    }

    pub(crate) fn record_raw(&self, stream: Handle) -> Result<()> {
        let _in = self.dev.enter()?;
        // SAFETY: both are alive and of one context.
        self.dev
            .check(unsafe { self.dev.rt().event_record(self.raw, stream) })
    }

    /// Has its last record been passed?
    ///
    /// # Errors
    /// What the driver says, or was given up on the stream before the record.
    pub fn query(&self) -> Result<bool> {
        let done = self.ask()?;
        lock(&self.after).as_ref().map_or(Ok(()), |f| f.check())?;
        Ok(done)
    }

    /// What the driver says.
    fn ask(&self) -> Result<bool> {
        let _in = self.dev.enter()?;
        // SAFETY: the event is alive.
        let o = unsafe { self.dev.rt().event_query(self.raw) };
        match o.status {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            _ => Err(self.dev.failed(o)),
        }
    }

    /// Waits until all has ended (`None`: for ever).
    ///
    /// # Errors
    /// `Timeout`; what ended the device.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        wait::until("the event", timeout, || self.query())
    }

    /// Nanoseconds from this record to that one.
    ///
    /// # Errors
    /// `Invalid`: a record is pending, or of another device. What the driver says.
    pub fn elapsed(&self, to: &Event) -> Result<u64> {
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
        let o = unsafe { self.dev.rt().event_elapsed(&mut ms, self.raw, to.raw) };
        match o.status {
            NOT_READY => fail(Code::Invalid, "event_elapsed: a record is still pending"),
            _ => self.dev.check(o),
        }?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: created by us, destroyed once; waits on it stay.
            let _ = unsafe { self.dev.rt().event_destroy(self.raw) };
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
