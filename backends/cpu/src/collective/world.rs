//! What the ranks of one communicator share: who is there, where everyone is, what went wrong, and how to wait for each other.
//!
//! A rank *arrives* at a round by saying so on its own card; a round goes ahead exactly when all have arrived. A rank that stops waiting
//! *freezes* the cards of the round first: an arrival and a freeze of one card exclude each other, and what was there when a card froze stays
//! there, so "go" and "fail" exclude each other and every rank sees the same decision. That is what makes
//! it safe to leave a failed round at once: no peer can be touching our buffers. In a round that went ahead nobody leaves before all are
//! through, and that wait is unconditional because the work between is finite. A small round needs none of this: nobody touches another's
//! buffers in it, each rank decides from the others' flags, and who has failed takes no further part.

use super::mail::Mail;
use super::round::{Line, Slot};
use crate::pace::Pace;
use crate::schedule::Turn;
use crate::stream::lock;
use crossweave_plugin::{Awake, Code, Error, GroupRank, Members, Result, fail};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const SPIN: Duration = Duration::from_micros(2);
const YIELD: Duration = Duration::from_micros(100);
const POLL: Duration = Duration::from_millis(20);

/// Why a wait ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The communicator has failed already.
    Failed,
    /// This rank destroyed its communicator and will never come.
    Gone(usize),
    /// The timeout passed.
    Late,
    /// Our own stream is being destroyed.
    Abandoned,
}

/// How long one launch may wait, and for what it should stop early.
pub(super) struct Patience<'a> {
    pub(super) timeout: Duration,
    pub(super) abandoned: &'a dyn Fn() -> bool,
}

/// A split under way.
struct Split {
    /// Colour and key of the ranks that have come.
    entries: Vec<Option<(Option<i32>, i32)>>,
    children: HashMap<i32, Arc<World>>,
    /// Ranks that have their answer.
    taken: usize,
}

pub(super) struct World {
    pub(super) name: String,
    /// The members by their ranks in the job.
    pub(super) members: Members,
    pub(super) slots: Vec<Slot>,
    pub(super) mail: Mail,
    pub(super) pace: Arc<Pace>,
    pub(super) timeout: Duration,
    born: Mutex<Awake>,
    joined: AtomicU32,
    failed: Line<AtomicBool>,
    failure: Mutex<Option<Error>>,
    parked: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
    splits: Mutex<HashMap<u64, Split>>,
    turn: Option<Turn>,
}

impl World {
    pub(super) fn new(
        n: usize,
        name: String,
        members: Members,
        timeout: Duration,
        pace: Arc<Pace>,
        turn: Option<Turn>,
    ) -> World {
        World {
            name,
            members,
            turn,
            slots: (0..n).map(|_| Slot::default()).collect(),
            mail: Mail::new(n),
            pace,
            timeout,
            born: Mutex::new(Awake::new(timeout)),
            joined: AtomicU32::new(0),
            failed: Line::default(),
            failure: Mutex::new(None),
            parked: AtomicU32::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            splits: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn ranks(&self) -> usize {
        self.slots.len()
    }

    /// Takes a place.
    pub(super) fn join(&self, rank: usize) -> Result<()> {
        if self.slots[rank].joined.swap(true, SeqCst) {
            return fail(
                Code::Invalid,
                format!(
                    "communicator {}: {} has joined already",
                    self.name,
                    self.members.of(rank)
                ),
            );
        }
        self.joined.fetch_add(1, SeqCst);
        self.notify();
        Ok(())
    }

    /// The last trace of a rank (its handle and its queued work) is gone.
    pub(super) fn leave(&self, rank: usize) {
        self.slots[rank].gone.store(true, SeqCst);
        self.notify();
    }

    pub(super) fn connected(&self) -> bool {
        self.joined.load(SeqCst) as usize == self.ranks()
    }

    /// Fails once the time for connecting is over.
    pub(super) fn check_connecting(&self) {
        if !self.connected() && lock(&self.born).is_over() {
            let missing = self.listed(|s| !s.joined.load(SeqCst));
            self.fail(
                self.error(
                    Code::Timeout,
                    format!(
                        "{} did not join within {:?}",
                        self.members.list(missing.iter().copied()),
                        self.timeout
                    ),
                )
                .peer(missing.first().copied().unwrap_or(GroupRank(0))),
            );
        }
    }

    pub(super) fn listed(&self, pick: impl Fn(&Slot) -> bool) -> Vec<GroupRank> {
        let which = self.slots.iter().enumerate().filter(|(_, s)| pick(s));
        which.map(|(r, _)| r.into()).collect()
    }

    pub(super) fn error(&self, code: Code, what: String) -> Error {
        Error::new(code, format!("communicator {}: {what}", self.name)).sticky()
    }

    pub(super) fn failed(&self) -> bool {
        self.failed.0.load(SeqCst)
    }

    /// The failure, if there is one.
    pub(super) fn health(&self) -> Result<()> {
        if !self.failed() {
            return Ok(());
        }
        match lock(&self.failure).clone() {
            Some(e) => Err(e),
            None => fail(Code::Internal, "a communicator failed without a reason"),
        }
    }

    /// Marks and releases; the first reason stays.
    pub(super) fn fail(&self, e: Error) {
        lock(&self.failure).get_or_insert(e);
        self.failed.0.store(true, SeqCst);
        self.notify();
    }

    /// Says that the caller has come to a round that is decided in common; an error when the round has failed (then it does not count).
    pub(super) fn arrive(&self, rank: usize, round: u64) -> Result<()> {
        if !self.slots[rank].arrive(round) {
            return self.health();
        }
        if self.all_in(round) {
            self.notify();
        }
        Ok(())
    }

    /// Have all arrived?
    pub(super) fn all_in(&self, round: u64) -> bool {
        self.slots.iter().all(|s| s.arrived(round))
    }

    /// Had all arrived? If not, they never will: the first who is missing arrives no more.
    pub(super) fn freeze(&self, round: u64) -> bool {
        self.slots.iter().all(|s| s.freeze(round))
    }

    /// Wakes every rank that sleeps here; a load when nobody does.
    pub(super) fn notify(&self) {
        if self.parked.load(SeqCst) > 0 {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }

    /// Wakes every rank that sleeps here and waits for what this rank has said since it last did; said without an order of its own, so that only
    /// this must be seen before the sleepers are counted.
    pub(super) fn spoken(&self) {
        fence(SeqCst);
        self.notify();
    }

    /// Waits for something that is certain to come.
    pub(super) fn wait(&self, ready: &dyn Fn() -> bool, what: &dyn Fn() -> String) {
        if let Some(t) = &self.turn {
            // Peers may still be in our memory: a schedule that has ended leaves the wait below.
            let _ = t.wait(ready, what);
        }
        self.park_until(ready, &|| None);
    }

    /// Waits for `ready`, or for a reason to stop; `what` names, in a schedule's account, what is waited for.
    pub(super) fn wait_or(
        &self,
        ready: &dyn Fn() -> bool,
        stop: &dyn Fn() -> Option<Cause>,
        what: &dyn Fn() -> String,
    ) -> Option<Cause> {
        if let Some(t) = &self.turn
            && let Err(e) = t.wait(&|| ready() || stop().is_some(), what)
        {
            self.fail(e);
            return Some(Cause::Failed);
        }
        self.park_until(ready, stop)
    }

    fn park_until(
        &self,
        ready: &dyn Fn() -> bool,
        stop: &dyn Fn() -> Option<Cause>,
    ) -> Option<Cause> {
        if self.pace.spin(SPIN, ready) {
            return None;
        }
        let start = Instant::now();
        while start.elapsed() < YIELD {
            for _ in 0..8 {
                std::thread::yield_now();
                if ready() {
                    return None;
                }
            }
        }
        self.parked.fetch_add(1, SeqCst);
        self.pace.park();
        let mut guard = lock(&self.lock);
        let cause = loop {
            if ready() {
                break None;
            }
            if let Some(c) = stop() {
                break Some(c);
            }
            guard = self
                .wake
                .wait_timeout(guard, POLL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        drop(guard);
        self.pace.wake();
        self.parked.fetch_sub(1, SeqCst);
        cause
    }

    /// A reason to stop waiting for `awaited` ranks; `gone` names one that has left.
    pub(super) fn reason<'a>(
        &'a self,
        patience: &'a Patience<'_>,
        gone: impl Fn() -> Option<usize> + 'a,
    ) -> impl Fn() -> Option<Cause> + 'a {
        // The clock is read when somebody is waited for in earnest.
        let clock = Cell::new(None);
        move || {
            let mut since = clock.get().unwrap_or_else(|| Awake::new(patience.timeout));
            let over = since.is_over();
            clock.set(Some(since));
            if self.failed() {
                Some(Cause::Failed)
            } else if let Some(r) = gone() {
                Some(Cause::Gone(r))
            } else if (patience.abandoned)() {
                Some(Cause::Abandoned)
            } else {
                // Under a schedule no clock decides, and nobody comes late.
                (over && self.turn.is_none()).then_some(Cause::Late)
            }
        }
    }

    /// Splits by colour, ordered by (key, old rank): the child world and our rank in it. Every rank must call it, in the same order of splits.
    pub(super) fn split(
        &self,
        rank: usize,
        number: u64,
        color: Option<i32>,
        key: i32,
        timeout: Duration,
        name: &str,
    ) -> Result<Option<(Arc<World>, usize)>> {
        self.health()?;
        let n = self.ranks();
        {
            let mut splits = lock(&self.splits);
            let s = splits.entry(number).or_insert_with(|| Split {
                entries: vec![None; n],
                children: HashMap::new(),
                taken: 0,
            });
            s.entries[rank] = Some((color, key));
        }
        self.notify();
        let present = |r: usize| {
            lock(&self.splits)
                .get(&number)
                .is_some_and(|s| s.entries[r].is_some())
        };
        let ready = || (0..n).all(present);
        let patience = Patience {
            timeout,
            abandoned: &|| false,
        };
        let gone = || (0..n).find(|r| self.slots[*r].gone.load(SeqCst) && !present(*r));
        let missing = || -> Vec<GroupRank> {
            let absent = (0..n).filter(|r| !present(*r));
            absent.map(GroupRank::from).collect()
        };
        let what = || {
            let missing = self.members.list(missing());
            format!("waits in split {number} of {} for {missing}", self.name)
        };
        if let Some(cause) = self.wait_or(&ready, &self.reason(&patience, gone), &what) {
            let missing = missing();
            return Err(match cause {
                Cause::Failed => return self.health().map(|_| None),
                Cause::Gone(r) => self
                    .error(
                        Code::Comm,
                        format!(
                            "{} destroyed its communicator while {} split it",
                            self.members.of(r),
                            self.members.of(rank)
                        ),
                    )
                    .peer(r.into()),
                _ => self
                    .error(
                        Code::Timeout,
                        format!(
                            "{} did not take part in split {number} within {timeout:?}",
                            self.members.list(missing.iter().copied())
                        ),
                    )
                    .peer(missing.first().copied().unwrap_or(GroupRank(0))),
            });
        }
        let mut splits = lock(&self.splits);
        let Some(split) = splits.get_mut(&number) else {
            return fail(Code::Internal, "a split ended before everyone took part");
        };
        let answer = color.map(|color| {
            let mut members: Vec<(i32, usize)> = split
                .entries
                .iter()
                .enumerate()
                .filter_map(|(r, e)| e.and_then(|(c, k)| (c == Some(color)).then_some((k, r))))
                .collect();
            members.sort_unstable();
            let child = split.children.entry(color).or_insert_with(|| {
                let name = match name {
                    "" => format!("{}/{color}", self.name),
                    given => given.to_string(),
                };
                let (pace, turn) = (self.pace.clone(), self.turn.clone());
                let ranks = self.members.some(members.iter().map(|(_, r)| (*r).into()));
                let n = members.len();
                Arc::new(World::new(n, name, ranks, timeout, pace, turn))
            });
            let mine = members.iter().position(|(_, r)| *r == rank).unwrap_or(0);
            (child.clone(), mine)
        });
        split.taken += 1;
        if split.taken == n {
            splits.remove(&number);
        }
        Ok(answer)
    }
}
