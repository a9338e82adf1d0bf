//! Pointwise primitives: `unary`, `binary`, `compare`, `select`, `axpby`, `clamp`, and the fused `add`.

use super::bound::{erf, num as exact};
use super::cell::{About, Cell, FLOATS, Gen, SIZES, kind};
use super::integers;
use super::moves::nans;
use super::num;
use super::sizes;
use super::tensor::{T, count};
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, AxpbyParams, ClampParams, NoParams, binary, compare, unary};

/// Dtypes of `any` that arithmetic may be claimed for.
const INTS: [DType; 6] = [
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
];

const UNARY: [(u32, &str); 12] = [
    (unary::NEG, "neg"),
    (unary::ABS, "abs"),
    (unary::EXP, "exp"),
    (unary::LOG, "log"),
    (unary::SQRT, "sqrt"),
    (unary::RSQRT, "rsqrt"),
    (unary::TANH, "tanh"),
    (unary::ERF, "erf"),
    (unary::SIGMOID, "sigmoid"),
    (unary::SIN, "sin"),
    (unary::COS, "cos"),
    (unary::FLOOR, "floor"),
];
const BINARY: [(u32, &str); 7] = [
    (binary::ADD, "add"),
    (binary::SUB, "sub"),
    (binary::MUL, "mul"),
    (binary::DIV, "div"),
    (binary::MAX, "max"),
    (binary::MIN, "min"),
    (binary::POW, "pow"),
];
const COMPARE: [(u32, &str); 6] = [
    (compare::EQ, "eq"),
    (compare::NE, "ne"),
    (compare::LT, "lt"),
    (compare::LE, "le"),
    (compare::GT, "gt"),
    (compare::GE, "ge"),
];

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for (k, name) in UNARY {
        all.extend(Cell::floats(
            op::UNARY,
            name,
            |t| vec![t; 2],
            move |g, t| unary_trials(g, k, t),
        ));
    }
    for (k, name) in BINARY {
        all.extend(Cell::floats(
            op::BINARY,
            name,
            |t| vec![t; 3],
            move |g, t| binary_trials(g, k, t),
        ));
        for t in INTS {
            let what = format!("{name}.{}", t.name());
            all.push(Cell::new(op::BINARY, what, move |g| {
                integers::trials(g, k, t)
            }));
        }
    }
    for (k, name) in COMPARE {
        all.extend(Cell::floats(
            op::COMPARE,
            name,
            |t| vec![DType::U8, t, t],
            move |g, t| compare_trials(g, k, t),
        ));
        for t in INTS {
            let what = format!("{name}.{}", t.name());
            let cell = Cell::new(op::COMPARE, what, move |g| compare_trials(g, k, t));
            all.push(cell.of(&[DType::U8, t, t]));
        }
    }
    all.extend(Cell::floats(
        op::SELECT,
        "",
        |t| vec![t, DType::U8, t, t],
        select,
    ));
    for t in INTS {
        all.push(Cell::new(op::SELECT, t.name(), move |g| select(g, t)));
    }
    all.extend(Cell::floats(
        op::AXPBY,
        "",
        |t| vec![t; 2],
        |g, t| axpby(g, t, t),
    ));
    for (y, x) in [
        (DType::F32, DType::Bf16),
        (DType::F32, DType::F16),
        (DType::Bf16, DType::F32),
        (DType::F16, DType::F32),
    ] {
        let what = format!("{}.of_{}", y.name(), x.name());
        all.push(Cell::new(op::AXPBY, what, move |g| axpby(g, y, x)));
    }
    all.extend(Cell::floats(op::CLAMP, "", |t| vec![t; 2], clamp));
    for t in FLOATS {
        all.push(Cell::new(op::ADD, t.name(), move |g| add(g, t, [t, t])));
    }
    all.push(Cell::new(op::ADD, "f32.of_bf16", |g| {
        add(g, DType::F32, [DType::F32, DType::Bf16])
    }));
    all
}

/// An element as the f32 that arithmetic is done in.
fn f32s(t: &T) -> Vec<f32> {
    t.values().into_iter().map(|v| v as f32).collect()
}

fn one_in(p: &[u8], what: &str, dst: T, src: T, want: Want) -> Trial {
    Trial::new(what, p, vec![dst.into(), src.into()], vec![(0, want)])
}

/// The layouts an input of a pointwise op is tried in.
fn shapes(g: &mut Gen, mut make: impl FnMut(&mut Gen, &[usize]) -> T) -> Vec<(String, T)> {
    if g.sizes() {
        return sizes::inputs(g, make);
    }
    let mut all: Vec<(String, T)> = SIZES
        .iter()
        .map(|n| (format!("[{n}]"), make(g, &[*n])))
        .collect();
    let s = [9, 33];
    all.push(("[9,33] transposed".into(), make(g, &s).transposed()));
    all.push(("[9,33] padded".into(), make(g, &s).padded(3)));
    all.push(("[9,33] rows broadcast".into(), make(g, &s).broadcast(&[0])));
    all.push((
        "[9,33] columns broadcast".into(),
        make(g, &s).broadcast(&[1]),
    ));
    all.push(("[4,5,6] every second".into(), make(g, &[4, 5, 6]).spread(2)));
    let s = [2, 1, 3, 2, 1, 3, 2, 2];
    let x = make(g, &s).lying(&[7, 0, 6, 1, 5, 2, 4, 3]);
    all.push(("rank 8".into(), x));
    let s = [2, 3, 1, 2, 3, 2, 2];
    all.push((
        "rank 7, two dims broadcast".into(),
        make(g, &s).broadcast(&[1, 4]),
    ));
    if g.big() {
        all.push(("[1000003]".into(), make(g, &[1_000_003])));
    }
    all
}

/// Where a function is asked outside special values.
fn domain(k: u32) -> (f64, f64) {
    match k {
        unary::EXP => (-80.0, 80.0),
        unary::LOG | unary::SQRT | unary::RSQRT => (1e-4, 1e4),
        unary::TANH | unary::ERF => (-4.5, 4.5),
        unary::SIGMOID => (-30.0, 30.0),
        unary::SIN | unary::COS => (-100.0, 100.0),
        _ => (-1e4, 1e4),
    }
}

fn unary_want(k: u32, src: &T) -> Want {
    let x = src.values();
    let t = src.dtype;
    let exactly = |f: fn(f64) -> f64| Want::exact(t, x.iter().map(|v| f(*v)));
    let f: fn(f64) -> f64 = match k {
        unary::NEG => return exactly(|v| -v),
        unary::ABS => return exactly(f64::abs),
        unary::FLOOR => return exactly(f64::floor),
        unary::SQRT => return Want::Rounded(f32s(src).iter().map(|v| v.sqrt() as f64).collect()),
        unary::EXP => f64::exp,
        unary::LOG => f64::ln,
        unary::RSQRT => |v| 1.0 / v.sqrt(),
        unary::TANH => f64::tanh,
        unary::ERF => erf,
        unary::SIGMOID => |v| 1.0 / (1.0 + (-v).exp()),
        unary::SIN => f64::sin,
        _ => f64::cos,
    };
    Want::Ulp(x.iter().map(|v| (f(*v), 4.0)).collect())
}

fn unary_trials(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let p = kind(k);
    let run = |what: &str, src: T| {
        let (want, dst) = (unary_want(k, &src), T::poison(t, &src.shape));
        one_in(p.as_bytes(), what, dst, src, want)
    };
    let (lo, hi) = domain(k);
    let make = |g: &mut Gen, s: &[usize]| {
        let v: Vec<f64> = (0..count(s))
            .map(|i| {
                let u = (g.unit() + 1.0) / 2.0;
                match i % 3 {
                    // Small arguments as well as large ones.
                    0 if lo < 0.0 => g.unit() * 0.1,
                    1 if lo < 0.0 => g.unit() * 2.0,
                    _ => lo + (hi - lo) * u,
                }
            })
            .collect();
        T::new(t, s, &v)
    };
    let mut all: Vec<Trial> = shapes(g, make)
        .into_iter()
        .map(|(w, x)| run(&w, x))
        .collect();
    if g.sizes() {
        return all;
    }
    let inf = f64::INFINITY;
    let mut v = vec![1.0, -1.0, 0.5, -0.5, 2.0, inf, -inf, f64::NAN, 3.0, -3.5];
    // 1 / sqrt(-0) is an infinity of a sign that nobody agrees on.
    v.extend(if k == unary::RSQRT {
        vec![0.0]
    } else {
        vec![0.0, -0.0]
    });
    if matches!(k, unary::EXP | unary::SIGMOID) {
        v.extend([88.0, -87.0, 89.0, 200.0, -200.0, 11.0, -15.0]);
        // Just within what can be held.
        v.extend([88.7, 88.4, 11.05]);
    }
    if matches!(k, unary::FLOOR | unary::NEG | unary::ABS) && t != DType::F16 {
        // Beyond integers of 32 and of 64 bits.
        v.extend([
            2_147_483_904.0,
            -4e9,
            16_777_215.0,
            1e19,
            -3e20,
            8_388_607.5,
            -0.25,
        ]);
    }
    if matches!(k, unary::TANH | unary::ERF | unary::SIGMOID) {
        v.extend([9.0, -9.0, 20.0, -20.0, 1e-3, -1e-3]);
    }
    // Results below the least normal number come in a trial of their own.
    let src = T::new(t, &[v.len()], &v);
    let tiny = |b: u64| {
        let x = num::decode(t, b);
        let y = match unary_want(k, &T::of_bits(t, &[1], vec![b])) {
            Want::Ulp(v) => v[0].0,
            _ => 1.0,
        };
        x != 0.0 && x.abs() < num::MIN_NORMAL || y != 0.0 && y.abs() < num::MIN_NORMAL
    };
    let (small, plain): (Vec<u64>, Vec<u64>) = src.bits.into_iter().partition(|b| tiny(*b));
    all.push(run("special values", T::of_bits(t, &[plain.len()], plain)));
    let mut small = small;
    if matches!(
        k,
        unary::NEG | unary::ABS | unary::SQRT | unary::LOG | unary::EXP
    ) {
        let v: &[f64] = if k == unary::EXP {
            &[-88.0, -95.0, -100.0, -103.0]
        } else {
            &[1e-40, 3e-42, 1.4e-45]
        };
        small.extend(v.iter().map(|v| num::encode(t, *v)));
    }
    if !small.is_empty() {
        all.push(run("subnormal numbers", T::of_bits(t, &[small.len()], small)).subnormal());
    }
    let bits = nans(t);
    all.push(run("NaN of every kind", T::of_bits(t, &[bits.len()], bits)));
    all
}

fn binary_want(k: u32, a: &T, b: &T) -> Want {
    let (x, y) = (f32s(a), f32s(b));
    let pairs = || x.iter().zip(&y);
    let round =
        |f: fn(f32, f32) -> f32| Want::Rounded(pairs().map(|(a, b)| f(*a, *b) as f64).collect());
    let pick = |f: fn(f32, f32) -> bool| {
        let v = pairs().map(|(a, b)| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if f(*a, *b) {
                *a
            } else {
                *b
            }
        });
        Want::Value(v.map(|v| num::encode(a.dtype, v as f64)).collect())
    };
    match k {
        binary::ADD => round(|a, b| a + b),
        binary::SUB => round(|a, b| a - b),
        binary::MUL => round(|a, b| a * b),
        binary::DIV => round(|a, b| a / b),
        binary::MAX => pick(|a, b| a > b),
        binary::MIN => pick(|a, b| a < b),
        // A rounding of y ln x is magnified by its size.
        _ => Want::Ulp(
            pairs()
                .map(|(a, b)| {
                    let (a, b) = (*a as f64, *b as f64);
                    let more = (b * a.abs().ln()).abs();
                    (a.powf(b), 4.0 + if more.is_finite() { more } else { 0.0 })
                })
                .collect(),
        ),
    }
}

fn binary_trials(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let p = kind(k);
    let run = |what: &str, a: T, b: T| {
        let (want, dst) = (binary_want(k, &a, &b), T::poison(t, &a.shape));
        Trial::new(
            what,
            p.as_bytes(),
            vec![dst.into(), a.into(), b.into()],
            vec![(0, want)],
        )
    };
    let value = move |g: &mut Gen, s: &[usize]| {
        if k == binary::POW {
            let v: Vec<f64> = (0..count(s)).map(|_| 1.6 + g.unit() * 1.5).collect();
            return T::new(t, s, &v);
        }
        let mut x = g.real(t, s, 8.0);
        // Some pairs cancel, some swamp each other.
        for (i, b) in x.bits.iter_mut().enumerate() {
            match i % 7 {
                3 => *b = num::encode(t, 1.5),
                5 => *b = num::encode(t, if i % 2 == 0 { 1000.0 } else { 0.01 }),
                _ => {}
            }
        }
        x
    };
    let mut all = Vec::new();
    for (w, b) in shapes(g, value) {
        let a = value(g, &b.shape.clone());
        all.push(run(&format!("{w} right"), a, b));
    }
    if g.sizes() {
        return all;
    }
    let s = [9, 33];
    let (a, b) = (value(g, &s).broadcast(&[1]), value(g, &s).broadcast(&[0]));
    all.push(run("[9,33] a column and a row", a, b));
    let (a, b) = (value(g, &s).broadcast(&[0, 1]), value(g, &s));
    all.push(run("[9,33] one element left", a, b));
    for which in [1, 2] {
        let (a, b) = (value(g, &[100]), value(g, &[100]));
        let want = binary_want(k, &a, &b);
        let own = if which == 1 { a.clone() } else { b.clone() };
        let mut args: Vec<Arg> = vec![own.into(), a.into(), b.into()];
        if let Arg::Own(x) = args[which].clone() {
            args[which] = Arg::Alias(x, 0);
        }
        all.push(Trial::new(
            format!("in place of operand {which}"),
            p.as_bytes(),
            args,
            vec![(0, want)],
        ));
    }
    if k == binary::POW {
        let v = [
            (2.0, 10.0),
            (1.0, 5.0),
            (4.0, 0.5),
            (9.0, -0.5),
            (3.0, 0.0),
            (0.0, 2.0),
            (2.0, -3.0),
            // As C's pow has them.
            (f64::NAN, 0.0),
            (1.0, f64::NAN),
            (f64::NAN, 1.0),
            (2.0, f64::NAN),
            (0.0, 0.0),
            (-0.0, 3.0),
            (-0.0, 2.0),
            (0.0, -1.0),
            (-0.0, -1.0),
            (-0.0, -2.0),
            (-2.0, 3.0),
            (-2.0, 2.0),
            (-2.0, -1.0),
            (-2.0, 0.5),
            (-1.0, 1e6),
            (-1.0, f64::INFINITY),
            (0.5, f64::INFINITY),
            (2.0, f64::INFINITY),
            (2.0, f64::NEG_INFINITY),
            (f64::INFINITY, 2.0),
            (f64::INFINITY, -2.0),
            (f64::NEG_INFINITY, 3.0),
            (f64::NEG_INFINITY, 2.0),
        ];
        let of =
            |f: fn(&(f64, f64)) -> f64| T::new(t, &[v.len()], &v.iter().map(f).collect::<Vec<_>>());
        all.push(run("known powers", of(|v| v.0), of(|v| v.1)));
        return all;
    }
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let top = num::largest(t);
    let v: Vec<(f64, f64)> = vec![
        (nan, 1.0),
        (1.0, nan),
        (nan, nan),
        (inf, 1.0),
        (-inf, 1.0),
        (inf, inf),
        (inf, -inf),
        (1.0, inf),
        (-0.0, -0.0),
        (0.0, -0.0),
        (1.0, -1.0),
        (1.0, 0.0),
        (-1.0, 0.0),
        (top, top),
        (top, -top),
        (1.0, 3.0),
        (-7.0, 3.0),
    ];
    let of =
        |f: fn(&(f64, f64)) -> f64| T::new(t, &[v.len()], &v.iter().map(f).collect::<Vec<_>>());
    all.push(run("special values", of(|v| v.0), of(|v| v.1)));
    let bits = nans(t);
    let (n, one) = (bits.len(), T::full(t, &[bits.len()], 1.0));
    let bad = T::of_bits(t, &[n], bits);
    all.push(run("NaN of every kind left", bad.clone(), one.clone()));
    all.push(run("NaN of every kind right", one, bad));
    let v: Vec<f64> = [1e-40, -3e-42, 1e-38, 1.4e-45, 1e-20, 2e-38, 3e-39].to_vec();
    let w: Vec<f64> = [1e-40, 1e-41, -1.1e-38, 0.25, 1e-20, 3.0, 2.0].to_vec();
    all.push(
        run(
            "subnormal numbers",
            T::new(t, &[v.len()], &v),
            T::new(t, &[w.len()], &w),
        )
        .subnormal(),
    );
    all
}

fn compare_trials(g: &mut Gen, k: u32, t: DType) -> Vec<Trial> {
    let p = kind(k);
    let float = num::is_float(t);
    let run = |what: &str, a: T, b: T| {
        let rel = |o: Option<std::cmp::Ordering>| match (k, o) {
            (compare::NE, o) => o != Some(std::cmp::Ordering::Equal),
            (_, None) => false,
            (compare::EQ, Some(o)) => o.is_eq(),
            (compare::LT, Some(o)) => o.is_lt(),
            (compare::LE, Some(o)) => o.is_le(),
            (compare::GT, Some(o)) => o.is_gt(),
            (_, Some(o)) => o.is_ge(),
        };
        let bits: Vec<u64> = (0..a.bits.len())
            .map(|i| {
                let of = |x: &T| num::decode(t, x.bits[i]);
                let o = if float {
                    of(&a).partial_cmp(&of(&b))
                } else {
                    num::int_of(t, a.bits[i]).partial_cmp(&num::int_of(t, b.bits[i]))
                };
                u64::from(rel(o))
            })
            .collect();
        let dst = T::poison(DType::U8, &a.shape);
        Trial::new(
            what,
            p.as_bytes(),
            vec![dst.into(), a.into(), b.into()],
            vec![(0, Want::Exact(bits))],
        )
    };
    let value = move |g: &mut Gen, s: &[usize]| {
        let lo = if matches!(t, DType::U8 | DType::U32 | DType::U64) {
            0
        } else {
            -3
        };
        let v: Vec<i64> = (0..count(s)).map(|_| g.below(7) as i64 + lo).collect();
        if float {
            T::new(t, s, &v.iter().map(|v| *v as f64).collect::<Vec<_>>())
        } else {
            T::ints(t, s, &v)
        }
    };
    let mut all = Vec::new();
    for (w, b) in shapes(g, value) {
        let a = value(g, &b.shape.clone());
        all.push(run(&format!("{w} right"), a, b));
    }
    if g.sizes() {
        return all;
    }
    if float {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let a = [nan, 1.0, nan, inf, -inf, -0.0, 0.0, inf, 1.0];
        let b = [1.0, nan, nan, inf, inf, 0.0, -0.0, 1.0, 1.0];
        all.push(run(
            "special values",
            T::new(t, &[9], &a),
            T::new(t, &[9], &b),
        ));
    } else {
        // Neighbours that are one number in a float, and the ends of the range.
        let w = 8 * num::size(t) as u32;
        let signed = matches!(t, DType::I8 | DType::I32 | DType::I64);
        let top = if signed {
            (1i128 << (w - 1)) - 1
        } else {
            (1i128 << w) - 1
        };
        let least = if signed { -top - 1 } else { 0 };
        let bits = |v: &[i128]| {
            T::of_bits(
                t,
                &[v.len()],
                v.iter().map(|v| num::int_bits(t, *v)).collect(),
            )
        };
        let (a, b) = (
            [top, top - 1, least, top, least + 1],
            [top - 1, top, top, top, least],
        );
        all.push(run("ends of the range", bits(&a), bits(&b)));
    }
    all
}

fn select(g: &mut Gen, t: DType) -> Vec<Trial> {
    let run = |g: &mut Gen, what: &str, a: T, b: T, shape: fn(T) -> T| {
        let n = a.bits.len();
        // Any value but 0 means yes.
        let c: Vec<u64> = (0..n).map(|_| [0, 1, 0, 255, 2][g.below(5)]).collect();
        let c = shape(T::of_bits(DType::U8, &a.shape, c));
        let bits = (0..n)
            .map(|i| if c.bits[i] != 0 { a.bits[i] } else { b.bits[i] })
            .collect();
        Trial::new(
            what,
            NoParams::default().as_bytes(),
            vec![T::poison(t, &a.shape).into(), c.into(), a.into(), b.into()],
            vec![(0, Want::Exact(bits))],
        )
    };
    let make = |g: &mut Gen, s: &[usize]| {
        let mask = u64::MAX >> (64 - 8 * num::size(t));
        let b = g.bits(count(s)).iter().map(|b| b & mask).collect();
        T::of_bits(t, s, b)
    };
    let mut all = Vec::new();
    if g.sizes() {
        for (what, b) in sizes::inputs(g, make) {
            let a = make(g, &b.shape);
            all.push(run(g, &what, a, b, |c| c));
        }
        return all;
    }
    for n in SIZES {
        let (a, b) = (make(g, &[n]), make(g, &[n]));
        all.push(run(g, &format!("[{n}]"), a, b, |c| c));
    }
    let s = [7, 19];
    let (a, b) = (make(g, &s).transposed(), make(g, &s).broadcast(&[0]));
    all.push(run(
        g,
        "[7,19] transposed, row broadcast, padded condition",
        a,
        b,
        |c| c.padded(5),
    ));
    let (a, b) = (make(g, &s).broadcast(&[0, 1]), make(g, &s));
    all.push(run(
        g,
        "[7,19] one element, condition broadcast",
        a,
        b,
        |c| c.broadcast(&[1]),
    ));
    all
}

fn axpby(g: &mut Gen, ty: DType, tx: DType) -> Vec<Trial> {
    let run = |what: &str, y: T, x: T, alpha: f64, beta: f64| {
        let p = AxpbyParams {
            alpha,
            beta,
            ..Default::default()
        };
        let (a, b) = (exact(alpha as f32 as f64), exact(beta as f32 as f64));
        // Two products and a sum, rounded each; nothing of y where beta is 0.
        let v = x.values().into_iter().zip(y.values()).map(|(x, y)| {
            if beta == 0.0 {
                a * exact(x)
            } else {
                a * exact(x) + b * exact(y)
            }
        });
        let want = Want::Fused(v.collect());
        Trial::new(
            what,
            p.as_bytes(),
            vec![y.into(), x.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    if g.sizes() {
        for (what, x) in sizes::inputs(g, |g, s| g.real(tx, s, 4.0)) {
            let y = g.real(ty, &x.shape, 4.0);
            if x.shape.len() == 1 {
                let none = T::poison(ty, &x.shape);
                let what = format!("{what}, beta 0 does not read y");
                all.push(run(&what, none, x.clone(), 3.0, 0.0));
            }
            all.push(run(&what, y, x, 0.5, 2.0));
        }
        return all;
    }
    if g.about == About::Models {
        for (alpha, beta) in [
            (1.0 / 3.0, 0.1),
            (-0.7, 1.234_567_8),
            (1e-3, 0.999),
            (0.0, 0.987_654_321),
        ] {
            let (y, x) = (g.real(ty, &[65], 4.0), g.real(tx, &[65], 4.0));
            all.push(run(&format!("{alpha}, {beta}"), y, x, alpha, beta));
        }
        return all;
    }
    for n in SIZES {
        let (y, x) = (g.real(ty, &[n], 4.0), g.real(tx, &[n], 4.0));
        all.push(run(&format!("[{n}] 0.5, 2"), y, x, 0.5, 2.0));
    }
    // 257 is no number of bf16: the product is added before anything is rounded.
    let (y, x) = (T::full(ty, &[9], -256.0), T::full(tx, &[9], 1.0));
    all.push(run("a product that cancels", y, x, 257.0, 1.0));
    let bits = nans(tx);
    let (y, x) = (
        T::full(ty, &[bits.len()], 1.0),
        T::of_bits(tx, &[bits.len()], bits),
    );
    all.push(run("x NaN of every kind", y.clone(), x.clone(), 1.0, 1.0));
    // A factor of 0 is a factor: 0 times what is no number is no number.
    all.push(run("alpha 0 times NaN", y, x, 0.0, 1.0));
    let x = g.real(tx, &[100], 4.0);
    all.push(run(
        "beta 0 does not read y",
        T::poison(ty, &[100]),
        x,
        3.0,
        0.0,
    ));
    let (y, x) = (
        g.real(ty, &[9, 33], 4.0),
        g.real(tx, &[9, 33], 4.0).transposed(),
    );
    all.push(run("[9,33] x transposed", y, x, -1.0, 1.0));
    let (y, x) = (
        g.real(ty, &[9, 33], 4.0),
        g.real(tx, &[9, 33], 4.0).broadcast(&[0]),
    );
    all.push(run("[9,33] x a row", y, x, 1.0, -0.25));
    all
}

fn clamp(g: &mut Gen, t: DType) -> Vec<Trial> {
    let run = |what: &str, src: T, lo: f64, hi: f64| {
        let p = ClampParams {
            lo,
            hi,
            ..Default::default()
        };
        let v = src
            .values()
            .into_iter()
            .map(|v| if v.is_nan() { v } else { v.max(lo).min(hi) });
        let want = Want::Value(v.map(|v| num::encode(t, v)).collect());
        one_in(p.as_bytes(), what, T::poison(t, &src.shape), src, want)
    };
    if g.about == About::Models {
        let bounds = [(-0.3, 0.7), (-1.0 / 3.0, 0.1), (0.012_345_678, 1.234_567_8)];
        let each =
            bounds.map(|(lo, hi)| run(&format!("{lo} to {hi}"), g.real(t, &[257], 2.0), lo, hi));
        return each.to_vec();
    }
    let mut all: Vec<Trial> = shapes(g, |g, s| g.real(t, s, 2.0))
        .into_iter()
        .map(|(w, x)| run(&w, x, -0.5, 0.75))
        .collect();
    if g.sizes() {
        return all;
    }
    let inf = f64::INFINITY;
    let v = T::new(t, &[7], &[f64::NAN, inf, -inf, 0.0, -0.5, 0.75, 1.0]);
    all.push(run("NaN stays", v.clone(), -0.5, 0.75));
    all.push(run("open above", v.clone(), 0.0, inf));
    all.push(run("lo above hi gives hi", v.clone(), 0.75, -0.5));
    all.push(run("lo is hi", v, 0.5, 0.5));
    let bits = nans(t);
    all.push(run(
        "NaN of every kind",
        T::of_bits(t, &[bits.len()], bits),
        -1.0,
        1.0,
    ));
    all
}

fn add(g: &mut Gen, ty: DType, of: [DType; 2]) -> Vec<Trial> {
    let none = NoParams::default();
    let want = |a: &T, b: &T| {
        Want::Rounded(
            f32s(a)
                .iter()
                .zip(f32s(b))
                .map(|(a, b)| (a + b) as f64)
                .collect(),
        )
    };
    let mut all = Vec::new();
    let mut shapes = vec![vec![0], vec![1], vec![7], vec![257], vec![4, 33]];
    if g.sizes() {
        let n = [g.beyond(), g.grid()].concat();
        let all = n.iter().flat_map(|n| [vec![*n], vec![3, *n], vec![*n, 3]]);
        shapes = all.collect();
    }
    for s in shapes {
        let (a, b) = (g.real(of[0], &s, 4.0), g.real(of[1], &s, 4.0));
        let w = want(&a, &b);
        let args = vec![T::poison(ty, &s).into(), a.into(), b.into()];
        all.push(Trial::new(
            format!("{s:?}"),
            none.as_bytes(),
            args,
            vec![(0, w)],
        ));
    }
    if g.sizes() {
        return all;
    }
    let (a, b) = (g.real(of[0], &[100], 4.0), g.real(of[1], &[100], 4.0));
    let w = want(&a, &b);
    if ty == of[0] {
        let args = vec![a.clone().into(), Arg::Alias(a.clone(), 0), b.clone().into()];
        all.push(Trial::new(
            "in place of a",
            none.as_bytes(),
            args,
            vec![(0, w.clone())],
        ));
    }
    if ty == of[1] {
        let args = vec![b.clone().into(), a.into(), Arg::Alias(b, 0)];
        all.push(Trial::new(
            "in place of b",
            none.as_bytes(),
            args,
            vec![(0, w)],
        ));
    }
    all
}
