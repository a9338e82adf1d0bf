//! What `attention_ext_*` do to a block of scores on top of `attention_*`: soft cap, bias by distance, sinks, dropout of the weights.
//!
//! A block is `S^T[key][query]`, rows `BQ` apart; query `c` of it stands at `i0 + c` of its part (a row of the batch, or a segment of it),
//! key `r` at `j0 + r`. Without an [`Ext`] in the shape none of this runs, and the bits are those of `attention_*`.

use super::super::random::philox_of;
use super::{BK, BQ, Shape};
use crate::gemm::elem::Elem;
use crate::simd::math::tanh;

/// A vector operand, for each head or one in all.
#[derive(Clone, Copy)]
pub struct Line {
    /// Storage.
    pub elem: Elem,
    /// From head to head.
    pub stride: isize,
}

/// The mask of dropped weights: see `AttentionExtParams`.
#[derive(Clone, Copy)]
pub struct Drop {
    /// Words below it (24 bits) drop.
    pub threshold: u32,
    /// What kept weights are multiplied by.
    pub scale: f32,
    /// Heads, queries and philox blocks a query of the whole.
    pub whole: [u64; 3],
    /// The number of key 0 in the whole.
    pub first_key: u64,
}

/// Seeds of a launch.
#[derive(Clone, Copy, Default)]
pub struct Key {
    /// Key of the generator.
    pub seed: u64,
    /// Upper half of its counter.
    pub stream: u64,
    /// Block of the first weight.
    pub offset: u64,
}

/// What a shape has beyond scale and mask.
#[derive(Clone, Copy)]
pub struct Ext {
    /// Bound of the scores, 0 = none.
    pub cap: f32,
    /// Bias by distance, `[H, Tq + Tk - 1]` of the whole operands, unit stride in the last dim.
    pub bias: Option<Line>,
    /// Numbers of it.
    pub distances: usize,
    /// Index of the distance of key 0 from query 0.
    pub zero: i64,
    /// Keys from the last one to the position of the last query.
    pub shift: i64,
    /// Positions count in the row and not in the segment.
    pub in_row: bool,
    /// One more score of each head.
    pub sinks: Option<Line>,
    /// Dropped weights.
    pub drop: Option<Drop>,
    /// Seeds.
    pub key: Key,
    /// Row of the batch, and its positions of the part's first query and first key.
    pub at: [usize; 3],
    /// Place of the bias among the addresses of an item; sinks and the gradient of the bias follow.
    pub operand: usize,
    /// The gradient of the bias is wanted.
    pub dbias: bool,
}

/// f32 of scratch beside an item's own: factors of the weights, slopes of the cap, two lines of biases.
pub const FLOATS: usize = 2 * BK * BQ + 2 * LINE;
/// Distances of a block.
const LINE: usize = BQ + BK;

/// That scratch.
#[derive(Clone, Copy)]
pub struct Areas {
    /// 0 or what a kept weight is multiplied by, laid out as the scores.
    pub keep: *mut f32,
    /// tanh of score / cap.
    tanh: *mut f32,
    line: *mut f32,
    sum: *mut f32,
}

impl Areas {
    /// Cuts [`FLOATS`] of scratch.
    pub fn of(p: *mut f32) -> Areas {
        Areas {
            keep: p,
            tanh: p.wrapping_add(BK * BQ),
            line: p.wrapping_add(2 * BK * BQ),
            sum: p.wrapping_add(2 * BK * BQ + LINE),
        }
    }
}

/// A block of scores: head, first query and columns computed, first key and rows.
#[derive(Clone, Copy)]
pub struct Block {
    /// Head.
    pub h: usize,
    /// First query.
    pub i0: usize,
    /// Columns, whole tiles.
    pub w: usize,
    /// First key.
    pub j0: usize,
    /// Keys.
    pub nk: usize,
}

impl Block {
    /// Row `r` of scratch laid out as the scores.
    ///
    /// # Safety
    /// `p` is such scratch and nothing else looks at the row.
    #[inline(always)]
    pub unsafe fn row<'a>(&self, p: *mut f32, r: usize) -> &'a mut [f32] {
        // SAFETY: by contract; w <= BQ.
        unsafe { std::slice::from_raw_parts_mut(p.add(r * BQ), self.w) }
    }
}

impl Ext {
    /// Index in the bias of row `r = nk - 1`, column 0: the largest of the block. Row r, column c has `top - (nk - 1 - r) - c`.
    #[inline(always)]
    fn top(&self, b: Block) -> i64 {
        self.zero + (b.j0 + b.nk - 1) as i64 - b.i0 as i64
    }

    /// Caps the scores, and adds the bias.
    ///
    /// # Safety
    /// `p` are the addresses of the item, `st` the block.
    #[inline(always)]
    pub unsafe fn scores(&self, p: &[*mut u8], b: Block, st: *mut f32, areas: Areas) {
        if self.cap > 0.0 {
            let (cap, inv) = (self.cap, 1.0 / self.cap);
            for r in 0..b.nk {
                // SAFETY: by contract.
                let (row, t) = unsafe { (b.row(st, r), b.row(areas.tanh, r)) };
                for (x, t) in row.iter_mut().zip(t) {
                    *t = tanh(*x * inv);
                    *x = cap * *t;
                }
            }
        }
        let Some(bias) = self.bias else { return };
        // SAFETY: by contract; `line` has room for BQ + BK numbers, indices outside the operand are not read.
        unsafe {
            let n = b.w + b.nk - 1;
            let line = std::slice::from_raw_parts_mut(areas.line, n);
            let top = self.top(b);
            let head = bias.elem.at(p[self.operand], b.h as isize * bias.stride);
            for (x, v) in line.iter_mut().enumerate() {
                let at = top - x as i64;
                // Columns behind the last query have no distance.
                *v = if (0..self.distances as i64).contains(&at) {
                    bias.elem.get(bias.elem.at(head, at as isize))
                } else {
                    0.0
                };
            }
            for r in 0..b.nk {
                for (x, v) in b.row(st, r).iter_mut().zip(&line[b.nk - 1 - r..]) {
                    *x += *v;
                }
            }
        }
    }

    /// Makes the factors of the weights.
    ///
    /// # Safety
    /// `areas` is scratch of the item.
    #[inline(always)]
    pub unsafe fn factors(&self, b: Block, areas: Areas) {
        let Some(d) = self.drop else { return };
        let [row, q0, k0] = self.at;
        let [heads, queries, blocks] = d.whole;
        let k0 = d.first_key + (k0 + b.j0) as u64;
        let end = k0 + b.nk as u64;
        let first = (row as u64).wrapping_mul(heads).wrapping_add(b.h as u64);
        let first = first
            .wrapping_mul(queries)
            .wrapping_add((q0 + b.i0) as u64)
            .wrapping_mul(blocks)
            .wrapping_add(self.key.offset);
        // A philox block is four keys of one query.
        for group in k0 / 4..end.div_ceil(4) {
            let mut words = [[0u32; BQ]; 4];
            let at = |c: usize| {
                first
                    .wrapping_add((c as u64).wrapping_mul(blocks))
                    .wrapping_add(group)
            };
            philox_of(self.key.seed, self.key.stream, at, &mut words);
            for (lane, words) in words.iter().enumerate() {
                let key = 4 * group + lane as u64;
                if !(k0..end).contains(&key) {
                    continue;
                }
                // SAFETY: by contract.
                let row = unsafe { b.row(areas.keep, (key - k0) as usize) };
                for (m, word) in row.iter_mut().zip(words) {
                    *m = if (*word >> 8) >= d.threshold {
                        d.scale
                    } else {
                        0.0
                    };
                }
            }
        }
    }

    /// Zeroes the weights of the block that drop, and scales the rest.
    ///
    /// # Safety
    /// `st` holds the weights of the block, `areas` is scratch of the item.
    #[inline(always)]
    pub unsafe fn drop_weights(&self, b: Block, st: *mut f32, areas: Areas) {
        if self.drop.is_none() {
            return;
        }
        // SAFETY: by contract.
        unsafe {
            self.factors(b, areas);
            for r in 0..b.nk {
                for (x, m) in b.row(st, r).iter_mut().zip(b.row(areas.keep, r)) {
                    *x *= *m;
                }
            }
        }
    }

    /// From P and do.v to the weights that were used and the gradient of the scores before the cap; the bias gets its own.
    ///
    /// # Safety
    /// `st` holds P and `ds` do.v of the block, `areas` what [`Ext::scores`] and [`Ext::factors`] left; the gradient of the bias is the item's.
    #[inline(always)]
    pub unsafe fn gradients(
        &self,
        p: &[*mut u8],
        b: Block,
        [st, ds]: [*mut f32; 2],
        delta: &[f32],
        areas: Areas,
    ) {
        // SAFETY: by contract.
        unsafe {
            let sum = std::slice::from_raw_parts_mut(areas.sum, b.w + b.nk - 1);
            sum.fill(0.0);
            for r in 0..b.nk {
                let (row, drow) = (b.row(st, r), b.row(ds, r));
                if self.drop.is_some() {
                    for ((x, d), m) in row
                        .iter_mut()
                        .zip(drow.iter_mut())
                        .zip(b.row(areas.keep, r))
                    {
                        *d *= *m;
                        let p = *x;
                        *x = p * *m;
                        // A weight that was dropped still has a probability, whose gradient is not that of its weight.
                        *m = p;
                    }
                    for ((p, d), e) in b.row(areas.keep, r).iter().zip(drow.iter_mut()).zip(delta) {
                        *d = if *p == 0.0 { 0.0 } else { *p * (*d - *e) };
                    }
                } else {
                    for ((x, d), e) in row.iter().zip(drow.iter_mut()).zip(delta) {
                        *d = if *x == 0.0 { 0.0 } else { *x * (*d - *e) };
                    }
                }
                if self.dbias {
                    for (s, d) in sum[b.nk - 1 - r..].iter_mut().zip(drow.iter()) {
                        *s += *d;
                    }
                }
                if self.cap > 0.0 {
                    for (d, t) in drow.iter_mut().zip(b.row(areas.tanh, r)) {
                        *d = if *d == 0.0 { 0.0 } else { *d * (1.0 - *t * *t) };
                    }
                }
            }
            if self.dbias {
                let (top, all) = (self.top(b), p[self.operand + 2].cast::<f32>());
                for (x, s) in sum.iter().enumerate() {
                    let at = top - x as i64;
                    if (0..self.distances as i64).contains(&at) {
                        *all.offset(at as isize + (b.h * self.distances) as isize) += *s;
                    }
                }
            }
        }
    }

    /// The sink of a head.
    ///
    /// # Safety
    /// `p` are the addresses of the item.
    #[inline(always)]
    pub unsafe fn sink(&self, p: &[*mut u8], h: usize) -> Option<f32> {
        let line = self.sinks?;
        let at = line.elem.at(p[self.operand + 1], h as isize * line.stride);
        // SAFETY: by contract.
        Some(unsafe { line.elem.get(at) })
    }
}

/// What a row of weights is multiplied by in the end, and its log-sum-exp, given the largest score and the sum of exponentials below it.
#[inline(always)]
pub fn settle(top: f32, sum: f32, sink: Option<f32>) -> (f32, f32) {
    let Some(sink) = sink else {
        // No key seen: the output is 0 and the log of the sum minus infinity.
        return if sum == 0.0 {
            (0.0, f32::NEG_INFINITY)
        } else {
            (1.0 / sum, top + sum.ln())
        };
    };
    if sum == 0.0 {
        return (0.0, sink);
    }
    let m = top.max(sink);
    let fade = (top - m).exp();
    let l = sum * fade + (sink - m).exp();
    (fade / l, m + l.ln())
}

impl Shape {
    /// f32 of scratch that what is beyond scale and mask takes.
    pub fn beyond(&self) -> usize {
        if self.ext.is_some() { FLOATS } else { 0 }
    }
}
