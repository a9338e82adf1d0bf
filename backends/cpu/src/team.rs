//! The threads of one device: a fork-join team with low latency and a fixed size, so that results never depend on who helped.
//!
//! A run opens a gate; workers that arrive while it is open take tasks from a shared counter, workers that arrive late find it shut and
//! never see the job. So the caller waits only for workers that really entered, and a worker the scheduler forgot costs nothing.

use crate::cores::Cores;
use crate::pace::Pace;
use crossweave_plugin::Host;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A fixed number of threads that run `body(task)` for `task` in `0..n`.
///
/// Workers start at the first run that can use them and end when the team is dropped. A run while the team is busy (another stream of the
/// device, or a nested call) executes on its caller: allowed because kernels split by shape, so who runs a task never changes a bit.
pub struct Team {
    threads: usize,
    cores: Option<Cores>,
    host: Host,
    started: AtomicBool,
    shared: Arc<Shared>,
}

/// One job: valid between the opening of the gate and the exit of the last worker that entered.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    pace: Arc<Pace>,
    /// `epoch << 17 | open << 16 | entered`.
    gate: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    exited: AtomicUsize,
    panicked: Mutex<Option<String>>,
    busy: AtomicBool,
    stop: AtomicBool,
    lock: Mutex<usize>,
    /// Workers asleep; SeqCst against `gate` so that no opening is missed.
    sleepers: AtomicUsize,
    wake: Condvar,
    caller_waits: AtomicBool,
    done: Condvar,
}
// SAFETY: `job` is written only while the gate is shut and nobody is inside, and read only by threads that entered through the gate.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is dereferenced only while its run is in progress.
unsafe impl Send for Shared {}

const OPEN: u64 = 1 << 16;
const ENTERED: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 17;
const SPIN: Duration = Duration::from_micros(15);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// A team of one: everything runs on the caller.
    pub fn solo() -> Team {
        Team::new(1, &Host::none())
    }

    /// A team of `threads` (at least one, the caller included), whose workers are threads of `host`.
    pub fn new(threads: usize, host: &Host) -> Team {
        Team::paced(threads, host, Arc::new(Pace::new()))
    }

    pub(crate) fn paced(threads: usize, host: &Host, pace: Arc<Pace>) -> Team {
        Team {
            threads: threads.clamp(1, ENTERED as usize),
            cores: None,
            host: *host,
            started: AtomicBool::new(false),
            shared: Arc::new(Shared {
                pace,
                gate: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                next: AtomicUsize::new(0),
                exited: AtomicUsize::new(0),
                panicked: Mutex::new(None),
                busy: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                lock: Mutex::new(0),
                sleepers: AtomicUsize::new(0),
                wake: Condvar::new(),
                caller_waits: AtomicBool::new(false),
                done: Condvar::new(),
            }),
        }
    }

    /// The same team, on these cores.
    pub(crate) fn on(mut self, cores: Option<Cores>) -> Team {
        self.cores = cores;
        self
    }

    /// Keeps the calling thread, which is about to be the team's caller, on the team's cores.
    pub(crate) fn settle(&self) {
        if let Some(c) = &self.cores {
            c.settle();
        }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body(i)` for `i` in `0..tasks`, any order, any thread; returns when all are done. Kernels choose `tasks` and the split from
    /// shapes alone (or from `threads()` where the split cannot change a bit of the result). A panic of a task is raised again here.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let s = &*self.shared;
        if tasks <= 1
            || self.threads == 1
            || s.busy
                .compare_exchange(false, true, Acquire, Relaxed)
                .is_err()
        {
            for i in 0..tasks {
                body(i);
            }
            return;
        }
        if !self.started.swap(true, Relaxed) {
            self.start();
        }
        // SAFETY: only the lifetime is erased; the job is withdrawn and everyone inside has left before this function returns.
        let body: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(body) };
        let job = Job { body, tasks };
        // SAFETY: the gate is shut, `busy` is ours and the last run waited for everyone inside.
        unsafe { *s.job.get() = Some(job) };
        s.next.store(0, Relaxed);
        s.exited.store(0, Relaxed);
        let epoch = s.gate.load(Relaxed) / EPOCH + 1;
        s.gate.store((epoch * EPOCH) | OPEN, SeqCst);
        let asleep = s.sleepers.load(SeqCst);
        if asleep > 0 {
            let _guard = lock(&s.lock);
            if tasks > asleep {
                s.wake.notify_all();
            } else {
                (1..tasks).for_each(|_| s.wake.notify_one());
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| work(s, job)));
        // No task is left to hand out, also after a panic of ours.
        s.next.store(tasks, Relaxed);
        let entered = (s.gate.fetch_and(!OPEN, SeqCst) & ENTERED) as usize;
        let all_out = || s.exited.load(SeqCst) == entered;
        if !s.pace.spin(SPIN, all_out) {
            s.caller_waits.store(true, SeqCst);
            let mut guard = lock(&s.lock);
            while !all_out() {
                guard = s.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            drop(guard);
            s.caller_waits.store(false, SeqCst);
        }
        let theirs = lock(&s.panicked).take();
        s.busy.store(false, Release);
        if let Err(payload) = mine {
            std::panic::resume_unwind(payload);
        }
        if let Some(message) = theirs {
            std::panic::resume_unwind(Box::new(message));
        }
    }

    fn start(&self) {
        for _ in 1..self.threads {
            *lock(&self.shared.lock) += 1;
            let (s, cores) = (self.shared.clone(), self.cores.clone());
            let run = move || {
                if let Some(c) = &cores {
                    c.settle();
                }
                serve(&s);
            };
            // A host that cannot start more threads leaves a smaller team: slower, with the same results.
            if self.host.spawn(Box::new(run)).is_err() {
                *lock(&self.shared.lock) -= 1;
                break;
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        let s = &*self.shared;
        let mut live = lock(&s.lock);
        s.stop.store(true, SeqCst);
        s.wake.notify_all();
        while *live > 0 {
            live = s.done.wait(live).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes tasks until none is left.
fn work(s: &Shared, job: Job) {
    // SAFETY: every caller of this is inside the gate (or is the caller itself), so the job's borrow is alive.
    let body = unsafe { &*job.body };
    loop {
        let i = s.next.fetch_add(1, Relaxed);
        if i >= job.tasks {
            return;
        }
        body(i);
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|m| m.to_string()))
        .unwrap_or_else(|| "no message".into())
}

fn serve(s: &Shared) {
    s.pace.wake();
    let mut seen = 0;
    loop {
        let fresh = || {
            let g = s.gate.load(SeqCst);
            g & OPEN != 0 && g / EPOCH != seen
        };
        let stop = || s.stop.load(SeqCst);
        if !s.pace.spin(SPIN, || fresh() || stop()) {
            let mut guard = lock(&s.lock);
            s.sleepers.fetch_add(1, SeqCst);
            s.pace.park();
            while !fresh() && !stop() {
                guard = s.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            s.pace.wake();
            s.sleepers.fetch_sub(1, SeqCst);
        }
        if stop() {
            break;
        }
        let mut g = s.gate.load(SeqCst);
        while g & OPEN != 0 && g / EPOCH != seen {
            if let Err(now) = s.gate.compare_exchange_weak(g, g + 1, SeqCst, SeqCst) {
                g = now;
                continue;
            }
            seen = g / EPOCH;
            // SAFETY: we are inside the gate, so the caller keeps the job until `exited` counts us.
            if let Some(job) = unsafe { *s.job.get() }
                && let Err(p) = catch_unwind(AssertUnwindSafe(|| work(s, job)))
            {
                s.next.store(job.tasks, Relaxed);
                *lock(&s.panicked) = Some(panic_text(&*p));
            }
            s.exited.fetch_add(1, SeqCst);
            if s.caller_waits.load(SeqCst) {
                let _guard = lock(&s.lock);
                s.done.notify_all();
            }
            break;
        }
    }
    s.pace.park();
    let mut live = lock(&s.lock);
    *live -= 1;
    s.done.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once() {
        let team = Team::new(4, &Host::none());
        for tasks in [0usize, 1, 2, 3, 7, 64, 1000] {
            for _ in 0..50 {
                let hits: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|i| {
                    hits[i].fetch_add(1, Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Relaxed) == 1), "{tasks} tasks");
            }
        }
    }

    #[test]
    fn nested_and_crowded_runs_finish() {
        // Eight teams of four on however few cores there are, each run from two threads at once and nested.
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    let team = Team::new(4, &Host::none());
                    let sum = AtomicUsize::new(0);
                    std::thread::scope(|s| {
                        for _ in 0..2 {
                            s.spawn(|| {
                                for _ in 0..200 {
                                    team.run(8, &|_| {
                                        team.run(3, &|j| {
                                            sum.fetch_add(j, Relaxed);
                                        })
                                    });
                                }
                            });
                        }
                    });
                    assert_eq!(sum.load(Relaxed), 2 * 200 * 8 * 3);
                });
            }
        });
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_team_lives() {
        let team = Team::new(3, &Host::none());
        for bad in 0..8 {
            let r = catch_unwind(AssertUnwindSafe(|| {
                team.run(8, &|i| assert!(i != bad, "task {i} broke"))
            }));
            assert!(panic_text(&*r.unwrap_err()).contains("broke"));
        }
        let n = AtomicUsize::new(0);
        team.run(100, &|_| {
            n.fetch_add(1, Relaxed);
        });
        assert_eq!(n.load(Relaxed), 100);
    }
}
