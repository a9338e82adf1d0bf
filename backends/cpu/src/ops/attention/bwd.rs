//! Backward: blocks of queries (outside) against blocks of keys (inside); the probabilities come again from `lse`.
//!
//! With P = exp(scale q.k - lse), dP = do.v, delta = sum(do * o) and dS = P * (dP - delta):
//! dv = P^T do, dk = scale dS^T q, dq = scale dS k.

use super::beyond::{Areas, Block};
use super::fwd::exp_of;
use super::math::{Sum, load_rows, mask, product, scores, store_rows, strips};
use super::{BK, BQ, Shape, View, up};
use crate::gemm::lane::Lane;

/// What the backward adds to the shape.
pub struct Bwd {
    pub s: Shape,
    pub dq: View,
    pub dk: View,
    pub dv: View,
    pub dout: View,
    /// dk, dv and dq in two passes, each cut by blocks, instead of one per key head.
    pub split: bool,
}

/// The heads of one key head against blocks of queries and of keys (`first, end`), and what is written.
#[derive(Clone, Copy)]
pub struct Item {
    pub b: usize,
    pub g: usize,
    pub heads: (usize, usize),
    pub q: (usize, usize),
    pub k: (usize, usize),
    pub dq: bool,
    pub dkv: bool,
}

impl Bwd {
    /// f32 of scratch an item needs: k, v, dk, dv of all its keys, and one block of everything else.
    pub fn floats(&self) -> usize {
        let s = &self.s;
        up(
            4 * s.k_blocks() * BK * s.dp
                + 2 * BQ * s.d
                + 4 * BQ * s.dp
                + 2 * BK * BQ
                + 2 * BQ
                + s.beyond(),
            16,
        )
    }
}

/// Operands dq, dk, dv, do, o, q, k, v, lse (and those of [`super::beyond`]).
///
/// # Safety
/// Operands fit the shape, `scratch` has [`Bwd::floats`], the lane's instruction set is there.
#[inline(always)]
pub unsafe fn item<L: Lane, const MR: usize, const NV: usize>(
    t: &Bwd,
    p: &[*mut u8],
    it: Item,
    scratch: *mut f32,
) {
    let s = &t.s;
    let nr = NV * L::N;
    let base = it.k.0 * BK;
    let keys = s.tk.min(it.k.1 * BK) - base;
    let padded = up(keys, BK);
    // SAFETY: the areas below add up to `floats`; rows stay inside the shape.
    unsafe {
        let k = scratch;
        let v = k.add(padded * s.dp);
        let dk = v.add(padded * s.dp);
        let dv = dk.add(padded * s.dp);
        let qt = dv.add(padded * s.dp);
        let dot = qt.add(BQ * s.d);
        let q = dot.add(BQ * s.d);
        let dout = q.add(BQ * s.dp);
        let o = dout.add(BQ * s.dp);
        let dq = o.add(BQ * s.dp);
        let st = dq.add(BQ * s.dp);
        let ds = st.add(BK * BQ);
        let lse = std::slice::from_raw_parts_mut(ds.add(BK * BQ), BQ);
        let delta = std::slice::from_raw_parts_mut(ds.add(BK * BQ + BQ), BQ);
        let areas = Areas::of(ds.add(BK * BQ + 2 * BQ));
        load_rows(s, &s.k, p[6], it.b, base, keys, it.g, padded, k);
        load_rows(s, &s.v, p[7], it.b, base, keys, it.g, padded, v);
        // What no query sees may be no number, and 0 times it is none either.
        let (lo, hi) = s.keys(0, s.tq);
        for j in (0..keys).filter(|j| !(lo..hi).contains(&(base + j))) {
            k.add(j * s.dp).write_bytes(0, s.dp);
            v.add(j * s.dp).write_bytes(0, s.dp);
        }
        if it.dkv {
            dk.write_bytes(0, 2 * padded * s.dp);
        }
        for h in it.heads.0..it.heads.1 {
            for block in it.q.0..it.q.1 {
                let i0 = block * BQ;
                let nq = BQ.min(s.tq - i0);
                let w = up(up(nq, MR), nr);
                let (lo, hi) = s.keys(i0, nq);
                // Blocks of keys keep their places whatever the mask, so that both passes cut alike.
                let first = (lo / BK).max(it.k.0);
                let end = hi.div_ceil(BK).min(it.k.1);
                if first >= end && !it.dq {
                    continue;
                }
                load_rows(s, &s.q, p[5], it.b, i0, nq, h, w, q);
                load_rows(s, &t.dout, p[3], it.b, i0, nq, h, w, dout);
                load_rows(s, &s.o, p[4], it.b, i0, nq, h, nq, o);
                // Nor is a query that sees nothing a number for that of others.
                let blind = |i: &usize| {
                    let (lo, hi) = s.keys(i0 + i, 1);
                    lo >= hi
                };
                for i in (0..nq).filter(blind) {
                    q.add(i * s.dp).write_bytes(0, s.dp);
                    dout.add(i * s.dp).write_bytes(0, s.dp);
                }
                for x in std::slice::from_raw_parts_mut(q, nq * s.dp) {
                    *x *= s.scale;
                }
                strips(s, q, w, nr, qt);
                strips(s, dout, w, nr, dot);
                for i in 0..w {
                    (lse[i], delta[i]) = (f32::INFINITY, 0.0);
                    if i < nq {
                        let at = it.b as isize * s.lse[0]
                            + h as isize * s.lse[1]
                            + (i0 + i) as isize * s.lse[2];
                        let x = p[8].cast::<f32>().offset(at).read();
                        // A row that saw no key: exp(anything - infinity) = 0.
                        lse[i] = if x == f32::NEG_INFINITY {
                            f32::INFINITY
                        } else {
                            x
                        };
                        let row = |x: *mut f32| std::slice::from_raw_parts(x.add(i * s.dp), s.dp);
                        delta[i] = dot_product(row(dout), row(o));
                    }
                }
                dq.write_bytes(0, w * s.dp);
                for j in first..end {
                    let j0 = j * BK;
                    let nk = BK.min(s.tk - j0);
                    let at = (j0 - base) * s.dp;
                    let (kj, vj) = (k.add(at), v.add(at));
                    let reach = s.reach(i0, j0);
                    scores::<L, MR, NV>(nk, w, s.d, kj, s.dp, qt, reach, st);
                    let b = Block { h, i0, w, j0, nk };
                    if let Some(x) = &s.ext {
                        x.scores(p, b, st, areas);
                    }
                    mask(s, i0, w, j0, nk, st);
                    scores::<L, MR, NV>(nk, w, s.d, vj, s.dp, dot, reach, ds);
                    slopes::<L>(s, p, b, [st, ds], [lse, delta], areas);
                    if it.dkv {
                        product::<L, MR, NV>(
                            nk,
                            s.dp,
                            nq,
                            st,
                            BQ,
                            1,
                            dout,
                            s.dp,
                            dv.add(at),
                            true,
                            Sum::Queries(reach),
                        );
                        product::<L, MR, NV>(
                            nk,
                            s.dp,
                            nq,
                            ds,
                            BQ,
                            1,
                            q,
                            s.dp,
                            dk.add(at),
                            true,
                            Sum::Queries(reach),
                        );
                    }
                    if it.dq {
                        product::<L, MR, NV>(
                            nq,
                            s.dp,
                            nk,
                            ds,
                            1,
                            BQ,
                            kj,
                            s.dp,
                            dq,
                            true,
                            Sum::Keys(reach),
                        );
                    }
                }
                if it.dq {
                    for x in std::slice::from_raw_parts_mut(dq, nq * s.dp) {
                        *x *= s.scale;
                    }
                    store_rows(s, &t.dq, p[0], it.b, i0, nq, h, dq);
                }
            }
        }
        if it.dkv {
            store_rows(s, &t.dk, p[1], it.b, base, keys, it.g, dk);
            store_rows(s, &t.dv, p[2], it.b, base, keys, it.g, dv);
        }
    }
}

/// From scores and do.v of a block to the weights that were used and the gradients of the scores.
///
/// # Safety
/// As [`item`].
#[inline(always)]
unsafe fn slopes<L: Lane>(
    s: &Shape,
    p: &[*mut u8],
    b: Block,
    [st, ds]: [*mut f32; 2],
    [lse, delta]: [&[f32]; 2],
    areas: Areas,
) {
    // SAFETY: by contract.
    unsafe {
        if let Some(x) = &s.ext {
            for r in 0..b.nk {
                for (x, &l) in b.row(st, r).iter_mut().zip(lse) {
                    *x = exp_of::<L>(*x - l);
                }
            }
            x.factors(b, areas);
            return x.gradients(p, b, [st, ds], delta, areas);
        }
        for r in 0..b.nk {
            let (row, drow) = (b.row(st, r), b.row(ds, r));
            for (((x, d), &l), &e) in row.iter_mut().zip(drow).zip(lse).zip(delta) {
                *x = exp_of::<L>(*x - l);
                // Where the mask made P zero, dP may never have been computed.
                *d = if *x == 0.0 { 0.0 } else { *x * (*d - e) };
            }
        }
    }
}

/// Sum of products in eight fixed lanes.
#[inline(always)]
fn dot_product(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (x, y) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i];
        }
    }
    lanes.iter().sum()
}
