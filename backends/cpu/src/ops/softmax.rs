//! softmax_* and cross_entropy_*: maximum and sum of exponentials in one pass over the row.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math, sum};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

clones! {
    /// Sum of exp(x - m), in the fixed lane order of `simd::sum`.
    fn sum_exp(x: &[f32], m: f32) -> f64 {
        let mut e = [0f32; BLOCK];
        let e = &mut e[..x.len()];
        for (e, x) in e.iter_mut().zip(x) { *e = math::exp_neg(*x - m); }
        sum::sum(e)
    }
    fn exp_scale(x: &mut [f32], m: f32, k: f32) { for v in x { *v = math::exp_neg(*v - m) * k; } }
    fn grad(dy: &[f32], y: &[f32], s: f32, dx: &mut [f32]) {
        for ((d, y), dx) in dy.iter().zip(y).zip(dx) { *dx = y * (d - s); }
    }
}

/// `(m, s)` with row sum of exponentials = `s * exp(m)`, rescaled as the maximum grows.
///
/// # Safety
/// Row `r` of `x` is live.
unsafe fn statistics(v: &View, x: Ptr, r: usize, d: usize, buf: &mut [f32; BLOCK]) -> (f32, f64) {
    let (mut m, mut s) = (f32::NEG_INFINITY, 0f64);
    blocks(0, d, |c, n| {
        // SAFETY: forwarded.
        let b = unsafe { v.get(x, r * d + c, n, buf) };
        let top = sum::max(b);
        if top > m || top.is_nan() {
            // Nothing but -inf so far leaves s at 0, whatever the factor.
            if s != 0.0 {
                s *= ((m - top) as f64).exp();
            }
            m = top;
        }
        // A row of -inf has no finite base; its exponentials are all zero.
        let base = if m == f32::NEG_INFINITY { 0.0 } else { m };
        s += sum_exp(b, base);
    });
    (m, s)
}

fn rows_of(o: &OpRequest<'_>, x: &View) -> Result<(usize, usize)> {
    match x.shape.split_last() {
        Some((&d, outer)) => Ok((outer.iter().product(), d)),
        None => invalid(o, "rank 0, rows wanted"),
    }
}

fn rows_per_task(d: usize) -> usize {
    (CHUNK / d.max(1)).max(1)
}

struct Softmax {
    y: View,
    x: View,
    n: usize,
    d: usize,
}

/// `softmax_fwd`.
pub fn softmax(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let (n, d) = rows_of(o, &x)?;
    Ok((Box::new(Softmax { y, x, n, d }), plan(o, 0)))
}

impl Kernel for Softmax {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x, d) = (Ptr(l.operands[0]), Ptr(l.operands[1]), self.d);
        chunks(l.team, self.n, rows_per_task(d), &|start, len| {
            let mut b = [0f32; BLOCK];
            for r in start..start + len {
                // SAFETY: row `r` is inside the layouts and belongs to this task.
                let (m, s) = unsafe { statistics(&self.x, x, r, d, &mut b) };
                let k = (1.0 / s) as f32;
                blocks(0, d, |c, n| {
                    // SAFETY: as above.
                    unsafe {
                        self.x.load(x, r * d + c, &mut b[..n]);
                        exp_scale(&mut b[..n], m, k);
                        self.y.store(y, r * d + c, &b[..n]);
                    }
                });
            }
        });
    }
}

struct SoftmaxBackward {
    dx: View,
    dy: View,
    y: View,
    n: usize,
    d: usize,
}

/// `softmax_bwd`.
pub fn softmax_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dx, dy, y) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &y, &dx.shape)?;
    let (n, d) = rows_of(o, &dx)?;
    Ok((Box::new(SoftmaxBackward { dx, dy, y, n, d }), plan(o, 0)))
}

impl Kernel for SoftmaxBackward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dx, dy, y] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        let d = self.d;
        chunks(l.team, self.n, rows_per_task(d), &|start, len| {
            let (mut a, mut b, mut g) = ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            for r in start..start + len {
                let mut s = 0f64;
                // SAFETY: row `r` is inside the layouts and belongs to this task.
                blocks(0, d, |c, n| unsafe {
                    let vd = self.dy.get(dy, r * d + c, n, &mut a);
                    s += sum::dot(vd, self.y.get(y, r * d + c, n, &mut b));
                });
                // SAFETY: as above.
                blocks(0, d, |c, n| unsafe {
                    let vd = self.dy.get(dy, r * d + c, n, &mut a);
                    let vy = self.y.get(y, r * d + c, n, &mut b);
                    grad(vd, vy, s as f32, &mut g[..n]);
                    self.dx.store(dx, r * d + c, &g[..n]);
                });
            }
        });
    }
}

/// What a row's target means.
enum Target {
    Ignored,
    Bad,
    Class(usize),
}

#[derive(Clone)]
struct Targets {
    view: View,
    ignore: Option<i64>,
    classes: usize,
}

impl Targets {
    fn new(o: &OpRequest<'_>, i: usize, n: usize, classes: usize) -> Result<Targets> {
        let p = o.params::<op::XentParams>()?;
        flags(o, p.flags, op::FLAG_HAS_IGNORE)?;
        let view = input(o, i, INDEX)?;
        if view.total != n {
            return invalid(o, format!("{} targets for {n} rows", view.total));
        }
        let ignore = (p.flags & op::FLAG_HAS_IGNORE != 0).then_some(p.ignore);
        Ok(Targets {
            view,
            ignore,
            classes,
        })
    }

    /// # Safety
    /// `p` is the live operand.
    unsafe fn of(&self, p: Ptr, r: usize) -> Target {
        // SAFETY: forwarded; `r` is a row.
        let t = unsafe { index_at(self.view.dtype, p, self.view.offset(r)) };
        if self.ignore == Some(t) {
            return Target::Ignored;
        }
        match usize::try_from(t) {
            Ok(c) if c < self.classes => Target::Class(c),
            _ => Target::Bad,
        }
    }
}

struct CrossEntropy {
    logits: View,
    targets: Targets,
    n: usize,
    d: usize,
}

/// `cross_entropy_fwd`.
pub fn cross_entropy(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 4..=4)?;
    let logits = input(o, 2, FLOATS)?;
    let (n, d) = rows_of(o, &logits)?;
    for i in [0, 1] {
        let v = output(o, i, F32)?;
        if v.total != n {
            return invalid(o, format!("operand {i}: {} elements for {n} rows", v.total));
        }
    }
    let targets = Targets::new(o, 3, n, d)?;
    Ok((
        Box::new(CrossEntropy {
            logits,
            targets,
            n,
            d,
        }),
        plan(o, 0),
    ))
}

impl Kernel for CrossEntropy {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [loss, lse, x, t] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.n, rows_per_task(self.d), &|start, len| {
            let mut b = [0f32; BLOCK];
            for r in start..start + len {
                // SAFETY: row `r` is inside the layouts and belongs to this task.
                unsafe {
                    let (m, s) = statistics(&self.logits, x, r, self.d, &mut b);
                    let z = m as f64 + s.ln();
                    *lse.at::<f32>(r) = z as f32;
                    *loss.at::<f32>(r) = match self.targets.of(t, r) {
                        Target::Ignored => 0.0,
                        Target::Bad => f32::NAN,
                        Target::Class(c) => {
                            let mut v = [0f32];
                            self.logits.load(x, r * self.d + c, &mut v);
                            (z - v[0] as f64) as f32
                        }
                    };
                }
            }
        });
    }
}

struct CrossEntropyBackward {
    dlogits: View,
    logits: View,
    lse: View,
    dloss: View,
    targets: Targets,
    n: usize,
    d: usize,
}

/// `cross_entropy_bwd`.
pub fn cross_entropy_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 5..=5)?;
    let (dlogits, logits) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &logits, &dlogits.shape)?;
    let (n, d) = rows_of(o, &logits)?;
    let (lse, dloss) = (input(o, 2, F32)?, input(o, 4, F32)?);
    for (i, v) in [(2, &lse), (4, &dloss)] {
        if v.total != n {
            return invalid(
                o,
                format!(
                    "operand {i}: {} elements for {n} rows (broadcast one by stride 0)",
                    v.total
                ),
            );
        }
    }
    let targets = Targets::new(o, 3, n, d)?;
    let k = CrossEntropyBackward {
        dlogits,
        logits,
        lse,
        dloss,
        targets,
        n,
        d,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for CrossEntropyBackward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dx, x, lse, t, dloss] = [0, 1, 2, 3, 4].map(|i| Ptr(l.operands[i]));
        let d = self.d;
        chunks(l.team, self.n, rows_per_task(d), &|start, len| {
            let mut b = [0f32; BLOCK];
            for r in start..start + len {
                // SAFETY: row `r` is inside the layouts and belongs to this task; a block is read before it is written.
                unsafe {
                    let z = *lse.at::<f32>(self.lse.offset(r));
                    let g = *dloss.at::<f32>(self.dloss.offset(r));
                    let target = self.targets.of(t, r);
                    blocks(0, d, |c, n| {
                        let b = &mut b[..n];
                        match target {
                            Target::Ignored => b.fill(0.0),
                            Target::Bad => b.fill(f32::NAN),
                            Target::Class(k) => {
                                self.logits.load(x, r * d + c, b);
                                exp_scale(b, z, g);
                                if (c..c + n).contains(&k) {
                                    b[k - c] -= g;
                                }
                            }
                        }
                        self.dlogits.store(dx, r * d + c, b);
                    });
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::{Code, DType};

    const SHAPES: [(usize, usize); 7] = [
        (0, 3),
        (1, 1),
        (5, 7),
        (33, 33),
        (3, 1000),
        (5, 4099),
        (2, 50257),
    ];

    fn softmax64(x: &[f64]) -> (Vec<f64>, f64) {
        let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let s: f64 = x.iter().map(|v| (v - m).exp()).sum();
        (x.iter().map(|v| (v - m).exp() / s).collect(), m + s.ln())
    }

    #[test]
    fn softmax_forward_and_backward() {
        let none = op::NoParams::default();
        let mut rng = Rng(11);
        for t in STORAGES {
            for (n, d) in SHAPES {
                let x = Tensor::strided(t, &[n, d], &[d + 3, 1], &rng.floats(n * d, 20.0));
                let xv = x.values();
                let mut ops = [Tensor::poison(t, &[n, d]), x];
                run(op::SOFTMAX_FWD, none.as_bytes(), &[], &mut ops);
                let want: Vec<f64> = xv.chunks(d).flat_map(|r| softmax64(r).0).collect();
                close("softmax", &ops[0].values(), &want, |i| {
                    rounding(t, want[i], 80.0)
                });
                let y = ops[0].clone();
                let dy = Tensor::new(t, &[n, d], &rng.floats(n * d, 1.0));
                let (yv, dv) = (y.values(), dy.values());
                let mut ops = [Tensor::poison(t, &[n, d]), dy, y];
                run(op::SOFTMAX_BWD, none.as_bytes(), &[], &mut ops);
                let mut want = Vec::new();
                for (y, g) in yv.chunks(d).zip(dv.chunks(d)) {
                    let s: f64 = y.iter().zip(g).map(|(a, b)| a * b).sum();
                    want.extend(y.iter().zip(g).map(|(y, g)| y * (g - s)));
                }
                close("softmax bwd", &ops[0].values(), &want, |i| {
                    rounding(t, want[i], 8.0) + 4e-7 * yv[i]
                });
            }
        }
    }

    #[test]
    fn cross_entropy_forward_and_backward_in_place() {
        let mut rng = Rng(12);
        let p = op::XentParams {
            flags: op::FLAG_HAS_IGNORE,
            ignore: -100,
            ..Default::default()
        };
        for t in STORAGES {
            for index in [DType::I32, DType::I64] {
                for (n, d) in SHAPES {
                    let x = Tensor::new(t, &[n, d], &rng.floats(n * d, 10.0));
                    let xv = x.values();
                    let target: Vec<f64> = (0..n)
                        .map(|r| match r {
                            1 => -100.0,
                            2 => d as f64,
                            3 => -1.0,
                            _ => rng.below(d) as f64,
                        })
                        .collect();
                    let tt = Tensor::new(index, &[n], &target);
                    let s = || Tensor::poison(DType::F32, &[n]);
                    let mut ops = [s(), s(), x.clone(), tt.clone()];
                    run(op::CROSS_ENTROPY_FWD, p.as_bytes(), &[], &mut ops);
                    let lse: Vec<f64> = xv.chunks(d).map(|r| softmax64(r).1).collect();
                    let loss: Vec<f64> = (0..n)
                        .map(|r| match target[r] {
                            -100.0 => 0.0,
                            c if c < 0.0 || c >= d as f64 => f64::NAN,
                            c => lse[r] - xv[r * d + c as usize],
                        })
                        .collect();
                    close("lse", &ops[1].values(), &lse, |i| {
                        1e-6 * (1.0 + lse[i].abs())
                    });
                    close("loss", &ops[0].values(), &loss, |i| {
                        1e-6 * (1.0 + lse[i].abs())
                    });
                    let lse_t = ops[1].clone();
                    for broadcast in [false, true] {
                        let g: Vec<f64> = (0..n)
                            .map(|i| if broadcast { 0.125 } else { 0.5 + i as f64 })
                            .collect();
                        let dloss = Tensor::strided(DType::F32, &[n], &[!broadcast as usize], &g);
                        let mut ops = [x.clone(), x.clone(), lse_t.clone(), tt.clone(), dloss];
                        run_aliased(
                            op::CROSS_ENTROPY_BWD,
                            p.as_bytes(),
                            &[],
                            &mut ops,
                            &[(1, 0)],
                        );
                        let mut want = Vec::new();
                        for r in 0..n {
                            let y = softmax64(&xv[r * d..(r + 1) * d]).0;
                            for (c, y) in y.iter().enumerate() {
                                let hot = (c as f64 == target[r]) as u8 as f64;
                                want.push(match target[r] {
                                    -100.0 => 0.0,
                                    v if v < 0.0 || v >= d as f64 => f64::NAN,
                                    _ => (y - hot) * g[r],
                                });
                            }
                        }
                        close("dlogits", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 80.0) + 3e-7 * g[i / d]
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn infinities_and_nan() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let rows = [
            [-inf, 1.0, 1.0],
            [-inf, -inf, -inf],
            [nan, 1.0, 2.0],
            [300.0, -300.0, 0.0],
        ];
        let x = Tensor::new(DType::F32, &[4, 3], &rows.concat());
        let mut ops = [Tensor::poison(DType::F32, &[4, 3]), x.clone()];
        run(
            op::SOFTMAX_FWD,
            op::NoParams::default().as_bytes(),
            &[],
            &mut ops,
        );
        let want = [0.0, 0.5, 0.5, nan, nan, nan, nan, nan, nan, 1.0, 0.0, 0.0];
        close("softmax", &ops[0].values(), &want, |_| 1e-7);
        let s = || Tensor::poison(DType::F32, &[4]);
        let mut ops = [s(), s(), x, Tensor::new(DType::I64, &[4], &[1.0; 4])];
        run(
            op::CROSS_ENTROPY_FWD,
            op::XentParams::default().as_bytes(),
            &[],
            &mut ops,
        );
        close(
            "lse",
            &ops[1].values(),
            &[1.0 + 2f64.ln(), -inf, nan, 300.0],
            |_| 1e-5,
        );
    }

    #[test]
    fn refusals() {
        let s = |n: usize| Tensor::new(DType::F32, &[n], &vec![0.0; n]);
        let x = Tensor::poison(DType::F32, &[4, 3]);
        let p = op::XentParams::default();
        let t = Tensor::poison(DType::I64, &[4]);
        let ask = |a: Tensor, t: Tensor| {
            refusal(
                op::CROSS_ENTROPY_FWD,
                p.as_bytes(),
                &[a, s(4), x.clone(), t],
            )
        };
        assert_eq!(ask(s(4), t.clone()), None);
        assert_eq!(ask(s(3), t), Some(Code::Invalid));
        assert_eq!(
            ask(s(4), Tensor::poison(DType::F32, &[4])),
            Some(Code::Unsupported)
        );
    }
}
