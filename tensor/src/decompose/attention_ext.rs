//! `attention_ext_*` in plain products, as [`super::attention`], with soft cap, bias by distance, sinks, dropout of the weights, and segments
//! whose queries and keys may be of different numbers.

use super::attention::{Shape, by_heads, transposed};
use super::build::{Build, Given, View, read};
use crossweave_hal::abi::op::{self, reduce::MAX, reduce::SUM};
use crossweave_hal::{DType, OpRequest, Recipe};
use std::sync::Arc;

/// Places are counted in f32, exactly up to this.
const EXACT: u64 = 1 << 24;

/// What the mask and the bias know of every query and key, as `[B or 1, 1, Tq, 1]` and `[B or 1, 1, 1, Tk]`.
struct Places {
    /// Where a query stands among the keys of its segment.
    at: View,
    /// Its own number in its segment.
    query: View,
    /// The number of a key in its segment.
    key: View,
    /// Segments of queries and of keys, unlike where there is none; absent without cumulative lengths.
    segments: Option<[View; 2]>,
}

struct Ext<'a> {
    s: Shape,
    p: op::AttentionExtParams,
    bias: Option<View>,
    sinks: Option<View>,
    cu: Option<[View; 2]>,
    b: &'a mut Build,
}

/// Positions of a row by segment: its number from 1, 0 or past the last where there is none, i32 `[rows, t]`.
fn numbers(b: &mut Build, cu: &View, t: u64) -> View {
    let [rows, n] = [cu.shape[0], cu.shape[1]];
    let flat = b.packed(cu).flat();
    let begin = b.temp(DType::I32, &[rows, t]);
    let passed = b.temp(DType::I32, &[rows, t]);
    let none = op::NoParams::default();
    for row in 0..rows {
        let dst = begin.flat().slice_last(row * t, 1, t);
        let src = flat.slice_last(row * n, 1, n);
        let operands = [Some(&dst), Some(&src)];
        b.op(op::HISTOGRAM, none.as_bytes(), &operands, None);
    }
    let along = op::DimParams {
        dim: 1,
        ..Default::default()
    };
    let operands = [Some(&passed), Some(&begin)];
    b.op(op::CUMSUM, along.as_bytes(), &operands, None);
    passed
}

/// Begin and end of the segments that `numbers` names, f32 `[rows, t]` each.
fn ends(b: &mut Build, cu: &View, numbers: &View) -> [View; 2] {
    let [rows, n] = [cu.shape[0], cu.shape[1]];
    let t = numbers.shape[1];
    // Number i ends at cu[i] and begins at cu[i - 1]; 0 begins at 0.
    let table = b.temp(DType::F32, &[rows, n + 1]);
    let cu = b.f32(cu);
    let zero = b.constant(0.0);
    b.copy(&table.slice_last(0, 1, 1), &zero.over(&[rows, 1]));
    b.copy(&table.slice_last(1, 1, n), &cu);
    let p = op::IndexParams::default();
    [0, 1].map(|first| {
        let out = b.temp(DType::F32, &[rows, t]);
        for row in 0..rows {
            let from = table
                .flat()
                .slice_last(row * (n + 1) + first, 1, n + 1 - first);
            let from = from.reshape(&[n + 1 - first, 1]);
            let dst = out.flat().slice_last(row * t, 1, t).reshape(&[t, 1]);
            let index = numbers.flat().slice_last(row * t, 1, t);
            let operands = [Some(&dst), Some(&from), Some(&index)];
            b.op(op::GATHER_ROWS, p.as_bytes(), &operands, None);
        }
        out
    })
}

impl<'a> Ext<'a> {
    /// Operands `bias`, `sinks`, `cu_q`, `cu_k` from `at` on.
    fn new(b: &'a mut Build, g: &Given<'_>, q: &View, k: &View, at: usize) -> Option<Ext<'a>> {
        let p: op::AttentionExtParams = g.params()?;
        let mut s = Shape::of(p.flags, p.scale, p.window, q, k)?;
        s.shift = p.shift;
        let keys = if p.keys == 0 { s.tk as i64 } else { p.keys };
        let fits = p.flags & !(op::FLAG_CAUSAL | op::FLAG_IN_ROW) == 0
            && p.shift.unsigned_abs() <= 1 << 40
            && (0..=keys - s.tk as i64).contains(&p.first_key)
            && (0.0..1.0).contains(&p.dropout)
            && p.cap >= 0.0
            && p.cap.is_finite()
            && [(p.heads, s.h), (p.queries, s.tq), (p.keys, s.tk)]
                .iter()
                .all(|(all, own)| *all == 0 || *all >= *own as i64)
            && s.tq.max(s.tk) < EXACT;
        let (bias, sinks) = (g.view(at), g.view(at + 1));
        let distances = (s.tq + s.tk).saturating_sub(1);
        let fits = fits
            && bias.as_ref().is_none_or(|v| v.shape == [s.h, distances])
            && sinks.as_ref().is_none_or(|v| v.shape == [s.h]);
        let lengths = |v: View| {
            let [rows, n] = v.dims()?;
            (v.dtype == DType::I32 && rows == s.b && (1..EXACT).contains(&n)).then_some(v)
        };
        let cu = match (g.view(at + 2), g.view(at + 3)) {
            (None, None) => None,
            (Some(q), None) if s.tq == s.tk => {
                let q = lengths(q)?;
                Some([q.clone(), q])
            }
            (Some(q), Some(k)) if q.shape == k.shape => Some([lengths(q)?, lengths(k)?]),
            _ => return None,
        };
        fits.then_some(Ext {
            s,
            p,
            bias,
            sinks,
            cu,
            b,
        })
    }

    fn scores(&self) -> [u64; 4] {
        [self.s.b, self.s.h, self.s.tq, self.s.tk]
    }

    fn places(&mut self) -> Places {
        let (s, b) = (&self.s, &mut *self.b);
        let (i, j) = (b.count(DType::F32, s.tq), b.count(DType::F32, s.tk));
        let in_row = |b: &mut Build, segments: Option<[View; 2]>| {
            let apart = s.tk as f32 - s.tq as f32;
            let at = b.new_map(&[s.tq], &[&i], |v| v[0] + apart);
            Places {
                at: at.reshape(&[1, 1, s.tq, 1]),
                query: i.reshape(&[1, 1, s.tq, 1]),
                key: j.reshape(&[1, 1, 1, s.tk]),
                segments,
            }
        };
        let Some([cu_q, cu_k]) = &self.cu else {
            return in_row(b, None);
        };
        let last = cu_q.shape[1] as f32;
        let of_q = numbers(b, cu_q, s.tq);
        let of_k = numbers(b, cu_k, s.tk);
        let (wide, tall) = ([s.b, s.tq], [s.b, s.tk]);
        let (col, row) = ([s.b, 1, s.tq, 1], [s.b, 1, 1, s.tk]);
        let mut named = |n: &View, shape: &[u64; 2], nowhere: f32| {
            let n = b.f32(n);
            b.new_map(shape, &[&n], |v| {
                let (n, nowhere) = (v[0], v[0].lit(nowhere));
                // Before the first length, or at the last or behind it.
                let outside = n.less(n.lit(0.5)).max(n.lit(last - 0.5).less(n));
                outside.choose(nowhere, n)
            })
        };
        let segments = [
            named(&of_q, &wide, -1.0).reshape(&col),
            named(&of_k, &tall, -2.0).reshape(&row),
        ];
        if self.p.flags & op::FLAG_IN_ROW != 0 {
            return in_row(b, Some(segments));
        }
        let [begin, end] = ends(b, cu_q, &of_q);
        let [first, past] = ends(b, cu_k, &of_q);
        let [k_begin, _] = ends(b, cu_k, &of_k);
        let at = b.new_map(&wide, &[&i, &end, &first, &past], |v| {
            v[0] - v[1] + (v[3] - v[2])
        });
        let query = b.new_map(&wide, &[&i, &begin], |v| v[0] - v[1]);
        let key = b.new_map(&tall, &[&j, &k_begin], |v| v[0] - v[1]);
        Places {
            at: at.reshape(&col),
            query: query.reshape(&col),
            key: key.reshape(&row),
            segments: Some(segments),
        }
    }

    /// The index of every score in the bias, i32 `[B or 1, Tq, Tk]`.
    fn distances(&mut self, at: &Places) -> View {
        let (s, b) = (&self.s, &mut *self.b);
        let (zero, most) = (s.tq as f32 - 1.0, (s.tq + s.tk).saturating_sub(2) as f32);
        let rows = at.query.shape[0];
        let shape = [rows, 1, s.tq, s.tk];
        let index = b.new_map(&shape, &[&at.query, &at.key], |v| {
            // Pairs of different segments are masked, and may lie anywhere.
            (v[1] - v[0] + zero).max(v[0].lit(0.0)).min(v[0].lit(most))
        });
        let whole = b.temp(DType::I32, &[rows, s.tq, s.tk]);
        b.copy(&whole, &index.reshape(&[rows, s.tq, s.tk]));
        whole
    }

    /// Scores before the mask; with the tanh of the cap.
    fn raw(&mut self, q: &View, k: &View, at: &Places) -> (View, Option<View>) {
        let shape = self.scores();
        let raw = self
            .b
            .matmul(q, &transposed(k), self.s.scale)
            .reshape(&shape);
        let cap = self.p.cap as f32;
        let (raw, slope) = if cap > 0.0 {
            let t = self.b.new_map(&shape, &[&raw], |v| (v[0] / cap).tanh());
            (self.b.new_map(&shape, &[&t], |v| v[0] * cap), Some(t))
        } else {
            (raw, None)
        };
        let Some(bias) = self.bias.clone() else {
            return (raw, slope);
        };
        let index = self.distances(at);
        let table = self.b.f32(&bias.permute(&[1, 0]));
        let n = index.numel();
        let rows = self.b.temp(DType::F32, &[n, self.s.h]);
        let p = op::IndexParams::default();
        let operands = [Some(&rows), Some(&table), Some(&index.flat())];
        self.b.op(op::GATHER_ROWS, p.as_bytes(), &operands, None);
        let by_place = [index.shape[0], self.s.tq, self.s.tk, self.s.h];
        let added = rows.reshape(&by_place).permute(&[0, 3, 1, 2]);
        let sum = self.b.new_map(&shape, &[&raw, &added], |v| v[0] + v[1]);
        (sum, slope)
    }

    /// What the mask is made of.
    fn masks(at: &Places) -> Vec<&View> {
        let pair = at.segments.iter().flatten();
        [&at.at, &at.key].into_iter().chain(pair).collect()
    }

    /// 0 for a weight that is dropped, else what it is multiplied by.
    fn factors(&mut self) -> Option<View> {
        if self.p.dropout == 0.0 {
            return None;
        }
        let whole = |all: i64, own: u64| if all == 0 { own } else { all as u64 };
        let (heads, queries) = (
            whole(self.p.heads, self.s.h),
            whole(self.p.queries, self.s.tq),
        );
        let keys = whole(self.p.keys, self.s.tk).next_multiple_of(4);
        let [b, h, tq, tk] = self.scores();
        let u = self.b.temp(DType::F32, &[b, h, tq, keys]);
        let uniform = op::PhiloxParams {
            kind: op::philox::UNIFORM,
            lo: 0.0,
            hi: 1.0,
            ..Default::default()
        };
        // Rows that lie side by side in the whole are drawn at once.
        let together = match (queries == tq, heads == h) {
            (true, true) => b * h * tq,
            (true, false) => h * tq,
            (false, _) => tq,
        };
        for first in (0..b * h * tq).step_by(together.max(1) as usize) {
            let (row, head) = (first / tq / h, first / tq % h);
            let line = row.wrapping_mul(heads).wrapping_add(head);
            let blocks = line.wrapping_mul(queries).wrapping_mul(keys / 4);
            let dynamic = move |d: &[u8]| {
                let mut key: op::PhiloxDyn = read(d).unwrap_or_default();
                key.offset = key.offset.wrapping_add(blocks);
                key.as_bytes().to_vec()
            };
            let dst = u.flat().slice_last(first * keys, 1, together * keys);
            let dynamic = Some(Arc::new(dynamic) as _);
            self.b
                .op(op::PHILOX, uniform.as_bytes(), &[Some(&dst)], dynamic);
        }
        let u = u.slice_last(self.p.first_key as u64, 1, tk);
        // Uniforms are multiples of 2^-24, so the threshold may be rounded up to one, which f32 holds exactly.
        let unit = 16_777_216.0;
        let threshold = ((self.p.dropout * unit).ceil() / unit) as f32;
        let scale = (1.0 / (1.0 - self.p.dropout)) as f32;
        Some(self.b.new_map(&self.scores(), &[&u], |v| {
            v[0].less(v[0].lit(threshold))
                .choose(v[0].lit(0.0), v[0].lit(scale))
        }))
    }

    /// Weights as they are used.
    fn used(&mut self, p: &View, factors: &Option<View>) -> View {
        match factors {
            Some(m) => self.b.new_map(&self.scores(), &[p, m], |v| v[0] * v[1]),
            None => p.clone(),
        }
    }
}

pub(super) fn fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (out, lse) = (g.view(0)?, g.view(1)?);
    let (q, k, v) = (g.view(2)?, g.view(3)?, g.view(4)?);
    let mut b = Build::default();
    let mut x = Ext::new(&mut b, &g, &q, &k, 5)?;
    if v.shape != k.shape || out.shape != q.shape {
        return None;
    }
    let (shape, flat) = (x.scores(), [x.s.b, x.s.h, x.s.tq, 1]);
    let at = x.places();
    let (q, k, v) = (x.s.query(x.b, &q), x.s.key(x.b, &k), x.s.key(x.b, &v));
    let (raw, _) = x.raw(&q, &k, &at);
    let masks = Ext::masks(&at);
    let ins: Vec<&View> = [&raw].into_iter().chain(masks).collect();
    let s = &x.s;
    let seen = x.b.new_map(&shape, &ins, |v| match s.hidden(&v[1..]) {
        Some(h) => h.choose(v[0].lit(f32::NEG_INFINITY), v[0]),
        None => v[0],
    });
    let top = x.b.along(MAX, &seen);
    let sinks = match x.sinks.clone() {
        Some(v) => Some(x.b.f32(&v).reshape(&[1, x.s.h, 1, 1])),
        None => None,
    };
    let ins: Vec<&View> = [&top].into_iter().chain(&sinks).collect();
    // A query that sees nothing has maximum -inf; 0 in its place gives it weights 0 instead of NaN.
    let m = x.b.new_map(&flat, &ins, |v| {
        let top = v.get(1).map_or(v[0], |sink| v[0].max(*sink));
        top.less(top.lit(f32::MIN)).choose(top.lit(0.0), top)
    });
    let e = x.b.new_map(&shape, &[&seen, &m], |v| (v[0] - v[1]).exp());
    let sum = x.b.along(SUM, &e);
    let sum = match &sinks {
        Some(sink) => {
            x.b.new_map(&flat, &[&sum, &m, sink], |v| v[0] + (v[2] - v[1]).exp())
        }
        None => sum,
    };
    let (lse_sum, lse_m) = (sum.reshape(&lse.shape), m.reshape(&lse.shape));
    let lse_q = at.segments.as_ref().map(|s| {
        let row = s[0].reshape(&[x.s.b, 1, x.s.tq]);
        row.over(&[x.s.b, 1, x.s.tq])
    });
    let ins: Vec<&View> = [&lse_sum, &lse_m].into_iter().chain(&lse_q).collect();
    x.b.map(&[&lse], &ins, |v| {
        let lse = v[0].log() + v[1];
        // A query of no segment has no sum, with sinks neither.
        let nowhere = v.get(2).map(|s| s.less(s.lit(0.0)));
        vec![nowhere.map_or(lse, |n| n.choose(lse.lit(f32::NEG_INFINITY), lse))]
    });
    let factors = x.factors();
    let e = x.used(&e, &factors);
    let bh = x.s.b * x.s.h;
    let y = x.b.matmul(&e.reshape(&[bh, x.s.tq, x.s.tk]), &v, 1.0);
    let sum = sum.reshape(&[bh, x.s.tq, 1]);
    let y = x.b.new_map(&y.shape.clone(), &[&y, &sum], |v| {
        v[0].lit(0.0).less(v[1]).choose(v[0] / v[1], v[0].lit(0.0))
    });
    by_heads(x.b, &x.s, &out, &y);
    Some(b.finish())
}

/// With `P = exp(S - lse)` and `M` the factors of dropout: `dV = (P M)ᵀ dO`, `dS = P (M dO Vᵀ - rowsum(dO O))`, which is the gradient of
/// the bias, and through the cap `dS (1 - tanh²)` that of the product.
pub(super) fn bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (dq, dk, dv) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let (dbias, dsinks) = (g.view(3), g.view(4));
    let (d_out, out) = (g.view(5)?, g.view(6)?);
    let (q, k, v) = (g.view(7)?, g.view(8)?, g.view(9)?);
    let mut b = Build::default();
    let mut x = Ext::new(&mut b, &g, &q, &k, 11)?;
    let fits = [&d_out, &out, &dq].iter().all(|t| t.shape == q.shape)
        && [&v, &dk, &dv].iter().all(|t| t.shape == k.shape)
        && (dbias.is_none() || x.bias.is_some())
        && (dsinks.is_none() || x.sinks.is_some());
    if !fits {
        return None;
    }
    let (shape, flat) = (x.scores(), [x.s.b, x.s.h, x.s.tq, 1]);
    let bh = x.s.b * x.s.h;
    let lse = x.b.packed(&g.view(10)?).reshape(&flat);
    let at = x.places();
    let (q, k, v) = (x.s.query(x.b, &q), x.s.key(x.b, &k), x.s.key(x.b, &v));
    let (d_out, out) = (x.s.query(x.b, &d_out), x.s.query(x.b, &out));
    let (raw, slope) = x.raw(&q, &k, &at);
    let masks = Ext::masks(&at);
    let ins: Vec<&View> = [&raw, &lse].into_iter().chain(masks).collect();
    let s = &x.s;
    let p = x.b.new_map(&shape, &ins, |v| {
        let p = (v[0] - v[1]).exp();
        match s.hidden(&v[2..]) {
            Some(h) => h.choose(v[0].lit(0.0), p),
            None => p,
        }
    });
    let factors = x.factors();
    let used = x.used(&p, &factors).reshape(&[bh, x.s.tq, x.s.tk]);
    let dv_all = x.b.matmul(&transposed(&used), &d_out, 1.0);
    let dp = x.b.matmul(&d_out, &transposed(&v), 1.0).reshape(&shape);
    let dp = x.used(&dp, &factors);
    let t =
        x.b.new_map(&d_out.shape.clone(), &[&d_out, &out], |v| v[0] * v[1]);
    let delta = x.b.along(SUM, &t).reshape(&flat);
    let ds =
        x.b.new_map(&shape, &[&p, &dp, &delta], |v| v[0] * (v[1] - v[2]));
    if let (Some(dst), Some(sinks)) = (&dsinks, x.sinks.clone()) {
        let sink = x.b.f32(&sinks).reshape(&[1, x.s.h, 1, 1]);
        let one = x.b.new_map(&flat, &[&sink, &lse, &delta], |v| {
            let none = v[1].less(v[1].lit(f32::MIN));
            none.choose(v[1].lit(0.0), -((v[0] - v[1]).exp() * v[2]))
        });
        let over = dst.reshape(&[1, x.s.h, 1, 1]);
        x.b.reduce(SUM, 0b1101, &over, &one, true);
    }
    if let Some(dst) = &dbias {
        let (h, n) = (x.s.h, x.s.tq * x.s.tk);
        let index = x.distances(&at);
        let table = x.b.temp(DType::F32, &[dst.shape[1], h]);
        let zero = x.b.constant(0.0);
        x.b.copy(&table, &zero.over(&table.shape.clone()));
        let p = op::IndexParams::default();
        let rows =
            x.b.packed(&ds.permute(&[0, 2, 3, 1]))
                .reshape(&[x.s.b, n, h]);
        for row in 0..x.s.b {
            let src = rows.flat().slice_last(row * n * h, 1, n * h);
            let from = if index.shape[0] == 1 { 0 } else { row * n };
            let index = index.flat().slice_last(from, 1, n);
            let operands = [Some(&table), Some(&src.reshape(&[n, h])), Some(&index)];
            x.b.op(op::SCATTER_ADD_ROWS, p.as_bytes(), &operands, None);
        }
        let one = op::AxpbyParams {
            alpha: 1.0,
            beta: 1.0,
            ..Default::default()
        };
        let operands = [Some(dst), Some(&table.permute(&[1, 0]))];
        x.b.op(op::AXPBY, one.as_bytes(), &operands, None);
    }
    let ds = match slope {
        Some(t) => {
            x.b.new_map(&shape, &[&ds, &t], |v| v[0] * (v[1].lit(1.0) - v[1] * v[1]))
        }
        None => ds,
    };
    let ds = ds.reshape(&[bh, x.s.tq, x.s.tk]);
    let dq_all = x.b.matmul(&ds, &k, x.s.scale);
    let dk_all = x.b.matmul(&transposed(&ds), &q, x.s.scale);
    by_heads(x.b, &x.s, &dq, &dq_all);
    for (dst, all) in [(&dk, &dk_all), (&dv, &dv_all)] {
        x.s.by_key_heads(x.b, dst, all);
    }
    Some(b.finish())
}
