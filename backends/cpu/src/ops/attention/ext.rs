//! `attention_ext_fwd`, `attention_ext_bwd`: every segment is attention of its own, as in [`super::varlen`], whose queries and keys may be of
//! different numbers; without cumulative lengths a row is one segment. What a score or weight has beyond scale and mask is in [`super::beyond`].

use super::super::view::{F32, FLOATS, arity_up_to, output_strided};
use super::beyond::{Drop, Ext, Key, Line};
use super::bwd::{self, Bwd};
use super::varlen::{Cu, clear, lse_at};
use super::{BK, BQ, Isa, Ptrs, Shape, View, fwd, plan, shape, up, view};
use crate::gemm::each;
use crate::gemm::elem::Elem;
use crate::isa::Isas;
use crate::kernel::{Kernel, Launch};
use crossweave_abi::op::{self, AttentionExtParams};
use crossweave_plugin::{Code, DType, Dyn, OpRequest, Plan, Result, fail, unsupported};

/// Cumulative lengths of queries and of keys; absent, rows are whole.
struct Segments {
    q: Option<Cu>,
    k: Option<Cu>,
    rows: usize,
    tq: usize,
    tk: usize,
}

/// The furthest that queries stand from keys.
const FURTHEST: u64 = 1 << 40;

/// A block of the queries or of the keys of a segment.
#[derive(Clone, Copy)]
#[repr(C)]
struct Part {
    row: u32,
    /// First query and how many.
    q: [u32; 2],
    /// First key and how many.
    k: [u32; 2],
    block: u32,
}

/// f32 of workspace that a part of a list takes.
const WORDS: usize = size_of::<Part>() / 4;

/// What a list goes over.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    Queries,
    Keys,
    Segments,
}

impl Segments {
    fn of(op: &OpRequest<'_>, q: usize, s: &Shape) -> Result<Segments> {
        let there = |i: usize| op.layout(i).is_some();
        let (q, k) = match (there(q), there(q + 1)) {
            (false, false) => (None, None),
            (false, true) => {
                return fail(
                    Code::Invalid,
                    "attention: cu_k without cu_q: give the lengths of the queries too",
                );
            }
            (true, both) => {
                if !both && s.tq != s.tk {
                    return fail(
                        Code::Invalid,
                        format!(
                            "attention: cu_k is absent, and {} queries are not {} keys",
                            s.tq, s.tk
                        ),
                    );
                }
                let of_q = Cu::of(op, q, s.b, s.tq)?;
                let of_k = if both {
                    Cu::of(op, q + 1, s.b, s.tk)?
                } else {
                    of_q
                };
                if of_q.n != of_k.n {
                    return fail(
                        Code::Invalid,
                        format!(
                            "attention: cu_q has {} numbers a row, cu_k {}",
                            of_q.n, of_k.n
                        ),
                    );
                }
                (Some(of_q), Some(of_k))
            }
        };
        Ok(Segments {
            q,
            k,
            rows: s.b,
            tq: s.tq,
            tk: s.tk,
        })
    }

    /// Most parts of `size` positions: a segment adds at most one that is not full.
    fn room(&self, size: usize) -> usize {
        let longest = self.tq.max(self.tk);
        let n = self.q.map_or(1, |q| (q.n - 1).min(self.tq + self.tk));
        self.rows * (longest / size + n)
    }

    /// Calls `f(queries, keys)` (first, how many) for every segment of a row that has positions, in order.
    ///
    /// # Safety
    /// `operands` are those of the op prepared.
    unsafe fn each(
        &self,
        operands: &[*mut u8],
        row: usize,
        mut f: impl FnMut([usize; 2], [usize; 2]),
    ) {
        let (Some(q), Some(k)) = (&self.q, &self.k) else {
            if self.tq + self.tk > 0 {
                f([0, self.tq], [0, self.tk]);
            }
            return;
        };
        // SAFETY: by contract.
        unsafe {
            let (pq, pk) = (operands[q.operand].cast_const(), operands[k.operand]);
            let pk = pk.cast_const();
            let (mut at_q, mut at_k) = (q.at(pq, row, 0, 0), k.at(pk, row, 0, 0));
            for i in 1..q.n {
                let (next_q, next_k) = (q.at(pq, row, i, at_q), k.at(pk, row, i, at_k));
                if next_q > at_q || next_k > at_k {
                    f([at_q, next_q - at_q], [at_k, next_k - at_k]);
                }
                (at_q, at_k) = (next_q, next_k);
            }
        }
    }

    /// Lists the parts of all segments.
    ///
    /// # Safety
    /// `operands` are those of the op prepared, `out` is writable for [`Segments::room`] parts of a block's size.
    unsafe fn list<'a>(&self, operands: &[*mut u8], over: Over, out: *mut Part) -> &'a [Part] {
        let mut n = 0;
        for row in 0..self.rows {
            let put = |q: [usize; 2], k: [usize; 2]| {
                let blocks = match over {
                    Over::Queries => q[1].div_ceil(BQ),
                    Over::Keys => k[1].div_ceil(BK),
                    Over::Segments => 1,
                };
                for block in 0..blocks {
                    let part = Part {
                        row: row as u32,
                        q: q.map(|x| x as u32),
                        k: k.map(|x| x as u32),
                        block: block as u32,
                    };
                    // SAFETY: `room` counts them all.
                    unsafe { out.add(n).write(part) };
                    n += 1;
                }
            };
            // SAFETY: by contract.
            unsafe { self.each(operands, row, put) };
        }
        // SAFETY: so many were written; who calls again is done with them.
        unsafe { std::slice::from_raw_parts(out.cast_const(), n) }
    }
}

/// The shape of one part, `ext` placed and keyed for it.
fn part(s: &Shape, of: Part, key: Key) -> Shape {
    let Some(x) = s.ext else { return s.clone() };
    let [q, k] = [of.q, of.k].map(|at| [i64::from(at[0]), i64::from(at[1])]);
    // Where key 0 of the part stands, counted as its query 0 is, beyond that both begin.
    let apart = if x.in_row { k[0] - q[0] } else { 0 };
    let ahead = match x.in_row {
        true => s.tk as i64 - s.tq as i64 - apart,
        false => k[1] - q[1],
    };
    Shape {
        b: 1,
        tq: of.q[1] as usize,
        tk: of.k[1] as usize,
        ahead: ahead + x.shift,
        ext: Some(Ext {
            key,
            at: [of.row as usize, of.q[0] as usize, of.k[0] as usize],
            zero: x.zero + apart,
            ..x
        }),
        ..s.clone()
    }
}

/// Seeds out of the dyn struct.
fn key(l: &Launch<'_>) -> Key {
    let d = Dyn(l.dynamic).read::<op::PhiloxDyn>().unwrap_or_default();
    Key {
        seed: d.seed,
        stream: d.stream,
        offset: d.offset,
    }
}

/// An optional operand of `dims` sizes whose last dim has unit stride.
fn line(
    op: &OpRequest<'_>,
    i: usize,
    name: &str,
    dims: &[usize],
    f32_only: bool,
) -> Result<Option<Line>> {
    let Some(l) = op.layout(i) else {
        return Ok(None);
    };
    let Some(elem) = op
        .dtype(i)
        .and_then(Elem::of)
        .filter(|e| !f32_only || *e == Elem::F32)
    else {
        return unsupported(format!(
            "attention: dtype {} of {name}",
            op.dtype(i).map_or("unknown", DType::name)
        ));
    };
    let rank = l.rank as usize;
    if rank != dims.len() || (0..rank).any(|x| l.shape[x] != dims[x] as i64) {
        return fail(
            Code::Invalid,
            format!(
                "attention: {name} is {:?}, want {dims:?}",
                &l.shape[..rank.min(8)]
            ),
        );
    }
    if rank == 2 && l.stride[1] != 1 && dims[1] > 1 {
        return unsupported(format!(
            "attention: {name} must have unit stride in its last dim"
        ));
    }
    Ok(Some(Line {
        elem,
        stride: l.stride[0] as isize,
    }))
}

/// Reads params and the operands `bias`, `sinks` (from `at` on); `place` is theirs among the addresses of an item.
fn ext(op: &OpRequest<'_>, s: &Shape, at: usize, place: usize) -> Result<Ext> {
    let p: AttentionExtParams = op.params()?;
    let fits = (0.0..1.0).contains(&p.dropout) && p.cap >= 0.0 && p.cap.is_finite();
    if !fits {
        return fail(
            Code::Invalid,
            format!(
                "attention: dropout {} must be in [0, 1) and cap {} not negative",
                p.dropout, p.cap
            ),
        );
    }
    if p.shift.unsigned_abs() > FURTHEST {
        return fail(
            Code::Invalid,
            format!("attention: a shift of {}, at most 2^40 either way", p.shift),
        );
    }
    let whole = |given: i64, own: usize| match given {
        0 => Ok(own as u64),
        n if n >= own as i64 => Ok(n as u64),
        n => fail(
            Code::Invalid,
            format!("attention: {own} heads, queries or keys are no part of {n}"),
        ),
    };
    let distances = (s.tq + s.tk).saturating_sub(1);
    let [heads, queries, keys] = [
        whole(p.heads, s.h)?,
        whole(p.queries, s.tq)?,
        whole(p.keys, s.tk)?,
    ];
    let first_key = u64::try_from(p.first_key).unwrap_or(u64::MAX);
    if first_key > keys - s.tk as u64 {
        return fail(
            Code::Invalid,
            format!(
                "attention: {} keys from key {} on are no part of {keys}",
                s.tk, p.first_key
            ),
        );
    }
    Ok(Ext {
        cap: p.cap as f32,
        bias: line(op, at, "bias", &[s.h, distances], false)?,
        distances,
        zero: s.tq as i64 - 1,
        shift: p.shift,
        in_row: p.flags & op::FLAG_IN_ROW != 0,
        sinks: line(op, at + 1, "sinks", &[s.h], false)?,
        drop: (p.dropout > 0.0).then(|| Drop {
            threshold: (p.dropout * 16_777_216.0).ceil() as u32,
            scale: (1.0 / (1.0 - p.dropout)) as f32,
            whole: [heads, queries, keys.div_ceil(4)],
            first_key,
        }),
        key: Key::default(),
        at: [0; 3],
        operand: place,
        dbias: false,
    })
}

struct Forward {
    s: Shape,
    segments: Segments,
    isa: Isa,
    slots: usize,
}

impl Kernel for Forward {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<op::PhiloxDyn>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let s = &self.s;
        let (floats, key) = (fwd::floats(s), key(l));
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        let list = p.slot(self.slots, floats).cast::<Part>();
        // SAFETY: the operands and the workspace are those prepared; nothing writes the list while the slice lives.
        let parts = unsafe { self.segments.list(l.operands, Over::Queries, list) };
        each(l.team, self.slots, parts.len() * s.h, &|slot, i| {
            // Late blocks of a segment see most keys: they go first.
            let of = parts[parts.len() - 1 - i / s.h];
            let (row, q, k) = (of.row as usize, of.q[0] as usize, of.k[0] as usize);
            let p = &p;
            let at = |v: &View, i: usize, t: usize| v.at(p.operands[i], row, t, 0);
            let operands = [
                at(&s.o, 0, q),
                lse_at(s, p.operands[1], row, q),
                at(&s.q, 2, q),
                at(&s.k, 3, k),
                at(&s.v, 4, k),
                p.operands[5],
                p.operands[6],
            ];
            let item = fwd::Item {
                b: 0,
                h: i % s.h,
                block: of.block as usize,
            };
            // SAFETY: the caller's contract; the segment lies inside the operands, the slot is this thread's, the item's outputs are its own.
            unsafe { (self.isa.fwd)(&part(s, of, key), &operands, item, p.slot(slot, floats)) }
        });
        let Some(cu) = &self.segments.q else { return };
        let blank = |row: usize, t: usize| {
            let p = &p;
            // SAFETY: the caller's contract; no segment and no other item has the position.
            unsafe {
                clear(&s.o, p.operands[0], [row, t], s.h, s.d);
                let lse = lse_at(s, p.operands[1], row, t).cast::<f32>();
                for h in 0..s.h {
                    lse.offset(h as isize * s.lse[1]).write(f32::NEG_INFINITY);
                }
            }
        };
        // SAFETY: the caller's contract.
        unsafe { cu.outside(l, self.slots, &blank) };
    }
}

/// Prepares `attention_ext_fwd`: operands o, lse, q, k, v, bias, sinks, cu_q, cu_k.
pub fn prepare_fwd(
    op: &OpRequest<'_>,
    threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    prepare_fwd_on(op, threads, Isa::of(isas.level))
}

pub(super) fn prepare_fwd_on(
    op: &OpRequest<'_>,
    threads: usize,
    isa: Isa,
) -> Result<(Box<dyn Kernel>, Plan)> {
    arity_up_to(op, 5..=9, 2)?;
    let p: AttentionExtParams = op.params()?;
    let mut s = shape(
        op,
        2,
        0,
        1,
        isa.nr,
        [(p.flags & !op::FLAG_IN_ROW).into(), p.window],
        p.scale,
    )?;
    s.ext = Some(ext(op, &s, 5, 5)?);
    let segments = Segments::of(op, 7, &s)?;
    output_strided(op, 0, FLOATS)?;
    output_strided(op, 1, F32)?;
    let floats = fwd::floats(&s) * threads + WORDS * segments.room(BQ);
    Ok((
        Box::new(Forward {
            s,
            segments,
            isa,
            slots: threads,
        }),
        plan(isa, floats),
    ))
}

struct Backward {
    s: Bwd,
    segments: Segments,
    isa: Isa,
    slots: usize,
    dbias: Option<Line>,
    dsinks: Option<Line>,
}

/// Operands behind dq, dk, dv, dbias, dsinks: where an item's addresses find them.
const DO: usize = 5;
const LSE: usize = 10;
const BIAS: usize = 11;
const CU: usize = 13;

impl Backward {
    /// f32 of the lists, whole vectors.
    fn listed(&self) -> usize {
        up(WORDS * self.segments.room(BK), 16)
    }

    /// Adds the gradient of the sinks: -exp(sink - lse) do.o over all queries that belong to a segment.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn sinks(&self, l: &Launch<'_>, out: Line) {
        let (t, s) = (&self.s, &self.s.s);
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        each(l.team, self.slots, s.h, &|_, h| {
            let p = &p;
            let mut sum = 0f64;
            let Some(x) = &s.ext else { return };
            // SAFETY: the caller's contract; the element of the head is this item's.
            unsafe {
                let at = [p.operands[BIAS], p.operands[BIAS + 1]];
                let ext = Ext { operand: 0, ..*x };
                let Some(sink) = ext.sink(&at, h) else { return };
                for row in 0..s.b {
                    for i in 0..s.tq {
                        let lse = lse_at(s, p.operands[LSE], row, i).cast::<f32>();
                        let lse = lse.offset(h as isize * s.lse[1]).read();
                        if lse == f32::NEG_INFINITY {
                            continue;
                        }
                        let (a, b) = (
                            t.dout.at(p.operands[DO], row, i, h),
                            s.o.at(p.operands[DO + 1], row, i, h),
                        );
                        let mut delta = 0f64;
                        for e in 0..s.d as isize {
                            let a = t.dout.elem.get(t.dout.elem.at(a, e));
                            delta += f64::from(a) * f64::from(s.o.elem.get(s.o.elem.at(b, e)));
                        }
                        sum -= f64::from(sink - lse).exp() * delta;
                    }
                }
                let dst = p.operands[4].cast::<f32>().offset(h as isize * out.stride);
                *dst += sum as f32;
            }
        });
    }
}

impl Kernel for Backward {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<op::PhiloxDyn>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let pass = Pass {
            k: self,
            p: Ptrs {
                operands: l.operands,
                scratch: l.workspace.cast(),
            },
            floats: self.s.floats(),
            key: key(l),
        };
        // SAFETY: the caller's contract.
        unsafe {
            pass.items(l);
            if let Some(out) = self.dsinks {
                self.sinks(l, out);
            }
            pass.blank(l);
        }
    }
}

/// One run of the backward.
struct Pass<'a> {
    k: &'a Backward,
    p: Ptrs<'a>,
    /// Scratch of an item.
    floats: usize,
    key: Key,
}

impl Pass<'_> {
    /// Where the gradient of the bias of a row of the batch and a head is summed.
    fn partial(&self, row: usize, h: usize) -> *mut f32 {
        let s = &self.k.s.s;
        let distances = s.ext.map_or(0, |x| x.distances);
        let lists = self.p.slot(self.k.slots, self.floats);
        lists.wrapping_add(self.k.listed() + (row * s.h + h) * distances)
    }

    /// All key heads of one part.
    fn whole(&self, of: Part, g: usize) -> bwd::Item {
        let group = self.k.s.s.h / self.k.s.s.hkv;
        bwd::Item {
            b: 0,
            g,
            heads: (g * group, (g + 1) * group),
            q: (0, (of.q[1] as usize).div_ceil(BQ)),
            k: (0, (of.k[1] as usize).div_ceil(BK)),
            dq: true,
            dkv: true,
        }
    }

    /// Runs an item of a part in the scratch of a thread.
    ///
    /// # Safety
    /// The part lies inside the operands, the slot is this thread's, the item's outputs are its own.
    unsafe fn go(&self, slot: usize, of: Part, item: bwd::Item) {
        let (t, p) = (&self.k.s, &self.p);
        let s = &t.s;
        let (row, q, k) = (of.row as usize, of.q[0] as usize, of.k[0] as usize);
        let at = |v: &View, i: usize, t: usize| v.at(p.operands[i], row, t, 0);
        let operands = [
            at(&t.dq, 0, q),
            at(&t.dk, 1, k),
            at(&t.dv, 2, k),
            at(&t.dout, DO, q),
            at(&s.o, DO + 1, q),
            at(&s.q, DO + 2, q),
            at(&s.k, DO + 3, k),
            at(&s.v, DO + 4, k),
            lse_at(s, p.operands[LSE], row, q),
            p.operands[BIAS],
            p.operands[BIAS + 1],
            self.partial(row, 0).cast(),
        ];
        let segment = Bwd {
            s: part(s, of, self.key),
            dq: t.dq,
            dk: t.dk,
            dv: t.dv,
            dout: t.dout,
            split: t.split,
        };
        // SAFETY: by contract.
        unsafe { (self.k.isa.bwd)(&segment, &operands, item, p.slot(slot, self.floats)) }
    }

    /// dq, dk, dv, and the gradient of the bias.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn items(&self, l: &Launch<'_>) {
        let (k, s) = (self.k, &self.k.s.s);
        let list = self.p.slot(k.slots, self.floats).cast::<Part>();
        // SAFETY: the operands and the workspace are those prepared; a list is done with before the next is written.
        let listed = |over: Over| unsafe { k.segments.list(l.operands, over, list) };
        let segments = listed(Over::Segments);
        // SAFETY: parts lie inside the operands, slots are their threads', and items of one list have outputs of their own.
        let go = |slot: usize, of: Part, item: bwd::Item| unsafe { self.go(slot, of, item) };
        if let Some(out) = k.dbias {
            // SAFETY: the caller's contract.
            return unsafe { self.with_bias(l, segments, out) };
        }
        let longest = segments.iter().map(|x| x.q[1]).max().unwrap_or(0) as usize;
        let all: usize = segments.iter().map(|x| x.q[1] as usize).sum();
        if longest * k.slots <= all * s.hkv {
            each(l.team, k.slots, segments.len() * s.hkv, &|slot, i| {
                let (of, g) = (segments[i / s.hkv], i % s.hkv);
                go(slot, of, self.whole(of, g));
            });
            return;
        }
        // Few heads for many threads: blocks of keys and of queries apart, as in `Backward` of whole sequences.
        let keys = listed(Over::Keys);
        each(l.team, k.slots, keys.len() * s.hkv, &|slot, i| {
            let (of, g) = (keys[i / s.hkv], i % s.hkv);
            let item = bwd::Item {
                k: (of.block as usize, of.block as usize + 1),
                dq: false,
                ..self.whole(of, g)
            };
            go(slot, of, item);
        });
        let queries = listed(Over::Queries);
        each(l.team, k.slots, queries.len() * s.h, &|slot, i| {
            let (of, h) = (queries[queries.len() - 1 - i / s.h], i % s.h);
            let item = bwd::Item {
                heads: (h, h + 1),
                q: (of.block as usize, of.block as usize + 1),
                dkv: false,
                ..self.whole(of, h / (s.h / s.hkv))
            };
            go(slot, of, item);
        });
    }

    /// The same where the segments of a row add to one gradient of the bias: they run one after another.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn with_bias(&self, l: &Launch<'_>, segments: &[Part], out: Line) {
        let (k, s) = (self.k, &self.k.s.s);
        let distances = s.ext.map_or(0, |x| x.distances);
        let group = s.h / s.hkv;
        each(l.team, k.slots, s.b * s.hkv, &|slot, i| {
            let (row, g) = (i / s.hkv, i % s.hkv);
            // Listed row by row.
            let before = |n: usize| segments.partition_point(|x| (x.row as usize) < n);
            let own = &segments[before(row)..before(row + 1)];
            // SAFETY: the workspace has so many numbers for each row and head; those of these heads are the item's.
            unsafe {
                let partial = self.partial(row, g * group);
                partial.write_bytes(0, group * distances);
                for of in own {
                    self.go(slot, *of, self.whole(*of, g));
                }
            }
        });
        each(l.team, k.slots, s.h, &|_, h| {
            for x in 0..distances {
                // SAFETY: as above; the row of the head is this item's.
                unsafe {
                    let one = |row: usize| self.partial(row, h).add(x).read();
                    let sum: f32 = (0..s.b).map(one).sum();
                    let dst = self.p.operands[3].cast::<f32>();
                    *dst.offset(h as isize * out.stride + x as isize) += sum;
                }
            }
        });
    }

    /// Zeros where there is no segment.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn blank(&self, l: &Launch<'_>) {
        let (k, t, s) = (self.k, &self.k.s, &self.k.s.s);
        let (Some(cu_q), Some(cu_k)) = (&k.segments.q, &k.segments.k) else {
            return;
        };
        // Captured whole, not by field: `Ptrs` may be shared, addresses alone may not.
        let p = &self.p;
        let queries = |row: usize, at: usize| {
            let p = &p;
            // SAFETY: the caller's contract; no segment and no other item has the position.
            unsafe { clear(&t.dq, p.operands[0], [row, at], s.h, s.d) };
        };
        let keys = |row: usize, at: usize| {
            let p = &p;
            // SAFETY: as above.
            unsafe {
                clear(&t.dk, p.operands[1], [row, at], s.hkv, s.d);
                clear(&t.dv, p.operands[2], [row, at], s.hkv, s.d);
            }
        };
        // SAFETY: the caller's contract.
        unsafe {
            cu_q.outside(l, k.slots, &queries);
            cu_k.outside(l, k.slots, &keys);
        }
    }
}

/// Prepares `attention_ext_bwd`: operands dq, dk, dv, dbias, dsinks, do, o, q, k, v, lse, bias, sinks, cu_q, cu_k.
pub fn prepare_bwd(
    op: &OpRequest<'_>,
    threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    prepare_bwd_on(op, threads, Isa::of(isas.level))
}

pub(super) fn prepare_bwd_on(
    op: &OpRequest<'_>,
    threads: usize,
    isa: Isa,
) -> Result<(Box<dyn Kernel>, Plan)> {
    arity_up_to(op, LSE + 1..=15, 2)?;
    let p: AttentionExtParams = op.params()?;
    let mut s = shape(
        op,
        7,
        6,
        LSE,
        isa.nr,
        [(p.flags & !op::FLAG_IN_ROW).into(), p.window],
        p.scale,
    )?;
    let segments = Segments::of(op, CU, &s)?;
    let mut x = ext(op, &s, BIAS, 9)?;
    let dbias = line(op, 3, "dbias", &[s.h, x.distances], true)?;
    let dsinks = line(op, 4, "dsinks", &[s.h], true)?;
    if (dbias.is_some() && x.bias.is_none()) || (dsinks.is_some() && x.sinks.is_none()) {
        return fail(
            Code::Invalid,
            "attention: a gradient of bias or sinks is asked for without bias or sinks",
        );
    }
    for i in 0..3 {
        output_strided(op, i, FLOATS)?;
    }
    x.dbias = dbias.is_some();
    let distances = if x.dbias { x.distances } else { 0 };
    s.ext = Some(x);
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let bias = s.b * s.h * distances;
    let s = Bwd {
        dq: view(op, 0, "dq", qs)?,
        dk: view(op, 1, "dk", ks)?,
        dv: view(op, 2, "dv", ks)?,
        dout: view(op, DO, "do", qs)?,
        s,
        split: false,
    };
    let k = Backward {
        s,
        segments,
        isa,
        slots: threads,
        dbias,
        dsinks,
    };
    // Blocks of keys are the smaller ones.
    let floats = k.s.floats() * threads + k.listed() + bias;
    Ok((Box::new(k), plan(isa, floats)))
}
