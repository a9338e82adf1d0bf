//! Forward: one block of queries of one head walks over its keys with a running maximum and sum.

use super::beyond::{Areas, Block, settle};
use super::math::{Sum, exp, load_rows, mask, product, scores, store_rows, strips};
use super::{BK, BQ, Shape, up};
use crate::gemm::lane::Lane;

/// A block of queries.
#[derive(Clone, Copy)]
pub struct Item {
    pub b: usize,
    pub h: usize,
    pub block: usize,
}

/// f32 of scratch an item needs.
pub fn floats(s: &Shape) -> usize {
    up(
        BQ * s.d + 2 * BK * s.dp + BK * BQ + 2 * BQ * s.dp + 4 * BQ + s.beyond(),
        16,
    )
}

/// Computes `o` and `lse` of a block; operands o, lse, q, k, v.
///
/// # Safety
/// Operands fit the shape, `scratch` has [`floats`], the lane's instruction set is there.
#[inline(always)]
pub unsafe fn item<L: Lane, const MR: usize, const NV: usize>(
    s: &Shape,
    p: &[*mut u8],
    it: Item,
    scratch: *mut f32,
) {
    let nr = NV * L::N;
    let (i0, h, g) = (it.block * BQ, it.h, it.h / (s.h / s.hkv));
    let nq = BQ.min(s.tq - i0);
    // Columns computed: whole tiles, as rows and as columns (BQ is a multiple of both).
    let w = up(up(nq, MR), nr);
    // SAFETY: the areas below add up to `floats`; rows stay inside the shape.
    unsafe {
        let qt = scratch;
        let k = qt.add(BQ * s.d);
        let v = k.add(BK * s.dp);
        let st = v.add(BK * s.dp);
        let q = st.add(BK * BQ);
        let o = q.add(BQ * s.dp);
        let stats = o.add(BQ * s.dp);
        let areas = Areas::of(stats.add(4 * BQ));
        let stat = |i: usize| std::slice::from_raw_parts_mut(stats.add(i * BQ), w);
        let (top, sum, new, fade) = (stat(0), stat(1), stat(2), stat(3));
        load_rows(s, &s.q, p[2], it.b, i0, nq, it.h, w, q);
        for x in std::slice::from_raw_parts_mut(q, nq * s.dp) {
            *x *= s.scale;
        }
        strips(s, q, w, nr, qt);
        top.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        o.write_bytes(0, w * s.dp);
        let (lo, hi) = s.keys(i0, nq);
        for j0 in (lo..hi).step_by(BK) {
            let nk = BK.min(hi - j0);
            let rows = up(nk, MR);
            load_rows(s, &s.k, p[3], it.b, j0, nk, g, rows, k);
            load_rows(s, &s.v, p[4], it.b, j0, nk, g, nk, v);
            let reach = s.reach(i0, j0);
            scores::<L, MR, NV>(nk, w, s.d, k, s.dp, qt, reach, st);
            let b = Block { h, i0, w, j0, nk };
            if let Some(x) = &s.ext {
                x.scores(p, b, st, areas);
            }
            mask(s, i0, w, j0, nk, st);
            new.copy_from_slice(top);
            for r in 0..nk {
                let row = std::slice::from_raw_parts(st.add(r * BQ), w);
                for (m, &x) in new.iter_mut().zip(row) {
                    *m = if x > *m { x } else { *m };
                }
            }
            for q in 0..w {
                // A row that has seen no key yet subtracts 0, not minus infinity from itself.
                let m = if new[q] == f32::NEG_INFINITY {
                    0.0
                } else {
                    new[q]
                };
                let f = if top[q] == f32::NEG_INFINITY {
                    0.0
                } else {
                    exp_of::<L>(top[q] - m)
                };
                top[q] = new[q];
                new[q] = m;
                fade[q] = f;
                sum[q] *= f;
            }
            for r in 0..nk {
                let row = std::slice::from_raw_parts_mut(st.add(r * BQ), w);
                for ((x, &m), l) in row.iter_mut().zip(&*new).zip(&mut *sum) {
                    *x = exp_of::<L>(*x - m);
                    *l += *x;
                }
            }
            if let Some(x) = &s.ext {
                x.drop_weights(b, st, areas);
            }
            if j0 > lo {
                for (i, &f) in fade[..nq].iter().enumerate() {
                    for x in std::slice::from_raw_parts_mut(o.add(i * s.dp), s.dp) {
                        *x *= f;
                    }
                }
            }
            product::<L, MR, NV>(
                nq,
                s.dp,
                nk,
                st,
                1,
                BQ,
                v,
                s.dp,
                o,
                j0 > lo,
                Sum::Keys(reach),
            );
        }
        finish(s, p, it, (i0, nq), o, [top, sum]);
        store_rows(s, &s.o, p[0], it.b, i0, nq, it.h, o);
    }
}

/// Divides the rows of `o` by their sums and stores the log-sum-exp.
///
/// # Safety
/// As [`item`].
#[inline(always)]
unsafe fn finish(
    s: &Shape,
    p: &[*mut u8],
    it: Item,
    (i0, nq): (usize, usize),
    o: *mut f32,
    [top, sum]: [&[f32]; 2],
) {
    // SAFETY: by contract.
    unsafe {
        let sink = s.ext.as_ref().and_then(|x| x.sink(p, it.h));
        for i in 0..nq {
            let (f, lse) = settle(top[i], sum[i], sink);
            for x in std::slice::from_raw_parts_mut(o.add(i * s.dp), s.dp) {
                *x *= f;
            }
            let at =
                it.b as isize * s.lse[0] + it.h as isize * s.lse[1] + (i0 + i) as isize * s.lse[2];
            p[1].cast::<f32>().offset(at).write(lse);
        }
    }
}

/// The exp of a lane's instruction set.
#[inline(always)]
pub fn exp_of<L: Lane>(x: f32) -> f32 {
    if L::FMA {
        exp::<true>(x)
    } else {
        exp::<false>(x)
    }
}
