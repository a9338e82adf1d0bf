//! What attention must give: forward and backward over numbers that carry their error, for all positions or a sample, with everything
//! that `attention_ext_*` puts on top of scores and weights.
//!
//! With 16-bit storage the probabilities and their gradients may go through it once: products of 16-bit operands take 16-bit operands
//! (the row of `matmul`), and there is no other way to use units that multiply only those.

use super::bound::{Num, Total, dot, num as exact, sum, unjudged};
use super::num;
use super::random::block;
use super::softmax::largest;
use super::tensor::T;
use crossweave_abi::DType;
use crossweave_abi::op::{AttentionExtParams, FLAG_CAUSAL, FLAG_IN_ROW, PhiloxDyn};
use std::ops::Range;
use std::sync::Arc;

/// Seeds of every launch that drops weights.
pub const KEY: PhiloxDyn = PhiloxDyn {
    size: size_of::<PhiloxDyn>() as u32,
    flags: 0,
    seed: 0x1234_5678_9ABC_DEF0,
    offset: 0xFFFF_FFF0,
    stream: 0x0FED_CBA9_8765_4321,
};

/// Which operands are f32 whatever q, k and v are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wide {
    /// None.
    #[default]
    None,
    /// What is written: o, or the gradients of q, k and v.
    Written,
    /// Those, and what the backward reads of o and its gradient.
    All,
}

/// Sizes, mask and what comes on top.
#[derive(Clone, Debug, Default)]
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
    /// Keys from the last one to the position of the last query.
    pub shift: i64,
    /// The number of key 0 in the whole.
    pub first_key: i64,
    /// Mask and bias count in the row, not in segments.
    pub in_row: bool,
    /// What is f32 whatever q, k and v are.
    pub wide: Wide,
    /// There is a bias.
    pub bias: bool,
    /// There are sinks.
    pub sinks: bool,
    /// Cumulative lengths of queries, row after row, and those of keys, where they differ.
    pub cu: [Option<Arc<[i32]>>; 2],
    /// Positions that are judged, of queries and of keys; the rest is only computed. Empty: all.
    pub judged: Vec<usize>,
}

/// What a query sees.
struct View {
    /// The keys; they lie in a row.
    keys: Range<usize>,
    /// The key that stands where the query does in its segment.
    level: i64,
}

impl Shape {
    /// In words, for messages.
    pub fn what(&self) -> String {
        let Shape { b, tq, tk, h, .. } = self;
        let mut t = format!("B {b} Tq {tq} Tk {tk} H {h}/{} D {}", self.hkv, self.d);
        let words = [
            (self.causal, " causal".to_string()),
            (self.window > 0, format!(" window {}", self.window)),
            (self.cap > 0.0, format!(" cap {}", self.cap)),
            (self.dropout > 0.0, format!(" dropout {}", self.dropout)),
            (self.whole != [0; 3], format!(" of {:?}", self.whole)),
            (self.shift != 0, format!(" shift {}", self.shift)),
            (self.first_key != 0, format!(" from key {}", self.first_key)),
            (self.in_row, " in the row".into()),
            (self.wide != Wide::None, format!(" f32 {:?}", self.wide)),
            (self.bias, " bias".into()),
            (self.sinks, " sinks".into()),
        ];
        t.extend(words.into_iter().filter(|w| w.0).map(|w| w.1));
        for (cu, name) in self.cu.iter().zip(["cu", "cu_k"]) {
            match cu.as_deref() {
                Some(cu @ [first, .., last]) if cu.len() > 30 => {
                    t += &format!(" {name} [{first}, .. {last}]");
                }
                Some(cu) => t += &format!(" {name} {cu:?}"),
                None => {}
            }
        }
        t
    }

    /// The params of the extended ops.
    pub fn params(&self) -> AttentionExtParams {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        AttentionExtParams {
            flags: flag(self.causal, FLAG_CAUSAL) | flag(self.in_row, FLAG_IN_ROW),
            scale: self.scale,
            window: self.window,
            cap: self.cap,
            dropout: self.dropout,
            heads: self.whole[0],
            queries: self.whole[1],
            keys: self.whole[2],
            shift: self.shift,
            first_key: self.first_key,
            ..Default::default()
        }
    }
    /// Operand cu_q or cu_k of these.
    pub fn lengths(&self, which: usize) -> Option<T> {
        let cu = self.cu[which].as_deref()?;
        let values: Vec<i64> = cu.iter().map(|x| i64::from(*x)).collect();
        Some(T::ints(DType::I32, &[self.b, cu.len() / self.b], &values))
    }
    fn factor(&self) -> f64 {
        if self.scale == 0.0 {
            1.0 / (self.d as f64).sqrt()
        } else {
            self.scale
        }
    }
    fn is_judged(&self, at: usize) -> bool {
        self.judged.is_empty() || self.judged.binary_search(&at).is_ok()
    }
    /// The queries and the keys of the segment that query `i` is in, if any.
    fn segment(&self, b: usize, i: usize) -> Option<[Range<usize>; 2]> {
        let Some(q) = &self.cu[0] else {
            return Some([0..self.tq, 0..self.tk]);
        };
        let k = self.cu[1].as_ref().unwrap_or(q);
        let n = q.len() / self.b;
        let [q, k] = [q, k].map(|cu| &cu[b * n..][..n]);
        let next = q.partition_point(|c| *c as usize <= i);
        let within = |cu: &[i32]| cu[next - 1] as usize..cu[next] as usize;
        (next > 0 && next < n).then(|| [within(q), within(k)])
    }
    /// What query `i` sees; `None`: it is of no segment.
    fn view(&self, b: usize, i: usize) -> Option<View> {
        let [q, k] = self.segment(b, i)?;
        let (level, apart) = match self.in_row {
            true => (i as i64, self.tk as i64 - self.tq as i64),
            false => (
                (k.start + i) as i64 - q.start as i64,
                k.len() as i64 - q.len() as i64,
            ),
        };
        let at = level + apart + self.shift;
        let (mut from, mut to) = (k.start as i64, k.end as i64);
        if self.window > 0 {
            from = from.max(at - self.window + 1);
        }
        if self.causal {
            to = to.min(at + 1);
        }
        let keys = from as usize..to.max(from) as usize;
        Some(View { keys, level })
    }
    /// Which queries see a key, and which keys are seen by one, row after row.
    pub fn seen(&self) -> [Vec<bool>; 2] {
        let mut seen = [self.tq, self.tk].map(|n| vec![false; self.b * n]);
        for (b, i) in (0..self.b).flat_map(|b| (0..self.tq).map(move |i| (b, i))) {
            let keys = self.view(b, i).map_or(0..0, |v| v.keys);
            seen[0][b * self.tq + i] = !keys.is_empty();
            keys.for_each(|j| seen[1][b * self.tk + j] = true);
        }
        seen
    }
    /// Where element 0 of head `h` at `t` lies in `[B, T, heads, D]`.
    fn at(&self, t: usize, heads: usize, b: usize, i: usize, h: usize) -> usize {
        ((b * t + i) * heads + h) * self.d
    }
    /// Where head `h` of query `i` lies.
    fn query(&self, b: usize, i: usize, h: usize) -> Range<usize> {
        let at = self.at(self.tq, self.h, b, i, h);
        at..at + self.d
    }
    /// Where the head of key `j` that query head `h` reads lies.
    fn key(&self, b: usize, j: usize, h: usize) -> Range<usize> {
        let at = self.at(self.tk, self.hkv, b, j, h / (self.h / self.hkv));
        at..at + self.d
    }
    /// Every (row, head, query).
    fn queries(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        (0..self.b)
            .flat_map(move |b| (0..self.h).flat_map(move |h| (0..self.tq).map(move |i| (b, h, i))))
    }
    /// Numbers of the bias of a head.
    pub fn distances(&self) -> usize {
        (self.tq + self.tk).saturating_sub(1)
    }
    /// Where the bias of head `h` for key `j` stands.
    fn bias_of(&self, h: usize, j: usize, v: &View) -> usize {
        let distance = j as i64 - v.level + self.tq as i64 - 1;
        h * self.distances() + distance as usize
    }
    /// A weight, or what goes with it, dropped or scaled.
    fn kept(&self, x: Num, d: &PhiloxDyn, [b, h, i, j]: [usize; 4]) -> Num {
        if self.dropout == 0.0 {
            return x;
        }
        let own = [self.h, self.tq, self.tk];
        let [heads, queries, keys] = std::array::from_fn(|x| match self.whole[x] {
            0 => own[x] as u64,
            n => n as u64,
        });
        let row = (b as u64 * heads + h as u64) * queries + i as u64;
        let j = j + self.first_key as usize;
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
        x * in_f32(1.0 / (1.0 - self.dropout))
    }
}

/// A number that goes through f32 once.
fn in_f32(v: f64) -> Num {
    exact(f64::from(v as f32)).rounded_from(v)
}

/// Once through the storage.
fn stored(t: DType, x: Num) -> Num {
    match t {
        DType::F32 => x,
        t => Num {
            v: x.v,
            e: x.e + num::ulp(t, x.v.abs() + x.e) / 2.0,
        },
    }
}

/// The same with a factor that may stand before or behind the storage: where that has subnormal numbers they differ.
fn stored_with(t: DType, x: Num, factor: f64) -> Num {
    let f = factor.abs();
    let scaled = Num {
        v: x.v * f,
        e: x.e * f,
    };
    Num {
        v: x.v,
        e: stored(t, x).e.max(stored(t, scaled).e / f),
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

/// In eight sums, which a processor adds at once.
fn product(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        let each = sums.iter_mut().zip(a.iter().zip(b));
        each.for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

fn product_num(a: &[f64], b: &[f64]) -> Num {
    dot(a.iter().zip(b).map(|(a, b)| (exact(*a), exact(*b))))
}

type Scored = (Num, Option<Num>);

/// The score of a query and a key, and tanh of the capped one.
fn score(s: &Shape, x: &Inputs, [b, h, i, j]: [usize; 4], view: &View) -> Scored {
    let (q, k) = (&x.q[s.query(b, i, h)], &x.k[s.key(b, j, h)]);
    let mut score = product_num(q, k) * in_f32(s.factor());
    let cap = in_f32(s.cap);
    let tanh = (s.cap > 0.0).then(|| (score / cap).tanh());
    if let Some(t) = tanh {
        score = t * cap;
    }
    if s.bias {
        score = score + exact(x.bias[s.bias_of(h, j, view)]);
    }
    (score, tanh)
}

/// o [B, Tq, H, D] and lse [B, H, Tq].
pub fn forward(t: DType, s: &Shape, x: &Inputs) -> (Vec<Num>, Vec<Num>) {
    let mut o = vec![exact(0.0); s.b * s.tq * s.h * s.d];
    let mut lse = vec![exact(f64::NEG_INFINITY); s.b * s.h * s.tq];
    for (b, h, i) in s.queries() {
        // Of no segment, or seeing nothing: zeros, and the logarithm of nothing.
        let Some(view) = s.view(b, i) else { continue };
        let sink = s.sinks.then(|| x.sinks[h]);
        let keys = || view.keys.clone();
        if view.keys.is_empty() && sink.is_none() {
            continue;
        }
        let lse = &mut lse[(b * s.h + h) * s.tq + i];
        let out = &mut o[s.query(b, i, h)];
        let v = |j: usize| &x.v[s.key(b, j, h)];
        if !s.is_judged(i) {
            *lse = unjudged(plain(s, x, (b, h, i), keys(), out));
            continue;
        }
        let sc: Vec<Num> = keys().map(|j| score(s, x, [b, h, i, j], &view).0).collect();
        let all: Vec<f64> = sc.iter().map(|s| s.v).chain(sink).collect();
        let top = largest(&all);
        let p: Vec<Num> = sc.iter().map(|s| (*s - exact(top)).exp()).collect();
        let extra = sink.map(|v| (exact(v) - exact(top)).exp());
        let l = sum(p.iter().copied().chain(extra));
        *lse = l.ln() + exact(top);
        let mut all = vec![Total::default(); s.d];
        for (p, j) in p.iter().zip(keys()) {
            let p = stored(t, s.kept(*p, &x.key, [b, h, i, j]));
            all.iter_mut()
                .zip(v(j))
                .for_each(|(a, v)| a.add(p * exact(*v)));
        }
        out.iter_mut().zip(all).for_each(|(o, a)| *o = a.num() / l);
    }
    (o, lse)
}

/// Writes the output of a query that is not judged, without anything on top, and answers its lse.
fn plain(
    s: &Shape,
    x: &Inputs,
    (b, h, i): (usize, usize, usize),
    keys: Range<usize>,
    out: &mut [Num],
) -> f64 {
    assert!(!s.bias && !s.sinks && s.cap == 0.0 && s.dropout == 0.0);
    let (q, f) = (&x.q[s.query(b, i, h)], s.factor());
    let score = |j: usize| product(q, &x.k[s.key(b, j, h)]) * f;
    let mut p: Vec<f64> = keys.clone().map(score).collect();
    let top = largest(&p);
    p.iter_mut().for_each(|p| *p = (*p - top).exp());
    let l: f64 = p.iter().sum();
    let mut all = vec![0.0; s.d];
    for (p, j) in p.iter().zip(keys) {
        let v = &x.v[s.key(b, j, h)];
        all.iter_mut().zip(v).for_each(|(a, v)| *a += p * v);
    }
    out.iter_mut()
        .zip(all)
        .for_each(|(o, a)| *o = unjudged(a / l));
    l.ln() + top
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
    let zeros = |n: usize| vec![Total::default(); n];
    let mut dq = vec![exact(0.0); x.q.len()];
    let mut sums = [zeros(x.k.len()), zeros(x.v.len())];
    let (mut by_bias, mut by_sink) = (zeros(x.bias.len()), zeros(x.sinks.len()));
    let f = in_f32(s.factor());
    for (b, h, i) in s.queries() {
        let at = s.query(b, i, h);
        let own = s.is_judged(i);
        let Some(view) = s.view(b, i) else { continue };
        let z = exact(lse[(b * s.h + h) * s.tq + i]);
        let (q, go) = (&x.q[at.clone()], &d_out[at.clone()]);
        let delta = product_num(go, &o[at.clone()]);
        if s.sinks && z.v.is_finite() {
            by_sink[h].add(-((exact(x.sinks[h]) - z).exp() * delta));
        }
        let mut terms = zeros(s.d);
        let mut visit = |j: usize| {
            let kv = s.key(b, j, h);
            let (k, v) = (&x.k[kv.clone()], &x.v[kv.clone()]);
            let (score, tanh) = score(s, x, [b, h, i, j], &view);
            let p = (score - z).exp();
            let kept = |y: Num| s.kept(y, &x.key, [b, h, i, j]);
            let ds = p * (kept(product_num(go, v)) - delta);
            if s.bias {
                by_bias[s.bias_of(h, j, &view)].add(ds);
            }
            let ds = tanh.map_or(ds, |t| ds * (exact(1.0) - t * t));
            let ds = stored_with(t, ds, f.v);
            if own {
                let each = terms.iter_mut().zip(k);
                each.for_each(|(a, k)| a.add(ds * exact(*k)));
            }
            if s.is_judged(j) {
                let p = stored(t, kept(p));
                for (c, at) in kv.enumerate() {
                    sums[0][at].add(ds * exact(q[c]) * f);
                    sums[1][at].add(p * exact(go[c]));
                }
            }
        };
        match own {
            true => view.keys.clone().for_each(&mut visit),
            false => {
                let seen = s.judged.iter().filter(|j| view.keys.contains(j));
                seen.for_each(|j| visit(*j));
            }
        }
        for (out, a) in dq[at].iter_mut().zip(terms) {
            *out = match own {
                true => a.num() * f,
                false => unjudged(0.0),
            };
        }
    }
    let row = s.hkv * s.d;
    let [dk, dv] = sums.map(|all| {
        let whole = all.into_iter().enumerate().map(|(at, a)| {
            let judged = s.is_judged(at / row % s.tk);
            if judged { a.num() } else { unjudged(0.0) }
        });
        whole.collect()
    });
    let all = |x: Vec<Total>| x.into_iter().map(Total::num).collect::<Vec<_>>();
    [dq, dk, dv, all(by_bias), all(by_sink)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_before_the_storage_costs_bits_of_small_numbers_only() {
        let (plain, with) = (stored, |t, v| stored_with(t, exact(v), 0.25).e);
        for v in [1.0, 0.001, -3.0] {
            assert_eq!(with(DType::F16, v), plain(DType::F16, exact(v)).e);
        }
        // Subnormal numbers of f16 are whole numbers of 2^-24.
        assert_eq!(with(DType::F16, 1e-5), 4.0 * 0.5f64.powi(25));
        assert_eq!(with(DType::Bf16, 1e-5), plain(DType::Bf16, exact(1e-5)).e);
        assert_eq!(with(DType::F32, 1e-5), 0.0);
    }
}
