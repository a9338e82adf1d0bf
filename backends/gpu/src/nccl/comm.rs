//! A communicator: formed without blocking, watched by a thread of its own, and given up from any thread at once.
//!
//! NCCL knows no timeouts, and a collective whose peers do not come holds its stream for ever. The thread asks NCCL for its asynchronous error and
//! looks at the ends of launched groups; when one is late or a peer has failed it keeps the error, marks the streams used as failed (what is in
//! their memory is no result), and aborts NCCL's communicator, which lets the streams go.

mod launch;

use super::call::{self, calls, supports};
use super::joining::Joining;
use super::{Config, IN_PROGRESS, Nccl, SUCCESS};
use crate::backend::{Gpu, OnGpu};
use crate::device::Dev;
use crate::lock;
use crate::memory::{Mem, at, inside};
use crate::runtime::{Address, Handle};
use crate::stream::{Event, Fault, Stream};
use crate::wait::{self, End};
use crossweave_plugin::{
    Code, Coll, CollShape, Collectives, CommConfig, Error, GroupRank, Health, MemKind, Members,
    Result, Support, abi, fail, unsupported,
};
use launch::{Planned, PutOff};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the watching thread looks.
const GLANCE: Duration = Duration::from_millis(20);
/// How long a call of NCCL that is under way may keep a release waiting, and an orderly end its peers.
const PATIENCE: Duration = Duration::from_secs(10);
/// For forming a group when the host sets no limit.
const FORMING: Duration = Duration::from_secs(300);

/// Collectives between GPUs.
pub enum GpuCollectives {}

/// A launched group that may not have ended.
struct Flight {
    end: Event,
    until: Option<Instant>,
    what: &'static str,
}

#[derive(Default)]
struct Flights {
    queue: VecDeque<Flight>,
    spare: Vec<Event>,
    /// The communicator is going away.
    stop: bool,
}

/// Where NCCL writes a communicator's address: at once, and once more from a thread of its own when the group has formed or failed to. So it lies on
/// the heap, and is freed only when that is over.
#[derive(Default)]
struct Slot(Arc<AtomicPtr<c_void>>);

impl Slot {
    fn out(&self) -> *mut Handle {
        self.0.as_ptr().cast()
    }

    fn get(&self) -> Handle {
        Handle(self.0.load(SeqCst))
    }

    /// NCCL may yet write it: it is never freed.
    fn abandon(&self) {
        std::mem::forget(self.0.clone());
    }
}

/// NCCL's communicator.
enum Group {
    /// It forms while others go on.
    At(Handle, Slot),
    /// A thread waits for it to form.
    By(Arc<Joining>),
}

impl Group {
    fn raw(&self) -> Handle {
        match self {
            Group::At(raw, _) => *raw,
            Group::By(thread) => thread.raw(),
        }
    }
}

/// What the communicator and its watching thread share.
pub(crate) struct Inner {
    nccl: Arc<Nccl>,
    dev: Arc<Dev>,
    group: Group,
    name: String,
    rank: u32,
    nranks: u32,
    /// The members by their ranks in the job.
    members: Members,
    timeout: Option<Duration>,
    /// A word of the device, for barriers.
    word: Mem,
    aborted: AtomicBool,
    connected: AtomicBool,
    /// NCCL takes calls on one communicator one at a time, also the question for its error, which completes what is under way.
    serial: Mutex<()>,
    /// Threads inside a call of NCCL on this communicator, or waiting for their turn.
    inside: AtomicUsize,
    /// NCCL's communicator has been given back, or is being.
    gone: AtomicBool,
    /// It has been given back: no thread of NCCL's works on it.
    over: AtomicBool,
    failure: Mutex<Option<Error>>,
    planned: Mutex<Planned>,
    flights: Mutex<Flights>,
    changed: Condvar,
    /// Streams it was used on.
    streams: Mutex<Vec<Arc<Fault>>>,
    /// Memory registered with it: handles by address.
    registered: Mutex<HashMap<Address, usize>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.over.load(SeqCst) || self.connected.load(SeqCst) {
            return;
        }
        match &self.group {
            Group::At(_, slot) => slot.abandon(),
            Group::By(thread) => std::mem::forget(thread.clone()),
        }
    }
}

/// A communicator, and the end of its watching thread.
pub struct Comm(Arc<Inner>, End);

/// While this lives NCCL's communicator does, and nobody else calls it.
struct Inside<'a> {
    _turn: MutexGuard<'a, ()>,
    _count: Counted<'a>,
}
struct Counted<'a>(&'a AtomicUsize);
impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Inner {
    fn raw(&self) -> Handle {
        self.group.raw()
    }

    fn enter(&self) -> Result<Inside<'_>> {
        self.inside.fetch_add(1, SeqCst);
        let count = Counted(&self.inside);
        let turn = lock(&self.serial);
        if let Some(e) = &*lock(&self.failure) {
            return Err(e.clone());
        }
        if self.aborted.load(SeqCst) || self.gone.load(SeqCst) {
            return Err(Error::new(
                Code::Aborted,
                format!("communicator {} was aborted", self.name),
            )
            .sticky());
        }
        Ok(Inside {
            _turn: turn,
            _count: count,
        })
    }

    /// NCCL's own state: `Ok(true)` when nothing is under way.
    fn state(&self) -> Result<bool> {
        let _held = self.enter()?;
        if let Group::By(thread) = &self.group
            && !thread.formed(&self.nccl)?
        {
            return Ok(false);
        }
        let mut s = 0;
        // SAFETY: the communicator is alive while `_held` is.
        let r = unsafe { (self.nccl.t.ncclCommGetAsyncError)(self.raw(), &mut s) };
        self.nccl.check("ncclCommGetAsyncError", r, self.raw())?;
        if !matches!(s, SUCCESS | IN_PROGRESS) {
            let who = format!("communicator {}", self.name);
            self.nccl.check(&who, s, self.raw())?;
        }
        let ready = s != IN_PROGRESS;
        if ready {
            self.connected.store(true, SeqCst);
        }
        Ok(ready)
    }

    /// Waits until NCCL has finished what it is doing on the host.
    fn settle(&self, what: &str) -> Result<()> {
        let limit = self.timeout.unwrap_or(FORMING);
        let done = wait::until(what, Some(limit), || self.state());
        done.map_err(|e| match e.code {
            Code::Timeout => {
                let e = Error::new(
                    Code::Timeout,
                    format!(
                        "communicator {} of {} ranks, {}: {what} has not ended within {:.1} s; a rank is missing or cannot be reached",
                        self.name,
                        self.nranks,
                        self.members.of(GroupRank(self.rank)),
                        limit.as_secs_f64()
                    ),
                )
                .sticky();
                self.fail(e.clone());
                e
            }
            Code::Comm => {
                self.fail(e.clone());
                e
            }
            _ => e,
        })
    }

    /// Keeps the first failure and marks the streams.
    fn fail(&self, e: Error) {
        let mut slot = lock(&self.failure);
        let e = slot.get_or_insert(e).clone();
        drop(slot);
        for s in &*lock(&self.streams) {
            s.set(e.clone());
        }
        self.changed.notify_all();
    }

    /// Gives NCCL's communicator back without waiting for peers. The first who comes does it; may take as long as NCCL's threads.
    fn release(&self) {
        if self.gone.swap(true, SeqCst) {
            return;
        }
        self.quiet();
        if let Group::By(thread) = &self.group
            && !thread.leave()
        {
            self.over.store(true, SeqCst);
            return;
        }
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: made by us; `gone` lets exactly one come here, and nobody is inside any more.
            unsafe { (self.nccl.t.ncclCommAbort)(self.raw()) };
            self.over.store(true, SeqCst);
        }
    }

    /// Waits, once `gone` keeps others out, for those who are inside; with patience, as NCCL may keep one for ever.
    fn quiet(&self) {
        let end = Instant::now() + PATIENCE;
        while self.inside.load(SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Everything that was launched has ended: an orderly end with the peers, in bounded time.
    fn finish(&self) {
        let orderly = lock(&self.failure).is_none()
            && !self.aborted.load(SeqCst)
            && self.connected.load(SeqCst);
        if !orderly {
            return self.release();
        }
        let t = &self.nccl.t;
        // Memory that is freed meanwhile is taken off it by another thread.
        let done = self.enter().and_then(|_held| {
            let _in = self.dev.enter_anyway()?;
            for handle in lock(&self.registered)
                .drain()
                .map(|(_, h)| h)
                .filter(|h| *h != 0)
            {
                if let Some(f) = t.ncclCommDeregister {
                    // SAFETY: registered by us with this communicator.
                    unsafe { f(self.raw(), handle as *mut c_void) };
                }
            }
            // SAFETY: alive; finalize ends what is under way.
            let s = unsafe { (t.ncclCommFinalize)(self.raw()) };
            self.nccl.check("ncclCommFinalize", s, self.raw())
        });
        let done = done.and_then(|()| {
            wait::until("the end of a communicator", Some(PATIENCE), || self.state())
        });
        if done.is_err() || self.gone.swap(true, SeqCst) {
            return self.release();
        }
        self.quiet();
        if let Group::By(thread) = &self.group {
            thread.leave();
        }
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: finalized, destroyed once, with nobody inside.
            unsafe { (t.ncclCommDestroy)(self.raw()) };
            self.over.store(true, SeqCst);
        }
    }

    /// Takes groups that have ended off the list.
    fn landed(f: &mut Flights) -> Result<()> {
        while let Some(first) = f.queue.front() {
            if !first.end.query()? {
                break;
            }
            if let Some(done) = f.queue.pop_front() {
                f.spare.push(done.end);
            }
        }
        Ok(())
    }

    /// Is a launched group late, or has NCCL failed?
    fn glance(&self) -> Result<()> {
        let mut f = lock(&self.flights);
        Inner::landed(&mut f)?;
        if let Some(late) = f
            .queue
            .front()
            .filter(|l| l.until.is_some_and(|u| Instant::now() > u))
        {
            let limit = self.timeout.unwrap_or_default().as_secs_f64();
            return Err(Error::new(
                Code::Timeout,
                format!(
                    "{} on {} of {} ranks, {}: has not ended within {limit:.1} s; another rank has not come to it, or has failed",
                    late.what,
                    self.name,
                    self.nranks,
                    self.members.of(GroupRank(self.rank))
                ),
            )
            .sticky());
        }
        drop(f);
        self.state().map(drop)
    }
}

/// The watching thread.
fn watch(inner: &Inner) {
    loop {
        let f = lock(&inner.flights);
        let f = inner
            .changed
            .wait_timeout(f, GLANCE)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        let stop = f.stop;
        drop(f);
        if stop {
            inner.finish();
            return;
        }
        if inner.gone.load(SeqCst) {
            continue;
        }
        if inner.aborted.load(SeqCst) || lock(&inner.failure).is_some() {
            inner.release();
        } else if let Err(e) = inner.glance()
            && e.code != Code::Aborted
        {
            inner.fail(e);
            inner.release();
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // The thread ends it, and is not waited for after an abort; the host has made sure that no stream still works on it.
        let waits = !self.0.aborted.load(SeqCst) && lock(&self.0.failure).is_none();
        lock(&self.0.flights).stop = true;
        self.0.changed.notify_all();
        if waits {
            self.1.wait();
        }
    }
}

fn start(b: &Gpu, nccl: Arc<Nccl>, dev: Arc<Dev>, group: Group, cfg: CommConfig) -> Result<Comm> {
    let word = Mem::device(&dev, MemKind::Device, 256, 0);
    let inner = match word {
        Ok(word) => Arc::new(Inner {
            nccl,
            dev,
            group,
            name: cfg.name,
            rank: cfg.rank,
            nranks: cfg.nranks,
            members: cfg.members,
            timeout: cfg.timeout,
            word,
            aborted: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            serial: Mutex::new(()),
            inside: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            over: AtomicBool::new(false),
            failure: Mutex::new(None),
            planned: Mutex::default(),
            flights: Mutex::default(),
            changed: Condvar::new(),
            streams: Mutex::default(),
            registered: Mutex::default(),
        }),
        Err(e) => {
            let raw = group.raw();
            let ours = match &group {
                Group::At(..) => true,
                Group::By(thread) => thread.leave(),
            };
            match (dev.enter_anyway(), group) {
                (Ok(_in), _) if ours => {
                    // SAFETY: made by the caller, and of no further use. It waits for the thread that forms the group.
                    unsafe { (nccl.t.ncclCommAbort)(raw) };
                }
                (Err(_), Group::At(_, slot)) => slot.abandon(),
                _ => {}
            }
            return Err(e);
        }
    };
    let of_thread = inner.clone();
    let (ended, teller) = End::new();
    let spawned = b.host.spawn(Box::new(move || {
        // Dropped last.
        let _teller = teller;
        let inner = of_thread;
        watch(&inner);
    }));
    if let Err(e) = spawned {
        inner.release();
        return Err(e);
    }
    let mut comms = lock(&b.comms);
    comms.retain(|c| c.strong_count() > 0);
    comms.push(Arc::downgrade(&inner));
    drop(comms);
    Ok(Comm(inner, ended))
}

/// NCCL refuses two ranks on one GPU, late and without saying which; so each says beforehand which it has, and all refuse alike.
fn distinct(b: &Gpu, dev: &Dev, cfg: &CommConfig) -> Result<()> {
    let mine = dev.uuid();
    let key = |r: u32| format!("{}gpu/{r}", cfg.kv_prefix);
    if cfg.nranks < 2 || mine == [0; 16] {
        return Ok(());
    }
    match b.host.kv_set(&key(cfg.rank), &mine) {
        // A host without a store: NCCL finds out itself.
        Err(e) if e.code == Code::Unsupported => return Ok(()),
        r => r?,
    }
    let limit = cfg.timeout.unwrap_or(FORMING);
    let all = (0..cfg.nranks)
        .map(|r| b.host.kv_get(&key(r), limit))
        .collect::<Result<Vec<_>>>()?;
    match twins(&all) {
        None => Ok(()),
        Some((i, j)) => unsupported(format!(
            "{} of {} share one GPU, which the library of collectives refuses; give each rank a GPU, or let the host carry their collectives",
            cfg.members.list([i, j].map(GroupRank::from)),
            cfg.name
        )),
    }
}

/// The first two ranks that name the same GPU.
fn twins(all: &[Vec<u8>]) -> Option<(usize, usize)> {
    (1..all.len()).find_map(|i| all[..i].iter().position(|x| *x == all[i]).map(|j| (j, i)))
}

impl<B: OnGpu> Collectives<B> for GpuCollectives {
    type Comm = Comm;

    fn unique_id(b: &B, d: &B::Device) -> Result<Vec<u8>> {
        let nccl = b.gpu().nccl()?;
        let _in = B::dev(d).enter()?;
        nccl.id()
    }

    fn init(b: &B, d: &B::Device, id: &[u8], cfg: CommConfig) -> Result<Comm> {
        let (b, dev) = (b.gpu(), B::dev(d));
        let nccl = b.nccl()?;
        nccl.takes(id)?;
        distinct(b, dev, &cfg)?;
        let _in = dev.enter()?;
        if nccl.waits {
            let thread = Joining::begin(&nccl, dev, id, cfg.nranks, cfg.rank)?;
            return start(b, nccl, dev.clone(), Group::By(thread), cfg);
        }
        let slot = Slot::default();
        // SAFETY: the slot lives until the group has formed or been given up.
        let made = unsafe { nccl.join(slot.out(), cfg.nranks, id, cfg.rank) }
            .and_then(|()| match slot.get() {
                Handle::NULL => fail(
                    Code::Internal,
                    format!("{} gave no communicator", nccl.what),
                ),
                raw => Ok(raw),
            })
            .inspect_err(|_| slot.abandon())?;
        start(b, nccl, dev.clone(), Group::At(made, slot), cfg)
    }

    fn split(
        b: &B,
        c: &Comm,
        color: Option<i32>,
        key: i32,
        cfg: CommConfig,
    ) -> Result<Option<Comm>> {
        let inner = &c.0;
        let Some(split) = inner.nccl.t.ncclCommSplit else {
            let n = &inner.nccl;
            return unsupported(format!("{} {} has no split", n.what, n.version));
        };
        inner.settle("forming the group")?;
        let (slot, mut config) = (Slot::default(), Config::nonblocking());
        let mut asked = || {
            let _held = inner.enter()?;
            let _in = inner.dev.enter()?;
            // SAFETY: as for `init`; a negative colour makes no member.
            let s = unsafe {
                split(
                    inner.raw(),
                    color.unwrap_or(-1),
                    key,
                    slot.out(),
                    &mut config,
                )
            };
            inner.nccl.check("ncclCommSplit", s, inner.raw())
        };
        // The parent says when the child's address is there.
        asked()
            .and_then(|()| inner.settle("splitting the group"))
            .inspect_err(|_| slot.abandon())?;
        match (color, slot.get()) {
            (None, _) => Ok(None),
            (Some(_), Handle::NULL) => fail(Code::Internal, "ncclCommSplit gave no communicator"),
            (Some(_), raw) => start(
                b.gpu(),
                inner.nccl.clone(),
                inner.dev.clone(),
                Group::At(raw, slot),
                cfg,
            )
            .map(Some),
        }
    }

    fn supports(_: &B, c: &Comm, x: &CollShape) -> Result<Support> {
        supports(x, c.0.nranks, &c.0.nccl)?;
        Ok(Support {
            tier: 2,
            ..Support::default()
        })
    }

    fn launch(_: &B, c: &Comm, s: &Stream, group: &[Coll<'_, Mem>]) -> Result<()> {
        let inner = &c.0;
        if !Arc::ptr_eq(&inner.dev, &s.dev) {
            return fail(
                Code::Invalid,
                format!(
                    "a communicator of device {} on a stream of device {}",
                    inner.dev.index, s.dev.index
                ),
            );
        }
        s.not_captured("a collective")?;
        let mut planned = lock(&inner.planned);
        let p = &mut *planned;
        p.calls.clear();
        p.each.clear();
        for x in group {
            let width = x.dtype.bits() / 8;
            for o in [&x.send, &x.recv, &x.scale_dev].into_iter().flatten() {
                inside("an operand", o)?;
                o.mem.reached_by(&inner.dev)?;
                if call::reduces(x.kind) && width > 0 && !at(o).is_multiple_of(width) {
                    return fail(
                        Code::Invalid,
                        format!(
                            "{}: an operand starts at {:#x}, elements need multiples of {width}",
                            name(x.kind),
                            at(o)
                        ),
                    );
                }
            }
            let shape = CollShape {
                kind: x.kind,
                dtype: x.dtype,
                reduce: x.reduce,
                count: x.count,
                flags: x.flags,
                in_place: same(x),
            };
            let reduction = supports(&shape, inner.nranks, &inner.nccl)?;
            let from = p.calls.len();
            calls(x, inner.rank, inner.nranks, &mut p.calls)?;
            p.each.push((reduction, from..p.calls.len()));
        }
        inner.settle("forming the group")?;
        inner.uses(s);
        if s.held() {
            let (inner, put_off) = (inner.clone(), PutOff::new(group, p));
            drop(planned);
            return s.put(move |s| put_off.launch(&inner, s));
        }
        inner.start(s, group, p)
    }

    fn async_error(_: &B, c: &Comm) -> Result<Health> {
        match c.0.state()? || c.0.connected.load(SeqCst) {
            true => Ok(Health::Ready),
            false => Ok(Health::Connecting),
        }
    }

    fn abort(_: &B, c: &Comm) -> Result<()> {
        let inner = &c.0;
        if !inner.aborted.swap(true, SeqCst) {
            let e = Error::new(
                Code::Aborted,
                format!("communicator {} was aborted", inner.name),
            )
            .sticky();
            inner.fail(e);
        }
        Ok(())
    }
}

/// Is it in place?
fn same(x: &Coll<'_, Mem>) -> bool {
    match (&x.send, &x.recv) {
        (Some(s), Some(r)) => at(s) == at(r),
        _ => false,
    }
}

fn name(kind: u32) -> &'static str {
    abi::coll_name(kind).unwrap_or("a collective")
}

#[cfg(test)]
mod tests {
    use super::twins;

    #[test]
    fn the_first_two_ranks_of_one_gpu_are_named() {
        let of = |names: &[&str]| {
            twins(
                &names
                    .iter()
                    .map(|n| n.as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&["a", "b", "c"]), None);
        assert_eq!(of(&["a", "b", "c", "b", "a"]), Some((1, 3)));
    }
}
