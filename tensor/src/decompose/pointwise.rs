//! Ops that are one program: activations, SwiGLU, rotary positions, dropout, addition.

use super::build::{Build, Given, View};
use crossweave_hal::abi::op::{self, activation};
use crossweave_hal::{DType, OpRequest, Recipe};
use crossweave_program::Ex;

/// sqrt(2 / pi).
const GELU: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// `act(x)` and `act'(x)`; the tanh form is `x sigmoid(2 u)`, which keeps its digits where `1 + tanh` would cancel.
pub(crate) fn act<'p>(kind: u32, x: Ex<'p>) -> (Ex<'p>, Ex<'p>) {
    let one = x.lit(1.0);
    match kind {
        activation::GELU_TANH => {
            let x2 = x * x;
            let s = (x * (x2 * CUBIC + 1.0) * (2.0 * GELU)).sigmoid();
            let du = (x2 * (3.0 * CUBIC) + 1.0) * (2.0 * GELU);
            (x * s, s + x * s * (one - s) * du)
        }
        activation::GELU_ERF => {
            let cdf = ((x * std::f32::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
            // 1 / sqrt(2 pi)
            let pdf = (x * x * -0.5).exp() * 0.398_942_3;
            (x * cdf, cdf + x * pdf)
        }
        activation::SILU => {
            let s = x.sigmoid();
            (x * s, s * (x * (one - s) + 1.0))
        }
        _ => {
            let zero = x.lit(0.0);
            (x.max(zero), zero.less(x))
        }
    }
}

fn kind(g: &Given<'_>) -> Option<u32> {
    let k = g.params::<op::KindParams>()?.kind;
    (activation::GELU_TANH..=activation::RELU)
        .contains(&k)
        .then_some(k)
}

pub(super) fn activation_fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (kind, y, x) = (kind(&g)?, g.view(0)?, g.view(1)?);
    let mut b = Build::default();
    b.map(&[&y], &[&x], |v| vec![act(kind, v[0]).0]);
    Some(b.finish())
}

pub(super) fn activation_bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (kind, dx, dy, x) = (kind(&g)?, g.view(0)?, g.view(1)?, g.view(2)?);
    let mut b = Build::default();
    b.map(&[&dx], &[&dy, &x], |v| vec![v[0] * act(kind, v[1]).1]);
    Some(b.finish())
}

pub(super) fn swiglu_fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (y, gate, up) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let mut b = Build::default();
    b.map(&[&y], &[&gate, &up], |v| {
        vec![act(activation::SILU, v[0]).0 * v[1]]
    });
    Some(b.finish())
}

pub(super) fn swiglu_bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (dgate, dup) = (g.view(0)?, g.view(1)?);
    let (dy, gate, up) = (g.view(2)?, g.view(3)?, g.view(4)?);
    let mut b = Build::default();
    b.map(&[&dgate, &dup], &[&dy, &gate, &up], |v| {
        let (y, dy) = act(activation::SILU, v[1]);
        vec![v[0] * v[2] * dy, v[0] * y]
    });
    Some(b.finish())
}

/// `(a, b) -> (a cos - b sin, b cos + a sin)` for the pairs of the first `R` elements of a head; the rest is copied.
pub(super) fn rope(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let flags = g.params::<op::RopeParams>()?.flags;
    let (y, x) = (g.view(0)?, g.view(1)?);
    let [_, t, _, d] = x.dims()?;
    let half = *g.view(2)?.shape.last()?;
    if 2 * half > d || y.shape != x.shape {
        return None;
    }
    // [T, R/2] seen as [T, 1, R/2]: one angle for all heads.
    let angle = |i: usize| -> Option<View> {
        let v = g.view(i)?;
        (v.dims() == Some([t, half])).then(|| v.split(0, t, 1))
    };
    let (cos, sin) = (angle(2)?, angle(3)?);
    let pair = |v: &View| {
        if flags & op::FLAG_INTERLEAVED != 0 {
            [v.slice_last(0, 2, half), v.slice_last(1, 2, half)]
        } else {
            [v.slice_last(0, 1, half), v.slice_last(half, 1, half)]
        }
    };
    let ([y1, y2], [x1, x2]) = (pair(&y), pair(&x));
    let inverse = flags & op::FLAG_INVERSE != 0;
    let mut b = Build::default();
    // y may be x, and the halves of a dense y are strided: both are made aside before either is stored.
    b.map(&[&y1, &y2], &[&x1, &x2, &cos, &sin], |v| {
        let (a, b, c) = (v[0], v[1], v[2]);
        let s = if inverse { -v[3] } else { v[3] };
        vec![a * c - b * s, b * c + a * s]
    });
    let rest = d - 2 * half;
    if rest > 0 {
        let tail = |v: &View| v.slice_last(2 * half, 1, rest);
        b.map(&[&tail(&y)], &[&tail(&x)], |v| vec![v[0]]);
    }
    Some(b.finish())
}

/// Uniform numbers in [0, 1) from the same philox elements, kept where not below `p`: the mask is bit for bit that of a native kernel.
pub(super) fn dropout(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p = g.params::<op::DropoutParams>()?.p;
    let (y, x, residual) = (g.view(0)?, g.view(1)?, g.view(2));
    let mut b = Build::default();
    let u = b.temp(DType::F32, &y.shape);
    let uniform = op::PhiloxParams {
        kind: op::philox::UNIFORM,
        lo: 0.0,
        hi: 1.0,
        ..Default::default()
    };
    b.op(
        op::PHILOX,
        uniform.as_bytes(),
        &[Some(&u)],
        Some(std::sync::Arc::new(|d: &[u8]| d.to_vec())),
    );
    // Uniforms are multiples of 2^-24, so the threshold may be rounded up to one, which f32 holds exactly.
    let unit = 16_777_216.0;
    let threshold = ((p * unit).ceil() / unit) as f32;
    let keep = (1.0 - p) as f32;
    let mut ins = vec![&u, &x];
    ins.extend(&residual);
    b.map(&[&y], &ins, |v| {
        let kept = v[0]
            .less(v[0].lit(threshold))
            .choose(v[0].lit(0.0), v[1] / keep);
        vec![v.get(2).map_or(kept, |r| kept + *r)]
    });
    Some(b.finish())
}

pub(super) fn add(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let (y, a, c) = (g.view(0)?, g.view(1)?, g.view(2)?);
    let mut b = Build::default();
    b.map(&[&y], &[&a, &c], |v| vec![v[0] + v[1]]);
    Some(b.finish())
}
