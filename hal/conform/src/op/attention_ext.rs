//! `attention_ext_fwd`, `attention_ext_bwd`: soft cap, bias by distance, sinks and dropped weights, each alone and all together, over whole
//! rows and over segments whose queries and keys may be of different numbers.

use super::attention::stored;
use super::bound::{Num, dot, num as exact, sum};
use super::cell::{Cell, FLOATS, Gen};
use super::random::block;
use super::softmax::largest;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, AttentionExtParams, FLAG_CAUSAL, PhiloxDyn};

const F: DType = DType::F32;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for (id, back) in [
            (op::ATTENTION_EXT_FWD, false),
            (op::ATTENTION_EXT_BWD, true),
        ] {
            all.push(Cell::new(id, t.name(), move |g| trials(g, t, back)));
        }
    }
    all
}

/// Sizes, mask and what comes on top.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Bound of the scores, 0 = none.
    pub cap: f64,
    /// Probability of a dropped weight.
    pub dropout: f64,
    /// Heads, queries and keys of the whole; 0 = these.
    pub whole: [i64; 3],
    /// There is a bias.
    pub bias: bool,
    /// There are sinks.
    pub sinks: bool,
    /// Cumulative lengths of queries, row after row, and those of keys, where they differ.
    pub cu: [Option<&'static [i32]>; 2],
}

/// A segment: first and past the last, of queries and of keys.
type Segment = [usize; 4];

impl Shape {
    fn factor(&self) -> f64 {
        if self.scale == 0.0 {
            1.0 / (self.d as f64).sqrt()
        } else {
            self.scale
        }
    }
    /// The segment of query `i`, if any.
    fn segment(&self, b: usize, i: usize) -> Option<Segment> {
        let Some(q) = self.cu[0] else {
            return Some([0, self.tq, 0, self.tk]);
        };
        let k = self.cu[1].unwrap_or(q);
        let n = q.len() / self.b;
        let (q, k) = (&q[b * n..][..n], &k[b * n..][..n]);
        let at = q
            .windows(2)
            .position(|s| (s[0]..s[1]).contains(&(i as i32)))?;
        Some([q[at], q[at + 1], k[at], k[at + 1]].map(|x| x as usize))
    }
    /// The distance at which query `i` sees key `j` (key - query within the segment), if it does.
    fn sees(&self, s: Segment, i: usize, j: usize) -> Option<i64> {
        let [q0, q1, k0, k1] = s.map(|x| x as i64);
        let (i, j) = (i as i64, j as i64);
        if !(k0..k1).contains(&j) {
            return None;
        }
        let at = (i - q0) + (k1 - k0) - (q1 - q0);
        let seen =
            (!self.causal || j - k0 <= at) && (self.window == 0 || j - k0 > at - self.window);
        seen.then_some((j - k0) - (i - q0))
    }
    /// Where element 0 of head `h` at `t` lies in `[B, T, heads, D]`.
    fn at(&self, t: usize, heads: usize, b: usize, i: usize, h: usize) -> usize {
        ((b * t + i) * heads + h) * self.d
    }
    /// Numbers of the bias of a head.
    fn distances(&self) -> usize {
        (self.tq + self.tk).saturating_sub(1)
    }
    /// What a weight is multiplied by.
    fn kept(&self, d: &PhiloxDyn, [b, h, i, j]: [usize; 4]) -> Num {
        if self.dropout == 0.0 {
            return exact(1.0);
        }
        let own = [self.h, self.tq, self.tk];
        let [heads, queries, keys] = std::array::from_fn(|x| match self.whole[x] {
            0 => own[x] as u64,
            n => n as u64,
        });
        let row = (b as u64 * heads + h as u64) * queries + i as u64;
        let c = d
            .offset
            .wrapping_add(row.wrapping_mul(keys.div_ceil(4)))
            .wrapping_add(j as u64 / 4);
        let counter = [
            c as u32,
            (c >> 32) as u32,
            d.stream as u32,
            (d.stream >> 32) as u32,
        ];
        let word = block(counter, [d.seed as u32, (d.seed >> 32) as u32])[j % 4];
        if f64::from(word >> 8) / 16_777_216.0 < self.dropout {
            return exact(0.0);
        }
        let scale = 1.0 / (1.0 - self.dropout);
        exact(f64::from(scale as f32)).rounded_from(scale)
    }
}

/// The inputs in f64.
#[derive(Clone, Default)]
pub struct Inputs {
    /// [B, Tq, H, D].
    pub q: Vec<f64>,
    /// [B, Tk, Hkv, D].
    pub k: Vec<f64>,
    /// [B, Tk, Hkv, D].
    pub v: Vec<f64>,
    /// [H, Tq + Tk - 1], or nothing.
    pub bias: Vec<f64>,
    /// [H], or nothing.
    pub sinks: Vec<f64>,
    /// Seeds.
    pub key: PhiloxDyn,
}

/// A key that a query sees: its place, the score, tanh of the capped score, and where its bias stands.
struct Seen {
    j: usize,
    score: Num,
    tanh: Option<Num>,
    bias: usize,
}

fn scores(s: &Shape, x: &Inputs, b: usize, h: usize, i: usize) -> Vec<Seen> {
    let Some(of) = s.segment(b, i) else {
        return vec![];
    };
    let g = h / (s.h / s.hkv);
    let q = &x.q[s.at(s.tq, s.h, b, i, h)..][..s.d];
    let f = s.factor();
    let one = |j: usize| {
        let distance = s.sees(of, i, j)?;
        let k = &x.k[s.at(s.tk, s.hkv, b, j, g)..][..s.d];
        let raw = dot(q.iter().zip(k).map(|(a, b)| (exact(*a), exact(*b))));
        let mut score = raw * exact(f64::from(f as f32)).rounded_from(f);
        let cap = exact(f64::from(s.cap as f32)).rounded_from(s.cap);
        let tanh = (s.cap > 0.0).then(|| (score / cap).tanh());
        if let Some(t) = tanh {
            score = t * cap;
        }
        let bias = (h * s.distances()) as i64 + distance + s.tq as i64 - 1;
        if s.bias {
            score = score + exact(x.bias[bias as usize]);
        }
        let bias = bias as usize;
        Some(Seen {
            j,
            score,
            tanh,
            bias,
        })
    };
    (0..s.tk).filter_map(one).collect()
}

/// o [B, Tq, H, D] and lse [B, H, Tq].
pub fn forward(t: DType, s: &Shape, x: &Inputs) -> (Vec<Num>, Vec<Num>) {
    let mut o = vec![exact(0.0); s.b * s.tq * s.h * s.d];
    let mut lse = vec![exact(f64::NEG_INFINITY); s.b * s.h * s.tq];
    for b in 0..s.b {
        for h in 0..s.h {
            let g = h / (s.h / s.hkv);
            for i in 0..s.tq {
                let seen = scores(s, x, b, h, i);
                let sink = s.sinks.then(|| x.sinks[h]);
                let mut all: Vec<f64> = seen.iter().map(|s| s.score.v).collect();
                all.extend(sink);
                if s.segment(b, i).is_none() || all.is_empty() {
                    continue;
                }
                let top = largest(&all);
                let p: Vec<Num> = seen.iter().map(|s| (s.score - exact(top)).exp()).collect();
                let extra = sink.map(|v| (exact(v) - exact(top)).exp());
                let l = sum(p.iter().copied().chain(extra));
                lse[(b * s.h + h) * s.tq + i] = l.ln() + exact(top);
                let out = s.at(s.tq, s.h, b, i, h);
                for c in 0..s.d {
                    let term = |(n, p): (&Seen, &Num)| {
                        let used = *p * s.kept(&x.key, [b, h, i, n.j]);
                        let v = x.v[s.at(s.tk, s.hkv, b, n.j, g) + c];
                        (stored(t, used), exact(v))
                    };
                    o[out + c] = dot(seen.iter().zip(&p).map(term)) / l;
                }
            }
        }
    }
    (o, lse)
}

/// Gradients of q, k, v, bias and sinks for a gradient of o; `o` and `lse` as the forward has stored them.
pub fn backward(
    t: DType,
    s: &Shape,
    x: &Inputs,
    d_out: &[f64],
    o: &[f64],
    lse: &[f64],
) -> [Vec<Num>; 5] {
    let mut dq = vec![exact(0.0); x.q.len()];
    let mut parts: [Vec<Vec<Num>>; 2] = [vec![Vec::new(); x.k.len()], vec![Vec::new(); x.k.len()]];
    let mut by_bias = vec![Vec::new(); x.bias.len()];
    let mut by_sink = vec![Vec::new(); x.sinks.len()];
    let f = exact(f64::from(s.factor() as f32)).rounded_from(s.factor());
    for b in 0..s.b {
        for h in 0..s.h {
            let g = h / (s.h / s.hkv);
            for i in 0..s.tq {
                if s.segment(b, i).is_none() {
                    continue;
                }
                let at = s.at(s.tq, s.h, b, i, h);
                let z = exact(lse[(b * s.h + h) * s.tq + i]);
                let (go, oo) = (&d_out[at..at + s.d], &o[at..at + s.d]);
                let delta = dot(go.iter().zip(oo).map(|(a, b)| (exact(*a), exact(*b))));
                if s.sinks && z.v.is_finite() {
                    by_sink[h].push(-((exact(x.sinks[h]) - z).exp() * delta));
                }
                let mut terms = vec![Vec::new(); s.d];
                for n in scores(s, x, b, h, i) {
                    let kv = s.at(s.tk, s.hkv, b, n.j, g);
                    let p = (n.score - z).exp();
                    let kept = s.kept(&x.key, [b, h, i, n.j]);
                    let v = &x.v[kv..kv + s.d];
                    let dp = dot(go.iter().zip(v).map(|(a, b)| (exact(*a), exact(*b))));
                    let ds = p * (dp * kept - delta);
                    if s.bias {
                        by_bias[n.bias].push(ds);
                    }
                    let ds = n.tanh.map_or(ds, |t| ds * (exact(1.0) - t * t));
                    let (ds, p) = (stored(t, ds), stored(t, p * kept));
                    for c in 0..s.d {
                        terms[c].push(ds * exact(x.k[kv + c]));
                        parts[0][kv + c].push(ds * exact(x.q[at + c]) * f);
                        parts[1][kv + c].push(p * exact(go[c]));
                    }
                }
                for (c, terms) in terms.into_iter().enumerate() {
                    dq[at + c] = sum(terms) * f;
                }
            }
        }
    }
    let all = |p: Vec<Vec<Num>>| p.into_iter().map(sum).collect::<Vec<_>>();
    let [dk, dv] = parts.map(all);
    [dq, dk, dv, all(by_bias), all(by_sink)]
}

fn trials(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let s = |b, tq, tk, h, hkv, d, causal| Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        d,
        causal,
        ..Shape::default()
    };
    let cap = |cap, s: Shape| Shape { cap, ..s };
    let drop = |dropout, s: Shape| Shape { dropout, ..s };
    let bias = |s: Shape| Shape { bias: true, ..s };
    let sinks = |s: Shape| Shape { sinks: true, ..s };
    let window = |window, s: Shape| Shape { window, ..s };
    let cu = |q: &'static [i32], k: Option<&'static [i32]>, s: Shape| Shape {
        cu: [Some(q), k],
        ..s
    };
    let everything = |p, s: Shape| drop(p, bias(sinks(cap(1.5, s))));
    let shapes = [
        // Nothing on top: attention_*.
        s(2, 9, 9, 2, 1, 8, true),
        cap(0.7, s(1, 11, 11, 2, 2, 8, true)),
        window(4, cap(50.0, s(2, 33, 33, 2, 1, 16, true))),
        bias(s(2, 7, 7, 2, 2, 8, true)),
        bias(Shape {
            scale: 1.0,
            ..s(2, 19, 19, 3, 3, 8, false)
        }),
        bias(s(1, 5, 12, 2, 1, 8, true)),
        bias(s(1, 12, 5, 2, 1, 8, false)),
        sinks(s(1, 10, 10, 4, 2, 8, true)),
        // Queries that see no key, and yet the sink.
        sinks(window(3, s(1, 9, 4, 2, 2, 8, true))),
        drop(0.1, s(2, 8, 8, 2, 2, 8, true)),
        // No whole philox blocks in a row.
        drop(0.5, s(2, 7, 13, 2, 1, 8, false)),
        drop(0.9, s(1, 90, 101, 1, 1, 8, true)),
        // A part of a larger whole.
        Shape {
            whole: [5, 20, 30],
            ..drop(0.4, s(2, 9, 9, 2, 1, 8, true))
        },
        // Cross-attention over packed rows.
        cu(&[0, 3, 7], Some(&[0, 5, 9]), s(1, 7, 9, 2, 2, 8, false)),
        cu(&[0, 3, 7], Some(&[0, 5, 9]), s(1, 7, 9, 2, 1, 8, true)),
        // Segments without queries, without keys, without both; positions of none.
        cu(
            &[1, 4, 4, 6, 6, 9],
            Some(&[0, 4, 7, 7, 7, 8]),
            s(1, 11, 10, 2, 2, 8, false),
        ),
        cu(&[0, 13, 40], None, window(7, s(1, 40, 40, 1, 1, 8, true))),
        cu(
            &[0, 64, 100],
            Some(&[0, 20, 130]),
            s(1, 100, 130, 1, 1, 16, false),
        ),
        everything(0.2, s(2, 17, 17, 4, 2, 8, true)),
        everything(0.3, window(5, s(1, 21, 30, 2, 2, 8, true))),
        everything(
            0.25,
            cu(
                &[0, 6, 17, 0, 1, 12],
                Some(&[0, 2, 19, 3, 9, 19]),
                s(2, 17, 19, 4, 2, 8, true),
            ),
        ),
        everything(0.25, cu(&[2, 9, 9, 31], None, s(1, 40, 40, 2, 1, 8, true))),
        everything(0.1, s(1, 0, 5, 2, 2, 8, true)),
        everything(0.1, s(0, 4, 4, 2, 2, 8, true)),
    ];
    let mut all: Vec<Trial> = shapes.iter().map(|s| trial(g, t, s, false, back)).collect();
    all.push(trial(
        g,
        t,
        &everything(0.2, s(2, 13, 13, 4, 4, 8, true)),
        true,
        back,
    ));
    if g.big {
        for s in [
            everything(0.1, s(1, 300, 300, 2, 1, 64, true)),
            bias(s(2, 200, 260, 2, 2, 64, false)),
        ] {
            all.push(trial(g, t, &s, false, back));
        }
    }
    all
}

/// Operand cu_q or cu_k.
fn lengths(s: &Shape, which: usize) -> Option<T> {
    let cu = s.cu[which]?;
    let values: Vec<i64> = cu.iter().map(|x| i64::from(*x)).collect();
    Some(T::ints(DType::I32, &[s.b, cu.len() / s.b], &values))
}

/// The params of a shape.
fn params(s: &Shape) -> AttentionExtParams {
    AttentionExtParams {
        flags: if s.causal { FLAG_CAUSAL } else { 0 },
        scale: s.scale,
        window: s.window,
        cap: s.cap,
        dropout: s.dropout,
        heads: s.whole[0],
        queries: s.whole[1],
        keys: s.whole[2],
        ..Default::default()
    }
}

fn trial(g: &mut Gen, t: DType, s: &Shape, fused: bool, back: bool) -> Trial {
    let place = |x: T| {
        let [_, tt, h, d] = [x.shape[0], x.shape[1], x.shape[2], x.shape[3]];
        let row = (3 * h * d) as i64;
        match fused {
            true => x.at(&[tt as i64 * row, row, d as i64, 1]),
            false => x,
        }
    };
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let line = [s.h, s.distances()];
    let (q, k, v) = (
        g.real(t, &qs, 2.0),
        g.real(t, &ks, 2.0),
        g.real(t, &ks, 2.0),
    );
    let bias = s.bias.then(|| g.real(t, &line, 1.0));
    let sinks = s.sinks.then(|| g.real(t, &[s.h], 1.5));
    let values = |x: &Option<T>| x.as_ref().map_or(vec![], T::values);
    let x = Inputs {
        q: q.values(),
        k: k.values(),
        v: v.values(),
        bias: values(&bias),
        sinks: values(&sinks),
        key: PhiloxDyn {
            seed: 0x1234_5678_9ABC_DEF0,
            offset: 0xFFFF_FFF0,
            stream: 0x0FED_CBA9_8765_4321,
            ..Default::default()
        },
    };
    let p = params(s);
    let what = format!("{s:?}{}", if fused { ", slices of one tensor" } else { "" });
    let (o, lse) = forward(t, s, &x);
    let ls = [s.b, s.h, s.tq];
    let tail = [bias.clone(), sinks.clone(), lengths(s, 0), lengths(s, 1)].map(Arg::from);
    if !back {
        let want = vec![(0, Want::Fused(o)), (1, Want::Fused(lse))];
        let mut args: Vec<Arg> = vec![
            place(T::poison(t, &qs)).into(),
            T::poison(F, &ls).into(),
            place(q).into(),
            place(k).into(),
            place(v).into(),
        ];
        args.extend(tail);
        return Trial::new(what, p.as_bytes(), args, want).given(x.key.as_bytes());
    }
    let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
    let (o, lse) = (T::new(t, &qs, &of(&o)), T::new(F, &ls, &of(&lse)));
    let d_out = g.real(t, &qs, 2.0);
    let [dq, dk, dv, dbias, dsinks] =
        backward(t, s, &x, &d_out.values(), &o.values(), &lse.values());
    let mut want = vec![
        (0, Want::Fused(dq)),
        (1, Want::Fused(dk)),
        (2, Want::Fused(dv)),
    ];
    // Gradients that accumulate find something there.
    let (had_bias, had_sink) = (g.real(F, &line, 1.0), g.real(F, &[s.h], 1.0));
    let added = |had: &T, d: Vec<Num>| {
        let all = had.values().into_iter().zip(d);
        Want::Fused(all.map(|(a, b)| exact(a) + b).collect())
    };
    if s.bias {
        want.push((3, added(&had_bias, dbias)));
    }
    if s.sinks {
        want.push((4, added(&had_sink, dsinks)));
    }
    let mut args: Vec<Arg> = vec![
        place(T::poison(t, &qs)).into(),
        place(T::poison(t, &ks)).into(),
        place(T::poison(t, &ks)).into(),
        s.bias.then_some(had_bias).into(),
        s.sinks.then_some(had_sink).into(),
        place(d_out).into(),
        place(o).into(),
        place(q).into(),
        place(k).into(),
        place(v).into(),
        lse.into(),
    ];
    args.extend(tail);
    Trial::new(what, p.as_bytes(), args, want).given(x.key.as_bytes())
}
