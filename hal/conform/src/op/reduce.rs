//! Sums and counts: `reduce`, `cumsum`, `nonfinite_count`, `multi_sumsq`.
//!
//! Sums come twice: over small whole numbers, where every order gives one exact result (so a narrow accumulator shows at once), and over
//! reals that cancel or swamp each other, held to the bound of the order that the plan states.

use super::bound::Num;
use super::cell::{About, Cell, FLOATS, Gen, LISTS};
use super::num;
use super::tensor::{T, count};
use super::trial::{Sum, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, DimParams, FLAG_ACCUM, NoParams, ReduceParams, reduce};

const KINDS: [(u32, &str); 5] = [
    (reduce::SUM, "sum"),
    (reduce::SUMSQ, "sumsq"),
    (reduce::MAX, "max"),
    (reduce::MIN, "min"),
    (reduce::PROD, "prod"),
];
/// Types that are sorted and added up.
pub const KEYS: [DType; 5] = [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64];

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for (k, name) in KINDS {
        all.extend(Cell::floats(
            op::REDUCE,
            name,
            |t| vec![t; 2],
            move |g, t| reduced(g, k, t, t),
        ));
        for t in [DType::Bf16, DType::F16] {
            let what = format!("{name}.f32.of_{}", t.name());
            all.push(Cell::new(op::REDUCE, what, move |g| {
                reduced(g, k, DType::F32, t)
            }));
        }
    }
    for t in KEYS {
        all.push(Cell::new(op::CUMSUM, t.name(), move |g| cumsum(g, t)).of(&[t, t]));
    }
    all.extend(Cell::floats(
        op::NONFINITE_COUNT,
        "",
        |t| vec![DType::U32, t],
        nonfinite,
    ));
    for t in FLOATS {
        all.push(Cell::new(op::MULTI_SUMSQ, t.name(), move |g| sumsq(g, t)));
    }
    all
}

/// Values of kept element after kept element, with the shape of the result.
fn lines(src: &T, axes: u32) -> (Vec<usize>, Vec<Vec<f64>>) {
    let kept: Vec<usize> = (0..src.shape.len())
        .map(|d| if axes >> d & 1 == 1 { 1 } else { src.shape[d] })
        .collect();
    let mut out = vec![Vec::new(); count(&kept)];
    for (i, v) in src.values().into_iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for d in (0..src.shape.len()).rev() {
            if axes >> d & 1 == 0 {
                at += rest % src.shape[d] * step;
                step *= src.shape[d];
            }
            rest /= src.shape[d];
        }
        out[at].push(v);
    }
    (kept, out)
}

/// The result of one line. `old` is what it is added to.
fn result(k: u32, x: &[f64], old: Option<f64>) -> Sum {
    let old = old.unwrap_or(0.0);
    let n = x.len() as f64 + if old != 0.0 { 1.0 } else { 0.0 };
    let sum = |f: fn(f64) -> f64, extra: f64| Sum {
        v: old + x.iter().map(|v| f(*v)).sum::<f64>(),
        n: n + extra,
        mag: old.abs() + x.iter().map(|v| f(*v).abs()).sum::<f64>(),
    };
    match k {
        reduce::SUM => sum(|v| v, 0.0),
        // Each square is rounded before it is added.
        reduce::SUMSQ => sum(|v| v * v, 1.0),
        _ => {
            let v: f64 = x.iter().product();
            Sum { v, n, mag: v.abs() }
        }
    }
}

/// With another value at the last of every dim: who stops before the end comes to something else.
pub fn ends(mut x: T, last: f64) -> T {
    let bits = match num::is_float(x.dtype) {
        true => num::encode(x.dtype, last),
        false => num::int_bits(x.dtype, last as i128),
    };
    let shape = x.shape.clone();
    for (i, b) in x.bits.iter_mut().enumerate() {
        let mut rest = i;
        for n in shape.iter().rev() {
            if *n > 100 && rest % n == n - 1 {
                *b = bits;
            }
            rest /= n;
        }
    }
    x
}

/// Elements in lines along `dim`, each with the flat index of its first element and the step.
pub fn along(shape: &[usize], dim: usize) -> Vec<Vec<usize>> {
    let step: usize = shape[dim + 1..].iter().product();
    let n = shape[dim];
    let outer: usize = shape[..dim].iter().product();
    (0..outer)
        .flat_map(|o| (0..step).map(move |s| (0..n).map(|i| (o * n + i) * step + s).collect()))
        .collect()
}

/// Ones, and as many twos as halves among them: a product that stays where it can be held, whatever the order.
fn powers(g: &mut Gen, n: usize) -> Vec<f64> {
    let mut v = vec![1.0; n];
    for i in 0..(n / 300).max(2).min(n / 2 * 2) / 2 * 2 {
        let at = g.below(n);
        // One that is no longer 1 goes on to the next: the pairs stay even.
        let free = (0..n).map(|k| (at + k) % n).find(|k| v[*k] == 1.0);
        if let Some(at) = free {
            v[at] = [2.0, 0.5][i % 2];
        }
    }
    if let Some(last) = v.last_mut() {
        *last = -*last;
    }
    v
}

fn extreme(k: u32, x: &[f64]) -> f64 {
    let none = if k == reduce::MAX {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    };
    x.iter()
        .fold(none, |a, b| match (a.is_nan() || b.is_nan(), k) {
            (true, _) => f64::NAN,
            (_, reduce::MAX) => a.max(*b),
            _ => a.min(*b),
        })
}

/// Lines of infinities of two signs, of zeros, and of both.
const TWO_SIGNS: [f64; 12] = {
    let inf = f64::INFINITY;
    [
        inf, -inf, 1.0, 0.0, 5.0, -2.0, inf, 0.0, 2.0, 0.0, 0.0, -1.0,
    ]
};

/// Three lines, rows or columns: a NaN at the end of the first, an infinity in the second.
fn no_numbers(mut x: T) -> T {
    let n = x.bits.len() / 3;
    let [nan, infinity] = [f64::NAN, f64::INFINITY].map(|v| num::encode(x.dtype, v));
    let (at, far) = match x.shape[0] {
        3 => (n - 1, 2 * n - 2),
        _ => (3 * (n - 1), 3 * (n / 2) + 1),
    };
    (x.bits[at], x.bits[far]) = (nan, infinity);
    x
}

/// Lines from whose middle on nothing is a number: a NaN, an infinity, and infinities of two signs.
fn from_there_on(mut x: T) -> T {
    for (at, v) in [
        (25, f64::NAN),
        (47, f64::INFINITY),
        (70, f64::NEG_INFINITY),
        (74, f64::INFINITY),
    ] {
        x.bits[at] = num::encode(x.dtype, v);
    }
    x
}

fn reduced(g: &mut Gen, k: u32, to: DType, t: DType) -> Vec<Trial> {
    let run = |what: &str, src: T, axes: u32, old: Option<T>| {
        let p = ReduceParams {
            kind: k,
            axes,
            flags: if old.is_some() { FLAG_ACCUM } else { 0 },
            ..Default::default()
        };
        let (kept, x) = lines(&src, axes);
        let was = old.as_ref().map(T::values);
        let whole = |v: &[f64]| v.iter().all(|v| v.fract() == 0.0);
        let want = if matches!(k, reduce::MAX | reduce::MIN) {
            Want::Value(x.iter().map(|x| num::encode(to, extreme(k, x))).collect())
        } else {
            let s: Vec<Sum> = x
                .iter()
                .enumerate()
                .map(|(i, x)| result(k, x, was.as_ref().map(|w| w[i])))
                .collect();
            let exact = s.iter().all(|s| s.mag < 16_777_216.0)
                && x.iter().all(|x| whole(x))
                && was.iter().all(|w| whole(w));
            if exact {
                Want::Value(s.iter().map(|s| num::encode(to, s.v)).collect())
            } else if k == reduce::PROD {
                // Every factor rounds once, whatever the order.
                Want::Fused(
                    s.iter()
                        .map(|s| Num {
                            v: s.v,
                            e: s.n * num::U * s.mag,
                        })
                        .collect(),
                )
            } else {
                Want::Sum(s)
            }
        };
        let dst = old.unwrap_or_else(|| T::poison(to, &kept));
        Trial::new(
            what,
            p.as_bytes(),
            vec![dst.into(), src.into()],
            vec![(0, want)],
        )
    };
    let product = k == reduce::PROD;
    let small = |g: &mut Gen, s: &[usize]| {
        if product {
            // Powers of two with few factors that are not 1.
            let v: Vec<f64> = (0..count(s))
                .map(|i| {
                    if i % 37 == 5 {
                        2.0
                    } else if i % 11 == 3 {
                        -1.0
                    } else {
                        1.0
                    }
                })
                .collect();
            T::new(t, s, &v)
        } else {
            g.whole(t, s, 8)
        }
    };
    let real = |g: &mut Gen, s: &[usize]| {
        if product {
            let v: Vec<f64> = (0..count(s)).map(|_| 1.0 + 0.02 * g.unit()).collect();
            T::new(t, s, &v)
        } else {
            g.real(t, s, 3.0)
        }
    };
    let mut all = Vec::new();
    if g.sizes() {
        // So small that neither a sum of squares nor a product leaves the range of f16. What lies last in any dim counts.
        let few = |g: &mut Gen, s: &[usize]| match product {
            true => T::new(t, s, &powers(g, count(s))),
            false => {
                let most = if k == reduce::SUMSQ { 1 } else { 4 };
                let last = if k == reduce::MIN { -5.0 } else { 5.0 };
                ends(g.whole(t, s, most), last)
            }
        };
        let positive = |g: &mut Gen, s: &[usize]| {
            let v: Vec<f64> = (0..count(s)).map(|_| 0.25 + 0.2 * g.unit()).collect();
            T::new(t, s, &v)
        };
        for n in g.beyond() {
            for (s, axes) in [
                (vec![n], 0b1),
                (vec![3, n], 0b10),
                (vec![n, 3], 0b01),
                (vec![n, 3], 0b10),
                (vec![3, n], 0b01),
                (vec![2, n, 3], 0b010),
                (vec![n, 2, 3], 0b010),
                (vec![2, 3, n], 0b011),
            ] {
                let a = few(g, &s);
                all.push(run(&format!("dims {axes:#05b} of {s:?}"), a, axes, None));
            }
            if matches!(k, reduce::SUM | reduce::SUMSQ) {
                // Of one sign: what is added one by one loses more than what is added in pairs.
                let a = positive(g, &[n]);
                all.push(run(&format!("all of [{n}], of one sign"), a, 1, None));
            }
        }
        for n in g.grid() {
            for (s, axes) in [
                (vec![n], 0b1),
                (vec![n, 2], 0b10),
                (vec![2, n], 0b01),
                (vec![n, 2], 0b01),
                (vec![n, 2, 2], 0b010),
            ] {
                let a = few(g, &s);
                all.push(run(&format!("dims {axes:#05b} of {s:?}"), a, axes, None));
            }
            if matches!(k, reduce::SUM | reduce::SUMSQ) && n < 1 << 17 {
                let a = positive(g, &[n]);
                all.push(run(&format!("all of [{n}], of one sign"), a, 1, None));
                let a = positive(g, &[n, 2]);
                all.push(run(&format!("dim 0 of [{n},2], of one sign"), a, 1, None));
            }
        }
        for n in g.beyond() {
            for (s, axes) in [([3, n], 0b10), ([n, 3], 0b01)] {
                let what = format!("dims {axes:#05b} of {s:?}, NaN and infinity");
                all.push(run(&what, no_numbers(few(g, &s)), axes, None));
            }
        }
        if matches!(k, reduce::SUM | reduce::SUMSQ) {
            // Added to what is there.
            for n in g.beyond() {
                for (s, axes, kept) in [([3, n], 0b10, [3, 1]), ([3, n], 0b01, [1, n])] {
                    let (a, old) = (few(g, &s), g.whole(to, &kept, 5));
                    let what = format!("dims {axes:#05b} of {s:?}, added");
                    all.push(run(&what, a, axes, Some(old)));
                }
            }
        }
        return all;
    }
    if g.about == About::Models {
        // Beyond what f16 holds on the way, and at the end; numbers below the least normal one of f16.
        let high = [60_000.0, 60_000.0, -60_000.0, 5_000.0, -4_000.0];
        let top = [60_000.0, 60_000.0, 60_000.0, 60_000.0, 60_000.0];
        let low = [7, 6, 5, 4, 3, 2, 1].repeat(6);
        let low: Vec<f64> = low.iter().map(|i| f64::from(*i) * 2f64.powi(-24)).collect();
        let line = |v: &[f64]| T::new(t, &[1, v.len()], v);
        if k == reduce::SUM {
            all.push(run("beyond f16 on the way", line(&high), 0b10, None));
        }
        if k != reduce::SUMSQ && !product {
            all.push(run("beyond f16", line(&top), 0b10, None));
            let low = run("subnormal numbers of f16", line(&low), 0b10, None);
            all.push(low.subnormal_of_f16(t));
        }
        if k == reduce::SUMSQ {
            all.push(run(
                "squares beyond f16",
                line(&[300.0, 200.0, 1.0]),
                0b10,
                None,
            ));
        }
        if product {
            all.push(run(
                "beyond f16 on the way",
                line(&[1024.0, 512.0, 0.25, 0.125]),
                0b10,
                None,
            ));
        }
        return all;
    }
    for n in [1, 7, 31, 257, 1000] {
        let (a, b) = (small(g, &[n]), real(g, &[n]));
        all.push(run(&format!("all of [{n}], whole numbers"), a, 1, None));
        all.push(run(&format!("all of [{n}]"), b, 1, None));
    }
    let s = [5, 33, 12];
    for axes in [0b100, 0b010, 0b001, 0b101, 0b111, 0b110, 0] {
        let a = small(g, &s);
        all.push(run(
            &format!("dims {axes:#05b} of {s:?}, whole numbers"),
            a,
            axes,
            None,
        ));
    }
    let a = real(g, &s).lying(&[2, 0, 1]);
    all.push(run("dim 1 of [5,33,12] in another order", a, 0b010, None));
    let a = real(g, &s).padded(4);
    all.push(run("dim 2 of [5,33,12] padded", a, 0b100, None));
    let a = small(g, &[2, 1, 3, 2, 1, 3, 2, 2]).lying(&[7, 0, 6, 1, 5, 2, 4, 3]);
    all.push(run("four dims of rank 8", a, 0b1010_1101, None));
    let a = small(g, &[40, 20]).broadcast(&[0]);
    all.push(run("dim 0 of [40,20] broadcast", a, 0b01, None));
    let a = small(g, &[40, 20]).broadcast(&[1]);
    all.push(run("dim 1 of [40,20] broadcast", a, 0b10, None));
    // Nothing gives the value of nothing; no lines give no results.
    let a = small(g, &[3, 0]);
    all.push(run("dim 1 of [3,0]", a, 0b10, None));
    let a = small(g, &[0, 3]);
    all.push(run("dim 1 of [0,3]", a, 0b10, None));
    if matches!(k, reduce::SUM | reduce::SUMSQ) {
        // 257 is no number of bf16: the sum is added before anything is rounded.
        let (a, old) = (T::full(t, &[5, 257], 1.0), T::full(to, &[5, 1], -256.0));
        all.push(run("a sum that cancels what is there", a, 0b10, Some(old)));
        let (a, old) = (small(g, &[9, 40]), g.whole(to, &[9, 1], 50));
        all.push(run("added to what is there", a, 0b10, Some(old)));
        let (a, old) = (real(g, &[40, 9]), g.real(to, &[1, 9], 50.0));
        all.push(run("columns added to what is there", a, 0b01, Some(old)));
    }
    if k == reduce::SUM {
        // One element swamps the rest, and goes again.
        let mut v: Vec<f64> = (0..257).map(|_| 1.0 + g.unit()).collect();
        (v[3], v[200]) = (60_000.0, -60_000.0);
        all.push(run(
            "a huge pair that cancels",
            T::new(t, &[257], &v),
            1,
            None,
        ));
    }
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    if matches!(k, reduce::MAX | reduce::MIN) {
        // No number that a line may begin with stands in for what it holds.
        let far = if k == reduce::MAX { -inf } else { inf };
        let a = T::full(t, &[3, 40], far);
        all.push(run("nothing but infinities", a, 0b10, None));
        let a = T::full(t, &[3, 40], if k == reduce::MAX { -7.0 } else { 7.0 });
        all.push(run("all on one side of 0", a, 0b10, None));
    }
    let v = [
        1.0, inf, 2.0, nan, 1.0, 5.0, -inf, 1.0, 3.0, -7.0, -8.0, -9.0,
    ];
    all.push(run(
        "NaN and infinities",
        T::new(t, &[4, 3], &v),
        0b10,
        None,
    ));
    let x = T::new(t, &[4, 3], &TWO_SIGNS);
    all.push(run("infinities of two signs, and zeros", x, 0b10, None));
    if g.big() {
        let a = g.whole(t, &[(1 << 20) + 1], 2);
        if !product && k != reduce::SUMSQ {
            all.push(run("2^20 + 1 whole numbers", a, 1, None));
        }
    }
    all
}

fn cumsum(g: &mut Gen, t: DType) -> Vec<Trial> {
    let float = num::is_float(t);
    let run = |what: &str, src: T, dim: usize| {
        let p = DimParams {
            dim: dim as u32,
            ..Default::default()
        };
        let want = if float {
            let v = src.values();
            let mut s = vec![
                Sum {
                    v: 0.0,
                    n: 0.0,
                    mag: 0.0
                };
                v.len()
            ];
            for l in along(&src.shape, dim) {
                let mut a = Sum {
                    v: 0.0,
                    n: 0.0,
                    mag: 0.0,
                };
                for i in l {
                    a = Sum {
                        v: a.v + v[i],
                        n: a.n + 1.0,
                        mag: a.mag + v[i].abs(),
                    };
                    s[i] = a;
                }
            }
            if v.iter().all(|v| v.fract() == 0.0) {
                Want::Value(s.iter().map(|s| num::encode(t, s.v)).collect())
            } else {
                Want::Sum(s)
            }
        } else {
            let v = src.integers();
            let mut bits = vec![0; v.len()];
            for l in along(&src.shape, dim) {
                let mut a = 0i128;
                for i in l {
                    a += v[i];
                    bits[i] = num::int_bits(t, a);
                }
            }
            Want::Exact(bits)
        };
        Trial::new(
            what,
            p.as_bytes(),
            vec![T::poison(t, &src.shape).into(), src.into()],
            vec![(0, want)],
        )
    };
    let whole = |g: &mut Gen, s: &[usize]| {
        let v: Vec<i64> = (0..count(s)).map(|_| g.below(9) as i64 - 4).collect();
        if float {
            T::new(t, s, &v.iter().map(|v| *v as f64).collect::<Vec<_>>())
        } else {
            T::ints(t, s, &v)
        }
    };
    let mut all = Vec::new();
    if g.sizes() {
        // In 16 bits a running sum is not a whole number for long.
        for n in g.beyond() {
            all.push(run(&format!("[2,{n}] along 1"), whole(g, &[2, n]), 1));
            all.push(run(&format!("[{n},3] along 0"), whole(g, &[n, 3]), 0));
            all.push(run(&format!("[{n},3] along 1"), whole(g, &[n, 3]), 1));
            all.push(run(&format!("[2,3,{n}] along 1"), whole(g, &[2, 3, n]), 1));
        }
        for n in g.longs() {
            all.push(run(&format!("[{n},2,3] along 1"), whole(g, &[n, 2, 3]), 1));
        }
        for n in g.grid() {
            all.push(run(&format!("[{n}] along 0"), whole(g, &[n]), 0));
            all.push(run(&format!("[{n},2] along 1"), whole(g, &[n, 2]), 1));
            all.push(run(&format!("[2,{n}] along 0"), whole(g, &[2, n]), 0));
        }
        return all;
    }
    for n in [0, 1, 7, 33, 257, 1000] {
        all.push(run(&format!("[2,{n}] along 1"), whole(g, &[2, n]), 1));
    }
    all.push(run("[33,5] along 0", whole(g, &[33, 5]), 0));
    all.push(run("[4,9,6] along 1", whole(g, &[4, 9, 6]), 1));
    all.push(run("[9,20] transposed", whole(g, &[9, 20]).transposed(), 1));
    if float {
        let v = g.real(t, &[3, 300], 3.0);
        all.push(run("[3,300] reals", v, 1));
        let v = from_there_on(g.real(t, &[4, 20], 3.0));
        all.push(run("NaN and infinities", v, 1));
    } else {
        let top = if t == DType::I32 {
            i32::MAX as i64
        } else {
            i64::MAX
        };
        all.push(run(
            "sums that wrap",
            T::ints(t, &[4], &[top, 1, top, 5]),
            0,
        ));
    }
    all
}

/// A tensor of three dims as it may lie: rows apart, elements apart, another dim innermost, one part for all.
fn loose(x: T) -> [T; 4] {
    [
        x.clone().padded(3),
        x.clone().spread(3),
        x.clone().lying(&[2, 0, 1]),
        x.broadcast(&[0]),
    ]
}

fn nonfinite(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let run = |what: &str, start: u32, x: Vec<T>| {
        let n = x
            .iter()
            .flat_map(T::values)
            .filter(|v| !v.is_finite())
            .count() as u64;
        let dst = T::of_bits(DType::U32, &[1], vec![start as u64]);
        let mut args = vec![dst.into()];
        args.extend(x.into_iter().map(Into::into));
        let want = Want::Exact(vec![start as u64 + n]);
        Trial::new(what, none.as_bytes(), args, vec![(0, want)])
    };
    let with = |g: &mut Gen, s: &[usize], bad: &[(usize, f64)]| {
        let mut x = g.real(t, s, 4.0);
        bad.iter()
            .for_each(|(i, v)| x.bits[*i] = num::encode(t, *v));
        x
    };
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let top = num::largest(t);
    let mut all = vec![];
    if g.sizes() {
        for n in [g.beyond(), g.grid()].concat() {
            let x = with(
                g,
                &[n],
                &[(n - 1, inf), (n / 2, nan), (n.saturating_sub(2), -inf)],
            );
            all.push(run(&format!("[{n}]"), 5, vec![x]));
            let x = with(g, &[n, 2], &[(2 * n - 1, inf), (n, -inf)]);
            all.push(run(&format!("[{n},2] transposed"), 0, vec![x.transposed()]));
            let x = T::full(t, &[n], nan);
            all.push(run(&format!("[{n}] of NaN"), 0, vec![x]));
        }
        for n in g.beyond() {
            let mut x = || with(g, &[3, n], &[(0, nan), (2 * n - 1, inf), (3 * n - 1, -inf)]);
            all.push(run(&format!("[3,{n}] padded"), 0, vec![x().padded(5)]));
            all.push(run(&format!("[3,{n}] with gaps"), 0, vec![x().spread(2)]));
        }
        for n in g.longs() {
            let x = with(g, &[n, 2, 3], &[(1, inf), (6 * n - 1, nan)]);
            let what = format!("[{n},2,3] in another order");
            all.push(run(&what, 0, vec![x.lying(&[2, 0, 1])]));
        }
        return all;
    }
    if g.about == About::Lists {
        for n in LISTS {
            let x = (0..n).map(|i| match i {
                // Somewhere, and in the last.
                _ if i + 1 == n => with(g, &[3], &[(2, nan)]),
                7 => with(g, &[0], &[]),
                _ if i % 40 == 5 => with(g, &[33], &[(i % 33, inf)]),
                _ => with(g, &[1 + i % 70], &[]),
            });
            all.push(run(&format!("{n} tensors"), 2, x.collect()));
        }
        return all;
    }
    for n in [0, 1, 33, 1000] {
        let x = with(g, &[n], &[]);
        all.push(run(&format!("[{n}] of finite numbers"), 3, vec![x]));
    }
    let x = with(g, &[257], &[(256, -inf)]);
    all.push(run("minus infinity at the end", 0, vec![x]));
    let x = with(g, &[257], &[(0, inf)]);
    all.push(run("infinity at the start", 0, vec![x]));
    let x = with(
        g,
        &[33],
        &[
            (1, nan),
            (7, -nan),
            (32, inf),
            (8, -inf),
            (9, top),
            (10, -top),
        ],
    );
    all.push(run("all kinds, and the largest numbers", 40, vec![x]));
    let x = vec![
        with(g, &[5, 7], &[(3, nan)]).transposed(),
        with(g, &[0], &[]),
        with(g, &[100], &[(50, inf), (51, nan)]),
        with(g, &[9, 4], &[(35, -inf)]).padded(3),
    ];
    all.push(run("over several tensors", 7, x));
    for x in loose(with(g, &[4, 3, 5], &[(0, nan), (29, inf), (59, -inf)])) {
        all.push(run("with gaps or in another order", 7, vec![x]));
    }
    let x = with(g, &[1000], &[(999, nan), (500, nan)]);
    all.push(run("NaN among a thousand", 0, vec![x]));
    all
}

fn sumsq(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let run = |what: &str, start: f64, x: Vec<T>| {
        let v: Vec<f64> = x.iter().flat_map(T::values).collect();
        let s = result(reduce::SUMSQ, &v, Some(start));
        let whole =
            v.iter().all(|v| v.fract() == 0.0) && s.mag < 16_777_216.0 && start.fract() == 0.0;
        let want = if whole {
            Want::exact(DType::F32, [s.v])
        } else {
            Want::Sum(vec![s])
        };
        let mut args = vec![T::new(DType::F32, &[1], &[start]).into()];
        args.extend(x.into_iter().map(Into::into));
        Trial::new(what, none.as_bytes(), args, vec![(0, want)])
    };
    let mut all = vec![];
    if g.sizes() {
        for n in [g.beyond(), g.grid()].concat() {
            let x = ends(g.whole(t, &[n], 3), 5.0);
            all.push(run(&format!("[{n}] of whole numbers"), 9.0, vec![x]));
            let x = ends(g.whole(t, &[n, 2], 3), 5.0).transposed();
            all.push(run(&format!("[{n},2] transposed"), 0.0, vec![x]));
            if n < 1 << 17 {
                let v: Vec<f64> = (0..n).map(|_| 0.7 + 0.2 * g.unit()).collect();
                let x = T::new(t, &[n], &v);
                all.push(run(&format!("[{n}] reals"), 0.0, vec![x]));
            }
        }
        for n in g.beyond() {
            let mut x = || ends(g.whole(t, &[3, n], 3), 5.0);
            all.push(run(&format!("[3,{n}] padded"), 0.0, vec![x().padded(5)]));
            all.push(run(&format!("[3,{n}] with gaps"), 0.0, vec![x().spread(2)]));
        }
        for n in g.longs() {
            let mut x = ends(g.whole(t, &[n, 2, 3], 3), 5.0);
            if let Some(last) = x.bits.last_mut() {
                *last = num::encode(t, 5.0);
            }
            let what = format!("[{n},2,3] in another order");
            all.push(run(&what, 0.0, vec![x.lying(&[2, 0, 1])]));
        }
        return all;
    }
    if g.about == About::Lists {
        for n in LISTS {
            let sizes = (0..n).map(|i| if i == 7 { 0 } else { 1 + i * 13 % 90 });
            let x = sizes.map(|s| g.whole(t, &[s], 3)).collect();
            all.push(run(&format!("{n} tensors"), 10.0, x));
        }
        return all;
    }
    for n in [0, 1, 7, 1000] {
        let x = g.whole(t, &[n], 9);
        all.push(run(&format!("[{n}] of whole numbers"), 0.0, vec![x]));
    }
    let x = (0..5).map(|i| g.whole(t, &[33 * i + 1], 5)).collect();
    all.push(run("five tensors added to 100", 100.0, x));
    let x = vec![
        g.real(t, &[1000], 2.0),
        g.real(t, &[31, 7], 0.01).transposed(),
        g.real(t, &[257], 100.0),
    ];
    all.push(run("reals of several sizes", 0.0, x));
    for x in loose(g.whole(t, &[4, 3, 5], 5)) {
        all.push(run("with gaps or in another order", 8.0, vec![x]));
    }
    let mut x = g.real(t, &[100], 1.0);
    x.bits[50] = num::encode(t, f64::INFINITY);
    all.push(run("an infinity", 0.0, vec![x]));
    all
}
