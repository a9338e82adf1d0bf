//! `grouped_matmul` and `grouped_matmul_dw`: groups of every size, empty ones among them, rows behind the last group that are no numbers, and
//! each way in which operands may lie. Small whole numbers must come out exactly; reals are held to the bound of a product.

use super::cell::{About, Cell, FLOATS, Gen};
use super::num;
use super::tensor::T;
use super::trial::{Arg, Sum, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, FLAG_ACCUM, GroupedParams, NoParams};

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = vec![];
    for t in FLOATS {
        all.push(Cell::new(op::GROUPED_MATMUL, t.name(), move |g| {
            trials(g, Kind::Rows, t, t)
        }));
        all.push(Cell::new(op::GROUPED_MATMUL_DW, t.name(), move |g| {
            trials(g, Kind::Weights, t, t)
        }));
        if t != DType::F32 {
            let what = format!("f32.of_{}", t.name());
            all.push(Cell::new(op::GROUPED_MATMUL_DW, what, move |g| {
                trials(g, Kind::Weights, DType::F32, t)
            }));
        }
    }
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    Weights,
}

/// One op: of its rows `[n, K]` and `[n, N]`, and how its weights lie.
struct Job {
    kind: Kind,
    to: DType,
    of: DType,
    /// Rows, K, N.
    sizes: [usize; 3],
    ends: Vec<usize>,
}

/// The sums of a product, in order of the elements of the output.
fn sums(job: &Job, a: &[f64], b: &[f64], old: Option<&[f64]>) -> Vec<Sum> {
    let [n, k, out] = job.sizes;
    let mut start = 0;
    let groups: Vec<_> = job
        .ends
        .iter()
        .map(|end| std::mem::replace(&mut start, *end)..*end)
        .collect();
    let nothing = || Sum {
        v: 0.0,
        n: 0.0,
        mag: 0.0,
    };
    let add = |s: &mut Sum, x: f64, y: f64| {
        s.v += x * y;
        s.n += 1.0;
        s.mag += (x * y).abs();
    };
    match job.kind {
        Kind::Rows => {
            let mut all: Vec<Sum> = (0..n * out).map(|_| nothing()).collect();
            for (e, rows) in groups.into_iter().enumerate() {
                for (i, j) in rows.flat_map(|i| (0..out).map(move |j| (i, j))) {
                    for l in 0..k {
                        add(
                            &mut all[i * out + j],
                            a[i * k + l],
                            b[(e * out + j) * k + l],
                        );
                    }
                }
            }
            all
        }
        Kind::Weights => {
            let mut all: Vec<Sum> = (0..groups.len() * out * k).map(|_| nothing()).collect();
            for (e, rows) in groups.into_iter().enumerate() {
                for i in rows {
                    for (j, l) in (0..out).flat_map(|j| (0..k).map(move |l| (j, l))) {
                        add(
                            &mut all[(e * out + j) * k + l],
                            a[i * out + j],
                            b[i * k + l],
                        );
                    }
                }
            }
            for (s, old) in all.iter_mut().zip(old.unwrap_or_default()) {
                s.v += old;
                s.n += 1.0;
                s.mag += old.abs();
            }
            all
        }
    }
}

/// A trial over two operands: rows and weights, or two kinds of rows; `old` is what the gradient held before.
fn trial(what: &str, job: &Job, a: T, b: T, old: Option<T>) -> Trial {
    let [n, k, out] = job.sizes;
    let held = old.as_ref().map(T::values);
    let s = sums(job, &a.values(), &b.values(), held.as_deref());
    let whole = s.iter().all(|s| {
        s.v.is_finite() && s.v.fract() == 0.0 && s.mag.fract() == 0.0 && s.mag < 16_777_216.0
    });
    let want = match whole {
        true => Want::Value(s.iter().map(|s| num::encode(job.to, s.v)).collect()),
        false => Want::Matmul(s),
    };
    let ends: Vec<i64> = job.ends.iter().map(|e| *e as i64).collect();
    let shape = match job.kind {
        Kind::Rows => vec![n, out],
        Kind::Weights => vec![ends.len(), out, k],
    };
    let p = GroupedParams {
        flags: if old.is_some() { FLAG_ACCUM } else { 0 },
        ..Default::default()
    };
    let none = NoParams::default();
    let params = match job.kind {
        Kind::Rows => none.as_bytes(),
        Kind::Weights => p.as_bytes(),
    };
    let to = old.unwrap_or_else(|| T::poison(job.to, &shape));
    let ends = T::ints(DType::I32, &[ends.len()], &ends);
    let args: Vec<Arg> = vec![to.into(), a.into(), b.into(), ends.into()];
    let what = format!(
        "{what}, {n} rows of {k} to {out} in groups to {:?}",
        job.ends
    );
    Trial::new(what, params, args, vec![(0, want)])
}

/// The shapes of the two operands that are read.
fn shapes(job: &Job) -> [Vec<usize>; 2] {
    let [n, k, out] = job.sizes;
    match job.kind {
        Kind::Rows => [vec![n, k], vec![job.ends.len(), out, k]],
        Kind::Weights => [vec![n, out], vec![n, k]],
    }
}

/// What stands in rows behind the last group is no number.
fn spoilt(job: &Job, mut x: T) -> T {
    let (n, last) = (job.sizes[0], job.ends.last().copied().unwrap_or(0));
    if x.shape[0] == n && x.shape.len() == 2 {
        let width = x.shape[1];
        let nan = num::encode(x.dtype, f64::NAN);
        x.bits[last * width..].fill(nan);
    }
    x
}

/// Rows, K and N, and ends of groups, that are combined with everything else.
const SIZES: [[usize; 3]; 3] = [[40, 31, 17], [40, 64, 32], [40, 1, 33]];
const ENDS: [&[usize]; 4] = [&[7, 7, 30], &[1, 2, 3], &[0, 33, 33], &[40, 40, 40]];

/// An operand laid out in one of four ways: dense, transposed, padded, and weights between each other.
fn lying(x: T, how: usize) -> T {
    match (how, x.shape.len()) {
        (1, _) => x.transposed(),
        (2, _) => x.padded(3),
        (3, 3) => x.lying(&[1, 0, 2]),
        (3, _) => x.padded(1),
        _ => x,
    }
}

fn trials(g: &mut Gen, kind: Kind, to: DType, of: DType) -> Vec<Trial> {
    let mut all = vec![];
    let job = |sizes: [usize; 3], ends: &[usize]| Job {
        kind,
        to,
        of,
        sizes,
        ends: ends.to_vec(),
    };
    let mut put = |g: &mut Gen, what: &str, job: &Job, add: bool, lie: &dyn Fn(T) -> T| {
        let [a, b] = shapes(job).map(|s| spoilt(job, g.whole(job.of, &s, 2)));
        let old = (add && kind == Kind::Weights).then(|| {
            let [_, k, out] = job.sizes;
            g.whole(to, &[job.ends.len(), out, k], 9)
        });
        all.push(trial(what, job, lie(a), lie(b), old));
    };
    let plain = |x: T| x;
    if g.about == About::Pairs {
        for [n, ends, how, add] in g.covering([3, 4, 4, 2]) {
            put(g, "pairs", &job(SIZES[n], ENDS[ends]), add == 1, &|x| {
                lying(x, how)
            });
        }
        return all;
    }
    if g.sizes() {
        let sizes = match g.residues() {
            true => g.ending::<4>(1 << 14).into_iter().collect(),
            false => {
                let mut all = vec![];
                for s in g.beyond() {
                    all.extend([[s, 7, 5, 3], [9, s, 5, 3], [9, 7, s, 3], [9, 3, 2, s]]);
                }
                for s in g.grid() {
                    all.extend([[s, 2, 3, 3], [5, 3, 2, s]]);
                }
                all.extend([[131, 70, 66, 4], [130, 129, 133, 2]]);
                all
            }
        };
        for (i, [n, k, out, groups]) in sizes.into_iter().enumerate() {
            // Ends that grow and stay, and the last group ends with the rows, or before.
            let last = n - usize::from(i % 2 == 1 && n > 1);
            let mut ends: Vec<usize> = (0..groups).map(|_| g.below(last + 1)).collect();
            ends.sort_unstable();
            ends[groups - 1] = last;
            put(g, "sizes", &job([n, k, out], &ends), i % 3 == 0, &plain);
        }
        return all;
    }
    for (what, sizes, ends) in [
        ("equal groups", [12, 5, 7], &[4, 8, 12][..]),
        ("very uneven groups", [70, 9, 6], &[1, 1, 65, 66, 70]),
        ("all in one", [33, 17, 8], &[0, 33, 33]),
        ("one group", [9, 4, 5], &[9]),
        ("groups of a row", [5, 65, 33], &[1, 2, 3, 4, 5]),
        ("no row", [0, 4, 3], &[0, 0]),
        ("empty groups alone", [3, 4, 5], &[0, 0, 0]),
        ("rows behind the last group", [40, 31, 17], &[7, 7, 30]),
        ("no inputs", [4, 0, 5], &[1, 4]),
        ("no outputs", [4, 5, 0], &[1, 4]),
        ("longer sums", [600, 400, 4], &[3, 590, 600]),
    ] {
        for add in [false, true] {
            put(g, what, &job(sizes, ends), add, &plain);
        }
    }
    let some = job([29, 19, 23], &[4, 4, 20, 27]);
    put(g, "transposed", &some, true, &|x: T| x.transposed());
    put(g, "padded", &some, true, &|x: T| x.padded(3));
    put(
        g,
        "weights between each other",
        &some,
        false,
        &|x: T| match x.shape.len() {
            3 => x.lying(&[1, 0, 2]),
            _ => x,
        },
    );
    let [a, b] = shapes(&some).map(|s| spoilt(&some, g.real(of, &s, 2.0)));
    all.push(trial("reals", &some, a, b, None));
    // Infinities and NaN keep to the rows, or to the weights, that have them.
    let [mut a, b] = shapes(&some).map(|s| spoilt(&some, g.real(of, &s, 2.0)));
    let width = a.shape[1];
    a.bits[2 * width + 1] = num::encode(of, f64::NAN);
    a.bits[21 * width] = num::encode(of, f64::INFINITY);
    all.push(trial(
        "NaN and infinities keep to their groups",
        &some,
        a,
        b,
        None,
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference itself: each gradient is the derivative of the product, by differences in f64.
    #[test]
    fn gradients_of_the_reference_are_differences() {
        let job = |kind| Job {
            kind,
            to: DType::F32,
            of: DType::F32,
            sizes: [6, 3, 4],
            ends: vec![2, 2, 5],
        };
        let value = |seed: usize| move |i: usize| ((i * 7 + seed * 13) % 11) as f64 / 5.0 - 1.0;
        let x: Vec<f64> = (0..18).map(value(1)).collect();
        let w: Vec<f64> = (0..36).map(value(2)).collect();
        let dy: Vec<f64> = (0..24).map(value(3)).collect();
        let loss = |x: &[f64], w: &[f64]| -> f64 {
            let y = sums(&job(Kind::Rows), x, w, None);
            y.iter().zip(&dy).map(|(y, d)| y.v * d).sum()
        };
        let dw = sums(&job(Kind::Weights), &dy, &x, None);
        for i in 0..w.len() {
            let at = |d: f64| {
                let mut w = w.clone();
                w[i] += d;
                loss(&x, &w)
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((dw[i].v - slope).abs() < 1e-8, "{i}: {} {slope}", dw[i].v);
        }
        // The gradient of rows is the product with each weight transposed.
        let turned: Vec<f64> = (0..36)
            .map(|i| w[i / 12 * 12 + i % 4 * 3 + i / 4 % 3])
            .collect();
        let back = Job {
            sizes: [6, 4, 3],
            ..job(Kind::Rows)
        };
        let dx = sums(&back, &dy, &turned, None);
        for i in 0..x.len() {
            let at = |d: f64| {
                let mut x = x.clone();
                x[i] += d;
                loss(&x, &w)
            };
            let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((dx[i].v - slope).abs() < 1e-8, "{i}: {} {slope}", dx[i].v);
        }
    }
}
