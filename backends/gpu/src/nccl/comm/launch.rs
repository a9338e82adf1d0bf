//! A group of collectives as calls of NCCL on a stream: registered memory, reductions made for the launch, and the record of its end.

use super::{Flight, Inner, name};
use crate::lock;
use crate::memory::{Mem, at};
use crate::nccl::call::{self, BYTES, Call, Reduction, WORD};
use crate::runtime::{Address, EVENT_NO_TIMES};
use crate::stream::{Event, Line};
use crossweave_plugin::{Coll, MemKind, Result, Span, abi};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What a launch becomes. Kept between launches, so that one allocates only where it is larger than all before.
#[derive(Default)]
pub(super) struct Planned {
    pub(super) calls: Vec<Call>,
    /// Per collective of the group: how it reduces, and its calls.
    pub(super) each: Vec<(Option<Reduction>, Range<usize>)>,
    /// Per collective: NCCL's number of the reduction.
    numbers: Vec<u32>,
    /// Reductions made for this launch.
    made: Vec<u32>,
}

/// A group that a stream puts off: what it names is the host's until the stream has passed it (R8), except the counts, which are copied.
pub(super) struct PutOff {
    group: Vec<Coll<'static, Mem>>,
    planned: Planned,
}

impl PutOff {
    pub(super) fn new(group: &[Coll<'_, Mem>], p: &Planned) -> PutOff {
        let span = |s: &Option<Span<'_, Mem>>| {
            s.as_ref().map(|s| Span {
                // SAFETY: memory that a span names stays alive, and its handle where it is, until the stream has passed the call (R8).
                mem: unsafe { &*std::ptr::from_ref(s.mem) },
                offset: s.offset,
                bytes: s.bytes,
            })
        };
        let owned = |x: &Coll<'_, Mem>| Coll {
            kind: x.kind,
            dtype: x.dtype,
            reduce: x.reduce,
            root: x.root,
            peer: x.peer,
            count: x.count,
            send: span(&x.send),
            recv: span(&x.recv),
            // They have become calls.
            send_counts: &[],
            send_offsets: &[],
            recv_counts: &[],
            recv_offsets: &[],
            scale: x.scale,
            scale_dev: span(&x.scale_dev),
            flags: x.flags,
            seq: x.seq,
        };
        PutOff {
            group: group.iter().map(owned).collect(),
            planned: Planned {
                calls: p.calls.clone(),
                each: p.each.clone(),
                ..Planned::default()
            },
        }
    }

    pub(super) fn launch(mut self, inner: &Inner, s: &Line) -> Result<()> {
        inner.start(s, &self.group, &mut self.planned)
    }
}

impl Inner {
    /// Remembers the stream, to mark it when the group fails.
    pub(super) fn uses(&self, s: &Line) {
        let mut streams = lock(&self.streams);
        if !streams.iter().any(|f| Arc::ptr_eq(f, &s.fault)) {
            streams.push(s.fault.clone());
            s.fault.carry();
        }
    }

    /// Registers symmetric memory at its first use; without it NCCL copies through its own buffers.
    fn register(&self, m: &Mem) {
        if m.kind != MemKind::Symmetric || !m.of_collectives() {
            return;
        }
        let Some(f) = self.nccl.t.ncclCommRegister else {
            return;
        };
        let mut known = lock(&self.registered);
        if known.contains_key(&m.at) {
            return;
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: memory of NCCL's own allocator, of that size.
        let s = unsafe {
            f(
                self.raw(),
                m.at as usize as *mut c_void,
                m.bytes as usize,
                &mut handle,
            )
        };
        // Not registered is not wrong, only slower; it is not tried again.
        let handle = if s == 0 { handle as usize } else { 0 };
        known.insert(m.at, handle);
    }

    /// The memory there is about to be freed.
    pub(crate) fn forget(&self, at: Address) {
        let Some(h) = lock(&self.registered).remove(&at).filter(|h| *h != 0) else {
            return;
        };
        if let (Some(f), Ok(_held)) = (self.nccl.t.ncclCommDeregister, self.enter()) {
            // SAFETY: registered by us with this communicator, which is alive while `_held` is.
            unsafe { f(self.raw(), h as *mut c_void) };
        }
    }

    /// Launches a group, and puts its end on record.
    pub(super) fn start(&self, s: &Line, group: &[Coll<'_, Mem>], p: &mut Planned) -> Result<()> {
        self.enqueue(s, group, p)?;
        // Connections are made at first use, while the call is under way.
        self.settle("launching")?;
        self.departed(s, group)
    }

    fn enqueue(&self, s: &Line, group: &[Coll<'_, Mem>], p: &mut Planned) -> Result<()> {
        let _held = self.enter()?;
        let _in = self.dev.enter()?;
        let t = &self.nccl.t;
        let done = self
            .numbers(group, p)
            .and_then(|()| self.launch(s, group, p));
        for op in p.made.drain(..) {
            // SAFETY: made for this launch and communicator; a launched collective no longer reads it.
            unsafe { (t.ncclRedOpDestroy)(op, self.raw()) };
        }
        done
    }

    /// Registers the group's memory, and finds NCCL's number of each reduction, which it may have to be asked for.
    fn numbers(&self, group: &[Coll<'_, Mem>], p: &mut Planned) -> Result<()> {
        p.numbers.clear();
        for (x, (reduction, _)) in group.iter().zip(&p.each) {
            for m in [&x.send, &x.recv].into_iter().flatten() {
                self.register(m.mem);
            }
            p.numbers.push(match reduction {
                Some(Reduction::PremulSum) => {
                    let op = self.premul(x)?;
                    p.made.push(op);
                    op
                }
                Some(Reduction::Built(n)) => *n,
                None => 0,
            });
        }
        Ok(())
    }

    fn launch(&self, s: &Line, group: &[Coll<'_, Mem>], p: &Planned) -> Result<()> {
        let t = &self.nccl.t;
        // SAFETY: operands live until the stream has passed the group (R8), and were checked to be long enough. A group that was begun
        // is ended, whatever happens in it.
        let (done, end) = unsafe {
            self.nccl
                .check("ncclGroupStart", (t.ncclGroupStart)(), self.raw())?;
            let mut each = group.iter().zip(&p.each).zip(&p.numbers);
            let done = each.try_for_each(|((x, (_, range)), op)| {
                p.calls[range.clone()]
                    .iter()
                    .try_for_each(|c| self.call(s, x, c, *op))
            });
            let end = match &self.nccl.other {
                Some(o) => (o.flush)(self.raw(), s.raw),
                None => (t.ncclGroupEnd)(),
            };
            (done, end)
        };
        done?;
        self.nccl.check("ncclGroupEnd", end, self.raw())
    }

    fn premul(&self, x: &Coll<'_, Mem>) -> Result<u32> {
        /// `ncclScalarResidence_t`.
        const DEVICE: u32 = 0;
        const HOST: u32 = 1;
        let mut host = call::scale_bytes(x.scale, x.dtype);
        let (scalar, place) = match &x.scale_dev {
            Some(m) => (at(m) as usize as *mut c_void, DEVICE),
            None => (host.as_mut_ptr().cast(), HOST),
        };
        let mut op = 0;
        // SAFETY: a scalar of the elements' type; the library copies one of the host at once.
        let s = unsafe {
            (self.nccl.t.ncclRedOpCreatePreMulSum)(
                &mut op,
                scalar,
                call::number(x.dtype).unwrap_or(0),
                place,
                self.raw(),
            )
        };
        self.nccl.check("ncclRedOpCreatePreMulSum", s, self.raw())?;
        Ok(op)
    }

    /// # Safety
    /// Inside a group, with operands that hold what the call names.
    unsafe fn call(&self, s: &Line, x: &Coll<'_, Mem>, c: &Call, op: u32) -> Result<()> {
        let t = &self.nccl.t;
        let send = x.send.as_ref().map_or(0, at);
        let recv = x.recv.as_ref().map_or(0, at);
        let (from, to) = (
            |n: u64| (send + n) as usize as *const c_void,
            |n: u64| (recv + n) as usize as *mut c_void,
        );
        let kind = call::number(x.dtype).unwrap_or(BYTES);
        let (r, q) = (self.raw(), s.raw);
        let own = |peer: i32| peer == self.rank as i32;
        // A rank's own piece that is where it belongs.
        let stays = x.kind == abi::COLL_ALL_GATHER_V
            && x.recv_offsets
                .get(self.rank as usize)
                .is_some_and(|o| send == recv + o * (x.dtype.bits() / 8));
        // SAFETY: promised by the caller.
        let (name, status) = unsafe {
            match *c {
                Call::AllReduce { count } => (
                    "ncclAllReduce",
                    (t.ncclAllReduce)(from(0), to(0), count as usize, kind, op, r, q),
                ),
                Call::ReduceScatter { count } => (
                    "ncclReduceScatter",
                    (t.ncclReduceScatter)(from(0), to(0), count as usize, kind, op, r, q),
                ),
                Call::AllGather { bytes } => (
                    "ncclAllGather",
                    (t.ncclAllGather)(from(0), to(0), bytes as usize, BYTES, r, q),
                ),
                Call::Broadcast { bytes, root } => {
                    // Either end may be absent where it is not the rank's to give or to take.
                    let (a, b) = (
                        if send == 0 { recv } else { send },
                        if recv == 0 { send } else { recv },
                    );
                    let (a, b) = (a as usize as *const c_void, b as usize as *mut c_void);
                    (
                        "ncclBroadcast",
                        (t.ncclBroadcast)(a, b, bytes as usize, BYTES, root, r, q),
                    )
                }
                Call::Reduce { count, root } => {
                    let b = if recv == 0 { send } else { recv } as usize as *mut c_void;
                    (
                        "ncclReduce",
                        (t.ncclReduce)(from(0), b, count as usize, kind, op, root, r, q),
                    )
                }
                Call::Send { peer, .. } | Call::Recv { peer, .. } if own(peer) && stays => {
                    return Ok(());
                }
                Call::Send { at, bytes, peer } => (
                    "ncclSend",
                    (t.ncclSend)(from(at), bytes as usize, BYTES, peer, r, q),
                ),
                Call::Recv { at, bytes, peer } => (
                    "ncclRecv",
                    (t.ncclRecv)(to(at), bytes as usize, BYTES, peer, r, q),
                ),
                Call::Barrier => {
                    let w = self.word.at as usize;
                    (
                        "ncclAllReduce",
                        (t.ncclAllReduce)(w as *const c_void, w as *mut c_void, 1, WORD, 0, r, q),
                    )
                }
            }
        };
        self.nccl.check(name, status, r)
    }

    /// Puts the group's end on record for the watching thread.
    fn departed(&self, s: &Line, group: &[Coll<'_, Mem>]) -> Result<()> {
        // What has ended since gives its event, so that there are as many as groups are under way at once.
        let spare = {
            let mut f = lock(&self.flights);
            Inner::landed(&mut f)?;
            f.spare.pop()
        };
        let end = match spare {
            Some(e) => e,
            None => Event::new(&self.dev, EVENT_NO_TIMES)?,
        };
        end.record_raw(s.raw)?;
        let flight = Flight {
            end,
            until: self.timeout.and_then(|t| Instant::now().checked_add(t)),
            what: group.first().map_or("a group", |x| name(x.kind)),
        };
        lock(&self.flights).queue.push_back(flight);
        Ok(())
    }
}
