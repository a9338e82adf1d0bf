//! `matmul`: every transposition, batch, storage, bias, factor and accumulation. Small whole numbers must come out exactly, so an accumulator
//! of 16 bits shows; reals are held to (k u + u_out) |A||B| componentwise.

use super::cell::{Cell, FLOATS, Gen};
use super::num;
use super::tensor::T;
use super::trial::{Arg, Sum, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, FLAG_ACCUM, MatmulParams};

/// Every cell of this op.
pub fn cells() -> Vec<Cell> {
    let mut all = Cell::floats(op::MATMUL, "", true, |g, t| product(g, t, t));
    for t in FLOATS {
        if t != DType::F32 {
            let what = format!("f32.of_{}", t.name());
            all.push(Cell::new(op::MATMUL, what, move |g| {
                product(g, DType::F32, t)
            }));
        }
    }
    all
}

/// What else a product does.
#[derive(Clone, Default)]
struct Extra {
    bias: Option<T>,
    alpha: f64,
    /// What `c` holds before, when it is added to.
    old: Option<T>,
    /// Strides of `c`, when not dense.
    padded: usize,
}

fn trial(what: &str, to: DType, a: T, b: T, x: Extra) -> Trial {
    let r = a.shape.len().max(b.shape.len());
    let dims = |t: &T| {
        let s = &t.shape;
        (s[s.len() - 2], s[s.len() - 1])
    };
    let ((m, k), (_, n)) = (dims(&a), dims(&b));
    let batch = [&a, &b]
        .iter()
        .filter(|t| t.shape.len() == 3)
        .map(|t| t.shape[0])
        .max();
    let (av, bv) = (a.values(), b.values());
    let alpha = if x.alpha == 0.0 { 1.0 } else { x.alpha };
    let (bias, old) = (
        x.bias.as_ref().map(T::values),
        x.old.as_ref().map(T::values),
    );
    let extra = [x.bias.is_some(), x.old.is_some(), x.alpha != 0.0]
        .iter()
        .filter(|y| **y)
        .count() as f64;
    let mut s = Vec::new();
    for z in 0..batch.unwrap_or(1) {
        let off = |t: &T, size: usize| if t.shape.len() == 3 { z * size } else { 0 };
        let (oa, ob) = (off(&a, m * k), off(&b, k * n));
        for i in 0..m {
            for j in 0..n {
                let (mut v, mut mag) = (0.0, 0.0);
                for l in 0..k {
                    let p = av[oa + i * k + l] * bv[ob + l * n + j];
                    v += p;
                    mag += p.abs();
                }
                (v, mag) = (v * alpha, mag * alpha.abs());
                for e in [
                    bias.as_ref().map(|x| x[j]),
                    old.as_ref().map(|x| x[(z * m + i) * n + j]),
                ]
                .into_iter()
                .flatten()
                {
                    v += e;
                    mag += e.abs();
                }
                s.push(Sum {
                    v,
                    n: k as f64 + extra,
                    mag,
                });
            }
        }
    }
    let whole = s
        .iter()
        .all(|s| s.v.fract() == 0.0 && s.mag.fract() == 0.0 && s.mag < 16_777_216.0)
        && av.iter().chain(&bv).all(|v| v.fract() == 0.0)
        && alpha.fract() == 0.0;
    let want = if whole {
        Want::Value(s.iter().map(|s| num::encode(to, s.v)).collect())
    } else {
        Want::Matmul(s)
    };
    let mut shape = vec![m, n];
    if r == 3 {
        shape.insert(0, batch.unwrap_or(1));
    }
    let p = MatmulParams {
        flags: if x.old.is_some() { FLAG_ACCUM } else { 0 },
        alpha: x.alpha,
        ..Default::default()
    };
    let mut c = x.old.unwrap_or_else(|| T::poison(to, &shape));
    if x.padded > 0 {
        c = c.padded(x.padded);
    }
    let mut args: Vec<Arg> = vec![c.into(), a.into(), b.into()];
    if x.bias.is_some() {
        args.push(x.bias.into());
    }
    Trial::new(what, p.as_bytes(), args, vec![(0, want)])
}

fn product(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let none = Extra::default;
    let mut all = Vec::new();
    for (m, n, k) in [
        (1, 1, 1),
        (7, 5, 3),
        (33, 31, 17),
        (1, 33, 65),
        (65, 1, 33),
        (70, 66, 130),
        (0, 3, 4),
        (3, 0, 4),
    ] {
        let (a, b) = (g.whole(t, &[m, k], 4), g.whole(t, &[k, n], 4));
        all.push(trial(
            &format!("[{m},{k}] x [{k},{n}], whole numbers"),
            to,
            a,
            b,
            none(),
        ));
    }
    for (m, n, k) in [(8, 9, 257), (33, 17, 31)] {
        let (a, b) = (g.real(t, &[m, k], 2.0), g.real(t, &[k, n], 2.0));
        all.push(trial(&format!("[{m},{k}] x [{k},{n}]"), to, a, b, none()));
    }
    // Nothing summed is nothing.
    let (a, b) = (g.whole(t, &[3, 0], 4), g.whole(t, &[0, 5], 4));
    all.push(trial("[3,0] x [0,5]", to, a, b, none()));
    let (m, n, k) = (19, 23, 37);
    for (name, ta, tb) in [
        ("A", true, false),
        ("B", false, true),
        ("A and B", true, true),
    ] {
        let (mut a, mut b) = (g.whole(t, &[m, k], 4), g.whole(t, &[k, n], 4));
        if ta {
            a = a.transposed();
        }
        if tb {
            b = b.transposed();
        }
        all.push(trial(
            &format!("[{m},{k}] x [{k},{n}], {name} transposed"),
            to,
            a,
            b,
            none(),
        ));
    }
    let (a, b) = (
        g.whole(t, &[m, k], 4).padded(5),
        g.whole(t, &[k, n], 4).padded(3),
    );
    let x = Extra {
        padded: 2,
        ..none()
    };
    all.push(trial("all padded", to, a, b, x));
    let (a, b) = (
        g.whole(t, &[m, k], 4).broadcast(&[0]),
        g.whole(t, &[k, n], 4),
    );
    all.push(trial("one row of A for all", to, a, b, none()));
    let (a, b) = (g.whole(t, &[3, 9, 11], 4), g.whole(t, &[3, 11, 8], 4));
    all.push(trial("batch of 3", to, a.clone(), b.clone(), none()));
    all.push(trial(
        "batch of 3, A transposed",
        to,
        a.clone().transposed(),
        b.clone(),
        none(),
    ));
    all.push(trial(
        "batch of 3, batch inside",
        to,
        a.clone().lying(&[1, 0, 2]),
        b.clone().lying(&[1, 0, 2]),
        none(),
    ));
    all.push(trial(
        "batch of 3, one B for all",
        to,
        a,
        b.broadcast(&[0]),
        none(),
    ));
    let (a, b) = (g.whole(t, &[m, k], 3), g.whole(t, &[k, n], 3));
    let bias = g.whole(t, &[n], 9);
    let old = || {
        T::new(
            to,
            &[m, n],
            &(0..m * n)
                .map(|i| (i % 17) as f64 - 8.0)
                .collect::<Vec<_>>(),
        )
    };
    let with = |bias: Option<T>, alpha: f64, old: Option<T>| Extra {
        bias,
        alpha,
        old,
        padded: 0,
    };
    all.push(trial(
        "bias",
        to,
        a.clone(),
        b.clone(),
        with(Some(bias.clone()), 0.0, None),
    ));
    all.push(trial(
        "alpha 3",
        to,
        a.clone(),
        b.clone(),
        with(None, 3.0, None),
    ));
    all.push(trial(
        "added to C",
        to,
        a.clone(),
        b.clone(),
        with(None, 0.0, Some(old())),
    ));
    all.push(trial(
        "bias, alpha and C",
        to,
        a.clone(),
        b,
        with(Some(bias), 2.0, Some(old())),
    ));
    // What a product of nothing is added to stays.
    let (z, e) = (g.whole(t, &[m, 0], 1), g.whole(t, &[0, n], 1));
    all.push(trial(
        "[19,0] x [0,23] added to C",
        to,
        z,
        e,
        with(None, 0.0, Some(old())),
    ));
    let mut v = g.reals(m * k, 1.0);
    let mut w = g.reals(k * n, 1.0);
    // A huge column against a huge row of B that cancels.
    for i in 0..m {
        v[i * k] = 30_000.0;
        v[i * k + 20] = -30_000.0;
    }
    for j in 0..n {
        w[j] = 1.0;
        w[20 * n + j] = 1.0;
    }
    let (x, y) = (T::new(t, &[m, k], &v), T::new(t, &[k, n], &w));
    all.push(trial("a huge pair that cancels", to, x, y, none()));
    let mut v = g.reals(m * k, 1.0);
    (v[k + 3], v[2 * k + 5], v[5 * k]) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
    let b = T::new(
        t,
        &[k, n],
        &(0..k * n).map(|i| 0.5 + (i % 7) as f64).collect::<Vec<_>>(),
    );
    all.push(trial(
        "NaN and infinities keep to their rows",
        to,
        T::new(t, &[m, k], &v),
        b,
        none(),
    ));
    if g.big {
        let (a, b) = (g.whole(t, &[257, 1025], 2), g.whole(t, &[1025, 130], 2));
        all.push(trial("[257,1025] x [1025,130]", to, a, b, none()));
    }
    all
}
