//! A thread for each rank of this process, which does what it is asked for. The first failure stops them all; a rank whose device or plugin
//! does not come back from the abort is left behind, so that the job ends.

use crate::events::Event;
use crate::gate::Shared;
use crate::prepared::Run;
use crate::processes::Voice;
use crate::rank::{self, Answer, Ended, Order};
use crate::train_error::TrainError;
use crossweave_hal::{Awake, Code, Error};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A rank that has not ended so long after the failure of one does not end: what it may wait for has all ended long before.
const LAST: Duration = Duration::from_secs(20);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// A message from the thread of a rank.
enum Report {
    /// It has done what it was asked for.
    Answer(Answer),
    /// It has ended, and leaves this where it has not failed.
    Ended(Option<Box<Ended>>),
}

/// The ranks of this process, each on a thread of its own.
pub struct Threads {
    run: Arc<Run>,
    shared: Arc<Shared>,
    orders: Vec<Sender<Order>>,
    reports: Receiver<(u32, Report)>,
    open: Vec<(u32, JoinHandle<()>)>,
    ends: Vec<Ended>,
    /// Something that was asked for may not be done yet; at first their start.
    busy: bool,
    /// Since when the threads are waited for after a failure.
    clock: Option<Awake>,
}

impl Threads {
    /// Starts them. A rank that fails or panics is recorded in `shared`, which stops the others.
    pub fn start(run: &Arc<Run>, shared: &Arc<Shared>, voice: Option<&Voice>) -> Threads {
        let (report, reports) = channel();
        let mut threads = Threads {
            run: run.clone(),
            shared: shared.clone(),
            orders: vec![],
            reports,
            open: vec![],
            ends: vec![],
            busy: true,
            clock: None,
        };
        for rank in run.local_ranks.here() {
            let (order, orders) = channel();
            let (run, shared) = (run.clone(), shared.clone());
            let (voice, report) = (voice.cloned(), report.clone());
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            let body = move || one(&run, &shared, voice.as_ref(), rank, (&orders, &report));
            match thread.spawn(body) {
                Ok(thread) => {
                    threads.open.push((rank, thread));
                    threads.orders.push(order);
                }
                Err(e) => {
                    let what = format!("cannot start a thread for rank {rank}: {e}");
                    let fix = "run with fewer ranks here, or raise the limits of the process (ulimit -u of threads, -v of memory)";
                    threads.shared.fail(TrainError::refused(what, fix));
                    break;
                }
            }
        }
        threads
    }

    /// Asks every rank for the same. What was asked before is done first.
    pub fn order(&mut self, order: &Order) {
        self.busy = true;
        for rank in &self.orders {
            // One that has ended has failed, which is seen where its answer is waited for.
            let _ = rank.send(order.clone());
        }
    }

    /// Asks every rank for the same, and waits until all have done it: the answer of the first of them. None after a failure, when all have
    /// ended.
    pub fn ask(&mut self, order: &Order) -> Option<Answer> {
        self.order(order);
        let mut first: Option<(u32, Answer)> = None;
        let mut left = self.run.local_ranks.here().len();
        while left > 0 {
            match self.next()? {
                (rank, Report::Answer(answer)) => {
                    left -= 1;
                    if first.as_ref().is_none_or(|(r, _)| rank < *r) {
                        first = Some((rank, answer));
                    }
                }
                (_, Report::Ended(_)) => {
                    // Nothing ends before it has answered but by a failure.
                    self.wait();
                    return None;
                }
            }
        }
        self.busy = false;
        first.map(|(_, answer)| answer)
    }

    /// Waits until all have ended: what each of them leaves that has not failed. Nothing more can be asked for.
    pub fn wait(&mut self) -> Vec<Ended> {
        self.orders.clear();
        while self.next().is_some() {}
        std::mem::take(&mut self.ends)
    }

    /// Receives the next message of any rank; none when all have ended, or are left behind.
    fn next(&mut self) -> Option<(u32, Report)> {
        while !self.open.is_empty() {
            match self.reports.recv_timeout(LOOK) {
                Ok((rank, Report::Ended(end))) => {
                    // It has nothing more to do, and what it shares, such as the claim of the run's folder, is then the caller's alone.
                    if let Some(at) = self.open.iter().position(|(r, _)| *r == rank) {
                        let _ = self.open.swap_remove(at).1.join();
                    }
                    self.ends.extend(end.map(|e| *e));
                    return Some((rank, Report::Ended(None)));
                }
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => break,
                // A save that was begun is finished.
                Err(RecvTimeoutError::Timeout)
                    if !self.shared.has_failed() || self.shared.saving() =>
                {
                    self.clock = None;
                }
                Err(RecvTimeoutError::Timeout) => {
                    // Those that wait to be asked end by this.
                    self.orders.clear();
                    let clock = self.clock.get_or_insert_with(|| Awake::new(LAST));
                    if clock.pause().is_zero() {
                        self.leave();
                    }
                }
            }
        }
        None
    }

    /// Leaves the ranks behind that do not end.
    fn leave(&mut self) {
        let open = std::mem::take(&mut self.open);
        let ranks: Vec<u32> = open.iter().map(|(rank, _)| *rank).collect();
        let (who, them) = match ranks[..] {
            [rank] => (format!("rank {rank} has"), "it"),
            _ => (format!("ranks {ranks:?} have"), "them"),
        };
        let what = format!(
            "{who} not ended {} s after the failure: a device or plugin does not come back from the abort; \
             this process ends without {them}",
            LAST.as_secs()
        );
        self.run.on(Event::Warning(&what));
    }
}

/// Ranks that are still at work are stopped; all are waited for. What they have begun to save is finished.
impl Drop for Threads {
    fn drop(&mut self) {
        if self.busy && !self.open.is_empty() {
            let why = "the trainer was dropped";
            self.shared
                .fail(TrainError::Hal(Error::new(Code::Aborted, "trainer", why)));
        }
        self.wait();
    }
}

/// Records the failure of a rank of `here` in this process, and reports it to the other processes.
pub fn failed(shared: &Shared, voice: Option<&Voice>, (rank, here): (u32, usize), e: TrainError) {
    // The death of a process breaks its peers' collectives before the news of it comes.
    let follows = voice.filter(|_| e.may_follow(rank));
    if let Some(cause) = follows.and_then(Voice::cause) {
        return shared.fail(TrainError::elsewhere(&cause));
    }
    let Some(voice) = voice else {
        return shared.fail(e);
    };
    let words = e.to_string();
    let e = TrainError::on_rank(rank, e);
    let (said, news, lost) = (e.to_string(), !e.is_secondary(), e.is_lost());
    shared.fail(e);
    match here {
        _ if !news => {}
        1 => voice.print_failure(&said),
        // The other ranks of this process may take a while, and the others see already that this one is gone.
        _ => voice.report(rank, &said, (&words, lost)),
    }
}

/// The thread of a rank.
fn one(
    run: &Run,
    shared: &Arc<Shared>,
    voice: Option<&Voice>,
    rank: u32,
    (orders, report): (&Receiver<Order>, &Sender<(u32, Report)>),
) {
    let here = run.local_ranks.here().len();
    let fail = |e: TrainError| failed(shared, voice, (rank, here), e);
    // Nobody takes what a rank says that was left behind.
    let answer = |answer| drop(report.send((rank, Report::Answer(answer))));
    let body = AssertUnwindSafe(|| rank::run(run, shared, rank, (orders, &answer), &fail));
    let end = catch_unwind(body).unwrap_or_else(|_| {
        fail(rank::panicked(rank));
        None
    });
    let _ = report.send((rank, Report::Ended(end.map(Box::new))));
}
