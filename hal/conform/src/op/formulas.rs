//! What the header says a fused op computes, in f64 with one rounding, is accepted by the kit: a vendor who has only the header passes.

use super::bound::erf;
use super::cell::Gen;
use super::tensor::T;
use super::trial::{Launch, Trial, check};
use super::{cells, num, rig};
use crate::case::Effort;
use crate::ctx::Rng;
use crossweave_abi::DType;
use crossweave_abi::op::{
    self, AdamwDyn, AdamwParams, AttentionParams, FLAG_CAUSAL, FLAG_HAS_IGNORE, FLAG_INTERLEAVED,
    FLAG_INVERSE, FLAG_MASTER, KindParams, NormParams, RopeParams, XentParams, activation, class,
};
use std::collections::BTreeSet;
use std::mem::offset_of;

/// A field of a struct in bytes.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let end = bytes.get(at..at + N).map(|b| b.try_into());
    end.and_then(Result::ok).unwrap_or([0; N])
}
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}
fn real(bytes: &[u8], at: usize) -> f64 {
    f64::from_le_bytes(field(bytes, at))
}

/// The operands of a trial and its parameters.
struct Given<'a> {
    trial: &'a Trial,
    launch: &'a Launch,
}

impl Given<'_> {
    fn tensor(&self, i: usize) -> Option<&T> {
        self.trial.args.get(i)?.tensor()
    }
    /// The numbers of an operand that is there.
    fn values(&self, i: usize) -> Vec<f64> {
        self.tensor(i).map(T::values).unwrap_or_default()
    }
    fn at(&self, i: usize) -> impl Fn(usize) -> f64 + use<> {
        let v = self.values(i);
        move |k| v[k]
    }
    /// Rows and their width.
    fn rows(&self, i: usize) -> (usize, usize) {
        let Some(x) = self.tensor(i) else {
            return (0, 0);
        };
        let d = x.shape.last().copied().unwrap_or(1);
        (x.bits.len() / d.max(1), d)
    }
    fn word(&self, at: usize) -> u32 {
        word(&self.trial.params, at)
    }
    fn real(&self, at: usize) -> f64 {
        real(&self.trial.params, at)
    }
}

/// What each output holds.
type Results = Vec<(usize, Vec<f64>)>;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> (f64, f64) {
    let s = sigmoid(x);
    (x * s, s + x * s * (1.0 - s))
}

/// act(x) and act'(x).
fn act(kind: u32, x: f64) -> (f64, f64) {
    match kind {
        activation::GELU_TANH => {
            let k = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let s = sigmoid(k * (x + 0.044715 * x * x * x));
            (
                x * s,
                s + x * s * (1.0 - s) * k * (1.0 + 3.0 * 0.044715 * x * x),
            )
        }
        activation::GELU_ERF => {
            let cdf = 0.5 * (1.0 + erf(x / 2f64.sqrt()));
            let pdf = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            (x * cdf, cdf + x * pdf)
        }
        activation::SILU => silu(x),
        _ if x.is_nan() => (x, 0.0),
        _ => (x.max(0.0), f64::from(u8::from(x > 0.0))),
    }
}

fn activations(g: &Given<'_>, back: bool) -> Results {
    let kind = g.word(offset_of!(KindParams, kind));
    let y = match back {
        false => g.values(1).into_iter().map(|x| act(kind, x).0).collect(),
        true => {
            let pairs = g.values(1).into_iter().zip(g.values(2));
            pairs.map(|(dy, x)| dy * act(kind, x).1).collect()
        }
    };
    vec![(0, y)]
}

fn swiglu(g: &Given<'_>, back: bool) -> Results {
    if !back {
        let pairs = g.values(1).into_iter().zip(g.values(2));
        return vec![(0, pairs.map(|(gate, up)| silu(gate).0 * up).collect())];
    }
    let (dy, gate, up) = (g.at(2), g.at(3), g.at(4));
    let n = g.values(2).len();
    let dgate = (0..n).map(|i| dy(i) * up(i) * silu(gate(i)).1);
    let dup = (0..n).map(|i| dy(i) * silu(gate(i)).0);
    vec![(0, dgate.collect()), (1, dup.collect())]
}

fn norm(g: &Given<'_>, centred: bool) -> Results {
    let eps = g.real(offset_of!(NormParams, eps));
    let (x_at, w_at) = if centred { (3, 4) } else { (2, 3) };
    let (n, d) = g.rows(x_at);
    let (x, w) = (g.values(x_at), g.at(w_at));
    let b = (centred && g.tensor(5).is_some()).then(|| g.at(5));
    let (mut y, mut means, mut rstds) = (vec![], vec![], vec![]);
    for r in 0..n {
        let row = &x[r * d..(r + 1) * d];
        let mean = match centred {
            true => row.iter().sum::<f64>() / d as f64,
            false => 0.0,
        };
        let squares: f64 = row.iter().map(|x| (x - mean) * (x - mean)).sum();
        let rstd = 1.0 / (squares / d as f64 + eps).sqrt();
        let add = |c: usize| b.as_ref().map_or(0.0, |b| b(c));
        y.extend((0..d).map(|c| (row[c] - mean) * rstd * w(c) + add(c)));
        means.push(mean);
        rstds.push(rstd);
    }
    match centred {
        true => vec![(0, y), (1, means), (2, rstds)],
        false => vec![(0, y), (1, rstds)],
    }
}

fn norm_back(g: &Given<'_>, centred: bool) -> Results {
    let first = if centred { 3 } else { 2 };
    let (n, d) = g.rows(first + 1);
    let (dy, x, w) = (g.at(first), g.at(first + 1), g.at(first + 2));
    let mean = centred.then(|| g.at(6));
    let rstd = g.at(if centred { 7 } else { 5 });
    let res_at = if centred { 8 } else { 6 };
    let res = g.tensor(res_at).map(|_| g.at(res_at));
    let (mut dx, mut dw, mut db) = (vec![], g.values(1), g.values(2));
    for r in 0..n {
        let m = mean.as_ref().map_or(0.0, |m| m(r));
        let at = |c: usize| r * d + c;
        let xh = |c: usize| (x(at(c)) - m) * rstd(r);
        let gy = |c: usize| dy(at(c)) * w(c);
        let by = (0..d).map(|c| gy(c) * xh(c)).sum::<f64>() / d as f64;
        let all = match centred {
            true => (0..d).map(gy).sum::<f64>() / d as f64,
            false => 0.0,
        };
        for c in 0..d {
            let own = rstd(r) * (gy(c) - all - xh(c) * by);
            dx.push(own + res.as_ref().map_or(0.0, |res| res(at(c))));
            dw[c] += dy(at(c)) * xh(c);
            if centred && !db.is_empty() {
                db[c] += dy(at(c));
            }
        }
    }
    let mut out = vec![(0, dx), (1, dw)];
    if centred && g.tensor(2).is_some() {
        out.push((2, db));
    }
    out
}

fn largest(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let m = largest(x);
    let e: Vec<f64> = x.iter().map(|x| (x - m).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

fn softmaxes(g: &Given<'_>, back: bool) -> Results {
    let (n, d) = g.rows(1);
    if !back {
        let x = g.values(1);
        return vec![(
            0,
            (0..n)
                .flat_map(|r| softmax(&x[r * d..(r + 1) * d]))
                .collect(),
        )];
    }
    let (dy, y) = (g.at(1), g.at(2));
    let row = |r: usize| {
        let sum: f64 = (0..d).map(|c| dy(r * d + c) * y(r * d + c)).sum();
        let each = (0..d).map(|c| y(r * d + c) * (dy(r * d + c) - sum));
        each.collect::<Vec<_>>()
    };
    vec![(0, (0..n).flat_map(row).collect())]
}

fn cross_entropy(g: &Given<'_>, back: bool) -> Results {
    let logits_at = if back { 1 } else { 2 };
    let (n, d) = g.rows(logits_at);
    let x = g.values(logits_at);
    let targets = g.tensor(3).map(T::integers).unwrap_or_default();
    let flagged = g.word(offset_of!(XentParams, flags)) & FLAG_HAS_IGNORE != 0;
    let ignore = i64::from_le_bytes(field(&g.trial.params, offset_of!(XentParams, ignore)));
    let ignored = |r: usize| flagged && targets[r] == i128::from(ignore);
    let target = |r: usize| {
        (0..d as i128)
            .contains(&targets[r])
            .then(|| targets[r] as usize)
    };
    if !back {
        let row = |r: usize| &x[r * d..(r + 1) * d];
        let lse = |r: usize| {
            let m = largest(row(r));
            m + row(r).iter().map(|x| (x - m).exp()).sum::<f64>().ln()
        };
        let loss = |r: usize| match (ignored(r), target(r)) {
            (true, _) => 0.0,
            (_, Some(c)) => lse(r) - row(r)[c],
            _ => f64::NAN,
        };
        return vec![
            (0, (0..n).map(loss).collect()),
            (1, (0..n).map(lse).collect()),
        ];
    }
    let (lse, dloss) = (g.at(2), g.at(4));
    let element = |i: usize| {
        let (r, c) = (i / d, i % d);
        let hot = f64::from(u8::from(target(r) == Some(c)));
        match (ignored(r), target(r)) {
            (true, _) => 0.0,
            (_, None) => f64::NAN,
            _ => ((x[i] - lse(r)).exp() - hot) * dloss(r),
        }
    };
    vec![(0, (0..n * d).map(element).collect())]
}

fn rope(g: &Given<'_>) -> Results {
    let flags = g.word(offset_of!(RopeParams, flags));
    let Some([_, t, h, d]) = g
        .tensor(1)
        .map(|x| [x.shape[0], x.shape[1], x.shape[2], x.shape[3]])
    else {
        return vec![];
    };
    let (mut y, half) = (g.values(1), g.rows(2).1);
    let (cos, sin) = (g.at(2), g.at(3));
    for (head, y) in y.chunks_mut(d).enumerate() {
        for p in 0..half {
            let (i, j) = match flags & FLAG_INTERLEAVED {
                0 => (p, p + half),
                _ => (2 * p, 2 * p + 1),
            };
            let at = head / h % t * half + p;
            let (c, s) = (
                cos(at),
                if flags & FLAG_INVERSE == 0 {
                    sin(at)
                } else {
                    -sin(at)
                },
            );
            (y[i], y[j]) = (y[i] * c - y[j] * s, y[i] * s + y[j] * c);
        }
    }
    vec![(0, y)]
}

fn adamw(g: &Given<'_>) -> Results {
    let q = |at: usize| g.real(at);
    let d = |at: usize| real(&g.launch.dynamic, at);
    let (b1, b2) = (
        q(offset_of!(AdamwParams, beta1)),
        q(offset_of!(AdamwParams, beta2)),
    );
    let (eps, wd) = (
        q(offset_of!(AdamwParams, eps)),
        q(offset_of!(AdamwParams, weight_decay)),
    );
    let (lr, scale) = (
        d(offset_of!(AdamwDyn, lr)),
        d(offset_of!(AdamwDyn, grad_scale)),
    );
    let step = u64::from_le_bytes(field(&g.launch.dynamic, offset_of!(AdamwDyn, step))) as f64;
    let coef = g.values(0).first().copied().unwrap_or(1.0);
    if g.tensor(1).is_some_and(|t| t.bits[0] != 0) {
        return vec![];
    }
    let master = g.word(offset_of!(AdamwParams, flags)) & FLAG_MASTER != 0;
    let l2 = g.word(offset_of!(AdamwParams, mode)) == 1;
    let mut out = vec![];
    for at in (2..g.trial.args.len()).step_by(if master { 5 } else { 4 }) {
        let mut p = g.values(if master { at + 4 } else { at });
        let (mut m, mut v) = (g.values(at + 2), g.values(at + 3));
        for (i, grad) in g.values(at + 1).into_iter().enumerate() {
            let mut grad = grad * scale * coef;
            match l2 {
                true => grad += wd * p[i],
                false => p[i] -= lr * wd * p[i],
            }
            m[i] = b1 * m[i] + (1.0 - b1) * grad;
            v[i] = b2 * v[i] + (1.0 - b2) * grad * grad;
            let (bc1, bc2) = (1.0 - b1.powf(step), 1.0 - b2.powf(step));
            p[i] -= lr / bc1 * m[i] / (v[i].sqrt() / bc2.sqrt() + eps);
        }
        if master {
            out.push((at + 4, p.clone()));
        }
        out.extend([(at, p), (at + 2, m), (at + 3, v)]);
    }
    out
}

/// o and lse of a whole score matrix.
fn attention(g: &Given<'_>) -> Results {
    let shape = |i: usize| g.tensor(i).map(|x| x.shape.clone()).unwrap_or_default();
    let (qs, ks) = (shape(2), shape(3));
    let ([b, tq, h, d], [_, tk, hk, _]) =
        ([qs[0], qs[1], qs[2], qs[3]], [ks[0], ks[1], ks[2], ks[3]]);
    let (q, k, v) = (g.at(2), g.at(3), g.at(4));
    let scale = match g.real(offset_of!(AttentionParams, scale)) {
        0.0 => 1.0 / (d as f64).sqrt(),
        s => s,
    };
    let causal = g.word(offset_of!(AttentionParams, flags)) & FLAG_CAUSAL != 0;
    let window = i64::from_le_bytes(field(&g.trial.params, offset_of!(AttentionParams, window)));
    let sees = |i: usize, j: usize| {
        let last = i as i64 + tk as i64 - tq as i64;
        (!causal || j as i64 <= last) && (window == 0 || j as i64 > last - window)
    };
    let mut o = vec![0.0; b * tq * h * d];
    let mut lse = vec![f64::NEG_INFINITY; b * h * tq];
    for (bi, hi, i) in (0..b * h * tq).map(|n| (n / (h * tq), n / tq % h, n % tq)) {
        let of_q = |c: usize| q(((bi * tq + i) * h + hi) * d + c);
        let kv = |j: usize, c: usize| ((bi * tk + j) * hk + hi / (h / hk)) * d + c;
        let keys: Vec<usize> = (0..tk).filter(|j| sees(i, *j)).collect();
        let s: Vec<f64> = keys
            .iter()
            .map(|j| scale * (0..d).map(|c| of_q(c) * k(kv(*j, c))).sum::<f64>())
            .collect();
        if s.is_empty() {
            continue;
        }
        let m = largest(&s);
        lse[(bi * h + hi) * tq + i] = m + s.iter().map(|s| (s - m).exp()).sum::<f64>().ln();
        let p = softmax(&s);
        for c in 0..d {
            o[((bi * tq + i) * h + hi) * d + c] =
                keys.iter().zip(&p).map(|(j, p)| p * v(kv(*j, c))).sum();
        }
    }
    vec![(0, o), (1, lse)]
}

/// By the formula of its row; `None` of an op whose row has none that can be written down apart from the kit's reference.
fn formula(op: u32, g: &Given<'_>) -> Option<Results> {
    Some(match op {
        op::ACTIVATION_FWD => activations(g, false),
        op::ACTIVATION_BWD => activations(g, true),
        op::SWIGLU_FWD => swiglu(g, false),
        op::SWIGLU_BWD => swiglu(g, true),
        op::LAYER_NORM_FWD => norm(g, true),
        op::RMS_NORM_FWD => norm(g, false),
        op::LAYER_NORM_BWD => norm_back(g, true),
        op::RMS_NORM_BWD => norm_back(g, false),
        op::SOFTMAX_FWD => softmaxes(g, false),
        op::SOFTMAX_BWD => softmaxes(g, true),
        op::CROSS_ENTROPY_FWD => cross_entropy(g, false),
        op::CROSS_ENTROPY_BWD => cross_entropy(g, true),
        op::ROPE => rope(g),
        op::ADAMW => adamw(g),
        op::ATTENTION_FWD => attention(g),
        _ => return None,
    })
}

/// Fused ops without a formula above: gradients "of" a forward, which differences hold (`gradients`), forwards that are attention's over other
/// keys, a program, whose instructions are its formula, and a random word, which has bits.
const OTHERS: [u32; 7] = [
    op::ATTENTION_BWD,
    op::ATTENTION_VARLEN_FWD,
    op::ATTENTION_VARLEN_BWD,
    op::ATTENTION_EXT_FWD,
    op::ATTENTION_EXT_BWD,
    op::ELEMENTWISE_PROGRAM,
    op::DROPOUT,
];

#[test]
fn formulas_of_the_header_pass_in_f64() {
    let (mut missing, mut wrong) = (BTreeSet::new(), vec![]);
    for cell in cells() {
        let row = rig::row(cell.op);
        if row.error != class::FUSED || OTHERS.contains(&cell.op) {
            continue;
        }
        for trial in cell.trials(&mut Gen::new(Rng::new(5), Effort::Default)) {
            // Each launch is from the same operands.
            for launch in &trial.launches {
                let g = Given {
                    trial: &trial,
                    launch,
                };
                let Some(results) = formula(cell.op, &g) else {
                    missing.insert(row.name);
                    continue;
                };
                for (i, w) in &launch.want {
                    let Some(x) = g.tensor(*i) else { continue };
                    let Some((_, v)) = results.iter().find(|r| r.0 == *i) else {
                        continue;
                    };
                    let t: DType = x.dtype;
                    let got: Vec<u64> = v.iter().map(|v| num::encode(t, *v)).collect();
                    assert_eq!(got.len(), x.bits.len(), "{}: {}", cell.id, trial.what);
                    if let Err(e) = check(w, x, &got, class::FUSED) {
                        wrong.push(format!("{}: {}: operand {i} {e}", cell.id, trial.what));
                    }
                }
            }
        }
    }
    assert_eq!(
        missing.into_iter().collect::<Vec<_>>(),
        [""; 0],
        "ops without a formula"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The form that the header had before, in which 1 + tanh cancels: the kit is right to refuse it, and the header is not to state it.
#[test]
fn the_form_of_gelu_that_cancels_is_refused() {
    let x = -8.0f64;
    let k = (2.0 / std::f64::consts::PI).sqrt();
    let cancelled = x / 2.0 * (1.0 + (k * (x + 0.044715 * x * x * x)).tanh());
    let want = super::trial::Want::Fused(vec![
        super::activation::act(activation::GELU_TANH, super::bound::num(x)).0,
    ]);
    let t = T::new(DType::F32, &[1], &[x]);
    let bits = |v: f64| [num::encode(DType::F32, v)];
    assert!(check(&want, &t, &bits(cancelled), class::FUSED).is_err());
    assert!(
        check(
            &want,
            &t,
            &bits(act(activation::GELU_TANH, x).0),
            class::FUSED
        )
        .is_ok()
    );
}
