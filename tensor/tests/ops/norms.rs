//! Norms, softmax and cross-entropy against plain f64 references, written from the formulas and not from any kernel.

use super::bench::*;
use crossweave_hal::DType;
use crossweave_hal::abi::op;

const NO: op::NoParams = op::NoParams {
    size: size_of::<op::NoParams>() as u32,
    flags: 0,
};

fn norm_params(eps: f64) -> op::NormParams {
    op::NormParams {
        eps,
        ..Default::default()
    }
}

/// Mean and 1/sqrt(variance + eps) of a row; without `centre` the mean is 0.
fn stats(row: &[f64], eps: f64, centre: bool) -> (f64, f64) {
    let d = row.len() as f64;
    let m = if centre {
        row.iter().sum::<f64>() / d
    } else {
        0.0
    };
    let v = row.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / d;
    (m, 1.0 / (v + eps).sqrt())
}

fn norms(b: &Bench, centre: bool, backward: bool) {
    let mut r = Rng(1);
    for t in STORAGES {
        for (n, d) in [(0u64, 3u64), (1, 1), (3, 7), (5, 64), (9, 333)] {
            for with in [false, true] {
                let eps = 1e-5;
                let x = T::padded(&mut r, t, &[n, d], 2.0);
                let w = T::random(&mut r, t, &[d], 1.5);
                let bias = T::random(&mut r, t, &[d], 1.0);
                let (xv, wv, bv) = (x.values(), w.values(), bias.values());
                let rows = |i: usize| &xv[i * d as usize..(i + 1) * d as usize];
                let st: Vec<_> = (0..n as usize)
                    .map(|i| stats(rows(i), eps, centre))
                    .collect();
                let mean: Vec<f64> = st.iter().map(|s| s.0).collect();
                let rstd: Vec<f64> = st.iter().map(|s| s.1).collect();
                let hat = |k: usize| (xv[k] - mean[k / d as usize]) * rstd[k / d as usize];
                let count = (n * d) as usize;
                let p = norm_params(eps);
                if !backward {
                    let y: Vec<f64> = (0..count)
                        .map(|k| {
                            let j = k % d as usize;
                            hat(k) * wv[j] + if centre && with { bv[j] } else { 0.0 }
                        })
                        .collect();
                    let (y0, s0) = (T::poison(t, &[n, d]), T::poison(DType::F32, &[n]));
                    if centre {
                        let bias = if with { bias } else { T::absent() };
                        let o = [y0, s0.clone(), s0, x, w, bias];
                        let want = [(0, y, 3e-6), (1, mean, 3e-6), (2, rstd, 3e-6)];
                        b.check(
                            "layer_norm_fwd",
                            op::LAYER_NORM_FWD,
                            p.as_bytes(),
                            &[],
                            &o,
                            &[],
                            &want,
                        );
                    } else {
                        let o = [y0, s0, x, w];
                        let want = [(0, y, 3e-6), (1, rstd, 3e-6)];
                        b.check(
                            "rms_norm_fwd",
                            op::RMS_NORM_FWD,
                            p.as_bytes(),
                            &[],
                            &o,
                            &[],
                            &want,
                        );
                    }
                    continue;
                }
                let dy = T::random(&mut r, t, &[n, d], 1.0);
                let dres = T::random(&mut r, t, &[n, d], 1.0);
                let (dyv, drv) = (dy.values(), dres.values());
                let dw0 = T::random(&mut r, DType::F32, &[d], 1.0);
                let db0 = T::random(&mut r, DType::F32, &[d], 1.0);
                let (mut dw, mut db) = (dw0.values(), db0.values());
                let mut dx = vec![0.0; count];
                for i in 0..n as usize {
                    let at = |j: usize| i * d as usize + j;
                    let g = |j: usize| dyv[at(j)] * wv[j];
                    let all = 0..d as usize;
                    let s1 = all.clone().map(g).sum::<f64>() / d as f64;
                    let s2 = all.clone().map(|j| g(j) * hat(at(j))).sum::<f64>() / d as f64;
                    for j in all {
                        let c = if centre { s1 } else { 0.0 };
                        dx[at(j)] = rstd[i] * (g(j) - c - hat(at(j)) * s2);
                        dx[at(j)] += if with { drv[at(j)] } else { 0.0 };
                        dw[j] += dyv[at(j)] * hat(at(j));
                        db[j] += dyv[at(j)];
                    }
                }
                let f32s = |v: &[f64]| T::new(DType::F32, &[n], v);
                let (m, s) = (f32s(&mean), f32s(&rstd));
                let res = if with { dres } else { T::absent() };
                // dx over dres, over dy, and apart from both.
                let aliases: &[&[(usize, usize)]] = match (with, centre) {
                    (true, true) => &[&[], &[(0, 8)], &[(0, 3)]],
                    (true, false) => &[&[], &[(0, 6)], &[(0, 2)]],
                    (false, _) => &[&[]],
                };
                for alias in aliases {
                    let dx0 = T::poison(t, &[n, d]);
                    if centre {
                        let (with_b, db0) = if with {
                            (true, db0.clone())
                        } else {
                            (false, T::absent())
                        };
                        let o = [
                            dx0,
                            dw0.clone(),
                            db0,
                            dy.clone(),
                            x.clone(),
                            w.clone(),
                            m.clone(),
                            s.clone(),
                            res.clone(),
                        ];
                        let mut want = vec![(0, dx.clone(), 1e-5), (1, dw.clone(), 3e-6)];
                        if with_b {
                            want.push((2, db.clone(), 3e-6));
                        }
                        b.check(
                            "layer_norm_bwd",
                            op::LAYER_NORM_BWD,
                            p.as_bytes(),
                            &[],
                            &o,
                            alias,
                            &want,
                        );
                    } else {
                        let o = [
                            dx0,
                            dw0.clone(),
                            dy.clone(),
                            x.clone(),
                            w.clone(),
                            s.clone(),
                            res.clone(),
                        ];
                        let want = [(0, dx.clone(), 1e-5), (1, dw.clone(), 3e-6)];
                        b.check(
                            "rms_norm_bwd",
                            op::RMS_NORM_BWD,
                            p.as_bytes(),
                            &[],
                            &o,
                            alias,
                            &want,
                        );
                    }
                }
            }
        }
    }
}

pub fn layer_norm_fwd(b: &Bench) {
    norms(b, true, false);
}
pub fn layer_norm_bwd(b: &Bench) {
    norms(b, true, true);
}
pub fn rms_norm_fwd(b: &Bench) {
    norms(b, false, false);
}
pub fn rms_norm_bwd(b: &Bench) {
    norms(b, false, true);
}

fn softmax_of(x: &[f64], d: usize) -> Vec<f64> {
    x.chunks(d)
        .flat_map(|r| {
            let m = r.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let s: f64 = r.iter().map(|v| (v - m).exp()).sum();
            r.iter().map(move |v| (v - m).exp() / s)
        })
        .collect()
}

pub fn softmax(b: &Bench) {
    let mut r = Rng(2);
    for t in STORAGES {
        for (n, d) in [(0u64, 3u64), (1, 1), (4, 33), (3, 1000)] {
            let x = T::padded(&mut r, t, &[n, d], 30.0);
            let y = softmax_of(&x.values(), d as usize);
            let o = [T::poison(t, &[n, d]), x];
            b.check(
                "softmax_fwd",
                op::SOFTMAX_FWD,
                NO.as_bytes(),
                &[],
                &o,
                &[],
                &[(0, y, 1e-6)],
            );
        }
    }
}

pub fn softmax_bwd(b: &Bench) {
    let mut r = Rng(3);
    for t in STORAGES {
        for (n, d) in [(0u64, 3u64), (1, 1), (4, 33), (3, 1000)] {
            let y = T::new(t, &[n, d], &softmax_of(&r.floats(n * d, 3.0), d as usize));
            let dy = T::padded(&mut r, t, &[n, d], 2.0);
            let (yv, dv) = (y.values(), dy.values());
            let dx: Vec<f64> = (0..(n * d) as usize)
                .map(|k| {
                    let row = k / d as usize * d as usize..(k / d as usize + 1) * d as usize;
                    yv[k] * (dv[k] - row.map(|j| dv[j] * yv[j]).sum::<f64>())
                })
                .collect();
            let o = [T::poison(t, &[n, d]), dy, y];
            b.check(
                "softmax_bwd",
                op::SOFTMAX_BWD,
                NO.as_bytes(),
                &[],
                &o,
                &[],
                &[(0, dx, 2e-6)],
            );
        }
    }
}

fn xent(b: &Bench, backward: bool) {
    let mut r = Rng(4);
    for t in STORAGES {
        for index in [DType::I32, DType::I64] {
            for (n, v) in [(0u64, 3u64), (1, 1), (6, 11), (5, 1000)] {
                let x = T::padded(&mut r, t, &[n, v], 8.0);
                let xv = x.values();
                let mut target: Vec<f64> = (0..n).map(|_| r.below(v) as f64).collect();
                if n > 4 {
                    // One row ignored, one out of range on either side.
                    (target[1], target[2], target[3]) = (-100.0, v as f64, -1.0);
                }
                let p = op::XentParams {
                    flags: op::FLAG_HAS_IGNORE,
                    ignore: -100,
                    ..Default::default()
                };
                let lse: Vec<f64> = xv
                    .chunks(v as usize)
                    .map(|r| {
                        let m = r.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                        m + r.iter().map(|v| (v - m).exp()).sum::<f64>().ln()
                    })
                    .collect();
                // 1 for a class, 0 ignored, NaN out of range.
                let live = |i: usize| match target[i] {
                    -100.0 => 0.0,
                    c if (0.0..v as f64).contains(&c) => 1.0,
                    _ => f64::NAN,
                };
                let tt = T::new(index, &[n], &target);
                if !backward {
                    let loss: Vec<f64> = (0..n as usize)
                        .map(|i| match live(i) {
                            1.0 => lse[i] - xv[i * v as usize + target[i] as usize],
                            other => other,
                        })
                        .collect();
                    let s = T::poison(DType::F32, &[n]);
                    let o = [s.clone(), s, x, tt];
                    let want = [(0, loss, 1e-6), (1, lse, 1e-6)];
                    b.check(
                        "cross_entropy_fwd",
                        op::CROSS_ENTROPY_FWD,
                        p.as_bytes(),
                        &[],
                        &o,
                        &[],
                        &want,
                    );
                    continue;
                }
                let l = T::new(DType::F32, &[n], &lse);
                let each = T::random(&mut r, DType::F32, &[n], 1.0);
                let one = T::strided(DType::F32, &[n], &[0], &vec![0.125; n as usize]);
                for dloss in [each, one] {
                    let (dl, lv) = (dloss.values(), l.values());
                    let dx: Vec<f64> = (0..(n * v) as usize)
                        .map(|k| {
                            let (i, j) = (k / v as usize, k % v as usize);
                            let hot = if target[i] == j as f64 { 1.0 } else { 0.0 };
                            match live(i) {
                                1.0 => ((xv[k] - lv[i]).exp() - hot) * dl[i],
                                other => other,
                            }
                        })
                        .collect();
                    let o = [
                        T::poison(t, &[n, v]),
                        x.clone(),
                        l.clone(),
                        tt.clone(),
                        dloss,
                    ];
                    let want = [(0, dx.clone(), 2e-6)];
                    b.check(
                        "cross_entropy_bwd",
                        op::CROSS_ENTROPY_BWD,
                        p.as_bytes(),
                        &[],
                        &o,
                        &[],
                        &want,
                    );
                    // In place over dense logits.
                    let mut o = o;
                    o[1] = T::new(t, &[n, v], &xv);
                    let alias = [(0, 1)];
                    b.check(
                        "cross_entropy_bwd in place",
                        op::CROSS_ENTROPY_BWD,
                        p.as_bytes(),
                        &[],
                        &o,
                        &alias,
                        &want,
                    );
                }
            }
        }
    }
}
pub fn cross_entropy_fwd(b: &Bench) {
    xent(b, false);
}
pub fn cross_entropy_bwd(b: &Bench) {
    xent(b, true);
}
