//! `softmax_*`, `cross_entropy_*`: logits far beyond what an exponential holds, minus infinity, ignored rows, targets out of range.

use super::bound::{Num, num as exact, sum};
use super::cell::{About, Cell, FLOATS, Gen, INDEX};
use super::moves::nans;
use super::num;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crate::case::Effort;
use crossweave_abi::DType;
use crossweave_abi::op::{self, FLAG_HAS_IGNORE, NoParams, XentParams};

const F: DType = DType::F32;
const IGNORE: i64 = -100;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        all.push(Cell::new(op::SOFTMAX_FWD, t.name(), move |g| softmax(g, t)));
        all.push(Cell::new(op::SOFTMAX_BWD, t.name(), move |g| {
            softmax_bwd(g, t)
        }));
        for i in INDEX {
            let what = format!("{}.by_{}", t.name(), i.name());
            all.push(Cell::new(op::CROSS_ENTROPY_FWD, &what, move |g| {
                xent(g, t, i)
            }));
            all.push(Cell::new(op::CROSS_ENTROPY_BWD, &what, move |g| {
                xent_bwd(g, t, i)
            }));
        }
    }
    all
}

/// e^(x - m), exactly 0 for minus infinity.
pub fn exp_from(x: f64, m: Num) -> Num {
    if x == f64::NEG_INFINITY && m.v > f64::NEG_INFINITY {
        return exact(0.0);
    }
    (exact(x) - m).exp()
}

/// The largest of a row, NaN if there is one.
pub fn largest(x: &[f64]) -> f64 {
    x.iter().fold(f64::NEG_INFINITY, |a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.max(*b)
        }
    })
}

/// Softmax of a row.
pub fn row_softmax(x: &[f64]) -> Vec<Num> {
    let m = exact(largest(x));
    let e: Vec<Num> = x.iter().map(|x| exp_from(*x, m)).collect();
    let s = sum(e.iter().copied());
    e.into_iter().map(|e| e / s).collect()
}

/// log sum exp of a row.
pub fn row_lse(x: &[f64]) -> Num {
    let m = exact(largest(x));
    sum(x.iter().map(|x| exp_from(*x, m))).ln() + m
}

/// Rows of several kinds: plain, large, far below zero, partly minus infinity, all equal.
fn rows(g: &mut Gen, t: DType, n: usize, d: usize) -> T {
    let mut v = g.reals(n * d, 4.0);
    for r in 0..n {
        let row = &mut v[r * d..(r + 1) * d];
        // The last row is a plain one.
        match (n - 1 - r) % 5 {
            1 => row.iter_mut().for_each(|x| *x = *x * 20.0 + 500.0),
            2 => row.iter_mut().for_each(|x| *x -= 1000.0),
            3 => row
                .iter_mut()
                .step_by(2)
                .skip(1)
                .for_each(|x| *x = f64::NEG_INFINITY),
            4 => row.fill(3.0),
            _ => {}
        }
    }
    T::new(t, &[n, d], &v)
}

/// The usual shapes, or rows of many widths (five, one of each kind) and many rows.
fn shapes(g: &mut Gen, usual: &[(usize, usize)]) -> Vec<(usize, usize)> {
    if !g.sizes() {
        return usual.to_vec();
    }
    if g.residues() {
        return g.ending(2048).into_iter().map(|[n, d]| (n, d)).collect();
    }
    let mut all = Vec::new();
    for n in g.beyond() {
        all.extend([(5, n), (n, 4)]);
    }
    for n in g.grid() {
        all.extend([(n, 3), (5, n)]);
    }
    if g.effort != Effort::Quick {
        all.push((131, 1029));
    }
    all
}

/// The same for logits, with the vocabularies of GPT-2 and of Llama 3.
fn vocabularies(g: &mut Gen) -> Vec<(usize, usize)> {
    let mut all = shapes(g, &[(0, 3), (1, 1), (7, 7), (11, 33), (6, 257), (5, 1000)]);
    if g.about == About::Sizes && g.effort != Effort::Quick {
        all.extend([(5, 50_257), (5, 128_256)]);
    }
    all
}

/// Rows of which whole tiles are minus infinity: the first, all but the first, all but the last element, and every other one.
fn empty_tiles(g: &mut Gen, t: DType, d: usize) -> T {
    let mut x = g.real(t, &[4, d], 4.0);
    let out = num::encode(t, f64::NEG_INFINITY);
    x.bits[..d / 2].fill(out);
    x.bits[d + d / 2..2 * d].fill(out);
    x.bits[2 * d..3 * d - 1].fill(out);
    for tile in x.bits[3 * d..].chunks_mut(32).step_by(2) {
        tile.fill(out);
    }
    // In the last row something is left, however few tiles there are.
    x.bits[4 * d - 1] = num::encode(t, 1.0);
    x
}

/// Rows and widths that are combined with everything else.
const WIDE: [(usize, usize); 4] = [(7, 7), (11, 33), (6, 257), (5, 1000)];

/// Widths of whole tiles.
const TILED: [usize; 4] = [64, 128, 256, 1024];

fn softmax(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let run = |what: &str, x: T| {
        let d = *x.shape.last().unwrap_or(&1);
        let v = x.values();
        let want = Want::Fused(v.chunks(d.max(1)).flat_map(row_softmax).collect());
        Trial::new(
            what,
            none.as_bytes(),
            vec![T::poison(t, &x.shape).into(), x.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    if g.about == About::Models {
        let each = TILED.map(|d| {
            run(
                &format!("[4,{d}], tiles of minus infinity"),
                empty_tiles(g, t, d),
            )
        });
        return each.to_vec();
    }
    for (n, d) in shapes(g, &[(0, 3), (1, 1), (7, 7), (10, 33), (5, 257), (5, 1000)]) {
        all.push(run(&format!("[{n},{d}]"), rows(g, t, n, d)));
    }
    if g.sizes() {
        for n in g.longs() {
            let x = T::of_bits(t, &[n, 2, 4], rows(g, t, 2 * n, 4).bits);
            all.push(run(&format!("[{n},2,4]"), x));
        }
        return all;
    }
    all.push(run(
        "[2,3,31]",
        T::of_bits(t, &[2, 3, 31], rows(g, t, 6, 31).bits),
    ));
    all.push(run("[5,40] padded", rows(g, t, 5, 40).padded(3)));
    let mut x = rows(g, t, 3, 20);
    x.bits[25] = num::encode(t, f64::NAN);
    all.push(run("a NaN keeps to its row", x));
    all
}

fn softmax_bwd(g: &mut Gen, t: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let mut all = Vec::new();
    for (n, d) in shapes(g, &[(0, 3), (1, 1), (7, 7), (10, 33), (4, 257), (3, 1000)]) {
        let x = rows(g, t, n, d).values();
        let y: Vec<f64> = x.chunks(d).flat_map(row_softmax).map(|y| y.v).collect();
        let (y, dy) = (T::new(t, &[n, d], &y), g.real(t, &[n, d], 2.0));
        let (yv, dv) = (y.values(), dy.values());
        let mut w = Vec::new();
        for r in 0..n {
            let at = |c: usize| (exact(yv[r * d + c]), exact(dv[r * d + c]));
            let s = sum((0..d).map(|c| at(c).0 * at(c).1));
            w.extend((0..d).map(|c| at(c).0 * (at(c).1 - s)));
        }
        let args = vec![T::poison(t, &[n, d]).into(), dy.into(), y.into()];
        all.push(Trial::new(
            format!("[{n},{d}]"),
            none.as_bytes(),
            args,
            vec![(0, Want::Fused(w))],
        ));
    }
    all
}

fn params(ignore: bool) -> XentParams {
    XentParams {
        flags: if ignore { FLAG_HAS_IGNORE } else { 0 },
        // Without the flag the number means nothing.
        ignore: if ignore { IGNORE } else { 0 },
        ..Default::default()
    }
}

/// Loss of a row whose target is in range.
pub fn row_loss(x: &[f64], target: usize) -> Num {
    row_lse(x) - exact(x[target])
}

/// Gradient of a row.
pub fn row_grad(x: &[f64], lse: f64, target: usize, dloss: f64) -> Vec<Num> {
    (0..x.len())
        .map(|c| {
            let p = exp_from(x[c], exact(lse));
            let p = if c == target { p - exact(1.0) } else { p };
            p * exact(dloss)
        })
        .collect()
}

fn targets(g: &mut Gen, x: &[f64], n: usize, d: usize, ignore: bool) -> Vec<i64> {
    (0..n)
        .map(|r| {
            if ignore && r % 4 == 1 && r + 1 < n {
                return IGNORE;
            }
            // A target whose logit is minus infinity has no finite loss.
            let mut c = [d - 1, 0, g.below(d)][(n - 1 - r) % 3];
            while x[r * d + c] == f64::NEG_INFINITY {
                c = (c + 1) % d;
            }
            c as i64
        })
        .collect()
}

/// The same with one of several numbers for rows that are ignored, none of them a column: that of operand `targets` is [`IGNORE`] before.
fn ignoring(mut t: Trial, targets: usize, which: usize, columns: usize) -> Trial {
    let number = match which {
        2 => -1,
        3 => columns as i64 + 2,
        _ => return t,
    };
    if let Arg::Own(x) = &mut t.args[targets] {
        let [from, to] = [IGNORE, number].map(|n| num::int_bits(x.dtype, i128::from(n)));
        x.bits
            .iter_mut()
            .filter(|b| **b == from)
            .for_each(|b| *b = to);
    }
    let p = XentParams {
        ignore: number,
        ..params(true)
    };
    t.params = p.as_bytes().to_vec();
    t.what += &format!(", {number} is ignored");
    t
}

fn xent(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let run = |what: &str, x: T, target: &[i64], ignore: bool| {
        let (n, d) = (x.shape[0], x.shape[1]);
        let v = x.values();
        let row = |r: usize| &v[r * d..(r + 1) * d];
        let lse = (0..n).map(|r| row_lse(row(r)));
        let loss = (0..n).map(|r| match target[r] {
            IGNORE if ignore => exact(0.0),
            c if (0..d as i64).contains(&c) => row_loss(row(r), c as usize),
            _ => exact(f64::NAN),
        });
        let want = vec![
            (0, Want::Fused(loss.collect())),
            (1, Want::Fused(lse.collect())),
        ];
        let args = vec![
            Arg::Own(T::poison(F, &[n])),
            T::poison(F, &[n]).into(),
            x.into(),
            T::ints(it, &[n], target).into(),
        ];
        Trial::new(what, params(ignore).as_bytes(), args, want)
    };
    let mut all = Vec::new();
    if g.about == About::Models {
        for d in TILED {
            let x = empty_tiles(g, t, d);
            let tg = targets(g, &x.values(), 4, d, false);
            all.push(run(
                &format!("[4,{d}], tiles of minus infinity"),
                x,
                &tg,
                false,
            ));
        }
        return all;
    }
    if g.about == About::Pairs {
        for [n, ignore, pad] in g.covering([4, 4, 3]) {
            let (n, d) = WIDE[n];
            let x = rows(g, t, n, d);
            let tg = targets(g, &x.values(), n, d, ignore > 0);
            let what = format!("[{n},{d}], padded by {pad}");
            let t = run(&what, x.padded(pad * pad * 2), &tg, ignore > 0);
            all.push(ignoring(t, 3, ignore, d));
        }
        return all;
    }
    for (n, d) in vocabularies(g) {
        let x = rows(g, t, n, d);
        let tg = targets(g, &x.values(), n, d, n > 1);
        all.push(run(&format!("[{n},{d}]"), x, &tg, n > 1));
    }
    if g.sizes() {
        return all;
    }
    let x = g.real(t, &[6, 40], 4.0).padded(8);
    all.push(run(
        "targets out of range, padded rows",
        x,
        &match it {
            DType::I64 => [40, -1, 3, IGNORE, (1 << 32) + 3, 39],
            _ => [40, -1, 3, IGNORE, i64::from(i32::MAX), 39],
        },
        true,
    ));
    let x = g.real(t, &[3, 40], 4.0);
    all.push(run(
        "nothing is ignored without the flag",
        x,
        &[0, IGNORE, 5],
        false,
    ));
    let mut x = g.real(t, &[3, 20], 4.0);
    x.bits[25] = num::encode(t, f64::NEG_INFINITY);
    all.push(run("a target that is impossible", x, &[0, 5, 19], false));
    let mut x = g.real(t, &[3, 20], 4.0);
    x.bits[25] = num::encode(t, f64::NAN);
    let mut trial = run(
        "an ignored row counts nothing, whatever it holds",
        x,
        &[0, IGNORE, 5],
        true,
    );
    // Its log-sum-exp is what it is.
    trial.launches[0].want.truncate(2);
    all.push(trial);
    all
}

fn xent_bwd(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let about = g.about;
    let run = |what: &str, x: T, target: &[i64], ignore: bool, dloss: T, alias: bool| {
        let (n, d) = (x.shape[0], x.shape[1]);
        let v = x.values();
        let row = |r: usize| &v[r * d..(r + 1) * d];
        let lse = T::new(
            F,
            &[n],
            &(0..n).map(|r| row_lse(row(r)).v).collect::<Vec<_>>(),
        );
        let (lv, gv) = (lse.values(), dloss.values());
        let want = (0..n).flat_map(|r| match target[r] {
            IGNORE if ignore => vec![exact(0.0); d],
            c if (0..d as i64).contains(&c) => row_grad(row(r), lv[r], c as usize, gv[r]),
            _ => vec![exact(f64::NAN); d],
        });
        let want = vec![(0, Want::Fused(want.collect()))];
        let (out, x): (Arg, Arg) = match alias {
            true => (x.clone().into(), Arg::Alias(x, 0)),
            false => (T::poison(t, &[n, d]).into(), x.into()),
        };
        // What goes with a row that is ignored is not read.
        let lse = T::new(
            F,
            &[n],
            &(0..n)
                .map(|r| {
                    if about == About::Unread && target[r] == IGNORE {
                        f64::NAN
                    } else {
                        lv[r]
                    }
                })
                .collect::<Vec<_>>(),
        );
        let args = vec![
            out,
            x,
            lse.into(),
            T::ints(it, &[n], target).into(),
            dloss.into(),
        ];
        Trial::new(what, params(ignore).as_bytes(), args, want)
    };
    let mut all = Vec::new();
    if about == About::Models {
        for d in TILED {
            let x = empty_tiles(g, t, d);
            let tg = targets(g, &x.values(), 4, d, false);
            let dl = T::new(F, &[4], &[1.0, 0.123_456_789, 1.0 / 3.0, -2.0]);
            all.push(run(
                &format!("[4,{d}], tiles of minus infinity"),
                x,
                &tg,
                false,
                dl,
                false,
            ));
        }
        return all;
    }
    if about == About::Unread {
        for (n, d, bad) in [(5, 40, f64::NAN), (9, 257, f64::INFINITY)] {
            let (mut x, mut dl) = (g.real(t, &[n, d], 4.0), g.real(F, &[n], 2.0));
            let tg: Vec<i64> = (0..n as i64)
                .map(|r| if r % 2 == 1 { IGNORE } else { r })
                .collect();
            for r in (1..n).step_by(2) {
                x.bits[r * d..(r + 1) * d].fill(num::encode(t, bad));
                dl.bits[r] = num::encode(F, bad);
            }
            let what = format!("[{n},{d}], of rows that are ignored nothing is read");
            all.push(run(&what, x, &tg, true, dl, false));
        }
        return all;
    }
    if about == About::Pairs {
        for [n, ignore, one, place, pad] in g.covering([4, 4, 2, 2, 2]) {
            let (n, d) = WIDE[n];
            let x = rows(g, t, n, d);
            let tg = targets(g, &x.values(), n, d, ignore > 0);
            let dl = match one {
                0 => g.real(F, &[n], 2.0),
                _ => T::full(F, &[n], 0.125).broadcast(&[0]),
            };
            let what = format!("[{n},{d}], one dloss {one}, in place {place}");
            let t = run(&what, x, &tg, ignore > 0, dl, place == 1);
            let t = ignoring(t, 3, ignore, d);
            let moved = (pad == 1).then(|| t.apart(false)).flatten();
            all.push(moved.map_or(t, |m| m.1));
        }
        return all;
    }
    for (n, d) in vocabularies(g) {
        let x = rows(g, t, n, d);
        let tg = targets(g, &x.values(), n, d, n > 1);
        let dl = g.real(F, &[n], 2.0);
        all.push(run(&format!("[{n},{d}]"), x, &tg, n > 1, dl, false));
    }
    if g.sizes() {
        return all;
    }
    let x = rows(g, t, 9, 40);
    let tg = targets(g, &x.values(), 9, 40, true);
    all.push(run(
        "one dloss for all, in place",
        x,
        &tg,
        true,
        T::full(F, &[9], 0.125).broadcast(&[0]),
        true,
    ));
    let far = match it {
        DType::I64 => (1 << 32) + 3,
        _ => i64::from(i32::MAX),
    };
    for ignore in [true, false] {
        let x = g.real(t, &[6, 40], 4.0);
        let (tg, dl) = ([40, -1, 3, IGNORE, far, 39], g.real(F, &[6], 2.0));
        let what = match ignore {
            true => "targets out of range",
            false => "nothing is ignored without the flag",
        };
        all.push(run(what, x, &tg, ignore, dl, false));
    }
    let mut dl = T::full(F, &[12], 1.0);
    dl.bits.splice(1..11, nans(F));
    let x = g.real(t, &[12, 20], 4.0);
    let tg: Vec<i64> = (0..12).collect();
    all.push(run("dloss NaN of every kind", x, &tg, false, dl, false));
    let mut x = g.real(t, &[3, 20], 4.0);
    x.bits[25] = num::encode(t, f64::NAN);
    all.push(run(
        "an ignored row gives zeros, whatever it holds",
        x,
        &[0, IGNORE, 5],
        true,
        T::full(F, &[3], 1.0),
        false,
    ));
    all
}
