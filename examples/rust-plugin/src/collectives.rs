//! Collectives of ranks that are threads of this process, and of those only what the core cannot do without: all-reduce of f32 sums, all-gather
//! and broadcast of bytes, groups of sends and receives. It composes everything else of these.
//!
//! Each is a handful of messages: a rank posts the region it sends, the receiver copies or adds it, and the sender's stream goes on when that is
//! done. With a fabric, `post`, `take` and `leave` become its transfers, and ids reach other processes by the host's `kv_set` and `kv_get`.

use crate::memory::{Mem, Region, region};
use crate::queue::Stream;
use crate::{Device, Softdev};
use abi::*;
use crossweave_plugin::{
    Code, Coll, CollShape, Collectives, CommConfig, DType, Error, GroupRank, Health, Members, Result,
    Span, Support, abi, fail, unsupported,
};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often who waits looks whether its stream is being destroyed.
const LOOK: Duration = Duration::from_millis(20);
/// Ranks of a group at most.
const MOST: u32 = 4096;

/// The groups that are being formed or alive, by id.
#[derive(Default)]
pub struct Groups {
    made: u64,
    alive: HashMap<u64, Weak<Group>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Posted,
    Taken,
    Done,
}

/// Messages of a pair and a kind are taken in the order in which they were posted.
struct Message {
    number: u64,
    from: u32,
    to: u32,
    kind: u32,
    what: Option<Region>,
    bytes: usize,
    state: State,
}

struct Inner {
    joined: Vec<bool>,
    /// The first failure of any rank, for ever.
    failed: Option<Error>,
    messages: Vec<Message>,
    numbers: u64,
    /// The number of launches that have run, by rank: they run in the order in which they were made, also those on several streams.
    passed: Vec<u64>,
}

/// All ranks of a communicator.
struct Group {
    inner: Mutex<Inner>,
    moved: Condvar,
}

/// A rank's communicator.
pub struct Comm {
    member: Arc<Member>,
    enqueued: Mutex<u64>,
    ready_by: Option<Instant>,
}

struct Member {
    group: Arc<Group>,
    /// Within the communicator.
    rank: u32,
    n: u32,
    /// Which ranks of the job its members are: what messages say.
    members: Members,
    timeout: Option<Duration>,
}

impl Member {
    /// A member as messages name it: `rank 3`.
    fn name(&self, rank: u32) -> String {
        self.members.of(GroupRank(rank)).to_string()
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No state here is ever left half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn give_up(&mut self, code: Code, culprit: u32, why: String) {
        let e = Error::new(code, why).peer(GroupRank(culprit)).sticky();
        self.failed.get_or_insert(e);
    }
    fn health(&self, rank: u32) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            // A rank does not name itself.
            Some(e) => Err(Error {
                peer: e.peer.filter(|p| *p != GroupRank(rank)),
                ..e.clone()
            }),
        }
    }
}

/// A collective whose operands are checked.
#[derive(Clone, Copy)]
struct Part {
    kind: u32,
    /// Root or peer.
    other: u32,
    /// Bytes that one rank gives.
    bytes: usize,
    send: Option<Region>,
    recv: Option<Region>,
}

/// A launch on its stream.
struct Launch<'a> {
    member: &'a Member,
    number: u64,
    until: Option<Instant>,
    given_up: &'a dyn Fn() -> bool,
    sent: Vec<u64>,
}

impl Launch<'_> {
    /// A moment, for `peer`; an error when there is nothing left to wait for.
    fn wait<'g>(&self, mut g: MutexGuard<'g, Inner>, peer: u32) -> Result<MutexGuard<'g, Inner>> {
        let (m, me) = (self.member, self.member.rank);
        g.health(me)?;
        if self.until.is_some_and(|t| Instant::now() >= t) {
            let (who, whom) = (m.name(me), m.name(peer));
            let why = format!("{who} has waited {:?} for {whom}", m.timeout);
            g.give_up(Code::Timeout, peer, why);
        } else if (self.given_up)() {
            let why = format!("the stream of {} was destroyed", m.name(me));
            g.give_up(Code::Aborted, me, why);
        }
        m.group.moved.notify_all();
        g.health(me)?;
        let waited = m.group.moved.wait_timeout(g, LOOK);
        Ok(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn post(&mut self, g: &mut Inner, to: u32, kind: u32, what: Option<Region>, bytes: usize) {
        g.numbers += 1;
        self.sent.push(g.numbers);
        g.messages.push(Message {
            number: g.numbers,
            from: self.member.rank,
            to,
            kind,
            what,
            bytes,
            state: State::Posted,
        });
    }

    /// Hands what `from` has posted for this rank to `with`, outside the lock.
    fn take(
        &self,
        from: u32,
        kind: u32,
        bytes: usize,
        with: impl FnOnce(Option<Region>),
    ) -> Result<()> {
        let (group, me) = (&*self.member.group, self.member.rank);
        let mut g = group.lock();
        let at = loop {
            let meant =
                |m: &Message| (m.from, m.to, m.kind, m.state) == (from, me, kind, State::Posted);
            let found = g.messages.iter().position(meant);
            match found {
                Some(at) => break at,
                None => g = self.wait(g, from)?,
            }
        };
        if g.messages[at].bytes != bytes {
            let theirs = g.messages[at].bytes;
            let (sender, taker) = (self.member.name(from), self.member.name(me));
            let why = format!("{sender} sends {theirs} bytes, {taker} takes {bytes}");
            g.give_up(Code::Comm, from, why);
            group.moved.notify_all();
            return g.health(me);
        }
        g.messages[at].state = State::Taken;
        let (number, what) = (g.messages[at].number, g.messages[at].what);
        drop(g);
        with(what);
        let mut g = group.lock();
        if let Some(m) = g.messages.iter_mut().find(|m| m.number == number) {
            m.state = State::Done;
        }
        group.moved.notify_all();
        Ok(())
    }

    /// Until everything sent is with its receivers. A message that nobody will take any more is taken back; one being taken is waited for.
    fn leave(&self) -> Result<()> {
        let group = &*self.member.group;
        let mut found = Ok(());
        for number in &self.sent {
            loop {
                let mut g = group.lock();
                let Some(at) = g.messages.iter().position(|m| m.number == *number) else {
                    break;
                };
                let well = found.is_ok();
                match (g.messages[at].state, well) {
                    (State::Taken, _) => {
                        drop(group.moved.wait(g).unwrap_or_else(PoisonError::into_inner));
                    }
                    (State::Posted, true) => {
                        let to = g.messages[at].to;
                        found = self.wait(g, to).map(drop);
                    }
                    _ => {
                        g.messages.remove(at);
                        break;
                    }
                }
            }
        }
        found
    }

    /// All sends first, so that no member of a group waits for a later one.
    fn sends(&mut self, parts: &[Part]) {
        let (group, me) = (self.member.group.clone(), self.member.rank);
        let mut g = group.lock();
        for p in parts {
            match p.kind {
                COLL_RECV => {}
                COLL_SEND => self.post(&mut g, p.other, p.kind, p.send, p.bytes),
                COLL_BROADCAST if p.other != me => {}
                _ => {
                    for to in (0..self.member.n).filter(|r| *r != me) {
                        self.post(&mut g, to, p.kind, p.send, p.bytes);
                    }
                }
            }
        }
        group.moved.notify_all();
    }

    /// What a part takes from others; the sum of an all-reduce is the answer, because others still read its operands.
    fn takes(&self, p: &Part) -> Result<Option<Vec<u8>>> {
        let (me, n) = (self.member.rank, self.member.n);
        let copy = |at: usize, from: Option<Region>| {
            if let (Some(to), Some(from)) = (p.recv, from) {
                to.copy_from(at, &from, 0, p.bytes);
            }
        };
        match p.kind {
            COLL_RECV => self.take(p.other, COLL_SEND, p.bytes, |x| copy(0, x))?,
            COLL_BROADCAST if p.other == me => copy(0, p.send),
            COLL_BROADCAST => self.take(p.other, p.kind, p.bytes, |x| copy(0, x))?,
            COLL_ALL_GATHER => {
                for r in 0..n {
                    let at = r as usize * p.bytes;
                    match r == me {
                        true => copy(at, p.send),
                        false => self.take(r, p.kind, p.bytes, |x| copy(at, x))?,
                    }
                }
            }
            COLL_ALL_REDUCE => {
                let mut sum = vec![0u8; p.bytes];
                for r in 0..n {
                    // In the order of ranks, so that all get the same bits.
                    let mut add = |x: Option<Region>| {
                        let Some(x) = x else { return };
                        for (i, s) in sum.chunks_exact_mut(4).enumerate() {
                            let y = f32::from_le_bytes(x.get(4 * i));
                            let was = f32::from_le_bytes([s[0], s[1], s[2], s[3]]);
                            let now = if r == 0 { y } else { was + y };
                            s.copy_from_slice(&now.to_le_bytes());
                        }
                    };
                    match r == me {
                        true => add(p.send),
                        false => self.take(r, p.kind, p.bytes, add)?,
                    }
                }
                return Ok(Some(sum));
            }
            _ => {}
        }
        Ok(None)
    }

    fn run(&mut self, parts: &[Part]) -> Result<()> {
        let (group, me) = (self.member.group.clone(), self.member.rank);
        let mut g = group.lock();
        while g.passed[me as usize] < self.number {
            g = self.wait(g, me)?;
        }
        g.health(me)?;
        drop(g);
        self.sends(parts);
        let taken: Result<Vec<_>> = parts.iter().map(|p| self.takes(p)).collect();
        let left = self.leave();
        for (p, sum) in parts.iter().zip(taken?) {
            if let (Some(to), Some(sum)) = (p.recv, sum) {
                for (i, b) in sum.iter().enumerate() {
                    to.put(i, [*b]);
                }
            }
        }
        left
    }
}

/// Without operands: what query and launch agree on.
fn claimed(kind: u32, dtype: DType, reduce: u32, flags: u32) -> Result<()> {
    let moves = matches!(
        kind,
        COLL_ALL_GATHER | COLL_BROADCAST | COLL_SEND | COLL_RECV
    );
    let sums = (kind, dtype, reduce) == (COLL_ALL_REDUCE, DType::F32, RED_SUM);
    if flags != 0 || !(sums || (moves && dtype == DType::U8)) {
        let name = dtype.name();
        return unsupported(format!(
            "collective {kind} of {name}, reduction {reduce}, flags {flags:#x}"
        ));
    }
    Ok(())
}

fn checked(x: &Coll<'_, Mem>, me: u32, n: u32) -> Result<Part> {
    claimed(x.kind, x.dtype, x.reduce, x.flags)?;
    let other = match x.kind {
        COLL_BROADCAST => x.root,
        COLL_SEND | COLL_RECV => x.peer,
        _ => 0,
    };
    let other = match u32::try_from(other) {
        Ok(r) if r < n => r,
        _ => return fail(Code::Invalid, format!("rank {other} of {n}")),
    };
    if x.count > u64::MAX / 8 / u64::from(n) {
        return fail(
            Code::Invalid,
            format!("{} elements are beyond any memory", x.count),
        );
    }
    let bytes = x.dtype.bytes(x.count);
    let gives = x.kind != COLL_RECV && (x.kind != COLL_BROADCAST || other == me);
    let all = if x.kind == COLL_ALL_GATHER {
        n.into()
    } else {
        1
    };
    let need = |s: &Option<Span<'_, Mem>>, bytes: u64, what: &str| match s {
        _ if bytes == 0 => Ok(None),
        Some(s) if s.bytes >= bytes => region(s, what).map(Some),
        _ => fail(Code::Invalid, format!("{what} needs {bytes} bytes")),
    };
    // One span is enough where both are of one size.
    let twin = matches!(x.kind, COLL_ALL_REDUCE | COLL_BROADCAST);
    let (send, recv) = match twin {
        true => (x.send.or(x.recv), x.recv.or(x.send)),
        false => (x.send, x.recv),
    };
    Ok(Part {
        kind: x.kind,
        other,
        bytes: bytes as usize,
        send: need(&send, if gives { bytes } else { 0 }, "send")?,
        recv: need(
            &recv,
            if x.kind == COLL_SEND { 0 } else { bytes * all },
            "recv",
        )?,
    })
}

/// The collectives of this plugin.
pub enum SoftdevCollectives {}

impl Collectives<Softdev> for SoftdevCollectives {
    type Comm = Comm;

    fn unique_id(b: &Softdev, _: &Device) -> Result<Vec<u8>> {
        let mut groups = b.groups();
        groups.made += 1;
        let id = [u64::from(std::process::id()), groups.made];
        Ok(id.map(u64::to_le_bytes).concat())
    }

    fn init(b: &Softdev, _: &Device, id: &[u8], cfg: CommConfig) -> Result<Comm> {
        b.fault("comm_init")?;
        let (process, number) = match id.split_first_chunk::<8>() {
            Some((p, n)) if n.len() == 8 => (u64::from_le_bytes(*p), n),
            _ => return fail(Code::Invalid, "the id is none of this plugin"),
        };
        if process != u64::from(std::process::id()) {
            return unsupported("the id is another process's: ranks are threads of one");
        }
        if cfg.nranks == 0 || cfg.nranks > MOST || cfg.rank >= cfg.nranks {
            let (rank, n) = (cfg.rank, cfg.nranks);
            return fail(Code::Invalid, format!("rank {rank} of {n}, at most {MOST}"));
        }
        let key = number.iter().rev().fold(0, |k, b| k << 8 | u64::from(*b));
        let n = cfg.nranks as usize;
        let mut groups = b.groups();
        groups.alive.retain(|_, g| g.strong_count() > 0);
        let group = groups.alive.get(&key).and_then(Weak::upgrade);
        let group = group.unwrap_or_else(|| {
            let inner = Mutex::new(Inner {
                joined: vec![false; n],
                failed: None,
                messages: vec![],
                numbers: 0,
                passed: vec![0; n],
            });
            let moved = Condvar::new();
            let g = Arc::new(Group { inner, moved });
            groups.alive.insert(key, Arc::downgrade(&g));
            g
        });
        let mut g = group.lock();
        if n != g.joined.len() || g.joined[cfg.rank as usize] {
            let why = "it has joined already, or others say another number";
            return fail(Code::Invalid, format!("rank {} of {n}: {why}", cfg.rank));
        }
        g.joined[cfg.rank as usize] = true;
        drop(g);
        group.moved.notify_all();
        Ok(Comm {
            member: Arc::new(Member {
                group,
                rank: cfg.rank,
                n: cfg.nranks,
                members: cfg.members,
                timeout: cfg.timeout,
            }),
            enqueued: Mutex::new(0),
            ready_by: cfg.timeout.map(|t| Instant::now() + t),
        })
    }

    fn supports(_: &Softdev, _: &Comm, x: &CollShape) -> Result<Support> {
        claimed(x.kind, x.dtype, x.reduce, x.flags)?;
        Ok(Support {
            latency_ns: 20_000,
            ..Support::default()
        })
    }

    fn launch(_: &Softdev, c: &Comm, s: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        let m = c.member.clone();
        m.group.lock().health(m.rank)?;
        let parts = group.iter().map(|x| checked(x, m.rank, m.n));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        if parts.is_empty() {
            return Ok(());
        }
        let mut enqueued = c.enqueued.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *enqueued;
        s.run(move |state, given_up| {
            let (group, rank) = (m.group.clone(), m.rank);
            let mut launch = Launch {
                member: &m,
                number,
                until: m.timeout.map(|t| Instant::now() + t),
                given_up,
                sent: vec![],
            };
            let found = match state {
                Ok(()) => launch.run(&parts),
                Err(e) => {
                    let who = m.name(rank);
                    let why = format!("the stream of {who} failed before its collective");
                    group.lock().give_up(Code::Comm, rank, why);
                    Err(e)
                }
            };
            let mut g = group.lock();
            g.passed[rank as usize] = number + 1;
            drop(g);
            group.moved.notify_all();
            found
        })?;
        *enqueued += 1;
        Ok(())
    }

    fn async_error(_: &Softdev, c: &Comm) -> Result<Health> {
        let mut g = c.member.group.lock();
        let missing = g.joined.iter().position(|j| !*j);
        if let Some(r) = missing
            && c.ready_by.is_some_and(|t| Instant::now() >= t)
        {
            let who = c.member.name(r as u32);
            g.give_up(Code::Timeout, r as u32, format!("{who} has not joined"));
        }
        g.health(c.member.rank)?;
        Ok(match missing {
            None => Health::Ready,
            Some(_) => Health::Connecting,
        })
    }

    fn abort(_: &Softdev, c: &Comm) -> Result<()> {
        let (group, rank) = (&c.member.group, c.member.rank);
        let why = format!("{} has aborted the communicator", c.member.name(rank));
        group.lock().give_up(Code::Aborted, rank, why);
        group.moved.notify_all();
        Ok(())
    }
}
