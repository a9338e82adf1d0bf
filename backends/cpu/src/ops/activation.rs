//! activation_* and swiglu_*: one vector loop per function and direction.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

/// sqrt(2 / pi) and the cubic coefficient of the tanh form of GELU.
const K: f32 = 0.797_884_6;
const C: f32 = 0.044_715;
/// 1 / sqrt(2 pi).
const PDF: f32 = 0.398_942_3;

/// As `simd::math::sigmoid`, but tails below 2^-125 are 0.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = math::exp_neg(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

clones! {
    fn gelu_tanh(x: &mut [f32]) {
        for v in x {
            // 0.5 (1 + tanh u) is sigmoid(2 u), which keeps its accuracy in the lower tail.
            let u = 2.0 * K * (*v + C * *v * *v * *v);
            *v *= sigmoid(u);
        }
    }
    fn gelu_tanh_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) {
            let u = 2.0 * K * (*v + C * *v * *v * *v);
            let e = math::exp_neg(-u.abs());
            let q = 1.0 / (1.0 + e);
            let s = if u < 0.0 { e * q } else { q };
            // s (1 - s) from e, without cancellation.
            let ds = e * q * q;
            // Far out ds is 0 and the rest may be infinite.
            let t = *v * ds * (2.0 * K * (1.0 + 3.0 * C * *v * *v));
            let t = if ds == 0.0 { 0.0 } else { t };
            *d *= s + t;
        }
    }
    fn gelu_erf(x: &mut [f32]) {
        for v in x {
            *v *= 0.5 + 0.5 * math::erf(*v * std::f32::consts::FRAC_1_SQRT_2);
        }
    }
    fn gelu_erf_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) {
            let phi = 0.5 + 0.5 * math::erf(*v * std::f32::consts::FRAC_1_SQRT_2);
            let pdf = PDF * math::exp_neg(-0.5 * *v * *v);
            let t = if pdf == 0.0 { 0.0 } else { *v * pdf };
            *d *= phi + t;
        }
    }
    fn silu(x: &mut [f32]) { for v in x { *v *= sigmoid(*v); } }
    fn silu_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) {
            let e = math::exp_neg(-v.abs());
            let q = 1.0 / (1.0 + e);
            let s = if *v < 0.0 { e * q } else { q };
            let ds = e * q * q;
            let t = if ds == 0.0 { 0.0 } else { *v * ds };
            *d *= s + t;
        }
    }
    fn relu(x: &mut [f32]) { for v in x { *v = if *v < 0.0 { 0.0 } else { *v }; } }
    fn relu_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) { *d = if *v <= 0.0 { 0.0 } else { *d }; }
    }
    fn mul(x: &[f32], y: &mut [f32]) { for (y, x) in y.iter_mut().zip(x) { *y *= *x; } }
    // In: dgate holds dy. Out: dgate and dup.
    fn swiglu_grad(gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        for (((g, u), a), b) in gate.iter().zip(up).zip(dgate).zip(dup) {
            let e = math::exp_neg(-g.abs());
            let q = 1.0 / (1.0 + e);
            let s = if *g < 0.0 { e * q } else { q };
            let ds = e * q * q;
            let t = if ds == 0.0 { 0.0 } else { *g * ds };
            let dy = *a;
            *b = dy * (*g * s);
            *a = dy * *u * (s + t);
        }
    }
}

struct Forward {
    y: View,
    x: View,
    f: fn(&mut [f32]),
}

/// `activation_fwd`.
pub fn forward(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    let f = match o.params::<op::KindParams>()?.kind {
        op::activation::GELU_TANH => gelu_tanh,
        op::activation::GELU_ERF => gelu_erf,
        op::activation::SILU => silu,
        op::activation::RELU => relu as fn(&mut [f32]),
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    Ok((Box::new(Forward { y, x, f }), plan(o, 0)))
}

impl Kernel for Forward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.y.total, CHUNK, &|start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    self.x.load(x, at, &mut buf[..n]);
                    (self.f)(&mut buf[..n]);
                    self.y.store(y, at, &buf[..n]);
                }
            });
        });
    }
}

struct Backward {
    dx: View,
    dy: View,
    x: View,
    f: fn(&[f32], &mut [f32]),
}

/// `activation_bwd`.
pub fn backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let f = match o.params::<op::KindParams>()?.kind {
        op::activation::GELU_TANH => gelu_tanh_bwd,
        op::activation::GELU_ERF => gelu_erf_bwd,
        op::activation::SILU => silu_bwd,
        op::activation::RELU => relu_bwd as fn(&[f32], &mut [f32]),
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let (dx, dy, x) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &x, &dx.shape)?;
    Ok((Box::new(Backward { dx, dy, x, f }), plan(o, 0)))
}

impl Kernel for Backward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dx, dy, x] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.dx.total, CHUNK, &|start, len| {
            let (mut bx, mut by) = ([0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    let vx = self.x.get(x, at, n, &mut bx);
                    self.dy.load(dy, at, &mut by[..n]);
                    (self.f)(vx, &mut by[..n]);
                    self.dx.store(dx, at, &by[..n]);
                }
            });
        });
    }
}

struct Swiglu {
    y: View,
    gate: View,
    up: View,
}

/// `swiglu_fwd`.
pub fn swiglu(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (y, gate, up) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &gate, &y.shape)?;
    shape(o, 2, &up, &y.shape)?;
    Ok((Box::new(Swiglu { y, gate, up }), plan(o, 0)))
}

impl Kernel for Swiglu {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, g, u] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.y.total, CHUNK, &|start, len| {
            let (mut bg, mut bu) = ([0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    self.gate.load(g, at, &mut bg[..n]);
                    silu(&mut bg[..n]);
                    mul(self.up.get(u, at, n, &mut bu), &mut bg[..n]);
                    self.y.store(y, at, &bg[..n]);
                }
            });
        });
    }
}

struct SwigluBackward {
    dgate: View,
    dup: View,
    dy: View,
    gate: View,
    up: View,
}

/// `swiglu_bwd`.
pub fn swiglu_backward(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 5..=5)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dgate, dup) = (output_strided(o, 0, FLOATS)?, output_strided(o, 1, FLOATS)?);
    let (dy, gate, up) = (
        input(o, 2, FLOATS)?,
        input(o, 3, FLOATS)?,
        input(o, 4, FLOATS)?,
    );
    for (i, v) in [(1, &dup), (2, &dy), (3, &gate), (4, &up)] {
        shape(o, i, v, &dgate.shape)?;
    }
    let k = SwigluBackward {
        dgate,
        dup,
        dy,
        gate,
        up,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for SwigluBackward {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dg, du, dy, g, u] = [0, 1, 2, 3, 4].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.dy.total, CHUNK, &|start, len| {
            let (mut bg, mut bu, mut a, mut b) =
                ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements, after their block has been read.
                unsafe {
                    self.dy.load(dy, at, &mut a[..n]);
                    let vg = self.gate.get(g, at, n, &mut bg);
                    let vu = self.up.get(u, at, n, &mut bu);
                    swiglu_grad(vg, vu, &mut a[..n], &mut b[..n]);
                    self.dgate.store(dg, at, &a[..n]);
                    self.dup.store(du, at, &b[..n]);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::DType;

    fn phi(x: f64) -> f64 {
        // Simpson over the density: slow and plain.
        let n = 4000;
        let h = x / n as f64;
        let f = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let s: f64 = (1..n)
            .map(|i| f(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        0.5 + h / 3.0 * (f(0.0) + s + f(x))
    }
    fn sig(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    fn act(kind: u32, x: f64) -> f64 {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        match kind {
            op::activation::GELU_TANH => 0.5 * x * (1.0 + u.tanh()),
            op::activation::GELU_ERF => x * phi(x),
            op::activation::SILU => x * sig(x),
            _ => x.max(0.0),
        }
    }
    fn act_grad(kind: u32, x: f64) -> f64 {
        if kind == op::activation::RELU {
            return (x > 0.0) as u8 as f64;
        }
        // A central difference of a smooth function in f64 is good to about 1e-9.
        let h = 1e-5;
        (act(kind, x + h) - act(kind, x - h)) / (2.0 * h)
    }

    #[test]
    fn functions_and_gradients() {
        let mut rng = Rng(7);
        for kind in 1..=4 {
            let p = op::KindParams {
                kind,
                ..Default::default()
            };
            for t in STORAGES {
                for n in [0, 1, 7, 33, 1000] {
                    let x = Tensor::strided(t, &[n], &[1 + n % 2], &rng.floats(n, 6.0));
                    let dy = Tensor::new(t, &[n], &rng.floats(n, 1.0));
                    let (xv, dv) = (x.values(), dy.values());
                    let mut ops = [Tensor::poison(t, &[n]), x.clone()];
                    run(op::ACTIVATION_FWD, p.as_bytes(), &[], &mut ops);
                    let want: Vec<f64> = xv.iter().map(|x| act(kind, *x)).collect();
                    close("act", &ops[0].values(), &want, |i| {
                        rounding(t, want[i], 8.0) + 4e-7 * xv[i].abs()
                    });
                    // dx is dy.
                    let mut ops = [dy.clone(), dy, x];
                    run_aliased(op::ACTIVATION_BWD, p.as_bytes(), &[], &mut ops, &[(1, 0)]);
                    let want: Vec<f64> = (0..n).map(|i| dv[i] * act_grad(kind, xv[i])).collect();
                    close("act bwd", &ops[0].values(), &want, |i| {
                        rounding(t, want[i], 16.0) + 1e-6
                    });
                }
            }
            let inf = f64::INFINITY;
            let mut ops = [
                Tensor::new(DType::F32, &[3], &[1.0; 3]),
                Tensor::new(DType::F32, &[3], &[1.0; 3]),
                Tensor::new(DType::F32, &[3], &[inf, -inf, 60.0]),
            ];
            run(op::ACTIVATION_BWD, p.as_bytes(), &[], &mut ops);
            close("limits", &ops[0].values(), &[1.0, 0.0, 1.0], |_| 0.0);
        }
    }

    #[test]
    fn swiglu_over_halves_of_one_matrix() {
        let none = op::NoParams::default();
        let mut rng = Rng(8);
        for t in STORAGES {
            for (n, d) in [(0, 3), (1, 1), (5, 33), (7, 1000), (40, 513)] {
                // gate and up are the halves of rows of 2 d.
                let half = |v: &[f64]| Tensor::strided(t, &[n, d], &[2 * d, 1], v);
                let (gate, up) = (half(&rng.floats(n * d, 4.0)), half(&rng.floats(n * d, 2.0)));
                let dy = Tensor::new(t, &[n, d], &rng.floats(n * d, 1.0));
                let (g, u, dv) = (gate.values(), up.values(), dy.values());
                let mut ops = [Tensor::poison(t, &[n, d]), gate.clone(), up.clone()];
                run(op::SWIGLU_FWD, none.as_bytes(), &[], &mut ops);
                let want: Vec<f64> = (0..n * d).map(|i| g[i] * sig(g[i]) * u[i]).collect();
                close("swiglu", &ops[0].values(), &want, |i| {
                    rounding(t, want[i], 16.0)
                });
                let mut ops = [
                    half(&vec![0.0; n * d]),
                    half(&vec![0.0; n * d]),
                    dy,
                    gate,
                    up,
                ];
                run(op::SWIGLU_BWD, none.as_bytes(), &[], &mut ops);
                let silu_grad = |x: f64| sig(x) * (1.0 + x * (1.0 - sig(x)));
                let dg: Vec<f64> = (0..n * d).map(|i| dv[i] * u[i] * silu_grad(g[i])).collect();
                let du: Vec<f64> = (0..n * d).map(|i| dv[i] * g[i] * sig(g[i])).collect();
                close("dgate", &ops[0].values(), &dg, |i| {
                    rounding(t, dg[i], 16.0) + 1e-6
                });
                close("dup", &ops[1].values(), &du, |i| rounding(t, du[i], 16.0));
            }
        }
    }
}
