//! `activation_*`, `swiglu_*`, `rope`.

use super::bound::{Num, num as exact};
use super::cell::{About, Cell, FLOATS, Gen, kind};
use super::num;
use super::sizes;
use super::tensor::{T, count};
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, FLAG_INTERLEAVED, FLAG_INVERSE, NoParams, RopeParams, activation};

const F: DType = DType::F32;
const KINDS: [(u32, &str); 4] = [
    (activation::GELU_TANH, "gelu_tanh"),
    (activation::GELU_ERF, "gelu_erf"),
    (activation::SILU, "silu"),
    (activation::RELU, "relu"),
];

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for (k, name) in KINDS {
            let what = format!("{name}.{}", t.name());
            all.push(Cell::new(op::ACTIVATION_FWD, &what, move |g| {
                forward(g, k, t)
            }));
            all.push(Cell::new(op::ACTIVATION_BWD, &what, move |g| {
                backward(g, k, t)
            }));
        }
        all.push(Cell::new(op::SWIGLU_FWD, t.name(), move |g| swiglu(g, t)));
        all.push(Cell::new(op::SWIGLU_BWD, t.name(), move |g| {
            swiglu_bwd(g, t)
        }));
        for (f, name) in [(0, "halves"), (FLAG_INTERLEAVED, "interleaved")] {
            let what = format!("{name}.{}", t.name());
            all.push(Cell::new(op::ROPE, what, move |g| rope(g, t, f)));
        }
    }
    all
}

/// `act(x)` and `act'(x)`, as the core's decomposition has them: the tanh form of GELU is `x sigmoid(2 u)`, which keeps its digits where
/// `1 + tanh u` would cancel.
pub fn act(kind: u32, x: Num) -> (Num, Num) {
    let k = |v: f64| exact(f64::from(v as f32)).rounded_from(v);
    let one = exact(1.0);
    match kind {
        activation::GELU_TANH => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let x2 = x * x;
            let s = (x * (x2 * k(0.044_715) + one) * k(2.0 * root)).sigmoid();
            let du = (x2 * k(3.0 * 0.044_715) + one) * k(2.0 * root);
            (x * s, s + x * s * (one - s) * du)
        }
        activation::GELU_ERF => {
            let cdf = ((x * k(std::f64::consts::FRAC_1_SQRT_2)).erf() + one) * exact(0.5);
            let pdf = (x * x * exact(-0.5)).exp() * k(1.0 / (2.0 * std::f64::consts::PI).sqrt());
            (x * cdf, cdf + x * pdf)
        }
        activation::SILU => {
            let s = x.sigmoid();
            (x * s, s * (x * (one - s) + one))
        }
        _ => {
            let on = exact(f64::from(u8::from(x.v > 0.0)));
            (if x.v.is_nan() { x } else { x.max(exact(0.0)) }, on)
        }
    }
}

/// Arguments near zero, in the bend and far out on both sides.
fn arguments(g: &mut Gen, t: DType, s: &[usize]) -> T {
    let v: Vec<f64> = (0..count(s))
        .map(|i| match i % 8 {
            0 => g.unit() * 0.01,
            1 => g.unit() * 8.0,
            2 if i % 16 == 2 => [30.0, 95.0, 400.0][i / 16 % 3],
            2 => [-30.0, -95.0, -400.0][i / 16 % 3],
            3 => 0.0,
            _ => g.unit() * 3.0,
        })
        .collect();
    T::new(t, s, &v)
}

fn forward(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let run = |what: &str, x: T| {
        let want = Want::Fused(x.values().into_iter().map(|v| act(k, exact(v)).0).collect());
        Trial::new(
            what,
            kind(k).as_bytes(),
            vec![T::poison(t, &x.shape).into(), x.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    if g.sizes() {
        let inputs = sizes::inputs(g, |g, s| arguments(g, t, s));
        return inputs.into_iter().map(|(w, x)| run(&w, x)).collect();
    }
    for n in [0, 1, 7, 33, 257, 1000] {
        all.push(run(&format!("[{n}]"), arguments(g, t, &[n])));
    }
    all.push(run("[9,33] padded", arguments(g, t, &[9, 33]).padded(7)));
    let mut x = arguments(g, t, &[20]);
    x.bits[11] = num::encode(t, f64::NAN);
    all.push(run("NaN stays NaN", x));
    all.push(run("far out", far_out(t)));
    all
}

/// Where a formula overflows, or takes an infinity times 0.
fn far_out(t: DType) -> T {
    let v = [
        -1000.0, -200.0, -100.0, -88.5, -20.0, -12.5, 12.5, 20.0, 88.5, 100.0, 200.0, 1000.0,
    ];
    T::new(t, &[v.len()], &v)
}

fn backward(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let run = |g: &mut Gen, what: &str, x: T, alias: bool| {
        let dy = g.real(t, &x.shape.clone(), 2.0);
        let v = x.values().into_iter().zip(dy.values());
        let want = Want::Fused(v.map(|(x, d)| exact(d) * act(k, exact(x)).1).collect());
        let (out, dy): (Arg, Arg) = match alias {
            true => (dy.clone().into(), Arg::Alias(dy, 0)),
            false => (T::poison(t, &x.shape).into(), dy.into()),
        };
        Trial::new(
            what,
            kind(k).as_bytes(),
            vec![out, dy, x.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    if g.sizes() {
        for (w, x) in sizes::inputs(g, |g, s| arguments(g, t, s)) {
            all.push(run(g, &w, x, false));
        }
        return all;
    }
    for n in [0, 1, 7, 33, 257, 1000] {
        let x = arguments(g, t, &[n]);
        all.push(run(g, &format!("[{n}]"), x, false));
    }
    let x = arguments(g, t, &[9, 33]).padded(7);
    all.push(run(g, "[9,33] x padded", x, false));
    let x = arguments(g, t, &[100]);
    all.push(run(g, "in place of dy", x, true));
    all.push(run(g, "far out", far_out(t), false));
    all
}

/// A half of rows of a matrix of twice the width.
fn half(x: T) -> T {
    let d = *x.shape.last().unwrap_or(&0);
    x.padded(d)
}

/// Rows, width, and whether gate and up are halves of one matrix.
fn matrices(g: &mut Gen) -> Vec<(usize, usize, bool)> {
    if g.about == About::Pairs {
        let rows = g.covering([4, 2]).into_iter();
        let each = rows.map(|[n, halves]| {
            let (n, d) = [(7, 33), (5, 257), (64, 64), (1, 9)][n];
            (n, d, halves == 1)
        });
        return each.collect();
    }
    if !g.sizes() {
        return vec![
            (0, 3, false),
            (1, 1, false),
            (7, 33, false),
            (5, 257, true),
            (9, 8, true),
            (2, 1000, true),
        ];
    }
    if g.residues() {
        let all = g.ending(2048).into_iter().enumerate();
        return all.map(|(i, [n, d])| (n, d, i % 2 == 1)).collect();
    }
    let mut all = Vec::new();
    for n in g.beyond() {
        all.extend([(3, n, true), (n, 3, true), (1, n, false)]);
    }
    all.extend(
        g.grid()
            .into_iter()
            .flat_map(|n| [(n, 2, true), (2, n, true)]),
    );
    all
}

fn swiglu(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let mut all = Vec::new();
    for (n, d, halves) in matrices(g) {
        let s = [n, d];
        let (a, b) = (arguments(g, t, &s), g.real(t, &s, 2.0));
        let v = a.values().into_iter().zip(b.values());
        let want = Want::Fused(
            v.map(|(a, b)| act(activation::SILU, exact(a)).0 * exact(b))
                .collect(),
        );
        let (a, b) = if halves { (half(a), half(b)) } else { (a, b) };
        let what = format!(
            "[{n},{d}]{}",
            if halves { " halves of one matrix" } else { "" }
        );
        let args = vec![T::poison(t, &s).into(), a.into(), b.into()];
        all.push(Trial::new(what, none.as_bytes(), args, vec![(0, want)]));
    }
    all
}

fn swiglu_bwd(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let mut all = Vec::new();
    for (n, d, halves) in matrices(g) {
        let s = [n, d];
        let (a, b, dy) = (arguments(g, t, &s), g.real(t, &s, 2.0), g.real(t, &s, 2.0));
        let rows = || a.values().into_iter().zip(b.values()).zip(dy.values());
        let dgate =
            rows().map(|((a, b), d)| exact(d) * exact(b) * act(activation::SILU, exact(a)).1);
        let dup = rows().map(|((a, _), d)| exact(d) * act(activation::SILU, exact(a)).0);
        let want = vec![
            (0, Want::Fused(dgate.collect())),
            (1, Want::Fused(dup.collect())),
        ];
        let place = |x: T| if halves { half(x) } else { x };
        let p = || place(T::poison(t, &s));
        let args = vec![
            p().into(),
            p().into(),
            dy.clone().into(),
            place(a.clone()).into(),
            place(b.clone()).into(),
        ];
        let what = format!(
            "[{n},{d}]{}",
            if halves { " halves of one matrix" } else { "" }
        );
        all.push(Trial::new(what, none.as_bytes(), args, want));
    }
    all
}

/// Rotates a head of `x` by the angles of its position, in place.
pub fn rotate(x: &mut [Num], cos: &[f64], sin: &[f64], flags: u32) {
    let half = cos.len();
    for i in 0..half {
        let (p, q) = if flags & FLAG_INTERLEAVED != 0 {
            (2 * i, 2 * i + 1)
        } else {
            (i, i + half)
        };
        let s = if flags & FLAG_INVERSE != 0 {
            -sin[i]
        } else {
            sin[i]
        };
        let (c, s) = (exact(cos[i]), exact(s));
        let (a, b) = (x[p], x[q]);
        (x[p], x[q]) = (a * c - b * s, b * c + a * s);
    }
}

/// Batch, positions, heads, their size, how much of it rotates, and the layout.
fn heads(g: &mut Gen) -> Vec<(usize, usize, usize, usize, usize, &'static str)> {
    if g.about == About::Pairs {
        let rows = g.covering([3, 4, 4]).into_iter();
        let ways = ["", " in place", " heads outside", " slices of one tensor"];
        let each = rows.map(|[n, d, way]| {
            let ((b, n, h), (d, r)) = (
                [(2, 9, 3), (1, 33, 2), (3, 1, 4)][n],
                [(8, 8), (16, 8), (32, 32), (12, 2)][d],
            );
            (b, n, h, d, r, ways[way])
        });
        return each.collect();
    }
    if !g.sizes() {
        return vec![
            (1, 1, 1, 2, 2, ""),
            (2, 7, 3, 8, 8, ""),
            (1, 33, 2, 32, 32, ""),
            (2, 5, 2, 12, 8, ", first 8 rotated"),
            (1, 9, 4, 16, 16, " in place"),
            (2, 9, 3, 16, 16, " heads outside"),
            (2, 9, 3, 16, 8, " slices of one tensor"),
            (0, 3, 2, 4, 4, ""),
        ];
    }
    let slices = " slices of one tensor";
    let mut all = Vec::new();
    if g.residues() {
        let ways = ["", " heads outside", slices, " in place"];
        for (i, [b, n, h, d]) in g.ending(4096).into_iter().enumerate() {
            // Of even heads all rotates, of odd ones all but the last element; and tables of each width.
            let d = d.max(2);
            all.push((b, n, h, d, d / 2 * 2, ways[i % 4]));
        }
        all.extend(g.beyond().into_iter().map(|r| (1, 2, 3, 2 * r, 2 * r, "")));
        return all;
    }
    for d in [64, 80, 96, 128, 192, 256] {
        all.push((1, 5, 2, d, d, ""));
    }
    all.push((1, 5, 2, 128, 66, slices));
    for n in g.beyond() {
        let even = n / 2 * 2 + 2;
        all.extend([
            (1, n, 2, 4, 4, slices),
            (n, 2, 2, 4, 2, ""),
            (1, 2, n, 4, 4, " heads outside"),
            (1, 3, 2, even, even, ""),
        ]);
    }
    for n in g.grid() {
        all.extend([
            (1, n, 1, 2, 2, ""),
            (n, 1, 1, 2, 2, ""),
            (1, 1, n, 2, 2, ""),
        ]);
    }
    all
}

fn rope(g: &mut Gen, t: DType, layout: u32) -> Vec<Trial> {
    let mut all = Vec::new();
    for inverse in [0, FLAG_INVERSE] {
        let p = RopeParams {
            flags: layout | inverse,
            ..Default::default()
        };
        for (b, n, h, d, r, how) in heads(g) {
            let s = [b, n, h, d];
            let x = g.real(t, &s, 2.0);
            // No angle is zero, at no position and no frequency: a table read as zero must be seen.
            let base: Vec<f64> = (0..r / 2).map(|i| 0.7f64.powi((i % 20) as i32)).collect();
            let a: Vec<f64> = (0..n * r / 2)
                .map(|i| ((i / (r / 2)) as f64 + 0.3) * base[i % (r / 2)])
                .collect();
            let of = |f: fn(f64) -> f64| {
                T::new(F, &[n, r / 2], &a.iter().map(|a| f(*a)).collect::<Vec<_>>())
            };
            let (cos, sin) = (of(f64::cos), of(f64::sin));
            let (cv, sv) = (cos.values(), sin.values());
            let mut w: Vec<Num> = x.values().into_iter().map(exact).collect();
            for (head, y) in w.chunks_mut(d).enumerate() {
                let at = head / h % n * (r / 2);
                rotate(y, &cv[at..at + r / 2], &sv[at..at + r / 2], p.flags);
            }
            let place = |x: T| match how {
                " heads outside" => x.lying(&[0, 2, 1, 3]),
                " slices of one tensor" => {
                    let row = (3 * h * d) as i64;
                    x.at(&[n as i64 * row, row, d as i64, 1])
                }
                _ => x,
            };
            let (out, x): (Arg, Arg) = match how {
                " in place" => (x.clone().into(), Arg::Alias(x, 0)),
                _ => (place(T::poison(t, &s)).into(), place(x).into()),
            };
            let name = if inverse == 0 { "" } else { "back, " };
            let args = vec![out, x, cos.into(), sin.into()];
            all.push(Trial::new(
                format!("{name}{s:?}{how}"),
                p.as_bytes(),
                args,
                vec![(0, Want::Fused(w))],
            ));
        }
    }
    all
}
