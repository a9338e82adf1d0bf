//! Queues of host work. A stream's work runs in order on its progress thread, or, on a stream of the lowest priority, in the thread that
//! waits for it: a host that already stands on a stream thread of another device wants no second one.

use crossweave_plugin::{Code, Error, Host, Result, fail};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a destroyed stream goes on waiting for other ranks before it gives its work up.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// One piece of work; it receives an earlier failure of the stream.
pub(crate) type Work = Box<dyn FnOnce(Option<&Error>) -> Result<()> + Send>;

struct State {
    queue: VecDeque<Work>,
    pushed: u64,
    done: u64,
    /// Somebody runs the front of the queue.
    driven: bool,
    /// Who.
    runs: Option<ThreadId>,
    /// The progress thread exists.
    thread: bool,
    /// It sleeps.
    idle: bool,
    /// The first piece of work anybody sleeps for: those before it wake nobody.
    wanted: u64,
    closing: bool,
    failure: Option<(u64, Error)>,
}

impl Default for State {
    fn default() -> State {
        State {
            queue: VecDeque::new(),
            pushed: 0,
            done: 0,
            driven: false,
            runs: None,
            thread: false,
            idle: false,
            wanted: u64::MAX,
            closing: false,
            failure: None,
        }
    }
}

/// What the handle, the thread and events share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// For the progress thread: there may be something to do.
    work: Condvar,
    /// For the threads that wait: what they wait for is done.
    passed: Condvar,
    /// The stream is being destroyed, and has waited for others long enough.
    abandoned: Arc<AtomicBool>,
}

fn lock(m: &Mutex<State>) -> MutexGuard<'_, State> {
    // Every value is replaced whole, so what a panicking thread held is usable.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Runs the front of the queue. `false` = nothing to do, or somebody else is at it.
    fn step(&self) -> bool {
        let mut st = lock(&self.state);
        if st.driven {
            return false;
        }
        let Some(work) = st.queue.pop_front() else {
            return false;
        };
        st.driven = true;
        st.runs = Some(std::thread::current().id());
        let seq = st.done + 1;
        let before = st.failure.as_ref().map(|(_, e)| e.clone());
        drop(st);
        let run = std::panic::AssertUnwindSafe(|| work(before.as_ref()));
        let result = std::panic::catch_unwind(run)
            .unwrap_or_else(|_| fail(Code::Panic, "work of an mpi stream panicked; this is a bug"));
        let mut st = lock(&self.state);
        (st.driven, st.runs) = (false, None);
        st.done = seq;
        if let (Err(e), None) = (result, &st.failure) {
            st.failure = Some((seq, e.sticky()));
        }
        if st.wanted <= seq {
            // Who goes on sleeping says so again.
            st.wanted = u64::MAX;
            self.passed.notify_all();
        }
        if st.idle && (st.closing || !st.queue.is_empty()) {
            self.work.notify_one();
        }
        true
    }

    /// The progress thread.
    fn serve(&self) {
        loop {
            while self.step() {}
            let mut st = lock(&self.state);
            if st.closing && st.queue.is_empty() {
                return;
            }
            if st.queue.is_empty() || st.driven {
                st.idle = true;
                let mut st = self.work.wait(st).unwrap_or_else(PoisonError::into_inner);
                st.idle = false;
            }
        }
    }

    fn at(&self, seq: u64) -> Result<bool> {
        let st = lock(&self.state);
        match &st.failure {
            Some((at, e)) if *at <= seq => Err(e.clone()),
            _ => Ok(st.done >= seq),
        }
    }

    /// `give_up`: turns true when waiting has become pointless.
    fn wait(
        &self,
        seq: u64,
        timeout: Option<Duration>,
        give_up: Option<&AtomicBool>,
    ) -> Result<()> {
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut st = lock(&self.state);
        while st.done < seq {
            let left = end.map(|e| e.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return fail(
                    Code::Timeout,
                    format!("the stream has not come so far within {timeout:?}"),
                );
            }
            if give_up.is_some_and(|g| g.load(SeqCst)) {
                return fail(
                    Code::Aborted,
                    "the stream was destroyed while it waited for an event",
                );
            }
            st.wanted = st.wanted.min(seq);
            // A pause that is never long: the thread may have been asked for after the wait began.
            let most = Duration::from_millis(if give_up.is_some() { 20 } else { 1000 });
            let pause = left.unwrap_or(most).min(most);
            let woken = self.passed.wait_timeout(st, pause);
            st = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(st);
        self.at(seq).map(|_| ())
    }
}

/// An in-order queue.
pub struct Stream {
    shared: Arc<Shared>,
    host: Host,
    /// Work waits for the thread that waits for it.
    lazy: bool,
}

impl Stream {
    pub(crate) fn new(host: Host, priority: i32) -> Stream {
        Stream {
            shared: Arc::default(),
            host,
            lazy: priority == i32::MIN,
        }
    }

    /// Enqueues.
    pub(crate) fn push(&self, work: Work) -> Result<u64> {
        let mut st = lock(&self.shared.state);
        if let Some((_, e)) = &st.failure {
            return Err(e.clone());
        }
        if !self.lazy {
            // Before the work is queued: where no thread can be had, nothing is left behind for one.
            self.wake(&mut st)?;
        }
        st.queue.push_back(work);
        st.pushed += 1;
        Ok(st.pushed)
    }

    /// Makes sure that a thread works on the queue. It takes the lock that the caller holds before it looks.
    fn wake(&self, st: &mut State) -> Result<()> {
        if st.thread {
            if st.idle {
                self.shared.work.notify_one();
            }
            return Ok(());
        }
        let shared = self.shared.clone();
        self.host.spawn(Box::new(move || shared.serve()))?;
        st.thread = true;
        Ok(())
    }

    /// Turns true when its work is to give up waiting for others.
    pub(crate) fn abandoned(&self) -> Arc<AtomicBool> {
        self.shared.abandoned.clone()
    }

    fn pushed(&self) -> u64 {
        lock(&self.shared.state).pushed
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let done = self.shared.at(self.pushed())?;
        if !done && self.lazy {
            self.wake(&mut lock(&self.shared.state))?;
        }
        Ok(done)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let seq = self.pushed();
        // What runs here has a timeout of its own.
        while self.lazy && self.shared.step() {}
        self.shared.wait(seq, timeout, None)
    }
}

impl Drop for Stream {
    /// Runs what is queued to its end, since its memory may be freed next; only waits for other ranks are cut short, after `CLOSE_GRACE`.
    fn drop(&mut self) {
        let s = &self.shared;
        {
            let mut st = lock(&s.state);
            st.closing = true;
            // Also a lazy stream's rest is for a thread, so that there is somebody to cut it short.
            if st.done < st.pushed && self.wake(&mut st).is_err() {
                drop(st);
                while s.step() {}
            }
        }
        s.work.notify_all();
        let since = Instant::now();
        let mut st = lock(&s.state);
        // Dropped by its own work, which nobody else can end.
        let own = st.runs == Some(std::thread::current().id());
        while !own && st.done < st.pushed {
            if since.elapsed() > CLOSE_GRACE {
                s.abandoned.store(true, SeqCst);
            }
            st.wanted = st.wanted.min(st.pushed);
            let woken = s.passed.wait_timeout(st, Duration::from_millis(20));
            st = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A point in a stream; the latest record counts.
#[derive(Default)]
pub struct Event(Mutex<Option<(Arc<Shared>, u64)>>);

impl Event {
    fn point(&self) -> Option<(Arc<Shared>, u64)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    pub(crate) fn record(&self, s: &Stream) -> Result<()> {
        s.query()?;
        let point = Some((s.shared.clone(), s.pushed()));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = point;
        Ok(())
    }
    pub(crate) fn query(&self) -> Result<bool> {
        self.point().map_or(Ok(true), |(s, seq)| s.at(seq))
    }
    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        self.point()
            .map_or(Ok(()), |(s, seq)| s.wait(seq, timeout, None))
    }
    pub(crate) fn wait_on(&self, s: &Stream) -> Result<()> {
        let Some((other, seq)) = self.point() else {
            return Ok(());
        };
        if Arc::ptr_eq(&other, &s.shared) {
            return Ok(());
        }
        let abandoned = s.abandoned();
        s.push(Box::new(move |_| other.wait(seq, None, Some(&abandoned))))
            .map(|_| ())
    }
}
