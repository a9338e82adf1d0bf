//! A collective in the ABI's words: its descriptor with spans and counts checked, what it moves, which buffers it uses.

use crate::buffer::{Buffer, Region};
use crate::comm::{Collective, CommInner, Communicator, Reduce, ask};
use crate::error::{Code, Error, Result};
use crate::listing::ListedCall;
use crate::stream::StreamCore;
use crossweave_abi as abi;
use crossweave_abi::DType;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Which kinds of collectives move which types as bytes: 0 = not asked yet.
pub(crate) struct MovedAsBytes([AtomicU8; KINDS * DType::ALL.len()]);

impl Default for MovedAsBytes {
    fn default() -> MovedAsBytes {
        MovedAsBytes(std::array::from_fn(|_| AtomicU8::new(0)))
    }
}

/// Kinds of collectives and one more, for the one that is not there.
const KINDS: usize = abi::COLL_BARRIER as usize + 1;

impl MovedAsBytes {
    /// The cell of a kind and a type of whole bytes that is not bytes already.
    fn cell(kind: u32, dtype: u32) -> Option<usize> {
        let all = DType::ALL.into_iter().enumerate();
        let mut wide = all.filter(|(_, t)| t.bits() >= 8 && *t != DType::U8);
        let (at, _) = wide.find(|(_, t)| t.id() == dtype)?;
        Some(kind as usize * DType::ALL.len() + at).filter(|at| *at < KINDS * DType::ALL.len())
    }
}

/// The type and count of a descriptor's elements as bytes.
fn bytes_of(d: &abi::CollDesc) -> (u32, u64) {
    let size = DType::from_id(d.dtype).map_or(1, |t| t.bytes(1));
    (DType::U8.id(), d.count * size)
}

/// Does a collective that only moves elements go as bytes, because the plugin moves those and not this type? Asked
/// once for each kind and type; the answer is the same on every rank, as that of `comm_query` is.
fn moves_bytes(comm: &CommInner, d: &abi::CollDesc, c: &Collective<'_>) -> Result<bool> {
    let moved = matches!(
        d.kind,
        abi::COLL_ALL_GATHER
            | abi::COLL_BROADCAST
            | abi::COLL_ALL_TO_ALL
            | abi::COLL_SEND
            | abi::COLL_RECV
    );
    let cell = MovedAsBytes::cell(d.kind, d.dtype);
    let Some(cell) = cell.filter(|_| moved).map(|i| &comm.bytes.0[i]) else {
        return Ok(false);
    };
    const OWN: u8 = 1;
    const BYTES: u8 = 2;
    let known = match cell.load(Relaxed) {
        0 => {
            let (dtype, count) = bytes_of(d);
            let as_bytes = abi::CollDesc { dtype, count, ..*d };
            let way = match ask(comm, d, c)?.is_none() && ask(comm, &as_bytes, c)?.is_some() {
                true => BYTES,
                false => OWN,
            };
            cell.store(way, Relaxed);
            way
        }
        known => known,
    };
    Ok(known == BYTES)
}

impl Communicator {
    pub(crate) fn desc(&self, c: &Collective<'_>, seq: u64) -> Result<(abi::CollDesc, ())> {
        let mut d = abi::CollDesc { seq, ..NULL_DESC };
        let span = |r: &Region<'_>| r.buffer.span(r.offset, r.bytes);
        let count = |r: &Region<'_>, t: DType| t.count(r.bytes);
        match c {
            Collective::AllReduce { buf, dtype, op } => {
                (d.kind, d.dtype, d.count) = (abi::COLL_ALL_REDUCE, dtype.id(), count(buf, *dtype));
                (d.send, d.recv) = (span(buf)?, span(buf)?);
                set_reduce(&mut d, *op);
            }
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            } => {
                (d.kind, d.dtype, d.count) =
                    (abi::COLL_REDUCE_SCATTER, dtype.id(), count(recv, *dtype));
                (d.send, d.recv) = (span(send)?, span(recv)?);
                self.lengths(
                    "reduce_scatter",
                    send.bytes,
                    recv.bytes * self.inner.size as u64,
                )?;
                let own = send.offset + recv.bytes * u64::from(self.inner.rank);
                self.shares("reduce_scatter", send, recv, recv.offset == own)?;
                set_reduce(&mut d, *op);
            }
            Collective::AllGather { send, recv, dtype } => {
                (d.kind, d.dtype, d.count) =
                    (abi::COLL_ALL_GATHER, dtype.id(), count(send, *dtype));
                (d.send, d.recv) = (span(send)?, span(recv)?);
                self.lengths(
                    "all_gather",
                    recv.bytes,
                    send.bytes * self.inner.size as u64,
                )?;
                let own = recv.offset + send.bytes * u64::from(self.inner.rank);
                self.shares("all_gather", send, recv, send.offset == own)?;
            }
            Collective::Broadcast { buf, dtype, root } => {
                (d.kind, d.dtype, d.count, d.root) = (
                    abi::COLL_BROADCAST,
                    dtype.id(),
                    count(buf, *dtype),
                    *root as i32,
                );
                (d.send, d.recv) = (span(buf)?, span(buf)?);
            }
            Collective::Reduce {
                buf,
                dtype,
                op,
                root,
            } => {
                (d.kind, d.dtype, d.count, d.root) = (
                    abi::COLL_REDUCE,
                    dtype.id(),
                    count(buf, *dtype),
                    *root as i32,
                );
                (d.send, d.recv) = (span(buf)?, span(buf)?);
                set_reduce(&mut d, *op);
            }
            Collective::AllToAll { send, recv, dtype } => {
                (d.kind, d.dtype) = (abi::COLL_ALL_TO_ALL, dtype.id());
                d.count = count(send, *dtype) / self.inner.size as u64;
                (d.send, d.recv) = (span(send)?, span(recv)?);
                self.lengths("all_to_all", send.bytes, recv.bytes)?;
                self.shares("all_to_all", send, recv, send.offset == recv.offset)?;
            }
            Collective::AllToAllV {
                send,
                recv,
                dtype,
                counts,
            }
            | Collective::AllGatherV {
                send,
                recv,
                dtype,
                counts,
            } => {
                let a2a = matches!(c, Collective::AllToAllV { .. });
                d.kind = if a2a {
                    abi::COLL_ALL_TO_ALL_V
                } else {
                    abi::COLL_ALL_GATHER_V
                };
                (d.dtype, d.count) = (dtype.id(), count(send, *dtype));
                (d.send, d.recv) = (span(send)?, span(recv)?);
                let n = self.inner.size as usize;
                let ok = counts.recv.len() == n
                    && counts.recv_at.len() == n
                    && (!a2a || (counts.send.len() == n && counts.send_at.len() == n));
                if !ok {
                    return Err(Error::new(
                        Code::Invalid,
                        "launch",
                        format!(
                            "counts and offsets must have {n} entries, one per rank of {}",
                            self.inner.name
                        ),
                    ));
                }
                if a2a {
                    (d.send_counts, d.send_offsets) =
                        (counts.send.as_ptr(), counts.send_at.as_ptr());
                }
                (d.recv_counts, d.recv_offsets) = (counts.recv.as_ptr(), counts.recv_at.as_ptr());
            }
            Collective::Send { buf, dtype, peer } => {
                (d.kind, d.dtype, d.count, d.peer, d.send) = (
                    abi::COLL_SEND,
                    dtype.id(),
                    count(buf, *dtype),
                    *peer as i32,
                    span(buf)?,
                );
            }
            Collective::Recv { buf, dtype, peer } => {
                (d.kind, d.dtype, d.count, d.peer, d.recv) = (
                    abi::COLL_RECV,
                    dtype.id(),
                    count(buf, *dtype),
                    *peer as i32,
                    span(buf)?,
                );
            }
            Collective::Barrier => (d.kind, d.dtype) = (abi::COLL_BARRIER, DType::U8.id()),
        }
        if moves_bytes(&self.inner, &d, c)? {
            (d.dtype, d.count) = bytes_of(&d);
        }
        Ok((d, ()))
    }

    /// Input and output may share memory in one way only: the one each kind calls in place.
    fn shares(
        &self,
        what: &str,
        send: &Region<'_>,
        recv: &Region<'_>,
        in_place: bool,
    ) -> Result<()> {
        let apart = !std::ptr::eq(send.buffer, recv.buffer)
            || send.offset >= recv.offset + recv.bytes
            || recv.offset >= send.offset + send.bytes;
        if apart || in_place {
            return Ok(());
        }
        let piece = match what {
            "all_to_all" => "the other",
            _ => "this rank's piece of the other",
        };
        Err(Error::new(
            Code::Invalid,
            "launch",
            format!(
                "{} of {}: {what} whose input and output overlap, but neither is {piece}; use that, or memory of its own",
                self.inner.me(),
                self.inner.name
            ),
        ))
    }

    /// The members of one call have no order: none may write what another uses.
    pub(crate) fn apart(&self, members: &[Collective<'_>]) -> Result<()> {
        if members.len() < 2 {
            return Ok(());
        }
        let mut all: Vec<Touch<'_>> = vec![];
        for (i, m) in members.iter().enumerate() {
            let some = touches(m, self.inner.rank).into_iter().flatten();
            let some = some.filter(|(r, _)| r.bytes > 0);
            all.extend(some.map(|(r, writes)| Touch {
                buffer: r.buffer,
                from: r.offset,
                to: r.offset + r.bytes,
                member: i,
                writes,
            }));
        }
        all.sort_unstable_by_key(|t| (std::ptr::from_ref(t.buffer) as usize, t.from));
        // Those that reach furthest so far, of any kind and of writes, each with the furthest of another member.
        let (mut any, mut writes) = (Furthest::default(), Furthest::default());
        for (i, t) in all.iter().enumerate() {
            if i > 0 && !std::ptr::eq(all[i - 1].buffer, t.buffer) {
                (any, writes) = Default::default();
            }
            let before = if t.writes { &any } else { &writes };
            if let Some(other) = before.beyond(t, &all) {
                let (first, second) = match other.member < t.member {
                    true => (other, t),
                    false => (t, other),
                };
                let does = |t: &Touch<'_>| {
                    let verb = if t.writes { "writes" } else { "reads" };
                    let name = kind_name(&members[t.member]);
                    format!(
                        "member {} ({name}) {verb} bytes {}..{}",
                        t.member, t.from, t.to
                    )
                };
                let why = format!(
                    "{} of {}: in one call of {} members {} and {} of one buffer, and members have no order; give each memory of its own, or make two calls",
                    self.inner.me(),
                    self.inner.name,
                    members.len(),
                    does(first),
                    does(second)
                );
                return Err(Error::new(Code::Invalid, "launch", why));
            }
            any.take(i, t, &all);
            if t.writes {
                writes.take(i, t, &all);
            }
        }
        Ok(())
    }

    /// What no descriptor shows: ranks that are not there.
    pub(crate) fn sane(&self, c: &Collective<'_>) -> Result<()> {
        let n = self.inner.size;
        let fail = |why: String| {
            let name = &self.inner.name;
            Err(Error::new(
                Code::Invalid,
                "launch",
                format!("{why} on {name}"),
            ))
        };
        match c {
            Collective::Broadcast { root, .. } | Collective::Reduce { root, .. } if *root >= n => {
                fail(format!("root {root} of {n} ranks"))
            }
            Collective::Send { peer, .. } | Collective::Recv { peer, .. } if *peer >= n => {
                fail(format!("peer rank {peer} of {n} ranks"))
            }
            _ => Ok(()),
        }
    }

    fn lengths(&self, what: &str, have: u64, want: u64) -> Result<()> {
        if have == want {
            return Ok(());
        }
        Err(Error::new(
            Code::Invalid,
            "launch",
            format!(
                "{what} on {} of {} ranks: the full vector has {have} bytes, {want} expected",
                self.inner.name, self.inner.size
            ),
        ))
    }

    /// Elements and bytes of the full logical vector (the `n` of docs/zero.md, "Traffic"), and of pieces of any lengths the elements that
    /// this rank gives itself.
    pub(crate) fn logical(&self, c: &Collective<'_>) -> [u64; 3] {
        let (bytes, dtype) = match c {
            Collective::AllReduce { buf, dtype, .. }
            | Collective::Broadcast { buf, dtype, .. }
            | Collective::Reduce { buf, dtype, .. }
            | Collective::Send { buf, dtype, .. }
            | Collective::Recv { buf, dtype, .. } => (buf.bytes, *dtype),
            Collective::ReduceScatter { send, dtype, .. }
            | Collective::AllToAll { send, dtype, .. } => (send.bytes, *dtype),
            Collective::AllGather { recv, dtype, .. }
            | Collective::AllGatherV { recv, dtype, .. } => (recv.bytes, *dtype),
            Collective::AllToAllV { dtype, counts, .. } => {
                (dtype.bytes(counts.send.iter().sum()), *dtype)
            }
            Collective::Barrier => (0, DType::U8),
        };
        let own = match c {
            Collective::AllToAllV { counts, .. } => {
                let own = counts.send.get(self.inner.rank as usize);
                own.copied().unwrap_or(0)
            }
            Collective::AllGatherV { send, .. } => dtype.count(send.bytes),
            _ => 0,
        };
        [dtype.count(bytes), bytes, own]
    }
}

/// What one member does to some bytes.
struct Touch<'a> {
    buffer: &'a Buffer,
    from: u64,
    to: u64,
    member: usize,
    writes: bool,
}

/// The touch that ends last, and the one that ends last of all other members: places in a list.
#[derive(Default)]
struct Furthest {
    first: Option<usize>,
    other: Option<usize>,
}

impl Furthest {
    /// One of another member that reaches into `t`, which begins no earlier than it.
    fn beyond<'a, 'b>(&self, t: &Touch<'_>, all: &'b [Touch<'a>]) -> Option<&'b Touch<'a>> {
        let each = [self.first, self.other].into_iter().flatten();
        let mut each = each.map(|i| &all[i]);
        each.find(|o| o.member != t.member && o.to > t.from)
    }
    fn take(&mut self, i: usize, t: &Touch<'_>, all: &[Touch<'_>]) {
        let to = |i: Option<usize>| i.map_or(0, |i| all[i].to);
        let same = self.first.is_some_and(|f| all[f].member == t.member);
        if t.to > to(self.first) {
            if !same {
                self.other = self.first;
            }
            self.first = Some(i);
        } else if !same && t.to > to(self.other) {
            self.other = Some(i);
        }
    }
}

/// The bytes a member reads and writes, in the order of [`uses`]: of pieces by counts, from the first to the last.
fn touches<'a>(c: &Collective<'a>, rank: u32) -> [Option<(Region<'a>, bool)>; 2] {
    let pieces = |r: &Region<'a>, t: DType, counts: &[u64], at: &[u64]| {
        let each = || counts.iter().zip(at).filter(|(n, _)| **n > 0);
        let from = each().map(|(_, at)| *at).min().unwrap_or(0);
        let to = each().map(|(n, at)| at + n).max().unwrap_or(0);
        Region {
            offset: r.offset + t.bytes(from),
            bytes: t.bytes(to - from),
            ..*r
        }
    };
    match c {
        Collective::Broadcast { buf, root, .. } => [Some((*buf, *root != rank)), None],
        Collective::AllReduce { buf, .. }
        | Collective::Reduce { buf, .. }
        | Collective::Recv { buf, .. } => [Some((*buf, true)), None],
        Collective::Send { buf, .. } => [Some((*buf, false)), None],
        Collective::ReduceScatter { send, recv, .. }
        | Collective::AllGather { send, recv, .. }
        | Collective::AllToAll { send, recv, .. } => [Some((*send, false)), Some((*recv, true))],
        Collective::AllToAllV {
            send,
            recv,
            dtype,
            counts,
        } => {
            let out = pieces(send, *dtype, &counts.send, &counts.send_at);
            let back = pieces(recv, *dtype, &counts.recv, &counts.recv_at);
            [Some((out, false)), Some((back, true))]
        }
        Collective::AllGatherV {
            send,
            recv,
            dtype,
            counts,
        } => {
            let back = pieces(recv, *dtype, &counts.recv, &counts.recv_at);
            [Some((*send, false)), Some((back, true))]
        }
        Collective::Barrier => [None, None],
    }
}

pub(crate) const NULL_DESC: abi::CollDesc = abi::CollDesc {
    size: size_of::<abi::CollDesc>() as u32,
    kind: 0,
    dtype: 0,
    reduce: 0,
    root: 0,
    peer: 0,
    count: 0,
    send: abi::Span::NULL,
    recv: abi::Span::NULL,
    send_counts: std::ptr::null(),
    send_offsets: std::ptr::null(),
    recv_counts: std::ptr::null(),
    recv_offsets: std::ptr::null(),
    scale: 0.0,
    scale_dev: abi::Span::NULL,
    flags: 0,
    reserved: 0,
    seq: 0,
};

fn set_reduce(d: &mut abi::CollDesc, op: Reduce) {
    d.flags = abi::COLLF_ACC_F32;
    d.reduce = match op {
        Reduce::Sum => abi::RED_SUM,
        Reduce::Prod => abi::RED_PROD,
        Reduce::Min => abi::RED_MIN,
        Reduce::Max => abi::RED_MAX,
        Reduce::Avg => abi::RED_AVG,
        Reduce::PremulSum(x) => {
            d.scale = x;
            abi::RED_PREMUL_SUM
        }
    };
}

pub(crate) fn kind_name(c: &Collective<'_>) -> &'static str {
    let kind = match c {
        Collective::AllReduce { .. } => abi::COLL_ALL_REDUCE,
        Collective::ReduceScatter { .. } => abi::COLL_REDUCE_SCATTER,
        Collective::AllGather { .. } => abi::COLL_ALL_GATHER,
        Collective::Broadcast { .. } => abi::COLL_BROADCAST,
        Collective::Reduce { .. } => abi::COLL_REDUCE,
        Collective::AllToAll { .. } => abi::COLL_ALL_TO_ALL,
        Collective::AllToAllV { .. } => abi::COLL_ALL_TO_ALL_V,
        Collective::AllGatherV { .. } => abi::COLL_ALL_GATHER_V,
        Collective::Send { .. } => abi::COLL_SEND,
        Collective::Recv { .. } => abi::COLL_RECV,
        Collective::Barrier => abi::COLL_BARRIER,
    };
    abi::coll_name(kind).unwrap_or("unknown")
}

/// Adds a group to the listing of its device.
#[cold]
pub(crate) fn list(
    comm: &CommInner,
    stream: &StreamCore,
    members: &[Collective<'_>],
    descs: &[abi::CollDesc],
) {
    let mut what = format!("{}, {} of {}", comm.name, comm.rank, comm.size);
    let mut operands = vec![];
    for (m, d) in members.iter().zip(descs) {
        let (kind, n, op) = (kind_name(m), d.count, (d.reduce, d.scale));
        what += &format!(
            " | {kind} {n} of {}, {op:?}, {}, {}",
            d.dtype, d.root, d.peer
        );
        for (r, writes) in touches(m, comm.rank).into_iter().flatten() {
            let at = r.buffer.span(r.offset, r.bytes).map_or(0, |s| s.offset);
            operands.push(Some(r.buffer.listed(at, r.bytes, writes)));
        }
    }
    stream.account.list(ListedCall {
        stream: stream.name.clone(),
        what,
        operands,
    });
}

pub(crate) fn uses<'a>(c: &Collective<'a>) -> [Option<(&'a Buffer, bool)>; 2] {
    match c {
        Collective::AllReduce { buf, .. }
        | Collective::Broadcast { buf, .. }
        | Collective::Reduce { buf, .. }
        | Collective::Recv { buf, .. } => [Some((buf.buffer, true)), None],
        Collective::Send { buf, .. } => [Some((buf.buffer, false)), None],
        Collective::ReduceScatter { send, recv, .. }
        | Collective::AllGather { send, recv, .. }
        | Collective::AllToAll { send, recv, .. }
        | Collective::AllToAllV { send, recv, .. }
        | Collective::AllGatherV { send, recv, .. } => {
            [Some((send.buffer, false)), Some((recv.buffer, true))]
        }
        Collective::Barrier => [None, None],
    }
}
