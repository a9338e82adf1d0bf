//! Streams and events. A stream is a queue served by a thread of its own; a failure is sticky: later commands are passed without being
//! run, so that waiters are released, and every later call reports it.

use crate::oom;
use crossweave_plugin::{Code, Error, HostCall, Result, fail};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a stream that waits for another one looks whether it is being destroyed itself, and how long it then goes on waiting.
const LOOK: Duration = Duration::from_millis(20);
const GRACE: Duration = Duration::from_secs(1);

/// Gets the stream's state so far, answers the state from now on.
type Command = Box<dyn FnOnce(Result<()>) -> Result<()> + Send>;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // No state here is ever left half changed.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Queue {
    commands: VecDeque<Command>,
    pushed: u64,
    passed: u64,
    state: Result<()>,
    closed: Option<Instant>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// An in-order queue.
pub struct Stream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub fn new() -> Result<Stream> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                commands: VecDeque::new(),
                pushed: 0,
                passed: 0,
                state: Ok(()),
                closed: None,
            }),
            changed: Condvar::new(),
        });
        let mine = shared.clone();
        let thread = std::thread::Builder::new()
            .name("softdev".into())
            .spawn(move || serve(&mine));
        let thread = thread.map_err(|e| oom(format!("the system gives no more threads: {e}")))?;
        Ok(Stream {
            shared,
            thread: Some(thread),
        })
    }

    fn append(&self, always: bool, command: Command) -> Result<()> {
        let mut q = lock(&self.shared.queue);
        if !always {
            q.state.clone()?;
        }
        q.commands.push_back(command);
        q.pushed += 1;
        drop(q);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Work that cannot fail but by a panic.
    pub fn push(&self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.append(false, Box::new(move |state| state.map(|()| work())))
    }

    /// Work that waits for others: it gets the stream's state, learns from its second argument when the stream is given up, and may fail.
    pub fn run(
        &self,
        work: impl FnOnce(Result<()>, &dyn Fn() -> bool) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let own = self.shared.clone();
        let given_up = move || {
            let closed = lock(&own.queue).closed;
            closed.is_some_and(|at| at.elapsed() > GRACE)
        };
        self.append(false, Box::new(move |state| work(state, &given_up)))
    }

    /// In its turn, also after a failure.
    pub fn call(&self, f: HostCall) -> Result<()> {
        self.append(
            true,
            Box::new(move |state| {
                f(state.clone());
                state
            }),
        )
    }

    pub fn query(&self) -> Result<bool> {
        let q = lock(&self.shared.queue);
        q.state.clone().map(|()| q.passed == q.pushed)
    }

    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let q = lock(&self.shared.queue);
        let target = q.pushed;
        let q = wait(&self.shared.changed, q, timeout, |q| q.passed >= target);
        q.state.clone()?;
        if q.passed < target {
            return fail(
                Code::Timeout,
                format!("the stream was not done within {timeout:?}"),
            );
        }
        Ok(())
    }
}

impl Drop for Stream {
    /// What is queued runs to its end; only waits for others are cut short.
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = Some(Instant::now());
        self.shared.changed.notify_all();
        if let Some(t) = self.thread.take() {
            // A panic of the thread has been turned into the stream's state already.
            let _ = t.join();
        }
    }
}

/// Until `done`, or the time is over.
fn wait<'a, T>(
    c: &Condvar,
    g: MutexGuard<'a, T>,
    timeout: Option<Duration>,
    done: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    match timeout {
        None => c
            .wait_while(g, |x| !done(x))
            .unwrap_or_else(PoisonError::into_inner),
        Some(t) => {
            c.wait_timeout_while(g, t, |x| !done(x))
                .unwrap_or_else(PoisonError::into_inner)
                .0
        }
    }
}

fn serve(s: &Shared) {
    let mut q = lock(&s.queue);
    loop {
        q = wait(&s.changed, q, None, |q| {
            !q.commands.is_empty() || q.closed.is_some()
        });
        let Some(command) = q.commands.pop_front() else {
            return;
        };
        let state = q.state.clone();
        drop(q);
        let after = catch_unwind(AssertUnwindSafe(|| command(state))).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
            fail(
                Code::Panic,
                text.unwrap_or_else(|| "a panic without text".into()),
            )
        });
        q = lock(&s.queue);
        if q.state.is_ok() {
            q.state = after;
        }
        q.passed += 1;
        s.changed.notify_all();
    }
}

/// One record of an event: how the stream stood when it passed it, and when.
#[derive(Default)]
struct Mark {
    passed: Mutex<Option<(Result<()>, Instant)>>,
    changed: Condvar,
}

/// A point in a stream. Each record makes a mark of its own, so that a later record moves no wait.
#[derive(Default)]
pub struct Event {
    latest: Mutex<Option<Arc<Mark>>>,
}

impl Event {
    fn mark(&self) -> Option<Arc<Mark>> {
        lock(&self.latest).clone()
    }

    pub fn record(&self, s: &Stream) -> Result<()> {
        let mark = Arc::new(Mark::default());
        let passing = mark.clone();
        // The lock is held over the append: a wait on another thread sees the record whole or not at all.
        let mut latest = lock(&self.latest);
        s.append(
            false,
            Box::new(move |state| {
                *lock(&passing.passed) = Some((state.clone(), Instant::now()));
                passing.changed.notify_all();
                state
            }),
        )?;
        *latest = Some(mark);
        Ok(())
    }

    /// `None`: not within the time.
    fn outcome(&self, timeout: Option<Duration>) -> Option<Result<()>> {
        let Some(m) = self.mark() else {
            return Some(Ok(()));
        };
        let passed = wait(&m.changed, lock(&m.passed), timeout, Option::is_some);
        passed.as_ref().map(|(state, _)| state.clone())
    }

    pub fn query(&self) -> Result<bool> {
        match self.outcome(Some(Duration::ZERO)) {
            Some(state) => state.map(|()| true),
            None => Ok(false),
        }
    }

    pub fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        match self.outcome(timeout) {
            Some(state) => state,
            None => fail(
                Code::Timeout,
                format!("the record was not passed within {timeout:?}"),
            ),
        }
    }

    pub fn passed_at(&self) -> Option<Instant> {
        let m = self.mark()?;
        let passed = lock(&m.passed);
        passed.as_ref().map(|(_, at)| *at)
    }

    /// Later work of `s` waits for the latest record before this call.
    pub fn hold(&self, s: &Stream) -> Result<()> {
        let Some(m) = self.mark() else {
            return Ok(());
        };
        let own = s.shared.clone();
        s.append(
            false,
            Box::new(move |state| {
                state?;
                loop {
                    if let Some((state, _)) =
                        &*wait(&m.changed, lock(&m.passed), Some(LOOK), Option::is_some)
                    {
                        return state.clone();
                    }
                    if lock(&own.queue)
                        .closed
                        .is_some_and(|at| at.elapsed() > GRACE)
                    {
                        return Err(Error::new(
                            Code::Aborted,
                            "the stream was destroyed while it waited for an event",
                        ));
                    }
                }
            }),
        )
    }
}
