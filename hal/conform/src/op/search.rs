//! Ops that look for elements: `arg_reduce`, `sort_pairs`, `topk`. Ties, NaN, infinities and zeros of both signs are where they differ.

use super::cell::{Cell, FLOATS, Gen, INDEX};
use super::num;
use super::reduce::{KEYS, along, ends};
use super::tensor::{T, count};
use super::trial::{Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, DimParams, FLAG_DESCENDING};
use std::cmp::Ordering;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for i in INDEX {
            let what = format!("{}.{}", t.name(), i.name());
            all.push(Cell::new(op::ARG_REDUCE, &what, move |g| arg(g, t, i)).of(&[i, t]));
            all.push(Cell::new(op::TOPK, &what, move |g| topk(g, t, i)).of(&[t, i, t]));
        }
    }
    for t in KEYS {
        for i in INDEX {
            let what = format!("{}.{}", t.name(), i.name());
            all.push(Cell::new(op::SORT_PAIRS, what, move |g| sort(g, t, i)).of(&[t, i, t, i]));
        }
    }
    all
}

/// Three lines: NaN in the first, infinities in the second, nothing but minus infinity in the third.
fn odd(t: DType, mut x: T) -> T {
    let n = x.bits.len() / 3;
    let bits = |v: f64| num::encode(t, v);
    (x.bits[n / 2], x.bits[n - 1]) = (bits(f64::NAN), bits(f64::NAN));
    (x.bits[n + n / 3], x.bits[2 * n - 2]) = (bits(f64::INFINITY), bits(f64::NEG_INFINITY));
    x.bits[2 * n..].fill(bits(f64::NEG_INFINITY));
    x
}

fn arg(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    for kind in [0, 1] {
        let mut run = |what: &str, src: T, dim: usize| {
            let p = DimParams {
                kind,
                dim: dim as u32,
                ..Default::default()
            };
            let v = src.values();
            // NaN is larger than every number, and the first of equals wins.
            let larger = |a: f64, b: f64| a > b || a.is_nan() && !b.is_nan();
            let ix: Vec<i64> = along(&src.shape, dim)
                .into_iter()
                .map(|l| {
                    let mut best = 0;
                    for i in 1..l.len() {
                        let (a, b) = (v[l[i]], v[l[best]]);
                        if if kind == 0 {
                            larger(a, b)
                        } else {
                            larger(b, a)
                        } {
                            best = i;
                        }
                    }
                    best as i64
                })
                .collect();
            let mut out = src.shape.clone();
            out[dim] = 1;
            let want = Want::Exact(T::ints(it, &out, &ix).bits);
            let name = ["largest", "smallest"][kind as usize];
            all.push(Trial::new(
                format!("{name}, {what}"),
                p.as_bytes(),
                vec![T::poison(it, &out).into(), src.into()],
                vec![(0, want)],
            ));
        };
        if g.sizes() {
            for n in g.beyond() {
                // The last is the one.
                let far = if kind == 0 { 11.0 } else { -11.0 };
                let real = |g: &mut Gen, s: &[usize]| ends(g.real(t, s, 9.0), far);
                let whole = |g: &mut Gen, s: &[usize], most| g.whole(t, s, most);
                run(&format!("[3,{n}] along 1"), real(g, &[3, n]), 1);
                let x = whole(g, &[3, n], 1);
                run(&format!("[3,{n}] along 1 with ties"), x, 1);
                run(&format!("[{n},3] along 0"), real(g, &[n, 3]), 0);
                run(&format!("[{n},3] along 1"), whole(g, &[n, 3], 2), 1);
                run(&format!("[2,{n},3] along 1"), real(g, &[2, n, 3]), 1);
                let x = whole(g, &[2, 3, n], 2);
                run(&format!("[2,3,{n}] along 1"), x, 1);
                let x = odd(t, real(g, &[3, n]));
                run(&format!("[3,{n}] along 1, NaN and infinities"), x, 1);
            }
            for n in g.longs() {
                run(&format!("[{n},2,3] along 1"), g.real(t, &[n, 2, 3], 9.0), 1);
            }
            for n in g.grid() {
                let far = if kind == 0 { 11.0 } else { -11.0 };
                let x = ends(g.real(t, &[2, n], 9.0), far);
                run(&format!("[2,{n}] along 1"), x, 1);
                run(&format!("[{n},2] along 1"), g.whole(t, &[n, 2], 2), 1);
                run(&format!("[2,{n}] along 0"), g.whole(t, &[2, n], 2), 0);
            }
            continue;
        }
        for n in [1, 7, 33, 257, 1000] {
            run(&format!("[3,{n}] along 1"), g.real(t, &[3, n], 9.0), 1);
            // Few values, so most lines are ties.
            run(
                &format!("[3,{n}] along 1 with ties"),
                g.whole(t, &[3, n], 1),
                1,
            );
        }
        run("[33,9] along 0", g.whole(t, &[33, 9], 3), 0);
        run("[5,17,6] along 1", g.whole(t, &[5, 17, 6], 2), 1);
        run("[9,33] transposed", g.whole(t, &[9, 33], 2).transposed(), 1);
        run("[9,33] padded", g.whole(t, &[9, 33], 2).padded(3), 1);
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let v = [
            1.0, nan, nan, 2.0, nan, nan, nan, nan, inf, -inf, 0.0, inf, 0.0, -0.0, -0.0, 0.0,
        ];
        run("NaN, infinities and zeros", T::new(t, &[4, 4], &v), 1);
        for far in [inf, -inf] {
            let what = format!("nothing but {far}");
            run(&what, T::full(t, &[3, 40], far), 1);
        }
        run("[0,4]", T::new(t, &[0, 4], &[]), 1);
    }
    all
}

/// Ascending; NaN after every number; zeros of both signs equal.
fn ascending(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Keys of which every bit counts.
fn whole_range(g: &mut Gen, t: DType, n: usize) -> T {
    if num::is_float(t) {
        return odd(t, g.real(t, &[3, n], 9.0));
    }
    let bits = g.bits(n).into_iter();
    T::ints(t, &[n], &bits.map(|b| b as i64).collect::<Vec<_>>())
}

fn sort(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    for down in [false, true] {
        let mut run = |what: &str, keys: T, spread: i64| {
            let p = DimParams {
                dim: (keys.shape.len() - 1) as u32,
                flags: if down { FLAG_DESCENDING } else { 0 },
                ..Default::default()
            };
            let n = *keys.shape.last().unwrap_or(&0);
            let total = keys.bits.len();
            // Of 64 bits those whose low half is not the value.
            let high = if it == DType::I64 { 1 << 33 } else { 0 };
            let value = |i: usize| (i * 7 % 1000) as i64 - 3 + high * (i as i64 % 5);
            let values: Vec<i64> = (0..total).map(value).collect();
            let values = T::ints(it, &keys.shape, &values).spread(spread);
            let (mut ks, mut vs) = (Vec::new(), Vec::new());
            for r in 0..total.checked_div(n).unwrap_or(0) {
                let mut ix: Vec<usize> = (r * n..(r + 1) * n).collect();
                let cmp = |a: usize, b: usize| {
                    if num::is_float(t) {
                        ascending(num::decode(t, keys.bits[a]), num::decode(t, keys.bits[b]))
                    } else {
                        num::int_of(t, keys.bits[a]).cmp(&num::int_of(t, keys.bits[b]))
                    }
                };
                ix.sort_by(|a, b| if down { cmp(*b, *a) } else { cmp(*a, *b) });
                ks.extend(ix.iter().map(|i| keys.bits[*i]));
                vs.extend(ix.iter().map(|i| values.bits[*i]));
            }
            let s = keys.shape.clone();
            let name = ["ascending", "descending"][usize::from(down)];
            all.push(Trial::new(
                format!("{name}, {what}"),
                p.as_bytes(),
                vec![
                    T::poison(t, &s).into(),
                    T::poison(it, &s).into(),
                    keys.into(),
                    values.into(),
                ],
                vec![(0, Want::Exact(ks)), (1, Want::Exact(vs))],
            ));
        };
        let whole = |g: &mut Gen, s: &[usize], most: i64| {
            let v: Vec<i64> = (0..count(s))
                .map(|_| g.below(2 * most as usize + 1) as i64 - most)
                .collect();
            if num::is_float(t) {
                T::new(t, s, &v.iter().map(|v| *v as f64).collect::<Vec<_>>())
            } else {
                T::ints(t, s, &v)
            }
        };
        if g.sizes() {
            for n in g.beyond() {
                run(&format!("[2,{n}]"), whole(g, &[2, n], 1000), 1);
                run(&format!("[{n}] with many ties"), whole(g, &[n], 3), 1);
                run(&format!("[{n},3]"), whole(g, &[n, 3], 5), 1);
                let x = whole_range(g, t, n);
                run(&format!("{:?} of the whole range", x.shape), x, 1);
                if num::is_float(t) {
                    run(&format!("[{n}] reals"), g.real(t, &[n], 9.0), 1);
                }
            }
            for n in g.grid() {
                run(&format!("[{n}]"), whole(g, &[n], 60_000), 1);
                run(&format!("[{n},2]"), whole(g, &[n, 2], 5), 1);
            }
            continue;
        }
        for n in [0, 1, 2, 7, 33, 257] {
            run(&format!("[2,{n}]"), whole(g, &[2, n], 100), 1);
        }
        run("[3,255] with many ties", whole(g, &[3, 255], 2), 1);
        run("[1000] of equals", whole(g, &[1000], 0), 1);
        run(
            "[5,40] transposed, values with gaps",
            whole(g, &[5, 40], 5).transposed(),
            2,
        );
        if num::is_float(t) {
            let (inf, nan) = (f64::INFINITY, f64::NAN);
            let v = [nan, 1.0, -inf, nan, inf, 0.0, -0.0, 0.0, -1.0, inf];
            run("NaN, infinities and zeros", T::new(t, &[10], &v), 1);
        } else {
            let (lo, hi) = if t == DType::I32 {
                (i32::MIN as i64, i32::MAX as i64)
            } else {
                (i64::MIN, i64::MAX)
            };
            run(
                "ends of the range",
                T::ints(t, &[7], &[hi, lo, 0, hi - 1, lo + 1, -1, hi]),
                1,
            );
        }
    }
    all
}

fn topk(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let mut all = Vec::new();
    let mut run = |what: &str, src: T, k: usize| {
        let n = *src.shape.last().unwrap_or(&0);
        let p = DimParams {
            dim: (src.shape.len() - 1) as u32,
            ..Default::default()
        };
        let v = src.values();
        let (mut ks, mut ixs) = (Vec::new(), Vec::new());
        for r in 0..v.len().checked_div(n).unwrap_or(0) {
            let mut ix: Vec<usize> = (0..n).collect();
            ix.sort_by(|a, b| ascending(v[r * n + b], v[r * n + a]).then(a.cmp(b)));
            for i in ix.into_iter().take(k) {
                ks.push(src.bits[r * n + i]);
                ixs.push(i as i64);
            }
        }
        let mut s = src.shape.clone();
        if let Some(l) = s.last_mut() {
            *l = k;
        }
        let want = vec![
            (0, Want::Exact(ks)),
            (1, Want::Exact(T::ints(it, &s, &ixs).bits)),
        ];
        let args = vec![
            T::poison(t, &s).into(),
            T::poison(it, &s).into(),
            src.into(),
        ];
        all.push(Trial::new(
            format!("{k} of {what}"),
            p.as_bytes(),
            args,
            want,
        ));
    };
    if g.sizes() {
        for n in g.beyond() {
            run(
                &format!("[3,{n}]"),
                ends(g.real(t, &[3, n], 9.0), 11.0),
                n.min(8),
            );
            run(
                &format!("[2,{n}] with ties"),
                g.whole(t, &[2, n], 2),
                n.min(5),
            );
            let x = odd(t, g.real(t, &[3, n], 9.0));
            run(&format!("[3,{n}], NaN and infinities"), x, n.min(4));
            run(
                &format!("[2,{n}], nearly all"),
                g.real(t, &[2, n], 9.0),
                n - 1,
            );
            run(&format!("[{n},4]"), g.real(t, &[n, 4], 9.0), 2);
        }
        for n in g.longs() {
            run(&format!("[{n},2,4]"), g.real(t, &[n, 2, 4], 9.0), 2);
        }
        for n in g.grid() {
            run(&format!("[2,{n}]"), ends(g.real(t, &[2, n], 9.0), 11.0), 8);
            run(&format!("[{n},2]"), g.real(t, &[n, 2], 9.0), 1);
        }
        return all;
    }
    for (n, k) in [(1, 1), (7, 3), (33, 33), (257, 8), (1000, 1), (8, 0)] {
        run(&format!("[3,{n}]"), g.real(t, &[3, n], 9.0), k);
        run(&format!("[3,{n}] with ties"), g.whole(t, &[3, n], 1), k);
    }
    run("[2,3,40]", g.whole(t, &[2, 3, 40], 4), 5);
    run("[5,40] transposed", g.whole(t, &[5, 40], 3).transposed(), 7);
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    run(
        "NaN, infinities and zeros",
        T::new(t, &[8], &[1.0, nan, -inf, inf, nan, -0.0, 0.0, inf]),
        6,
    );
    let x = odd(t, g.real(t, &[3, 9], 9.0));
    run("[3,9], minus infinity too", x, 9);
    all
}
