//! Products by groups of rows against plain f64 references: empty groups, groups of one row, and rows behind the last that are no numbers.

use super::bench::*;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// Rows, ends of the groups.
const GROUPS: [(u64, &[u64]); 4] = [
    (9, &[0, 4, 5, 9]),
    (7, &[0, 0, 0]),
    (40, &[38, 38, 39]),
    (5, &[5]),
];

fn ends(all: &[u64]) -> T {
    let v: Vec<f64> = all.iter().map(|e| *e as f64).collect();
    T::new(DType::I32, &[all.len() as u64], &v)
}

/// The group of each row; `None` behind the last.
fn group(all: &[u64], row: u64) -> Option<u64> {
    all.iter().position(|e| row < *e).map(|e| e as u64)
}

/// Rows of a width, NaN behind the last group.
fn rows(r: &mut Rng, t: DType, n: u64, width: u64, all: &[u64]) -> T {
    let mut v = r.floats(n * width, 1.0);
    let last = all.last().copied().unwrap_or(0);
    v[(last * width) as usize..].fill(f64::NAN);
    T::new(t, &[n, width], &v)
}

pub fn grouped_matmul(b: &Bench) {
    let mut r = Rng(91);
    for t in STORAGES {
        for (n, all) in GROUPS {
            let (k, out, e) = (17u64, 6u64, all.len() as u64);
            for turned in [false, true] {
                let x = rows(&mut r, t, n, k, all);
                let stride = match turned {
                    true => [(k * out) as i64, 1, out as i64],
                    false => [(k * out) as i64, k as i64, 1],
                };
                let w = T::strided(t, &[e, out, k], &stride, &r.floats(e * out * k, 1.0));
                let (xv, wv) = (x.values(), w.values());
                let one = |i: u64, j: u64| match group(all, i) {
                    Some(g) => (0..k)
                        .map(|l| xv[(i * k + l) as usize] * wv[((g * out + j) * k + l) as usize])
                        .sum(),
                    None => 0.0,
                };
                let y = (0..n * out).map(|at| one(at / out, at % out)).collect();
                let o = [T::poison(t, &[n, out]), x, w, ends(all)];
                let p = op::NoParams::default();
                b.check(
                    "grouped",
                    op::GROUPED_MATMUL,
                    p.as_bytes(),
                    &[],
                    &o,
                    &[],
                    &[(0, y, 2e-6)],
                );
            }
        }
    }
}

pub fn grouped_matmul_dw(b: &Bench) {
    let mut r = Rng(92);
    for t in STORAGES {
        for (n, all) in GROUPS {
            let (k, out, e) = (11u64, 6u64, all.len() as u64);
            for (add, to) in [
                (false, t),
                (true, t),
                (false, DType::F32),
                (true, DType::F32),
            ] {
                let (dy, x) = (rows(&mut r, t, n, out, all), rows(&mut r, t, n, k, all));
                let old = match add {
                    true => T::random(&mut r, to, &[e, out, k], 1.0),
                    false => T::poison(to, &[e, out, k]),
                };
                let (dv, xv, ov) = (dy.values(), x.values(), old.values());
                let one = |at: u64| {
                    let (g, j, l) = (at / (out * k), at / k % out, at % k);
                    let own = (0..n).filter(|i| group(all, *i) == Some(g));
                    let sum: f64 = own
                        .map(|i| dv[(i * out + j) as usize] * xv[(i * k + l) as usize])
                        .sum();
                    sum + if add { ov[at as usize] } else { 0.0 }
                };
                let dw = (0..e * out * k).map(one).collect();
                let p = op::GroupedParams {
                    flags: if add { op::FLAG_ACCUM } else { 0 },
                    ..Default::default()
                };
                let o = [old, dy, x, ends(all)];
                b.check(
                    "dw",
                    op::GROUPED_MATMUL_DW,
                    p.as_bytes(),
                    &[],
                    &o,
                    &[],
                    &[(0, dw, 2e-6)],
                );
            }
        }
    }
}
