//! A stream is an in-order queue served by its own thread: enqueue is a short lock and a copy, the work happens elsewhere.
//!
//! The producer appends to a batch (commands, operand addresses and parameter bytes in three vectors); the consumer swaps the whole batch
//! for an empty one, so in the steady state nothing is allocated and the two sides meet once per batch. The n-th command has sequence
//! number n; `done` is how far the stream has come, and an event is just such a number. A failure is sticky: later commands are passed
//! without being run, so that waiters are released and memory is free, and every later call reports it.

pub(crate) mod graph;

use crate::collective::Launch as Collectives;
use crate::collective::transfer::{Stores, push};
use crate::device::Device;
use crate::dispatch::Prepared;
use crate::event::Mark;
use crate::kernel::Launch;
use crate::pace::{Pace, deadline};
use crate::profile::Profile;
use crate::schedule::Turn;
use crate::team::{Team, panic_text};
use crossweave_plugin::{Code, Error, Host, HostCall, Result, fail};
use graph::Kept;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an idle stream looks for work before it parks.
const IDLE_SPIN: Duration = Duration::from_micros(25);
/// How long a waiter looks before it parks.
const WAIT_SPIN: Duration = Duration::from_micros(5);
/// How long a destroyed stream goes on waiting for others before it gives its work up.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Copies and fills from this size are shared among the team, in pieces of this size.
const PIECE: usize = 1 << 20;
/// A batch that grew beyond this is given back instead of kept.
const KEEP: usize = 4096;

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) enum Cmd {
    Kernel {
        op: Arc<Prepared>,
        /// Operand addresses in `Batch::words`, then parameter bytes in `Batch::bytes`.
        words: u32,
        n: u32,
        bytes: u32,
        len: u32,
        workspace: *mut u8,
    },
    Copy {
        dst: *mut u8,
        src: *const u8,
        bytes: usize,
    },
    Copy2d {
        dst: *mut u8,
        dpitch: usize,
        src: *const u8,
        spitch: usize,
        width: usize,
        height: usize,
    },
    Fill {
        dst: *mut u8,
        bytes: usize,
        pattern: u64,
        size: usize,
    },
    Record(Arc<Mark>, u64),
    Wait(Arc<Shared>, u64),
    HostCall(HostCall),
    WaitValue(*const AtomicU64, u64),
    WriteValue(*const AtomicU64, u64),
    /// A group of collectives: its place in `Batch::groups`.
    Collectives(u32),
    Graph(Arc<Kept>),
}

impl Cmd {
    fn name(&self) -> &'static str {
        match self {
            Cmd::Kernel { op, .. } => op.name,
            Cmd::Copy { .. } => "copy",
            Cmd::Copy2d { .. } => "copy_2d",
            Cmd::Fill { .. } => "fill",
            Cmd::Record(..) => "event_record",
            Cmd::Wait(..) => "stream_wait_event",
            Cmd::HostCall(_) => "stream_host_call",
            Cmd::WaitValue(..) => "stream_wait_value",
            Cmd::WriteValue(..) => "stream_write_value",
            Cmd::Collectives(_) => "collective",
            Cmd::Graph(_) => "graph_launch",
        }
    }
}

#[derive(Default)]
pub(crate) struct Batch {
    cmds: Vec<Cmd>,
    pub(crate) words: Vec<*mut u8>,
    pub(crate) bytes: Vec<u8>,
    /// Taken out when their turn comes; they lie in a row, as commands do, so that the thread finds them before it asks.
    pub(crate) groups: Vec<Option<Collectives>>,
}
// SAFETY: the addresses are operands which the host keeps alive until the stream has passed the command.
unsafe impl Send for Batch {}

fn take(groups: &mut [Option<Collectives>], at: u32) -> Option<Collectives> {
    groups.get_mut(at as usize).and_then(Option::take)
}

impl Batch {
    /// For the next commands; what grew too large is given back.
    fn clear(&mut self) {
        self.words.clear();
        self.bytes.clear();
        self.groups.clear();
        let large = self.cmds.capacity().max(self.groups.capacity()) > KEEP;
        if large || self.words.capacity() > 16 * KEEP || self.bytes.capacity() > 64 * KEEP {
            *self = Batch::default();
        }
    }
}

struct Queue {
    batch: Batch,
    /// What is kept instead of being run, while the stream captures.
    capture: Option<Batch>,
    pushed: u64,
    started: bool,
    parked: bool,
    closing: bool,
}

/// What the stream's handle, its thread and the events recorded on it share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    pushed: AtomicU64,
    done: AtomicU64,
    waiters: AtomicU32,
    /// The first command anybody who sleeps in `passed` waits for: those before it wake nobody.
    wanted: AtomicU64,
    /// True when the thread has ended (or never ran).
    ended: Mutex<bool>,
    passed: Condvar,
    failed: AtomicBool,
    /// Sequence number and text of the first failure.
    failure: Mutex<Option<(u64, Error)>>,
    closing: Mutex<Option<Instant>>,
    abandoned: AtomicBool,
    thread: Mutex<Option<std::thread::ThreadId>>,
    pace: Arc<Pace>,
    profile: Option<Arc<Profile>>,
    /// Among the streams of its device, from 0.
    number: u64,
    turn: Option<Turn>,
}

impl Shared {
    pub(crate) fn passed(&self, seq: u64) -> bool {
        self.done.load(SeqCst) >= seq
    }

    /// A thread that asks in vain lets others run, under a schedule.
    pub(crate) fn poll(&self) {
        if let Some(t) = &self.turn {
            t.poll();
        }
    }

    /// The failure that reached command `seq`, if any.
    pub(crate) fn failure_before(&self, seq: u64) -> Option<Error> {
        if !self.failed.load(Acquire) {
            return None;
        }
        lock(&self.failure)
            .as_ref()
            .filter(|(at, _)| *at <= seq)
            .map(|(_, e)| e.clone())
    }

    fn sticky(&self) -> Result<()> {
        self.failure_before(u64::MAX).map_or(Ok(()), Err)
    }

    fn fail(&self, seq: u64, e: Error) {
        let mut f = lock(&self.failure);
        if f.is_none() {
            *f = Some((seq, e.sticky()));
            self.failed.store(true, Release);
        }
    }

    fn pass(&self, seq: u64) {
        self.done.store(seq, SeqCst);
        if self.waiters.load(SeqCst) > 0 && self.wanted.load(SeqCst) <= seq {
            let _guard = lock(&self.ended);
            // Who goes on sleeping says so again.
            self.wanted.store(u64::MAX, SeqCst);
            self.passed.notify_all();
        }
    }

    /// Waits until `seq` is passed. `false` = the timeout passed first, or `give_up` said so (asked every 20 ms).
    pub(crate) fn wait(
        &self,
        seq: u64,
        timeout: Option<Duration>,
        give_up: Option<&dyn Fn() -> bool>,
    ) -> bool {
        if let Some(t) = &self.turn {
            // Time does not pass: only who waits for no time at all asks in vain.
            if timeout == Some(Duration::ZERO) {
                t.poll();
                return self.passed(seq);
            }
            let over = || self.passed(seq) || give_up.is_some_and(|g| g());
            let what = || {
                let (n, next) = (self.number, self.done.load(SeqCst) + 1);
                format!("waits for command {seq} of stream {n}, which is at command {next}")
            };
            // When the schedule has ended, a host still waits for work that runs; a stream does not.
            if t.wait(&over, &what).is_ok() || give_up.is_some() {
                return self.passed(seq);
            }
        }
        let end = deadline(timeout);
        if self.pace.spin(WAIT_SPIN, || self.passed(seq)) {
            return true;
        }
        self.waiters.fetch_add(1, SeqCst);
        let mut guard = lock(&self.ended);
        let arrived = loop {
            // Said before looking, as the stream says how far it is before it asks who is wanted: one of the two sees the other.
            self.wanted.fetch_min(seq, SeqCst);
            if self.passed(seq) {
                break true;
            }
            if give_up.is_some_and(|g| g()) {
                break false;
            }
            let left = end.map(|e| e.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break false;
            }
            let poll = give_up.map(|_| Duration::from_millis(20));
            guard = match left.into_iter().chain(poll).min() {
                Some(d) => {
                    self.passed
                        .wait_timeout(guard, d)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .passed
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        };
        drop(guard);
        self.waiters.fetch_sub(1, SeqCst);
        arrived
    }

    /// Is the stream being destroyed, and has it waited long enough?
    fn given_up(&self) -> bool {
        if let Some(t) = &self.turn {
            return self.abandoned.load(Relaxed) || (t.stale() && lock(&self.closing).is_some());
        }
        self.abandoned.load(Relaxed)
            || lock(&self.closing).is_some_and(|since| since.elapsed() > CLOSE_GRACE)
    }
}

/// An in-order queue of a CPU device.
pub struct Stream {
    shared: Arc<Shared>,
    pub(crate) team: Arc<Team>,
    host: Host,
}

impl Stream {
    pub(crate) fn new(device: &Device, host: Host, pace: Arc<Pace>) -> Stream {
        Stream {
            shared: Arc::new(Shared {
                queue: Mutex::new(Queue {
                    batch: Batch::default(),
                    capture: None,
                    pushed: 0,
                    started: false,
                    parked: false,
                    closing: false,
                }),
                work: Condvar::new(),
                pushed: AtomicU64::new(0),
                done: AtomicU64::new(0),
                waiters: AtomicU32::new(0),
                wanted: AtomicU64::new(u64::MAX),
                ended: Mutex::new(true),
                passed: Condvar::new(),
                failed: AtomicBool::new(false),
                failure: Mutex::new(None),
                closing: Mutex::new(None),
                abandoned: AtomicBool::new(false),
                thread: Mutex::new(None),
                pace,
                profile: device.profile.clone(),
                number: device.streams.fetch_add(1, Relaxed),
                turn: device.turn(),
            }),
            team: device.team.clone(),
            host,
        }
    }

    /// Appends a command; `build` writes its operands into the batch. Answers its sequence number.
    pub(crate) fn push(&self, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<u64> {
        if self.shared.failed.load(Acquire) {
            self.shared.sticky()?;
        }
        self.push_always(false, build)
    }

    /// Appends and, under a schedule, gives others their chance.
    fn push_always(&self, keeps: bool, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<u64> {
        let pushed = self.append(keeps, build);
        self.point();
        pushed
    }

    /// Under a schedule: others may run now. No lock that they could want may be held here.
    pub(crate) fn point(&self) {
        if let Some(t) = &self.shared.turn {
            t.point();
        }
    }

    /// A host's first call waits for the others', so that from then on everything happens in the schedule's order.
    pub(crate) fn begin(&self) {
        if let Some(t) = &self.shared.turn {
            t.begin();
        }
    }

    /// As [`Stream::push`], for a caller that holds a lock; it calls [`Stream::begin`] before and [`Stream::point`] after.
    pub(crate) fn push_locked(&self, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<u64> {
        if self.shared.failed.load(Acquire) {
            self.shared.sticky()?;
        }
        self.append(false, build)
    }

    /// `keeps`: it may be kept while the stream captures.
    fn append(&self, keeps: bool, build: impl FnOnce(&mut Batch) -> Cmd) -> Result<u64> {
        let s = &self.shared;
        self.begin();
        let mut q = lock(&s.queue);
        if let Some(kept) = q.captures(keeps)? {
            let cmd = build(kept);
            kept.cmds.push(cmd);
            return Ok(q.pushed);
        }
        if !q.started {
            self.start(&mut q)?;
        }
        let cmd = build(&mut q.batch);
        q.batch.cmds.push(cmd);
        q.pushed += 1;
        let seq = q.pushed;
        s.pushed.store(seq, Release);
        let wake = std::mem::take(&mut q.parked);
        drop(q);
        if wake {
            s.work.notify_one();
        }
        Ok(seq)
    }

    fn start(&self, q: &mut Queue) -> Result<()> {
        let (shared, team) = (self.shared.clone(), self.team.clone());
        *lock(&shared.ended) = false;
        let turn = shared.turn.clone();
        let actor = turn.map(|t| (t.hire(&format!("stream {}", shared.number)), t));
        let (mine, hired) = (actor.as_ref().map(|a| a.0), actor);
        let started = self.host.spawn(Box::new(move || {
            if let (Some(actor), Some(t)) = (mine, &shared.turn) {
                t.arrive(actor);
            }
            serve(&shared, team);
            if let (Some(actor), Some(t)) = (mine, &shared.turn) {
                t.leave(actor);
            }
        }));
        if started.is_err() {
            *lock(&self.shared.ended) = true;
            if let Some((actor, t)) = hired {
                t.leave(actor);
            }
        }
        started?;
        q.started = true;
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn kernel(
        &self,
        op: &Arc<Prepared>,
        operands: impl Iterator<Item = *mut u8>,
        workspace: *mut u8,
        dynamic: &[u8],
    ) -> Result<()> {
        self.push_or_keep(|b| {
            let words = b.words.len();
            b.words.extend(operands);
            let bytes = b.bytes.len();
            b.bytes.extend_from_slice(dynamic);
            Cmd::Kernel {
                op: op.clone(),
                words: words as u32,
                n: (b.words.len() - words) as u32,
                bytes: bytes as u32,
                len: dynamic.len() as u32,
                workspace,
            }
        })
    }

    pub(crate) fn query(&self) -> Result<bool> {
        let done = self.shared.passed(self.shared.pushed.load(Acquire));
        self.shared.sticky()?;
        if !done {
            self.shared.poll();
        }
        Ok(done)
    }

    pub(crate) fn sync(&self, timeout: Option<Duration>) -> Result<()> {
        let seq = self.shared.pushed.load(Acquire);
        if !self.shared.wait(seq, timeout, None) {
            return fail(
                Code::Timeout,
                format!(
                    "stream_sync: command {} of {seq} not passed within {timeout:?}",
                    self.shared.done.load(SeqCst) + 1
                ),
            );
        }
        self.shared.sticky()
    }

    /// Also after a failure, with the failure.
    pub(crate) fn host_call(&self, f: HostCall) -> Result<()> {
        self.push_always(false, |_| Cmd::HostCall(f)).map(|_| ())
    }
}

impl Drop for Stream {
    /// Runs what is queued to its end; only waits for others are cut short, after `CLOSE_GRACE`.
    fn drop(&mut self) {
        let s = &self.shared;
        *lock(&s.closing) = Some(Instant::now());
        lock(&s.queue).closing = true;
        s.work.notify_one();
        if *lock(&s.thread) == Some(std::thread::current().id()) {
            // Dropped by its own host call: nobody is left to wait, the thread ends by itself.
            return;
        }
        let over = || *lock(&s.ended);
        if let (false, Some(t)) = (over(), &s.turn) {
            let what = || format!("waits for the end of stream {}", s.number);
            // A schedule that has ended leaves the wait below.
            let _ = t.wait(&over, &what);
        }
        let mut ended = lock(&s.ended);
        while !*ended {
            ended = s.passed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The stream's thread.
fn serve(s: &Shared, team: Arc<Team>) {
    *lock(&s.thread) = Some(std::thread::current().id());
    s.pace.wake();
    team.settle();
    let mut mine = Batch::default();
    let mut seq = 0u64;
    loop {
        if let Some(t) = &s.turn {
            let work = || s.pushed.load(Acquire) > seq || lock(&s.closing).is_some();
            // A schedule that has ended leaves the wait below.
            let _ = t.rest(&work);
        }
        s.pace.spin(IDLE_SPIN, || s.pushed.load(Acquire) > seq);
        let mut q = lock(&s.queue);
        while q.batch.cmds.is_empty() && !q.closing {
            q.parked = true;
            s.pace.park();
            q = s.work.wait(q).unwrap_or_else(PoisonError::into_inner);
            s.pace.wake();
        }
        q.parked = false;
        if q.batch.cmds.is_empty() {
            break;
        }
        std::mem::swap(&mut q.batch, &mut mine);
        drop(q);
        let Batch {
            cmds,
            words,
            bytes,
            groups,
        } = &mut mine;
        for cmd in cmds.drain(..) {
            seq += 1;
            if let Some(t) = &s.turn {
                t.point();
            }
            step(s, &team, seq, cmd, (words, bytes), groups);
            s.pass(seq);
        }
        mine.clear();
    }
    s.pace.park();
    // The team may end with this thread; its workers must be gone before the stream says so.
    drop(team);
    let mut ended = lock(&s.ended);
    *ended = true;
    s.passed.notify_all();
}

/// `Batch::words` and `Batch::bytes`, into which commands point.
type Operands<'a> = (&'a [*mut u8], &'a [u8]);

/// Passes one command: runs it, or, after a failure, only releases who depends on it.
fn step(
    s: &Shared,
    team: &Team,
    seq: u64,
    cmd: Cmd,
    operands: Operands<'_>,
    groups: &mut [Option<Collectives>],
) {
    let name = cmd.name();
    if let Cmd::Graph(graph) = &cmd {
        return graph.play(s, team, seq);
    }
    if s.failed.load(Acquire) {
        let why = s.failure_before(u64::MAX);
        let done = catch_unwind(AssertUnwindSafe(|| match (cmd, why) {
            (Cmd::HostCall(f), Some(e)) => f(Err(e)),
            (Cmd::Collectives(at), Some(e)) => {
                if let Some(mut group) = take(groups, at) {
                    group.skip(&e);
                }
            }
            (Cmd::Record(mark, id), _) => mark.stamp(id),
            _ => {}
        }));
        // The first failure is the one to report; a second one in a callback adds nothing.
        if let Err(p) = done {
            std::mem::forget(p);
        }
        return;
    }
    let started = s.profile.as_ref().map(|p| {
        let label = match &cmd {
            Cmd::Kernel { op, .. } => op.label.clone(),
            _ => None,
        };
        (p, label, Instant::now())
    });
    let run = catch_unwind(AssertUnwindSafe(|| run(s, team, cmd, operands, groups)));
    if let Some((profile, label, at)) = started {
        profile.add(label.as_deref().unwrap_or(name), at.elapsed());
    }
    match run {
        Ok(Ok(())) => {}
        Ok(Err(e)) => s.fail(seq, e),
        Err(p) => {
            let text = panic_text(&*p);
            // A payload whose own `drop` panics must not take the thread with it.
            std::mem::forget(p);
            s.fail(
                seq,
                Error::new(Code::Panic, format!("{name} panicked: {text}")),
            );
        }
    }
}

fn run(
    s: &Shared,
    team: &Team,
    cmd: Cmd,
    (words, bytes): Operands<'_>,
    groups: &mut [Option<Collectives>],
) -> Result<()> {
    match cmd {
        Cmd::Kernel {
            op,
            words: w,
            n,
            bytes: b,
            len,
            workspace,
        } => {
            let launch = Launch {
                operands: &words[w as usize..(w + n) as usize],
                workspace,
                dynamic: &bytes[b as usize..(b + len) as usize],
                team,
            };
            // SAFETY: `Ops::launch` checked every operand against the layout the op was prepared with; the host orders streams.
            unsafe { op.kernel.run(&launch) };
        }
        Cmd::Copy { dst, src, bytes } => copy(team, dst, src, bytes),
        Cmd::Copy2d {
            dst,
            dpitch,
            src,
            spitch,
            width,
            height,
        } => {
            let at = (Addr(dst), Addr(src.cast_mut()));
            let rows = (PIECE / width.max(1)).max(1);
            team.run(height.div_ceil(rows), &|i| {
                let (dst, src) = (at.0.get(), at.1.get());
                for r in i * rows..((i + 1) * rows).min(height) {
                    // SAFETY: `copy_2d` checked that the last row ends inside both spans.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            src.add(r * spitch),
                            dst.add(r * dpitch),
                            width,
                        )
                    }
                }
            });
        }
        Cmd::Fill {
            dst,
            bytes,
            pattern,
            size,
        } => fill(team, dst, bytes, pattern, size),
        Cmd::Record(mark, id) => mark.stamp(id),
        Cmd::Wait(other, at) => {
            s.pace.park();
            let arrived = other.wait(at, None, Some(&|| s.given_up()));
            s.pace.wake();
            if let (false, Some(e)) = (arrived, s.turn.as_ref().and_then(Turn::verdict)) {
                return Err(e);
            }
            if !arrived {
                s.abandoned.store(true, Relaxed);
                return fail(
                    Code::Aborted,
                    "the stream was destroyed while it waited for an event",
                );
            }
            if let Some(e) = other.failure_before(at) {
                return Err(Error {
                    message: format!("waited for an event of a failed stream: {}", e.message),
                    ..e
                });
            }
        }
        Cmd::HostCall(f) => f(Ok(())),
        Cmd::WaitValue(word, at_least) => {
            // SAFETY: `wait_value` checked span and alignment; the host keeps the memory alive until the command has passed.
            let word = unsafe { &*word };
            let ready = || word.load(Acquire) >= at_least;
            if let Some(t) = &s.turn {
                let what = || format!("waits for a word to become {at_least}");
                t.wait(&|| ready() || s.given_up(), &what)?;
            }
            let mut nap = Duration::from_micros(20);
            if !s.pace.spin(WAIT_SPIN, ready) {
                s.pace.park();
                while !ready() {
                    if s.given_up() {
                        s.abandoned.store(true, Relaxed);
                        s.pace.wake();
                        return fail(
                            Code::Aborted,
                            "the stream was destroyed while it waited for a value",
                        );
                    }
                    // The writer of the word (a stream, the host, another process) cannot wake us.
                    std::thread::sleep(nap);
                    nap = (nap * 2).min(Duration::from_millis(1));
                }
                s.pace.wake();
            }
        }
        Cmd::WriteValue(word, value) => {
            // SAFETY: as for `WaitValue`.
            unsafe { &*word }.store(value, Release);
        }
        Cmd::Collectives(at) => {
            if let Some(mut group) = take(groups, at) {
                group.run(&|| s.given_up())?;
            }
        }
        // `step` plays it.
        Cmd::Graph(_) => {}
    }
    Ok(())
}

/// An address that may cross to the team.
#[derive(Clone, Copy)]
struct Addr(*mut u8);
// SAFETY: each task of a run touches its own piece.
unsafe impl Sync for Addr {}
impl Addr {
    /// By method, so that a closure captures the whole (which is `Sync`) and not the pointer in it.
    fn get(self) -> *mut u8 {
        self.0
    }
}

fn copy(team: &Team, dst: *mut u8, src: *const u8, bytes: usize) {
    let at = (Addr(dst), Addr(src.cast_mut()));
    let stores = Stores::for_traffic(2 * bytes);
    team.run(bytes.div_ceil(PIECE), &|i| {
        let from = i * PIECE;
        let n = PIECE.min(bytes - from);
        // SAFETY: both spans hold `bytes` bytes and do not overlap (the host's duty); pieces are disjoint.
        unsafe {
            let (src, dst) = (at.1.get().add(from), at.0.get().add(from));
            match stores {
                Stores::Plain => std::ptr::copy_nonoverlapping(src, dst, n),
                Stores::Streaming => push(src, &[dst], n, stores),
            }
        }
    });
}

fn fill(team: &Team, dst: *mut u8, bytes: usize, pattern: u64, size: usize) {
    let word = pattern.to_le_bytes();
    let mut block = [0u8; 64];
    for (i, b) in block.iter_mut().enumerate() {
        *b = word[i % size];
    }
    let at = Addr(dst);
    team.run(bytes.div_ceil(PIECE), &|i| {
        let from = i * PIECE;
        // SAFETY: pieces are disjoint parts of the span; `PIECE` is a multiple of 64, so each starts at the pattern's start.
        let piece = unsafe {
            std::slice::from_raw_parts_mut(
                at.get().add(from).cast::<std::mem::MaybeUninit<u8>>(),
                PIECE.min(bytes - from),
            )
        };
        if block.iter().all(|b| *b == block[0]) {
            piece.fill(std::mem::MaybeUninit::new(block[0]));
            return;
        }
        for part in piece.chunks_mut(64) {
            for (d, b) in part.iter_mut().zip(block) {
                d.write(b);
            }
        }
    });
}
