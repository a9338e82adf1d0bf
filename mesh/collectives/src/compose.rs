//! The compositions: each missing collective out of those that are there, down to grouped sends and receives.

use crate::fold::{Fold, FoldKey, Folder, accumulator, part, pattern, scalar, scaler};
use crate::group::Collectives;
use crate::route::{Route, overlap, with_op};
use crossweave_hal::abi::op::binary;
use crossweave_hal::{
    Code, Collective, Counts, DType, Error, Kernel, Reduce, Region, Result, Stream, Tag,
};
use std::sync::Arc;

/// How a vector of any length is cut into one piece per rank: equal pieces where it divides; else pieces of whole cache lines, of which
/// the last ones are shorter or empty.
struct Cut {
    count: u64,
    piece: u64,
}

impl Cut {
    fn new(count: u64, ranks: u32) -> Cut {
        let n = u64::from(ranks);
        let piece = match count.is_multiple_of(n) {
            true => count / n,
            false => count.div_ceil(n).next_multiple_of(64).min(count),
        };
        Cut { count, piece }
    }
    fn at(&self, rank: u32) -> u64 {
        (u64::from(rank) * self.piece).min(self.count)
    }
    fn len(&self, rank: u32) -> u64 {
        self.at(rank + 1) - self.at(rank)
    }
    fn even(&self, ranks: u32) -> bool {
        self.piece * u64::from(ranks) == self.count
    }
}

fn elements(r: Region<'_>, dtype: DType) -> u64 {
    r.bytes * 8 / dtype.bits()
}

impl Collectives {
    /// Runs a part of a composition by whatever route it has itself. Not counted.
    pub(crate) fn run(&mut self, s: &Stream, c: &Collective<'_>) -> Result<()> {
        match self.route(c)? {
            Route::Native => self.messages_or_one(s, c),
            route => self.compose(s, c, route),
        }
    }

    fn messages_or_one(&mut self, s: &Stream, c: &Collective<'_>) -> Result<()> {
        match self.islands {
            Some(_) => self.messages(s, &[*c]),
            None => self.comm.group_uncounted(s, &[*c]),
        }
    }

    pub(crate) fn compose(&mut self, s: &Stream, c: &Collective<'_>, route: Route) -> Result<()> {
        // What rides on a collective the plugin has stays with it; a plan replaces what would go over sends and receives.
        let plans = !matches!(
            route,
            Route::Native | Route::SumThenDivide | Route::ScaleThenSum
        );
        if plans && self.by_plan(s, c)? {
            return Ok(());
        }
        match (route, *c) {
            (Route::Native, c) => self.messages_or_one(s, &c),
            (Route::SumThenDivide, c) => {
                self.run(s, &with_op(&c, Reduce::Sum))?;
                let out = match c {
                    Collective::AllReduce { buf, dtype, .. } => Some((buf, dtype)),
                    Collective::ReduceScatter { recv, dtype, .. } => Some((recv, dtype)),
                    Collective::Reduce {
                        buf, dtype, root, ..
                    } if root == self.rank() => Some((buf, dtype)),
                    _ => None,
                };
                match out {
                    Some((r, dtype)) => {
                        let ranks = f64::from(self.size());
                        self.scale(s, r, r, dtype, binary::DIV, ranks)
                    }
                    None => Ok(()),
                }
            }
            (Route::ScaleThenSum, c) => self.scale_then_sum(s, &c),
            (Route::Fold, Collective::AllReduce { buf, dtype, op }) => {
                self.fold_all(s, buf, dtype, op)
            }
            (
                Route::Fold,
                Collective::ReduceScatter {
                    send,
                    recv,
                    dtype,
                    op,
                },
            ) => {
                let pieces = s.device().alloc(s, send.bytes, Tag::Comm)?;
                let parts = Collective::AllToAll {
                    send,
                    recv: pieces.all(),
                    dtype,
                };
                self.run(s, &parts)?;
                self.fold(s, recv, pieces.all(), dtype, op)
            }
            (
                Route::AllReduceSlice,
                Collective::ReduceScatter {
                    send,
                    recv,
                    dtype,
                    op,
                },
            ) => {
                let all = s.device().alloc(s, send.bytes, Tag::Comm)?;
                copy(s, all.all(), send)?;
                let buf = all.all();
                self.run(s, &Collective::AllReduce { buf, dtype, op })?;
                let at = u64::from(self.rank()) * recv.bytes;
                copy(s, recv, all.region(at, recv.bytes))
            }
            (
                Route::AllReduceDrop,
                Collective::Reduce {
                    buf,
                    dtype,
                    op,
                    root,
                },
            ) => {
                if root == self.rank() {
                    return self.run(s, &Collective::AllReduce { buf, dtype, op });
                }
                let scratch = s.device().alloc(s, buf.bytes, Tag::Comm)?;
                copy(s, scratch.all(), buf)?;
                let buf = scratch.all();
                self.run(s, &Collective::AllReduce { buf, dtype, op })
            }
            (_, Collective::AllGather { send, recv, .. }) => {
                let counts = equal(self.size(), send.bytes);
                self.gather(s, send, recv, DType::U8, &counts)
            }
            (
                _,
                Collective::AllGatherV {
                    send,
                    recv,
                    dtype,
                    counts,
                },
            ) => {
                let n = counts.recv.first().copied().unwrap_or(0);
                let whole = equal(self.size(), n);
                if (&counts.recv, &counts.recv_at) == (&whole.recv, &whole.recv_at) {
                    let ranks = u64::from(self.size());
                    let c = Collective::AllGather {
                        send: part(send, dtype, 0, n),
                        recv: part(recv, dtype, 0, n * ranks),
                        dtype,
                    };
                    return self.run(s, &c);
                }
                self.gather(s, send, recv, dtype, counts)
            }
            (_, Collective::AllToAll { send, recv, .. }) => {
                let counts = equal(self.size(), send.bytes / u64::from(self.size()));
                self.exchange(s, send, recv, DType::U8, &counts)
            }
            (
                _,
                Collective::AllToAllV {
                    send,
                    recv,
                    dtype,
                    counts,
                },
            ) => self.exchange(s, send, recv, dtype, counts),
            (_, Collective::Broadcast { buf, dtype, root }) => self.tree(s, buf, dtype, root),
            (_, Collective::Barrier) => {
                let word = scalar(s, DType::F32, 0.0)?;
                let c = Collective::AllReduce {
                    buf: word.all(),
                    dtype: DType::F32,
                    op: Reduce::Sum,
                };
                self.run(s, &c)
            }
            (route, c) => Err(Error::new(
                Code::Internal,
                "compose",
                format!("{} has no route {route:?}", c.name()),
            )),
        }
    }

    /// `dst = src kind x`, element by element.
    pub(crate) fn scale(
        &mut self,
        s: &Stream,
        dst: Region<'_>,
        src: Region<'_>,
        dtype: DType,
        kind: u32,
        x: f64,
    ) -> Result<()> {
        let n = elements(dst, dtype);
        if n == 0 {
            return Ok(());
        }
        let key = (kind, dtype, n);
        let kernel: Kernel = match self.scales.get(&key) {
            Some(k) => k.clone(),
            None => {
                let k = scaler(s.device(), dtype, n, kind)?;
                self.scales.insert(key, k.clone());
                k
            }
        };
        let word = scalar(s, dtype, x)?;
        s.launch(&kernel, &[Some(dst), Some(src), Some(word.all())], &[])
    }

    fn scale_then_sum(&mut self, s: &Stream, c: &Collective<'_>) -> Result<()> {
        let sum = with_op(c, Reduce::Sum);
        match *c {
            Collective::AllReduce {
                buf,
                dtype,
                op: Reduce::PremulSum(x),
            } => {
                self.scale(s, buf, buf, dtype, binary::MUL, x)?;
                self.run(s, &sum)
            }
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op: Reduce::PremulSum(x),
            } => {
                let scratch = s.device().alloc(s, send.bytes, Tag::Comm)?;
                self.scale(s, scratch.all(), send, dtype, binary::MUL, x)?;
                let c = Collective::ReduceScatter {
                    send: scratch.all(),
                    recv,
                    dtype,
                    op: Reduce::Sum,
                };
                self.run(s, &c)
            }
            Collective::Reduce {
                buf,
                dtype,
                op: Reduce::PremulSum(x),
                root,
            } => {
                if root == self.rank() {
                    self.scale(s, buf, buf, dtype, binary::MUL, x)?;
                    return self.run(s, &sum);
                }
                // Only the root's vector may change.
                let scratch = s.device().alloc(s, buf.bytes, Tag::Comm)?;
                self.scale(s, scratch.all(), buf, dtype, binary::MUL, x)?;
                let c = Collective::Reduce {
                    buf: scratch.all(),
                    dtype,
                    op: Reduce::Sum,
                    root,
                };
                self.run(s, &c)
            }
            _ => self.run(s, &sum),
        }
    }

    /// all_reduce: every owner gets its piece of every rank, folds it, and hands it round.
    fn fold_all(&mut self, s: &Stream, buf: Region<'_>, dtype: DType, op: Reduce) -> Result<()> {
        let (n, me) = (self.size(), self.rank());
        let cut = Cut::new(elements(buf, dtype), n);
        let (at, len) = (cut.at(me), cut.len(me));
        let pieces = s
            .device()
            .alloc(s, dtype.bytes(len * u64::from(n)), Tag::Comm)?;
        let mine = part(buf, dtype, at, len);
        let ranks = 0..n;
        let (lens, starts): (Vec<u64>, Vec<u64>) = ranks.map(|r| (cut.len(r), cut.at(r))).unzip();
        if cut.even(n) {
            let c = Collective::AllToAll {
                send: buf,
                recv: pieces.all(),
                dtype,
            };
            self.run(s, &c)?;
        } else {
            let counts = Counts {
                send: lens.clone(),
                send_at: starts.clone(),
                ..equal(n, len)
            };
            let c = Collective::AllToAllV {
                send: buf,
                recv: pieces.all(),
                dtype,
                counts: &counts,
            };
            self.run(s, &c)?;
        }
        self.fold(s, mine, pieces.all(), dtype, op)?;
        if cut.even(n) {
            let c = Collective::AllGather {
                send: mine,
                recv: buf,
                dtype,
            };
            return self.run(s, &c);
        }
        let counts = Counts {
            recv: lens,
            recv_at: starts,
            ..Counts::default()
        };
        let c = Collective::AllGatherV {
            send: mine,
            recv: buf,
            dtype,
            counts: &counts,
        };
        self.run(s, &c)
    }

    /// The owner's part: `dst` = fold of one piece per rank. A scaled sum needs every rank's factor first.
    fn fold(
        &mut self,
        s: &Stream,
        dst: Region<'_>,
        pieces: Region<'_>,
        dtype: DType,
        op: Reduce,
    ) -> Result<()> {
        let factors = match op {
            Reduce::PremulSum(x) => Some(self.factors(s, accumulator(dtype), x)?),
            _ => None,
        };
        let key = FoldKey {
            dtype,
            fold: Fold::from(op),
            ranks: self.size(),
            elements: elements(dst, dtype),
        };
        if key.elements == 0 {
            return Ok(());
        }
        let folder = match self.folds.get(&key) {
            Some(f) => f.clone(),
            None => {
                let f = Arc::new(Folder::prepare(s.device(), key)?);
                self.folds.insert(key, f.clone());
                f
            }
        };
        folder.run(s, dst, pieces, factors.as_ref().map(|f| f.all()))
    }

    /// Every rank's factor, in rank order.
    fn factors(&mut self, s: &Stream, dtype: DType, x: f64) -> Result<crossweave_hal::Buffer> {
        let n = u64::from(self.size());
        let all = s.device().alloc(s, dtype.bytes(n), Tag::Comm)?;
        let send = part(all.all(), dtype, u64::from(self.rank()), 1);
        let (bits, bytes) = pattern(dtype, x);
        s.fill(send, bits, bytes)?;
        let recv = all.all();
        self.run(s, &Collective::AllGather { send, recv, dtype })?;
        Ok(all)
    }

    /// all_to_all by one group of sends and receives; my own piece is a copy. In place needs a copy of what is sent.
    fn exchange(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        counts: &Counts,
    ) -> Result<()> {
        whole_bytes(dtype, counts)?;
        let kept;
        let send = if overlap(&send, &recv) {
            kept = s.device().alloc(s, send.bytes, Tag::Comm)?;
            copy(s, kept.all(), send)?;
            kept.all()
        } else {
            send
        };
        let me = self.rank();
        let out = |r: u32| {
            let r = r as usize;
            part(send, dtype, counts.send_at[r], counts.send[r])
        };
        let into = |r: u32| {
            let r = r as usize;
            part(recv, dtype, counts.recv_at[r], counts.recv[r])
        };
        self.pairs(s, dtype, out, into)?;
        copy(s, into(me), out(me))
    }

    /// all_gather by one group of sends and receives.
    fn gather(
        &mut self,
        s: &Stream,
        send: Region<'_>,
        recv: Region<'_>,
        dtype: DType,
        counts: &Counts,
    ) -> Result<()> {
        whole_bytes(dtype, counts)?;
        let me = self.rank() as usize;
        let send = part(send, dtype, 0, counts.recv[me]);
        let into = |r: u32| {
            let r = r as usize;
            part(recv, dtype, counts.recv_at[r], counts.recv[r])
        };
        // My slice first: it may be what is sent (in place, nothing to copy).
        let mine = into(me as u32);
        let there = std::ptr::eq(mine.buffer, send.buffer) && mine.offset == send.offset;
        if !there {
            copy(s, mine, send)?;
        }
        if self.islands.is_some() {
            let pieces: Vec<_> = (0..self.size()).map(|r| (r, into(r))).collect();
            return self.spread(s, dtype, &pieces);
        }
        self.pairs(s, dtype, |_| mine, into)
    }

    /// One group: to and from every other rank; empty pieces send nothing.
    fn pairs<'a>(
        &mut self,
        s: &Stream,
        dtype: DType,
        out: impl Fn(u32) -> Region<'a>,
        into: impl Fn(u32) -> Region<'a>,
    ) -> Result<()> {
        let (n, me) = (self.size(), self.rank());
        let mut members = Vec::with_capacity(2 * n as usize);
        // Neighbours first, so that not every rank begins with rank 0.
        for step in 1..n {
            let (to, from) = ((me + step) % n, (me + n - step) % n);
            let (a, b) = (out(to), into(from));
            if a.bytes > 0 {
                members.push(Collective::Send {
                    buf: a,
                    dtype,
                    peer: to,
                });
            }
            if b.bytes > 0 {
                members.push(Collective::Recv {
                    buf: b,
                    dtype,
                    peer: from,
                });
            }
        }
        match members.is_empty() {
            true => Ok(()),
            false => self.messages(s, &members),
        }
    }

    /// broadcast: every rank that has the bytes sends them on; the number of holders doubles each round.
    fn tree(&mut self, s: &Stream, buf: Region<'_>, dtype: DType, root: u32) -> Result<()> {
        let (n, me) = (self.size(), self.rank());
        if root >= n {
            return Err(Error::invalid(
                "launch",
                format!("broadcast on {}: root {root} of {n} ranks", self.name()),
            ));
        }
        if buf.bytes == 0 {
            return Ok(());
        }
        if self.islands.is_some() {
            return self.spread(s, dtype, &[(root, buf)]);
        }
        let place = (me + n - root) % n;
        let rank = |place: u32| (place + root) % n;
        let mut holders = 1;
        while holders < n {
            let member = if place < holders {
                let to = place + holders;
                (to < n).then(|| Collective::Send {
                    buf,
                    dtype,
                    peer: rank(to),
                })
            } else {
                (place < 2 * holders).then(|| Collective::Recv {
                    buf,
                    dtype,
                    peer: rank(place - holders),
                })
            };
            if let Some(m) = member {
                self.messages(s, &[m])?;
            }
            holders *= 2;
        }
        Ok(())
    }
}

/// Copies; nothing for nothing.
fn copy(s: &Stream, dst: Region<'_>, src: Region<'_>) -> Result<()> {
    match src.bytes {
        0 => Ok(()),
        _ => s.copy(dst, src),
    }
}

/// The same count to and from every rank, densely.
fn equal(ranks: u32, count: u64) -> Counts {
    let counts = vec![count; ranks as usize];
    let at: Vec<u64> = (0..u64::from(ranks)).map(|r| r * count).collect();
    Counts {
        send: counts.clone(),
        send_at: at.clone(),
        recv: counts,
        recv_at: at,
    }
}

/// Pieces of 4-bit types must begin and end on bytes.
fn whole_bytes(dtype: DType, counts: &Counts) -> Result<()> {
    let all = [&counts.send, &counts.send_at, &counts.recv, &counts.recv_at];
    let cut = |n: &u64| !(n * dtype.bits()).is_multiple_of(8);
    match all.into_iter().flatten().any(cut) {
        true => Err(Error::invalid(
            "launch",
            format!(
                "pieces of {} must begin and end on whole bytes",
                dtype.name()
            ),
        )),
        false => Ok(()),
    }
}
