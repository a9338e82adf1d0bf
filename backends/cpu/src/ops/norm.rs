//! layer_norm_* and rms_norm_*: a row is read once from memory, statistics in f64, weight gradients as partial sums in fixed order.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, sum};
use crossweave_plugin::op::{NormBackward, NormForward};
use crossweave_plugin::{OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

clones! {
    fn affine(x: &[f32], mean: f32, rstd: f32, w: &[f32], b: &[f32], y: &mut [f32]) {
        for (((y, x), w), b) in y.iter_mut().zip(x).zip(w).zip(b) { *y = (x - mean) * rstd * w + b; }
    }
    fn scaled(x: &[f32], mean: f32, rstd: f32, w: &[f32], y: &mut [f32]) {
        for ((y, x), w) in y.iter_mut().zip(x).zip(w) { *y = (x - mean) * rstd * w; }
    }
    // xhat in place of x, w * dy into g; dw and db grow.
    fn accumulate(x: &mut [f32], mean: f32, rstd: f32, dy: &[f32], w: &[f32], g: &mut [f32], dw: &mut [f32]) {
        for ((((x, dy), w), g), dw) in x.iter_mut().zip(dy).zip(w).zip(g).zip(dw) {
            let h = (*x - mean) * rstd;
            *x = h;
            *g = w * dy;
            *dw += dy * h;
        }
    }
    fn grow(dy: &[f32], db: &mut [f32]) { for (b, d) in db.iter_mut().zip(dy) { *b += *d; } }
    fn input_grad(x: &[f32], mean: f32, rstd: f32, dy: &[f32], w: &[f32], c1: f32, c2: f32, dx: &mut [f32]) {
        for (((x, dy), w), dx) in x.iter().zip(dy).zip(w).zip(dx) {
            let h = (*x - mean) * rstd;
            *dx = rstd * (w * dy - c1 - h * c2);
        }
    }
}

/// Rows of a task: about [`CHUNK`] elements.
fn rows_per_task(d: usize) -> usize {
    (CHUNK / d.max(1)).max(1)
}

struct Forward {
    r: NormForward,
    centred: bool,
}

fn forward(o: &OpRequest<'_>, centred: bool) -> Prepared {
    let r = NormForward::read(o, centred)?;
    Ok((Box::new(Forward { r, centred }), plan(o, 0)))
}

/// `layer_norm_fwd`.
pub fn layer_forward(o: &OpRequest<'_>, _: usize) -> Prepared {
    forward(o, true)
}
/// `rms_norm_fwd`.
pub fn rms_forward(o: &OpRequest<'_>, _: usize) -> Prepared {
    forward(o, false)
}

impl Kernel for Forward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let args = Args::of(l);
        let y = args.at(0);
        let at = if self.centred { 3 } else { 2 };
        let (x, w) = (args.at(at), args.at(at + 1));
        let (mean_out, rstd_out) = (args.at(1), args.at(at - 1));
        let d = self.r.d;
        chunks(l.team, self.r.n, rows_per_task(d), &|start, len| {
            let (mut bx, mut bw, mut bb, mut by) =
                ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            for r in start..start + len {
                let (mut s, mut q) = (0f64, 0f64);
                blocks(0, d, |c, n| {
                    // SAFETY: row `r` is inside the layout; this task alone writes row `r`.
                    let v = unsafe { self.r.x.get(x, r * d + c, n, &mut bx) };
                    if self.centred {
                        s += sum::sum(v);
                    }
                    q += sum::sumsq(v);
                });
                let mean = s / d as f64;
                // f64 sums make the difference of squares as good as a second pass.
                let var = (q / d as f64 - mean * mean).max(0.0);
                // `max` would swallow a NaN.
                let var = if q.is_nan() { q } else { var };
                let rstd = (1.0 / (var + self.r.eps).sqrt()) as f32;
                let mean = mean as f32;
                // SAFETY: as above.
                unsafe {
                    if self.centred {
                        *mean_out.at(r) = mean;
                    }
                    *rstd_out.at(r) = rstd;
                }
                blocks(0, d, |c, n| {
                    // SAFETY: as above.
                    unsafe {
                        let v = self.r.x.get(x, r * d + c, n, &mut bx);
                        let w = self.r.w.get(w, c, n, &mut bw);
                        match &self.r.b {
                            Some(b) => {
                                let b = b.get(args.at(5), c, n, &mut bb);
                                affine(v, mean, rstd, w, b, &mut by[..n]);
                            }
                            None => scaled(v, mean, rstd, w, &mut by[..n]),
                        }
                        self.r.y.store(y, r * d + c, &by[..n]);
                    }
                });
            }
        });
    }
}

struct Backward {
    r: NormBackward,
    centred: bool,
    /// Rows of a partial sum of dw and db.
    rows: usize,
}

/// Partial sums of the weight gradients: at most so many, by shape alone.
const PARTS: usize = 64;

fn backward(o: &OpRequest<'_>, centred: bool) -> Prepared {
    let r = NormBackward::read(o, centred)?;
    let (n, d) = (r.n, r.d);
    let rows = n.div_ceil(PARTS).max(rows_per_task(d).min(64)).max(1);
    let parts = n.div_ceil(rows);
    let k = Backward { r, centred, rows };
    Ok((Box::new(k), plan(o, (parts * d * 8) as u64)))
}

/// `layer_norm_bwd`.
pub fn layer_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    backward(o, true)
}
/// `rms_norm_bwd`.
pub fn rms_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    backward(o, false)
}

impl Kernel for Backward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let at = if self.centred { 3 } else { 2 };
        let args = Args::of(l);
        let dx = args.at(0);
        let [dy, x, w] = [0, 1, 2].map(|i| args.at(at + i));
        let mean = self.centred.then(|| args.at(6));
        let (rstd, dres) = if self.centred { (7, 8) } else { (5, 6) };
        let rstd = args.at(rstd);
        let dres = self.r.dres.as_ref().map(|v| (v, args.at(dres)));
        let (d, part) = (self.r.d, Ptr(l.workspace));
        chunks(l.team, self.r.n, self.rows, &|start, len| {
            let p = start / self.rows;
            let (mut bx, mut bd, mut bw, mut g) =
                ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            // SAFETY: each task has its own part of the workspace.
            let (dw, db) = unsafe {
                (
                    part.slice_mut::<f32>(p * 2 * d, d),
                    part.slice_mut::<f32>((p * 2 + 1) * d, d),
                )
            };
            dw.fill(0.0);
            db.fill(0.0);
            for r in start..start + len {
                // SAFETY: row `r` is inside the layouts and belongs to this task.
                let (m, rs) =
                    unsafe { (mean.map_or(0.0, |m| *m.at::<f32>(r)), *rstd.at::<f32>(r)) };
                let (mut s1, mut s2) = (0f64, 0f64);
                blocks(0, d, |c, n| {
                    // SAFETY: as above.
                    unsafe {
                        self.r.x.load(x, r * d + c, &mut bx[..n]);
                        let vy = self.r.dy.get(dy, r * d + c, n, &mut bd);
                        let vw = self.r.w.get(w, c, n, &mut bw);
                        accumulate(&mut bx[..n], m, rs, vy, vw, &mut g[..n], &mut dw[c..c + n]);
                        if self.r.has_db {
                            grow(vy, &mut db[c..c + n]);
                        }
                    }
                    if self.centred {
                        s1 += sum::sum(&g[..n]);
                    }
                    s2 += sum::dot(&g[..n], &bx[..n]);
                });
                let (c1, c2) = ((s1 / d as f64) as f32, (s2 / d as f64) as f32);
                blocks(0, d, |c, n| {
                    // SAFETY: as above; dy and dres are read before dx, which may be either of them, is written.
                    unsafe {
                        let vx = self.r.x.get(x, r * d + c, n, &mut bx);
                        let vy = self.r.dy.get(dy, r * d + c, n, &mut bd);
                        let vw = self.r.w.get(w, c, n, &mut bw);
                        input_grad(vx, m, rs, vy, vw, c1, c2, &mut g[..n]);
                        if let Some((v, p)) = dres {
                            grow(v.get(p, r * d + c, n, &mut bx), &mut g[..n]);
                        }
                        self.r.dx.store(dx, r * d + c, &g[..n]);
                    }
                });
            }
        });
        let parts = self.r.n.div_ceil(self.rows);
        chunks(l.team, d, BLOCK, &|start, len| {
            for (which, operand) in [(0, 1), (1, 2)] {
                if which == 1 && !self.r.has_db {
                    continue;
                }
                let mut acc = [0f64; BLOCK];
                // SAFETY: the partial sums are finished; columns belong to this task.
                unsafe {
                    for p in 0..parts {
                        let v = part.slice::<f32>((2 * p + which) * d + start, len);
                        for (a, v) in acc.iter_mut().zip(v) {
                            *a += *v as f64;
                        }
                    }
                    let out = args.at(operand).slice_mut::<f32>(start, len);
                    for (o, a) in out.iter_mut().zip(&acc) {
                        *o = (*o as f64 + a) as f32;
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use crossweave_abi::op;
    use crossweave_plugin::{Code, DType};

    const SHAPES: [(usize, usize); 8] = [
        (0, 5),
        (1, 1),
        (3, 7),
        (5, 33),
        (2, 1000),
        (3, 4099),
        (150, 64),
        (700, 130),
    ];

    fn params(eps: f64) -> op::NormParams {
        op::NormParams {
            eps,
            ..Default::default()
        }
    }

    /// Mean (0 for rms) and 1/deviation of each row.
    fn stats(x: &[f64], n: usize, d: usize, eps: f64, layer: bool) -> (Vec<f64>, Vec<f64>) {
        (0..n)
            .map(|r| {
                let row = &x[r * d..(r + 1) * d];
                let m = if layer {
                    row.iter().sum::<f64>() / d as f64
                } else {
                    0.0
                };
                let v = row.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / d as f64;
                (m, 1.0 / (v + eps).sqrt())
            })
            .unzip()
    }

    #[test]
    fn forward_and_backward_against_f64() {
        let mut rng = Rng(10);
        for layer in [true, false] {
            for t in STORAGES {
                for (n, d) in SHAPES {
                    // An offset far from zero is what breaks one-pass variances.
                    let v: Vec<f64> = rng.floats(n * d, 1.0).iter().map(|v| v + 3.0).collect();
                    let x = Tensor::new(t, &[n, d], &v);
                    let w = Tensor::new(t, &[d], &rng.floats(d, 2.0));
                    let b = Tensor::new(t, &[d], &rng.floats(d, 2.0));
                    let (xv, wv, bv) = (x.values(), w.values(), b.values());
                    let eps = 1e-5;
                    let (mean, rstd) = stats(&xv, n, d, eps, layer);
                    let s = || Tensor::poison(DType::F32, &[n]);
                    let y = Tensor::poison(t, &[n, d]);
                    let hat = |i: usize| (xv[i] - mean[i / d]) * rstd[i / d];
                    for bias in [true, false] {
                        let mut ops = if layer {
                            let b = if bias { b.clone() } else { Tensor::absent() };
                            vec![y.clone(), s(), s(), x.clone(), w.clone(), b]
                        } else {
                            vec![y.clone(), s(), x.clone(), w.clone()]
                        };
                        let id = if layer {
                            op::LAYER_NORM_FWD
                        } else {
                            op::RMS_NORM_FWD
                        };
                        run(id, params(eps).as_bytes(), &[], &mut ops);
                        let want: Vec<f64> = (0..n * d)
                            .map(|i| {
                                hat(i) * wv[i % d] + if layer && bias { bv[i % d] } else { 0.0 }
                            })
                            .collect();
                        let slack = if d == 1 { 1e-3 } else { 8e-6 };
                        close("y", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 8.0) + slack
                        });
                        if layer {
                            close("mean", &ops[1].values(), &mean, |i| {
                                rounding(DType::F32, mean[i], 2.0)
                            });
                        }
                        let at = if layer { 2 } else { 1 };
                        close("rstd", &ops[at].values(), &rstd, |i| 1e-6 * rstd[i]);
                    }
                    // Backward.
                    let dy = Tensor::new(t, &[n, d], &rng.floats(n * d, 1.0));
                    let res = Tensor::new(t, &[n, d], &rng.floats(n * d, 1.0));
                    let (dv, rv) = (dy.values(), res.values());
                    let st = |v: &[f64]| Tensor::new(DType::F32, &[n], v);
                    for with_res in [0, 1, 2] {
                        let dw = Tensor::new(DType::F32, &[d], &vec![0.5; d]);
                        let r = if with_res == 0 {
                            Tensor::absent()
                        } else {
                            res.clone()
                        };
                        let id;
                        let (mut ops, res_at) = if layer {
                            id = op::LAYER_NORM_BWD;
                            (
                                vec![
                                    y.clone(),
                                    dw.clone(),
                                    dw.clone(),
                                    dy.clone(),
                                    x.clone(),
                                    w.clone(),
                                    st(&mean),
                                    st(&rstd),
                                    r,
                                ],
                                8,
                            )
                        } else {
                            id = op::RMS_NORM_BWD;
                            (
                                vec![
                                    y.clone(),
                                    dw.clone(),
                                    dy.clone(),
                                    x.clone(),
                                    w.clone(),
                                    st(&rstd),
                                    r,
                                ],
                                6,
                            )
                        };
                        let dy_at = if layer { 3 } else { 2 };
                        // dx over dy, apart, over dres.
                        match with_res {
                            0 => {
                                ops[0] = dy.clone();
                                run_aliased(
                                    id,
                                    params(eps).as_bytes(),
                                    &[],
                                    &mut ops,
                                    &[(dy_at, 0)],
                                );
                            }
                            1 => run(id, params(eps).as_bytes(), &[], &mut ops),
                            _ => {
                                ops[0] = res.clone();
                                run_aliased(
                                    id,
                                    params(eps).as_bytes(),
                                    &[],
                                    &mut ops,
                                    &[(res_at, 0)],
                                );
                            }
                        }
                        let mut want = vec![0.0; n * d];
                        let (mut dw, mut db) = (vec![0.5; d], vec![0.5; d]);
                        let mut mag = vec![0.5; d];
                        for row in 0..n {
                            let at = row * d;
                            let mean_of = |f: &dyn Fn(usize) -> f64| {
                                (0..d).map(|c| f(at + c)).sum::<f64>() / d as f64
                            };
                            let c1 = if layer {
                                mean_of(&|i| wv[i % d] * dv[i])
                            } else {
                                0.0
                            };
                            let c2 = mean_of(&|i| wv[i % d] * dv[i] * hat(i));
                            for c in 0..d {
                                let i = at + c;
                                want[i] = rstd[row] * (wv[c] * dv[i] - c1 - hat(i) * c2);
                                if with_res > 0 {
                                    want[i] += rv[i];
                                }
                                dw[c] += dv[i] * hat(i);
                                db[c] += dv[i];
                                mag[c] += (dv[i] * hat(i)).abs() + dv[i].abs();
                            }
                        }
                        let slack = if d == 1 { 0.5 } else { 2e-5 };
                        close("dx", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 8.0) + slack
                        });
                        let bound = |c: usize| 4e-6 * mag[c] + if d == 1 { 1.0 } else { 0.0 };
                        close("dw", &ops[1].values(), &dw, bound);
                        if layer {
                            close("db", &ops[2].values(), &db, bound);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nan_stays_in_its_row_and_shapes_are_checked() {
        let x = Tensor::new(DType::F32, &[2, 3], &[1.0, f64::NAN, 2.0, 1.0, 2.0, 3.0]);
        let w = Tensor::new(DType::F32, &[3], &[1.0; 3]);
        let y = || Tensor::new(DType::F32, &[2, 3], &[0.0; 6]);
        let s = || Tensor::new(DType::F32, &[2], &[0.0; 2]);
        let mut ops = vec![y(), s(), x.clone(), w.clone()];
        run(op::RMS_NORM_FWD, params(0.0).as_bytes(), &[], &mut ops);
        let v = ops[0].values();
        assert!(v[..3].iter().all(|v| v.is_nan()) && v[3..].iter().all(|v| v.is_finite()));
        let bad = Tensor::new(DType::F32, &[2], &[1.0; 2]);
        let p = params(1e-5);
        assert_eq!(
            refusal(op::RMS_NORM_FWD, p.as_bytes(), &[y(), s(), x.clone(), bad]),
            Some(Code::Invalid)
        );
        assert_eq!(
            refusal(op::RMS_NORM_FWD, p.as_bytes(), &[y(), w.clone(), x, w]),
            Some(Code::Invalid)
        );
    }
}
