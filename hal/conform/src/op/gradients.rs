//! The references' own test: every backward is the derivative of its forward, by central differences in f64, and forwards agree with plain
//! formulas. A reference that is wrong would make a right plugin fail.

use super::activation::{act, rotate};
use super::attention_reference::{self as attention, Inputs, Shape};
use super::bound::{Num, num as exact};
use super::norm::{row_backward, row_forward, statistics};
use super::optim::update;
use super::softmax::{row_grad, row_loss, row_lse, row_softmax};
use crossweave_abi::DType;
use crossweave_abi::op::{AdamwDyn, AdamwParams, FLAG_INTERLEAVED, FLAG_INVERSE, activation};

/// A repeatable stream of numbers in [-1, 1).
struct Rng(u64);
impl Rng {
    fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }
    fn reals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// d f / d x[i] by central differences.
fn slope(x: &[f64], i: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let h = 1e-5;
    let at = |d: f64| {
        let mut y = x.to_vec();
        y[i] += d;
        f(&y)
    };
    (at(h) - at(-h)) / (2.0 * h)
}

fn near(what: &str, got: f64, want: f64) {
    assert!(
        (got - want).abs() <= 1e-7 * (1.0 + want.abs()),
        "{what}: {got}, by differences {want}"
    );
}

/// sum w · y
fn weighed(y: &[Num], w: &[f64]) -> f64 {
    y.iter().zip(w).map(|(y, w)| y.v * w).sum()
}

#[test]
fn activations() {
    for kind in [
        activation::GELU_TANH,
        activation::GELU_ERF,
        activation::SILU,
        activation::RELU,
    ] {
        for x in [-6.0, -2.5, -0.7, 0.3, 1.1, 4.0] {
            let d = slope(&[x], 0, |x| act(kind, exact(x[0])).0.v);
            near("activation", act(kind, exact(x)).1.v, d);
        }
        assert!(act(kind, exact(f64::NAN)).0.v.is_nan());
    }
    let u = (2.0 / std::f64::consts::PI).sqrt() * (1.0 + 0.044715);
    assert!((act(activation::GELU_TANH, exact(1.0)).0.v - 0.5 * (1.0 + u.tanh())).abs() < 1e-12);
    assert!((act(activation::GELU_ERF, exact(1.0)).0.v - 0.841_344_746_068_543).abs() < 1e-12);
}

#[test]
fn norms() {
    let mut r = Rng(1);
    let d = 7;
    let (x, w, b, dy) = (r.reals(d), r.reals(d), r.reals(d), r.reals(d));
    for centred in [true, false] {
        let (mean, rstd) = statistics(&x, centred, 1e-5);
        let (dx, dw) = row_backward(&dy, &x, &w, centred.then_some(mean.v), rstd.v);
        let f = |x: &[f64], w: &[f64]| weighed(&row_forward(x, w, Some(&b), centred, 1e-5).0, &dy);
        for i in 0..d {
            near("dx", dx[i].v, slope(&x, i, |x| f(x, &w)));
            near("dw", dw[i].v, slope(&w, i, |w| f(&x, w)));
        }
    }
}

#[test]
fn softmax_and_cross_entropy() {
    let mut r = Rng(2);
    let x: Vec<f64> = r.reals(6).iter().map(|v| v * 3.0).collect();
    let dy = r.reals(6);
    let y = row_softmax(&x);
    assert!((y.iter().map(|y| y.v).sum::<f64>() - 1.0).abs() < 1e-12);
    let s: f64 = weighed(&y, &dy);
    let g = row_grad(&x, row_lse(&x).v, 2, 0.7);
    for i in 0..6 {
        let d = slope(&x, i, |x| weighed(&row_softmax(x), &dy));
        near("softmax", y[i].v * (dy[i] - s), d);
        near(
            "cross entropy",
            g[i].v,
            slope(&x, i, |x| 0.7 * row_loss(x, 2).v),
        );
    }
    assert_eq!(row_softmax(&[f64::NEG_INFINITY, 0.0])[0].v, 0.0);
    assert!((row_lse(&[1000.0, 1000.0]).v - 1000.0 - 2f64.ln()).abs() < 1e-12);
}

#[test]
fn attention_with_all_that_comes_on_top() {
    let mut r = Rng(5);
    let base = Shape {
        b: 1,
        tq: 3,
        tk: 4,
        h: 2,
        hkv: 1,
        d: 3,
        causal: true,
        ..Default::default()
    };
    let all = Shape {
        cap: 0.8,
        dropout: 0.4,
        bias: true,
        sinks: true,
        ..base.clone()
    };
    let with = |put: fn(&mut Shape)| {
        let mut s = base.clone();
        put(&mut s);
        s
    };
    let parts = Shape {
        causal: false,
        tq: 5,
        cu: [Some([0, 2, 4].into()), Some([0, 1, 4].into())],
        ..all.clone()
    };
    for s in [
        base.clone(),
        with(|s| s.cap = 0.8),
        with(|s| s.bias = true),
        with(|s| s.sinks = true),
        with(|s| s.dropout = 0.4),
        all,
        parts,
    ] {
        let (nq, nk) = (s.tq * s.h * s.d, s.tk * s.hkv * s.d);
        let n = if s.bias { s.h * (s.tq + s.tk - 1) } else { 0 };
        let x = Inputs {
            q: r.reals(nq),
            k: r.reals(nk),
            v: r.reals(nk),
            bias: r.reals(n),
            sinks: r.reals(if s.sinks { s.h } else { 0 }),
            ..Default::default()
        };
        let dy = r.reals(nq);
        let t = DType::F32;
        let (o, lse) = attention::forward(t, &s, &x);
        let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
        let grads = attention::backward(t, &s, &x, &dy, &of(&o), &of(&lse));
        let f = |x: &Inputs| weighed(&attention::forward(t, &s, x).0, &dy);
        type Put = fn(&mut Inputs, Vec<f64>);
        let parts: [(&str, &[f64], Put); 5] = [
            ("dq", &x.q, |x, v| x.q = v),
            ("dk", &x.k, |x, v| x.k = v),
            ("dv", &x.v, |x, v| x.v = v),
            ("dbias", &x.bias, |x, v| x.bias = v),
            ("dsinks", &x.sinks, |x, v| x.sinks = v),
        ];
        for ((name, at, put), grad) in parts.into_iter().zip(&grads) {
            for i in 0..at.len() {
                let moved = |v: &[f64]| {
                    let mut x = x.clone();
                    put(&mut x, v.to_vec());
                    f(&x)
                };
                near(name, grad[i].v, slope(at, i, moved));
            }
        }
    }
}

#[test]
fn attention_of_every_mask() {
    let mut r = Rng(3);
    for (tq, tk, h, hkv, causal, window, cu) in [
        (3, 3, 2, 1, true, 0, None),
        (2, 4, 2, 2, true, 2, None),
        (4, 2, 1, 1, true, 0, None),
        (3, 4, 4, 2, false, 2, None),
        // Packed: a position of no segment, one alone, an empty segment, and a window within the last.
        (6, 6, 2, 1, true, 2, Some(&[1, 2, 2, 6] as &'static [i32])),
        (4, 4, 2, 2, false, 0, Some(&[0, 2, 4] as &'static [i32])),
    ] {
        let s = Shape {
            b: 1,
            tq,
            tk,
            h,
            hkv,
            d: 3,
            causal,
            window,
            cu: [cu.map(Into::into), None],
            ..Shape::default()
        };
        let (nq, nk) = (tq * h * 3, tk * hkv * 3);
        let x = Inputs {
            q: r.reals(nq),
            k: r.reals(nk),
            v: r.reals(nk),
            ..Inputs::default()
        };
        let dy = r.reals(nq);
        let t = DType::F32;
        let (o, lse) = attention::forward(t, &s, &x);
        let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
        let [dq, dk, dv, ..] = attention::backward(t, &s, &x, &dy, &of(&o), &of(&lse));
        let f = |x: &Inputs| weighed(&attention::forward(t, &s, x).0, &dy);
        for i in 0..nq {
            near(
                "dq",
                dq[i].v,
                slope(&x.q, i, |q| {
                    f(&Inputs {
                        q: q.to_vec(),
                        ..x.clone()
                    })
                }),
            );
        }
        for i in 0..nk {
            near(
                "dk",
                dk[i].v,
                slope(&x.k, i, |k| {
                    f(&Inputs {
                        k: k.to_vec(),
                        ..x.clone()
                    })
                }),
            );
            near(
                "dv",
                dv[i].v,
                slope(&x.v, i, |v| {
                    f(&Inputs {
                        v: v.to_vec(),
                        ..x.clone()
                    })
                }),
            );
        }
        // A query before all keys sees none.
        if tq > tk && causal || cu.is_some_and(|cu| cu[0] > 0) {
            assert_eq!((o[0].v, lse[0].v), (0.0, f64::NEG_INFINITY));
        }
        // A segment's gradients do not change with what lies in the others.
        if let Some([.., first, _]) = cu {
            let mut other = x.clone();
            let end = *first as usize * hkv * 3;
            other.k[..end].iter_mut().for_each(|v| *v += 1.0);
            other.v[..end].iter_mut().for_each(|v| *v -= 1.0);
            let (o2, lse2) = attention::forward(t, &s, &other);
            let again = attention::backward(t, &s, &other, &dy, &of(&o2), &of(&lse2));
            let (from_q, from_k) = (*first as usize * h * 3, end);
            assert_eq!(of(&again[0][from_q..]), of(&dq[from_q..]));
            assert_eq!(of(&again[1][from_k..]), of(&dk[from_k..]));
            assert_eq!(of(&again[2][from_k..]), of(&dv[from_k..]));
        }
    }
}

#[test]
fn rotations_turn_and_turn_back() {
    let mut r = Rng(4);
    for f in [0, FLAG_INTERLEAVED] {
        let x: Vec<Num> = r.reals(6).into_iter().map(exact).collect();
        let (c, s) = ([0.8, 0.6], [0.6, 0.8]);
        let mut y = x.clone();
        rotate(&mut y, &c, &s, f);
        let q = if f == 0 { 2 } else { 1 };
        assert!((y[0].v - (x[0].v * 0.8 - x[q].v * 0.6)).abs() < 1e-12);
        rotate(&mut y, &c, &s, f | FLAG_INVERSE);
        assert!(x.iter().zip(&y).all(|(a, b)| (a.v - b.v).abs() < 1e-12));
        assert_eq!(x[4], y[4]);
    }
}

/// Against the formula of torch's documentation, in f64, over three steps.
#[test]
fn adamw_by_the_book() {
    let q = AdamwParams {
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.1,
        ..Default::default()
    };
    let (mut p, mut m, mut v) = (0.5, 0.0, 0.0);
    let mut ours = [exact(p), exact(m), exact(v)];
    for step in 1..4 {
        let (lr, g) = (0.01, 0.3 / step as f64);
        p -= lr * 0.1 * p;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        let (mh, vh) = (
            m / (1.0 - 0.9f64.powi(step)),
            v / (1.0 - 0.99f64.powi(step)),
        );
        p -= lr * mh / (vh.sqrt() + 1e-8);
        let d = AdamwDyn {
            lr,
            grad_scale: 2.0,
            step: step as u64,
            ..Default::default()
        };
        let [a, b, c] = ours;
        ours = update(&q, &d, 0.5, [exact(a.v), exact(g), exact(b.v), exact(c.v)]);
        for (x, y) in ours.iter().zip([p, m, v]) {
            assert!((x.v - y).abs() < 1e-12, "step {step}: {} and {y}", x.v);
            assert!(x.e < 1e-6);
        }
    }
}
