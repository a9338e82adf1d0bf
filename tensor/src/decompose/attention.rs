//! Attention in plain products: one batch per query head, scores kept whole. O(T²) memory: for devices without the fused op, not for speed.
//! Packed sequences are one more mask: positions count the cumulative lengths up to them, and see those of the same count.

use super::build::{Build, Given, View};
use crossweave_hal::abi::op::{self, reduce::MAX, reduce::SUM};
use crossweave_hal::{DType, OpRequest, Recipe};
use crossweave_program::Ex;

/// Sizes and masks of one attention.
pub(super) struct Shape {
    pub b: u64,
    pub tq: u64,
    pub tk: u64,
    pub h: u64,
    hkv: u64,
    d: u64,
    pub scale: f64,
    causal: bool,
    window: i64,
    /// How many keys behind the last key the last query stands.
    pub shift: i64,
}

/// Further than any two positions that f32 counts.
const FURTHEST: i64 = 1 << 25;

impl Shape {
    fn new(g: &Given<'_>, q: &View, k: &View) -> Option<Shape> {
        let p: op::AttentionParams = g.params()?;
        Shape::of(p.flags, p.scale, p.window, q, k)
    }
    pub fn of(flags: u32, scale: f64, window: i64, q: &View, k: &View) -> Option<Shape> {
        let ([b, tq, h, d], [_, tk, hkv, _]) = (q.dims()?, k.dims()?);
        if hkv == 0 || h % hkv != 0 || window < 0 || k.shape != [b, tk, hkv, d] {
            return None;
        }
        let scale = if scale == 0.0 {
            1.0 / (d as f64).sqrt()
        } else {
            scale
        };
        let causal = flags & op::FLAG_CAUSAL != 0;
        Some(Shape {
            b,
            tq,
            tk,
            h,
            hkv,
            d,
            scale,
            causal,
            window,
            shift: 0,
        })
    }
    /// `[B, T, H, D]` as dense f32 `[B H, T, D]`.
    pub fn query(&self, b: &mut Build, q: &View) -> View {
        let q = b.f32(&q.permute(&[0, 2, 1, 3]));
        q.reshape(&[self.b * self.h, self.tq, self.d])
    }
    /// The same for keys and values, each head repeated for the query heads that read it.
    pub fn key(&self, b: &mut Build, k: &View) -> View {
        let k = k.permute(&[0, 2, 1, 3]).repeat(2, self.h / self.hkv);
        b.f32(&k).reshape(&[self.b * self.h, self.tk, self.d])
    }
    /// `dst [B, Tk, Hkv, D]` from `all [B H, Tk, D]`: the query heads of one key head give their gradients to it.
    pub fn by_key_heads(&self, b: &mut Build, dst: &View, all: &View) {
        let group = self.h / self.hkv;
        let sum = if group == 1 {
            all.reshape(&[self.b, self.hkv, self.tk, self.d])
        } else {
            let sum = b.temp(DType::F32, &[self.b, self.hkv, 1, self.tk, self.d]);
            let all = all.reshape(&[self.b, self.hkv, group, self.tk, self.d]);
            b.reduce(SUM, 0b100, &sum, &all, false);
            sum.reshape(&[self.b, self.hkv, self.tk, self.d])
        };
        b.copy(dst, &sum.permute(&[0, 2, 1, 3]));
    }
    fn scores(&self) -> [u64; 3] {
        [self.b * self.h, self.tq, self.tk]
    }
    /// What the mask is made of: numbers of queries (as a column, counted so that the last query stands at the last key) and of keys,
    /// and with cumulative lengths the segments of both.
    fn places(&self, b: &mut Build, cu: Option<&View>) -> Vec<View> {
        let i = b.count(DType::F32, self.tq);
        let shift = self.tk as f32 - self.tq as f32;
        let at = b.new_map(&[self.tq], &[&i], |v| v[0] + shift);
        let mut all = vec![at.reshape(&[self.tq, 1]), b.count(DType::F32, self.tk)];
        if let Some(cu) = cu {
            let [q, k] = segments(b, cu, self.b, self.tq).map(|row| {
                // The scores have batch and heads in one dim.
                b.packed(&row.repeat(1, self.h))
            });
            let (n, t) = (self.b * self.h, self.tq);
            all.extend([q.reshape(&[n, t, 1]), k.reshape(&[n, 1, t])]);
        }
        all
    }
    /// 1 where a query may not see a key, by their [`Shape::places`]; `None` without a mask.
    pub fn hidden<'p>(&self, at: &[Ex<'p>]) -> Option<Ex<'p>> {
        let (i, j) = (at[0], at[1]);
        let from = |keys: i64| match keys.clamp(-FURTHEST, FURTHEST) {
            0 => i,
            n => i + n as f32,
        };
        let later = self.causal.then(|| from(self.shift).less(j));
        // j <= i + shift - window
        let first = self.shift.saturating_sub(self.window).saturating_add(1);
        let gone = (self.window > 0).then(|| j.less(from(first)));
        let apart = at.get(2..4).map(|s| s[0].less(s[1]).max(s[1].less(s[0])));
        let masks = [later, gone, apart];
        masks.into_iter().flatten().reduce(|a, b| a.max(b))
    }
}

/// The segments of the positions of all rows, `[rows, t]`, as those of queries and of keys: equal where they see each other. A position of no
/// segment gets a number that the other side never has.
fn segments(b: &mut Build, cu: &View, rows: u64, t: u64) -> [View; 2] {
    let n = cu.shape[1];
    let last = n as f32;
    let cu = b.packed(cu).flat();
    let begin = b.temp(DType::I32, &[rows, t]);
    for row in 0..rows {
        let (dst, src) = (
            begin.flat().slice_last(row * t, 1, t),
            cu.slice_last(row * n, 1, n),
        );
        let none = op::NoParams::default();
        b.op(
            op::HISTOGRAM,
            none.as_bytes(),
            &[Some(&dst), Some(&src)],
            None,
        );
    }
    let begin = b.f32(&begin);
    let passed = b.temp(DType::F32, &[rows, t]);
    let along = op::DimParams {
        dim: 1,
        ..Default::default()
    };
    b.op(
        op::CUMSUM,
        along.as_bytes(),
        &[Some(&passed), Some(&begin)],
        None,
    );
    [-1.0, -2.0].map(|nowhere| {
        b.new_map(&[rows, t], &[&passed], |v| {
            let (n, nowhere) = (v[0], v[0].lit(nowhere));
            // Before the first length, or at the last or behind it.
            let outside = n.less(n.lit(0.5)).max(n.lit(last - 0.5).less(n));
            outside.choose(nowhere, n)
        })
    })
}

/// `dst = src [B H, T, D]` in the layout `[B, T, H, D]`.
pub(super) fn by_heads(b: &mut Build, s: &Shape, dst: &View, src: &View) {
    let t = src.shape[1];
    let src = src.reshape(&[s.b, s.h, t, s.d]).permute(&[0, 2, 1, 3]);
    b.copy(dst, &src);
}

pub(super) fn transposed(v: &View) -> View {
    v.permute(&[0, 2, 1])
}

/// The cumulative lengths of packed sequences, at operand `at`.
fn lengths(g: &Given<'_>, at: usize, s: &Shape) -> Option<View> {
    let cu = g.view(at)?;
    let [rows, n] = cu.dims()?;
    // Counts up to 2^24 are exact in f32.
    let fits = cu.dtype == DType::I32 && (1..1 << 24).contains(&n);
    (fits && s.b == rows && s.tq == s.tk).then_some(cu)
}

pub(super) fn fwd(o: &OpRequest) -> Option<Recipe> {
    forward(o, false)
}

pub(super) fn varlen_fwd(o: &OpRequest) -> Option<Recipe> {
    forward(o, true)
}

fn forward(o: &OpRequest, packed: bool) -> Option<Recipe> {
    let g = Given(o);
    let (out, lse) = (g.view(0)?, g.view(1)?);
    let (q, k, v) = (g.view(2)?, g.view(3)?, g.view(4)?);
    let s = Shape::new(&g, &q, &k)?;
    if v.shape != k.shape || out.shape != q.shape {
        return None;
    }
    let cu = match packed {
        true => Some(lengths(&g, 5, &s)?),
        false => None,
    };
    let mut b = Build::default();
    let (q, k, v) = (s.query(&mut b, &q), s.key(&mut b, &k), s.key(&mut b, &v));
    let raw = b.matmul(&q, &transposed(&k), s.scale);
    let places = s.places(&mut b, cu.as_ref());
    let ins: Vec<&View> = [&raw].into_iter().chain(&places).collect();
    let x = b.new_map(&s.scores(), &ins, |v| match s.hidden(&v[1..]) {
        Some(h) => h.choose(v[0].lit(f32::NEG_INFINITY), v[0]),
        None => v[0],
    });
    let top = b.along(MAX, &x);
    // A query that sees nothing has maximum -inf; 0 in its place gives it weights 0 instead of NaN.
    let m = b.new_map(&top.shape.clone(), &[&top], |v| {
        v[0].less(v[0].lit(f32::MIN)).choose(v[0].lit(0.0), v[0])
    });
    let e = b.new_map(&s.scores(), &[&x, &m], |v| (v[0] - v[1]).exp());
    let sum = b.along(SUM, &e);
    let flat = [s.b, s.h, s.tq];
    b.map(&[&lse], &[&sum.reshape(&flat), &m.reshape(&flat)], |v| {
        vec![v[0].log() + v[1]]
    });
    let y = b.matmul(&e, &v, 1.0);
    let y = b.new_map(&y.shape.clone(), &[&y, &sum], |v| {
        v[0].lit(0.0).less(v[1]).choose(v[0] / v[1], v[0].lit(0.0))
    });
    by_heads(&mut b, &s, &out, &y);
    Some(b.finish())
}

/// With `P = exp(S - lse)`: `dV = Pᵀ dO`, `dS = P (dO Vᵀ - rowsum(dO O))`, `dQ = scale dS K`, `dK = scale dSᵀ Q`.
pub(super) fn bwd(o: &OpRequest) -> Option<Recipe> {
    backward(o, false)
}

pub(super) fn varlen_bwd(o: &OpRequest) -> Option<Recipe> {
    backward(o, true)
}

fn backward(o: &OpRequest, packed: bool) -> Option<Recipe> {
    let g = Given(o);
    let (dq, dk, dv) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let (d_out, out) = (g.view(3)?, g.view(4)?);
    let (q, k, v) = (g.view(5)?, g.view(6)?, g.view(7)?);
    let s = Shape::new(&g, &q, &k)?;
    let fits = [&d_out, &out, &dq].iter().all(|t| t.shape == q.shape)
        && [&v, &dk, &dv].iter().all(|t| t.shape == k.shape);
    if !fits {
        return None;
    }
    let cu = match packed {
        true => Some(lengths(&g, 9, &s)?),
        false => None,
    };
    let mut b = Build::default();
    let lse = b.packed(&g.view(8)?);
    let lse = lse.reshape(&[s.b * s.h, s.tq, 1]);
    let (q, k, v) = (s.query(&mut b, &q), s.key(&mut b, &k), s.key(&mut b, &v));
    let (d_out, out) = (s.query(&mut b, &d_out), s.query(&mut b, &out));
    let raw = b.matmul(&q, &transposed(&k), s.scale);
    let places = s.places(&mut b, cu.as_ref());
    let ins: Vec<&View> = [&raw, &lse].into_iter().chain(&places).collect();
    let p = b.new_map(&s.scores(), &ins, |v| {
        let p = (v[0] - v[1]).exp();
        match s.hidden(&v[2..]) {
            Some(h) => h.choose(v[0].lit(0.0), p),
            None => p,
        }
    });
    let dv_all = b.matmul(&transposed(&p), &d_out, 1.0);
    let dp = b.matmul(&d_out, &transposed(&v), 1.0);
    let t = b.new_map(&d_out.shape.clone(), &[&d_out, &out], |v| v[0] * v[1]);
    let delta = b.along(SUM, &t);
    let ds = b.new_map(&s.scores(), &[&p, &dp, &delta], |v| v[0] * (v[1] - v[2]));
    let dq_all = b.matmul(&ds, &k, s.scale);
    let dk_all = b.matmul(&transposed(&ds), &q, s.scale);
    by_heads(&mut b, &s, &dq, &dq_all);
    for (dst, all) in [(&dk, &dk_all), (&dv, &dv_all)] {
        s.by_key_heads(&mut b, dst, all);
    }
    Some(b.finish())
}
