//! `attention_fwd`, `attention_bwd`: causal and windowed masks, more queries than keys and fewer, grouped heads, slices of one fused tensor.
//! `attention_varlen_fwd`, `attention_varlen_bwd`: the same within segments, empty ones and positions of none among them.
//!
//! With 16-bit storage the probabilities and their gradients may go through it once: products of 16-bit operands take 16-bit operands
//! (the row of `matmul`), and there is no other way to use units that multiply only those.

use super::bound::{Num, dot, num as exact, sum};
use super::cell::{Cell, FLOATS, Gen};
use super::num;
use super::softmax::largest;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, AttentionParams, FLAG_CAUSAL};

const F: DType = DType::F32;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        all.push(Cell::new(op::ATTENTION_FWD, t.name(), move |g| {
            trials(g, t, false)
        }));
        all.push(Cell::new(op::ATTENTION_BWD, t.name(), move |g| {
            trials(g, t, true)
        }));
        all.push(Cell::new(op::ATTENTION_VARLEN_FWD, t.name(), move |g| {
            packed(g, t, false)
        }));
        all.push(Cell::new(op::ATTENTION_VARLEN_BWD, t.name(), move |g| {
            packed(g, t, true)
        }));
    }
    all
}

/// Sizes and mask.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Batch.
    pub b: usize,
    /// Queries.
    pub tq: usize,
    /// Keys.
    pub tk: usize,
    /// Query heads.
    pub h: usize,
    /// Key heads.
    pub hkv: usize,
    /// Head size.
    pub d: usize,
    /// Query i sees keys up to i + tk - tq.
    pub causal: bool,
    /// Keys a query sees back, 0 for all.
    pub window: i64,
    /// 0 = 1/sqrt(d).
    pub scale: f64,
    /// Cumulative lengths of packed sequences, row after row.
    pub cu: Option<&'static [i32]>,
}

impl Shape {
    /// Those of a row.
    fn lengths(&self, cu: &'static [i32], b: usize) -> &'static [i32] {
        let n = cu.len() / self.b;
        &cu[b * n..][..n]
    }
    fn factor(&self) -> f64 {
        if self.scale == 0.0 {
            1.0 / (self.d as f64).sqrt()
        } else {
            self.scale
        }
    }
    fn sees(&self, b: usize, i: usize, j: usize) -> bool {
        if let Some(cu) = self.cu
            && !self.lengths(cu, b).windows(2).any(|s| {
                let within = |t: usize| (s[0]..s[1]).contains(&(t as i32));
                within(i) && within(j)
            })
        {
            return false;
        }
        let at = i as i64 + self.tk as i64 - self.tq as i64;
        let j = j as i64;
        (!self.causal || j <= at) && (self.window == 0 || j > at - self.window)
    }
    /// Where element 0 of head `h` at `t` lies in `[B, T, heads, D]`.
    fn at(&self, t: usize, heads: usize, b: usize, i: usize, h: usize) -> usize {
        ((b * t + i) * heads + h) * self.d
    }
}

/// Once through the storage.
pub fn stored(t: DType, x: Num) -> Num {
    match t {
        DType::F32 => x,
        t => Num {
            v: x.v,
            e: x.e + num::ulp(t, x.v.abs() + x.e) / 2.0,
        },
    }
}

/// The inputs in f64.
#[derive(Clone)]
pub struct Inputs {
    /// [B, Tq, H, D].
    pub q: Vec<f64>,
    /// [B, Tk, Hkv, D].
    pub k: Vec<f64>,
    /// [B, Tk, Hkv, D].
    pub v: Vec<f64>,
}

/// Scaled scores of a query over the keys it sees.
fn scores(s: &Shape, x: &Inputs, b: usize, h: usize, i: usize) -> Vec<Option<Num>> {
    let g = h / (s.h / s.hkv);
    let q = &x.q[s.at(s.tq, s.h, b, i, h)..][..s.d];
    let f = s.factor();
    (0..s.tk)
        .map(|j| {
            let k = &x.k[s.at(s.tk, s.hkv, b, j, g)..][..s.d];
            let raw = dot(q.iter().zip(k).map(|(a, b)| (exact(*a), exact(*b))));
            s.sees(b, i, j)
                .then(|| raw * exact(f64::from(f as f32)).rounded_from(f))
        })
        .collect()
}

/// o [B, Tq, H, D] and lse [B, H, Tq].
pub fn forward(t: DType, s: &Shape, x: &Inputs) -> (Vec<Num>, Vec<Num>) {
    let mut o = vec![exact(0.0); s.b * s.tq * s.h * s.d];
    let mut lse = vec![exact(f64::NEG_INFINITY); s.b * s.h * s.tq];
    for b in 0..s.b {
        for h in 0..s.h {
            let g = h / (s.h / s.hkv);
            for i in 0..s.tq {
                let sc = scores(s, x, b, h, i);
                let seen: Vec<(usize, Num)> = sc
                    .into_iter()
                    .enumerate()
                    .filter_map(|(j, v)| Some((j, v?)))
                    .collect();
                // Sees nothing: zeros, and the logarithm of nothing.
                if seen.is_empty() {
                    continue;
                }
                let top = largest(&seen.iter().map(|s| s.1.v).collect::<Vec<_>>());
                let p: Vec<(usize, Num)> = seen
                    .iter()
                    .map(|(j, s)| (*j, (*s - exact(top)).exp()))
                    .collect();
                let l = sum(p.iter().map(|p| p.1));
                lse[(b * s.h + h) * s.tq + i] = l.ln() + exact(top);
                let out = s.at(s.tq, s.h, b, i, h);
                for c in 0..s.d {
                    let v = |j: usize| exact(x.v[s.at(s.tk, s.hkv, b, j, g) + c]);
                    o[out + c] = dot(p.iter().map(|(j, p)| (stored(t, *p), v(*j)))) / l;
                }
            }
        }
    }
    (o, lse)
}

/// dq, dk, dv for a gradient of o; `o` and `lse` as the forward has stored them.
pub fn backward(
    t: DType,
    s: &Shape,
    x: &Inputs,
    d_out: &[f64],
    o: &[f64],
    lse: &[f64],
) -> [Vec<Num>; 3] {
    let mut dq = vec![exact(0.0); x.q.len()];
    let mut parts: [Vec<Vec<Num>>; 2] = [vec![Vec::new(); x.k.len()], vec![Vec::new(); x.k.len()]];
    let f = exact(s.factor() as f32 as f64).rounded_from(s.factor());
    for b in 0..s.b {
        for h in 0..s.h {
            let g = h / (s.h / s.hkv);
            for i in 0..s.tq {
                let at = s.at(s.tq, s.h, b, i, h);
                let z = lse[(b * s.h + h) * s.tq + i];
                let (go, oo) = (&d_out[at..at + s.d], &o[at..at + s.d]);
                let delta = dot(go.iter().zip(oo).map(|(a, b)| (exact(*a), exact(*b))));
                let mut terms = vec![Vec::new(); s.d];
                for (j, sc) in scores(s, x, b, h, i).into_iter().enumerate() {
                    let Some(sc) = sc else { continue };
                    let kv = s.at(s.tk, s.hkv, b, j, g);
                    let p = (sc - exact(z)).exp();
                    let v = &x.v[kv..kv + s.d];
                    let dp = dot(go.iter().zip(v).map(|(a, b)| (exact(*a), exact(*b))));
                    let ds = stored(t, p * (dp - delta));
                    for c in 0..s.d {
                        terms[c].push(ds * exact(x.k[kv + c]));
                        parts[0][kv + c].push(ds * exact(x.q[at + c]) * f);
                        parts[1][kv + c].push(stored(t, p) * exact(go[c]));
                    }
                }
                for (c, terms) in terms.into_iter().enumerate() {
                    dq[at + c] = sum(terms) * f;
                }
            }
        }
    }
    let [dk, dv] = parts.map(|p| p.into_iter().map(sum).collect());
    [dq, dk, dv]
}

fn trials(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let s = |b, tq, tk, h, hkv, d, causal, window, scale| Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        d,
        causal,
        window,
        scale,
        cu: None,
    };
    let shapes = [
        s(1, 1, 1, 1, 1, 1, false, 0, 0.0),
        s(2, 7, 7, 2, 2, 8, true, 0, 0.0),
        s(1, 33, 33, 2, 1, 16, true, 0, 0.0),
        s(2, 9, 9, 4, 2, 8, false, 0, 0.3),
        s(1, 5, 37, 6, 2, 8, true, 0, 0.0),
        s(1, 37, 5, 2, 2, 8, true, 0, 0.0),
        s(1, 40, 40, 1, 1, 8, true, 7, 0.0),
        s(1, 20, 31, 2, 1, 33, false, 5, 0.0),
        s(1, 100, 100, 1, 1, 64, true, 0, 0.0),
        s(1, 3, 80, 2, 2, 7, true, 1, 0.0),
        s(1, 0, 5, 2, 2, 8, true, 0, 0.0),
        s(0, 4, 4, 2, 2, 8, true, 0, 0.0),
    ];
    let mut all: Vec<Trial> = shapes
        .iter()
        .map(|s| trial(g, t, s, Lie::Dense, back))
        .collect();
    let y = s(2, 17, 17, 4, 4, 8, true, 0, 0.0);
    all.push(trial(g, t, &y, Lie::Heads, back));
    all.push(trial(g, t, &y, Lie::Fused, back));
    all.push(trial(g, t, &y, Lie::Loud, back));
    if g.big {
        // Heads of the sizes that devices have units for, several tiles of queries and of keys.
        for s in [
            s(1, 300, 300, 2, 1, 64, true, 0, 0.0),
            s(1, 150, 400, 2, 1, 128, true, 200, 0.0),
        ] {
            all.push(trial(g, t, &s, Lie::Dense, back));
        }
    }
    all
}

/// Trials of packed sequences.
fn packed(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let rows = |b, cu: &'static [i32], n, h, hkv, d, causal, window, scale| Shape {
        b,
        tq: n,
        tk: n,
        h,
        hkv,
        d,
        causal,
        window,
        scale,
        cu: Some(cu),
    };
    let s = |cu: &'static [i32], n, h, hkv, d, causal, window, scale| {
        rows(1, cu, n, h, hkv, d, causal, window, scale)
    };
    let shapes = [
        s(&[0, 1], 1, 1, 1, 1, false, 0, 0.0),
        s(&[0, 3, 7], 7, 2, 2, 8, true, 0, 0.0),
        // One segment: the whole sequence.
        s(&[0, 20], 20, 2, 2, 8, false, 0, 0.3),
        // Empty segments at the beginning, between others and at the end.
        s(&[0, 0, 1, 17, 17, 17, 33, 33], 33, 2, 1, 16, true, 0, 0.0),
        // Positions of no segment on both sides.
        s(&[2, 9, 9, 31], 40, 2, 1, 8, true, 0, 0.0),
        s(&[5, 21], 23, 4, 2, 8, false, 0, 0.0),
        // Windows end at the segment, whichever is shorter.
        s(&[0, 13, 40], 40, 1, 1, 8, true, 7, 0.0),
        s(&[0, 5, 12, 31], 31, 2, 1, 33, false, 3, 0.0),
        s(&[0, 2, 50], 50, 2, 2, 7, true, 1, 0.0),
        // A segment for every position.
        s(&[0, 1, 2, 3, 4, 5, 6], 6, 6, 2, 8, true, 0, 0.0),
        // Begins and ends inside of tiles, and on their edges.
        s(&[0, 64, 100], 100, 1, 1, 64, true, 0, 0.0),
        s(&[0, 15, 31, 64, 81], 81, 2, 1, 20, false, 0, 0.0),
        // Fewer segments than there is room for.
        s(&[0, 4, 9, 9, 9, 9, 9, 9, 9, 9], 9, 2, 2, 8, true, 0, 0.0),
        // None at all.
        s(&[0], 5, 2, 1, 8, true, 0, 0.0),
        s(&[5, 5, 5], 5, 2, 2, 8, false, 0, 0.0),
        s(&[0, 0], 0, 2, 2, 8, true, 0, 0.0),
        // Rows of their own lengths, and no rows.
        rows(2, &[0, 3, 19, 8, 8, 17], 19, 4, 2, 8, true, 0, 0.0),
        rows(3, &[0, 9, 0, 4, 2, 2], 9, 2, 2, 5, false, 2, 0.0),
        rows(0, &[], 4, 2, 2, 8, true, 0, 0.0),
    ];
    let mut all: Vec<Trial> = shapes
        .iter()
        .map(|s| trial(g, t, s, Lie::Dense, back))
        .collect();
    let y = rows(2, &[0, 6, 17, 0, 1, 12], 17, 4, 4, 8, true, 0, 0.0);
    for lie in [Lie::Heads, Lie::Fused, Lie::Loud] {
        all.push(trial(g, t, &y, lie, back));
    }
    if g.big {
        for s in [
            s(&[0, 100, 257, 300], 300, 2, 1, 64, true, 0, 0.0),
            s(&[0, 7, 250], 250, 2, 1, 128, true, 100, 0.0),
        ] {
            all.push(trial(g, t, &s, Lie::Dense, back));
        }
    }
    all
}

/// How the operands lie.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    Dense,
    /// [B, H, T, D] in memory.
    Heads,
    /// Rows far apart, as in slices of one q|k|v tensor.
    Fused,
    /// Dense, with scores so large that an exponential without the maximum overflows.
    Loud,
}

fn trial(g: &mut Gen, t: DType, s: &Shape, lie: Lie, back: bool) -> Trial {
    let place = |x: T| match lie {
        Lie::Heads => x.lying(&[0, 2, 1, 3]),
        Lie::Fused => {
            let [_, tt, h, d] = [x.shape[0], x.shape[1], x.shape[2], x.shape[3]];
            let row = (3 * h * d) as i64;
            x.at(&[tt as i64 * row, row, d as i64, 1])
        }
        _ => x,
    };
    let loud = if lie == Lie::Loud { 30.0 } else { 1.0 };
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let (q, k, v) = (
        g.real(t, &qs, 2.0 * loud),
        g.real(t, &ks, 2.0),
        g.real(t, &ks, 2.0),
    );
    let x = Inputs {
        q: q.values(),
        k: k.values(),
        v: v.values(),
    };
    let p = AttentionParams {
        flags: if s.causal { FLAG_CAUSAL } else { 0 },
        scale: s.scale,
        window: s.window,
        ..Default::default()
    };
    let how = match lie {
        Lie::Dense => "",
        Lie::Heads => ", heads outside",
        Lie::Fused => ", slices of one tensor",
        Lie::Loud => ", scores of several hundred",
    };
    let what = format!(
        "B {} Tq {} Tk {} H {}/{} D {}{}{}{}{how}",
        s.b,
        s.tq,
        s.tk,
        s.h,
        s.hkv,
        s.d,
        if s.causal { " causal" } else { "" },
        if s.window > 0 {
            format!(" window {}", s.window)
        } else {
            String::new()
        },
        s.cu.map_or(String::new(), |cu| format!(" cu {cu:?}")),
    );
    let cu = s.cu.map(|cu| {
        let values: Vec<i64> = cu.iter().map(|x| i64::from(*x)).collect();
        // No row has a length to count by: any number of segments fits.
        let n = cu.len().checked_div(s.b).unwrap_or(3);
        let cu = T::ints(DType::I32, &[s.b, n], &values);
        match lie {
            Lie::Fused => cu.spread(3),
            _ => cu,
        }
    });
    let (o, lse) = forward(t, s, &x);
    let ls = [s.b, s.h, s.tq];
    if !back {
        let want = vec![(0, Want::Fused(o)), (1, Want::Fused(lse))];
        let mut args: Vec<Arg> = vec![
            place(T::poison(t, &qs)).into(),
            T::poison(F, &ls).into(),
            place(q).into(),
            place(k).into(),
            place(v).into(),
        ];
        args.extend(cu.map(Arg::from));
        return Trial::new(what, p.as_bytes(), args, want);
    }
    let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
    let (o, lse) = (T::new(t, &qs, &of(&o)), T::new(F, &ls, &of(&lse)));
    let d_out = g.real(t, &qs, 2.0);
    let [dq, dk, dv] = backward(t, s, &x, &d_out.values(), &o.values(), &lse.values());
    let want = vec![
        (0, Want::Fused(dq)),
        (1, Want::Fused(dk)),
        (2, Want::Fused(dv)),
    ];
    let mut args: Vec<Arg> = vec![
        place(T::poison(t, &qs)).into(),
        place(T::poison(t, &ks)).into(),
        place(T::poison(t, &ks)).into(),
        place(d_out).into(),
        place(o).into(),
        place(q).into(),
        place(k).into(),
        place(v).into(),
        lse.into(),
    ];
    args.extend(cu.map(Arg::from));
    Trial::new(what, p.as_bytes(), args, want)
}
