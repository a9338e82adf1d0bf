//! Streams and events: always explicit and non-blocking, never the default stream.

use crate::caller::Caller;
use crate::device::Dev;
use crate::graph::Capture;
use crate::held::{Held, Item};
use crate::runtime::*;
use crate::{lock, wait};
use crossweave_plugin::{Code, Error, HostCall, Result, fail, unsupported};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a stream that ran functions of the host's may take to end when it is destroyed.
const GIVE_UP: Duration = Duration::from_secs(10);

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
        // Events that are recorded from here on have it too.
        self.carry();
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

/// An in-order queue, as its threads share it.
pub struct Line {
    /// Its device.
    pub dev: Arc<Dev>,
    pub(crate) raw: Handle,
    pub(crate) fault: Arc<Fault>,
    pub(crate) capture: Capture,
    pub(crate) held: Held,
    /// Runs host calls; made by the first.
    caller: Mutex<Option<Caller>>,
}

/// Where a stream's launches, copies and fills go: to itself, or to what is captured.
pub struct Lane<'a> {
    pub(crate) line: &'a Line,
    pub(crate) raw: Handle,
}

impl Lane<'_> {
    /// The driver's stream.
    pub fn raw(&self) -> Handle {
        self.raw
    }
}

impl Deref for Lane<'_> {
    type Target = Line;

    fn deref(&self) -> &Line {
        self.line
    }
}

/// An in-order queue. It ends with this; threads that still give it calls have their [`Line`].
pub struct Stream(Arc<Line>);

impl Deref for Stream {
    type Target = Arc<Line>;

    fn deref(&self) -> &Arc<Line> {
        &self.0
    }
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
        Ok(Stream(Arc::new(Line {
            dev: dev.clone(),
            raw,
            fault: Arc::default(),
            capture: Capture::default(),
            held: Held::default(),
            caller: Mutex::new(None),
        })))
    }
}

impl Line {
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
        if self.held() {
            return Ok(false);
        }
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
    pub fn wait_event(self: &Arc<Self>, e: &Event) -> Result<()> {
        self.not_captured("stream_wait_event")?;
        self.dev.alive()?;
        let mark = lock(&e.mark).clone();
        if mark.holds(self) {
            return Ok(());
        }
        match self.held() && self.behind(Item::Wait(mark.clone())).is_none() {
            true => Ok(()),
            false => self.wait_raw(&mark),
        }
    }

    pub(crate) fn wait_raw(&self, mark: &Mark) -> Result<()> {
        let _in = self.dev.enter()?;
        // SAFETY: both are alive.
        self.dev
            .check(unsafe { self.dev.rt().stream_wait(self.raw, mark.raw) })
    }

    /// It runs a function of the host's on a thread of its own; what comes next on the stream is put off until it has run.
    ///
    /// # Errors
    /// `Unsupported` while it captures. What the driver says.
    pub fn host_call(self: &Arc<Self>, f: HostCall) -> Result<()> {
        self.not_captured("stream_host_call")?;
        self.dev.alive()?;
        let mut slot = lock(&self.caller);
        let caller = match &mut *slot {
            Some(c) => c,
            none => none.insert(Caller::new(self)?),
        };
        let Some(Item::Call(f)) = self.behind(Item::Call(f)) else {
            return Ok(());
        };
        // A refusal comes before anything is put off: the function then still belongs to the host.
        let event = caller.mark(&self.dev, self.raw)?;
        self.calling();
        caller.call(Ok(event), f);
        Ok(())
    }

    /// A function that was put off begins; given back where the stream is going away.
    pub(crate) fn hand_over(&self, f: HostCall) -> Option<HostCall> {
        match &*lock(&self.caller) {
            Some(caller) => {
                caller.call(caller.mark(&self.dev, self.raw), f);
                None
            }
            None => Some(f),
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
        self.put(move |s| {
            let _in = s.dev.enter()?;
            // SAFETY: an aligned word of live memory (checked by the caller).
            s.dev
                .check(unsafe { s.dev.rt().wait_value(s.raw, word, at_least) })
        })
    }

    /// It writes a word.
    ///
    /// # Errors
    /// As [`Line::wait_value`].
    pub fn write_value(&self, word: Address, value: u64) -> Result<()> {
        self.not_captured("stream_write_value")?;
        self.words()?;
        ordered(value)?;
        self.put(move |s| {
            let _in = s.dev.enter()?;
            // SAFETY: as above.
            s.dev
                .check(unsafe { s.dev.rt().write_value(s.raw, word, value) })
        })
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
        self.close();
        // The slot is free while the thread ends, which looks into it.
        let caller = lock(&self.caller).take();
        let called = caller.is_some();
        if let Some(c) = caller {
            c.retire();
        }
        self.abandon();
        if called {
            // What came behind its functions has been with the driver for a moment only. One that stands still for good is left to it.
            let _ = wait::until("the stream", Some(GIVE_UP), || self.ask());
        }
        if let Ok(_in) = self.dev.enter_anyway() {
            self.capture_drop();
            // SAFETY: created by us, destroyed once; the driver finishes what is queued.
            let _ = unsafe { self.dev.rt().stream_destroy(self.raw) };
        }
    }
}

/// The driver's event. A record of it may be put off, and until the driver has it nobody can wait for it there.
pub(crate) struct Mark {
    dev: Arc<Dev>,
    raw: Handle,
    issued: AtomicBool,
    /// Streams held until then.
    waiters: Mutex<Vec<Arc<Line>>>,
}

impl Mark {
    fn new(dev: &Arc<Dev>, flags: u32) -> Result<Arc<Mark>> {
        let _in = dev.enter()?;
        let mut raw = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        dev.check(unsafe { dev.rt().event(&mut raw, flags) })?;
        Ok(Arc::new(Mark {
            dev: dev.clone(),
            raw,
            issued: AtomicBool::new(true),
            waiters: Mutex::default(),
        }))
    }

    pub(crate) fn record(&self, stream: Handle) -> Result<()> {
        let _in = self.dev.enter()?;
        // SAFETY: both are alive and of one context.
        self.dev
            .check(unsafe { self.dev.rt().event_record(self.raw, stream) })
    }

    /// Does the driver have its record?
    pub(crate) fn is_issued(&self) -> bool {
        self.issued.load(Ordering::Acquire)
    }

    /// The driver has it now; answers who waited for that.
    pub(crate) fn issued(&self) -> Vec<Arc<Line>> {
        let mut waiters = lock(&self.waiters);
        self.issued.store(true, Ordering::Release);
        std::mem::take(&mut *waiters)
    }

    /// Holds the stream while the record is put off.
    fn holds(self: &Arc<Self>, line: &Arc<Line>) -> bool {
        if self.is_issued() {
            return false;
        }
        let mut waiters = lock(&self.waiters);
        if self.is_issued() {
            return false;
        }
        line.hold_for(self);
        waiters.push(line.clone());
        true
    }

    /// What the driver says.
    fn ask(&self) -> Result<bool> {
        let _in = self.dev.enter()?;
        if !self.is_issued() {
            return Ok(false);
        }
        // SAFETY: the event is alive.
        let o = unsafe { self.dev.rt().event_query(self.raw) };
        match o.status {
            SUCCESS => Ok(true),
            NOT_READY => Ok(false),
            _ => Err(self.dev.failed(o)),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: created by us, destroyed once; waits on it stay.
            let _ = unsafe { self.dev.rt().event_destroy(self.raw) };
        }
    }
}

/// A point in a stream. It takes times: the contract does not say beforehand which events will be asked for them.
pub struct Event {
    /// Its device.
    pub dev: Arc<Dev>,
    flags: u32,
    /// That of the last record. A record takes another where an earlier one is still put off, or waited for by who is held.
    pub(crate) mark: Mutex<Arc<Mark>>,
    /// The fault of the stream that it was last recorded on, where one may come of it: collectives that are given up, and calls that were put off,
    /// let the stream go on.
    after: Mutex<Option<Arc<Fault>>>,
}

impl Event {
    /// An event of the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(dev: &Arc<Dev>, flags: u32) -> Result<Event> {
        Ok(Event {
            dev: dev.clone(),
            flags,
            mark: Mutex::new(Mark::new(dev, flags)?),
            after: Mutex::default(),
        })
    }

    /// Marks a point of the stream.
    ///
    /// # Errors
    /// `Invalid`: a stream of another device. What the driver says.
    pub fn record(&self, s: &Line) -> Result<()> {
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
        self.dev.alive()?;
        let held = s.held();
        *lock(&self.after) = (held || s.fault.carries()).then(|| s.fault.clone());
        let mut mark = lock(&self.mark);
        if Arc::strong_count(&mark) > 1 {
            *mark = Mark::new(&self.dev, self.flags)?;
        }
        if held {
            mark.issued.store(false, Ordering::Release);
            if s.behind(Item::Record(mark.clone())).is_none() {
                return Ok(());
            }
            mark.issued.store(true, Ordering::Release);
        }
        mark.record(s.raw)
    }

    /// At once, whatever the stream has put off: for events of our own.
    pub(crate) fn record_raw(&self, stream: Handle) -> Result<()> {
        lock(&self.mark).record(stream)
    }

    /// Has its last record been passed?
    ///
    /// # Errors
    /// What the driver says, or was given up on the stream before the record.
    pub fn query(&self) -> Result<bool> {
        let mark = lock(&self.mark).clone();
        let done = mark.ask()?;
        lock(&self.after).as_ref().map_or(Ok(()), |f| f.check())?;
        Ok(done)
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
        // One lock after the other: the two may be one event.
        let start = lock(&self.mark).raw;
        let end = lock(&to.mark).raw;
        // SAFETY: both events are alive and of one context.
        let o = unsafe { self.dev.rt().event_elapsed(&mut ms, start, end) };
        match o.status {
            NOT_READY => fail(Code::Invalid, "event_elapsed: a record is still pending"),
            _ => self.dev.check(o),
        }?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
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
