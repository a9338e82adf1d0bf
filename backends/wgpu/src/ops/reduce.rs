//! reduce over chosen dims: compensated sums along each invocation's elements, halves joined in a fixed order.

use super::elementwise::{SIZE, index};
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};

/// Elements of one partial result where a value is made of many.
const PIECE: u64 = 16_384;
/// From here on a value is a workgroup's work, not an invocation's.
const GROUP_FROM: u64 = 256;

/// How a kind starts, takes an element in, and joins two results. `s.y` is what `s.x` has lost.
fn kind(k: u32) -> Option<[&'static str; 3]> {
    Some(match k {
        op::reduce::SUM => [
            "0.0",
            "sum_in(s, x)",
            "sum_in(vec2<f32>(s.x, s.y + q.y), q.x)",
        ],
        op::reduce::SUMSQ => [
            "0.0",
            "sum_in(s, keep(x * x))",
            "sum_in(vec2<f32>(s.x, s.y + q.y), q.x)",
        ],
        op::reduce::MAX => [
            "-inf_f()",
            "vec2<f32>(max_nan(s.x, x), 0.0)",
            "vec2<f32>(max_nan(s.x, q.x), 0.0)",
        ],
        op::reduce::MIN => [
            "inf_f()",
            "vec2<f32>(min_nan(s.x, x), 0.0)",
            "vec2<f32>(min_nan(s.x, q.x), 0.0)",
        ],
        op::reduce::PROD => [
            "1.0",
            "vec2<f32>(s.x * x, 0.0)",
            "vec2<f32>(s.x * q.x, 0.0)",
        ],
        _ => return None,
    })
}

/// One invocation makes one value. Parameters: 0 values, 1 elements of each.
const ALONE: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let v = gid.x + gid.y * nwg.x * 64u;
  if v >= param(0u) { return; }
  var s = vec2<f32>(START, 0.0);
  let base = at_kept(v);
  for (var k = 0u; k < param(1u); k++) { let x = ld_x(base + at_gone(k)); s = TAKE; }
  FINISH
}
";

/// A workgroup makes one piece of one value: 2 elements of a piece, 3 pieces of a value.
const TOGETHER: &str = "var<workgroup> both: array<vec2<f32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let g = wg.x + wg.y * nwg.x;
  let v = g / param(3u);
  let start = (g % param(3u)) * param(2u);
  let to = min(start + param(2u), param(1u));
  var s = vec2<f32>(START, 0.0);
  if v < param(0u) {
    let base = at_kept(v);
    for (var k = start + t; k < to; k += 64u) { let x = ld_x(base + at_gone(k)); s = TAKE; }
  }
  both[t] = s;
  workgroupBarrier();
  for (var h = 32u; h > 0u; h = h >> 1u) {
    if t < h { let q = both[t + h]; s = JOIN; both[t] = s; }
    workgroupBarrier();
  }
  if t == 0u && v < param(0u) { FINISH }
}
";

/// One invocation joins the pieces of one value: 0 values, 1 pieces.
const PIECES: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let v = gid.x + gid.y * nwg.x * 64u;
  if v >= param(0u) { return; }
  var s = vec2<f32>(START, 0.0);
  for (var k = 0u; k < param(1u); k++) {
    let q = ld2_p(2u * (v * param(1u) + k));
    s = JOIN;
  }
  FINISH
}
";

/// `reduce`.
pub fn reduce(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 2..=2)?;
    let p = o.params::<op::ReduceParams>()?;
    flags(o, p.flags, op::FLAG_ACCUM)?;
    let Some([start, take, join]) = kind(p.kind) else {
        return refuse(o, format!("kind {} is unknown", p.kind));
    };
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if dst.dtype != src.dtype && dst.dtype != DType::F32 {
        return refuse(
            o,
            format!("dst {} over src {}", dst.dtype.name(), src.dtype.name()),
        );
    }
    let rank = src.shape.len();
    if rank < 32 && p.axes >> rank != 0 {
        return invalid(o, format!("axes {:#b} beyond rank {rank}", p.axes));
    }
    let goes = |d: &usize| p.axes >> d & 1 == 1;
    let gone: Vec<usize> = (0..rank).filter(goes).collect();
    let kept: Vec<usize> = (0..rank).filter(|d| !goes(d)).collect();
    let want: Vec<usize> = (0..rank)
        .map(|d| if goes(&d) { 1 } else { src.shape[d] })
        .collect();
    shape(o, 0, &dst, &want)?;
    let (kept, gone) = (src.pick(&kept), src.pick(&gone));
    let (values, each) = (kept.total as u64, gone.total as u64);
    // Elements that shared a word with another invocation's are merged; one value an invocation is little of that.
    let finish = match p.flags & op::FLAG_ACCUM != 0 {
        true => "let old = sum_in(s, ld_y(v)); st_y(v, old.x + old.y);",
        false if matches!(p.kind, op::reduce::SUM | op::reduce::SUMSQ) => "st_y(v, s.x + s.y);",
        false => "st_y(v, s.x);",
    };
    let fill = |text: &str, finish: &str| {
        text.replace("START", start)
            .replace("TAKE", take)
            .replace("JOIN", join)
            .replace("FINISH", finish)
    };
    let walk = |first: usize| {
        let (a, mut params) = index("at_kept", &kept, first);
        let (b, more) = index("at_gone", &gone, first + params.len());
        params.extend(more);
        (format!("{a}{b}"), params)
    };
    let mut b = Binds::new(o, f);
    if each < GROUP_FROM || values >= 65_536 {
        b.operand("y", 0, Access::ReadWrite)?;
        b.operand("x", 1, Access::Read)?;
        let (text, more) = walk(2);
        let mut params = vec![values as u32, each as u32];
        params.extend(more);
        let body = format!("{text}{}", fill(ALONE, finish));
        let pass = b.pass("reduce", &body, params, fold(values.div_ceil(SIZE), f)?)?;
        return Ok(Prepared::of(vec![pass]));
    }
    let pieces = each.div_ceil(PIECE);
    let (text, more) = walk(4);
    let mut params = vec![values as u32, each as u32, PIECE as u32, pieces as u32];
    params.extend(more);
    let groups = fold(values * pieces, f)?;
    b.operand("x", 1, Access::Read)?;
    if pieces == 1 {
        b.operand("y", 0, Access::ReadWrite)?;
        let body = format!("{text}{}", fill(TOGETHER, finish));
        return Ok(Prepared::of(vec![b.pass("reduce", &body, params, groups)?]));
    }
    let bytes = 8 * values * pieces;
    b.workspace("p", 0, bytes, DType::F32, Access::ReadWrite)?;
    let body = fill(TOGETHER, "st_p(2u * g, s.x); st_p(2u * g + 1u, s.y);");
    let first = b.pass("reduce", &format!("{text}{body}"), params, groups)?;
    let mut b = Binds::new(o, f);
    b.operand("y", 0, Access::ReadWrite)?;
    b.workspace("p", 0, bytes, DType::F32, Access::Read)?;
    let params = vec![values as u32, pieces as u32];
    let body = fill(PIECES, finish);
    let last = b.pass("reduce", &body, params, fold(values.div_ceil(SIZE), f)?)?;
    Ok(Prepared {
        passes: vec![first, last],
        workspace_bytes: bytes,
        ..Default::default()
    })
}
