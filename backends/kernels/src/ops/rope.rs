//! rope.

use super::point::GROUP;
use super::{Answer, blocks, done, launch, nothing};
use crate::args::{RopeArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_plugin::OpRequest;
use crossweave_plugin::op::Rope;

/// `rope`.
pub(crate) fn rope(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let Rope {
        inverse,
        interleaved,
        y,
        x,
        cos,
        sin,
    } = Rope::read(o)?;
    let [y, x, cos, sin]: [View; 4] = [y, x, cos, sin].map(View::from);
    let (t, d) = (y.shape[1], y.shape[3]);
    if y.total == 0 {
        return nothing(o);
    }
    let mut a: RopeArgs = zero();
    (a.b, a.t, a.h, a.d, a.half) = (y.shape[0], t, y.shape[2], d, cos.shape[1]);
    a.ys.copy_from_slice(&y.stride[..3]);
    a.xs.copy_from_slice(&x.stride[..3]);
    a.cs.copy_from_slice(&cos.stride);
    a.ss.copy_from_slice(&sin.stride);
    a.sign = if inverse { -1.0 } else { 1.0 };
    a.interleaved = interleaved as u64;
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
