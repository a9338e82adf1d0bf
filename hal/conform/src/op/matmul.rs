//! `matmul`: every transposition, batch, storage, bias, factor and accumulation. Small whole numbers must come out exactly, so an accumulator
//! of 16 bits shows; reals are held to (k u + u_out) |A||B| componentwise.

use super::cell::{About, Cell, FLOATS, Gen};
use super::num;
use super::tensor::T;
use super::trial::{Arg, Sum, Trial, Want};
use crate::case::Effort;
use crossweave_abi::DType;
use crossweave_abi::op::{self, FLAG_ACCUM, MatmulParams};

/// Every cell of this op.
pub fn cells() -> Vec<Cell> {
    let mut all = Cell::floats(op::MATMUL, "", |t| vec![t; 3], |g, t| product(g, t, t));
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
    let mut row = vec![(0.0f64, 0.0f64); n];
    for z in 0..batch.unwrap_or(1) {
        let off = |t: &T, size: usize| if t.shape.len() == 3 { z * size } else { 0 };
        let (oa, ob) = (off(&a, m * k), off(&b, k * n));
        for i in 0..m {
            // Row by row of B, which is how it lies.
            row.fill((0.0, 0.0));
            for l in 0..k {
                let x = av[oa + i * k + l];
                for (sum, y) in row.iter_mut().zip(&bv[ob + l * n..ob + (l + 1) * n]) {
                    sum.0 += x * y;
                    sum.1 += (x * y).abs();
                }
            }
            for (j, (v, mag)) in row.iter().copied().enumerate() {
                let (mut v, mut mag) = (v * alpha, mag * alpha.abs());
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

/// A line whose last number is not 0.
fn ends(mut x: T) -> T {
    if let Some(last) = x.bits.last_mut() {
        *last = num::encode(x.dtype, 2.0);
    }
    x
}

/// Every dim beyond tiles, in each of the four transpositions; two at a time; batches and grids.
fn large(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    let mut put = |g: &mut Gen, m: usize, n: usize, k: usize, turned: usize| {
        // Sums of whole numbers stay exact in f32, and small enough for f16.
        let most = if k > 5000 { 1 } else { 2 };
        let (mut a, mut b) = (g.whole(t, &[m, k], most), g.whole(t, &[k, n], most));
        if t == DType::F32 {
            // On one side of more bits than TF32 and bf16 have.
            let wide = (8_000_000 / (k as i64 * most)).clamp(1, 4095);
            match turned % 2 {
                0 => a = g.whole(t, &[m, k], wide),
                _ => b = g.whole(t, &[k, n], wide),
            }
        }
        if turned & 1 != 0 {
            a = a.transposed();
        }
        if turned & 2 != 0 {
            b = b.transposed();
        }
        let how = ["", ", A transposed", ", B transposed", ", both transposed"][turned];
        let what = format!("[{m},{k}] x [{k},{n}]{how}");
        // What is done to a product, by the way in which A and B lie.
        let extra = Extra {
            bias: (turned & 2 != 0).then(|| ends(g.whole(t, &[n], 3))),
            alpha: [0.0, 2.0, 0.0, 2.0][turned],
            old: (turned == 1 || turned == 3).then(|| g.whole(to, &[m, n], 9)),
            padded: if turned == 1 { 3 } else { 0 },
        };
        all.push(trial(&what, to, a, b, extra));
    };
    if g.residues() {
        for (i, [m, n, k]) in g.ending(1 << 17).into_iter().enumerate() {
            put(g, m, n, k, i % 4);
        }
        for (i, [z, m, n, k]) in g.ending(1 << 14).into_iter().enumerate() {
            let (a, b) = (g.whole(t, &[z, m, k], 3), g.whole(t, &[z, k, n], 3));
            let (a, b) = match i % 4 {
                0 => (a, b),
                1 => (a.transposed(), b),
                2 => (a, b.transposed()),
                _ => (a.lying(&[1, 0, 2]), b.lying(&[1, 0, 2])),
            };
            let what = format!("{z} of [{m},{k}] x [{k},{n}]");
            all.push(trial(&what, to, a, b, Extra::default()));
        }
        return all;
    }
    for s in g.beyond() {
        for turned in 0..4 {
            put(g, s, 7, 5, turned);
            put(g, 5, s, 7, turned);
            put(g, 7, 5, s, turned);
        }
    }
    let mut pairs = vec![(129, 131), (258, 260)];
    if g.effort != Effort::Quick {
        pairs.push((1025, 1030));
    }
    if g.big() {
        pairs.push((4097, 4099));
    }
    for (p, q) in pairs {
        for turned in 0..4 {
            put(g, p, q, 9, turned);
            put(g, p, 9, q, turned);
            put(g, 9, p, q, turned);
        }
    }
    for (i, s) in [131, 263].into_iter().enumerate() {
        put(g, s, s + 2, s + 1, 2 * i);
    }
    for s in g.grid() {
        put(g, s, 2, 3, 0);
        put(g, 2, s, 3, 2);
        put(g, 3, 2, s, 1);
    }
    for s in [g.beyond(), g.grid()].concat() {
        let (a, b) = (g.whole(t, &[s, 2, 3], 3), g.whole(t, &[s, 3, 2], 3));
        let extra = Extra::default;
        all.push(trial(
            &format!("batch of {s}"),
            to,
            a.clone(),
            b.clone(),
            extra(),
        ));
        let inside = |x: T| x.lying(&[1, 0, 2]);
        let what = format!("batch of {s}, batch inside");
        all.push(trial(&what, to, inside(a), inside(b), extra()));
    }
    all
}

/// Whole tiles everywhere, as in training, and batches of large matrices.
fn whole_tiles(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    for (i, (m, n, k)) in [(128, 256, 64), (192, 130, 67), (256, 64, 128)]
        .into_iter()
        .enumerate()
    {
        let (a, b) = (g.whole(t, &[m, k], 2), g.whole(t, &[k, n], 2));
        let what = format!("[{m},{k}] x [{k},{n}], whole tiles");
        all.push(trial(&what, to, a.clone(), b.clone(), Extra::default()));
        let extra = Extra {
            bias: Some(g.whole(t, &[n], 3)),
            alpha: if i == 0 { 0.0 } else { 2.0 },
            old: Some(g.whole(to, &[m, n], 9)),
            padded: if i == 1 { 3 } else { 0 },
        };
        let what = format!("[{m},{k}] x [{k},{n}], bias, alpha and C");
        all.push(trial(&what, to, a, b, extra));
    }
    for (z, m, n, k) in [
        (2, 128, 64, 64),
        (67, 70, 5, 9),
        (67, 4, 70, 6),
        (3, 5, 66, 131),
        (66, 5, 4, 70),
    ] {
        let (a, b) = (g.whole(t, &[z, m, k], 2), g.whole(t, &[z, k, n], 2));
        let what = format!("{z} of [{m},{k}] x [{k},{n}]");
        all.push(trial(&what, to, a, b, Extra::default()));
    }
    all
}

/// What is added to a product, in every orientation, of batches and of one row.
fn combined(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    for (z, m, n, k) in [(0, 19, 23, 37), (0, 1, 33, 65), (3, 9, 8, 11)] {
        let shape = |x: usize, y: usize| match z {
            0 => vec![x, y],
            z => vec![z, x, y],
        };
        for turned in 0..4 {
            let (mut a, mut b) = (g.whole(t, &shape(m, k), 3), g.whole(t, &shape(k, n), 3));
            if turned & 1 != 0 {
                a = a.transposed();
            }
            if turned & 2 != 0 {
                b = b.transposed();
            }
            let bias = g.whole(t, &[n], 9);
            let old = g.whole(to, &shape(m, n), 9);
            for what in ["bias", "C", "bias, alpha and C"] {
                let extra = Extra {
                    bias: what.starts_with("bias").then(|| bias.clone()),
                    alpha: if what.contains("alpha") { 2.0 } else { 0.0 },
                    old: what.ends_with('C').then(|| old.clone()),
                    padded: 0,
                };
                let how = ["", ", A transposed", ", B transposed", ", both transposed"][turned];
                let what = format!("{what}, {:?} x {:?}{how}", a.shape, b.shape);
                all.push(trial(&what, to, a.clone(), b.clone(), extra));
            }
        }
    }
    for (what, gap) in [("bias with gaps", 3), ("one bias for all columns", 0)] {
        let (a, b, bias) = (
            g.whole(t, &[19, 37], 3),
            g.whole(t, &[37, 23], 3),
            g.whole(t, &[23], 9),
        );
        let bias = if gap > 0 {
            bias.spread(gap)
        } else {
            bias.broadcast(&[0])
        };
        let extra = Extra {
            bias: Some(bias),
            ..Extra::default()
        };
        all.push(trial(what, to, a, b, extra));
    }
    // A factor that 16 bits do not hold.
    let extra = Extra {
        alpha: f64::from(0.3f32),
        ..Extra::default()
    };
    let (a, b) = (g.real(t, &[7, 5], 2.0), g.real(t, &[5, 9], 2.0));
    all.push(trial("alpha 0.3", to, a, b, extra));
    all
}

/// Factors that need all of their bits; numbers at the ends of f16 and sums beyond it, on the way and at the end.
fn models(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    let (m, n, k) = (32, 64, 48);
    for (i, alpha) in [1.0 / 3.0, 0.088_388_35, -0.7, 1e-3, 1.234_567_8]
        .into_iter()
        .enumerate()
    {
        let (a, b) = (g.real(t, &[m, k], 2.0), g.real(t, &[k, n], 2.0));
        let extra = Extra {
            alpha: f64::from(alpha as f32),
            bias: (i % 2 == 1).then(|| g.real(t, &[n], 3.0)),
            old: (i % 3 == 1).then(|| g.real(to, &[m, n], 3.0)),
            padded: 0,
        };
        all.push(trial(&format!("alpha {alpha}"), to, a, b, extra));
    }
    // Below the least normal number of f16, which f32 and bf16 hold as any other.
    let low_of = |trial: Trial| trial.subnormal_of_f16(t);
    let low: Vec<f64> = (0..m * k)
        .map(|i| (i % 1023 + 1) as f64 * 2f64.powi(-24))
        .collect();
    let (a, b) = (T::new(t, &[m, k], &low), g.whole(t, &[k, n], 4));
    all.push(low_of(trial(
        "subnormal numbers of f16 in A",
        to,
        a.clone(),
        b.clone(),
        Extra::default(),
    )));
    let (a, b) = (b.transposed_copy(), a.transposed_copy());
    all.push(low_of(trial(
        "subnormal numbers of f16 in B",
        to,
        a,
        b,
        Extra::default(),
    )));
    for (what, sign) in [("beyond f16 on the way", -1.0), ("beyond f16", 1.0)] {
        let high: Vec<f64> = (0..m * k)
            .map(|i| if i % k < k / 2 { 256.0 } else { sign * 256.0 })
            .collect();
        let (a, b) = (T::new(t, &[m, k], &high), T::full(t, &[k, n], 32.0));
        all.push(trial(what, to, a, b, Extra::default()));
    }
    all
}

/// An operand laid out in one of five ways: dense, transposed, padded, one row or one matrix for all, and the batch inside.
fn lying(x: T, how: usize) -> T {
    match (how, x.shape.len()) {
        (1, _) => x.transposed(),
        (2, _) => x.padded(5),
        (3, _) => x.broadcast(&[0]),
        (4, 3) => x.lying(&[1, 0, 2]),
        (4, _) => x.padded(1),
        _ => x,
    }
}

/// Sizes, layouts, batches and what is done to a product, by design.
fn pairs(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    let sizes = [(19, 23, 37), (64, 64, 32), (1, 33, 65), (33, 1, 16)];
    let rows = g.covering([4, 2, 5, 5, 4, 3, 2, 2, 2]);
    let each = rows.into_iter().map(|row| {
        let [n, batch, a, b, bias, alpha, add, pad, real] = row;
        let (m, n, k) = sizes[n];
        let shape = |x: usize, y: usize| match batch {
            0 => vec![x, y],
            _ => vec![3, x, y],
        };
        let mut numbers = |of: DType, s: &[usize]| match real {
            0 => g.whole(of, s, 3),
            _ => g.real(of, s, 2.0),
        };
        let what = format!(
            "a {a}, b {b}, bias {bias}, alpha {alpha}, C {add}{pad}, {:?}",
            shape(m, k)
        );
        let (a, b) = (
            lying(numbers(t, &shape(m, k)), a),
            lying(numbers(t, &shape(k, n)), b),
        );
        let line = numbers(t, &[n]);
        let extra = Extra {
            bias: match bias {
                0 => None,
                1 => Some(line),
                2 => Some(line.spread(3)),
                _ => Some(line.broadcast(&[0])),
            },
            alpha: [0.0, 2.0, f64::from(-0.7f32)][alpha],
            old: (add == 1).then(|| numbers(to, &shape(m, n))),
            padded: 3 * pad,
        };
        trial(&what, to, a, b, extra)
    });
    each.collect()
}

fn product(g: &mut Gen, to: DType, t: DType) -> Vec<Trial> {
    if g.sizes() {
        let mut all = large(g, to, t);
        if !g.residues() {
            all.extend(whole_tiles(g, to, t));
        }
        return all;
    }
    let none = Extra::default;
    let mut all = Vec::new();
    if g.about == About::Models {
        return models(g, to, t);
    }
    if g.about == About::Pairs {
        return pairs(g, to, t);
    }
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
    all.extend(combined(g, to, t));
    // 257 is no number of bf16, 2049 none of f16: what is added is added before anything is rounded.
    for (big, c) in [(257.0, -256.0), (2049.0, -2048.0)] {
        let mut v = vec![1.0; 4 * 33];
        v.iter_mut().step_by(33).for_each(|v| *v = big - 32.0);
        if v.iter().any(|v| num::through(t, *v) != *v) {
            continue;
        }
        let (a, b) = (T::new(t, &[4, 33], &v), T::full(t, &[33, 5], 1.0));
        let c = T::full(to, &[4, 5], c);
        let extra = with(None, 0.0, Some(c.clone()));
        all.push(trial(
            "a sum that cancels C",
            to,
            a.clone(),
            b.clone(),
            extra,
        ));
        let bias = T::new(t, &[5], &[c.values()[0]; 5]);
        all.push(trial(
            "a sum that cancels the bias",
            to,
            a,
            b,
            with(Some(bias), 0.0, None),
        ));
    }
    // 0 times an infinity is not a number, and nobody leaves zeros out.
    let (a, mut b) = (T::full(t, &[5, 9], 0.0), g.whole(t, &[9, 4], 3));
    b.bits[6] = num::encode(t, f64::INFINITY);
    b.bits[13] = num::encode(t, f64::NAN);
    all.push(trial("zeros times infinity and NaN", to, a, b, none()));
    let (mut a, b) = (g.whole(t, &[5, 9], 3), T::full(t, &[9, 4], 0.0));
    a.bits[6] = num::encode(t, f64::NEG_INFINITY);
    a.bits[20] = num::encode(t, f64::NAN);
    all.push(trial("infinity and NaN times zeros", to, a, b, none()));
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
    if g.big() {
        let (a, b) = (g.whole(t, &[257, 1025], 2), g.whole(t, &[1025, 130], 2));
        all.push(trial("[257,1025] x [1025,130]", to, a, b, none()));
    }
    all
}
