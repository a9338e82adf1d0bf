//! matmul by the portable tile kernel; a back end with a vendor's library asks this only for what the library does not take.

use super::{Answer, done, launch, nothing};
use crate::args::{MatmulArgs, zero};
use crate::launch::{Dynamic, Place};
use crate::source::{Dialect, Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};

/// Side of a block's tile of C; `CW_TILE` in the source.
const TILE: u64 = 64;

/// A matrix operand of rank 2 or 3: the view, rows, columns, strides of row, column and batch.
fn matrix(o: &OpRequest<'_>, i: usize) -> Result<(View, [u64; 2], [i64; 3])> {
    let v = input(o, i, FLOATS)?;
    let r = v.shape.len();
    if !(2..=3).contains(&r) {
        return refuse(
            o,
            format!("operand {i} has rank {r}, supported are 2 and 3"),
        );
    }
    let batch = if r == 3 { v.stride[0] } else { 0 };
    let (s, t) = (
        [v.shape[r - 2], v.shape[r - 1]],
        [v.stride[r - 2], v.stride[r - 1], batch],
    );
    Ok((v, s, t))
}

/// `matmul`.
pub(crate) fn matmul(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=4)?;
    let p = o.params::<op::MatmulParams>()?;
    flags(o, p.flags, op::FLAG_ACCUM)?;
    if p.epilogue != 0 {
        return refuse(o, format!("epilogue {}", p.epilogue));
    }
    if p.acc_dtype != 0 && p.acc_dtype != DType::F32.id() {
        return refuse(o, "accumulation is in f32 only");
    }
    let (c, [m, n], sc) = matrix(o, 0)?;
    let (a, [ma, k], sa) = matrix(o, 1)?;
    let (b, [kb, nb], sb) = matrix(o, 2)?;
    if a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::F32) {
        return refuse(
            o,
            format!(
                "a {}, b {}, c {}: a and b must agree, c be theirs or f32",
                a.dtype.name(),
                b.dtype.name(),
                c.dtype.name()
            ),
        );
    }
    let batch = if c.shape.len() == 3 { c.shape[0] } else { 1 };
    let same = |v: &View| v.shape.len() == 2 || (c.shape.len() == 3 && v.shape[0] == c.shape[0]);
    if ma != m || nb != n || k != kb || !same(&a) || !same(&b) {
        return invalid(
            o,
            format!(
                "c {:?}, a {:?}, b {:?} do not fit",
                c.shape, a.shape, b.shape
            ),
        );
    }
    if n > 1 && sc[1] != 1 {
        return refuse(o, format!("c has last stride {}, must be 1", sc[1]));
    }
    if m > 1 && (sc[0] as u64) < n {
        return refuse(o, format!("rows of c overlap (stride {} < {n})", sc[0]));
    }
    let bias = optional(o, 3, FLOATS)?;
    if let Some(v) = &bias {
        shape(o, 3, v, &[n])?;
    }
    if c.total == 0 {
        return nothing(o);
    }
    let mut x: MatmulArgs = zero();
    (x.m, x.n, x.k, x.sa, x.sb) = (m, n, k, sa, sb);
    x.sc = [sc[0], sc[2]];
    x.bias_stride = bias.as_ref().map_or(0, |v| v.stride[0]);
    x.alpha = if p.alpha == 0.0 { 1.0 } else { p.alpha };
    x.accumulate = (p.flags & op::FLAG_ACCUM != 0) as u64;
    let types = [
        c_type(c.dtype),
        c_type(a.dtype),
        bias.as_ref().map_or("float", |v| c_type(v.dtype)),
    ];
    let kernel = Kernel::new(
        Family::Matmul,
        format!("cw_matmul_{}", types.join("_")),
        256,
        "MatmulArgs",
        &format!("cw_matmul<{}>", types.join(", ")),
    );
    let mut places = vec![
        ("c", Place::Operand(0)),
        ("a", Place::Operand(1)),
        ("b", Place::Operand(2)),
    ];
    if bias.is_some() {
        places.push(("bias", Place::Operand(3)));
    }
    // Most that a grid has along its second and third dims.
    const MOST: u64 = 65535;
    let tiles = [m.div_ceil(TILE), n.div_ceil(TILE)];
    if f.dialect != Dialect::Host && tiles[1] > MOST {
        return refuse(o, "more tiles than a grid has");
    }
    let mut all = vec![];
    for first in (0..batch).step_by(MOST as usize) {
        x.first = first as u32;
        let grid = [tiles[0], tiles[1], (batch - first).min(MOST)];
        all.push(launch(kernel.clone(), grid, 256, 0, &x, &places));
    }
    done(o, 0, all, Dynamic::None)
}
