//! Running a collective plan on devices: a round is one group of sends and receives, then the copies and folds.
//!
//! Sums of 16-bit floats travel in f32 and are rounded once at the end; that doubles their traffic, and is why rank order, whose pieces
//! travel as they are, stays the default. All ranks must prefer the same way, as they must make the same calls.

use crate::comm_plan::{Algorithm, Buf, CommPlan, Inside, Join, Kind, Move, Nodes, RankPlan, Span};
use crate::comm_plan::{hierarchical, hierarchical_scatter, plan};
use crate::fold::{accumulator, joiner_of, part, prepare};
use crate::group::Collectives;
use crossweave_hal::abi::Layout;
use crossweave_hal::abi::op::{self, binary};
use crossweave_hal::{Collective, DType, Device, Kernel, Reduce, Region, Result, Stream, Tag};
use std::collections::HashMap;
use std::sync::Arc;

/// What carries a collective out where the plugin has none of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Pieces to their owners, summed in rank order: the same bits for any cut, any vendor, any owner.
    #[default]
    RankOrder,
    /// This algorithm, where it has a form of the collective; all ranks get the same bits, but other ones than rank order gives.
    Algorithm(Algorithm),
    /// All-reduces and reduce-scatters inside these nodes first, then between them.
    Nodes(Nodes),
}

/// Plans and kernels already made.
#[derive(Default)]
pub(crate) struct Planned {
    pub prefer: Prefer,
    plans: HashMap<(Kind, u64), Option<Arc<CommPlan>>>,
    joins: HashMap<(u32, DType, u64), Kernel>,
    casts: HashMap<(DType, DType, u64), Kernel>,
}

impl Planned {
    pub fn prefer(&mut self, way: Prefer) {
        self.prefer = way;
        self.plans.clear();
    }

    /// The plan preferred for a collective; `None`: rank order, or the algorithm has no form of it.
    fn plan(&mut self, kind: Kind, count: u64, ranks: u32) -> Option<Arc<CommPlan>> {
        let prefer = &self.prefer;
        let made = self.plans.entry((kind, count)).or_insert_with(|| {
            let p = match (prefer, kind) {
                (Prefer::Algorithm(a), _) => plan(kind, *a, count, ranks),
                (Prefer::Nodes(nodes), _) if nodes.ranks() != ranks => None,
                (Prefer::Nodes(nodes), Kind::AllReduce) => Some(hierarchical(count, nodes)),
                (Prefer::Nodes(nodes), Kind::ReduceScatter) => {
                    Some(hierarchical_scatter(count, nodes))
                }
                _ => None,
            };
            p.map(Arc::new)
        });
        made.clone()
    }

    fn join(&mut self, device: &Device, reduce: Reduce, dtype: DType, n: u64) -> Result<Kernel> {
        let kind = match reduce {
            Reduce::Prod => binary::MUL,
            Reduce::Min => binary::MIN,
            Reduce::Max => binary::MAX,
            Reduce::Sum | Reduce::Avg | Reduce::PremulSum(_) => binary::ADD,
        };
        if let Some(k) = self.joins.get(&(kind, dtype, n)) {
            return Ok(k.clone());
        }
        let k = joiner_of(device, dtype, n, kind)?;
        self.joins.insert((kind, dtype, n), k.clone());
        Ok(k)
    }

    fn cast(
        &mut self,
        s: &Stream,
        dst: Region<'_>,
        to: DType,
        src: Region<'_>,
        from: DType,
    ) -> Result<()> {
        let n = dst.bytes * 8 / to.bits();
        if n == 0 {
            return Ok(());
        }
        let k = match self.casts.get(&(to, from, n)) {
            Some(k) => k.clone(),
            None => {
                let layouts = [Layout::contiguous(to, &[n]), Layout::contiguous(from, &[n])];
                let none = op::NoParams::default();
                let k = prepare(s.device(), op::CAST, &layouts, none.as_bytes())?;
                self.casts.insert((to, from, n), k.clone());
                k
            }
        };
        s.launch(&k, &[Some(dst), Some(src)], &[])
    }
}

impl Collectives {
    /// What carries out collectives the plugin lacks from now on. Every rank of the group must say the same.
    pub fn prefer(&mut self, way: Prefer) {
        self.planned.prefer(way);
    }

    /// Runs the collective by the preferred plan; `false`: there is none, nothing has happened.
    pub(crate) fn by_plan(&mut self, s: &Stream, c: &Collective<'_>) -> Result<bool> {
        let n = self.size();
        let Some(asked) = Asked::of(c, n) else {
            return Ok(false);
        };
        let Some(plan) = self.planned.plan(asked.kind, asked.count, n) else {
            return Ok(false);
        };
        let mine = &plan.ranks[self.rank() as usize];
        let acc = match asked.reduce {
            Some(_) => accumulator(asked.dtype),
            None => asked.dtype,
        };
        let wide = acc != asked.dtype;
        let device = s.device().clone();
        let room = |elements: u64| device.alloc(s, acc.bytes(elements), Tag::Comm);
        let scratch = room(mine.scratch)?;
        let elements = |r: Region<'_>| r.bytes * 8 / asked.dtype.bits();
        let up = [asked.data, asked.out.unwrap_or(asked.data)]
            .map(|r| wide.then(|| room(elements(r))).transpose());
        let [data32, out32] = up;
        let (data32, out32) = (data32?, out32?);
        let mut homes = [asked.data, asked.out.unwrap_or(asked.data), scratch.all()];
        if let Some(b) = &data32 {
            self.planned
                .cast(s, b.all(), acc, asked.data, asked.dtype)?;
            homes[0] = b.all();
        }
        if let (Some(b), Some(_)) = (&out32, asked.out) {
            homes[1] = b.all();
        }
        // The caller's vector may be scaled only where it is overwritten anyway.
        let scaled = match asked.reduce {
            Some(Reduce::PremulSum(x)) => {
                let copy = match (asked.kind, wide) {
                    (Kind::AllReduce, _) | (_, true) => None,
                    _ => Some(room(elements(asked.data))?),
                };
                let to = copy.as_ref().map_or(homes[0], |b| b.all());
                self.scale(s, to, homes[0], acc, binary::MUL, x)?;
                copy
            }
            _ => None,
        };
        if let Some(b) = &scaled {
            homes[0] = b.all();
        }
        self.rounds(s, mine, &homes, acc, asked.reduce)?;
        // Off the root a reduce changes nothing.
        if matches!(asked.kind, Kind::Reduce { root } if root != self.rank()) {
            return Ok(true);
        }
        let (result, to) = match asked.out {
            Some(out) => (homes[1], out),
            None => (homes[0], asked.data),
        };
        if let Some(Reduce::Avg) = asked.reduce {
            self.scale(s, result, result, acc, binary::DIV, f64::from(n))?;
        }
        if wide {
            self.planned.cast(s, to, asked.dtype, result, acc)?;
        } else if asked.out.is_none() && scaled.is_some() {
            s.copy(to, result)?;
        }
        Ok(true)
    }

    fn rounds(
        &mut self,
        s: &Stream,
        mine: &RankPlan,
        homes: &[Region<'_>; 3],
        dtype: DType,
        reduce: Option<Reduce>,
    ) -> Result<()> {
        let at = |span: &Span| {
            let home = homes[match span.home {
                Buf::Data => 0,
                Buf::Out => 1,
                Buf::Scratch => 2,
            }];
            part(home, dtype, span.at, span.n)
        };
        let (first, end, shares) = match &mine.inside {
            Some(i) if reduce.is_some() && self.join_by_library(s, i, dtype, reduce, at)? => {
                (i.between.0, i.between.1, i.shares.as_slice())
            }
            _ => (0, mine.rounds.len(), [].as_slice()),
        };
        for round in &mine.rounds[first..end] {
            let messages: Vec<Collective<'_>> = round
                .iter()
                .filter_map(|m| match m {
                    Move::Send { span, to } => Some(Collective::Send {
                        buf: at(span),
                        dtype,
                        peer: *to,
                    }),
                    Move::Recv { span, from } => Some(Collective::Recv {
                        buf: at(span),
                        dtype,
                        peer: *from,
                    }),
                    _ => None,
                })
                .collect();
            if !messages.is_empty() {
                self.messages(s, &messages)?;
            }
            for m in round {
                match m {
                    Move::Copy { dst, src } => s.copy(at(dst), at(src))?,
                    Move::Fold { dst, parts, .. } => {
                        let op = reduce.unwrap_or(Reduce::Sum);
                        let kernel = self.planned.join(s.device(), op, dtype, dst.n)?;
                        // The running sum must not stand where a later part waits to be added.
                        let later = parts.iter().skip(2).any(|p| p == dst);
                        let held = later
                            .then(|| s.device().alloc(s, dtype.bytes(dst.n), Tag::Comm))
                            .transpose()?;
                        let sum = held.as_ref().map_or(at(dst), |b| b.all());
                        let last = parts.len() - 1;
                        let mut left = at(&parts[0]);
                        for (k, p) in parts.iter().enumerate().skip(1) {
                            let to = if k == last { at(dst) } else { sum };
                            s.launch(&kernel, &[Some(to), Some(left), Some(at(p))], &[])?;
                            left = to;
                        }
                    }
                    Move::Send { .. } | Move::Recv { .. } => {}
                }
            }
        }
        let shares: Vec<_> = shares.iter().map(|(r, span)| (*r, at(span))).collect();
        match shares.is_empty() {
            true => Ok(()),
            false => self.share(s, dtype, &shares),
        }
    }

    /// Joins inside the island by its library in the place of the plan's first rounds; `false`: it has no such collective, nothing has
    /// happened. The caller's input is read only: the rank that keeps a sum brings a copy.
    fn join_by_library<'a>(
        &mut self,
        s: &Stream,
        inside: &Inside,
        dtype: DType,
        reduce: Option<Reduce>,
        at: impl Fn(&Span) -> Region<'a>,
    ) -> Result<bool> {
        let me = self.rank();
        // Averages and scaled sums are sums here; what else they need comes before and after.
        let op = match reduce {
            Some(op @ (Reduce::Prod | Reduce::Min | Reduce::Max)) => op,
            _ => Reduce::Sum,
        };
        let keep = |j: &Join| j.root == me && j.own != j.sum;
        let buf = |j: &Join| at(if keep(j) { &j.sum } else { &j.own });
        let lanes: Vec<_> = inside.joins.iter().map(|j| (j.root, buf(j))).collect();
        let Some(how) = self.joins_inside(dtype, op, &lanes, inside.shares.is_empty())? else {
            return Ok(false);
        };
        for j in inside.joins.iter().filter(|j| keep(j)) {
            s.copy(at(&j.sum), at(&j.own))?;
        }
        self.join_inside(s, dtype, op, &lanes, how)?;
        Ok(true)
    }
}

/// A collective as plans see it.
struct Asked<'a> {
    kind: Kind,
    count: u64,
    dtype: DType,
    data: Region<'a>,
    out: Option<Region<'a>>,
    reduce: Option<Reduce>,
}

impl<'a> Asked<'a> {
    /// `None` for what has no plan: `v` forms, sends, barriers, and collectives whose output overlaps their input.
    fn of(c: &Collective<'a>, ranks: u32) -> Option<Asked<'a>> {
        let n = u64::from(ranks);
        let elements = |r: Region<'_>, d: DType| r.bytes * 8 / d.bits();
        let (kind, count, dtype, data, out, reduce) = match *c {
            Collective::AllReduce { buf, dtype, op } => (
                Kind::AllReduce,
                elements(buf, dtype),
                dtype,
                buf,
                None,
                Some(op),
            ),
            Collective::Reduce {
                buf,
                dtype,
                op,
                root,
            } => {
                let kind = Kind::Reduce { root };
                (kind, elements(buf, dtype), dtype, buf, None, Some(op))
            }
            Collective::Broadcast { buf, dtype, root } => {
                let kind = Kind::Broadcast { root };
                (kind, elements(buf, dtype), dtype, buf, None, None)
            }
            Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op,
            } => {
                let count = elements(recv, dtype);
                (
                    Kind::ReduceScatter,
                    count,
                    dtype,
                    send,
                    Some(recv),
                    Some(op),
                )
            }
            Collective::AllGather { send, recv, dtype } => {
                let count = elements(send, dtype);
                (Kind::AllGather, count, dtype, send, Some(recv), None)
            }
            Collective::AllToAll { send, recv, dtype } => {
                let count = elements(send, dtype) / n;
                (Kind::AllToAll, count, dtype, send, Some(recv), None)
            }
            _ => return None,
        };
        let rooted = match kind {
            Kind::Broadcast { root } | Kind::Reduce { root } => root < ranks,
            _ => true,
        };
        let apart = out.is_none_or(|o| !crate::route::overlap(&o, &data));
        (rooted && apart && dtype.bits() >= 8).then_some(Asked {
            kind,
            count,
            dtype,
            data,
            out,
            reduce,
        })
    }
}
