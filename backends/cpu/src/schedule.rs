//! One thread at a time, in an order that a seed decides: how parallel code is explored, and a failure of it replayed.
//!
//! With `cpu.schedule` set, the devices opened while it holds form one schedule (`cpu.schedule_ranks` of them). Its actors are the hosts
//! of these devices (whichever thread calls for one) and the threads of their streams. An actor runs only while it holds the turn, and
//! gives it away only at points of the interface: behind an enqueue, before a stream's next command, in every wait. An actor that waits
//! is not runnable until what it waits for holds, so "nobody can run" is a deadlock and is reported at once, with who waits for what. Time
//! does not pass: timeouts are never over, because no clock decides who is next. Workers of a team belong to the actor they help.
//!
//! The same seed gives the same sequence of decisions as long as the ranks' own code is a function of what they read; [`Schedule::account`]
//! has its hash. Without the option nothing of this is reached: one test of a `None` at each point.

mod policy;

pub(crate) use policy::Policy;

use crate::stream::lock;
use crossweave_plugin::{Code, Error, Host, Result};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long the holder of the turn may stay away from every point before it is taken for stuck outside.
const STUCK: Duration = Duration::from_secs(120);
/// How often those who wait look whether the holder is stuck.
const LOOK: Duration = Duration::from_secs(1);
/// Turns in a row that were only given away by polls before polling counts as waiting.
const POLLS: u32 = 10_000;

/// What an actor waits for, and how to say it: closures on its stack, which stays while it waits.
#[derive(Clone, Copy)]
struct Wait {
    ready: *const dyn Fn() -> bool,
    what: *const dyn Fn() -> String,
    /// A stream without work: nobody's deadlock.
    idle: bool,
}
// SAFETY: dereferenced under the schedule's lock only, while the actor that owns the closures is held in `wait`.
unsafe impl Send for Wait {}

#[derive(Clone, Copy)]
enum Status {
    /// A host that has not called yet.
    Absent,
    Ready,
    Waiting(Wait),
    Gone,
}

struct Actor {
    name: String,
    status: Status,
    bell: Arc<Condvar>,
    thread: Option<ThreadId>,
}

struct State {
    actors: Vec<Actor>,
    current: Option<usize>,
    begun: bool,
    /// Decisions made, and those that changed who runs.
    points: u64,
    switches: u64,
    hash: u64,
    policy: policy::Chooser,
    since: Instant,
    polls: u32,
    broken: Option<Error>,
}

/// The devices that run one at a time.
pub(crate) struct Schedule {
    name: String,
    ranks: usize,
    state: Mutex<State>,
    broken: AtomicBool,
    /// Nobody can run, so what only time would end may end.
    stale: AtomicBool,
}

/// The schedule being gathered, of one backend.
#[derive(Default)]
pub(crate) struct Gathering(Mutex<(Weak<Schedule>, usize)>);

impl Gathering {
    /// A place in the schedule the configuration asks for, if it asks for one.
    pub(crate) fn slot(&self, host: &Host) -> Result<Option<Slot>> {
        let Some(text) = host.config("cpu.schedule").filter(|t| t != "off") else {
            return Ok(None);
        };
        let policy = Policy::read(&text)?;
        let ranks = crate::device::number(host, "cpu.schedule_ranks", 1, 1)? as usize;
        let mut g = lock(&self.0);
        let open = g.0.upgrade().filter(|s| {
            s.ranks == ranks && s.name == policy.name() && g.1 < ranks && !lock(&s.state).begun
        });
        let schedule = match open {
            Some(s) => s,
            None => {
                let s = Arc::new(Schedule::new(policy, ranks));
                *g = (Arc::downgrade(&s), 0);
                s
            }
        };
        let host = g.1;
        g.1 += 1;
        Ok(Some(Slot { schedule, host }))
    }
}

/// A device's place in a schedule; its host is gone when this is dropped.
pub(crate) struct Slot {
    pub(crate) schedule: Arc<Schedule>,
    host: usize,
}

impl Slot {
    /// The turn of the device's host.
    pub(crate) fn turn(&self) -> Turn {
        Turn {
            schedule: self.schedule.clone(),
            host: self.host,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.schedule.leave(self.host);
    }
}

/// A share in a schedule for the objects of one device, or for what several devices share.
#[derive(Clone)]
pub(crate) struct Turn {
    schedule: Arc<Schedule>,
    /// [`ANY`]: of no device in particular; only threads that have called for one come here.
    host: usize,
}

const ANY: usize = usize::MAX;

impl Turn {
    /// For what ranks share.
    pub(crate) fn shared(&self) -> Turn {
        Turn {
            schedule: self.schedule.clone(),
            host: ANY,
        }
    }

    /// The first call of a host waits here for the other hosts; others pass.
    pub(crate) fn begin(&self) {
        if !self.schedule.broken.load(SeqCst) {
            drop(self.schedule.enter(self.host));
        }
    }

    /// Gives others the chance to run.
    pub(crate) fn point(&self) {
        self.give(false);
    }

    /// The same from a call that only asks whether something has happened: a thread that asks again and again does not count as running.
    pub(crate) fn poll(&self) {
        self.give(true);
    }

    fn give(&self, poll: bool) {
        let s = &*self.schedule;
        if s.broken.load(SeqCst) {
            return;
        }
        if let Some((st, me)) = s.enter(self.host) {
            s.pass(st, me, None, poll);
        }
    }

    /// Waits until `ready`. An error says that it never will be: the deadlock, or an earlier one.
    pub(crate) fn wait(&self, ready: &dyn Fn() -> bool, what: &dyn Fn() -> String) -> Result<()> {
        self.wait_as(ready, what, false)
    }

    /// A stream's thread waits for work, which may never come.
    pub(crate) fn rest(&self, ready: &dyn Fn() -> bool) -> Result<()> {
        self.wait_as(ready, &|| "is idle".into(), true)
    }

    fn wait_as(
        &self,
        ready: &dyn Fn() -> bool,
        what: &dyn Fn() -> String,
        idle: bool,
    ) -> Result<()> {
        let s = &*self.schedule;
        if let Some(e) = s.verdict() {
            return if ready() { Ok(()) } else { Err(e) };
        }
        let Some((st, me)) = s.enter(self.host) else {
            let why = "a thread that no device of the schedule knows waits in it";
            return Err(Error::new(Code::Internal, why));
        };
        // SAFETY: only the lifetimes are erased: `pass` returns after the actor's status no longer holds the closures.
        let (ready_at, what_at): (*const dyn Fn() -> bool, *const dyn Fn() -> String) = unsafe {
            (
                std::mem::transmute::<&dyn Fn() -> bool, &'static dyn Fn() -> bool>(ready),
                std::mem::transmute::<&dyn Fn() -> String, &'static dyn Fn() -> String>(what),
            )
        };
        let wait = Wait {
            ready: ready_at,
            what: what_at,
            idle,
        };
        s.pass(st, me, Some(wait), false);
        match s.verdict() {
            Some(e) if !ready() => Err(e),
            _ => Ok(()),
        }
    }

    /// A thread of this device is about to start: its actor, passed to [`Turn::arrive`].
    pub(crate) fn hire(&self, what: &str) -> usize {
        let s = &*self.schedule;
        let mut st = lock(&s.state);
        let name = format!("rank {}'s {what}", self.host);
        st.add(name, Status::Ready)
    }

    /// The thread has ended, or could not start.
    pub(crate) fn leave(&self, actor: usize) {
        self.schedule.leave(actor);
    }

    /// The thread has started; returns when it is its turn.
    pub(crate) fn arrive(&self, actor: usize) {
        let s = &*self.schedule;
        let mut st = lock(&s.state);
        st.actors[actor].thread = Some(std::thread::current().id());
        drop(s.hold(st, actor));
    }

    /// Has everything come to a halt, so that what waits for the end of a stream may give up?
    pub(crate) fn stale(&self) -> bool {
        self.schedule.broken.load(SeqCst) || self.schedule.stale.load(SeqCst)
    }

    /// The deadlock that ended this schedule.
    pub(crate) fn verdict(&self) -> Option<Error> {
        self.schedule.verdict()
    }
}

impl State {
    fn add(&mut self, name: String, status: Status) -> usize {
        let id = self.actors.len();
        self.policy.join(id);
        self.actors.push(Actor {
            name,
            status,
            bell: Arc::default(),
            thread: None,
        });
        id
    }

    fn runnable(&self) -> Vec<usize> {
        let can = |a: &Actor| match a.status {
            Status::Ready => true,
            // SAFETY: see `Wait`.
            Status::Waiting(w) => unsafe { (*w.ready)() },
            Status::Absent | Status::Gone => false,
        };
        let each = self.actors.iter().enumerate();
        each.filter(|(_, a)| can(a)).map(|(i, _)| i).collect()
    }

    fn note(&mut self, chosen: usize) {
        // FNV-1a: the order of decisions, in one word.
        self.hash = (self.hash ^ chosen as u64).wrapping_mul(0x0000_0100_0000_01b3);
        self.points += 1;
    }
}

impl Schedule {
    fn new(policy: Policy, ranks: usize) -> Schedule {
        let mut state = State {
            actors: vec![],
            current: None,
            begun: false,
            points: 0,
            switches: 0,
            hash: 0xcbf2_9ce4_8422_2325,
            policy: policy.chooser(),
            since: Instant::now(),
            polls: 0,
            broken: None,
        };
        for r in 0..ranks {
            state.add(format!("rank {r}'s host"), Status::Absent);
        }
        Schedule {
            name: policy.name(),
            ranks,
            state: Mutex::new(state),
            broken: AtomicBool::new(false),
            stale: AtomicBool::new(false),
        }
    }

    /// `run` (seed and policy), `points` (decisions), `switches` (of them, those that changed who runs), `hash`, and the deadlock if there was one.
    pub(crate) fn account(&self) -> String {
        let st = lock(&self.state);
        let mut text = format!(
            "run {}\npoints {}\nswitches {}\nhash {:016x}\n",
            self.name, st.points, st.switches, st.hash
        );
        if let Some(e) = &st.broken {
            text += &format!("verdict {}\n", e.message);
        }
        text
    }

    fn verdict(&self) -> Option<Error> {
        match self.broken.load(SeqCst) {
            true => lock(&self.state).broken.clone(),
            false => None,
        }
    }

    /// The calling thread as an actor: a stream's thread by itself, any other as the host of the device it calls for. The first call of
    /// a host waits until every host has called.
    fn enter(&self, host: usize) -> Option<(MutexGuard<'_, State>, usize)> {
        let mut st = lock(&self.state);
        let thread = std::thread::current().id();
        let own = st.actors.iter().position(|a| a.thread == Some(thread));
        // A host's thread that now calls for another device is that device's host.
        let own = own.filter(|a| *a >= self.ranks || *a == host || host == ANY);
        let me = own.unwrap_or(host);
        if me == ANY {
            return None;
        }
        match st.actors[me].status {
            Status::Absent => {
                st.actors[me].thread = Some(thread);
                st.actors[me].status = Status::Ready;
                st.since = Instant::now();
                self.begin(&mut st);
                st = self.hold(st, me);
            }
            Status::Waiting(_) if st.broken.is_none() => {
                let why = format!(
                    "two threads call for rank {me}'s device at a time; under a schedule a device has one host thread"
                );
                self.end(&mut st, why);
            }
            _ => st.actors[me].thread = Some(thread),
        }
        Some((st, me))
    }

    /// Starts once every host is here or has gone.
    fn begin(&self, st: &mut State) {
        let absent = |a: &Actor| matches!(a.status, Status::Absent);
        if !st.begun && !st.actors[..self.ranks].iter().any(absent) {
            st.begun = true;
            self.hand_on(st, None);
        }
    }

    /// Lets the policy decide who runs; `me` is the one who did.
    fn hand_on(&self, st: &mut State, me: Option<usize>) {
        if st.broken.is_some() {
            return;
        }
        self.stale.store(false, SeqCst);
        let mut can = st.runnable();
        if st.polls > POLLS {
            // Everyone who runs only asks whether others have run.
            can.clear();
        }
        if can.is_empty() {
            // Streams that are being destroyed stop waiting for others now.
            self.stale.store(true, SeqCst);
            can = st.runnable();
            if st.polls > POLLS {
                can.clear();
            }
        }
        st.current = None;
        if can.is_empty() {
            return self.judge(st);
        }
        let at = st.points;
        let chosen = st.policy.choose(&can, me, at);
        st.note(chosen);
        if me != Some(chosen) {
            st.switches += 1;
            st.actors[chosen].bell.notify_one();
        }
        st.current = Some(chosen);
        st.since = Instant::now();
    }

    /// Nobody can run: the end of everything, or a deadlock.
    fn judge(&self, st: &mut State) {
        let mut who = vec![];
        for a in &st.actors {
            match a.status {
                // SAFETY: see `Wait`.
                Status::Waiting(w) if !w.idle => {
                    who.push(format!("{} {}", a.name, unsafe { (*w.what)() }))
                }
                Status::Ready => who.push(format!("{} asks again and again", a.name)),
                _ => {}
            }
        }
        if who.is_empty() {
            return;
        }
        let gone: Vec<String> = (0..self.ranks)
            .filter(|r| matches!(st.actors[*r].status, Status::Gone))
            .map(|r| format!("rank {r} has ended"))
            .collect();
        who.extend(gone);
        self.end(st, format!("deadlock: {}", who.join("; ")));
    }

    /// Everybody is let go, and every wait that does not hold is over.
    fn end(&self, st: &mut State, why: String) {
        let text = format!("{why} ({}, switch #{})", self.name, st.switches);
        st.broken = Some(Error::new(Code::Aborted, text).sticky());
        self.broken.store(true, SeqCst);
        for a in &st.actors {
            a.bell.notify_all();
        }
    }

    /// The actor's part in a decision: returns when it is its turn again.
    fn pass(&self, mut st: MutexGuard<'_, State>, me: usize, wait: Option<Wait>, poll: bool) {
        if let Some(w) = wait {
            st.actors[me].status = Status::Waiting(w);
        }
        st.polls = if poll { st.polls + 1 } else { 0 };
        if poll {
            st.policy.yielded(me);
        }
        self.hand_on(&mut st, Some(me));
        let mut st = self.hold(st, me);
        st.actors[me].status = Status::Ready;
    }

    /// Waits for the turn.
    fn hold<'a>(&'a self, mut st: MutexGuard<'a, State>, me: usize) -> MutexGuard<'a, State> {
        let bell = st.actors[me].bell.clone();
        while st.current != Some(me) && st.broken.is_none() {
            st = bell
                .wait_timeout(st, LOOK)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if st.broken.is_none() && st.current != Some(me) && st.since.elapsed() > STUCK {
                let why = match st.current {
                    Some(c) => format!(
                        "{} has held the turn for {STUCK:?}: it waits for others in a way that is no call of the device",
                        st.actors[c].name
                    ),
                    None => {
                        let late = st.actors[..self.ranks].iter();
                        let late = late.filter(|a| matches!(a.status, Status::Absent));
                        let names: Vec<&str> = late.map(|a| a.name.as_str()).collect();
                        format!("{} made no call within {STUCK:?}", names.join(", "))
                    }
                };
                self.end(&mut st, why);
            }
        }
        st
    }

    /// An actor ends.
    pub(crate) fn leave(&self, actor: usize) {
        let mut st = lock(&self.state);
        st.actors[actor].status = Status::Gone;
        st.actors[actor].thread = None;
        if !st.begun {
            self.begin(&mut st);
        } else if st.current == Some(actor) {
            self.hand_on(&mut st, Some(actor));
        }
    }
}
