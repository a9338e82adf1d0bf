//! `layer_norm_*`, `rms_norm_*`. Rows with a mean far above their deviation tell two passes (or a careful one) from `E[x²] - E[x]²` in f32.

use super::bound::{Num, num as exact, sum};
use super::cell::{About, Cell, FLOATS, Gen};
use super::moves::nans;
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crate::case::Effort;
use crossweave_abi::DType;
use crossweave_abi::op::{self, NormParams};

const F: DType = DType::F32;
const EPS: f64 = 1e-5;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for w in FLOATS {
            if w != t && w != F {
                continue;
            }
            let what = match w == t {
                true => t.name().to_string(),
                false => format!("{}.w_f32", t.name()),
            };
            all.push(Cell::new(op::LAYER_NORM_FWD, &what, move |g| {
                forward(g, t, w, true)
            }));
            all.push(Cell::new(op::LAYER_NORM_BWD, &what, move |g| {
                backward(g, t, w, true)
            }));
            all.push(Cell::new(op::RMS_NORM_FWD, &what, move |g| {
                forward(g, t, w, false)
            }));
            all.push(Cell::new(op::RMS_NORM_BWD, &what, move |g| {
                backward(g, t, w, false)
            }));
        }
    }
    all
}

/// A row's mean (0 for RMS) and 1/deviation.
pub fn statistics(x: &[f64], centred: bool, eps: f64) -> (Num, Num) {
    let n = exact(x.len() as f64);
    let mean = if centred {
        sum(x.iter().map(|v| exact(*v))) / n
    } else {
        exact(0.0)
    };
    let c = x
        .iter()
        .map(|v| if centred { exact(*v) - mean } else { exact(*v) });
    let var = sum(c.map(|c| c * c)) / n;
    let eps = exact(f64::from(eps as f32)).rounded_from(eps);
    (mean, exact(1.0) / (var + eps).sqrt())
}

/// One row of the forward.
pub fn row_forward(
    x: &[f64],
    w: &[f64],
    b: Option<&[f64]>,
    centred: bool,
    eps: f64,
) -> (Vec<Num>, Num, Num) {
    let (mean, rstd) = statistics(x, centred, eps);
    let y = (0..x.len())
        .map(|i| {
            let c = if centred {
                exact(x[i]) - mean
            } else {
                exact(x[i])
            };
            let y = c * rstd * exact(w[i]);
            b.map_or(y, |b| y + exact(b[i]))
        })
        .collect();
    (y, mean, rstd)
}

/// One row of the backward: dx (without dres), and this row's parts of dw and db. `None` for the mean of RMS.
pub fn row_backward(
    dy: &[f64],
    x: &[f64],
    w: &[f64],
    mean: Option<f64>,
    rstd: f64,
) -> (Vec<Num>, Vec<Num>) {
    let d = exact(x.len() as f64);
    let rs = exact(rstd);
    let h: Vec<Num> = x
        .iter()
        .map(|x| mean.map_or(exact(*x), |m| exact(*x) - exact(m)) * rs)
        .collect();
    let g: Vec<Num> = dy
        .iter()
        .zip(w)
        .map(|(a, b)| exact(*a) * exact(*b))
        .collect();
    let c1 = sum(g.iter().copied()) / d;
    let c2 = sum(g.iter().zip(&h).map(|(a, b)| *a * *b)) / d;
    let dx = g
        .iter()
        .zip(&h)
        .map(|(g, h)| {
            let g = if mean.is_some() { *g - c1 } else { *g };
            rs * (g - *h * c2)
        })
        .collect();
    (dx, dy.iter().zip(&h).map(|(a, h)| exact(*a) * *h).collect())
}

fn params(eps: f64) -> NormParams {
    NormParams {
        eps,
        ..Default::default()
    }
}

/// Rows of several kinds: plain, far from zero, nearly constant, of one huge element.
fn rows(g: &mut Gen, t: DType, n: usize, d: usize) -> T {
    let mut v = g.reals(n * d, 2.0);
    for r in 0..n {
        let row = &mut v[r * d..(r + 1) * d];
        match r % 4 {
            1 => row
                .iter_mut()
                .for_each(|x| *x = *x * 0.5 + if t == F { 1000.0 } else { 12.0 }),
            2 => row.iter_mut().for_each(|x| *x *= 1e-3),
            3 if d > 1 => row[d / 2] = 300.0,
            _ => {}
        }
    }
    T::new(t, &[n, d], &v)
}

/// Rows of many widths, and many rows: of four rows one of each kind.
fn large(g: &mut Gen) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    if g.residues() {
        return g.ending(2048).into_iter().map(|[n, d]| (n, d)).collect();
    }
    for n in g.beyond() {
        all.extend([(4, n), (n, 5)]);
    }
    all.extend(g.grid().into_iter().map(|n| (n, 3)));
    if g.effort != Effort::Quick {
        all.push((130, 1030));
    }
    all
}

fn forward(g: &mut Gen, t: DType, tw: DType, centred: bool) -> Vec<Trial> {
    let with = |eps: f64, what: &str, x: T, w: T, b: Option<T>| {
        let d = *x.shape.last().unwrap_or(&1);
        let n = x.bits.len() / d.max(1);
        let (v, wv, bv) = (x.values(), w.values(), b.as_ref().map(T::values));
        let all: Vec<_> = (0..n)
            .map(|r| row_forward(&v[r * d..(r + 1) * d], &wv, bv.as_deref(), centred, eps))
            .collect();
        let y = Want::Fused(all.iter().flat_map(|r| r.0.clone()).collect());
        let stat = |f: fn(&(Vec<Num>, Num, Num)) -> Num| Want::Fused(all.iter().map(f).collect());
        let lead = x.shape[..x.shape.len() - 1].to_vec();
        let s = || Arg::Own(T::poison(F, &lead));
        let out: Arg = T::poison(t, &x.shape).into();
        let (args, want) = if centred {
            (
                vec![out, s(), s(), x.into(), w.into(), b.into()],
                vec![(0, y), (1, stat(|r| r.1)), (2, stat(|r| r.2))],
            )
        } else {
            (
                vec![out, s(), x.into(), w.into()],
                vec![(0, y), (1, stat(|r| r.2))],
            )
        };
        Trial::new(what, params(eps).as_bytes(), args, want)
    };
    let run = |what: &str, x: T, w: T, b: Option<T>| with(EPS, what, x, w, b);
    let mut all = Vec::new();
    if g.about == About::Models {
        for eps in [1e-5, 1e-6, 1e-12, 3.3e-7, 0.012_345_678] {
            // Of the rows some whose variance is near eps.
            let (x, w) = (rows(g, t, 7, 40), g.real(tw, &[40], 2.0));
            all.push(with(eps, &format!("eps {eps}"), x, w, None));
        }
        return all;
    }
    if g.about == About::Pairs {
        for [n, eps, bias, lie] in g.covering([4, 4, 2, 4]) {
            let (n, d) = [(3, 7), (5, 64), (8, 33), (2, 257)][n];
            let eps = [1e-5, 0.012_345_678, 1e-12, 0.0][eps];
            let (x, w) = (rows(g, t, n, d), g.real(tw, &[d], 2.0));
            let b = (centred && bias == 1).then(|| g.real(tw, &[d], 2.0));
            let x = match lie {
                1 => x.padded(8),
                2 => T::of_bits(t, &[1, n, d], x.bits),
                3 => T::of_bits(t, &[n, 1, d], x.bits).padded(1),
                _ => x,
            };
            let what = format!("{:?}, lie {lie}, eps {eps}, bias {bias}", x.shape);
            all.push(with(eps, &what, x, w, b));
        }
        return all;
    }
    let mut shapes = vec![
        (0, 5),
        (1, 1),
        (3, 7),
        (5, 64),
        (9, 33),
        (4, 257),
        (2, 1000),
    ];
    if g.sizes() {
        shapes = large(g);
    }
    for (n, d) in shapes {
        let (x, w) = (rows(g, t, n, d), g.real(tw, &[d], 2.0));
        let b = centred.then(|| g.real(tw, &[d], 2.0));
        all.push(run(&format!("[{n},{d}]"), x, w, b));
    }
    if g.sizes() {
        for n in g.longs() {
            let x = T::of_bits(t, &[n, 2, 5], rows(g, t, 2 * n, 5).bits);
            let w = g.real(tw, &[5], 2.0);
            all.push(run(&format!("[{n},2,5]"), x, w, None));
        }
        return all;
    }
    let (x, w) = (rows(g, t, 6, 40), g.real(tw, &[40], 2.0));
    if centred {
        all.push(run("[6,40] without bias", x.clone(), w.clone(), None));
    }
    all.push(run("[6,40] padded rows", x.padded(8), w, None));
    let x = T::of_bits(t, &[2, 3, 33], rows(g, t, 6, 33).bits);
    let w = g.real(tw, &[33], 2.0);
    all.push(run("[2,3,33]", x, w, None));
    for eps in [0.0, 0.5] {
        let (x, w) = (rows(g, t, 5, 40), g.real(tw, &[40], 2.0));
        all.push(with(eps, &format!("eps {eps}"), x, w, None));
    }
    let mut x = rows(g, t, 3, 33);
    x.bits[40] = super::num::encode(t, f64::NAN);
    let w = g.real(tw, &[33], 2.0);
    all.push(run("a NaN keeps to its row", x, w, None));
    let (x, mut w) = (rows(g, t, 3, 33), g.real(tw, &[33], 2.0));
    w.bits.splice(5..15, nans(tw));
    all.push(run("weights NaN of every kind", x, w, None));
    all
}

/// What a backward has and where its result lies: db, a residual, dx in dy (1) or in dres (2).
const PARTS: [(&str, bool, bool, usize); 5] = [
    ("alone", false, false, 0),
    ("with db alone", true, false, 0),
    ("with a residual alone", false, true, 0),
    ("in place of dy", true, true, 1),
    ("in place of dres", true, true, 2),
];

fn backward(g: &mut Gen, t: DType, tw: DType, centred: bool) -> Vec<Trial> {
    // `alias`: dx lies in dy (1) or in dres (2).
    let run = |g: &mut Gen,
               what: &str,
               n: usize,
               d: usize,
               with_db: bool,
               with_res: bool,
               alias: usize| {
        let (x, w, dy) = (
            rows(g, t, n, d),
            g.real(tw, &[d], 2.0),
            g.real(t, &[n, d], 2.0),
        );
        let dres = with_res.then(|| g.real(t, &[n, d], 2.0));
        let (xv, wv, dv) = (x.values(), w.values(), dy.values());
        let stats: Vec<_> = (0..n)
            .map(|r| statistics(&xv[r * d..(r + 1) * d], centred, EPS))
            .collect();
        let column =
            |f: fn(&(Num, Num)) -> f64| T::new(F, &[n], &stats.iter().map(f).collect::<Vec<_>>());
        let (mean, rstd) = (column(|s| s.0.v), column(|s| s.1.v));
        let (mv, rv) = (mean.values(), rstd.values());
        let (dw, db) = (g.real(F, &[d], 1.0), g.real(F, &[d], 1.0));
        let per: Vec<_> = (0..n)
            .map(|r| {
                let at = r * d..(r + 1) * d;
                row_backward(&dv[at.clone()], &xv[at], &wv, centred.then(|| mv[r]), rv[r])
            })
            .collect();
        let res = dres.as_ref().map(T::values);
        let dx = per.iter().flat_map(|p| p.0.clone()).enumerate();
        let dx = Want::Fused(
            dx.map(|(i, v)| res.as_ref().map_or(v, |r| v + exact(r[i])))
                .collect(),
        );
        let grown = |old: &T, part: &dyn Fn(usize, usize) -> Num| {
            let o = old.values();
            Want::Fused(
                (0..d)
                    .map(|c| sum((0..n).map(|r| part(r, c)).chain([exact(o[c])])))
                    .collect(),
            )
        };
        let dw_want = grown(&dw, &|r, c| per[r].1[c]);
        let db_want = grown(&db, &|r, c| exact(dv[r * d + c]));
        let mut want = vec![(0, dx), (1, dw_want)];
        let (out, dy, dres): (Arg, Arg, Arg) = match alias {
            1 => (dy.clone().into(), Arg::Alias(dy, 0), dres.into()),
            2 => match dres {
                Some(r) => (r.clone().into(), dy.into(), Arg::Alias(r, 0)),
                None => (T::poison(t, &[n, d]).into(), dy.into(), Arg::Absent),
            },
            _ => (T::poison(t, &[n, d]).into(), dy.into(), dres.into()),
        };
        let args = if centred {
            if with_db {
                want.push((2, db_want));
            }
            let db: Arg = with_db.then_some(db).into();
            vec![
                out,
                dw.into(),
                db,
                dy,
                x.into(),
                w.into(),
                mean.into(),
                rstd.into(),
                dres,
            ]
        } else {
            vec![out, dw.into(), dy, x.into(), w.into(), rstd.into(), dres]
        };
        Trial::new(what, params(EPS).as_bytes(), args, want)
    };
    let mut all = Vec::new();
    if g.about == About::Pairs {
        for [n, part, gaps] in g.covering([4, 5, 2]) {
            let (n, d) = [(3, 7), (70, 20), (9, 64), (2, 257)][n];
            let (what, db, res, alias) = PARTS[part];
            let t = run(g, &format!("[{n},{d}] {what}"), n, d, db, res, alias);
            let moved = (gaps == 1).then(|| t.apart(false)).flatten();
            all.push(moved.map_or(t, |m| m.1));
        }
        return all;
    }
    let mut shapes = vec![
        (0, 5),
        (1, 1),
        (3, 7),
        (9, 33),
        (70, 20),
        (4, 257),
        (2, 1000),
    ];
    if g.sizes() {
        shapes = large(g);
    }
    for (n, d) in shapes {
        all.push(run(
            g,
            &format!("[{n},{d}] with a residual"),
            n,
            d,
            true,
            true,
            0,
        ));
    }
    if g.sizes() {
        return all;
    }
    for (what, db, res, alias) in PARTS {
        all.push(run(g, &format!("[5,40] {what}"), 5, 40, db, res, alias));
    }
    all
}
