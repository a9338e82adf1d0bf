//! rope.

use super::point::GROUP;
use super::{Answer, blocks, done, launch, nothing};
use crate::args::{RopeArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::OpRequest;

/// `rope`.
pub(crate) fn rope(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 4..=4)?;
    let p = o.params::<op::RopeParams>()?.flags;
    flags(o, p, op::FLAG_INVERSE | op::FLAG_INTERLEAVED)?;
    let (y, x) = (output_strided(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    let (cos, sin) = (input(o, 2, F32)?, input(o, 3, F32)?);
    if y.shape.len() != 4 {
        return invalid(
            o,
            format!("x has rank {}, [B, T, H, D] wanted", y.shape.len()),
        );
    }
    shape(o, 1, &x, &y.shape)?;
    shape(o, 3, &sin, &cos.shape)?;
    let (t, d) = (y.shape[1], y.shape[3]);
    if cos.shape.len() != 2 || cos.shape[0] != t || cos.shape[1] * 2 > d {
        return invalid(
            o,
            format!(
                "cos, sin have shape {:?}, [{t}, R/2] with R <= {d} wanted",
                cos.shape
            ),
        );
    }
    for (v, who) in [(&x, "x"), (&y, "y")] {
        if d > 1 && v.stride[3] != 1 {
            return refuse(o, format!("{who} needs unit stride in D"));
        }
    }
    if y.total == 0 {
        return nothing(o);
    }
    let mut a: RopeArgs = zero();
    (a.b, a.t, a.h, a.d, a.half) = (y.shape[0], t, y.shape[2], d, cos.shape[1]);
    a.ys.copy_from_slice(&y.stride[..3]);
    a.xs.copy_from_slice(&x.stride[..3]);
    a.cs.copy_from_slice(&cos.stride);
    a.ss.copy_from_slice(&sin.stride);
    a.sign = if p & op::FLAG_INVERSE != 0 { -1.0 } else { 1.0 };
    a.interleaved = (p & op::FLAG_INTERLEAVED != 0) as u64;
    let (ty, tx) = (c_type(y.dtype), c_type(x.dtype));
    let k = Kernel::new(
        Family::Rope,
        format!("cw_rope_{ty}_{tx}"),
        256,
        "RopeArgs",
        &format!("cw_rope<{ty}, {tx}>"),
    );
    let each = a.half.div_ceil(GROUP) + (d - 2 * a.half).div_ceil(GROUP);
    let places = [
        ("y", Place::Operand(0)),
        ("x", Place::Operand(1)),
        ("cos", Place::Operand(2)),
        ("sin", Place::Operand(3)),
    ];
    let grid = [blocks(a.b * a.t * a.h * each, 256, f), 1, 1];
    let l = launch(k, grid, 256, 0, &a, &places);
    done(o, 0, vec![l], Dynamic::None)
}
