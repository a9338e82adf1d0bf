//! activation_* and swiglu_*: one vector loop per function and direction.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math};
use crossweave_abi::op;
use crossweave_plugin::{Op, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

/// sqrt(2 / pi) and the cubic coefficient of the tanh form of GELU.
const K: f32 = 0.797_884_56;
const C: f32 = 0.044_715;
/// 1 / sqrt(2 pi).
const PDF: f32 = 0.398_942_3;

clones! {
    fn gelu_tanh(x: &mut [f32]) {
        for v in x {
            // 0.5 (1 + tanh u) is sigmoid(2 u), which keeps its accuracy in the lower tail.
            let u = 2.0 * K * (*v + C * *v * *v * *v);
            *v *= math::sigmoid(u);
        }
    }
    fn gelu_tanh_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) {
            let u = 2.0 * K * (*v + C * *v * *v * *v);
            let e = math::exp(-u.abs());
            let q = 1.0 / (1.0 + e);
            let s = if u < 0.0 { e * q } else { q };
            // s (1 - s) from e, without cancellation.
            let ds = e * q * q * (2.0 * K * (1.0 + 3.0 * C * *v * *v));
            // Far out ds is 0 and v may be infinite.
            let t = if ds == 0.0 { 0.0 } else { *v * ds };
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
            let pdf = PDF * math::exp(-0.5 * *v * *v);
            let t = if pdf == 0.0 { 0.0 } else { *v * pdf };
            *d *= phi + t;
        }
    }
    fn silu(x: &mut [f32]) { for v in x { *v *= math::sigmoid(*v); } }
    fn silu_bwd(x: &[f32], dy: &mut [f32]) {
        for (d, v) in dy.iter_mut().zip(x) {
            let e = math::exp(-v.abs());
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
            let e = math::exp(-g.abs());
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
pub fn forward(o: &Op<'_>, _: usize) -> Prepared {
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
pub fn backward(o: &Op<'_>, _: usize) -> Prepared {
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
pub fn swiglu(o: &Op<'_>, _: usize) -> Prepared {
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
pub fn swiglu_backward(o: &Op<'_>, _: usize) -> Prepared {
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
