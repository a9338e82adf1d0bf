//! `attention_varlen_fwd`, `attention_varlen_bwd`: every segment is attention of its own, on the tiles of `fwd` and `bwd` from its first position on.
//!
//! So the bits of a segment are those of `attention_*` on it alone, wherever it lies and whatever lies beside it. The cumulative lengths are
//! read when the kernel runs; a list of blocks at the end of the workspace deals the segments out to the threads.

use super::super::view::{F32, FLOATS, arity, output_strided};
use super::bwd::{self, Bwd};
use super::{BK, BQ, Isa, Ptrs, Shape, View, fwd, plain_shape, plan, view};
use crate::gemm::each;
use crate::isa::Isas;
use crate::kernel::{Kernel, Launch};
use crossweave_plugin::{Code, DType, OpRequest, Plan, Result, fail, unsupported};

/// The cumulative lengths among the operands.
#[derive(Clone, Copy)]
pub(super) struct Cu {
    pub(super) operand: usize,
    /// Numbers of a row, one more than segments.
    pub(super) n: usize,
    /// From row to row, from number to number.
    stride: [isize; 2],
    rows: usize,
    /// Positions.
    t: usize,
}

/// A block of the segment `first .. first + len` of a row.
#[derive(Clone, Copy)]
#[repr(C)]
struct Block {
    row: u32,
    first: u32,
    len: u32,
    block: u32,
}

/// f32 of workspace that a block of the list takes.
const WORDS: usize = size_of::<Block>() / 4;

impl Cu {
    /// Reads operand `operand`, of `b` rows over `t` positions.
    pub(super) fn of(op: &OpRequest<'_>, operand: usize, b: usize, t: usize) -> Result<Cu> {
        let Some(l) = op.layout(operand) else {
            return fail(
                Code::Invalid,
                "attention: operand cu (cumulative lengths) is absent",
            );
        };
        if l.dtype != DType::I32.id() {
            return unsupported(format!(
                "attention: dtype {} of cu, supported is i32",
                op.dtype(operand).map_or("unknown", DType::name)
            ));
        }
        let rows = l.rank == 2 && l.shape[0] == b as i64 && l.shape[1] >= 1;
        if !rows || l.stride[..2].iter().any(|x| *x < 0) || b.max(t) > i32::MAX as usize {
            return fail(
                Code::Invalid,
                format!(
                    "attention: cu must be i32 [{}, segments + 1] over at most {} positions, is {:?} over {}",
                    b,
                    i32::MAX,
                    &l.shape[..l.rank.min(8) as usize],
                    t
                ),
            );
        }
        Ok(Cu {
            operand,
            n: l.shape[1] as usize,
            stride: [l.stride[0] as isize, l.stride[1] as isize],
            rows: b,
            t,
        })
    }

    /// The lengths of a self-attention.
    fn of_both(op: &OpRequest<'_>, operand: usize, s: &Shape) -> Result<Cu> {
        if s.tq != s.tk {
            return fail(
                Code::Invalid,
                format!(
                    "attention: packed sequences have as many keys as queries, not {} queries and {} keys",
                    s.tq, s.tk
                ),
            );
        }
        Cu::of(op, operand, s.b, s.tq)
    }

    /// Number `i` of a row, held between `least` (at most T) and T: whatever the numbers are, segments neither overlap nor leave the operands.
    ///
    /// # Safety
    /// `p` is the operand.
    pub(super) unsafe fn at(&self, p: *const u8, row: usize, i: usize, least: usize) -> usize {
        let at = row as isize * self.stride[0] + i as isize * self.stride[1];
        // SAFETY: by contract; the row is there and `i` is below `n`.
        let x = unsafe { p.cast::<i32>().offset(at).read() };
        (x.max(0) as usize).clamp(least, self.t)
    }

    /// Calls `f(first, len)` for every segment of a row that has positions, in order; `first, end` of the positions that lie in one.
    ///
    /// # Safety
    /// `p` is the operand.
    unsafe fn segments(
        &self,
        p: *const u8,
        row: usize,
        mut f: impl FnMut(usize, usize),
    ) -> (usize, usize) {
        // SAFETY: by contract.
        let begin = unsafe { self.at(p, row, 0, 0) };
        let mut end = begin;
        for i in 1..self.n {
            // SAFETY: by contract.
            let next = unsafe { self.at(p, row, i, end) };
            if next > end {
                f(end, next - end);
            }
            end = next;
        }
        (begin, end)
    }

    /// Most blocks of `rows` positions: a segment adds at most one that is not full.
    fn room(&self, rows: usize) -> usize {
        self.rows * (self.t / rows + (self.n - 1).min(self.t))
    }

    /// Lists the blocks of `rows` positions of all segments.
    ///
    /// # Safety
    /// `p` is the operand, `out` is writable for [`Cu::room`] blocks of so many rows.
    unsafe fn blocks<'a>(&self, p: *const u8, rows: usize, out: *mut Block) -> &'a [Block] {
        let mut n = 0;
        for row in 0..self.rows {
            let put = |first: usize, len: usize| {
                for block in 0..len.div_ceil(rows) {
                    let b = Block {
                        row: row as u32,
                        first: first as u32,
                        len: len as u32,
                        block: block as u32,
                    };
                    // SAFETY: `room` counts them all.
                    unsafe { out.add(n).write(b) };
                    n += 1;
                }
            };
            // SAFETY: by contract.
            unsafe { self.segments(p, row, put) };
        }
        // SAFETY: so many were written; who calls again is done with them.
        unsafe { std::slice::from_raw_parts(out.cast_const(), n) }
    }

    /// Calls `f(row, position)` for every position of no segment.
    ///
    /// # Safety
    /// The launch is of the op prepared.
    pub(super) unsafe fn outside(
        &self,
        l: &Launch<'_>,
        slots: usize,
        f: &(dyn Fn(usize, usize) + Sync),
    ) {
        let cu = l.operands[self.operand].cast_const();
        for row in 0..self.rows {
            // SAFETY: by contract.
            let (begin, end) = unsafe { self.segments(cu, row, |_: usize, _: usize| ()) };
            each(l.team, slots, self.t - (end - begin), &|_, i| {
                f(row, if i < begin { i } else { i + (end - begin) })
            });
        }
    }
}

/// The shape of one segment.
fn part(s: &Shape, len: usize) -> Shape {
    Shape {
        b: 1,
        tq: len,
        tk: len,
        ahead: 0,
        ..s.clone()
    }
}

/// Where the log-sum-exp of a position lies, for head 0.
pub(super) fn lse_at(s: &Shape, p: *mut u8, row: usize, t: usize) -> *mut u8 {
    let at = row as isize * s.lse[0] + t as isize * s.lse[2];
    p.cast::<f32>().wrapping_offset(at).cast()
}

/// Zeros at a position of all heads.
///
/// # Safety
/// `p` is the operand of the view, the position is the caller's.
pub(super) unsafe fn clear(v: &View, p: *mut u8, [row, t]: [usize; 2], heads: usize, d: usize) {
    for h in 0..heads {
        // SAFETY: by contract; the zero of every storage is zero bytes.
        unsafe { v.at(p, row, t, h).write_bytes(0, d * v.elem.bytes()) };
    }
}

struct Forward {
    s: Shape,
    cu: Cu,
    isa: Isa,
    slots: usize,
}

impl Kernel for Forward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let s = &self.s;
        let floats = fwd::floats(s);
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        let list = p.slot(self.slots, floats).cast::<Block>();
        // SAFETY: the operand and the workspace are those prepared; nothing writes the list while the slice lives.
        let blocks = unsafe { self.cu.blocks(l.operands[self.cu.operand], BQ, list) };
        each(l.team, self.slots, blocks.len() * s.h, &|slot, i| {
            // Late blocks of a segment see most keys: they go first.
            let b = blocks[blocks.len() - 1 - i / s.h];
            let (row, first) = (b.row as usize, b.first as usize);
            let p = &p;
            let at = |v: &View, i: usize| v.at(p.operands[i], row, first, 0);
            let operands = [
                at(&s.o, 0),
                lse_at(s, p.operands[1], row, first),
                at(&s.q, 2),
                at(&s.k, 3),
                at(&s.v, 4),
            ];
            let item = fwd::Item {
                b: 0,
                h: i % s.h,
                block: b.block as usize,
            };
            // SAFETY: the caller's contract; the segment lies inside the operands, the slot is this thread's, the item's outputs are its own.
            unsafe {
                (self.isa.fwd)(
                    &part(s, b.len as usize),
                    &operands,
                    item,
                    p.slot(slot, floats),
                )
            }
        });
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
        unsafe { self.cu.outside(l, self.slots, &blank) };
    }
}

/// Prepares `attention_varlen_fwd`: operands o, lse, q, k, v, cu.
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
    arity(op, 6..=6)?;
    let s = plain_shape(op, 2, 0, 1, isa.nr)?;
    let cu = Cu::of_both(op, 5, &s)?;
    output_strided(op, 0, FLOATS)?;
    output_strided(op, 1, F32)?;
    let floats = fwd::floats(&s) * threads + WORDS * cu.room(BQ);
    Ok((
        Box::new(Forward {
            s,
            cu,
            isa,
            slots: threads,
        }),
        plan(isa, floats),
    ))
}

struct Backward {
    s: Bwd,
    cu: Cu,
    isa: Isa,
    slots: usize,
}

impl Kernel for Backward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (t, s) = (&self.s, &self.s.s);
        let (floats, group) = (t.floats(), s.h / s.hkv);
        let p = Ptrs {
            operands: l.operands,
            scratch: l.workspace.cast(),
        };
        let list = p.slot(self.slots, floats).cast::<Block>();
        let cu = l.operands[self.cu.operand].cast_const();
        let go = |slot: usize, b: Block, item: bwd::Item| {
            let (row, first) = (b.row as usize, b.first as usize);
            let p = &p;
            let at = |v: &View, i: usize| v.at(p.operands[i], row, first, 0);
            let operands = [
                at(&t.dq, 0),
                at(&t.dk, 1),
                at(&t.dv, 2),
                at(&t.dout, 3),
                at(&s.o, 4),
                at(&s.q, 5),
                at(&s.k, 6),
                at(&s.v, 7),
                lse_at(s, p.operands[8], row, first),
            ];
            let segment = Bwd {
                s: part(s, b.len as usize),
                dq: t.dq,
                dk: t.dk,
                dv: t.dv,
                dout: t.dout,
                split: t.split,
            };
            // SAFETY: the caller's contract; the segment lies inside the operands, the slot is this thread's, the item's outputs are its own.
            unsafe { (self.isa.bwd)(&segment, &operands, item, p.slot(slot, floats)) }
        };
        // SAFETY: the operand and the workspace are those prepared; a list is done with before the next is written.
        let listed = |rows: usize| unsafe { self.cu.blocks(cu, rows, list) };
        let (mut longest, mut all) = (0usize, 0usize);
        for row in 0..s.b {
            let seen = |_: usize, len: usize| {
                longest = longest.max(len);
                all += len;
            };
            // SAFETY: the operand is the one prepared.
            unsafe { self.cu.segments(cu, row, seen) };
        }
        // A key head of the longest segment would be the last to finish: then blocks of keys and of queries apart, at the price of computing
        // the scores twice. The bits are the same: see `Backward` of whole sequences.
        if longest * self.slots <= all * s.hkv {
            let segments = listed(s.tq.max(1));
            each(l.team, self.slots, segments.len() * s.hkv, &|slot, i| {
                let (b, g) = (segments[i / s.hkv], i % s.hkv);
                let n = b.len as usize;
                let item = bwd::Item {
                    b: 0,
                    g,
                    heads: (g * group, (g + 1) * group),
                    q: (0, n.div_ceil(BQ)),
                    k: (0, n.div_ceil(BK)),
                    dq: true,
                    dkv: true,
                };
                go(slot, b, item);
            });
        } else {
            let keys = listed(BK);
            each(l.team, self.slots, keys.len() * s.hkv, &|slot, i| {
                let (b, g) = (keys[i / s.hkv], i % s.hkv);
                let item = bwd::Item {
                    b: 0,
                    g,
                    heads: (g * group, (g + 1) * group),
                    q: (0, (b.len as usize).div_ceil(BQ)),
                    k: (b.block as usize, b.block as usize + 1),
                    dq: false,
                    dkv: true,
                };
                go(slot, b, item);
            });
            let queries = listed(BQ);
            each(l.team, self.slots, queries.len() * s.h, &|slot, i| {
                let (b, h) = (queries[queries.len() - 1 - i / s.h], i % s.h);
                let item = bwd::Item {
                    b: 0,
                    g: h / group,
                    heads: (h, h + 1),
                    q: (b.block as usize, b.block as usize + 1),
                    k: (0, (b.len as usize).div_ceil(BK)),
                    dq: true,
                    dkv: false,
                };
                go(slot, b, item);
            });
        }
        let blank = |row: usize, at: usize| {
            let p = &p;
            // SAFETY: the caller's contract; no segment and no other item has the position.
            unsafe {
                clear(&t.dq, p.operands[0], [row, at], s.h, s.d);
                clear(&t.dk, p.operands[1], [row, at], s.hkv, s.d);
                clear(&t.dv, p.operands[2], [row, at], s.hkv, s.d);
            }
        };
        // SAFETY: the caller's contract.
        unsafe { self.cu.outside(l, self.slots, &blank) };
    }
}

/// Prepares `attention_varlen_bwd`: operands dq, dk, dv, do, o, q, k, v, lse, cu.
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
    arity(op, 10..=10)?;
    let s = plain_shape(op, 5, 4, 8, isa.nr)?;
    let cu = Cu::of_both(op, 9, &s)?;
    for i in 0..3 {
        output_strided(op, i, FLOATS)?;
    }
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let s = Bwd {
        dq: view(op, 0, "dq", qs)?,
        dk: view(op, 1, "dk", ks)?,
        dv: view(op, 2, "dv", ks)?,
        dout: view(op, 3, "do", qs)?,
        s,
        split: false,
    };
    // Blocks of keys are the smaller ones.
    let floats = s.floats() * threads + WORDS * cu.room(BK);
    Ok((
        Box::new(Backward {
            s,
            cu,
            isa,
            slots: threads,
        }),
        plan(isa, floats),
    ))
}
