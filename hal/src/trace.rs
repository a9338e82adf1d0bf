//! What ran on a device's streams and when: spans between pairs of events, read once both have been passed.
//!
//! A span begins where its first call could start, behind what that call waited for on other streams, and ends where its last call was
//! passed. Nothing here waits for a stream: spans are read some steps later. Where a device cannot tell the time between events
//! ([`Event::elapsed`]), only what the host did is known, and [`Tracer::device_times`] says so.

use crate::device::Device;
use crate::error::Result;
use crate::stream::{Event, Stream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Spans that may wait to be read; beyond them new ones are counted and dropped.
const WAITING: usize = 1 << 16;
/// How often the clocks of device and host are held against each other anew.
const REBASE: Duration = Duration::from_secs(10);
/// Tries at that; the closest counts.
const TRIES: u32 = 8;

/// One end of a message between two ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// This end sends.
    pub sends: bool,
    /// The other end, by its rank in the group.
    pub peer: u32,
    /// How many went that way before.
    pub index: u64,
}

/// What a collective's span says beyond its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveWork {
    /// Its group's name, as in the ledger.
    pub group: String,
    /// What all members of the group and no other group call it.
    pub scope: String,
    /// The how many-th call on the group.
    pub call: u64,
    /// Bytes of the full vectors.
    pub bytes: u64,
    /// This rank in the group.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// The root, where there is one.
    pub root: Option<u32>,
    /// Sends and receives in it.
    pub messages: Vec<Message>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A step of the plan, on a stream.
    Step,
    /// A collective, on a stream.
    Collective(Box<CollectiveWork>),
    /// The host's own time.
    Host,
}

/// One span, in time since the tracer's origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it is called.
    pub name: String,
    /// The stream, or `host`.
    pub lane: String,
    /// What it is.
    pub work: Work,
    /// Optimizer step it belongs to.
    pub step: u64,
    /// Begin.
    pub from: Duration,
    /// End.
    pub to: Duration,
}

/// A span of a stream whose end has not been passed yet.
struct Waiting {
    span: Span,
    base: Arc<Base>,
    begin: Event,
    end: Event,
}

/// A point of the device's clock and of the host's.
struct Base {
    event: Event,
    at: Duration,
    /// When it was made.
    made: Instant,
}

#[derive(Default)]
struct State {
    free: Vec<Event>,
    waiting: Vec<Waiting>,
    done: Vec<Span>,
    base: Option<Arc<Base>>,
    step: u64,
}

struct Inner {
    origin: Instant,
    /// A stream of its own, so that comparing clocks waits for no other work.
    stream: Mutex<Stream>,
    state: Mutex<State>,
    lost: AtomicU64,
    /// Nothing that begins is kept.
    paused: AtomicBool,
    times: bool,
    /// How far the two clocks may be apart.
    uncertainty: Duration,
}

/// Collects the spans of one rank. Clones share it; nobody who has none pays for it.
#[derive(Clone)]
pub struct Tracer(Arc<Inner>);

/// A span that has begun: on which streams, the event armed on each and the calls it had.
pub struct Open(Vec<(Event, u64)>);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are replaced whole, so what a panicking thread held is usable.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The closest pair of a host time and an event out of some tries, with how far apart they may be; `None`: the device has no times.
fn base(stream: &Stream, origin: Instant) -> Result<Option<(Base, Duration)>> {
    let mut best: Option<(Base, Duration)> = None;
    for _ in 0..TRIES {
        let event = stream.event()?;
        let before = Instant::now();
        stream.record_again(&event)?;
        event.sync(None)?;
        let after = Instant::now();
        if event.elapsed(&event)?.is_none() {
            return Ok(None);
        }
        let half = (after - before) / 2;
        if best.as_ref().is_none_or(|(_, b)| half < *b) {
            let at = before.saturating_duration_since(origin) + half;
            let made = after;
            best = Some((Base { event, at, made }, half));
        }
    }
    Ok(best)
}

impl Tracer {
    /// Spans of streams of `device`, in time since `origin`.
    ///
    /// # Errors
    /// A device that makes no streams or events.
    pub fn new(device: &Device, origin: Instant) -> Result<Tracer> {
        let stream = device.stream("trace", 0)?;
        let first = match base(&stream, origin) {
            // A plugin without the slot says so by an error of its own.
            Err(e) if e.code == crate::Code::Unsupported => None,
            r => r?,
        };
        let times = first.is_some();
        let uncertainty = first.as_ref().map_or(Duration::ZERO, |(_, u)| *u);
        let state = State {
            base: first.map(|(b, _)| Arc::new(b)),
            ..State::default()
        };
        Ok(Tracer(Arc::new(Inner {
            origin,
            stream: Mutex::new(stream),
            state: Mutex::new(state),
            lost: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            times,
            uncertainty,
        })))
    }

    /// Does the device tell when its streams pass events?
    pub fn device_times(&self) -> bool {
        self.0.times
    }
    /// How far the device's clock and the host's may be apart.
    pub fn uncertainty(&self) -> Duration {
        self.0.uncertainty
    }
    /// Spans dropped: too many waited to be read, or their events failed.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Relaxed)
    }
    /// Time since the origin.
    pub fn now(&self) -> Duration {
        self.0.origin.elapsed()
    }
    /// Whether what begins from now on is left out, which then costs nothing. What has begun is kept.
    pub fn pause(&self, paused: bool) {
        self.0.paused.store(paused, Relaxed);
    }
    /// What follows belongs to this optimizer step.
    pub fn set_step(&self, step: u64) {
        lock(&self.0.state).step = step;
    }

    /// Something begins that may put work on any of `streams`.
    pub fn begin<'a>(&self, streams: impl IntoIterator<Item = &'a Stream>) -> Open {
        if !self.0.times || self.0.paused.load(Relaxed) {
            return Open(vec![]);
        }
        let mut open = vec![];
        for s in streams {
            let event = match lock(&self.0.state).free.pop() {
                Some(e) => e,
                None => match s.event() {
                    Ok(e) => e,
                    Err(_) => break,
                },
            };
            s.arm(&event);
            open.push((event, s.calls()));
        }
        Open(open)
    }

    /// It has been enqueued: a span on each of `streams`, the same as were given to [`Tracer::begin`], that got work.
    pub fn end<'a>(
        &self,
        open: Open,
        streams: impl IntoIterator<Item = &'a Stream>,
        name: &dyn Fn() -> String,
        work: &dyn Fn() -> Work,
    ) {
        for ((begin, calls), s) in open.0.into_iter().zip(streams) {
            if s.calls() == calls {
                s.disarm(&begin);
                lock(&self.0.state).free.push(begin);
                continue;
            }
            let end = lock(&self.0.state).free.pop();
            let end = end.map_or_else(|| s.event(), Ok);
            let recorded = end.and_then(|e| s.record_again(&e).map(|()| e));
            let mut st = lock(&self.0.state);
            let (Ok(end), Some(base)) = (recorded, st.base.clone()) else {
                self.0.lost.fetch_add(1, Relaxed);
                continue;
            };
            if st.waiting.len() >= WAITING {
                self.0.lost.fetch_add(1, Relaxed);
                st.free.extend([begin, end]);
                continue;
            }
            let span = Span {
                name: name(),
                lane: s.name().to_string(),
                work: work(),
                step: st.step,
                from: Duration::ZERO,
                to: Duration::ZERO,
            };
            st.waiting.push(Waiting {
                span,
                base,
                begin,
                end,
            });
        }
    }

    /// Something the host did.
    pub fn host(&self, name: impl Into<String>, from: Duration, to: Duration) {
        if self.0.paused.load(Relaxed) {
            return;
        }
        let mut st = lock(&self.0.state);
        if st.done.len() >= WAITING {
            self.0.lost.fetch_add(1, Relaxed);
            return;
        }
        let step = st.step;
        st.done.push(Span {
            name: name.into(),
            lane: "host".into(),
            work: Work::Host,
            step,
            from,
            to,
        });
    }

    /// The spans that have ended since the last call; waits for nothing.
    pub fn drain(&self) -> Vec<Span> {
        let mut st = lock(&self.0.state);
        let mut done = std::mem::take(&mut st.done);
        for w in std::mem::take(&mut st.waiting) {
            match w.read() {
                Ok(None) => st.waiting.push(w),
                Ok(Some((from, to))) => {
                    done.push(Span { from, to, ..w.span });
                    st.free.extend([w.begin, w.end]);
                }
                // A stream that failed passes no more events.
                Err(_) => {
                    self.0.lost.fetch_add(1, Relaxed);
                }
            }
        }
        let old = st.base.as_ref().is_some_and(|b| b.made.elapsed() > REBASE);
        drop(st);
        if old && let Ok(Some((b, _))) = base(&lock(&self.0.stream), self.0.origin) {
            lock(&self.0.state).base = Some(Arc::new(b));
        }
        done
    }
}

impl Waiting {
    /// Begin and end, once both were passed.
    fn read(&self) -> Result<Option<(Duration, Duration)>> {
        if !self.end.passed()? {
            return Ok(None);
        }
        let since = |e: &Event| -> Result<Duration> {
            let d = self.base.event.elapsed(e)?.unwrap_or_default();
            Ok(self.base.at + d)
        };
        let (from, to) = (since(&self.begin)?, since(&self.end)?);
        Ok(Some((from, to.max(from))))
    }
}
