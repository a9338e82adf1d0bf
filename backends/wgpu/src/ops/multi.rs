//! multi_sumsq, multi_scale, nonfinite_count and adamw: many tensors in one launch, a dispatch for each, sums in a fixed order.

use super::elementwise::{Elementwise, Kind, SIZE, index};
use super::view::*;
use crate::kernel::{Access, Binds, DYN_WORDS, Facts, Pass, Prepared, fold};
use crossweave_abi::op;
use crossweave_plugin::op::Adamw;
use crossweave_plugin::{Code, DType, Dyn, OpRequest, Result, fail};

/// Elements of a workgroup of a sum: a constant, so that the order depends on nothing else.
const CHUNK: u64 = 4096;

/// One (sum, rest) pair a chunk: each invocation takes every 64th element, then halves are joined.
const SUMSQ: &str = "var<workgroup> part: array<vec2<f32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let g = wg.x + wg.y * nwg.x;
  let n = param(0u);
  var s = vec2<f32>();
  let start = g * 4096u;
  for (var k = t; k < 4096u; k += 64u) { if start + k < n { let x = ld_x(at(start + k)); s = sum_in(s, x * x); } }
  part[t] = s;
  workgroupBarrier();
  for (var h = 32u; h > 0u; h = h >> 1u) {
    if t < h { s = sum_in(s, part[t + h].x); s.y += part[t + h].y; part[t] = s; }
    workgroupBarrier();
  }
  if t == 0u && g < param(2u) { st_part(2u * (g + param(1u)), s.x); st_part(2u * (g + param(1u)) + 1u, s.y); }
}
";

/// Joins all pairs and adds them to the output.
const TOTAL: &str = "var<workgroup> part: array<vec2<f32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
  let n = param(0u);
  var s = vec2<f32>();
  for (var k = t; k < n; k += 64u) { s = sum_in(s, ld_p(2u * k)); s.y += ld_p(2u * k + 1u); }
  part[t] = s;
  workgroupBarrier();
  for (var h = 32u; h > 0u; h = h >> 1u) {
    if t < h { s = sum_in(s, part[t + h].x); s.y += part[t + h].y; part[t] = s; }
    workgroupBarrier();
  }
  if t == 0u { s = sum_in(s, ld_y(0u)); st_y(0u, s.x + s.y); }
}
";

/// `multi_sumsq`.
pub fn sumsq(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, F32)?)?;
    let views = (1..o.operands.len())
        .map(|i| input(o, i, FLOATS))
        .collect::<Result<Vec<_>>>()?;
    let chunks = |v: &View| (v.total as u64).div_ceil(CHUNK);
    let all: u64 = views.iter().map(chunks).sum();
    let bytes = 8 * all;
    let mut passes = vec![];
    let mut at = 0;
    for (i, v) in views.iter().enumerate() {
        let n = chunks(v);
        if n == 0 {
            continue;
        }
        let (text, more) = index("at", v, 3);
        let mut b = Binds::new(o, f);
        b.operand("x", i + 1, Access::Read)?;
        b.workspace("part", 0, bytes, DType::F32, Access::ReadWrite)?;
        let mut params = vec![v.total as u32, at as u32, n as u32];
        params.extend(more);
        // `part` the workspace and `part` the array would be one name.
        let body = format!("{text}{SUMSQ}")
            .replace("part: array", "both: array")
            .replace("part[", "both[");
        passes.push(b.pass("sumsq", &body, params, fold(n, f)?)?);
        at += n;
    }
    if all > 0 {
        let mut b = Binds::new(o, f);
        b.operand("y", 0, Access::ReadWrite)?;
        b.workspace("p", 0, bytes, DType::F32, Access::Read)?;
        passes.push(b.pass("sumsq_total", TOTAL, vec![all as u32], [1, 1, 1])?);
    }
    Ok(Prepared {
        passes,
        workspace_bytes: bytes,
        ..Default::default()
    })
}

const NONFINITE: &str = "var<workgroup> part: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let start = (wg.x + wg.y * nwg.x) * 4096u;
  let n = param(0u);
  var c = 0u;
  for (var k = t; k < 4096u; k += 64u) { if start + k < n && nonfinite(ld_x(at(start + k))) { c += 1u; } }
  part[t] = c;
  workgroupBarrier();
  if t == 0u { var s = 0u; for (var k = 0u; k < 64u; k++) { s += part[k]; } if s > 0u { grow_y(off_y(), s); } }
}
";

/// `nonfinite_count`.
pub fn nonfinite_count(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, &[DType::U32])?)?;
    let mut passes = vec![];
    for i in 1..o.operands.len() {
        let v = input(o, i, FLOATS)?;
        let (text, more) = index("at", &v, 1);
        let mut b = Binds::new(o, f);
        b.operand("y", 0, Access::ReadWrite)?;
        b.operand("x", i, Access::Read)?;
        let mut params = vec![v.total as u32];
        params.extend(more);
        let groups = fold((v.total as u64).div_ceil(CHUNK), f)?;
        passes.push(b.pass(
            "nonfinite_count",
            &format!("{text}{NONFINITE}"),
            params,
            groups,
        )?);
    }
    Ok(Prepared::of(passes))
}

/// `multi_scale`.
pub fn scale_all(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let coef = optional(o, 0, F32)?;
    if let Some(c) = &coef {
        scalar(o, 0, c)?;
    }
    let mut passes: Vec<Pass> = vec![];
    for i in 1..o.operands.len() {
        let v = output_strided(o, i, FLOATS)?;
        let mut e = Elementwise::new(o, f, v.total);
        e.output("x", i, &v, Kind::Float, true)?;
        let factor = match &coef {
            Some(c) => {
                e.table("c", 0, c)?;
                "keep(dyn_f32(0u) * ld_c(0u))"
            }
            None => "dyn_f32(0u)",
        };
        passes.push(e.pass("multi_scale", &format!("  let o_x = x * {factor};"))?);
    }
    Ok(Prepared {
        passes,
        dynamic: Some(Box::new(|bytes| {
            let d = Dyn(bytes).read::<op::ScaleDyn>()?;
            let mut w = [0; DYN_WORDS];
            w[0] = (d.scale as f32).to_bits();
            Ok(w)
        })),
        ..Default::default()
    })
}

/// Factors: 0 gradient, 1 b1, 2 1-b1, 3 b2, 4 1-b2, 5 eps, 6 lr wd, 7 L2, 8 lr / bc1, 9 sqrt bc2.
const ADAMW: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let i = 2u * (gid.x + gid.y * nwg.x * 64u);
  let n = param(0u);
  if i >= n { return; }
  if SKIP { return; }
  let scale = COEF;
  let a = update(i, scale);
  if i + 1u < n { let b = update(i + 1u, scale); STORE2 } else { STORE1 }
}
fn update(i: u32, scale: f32) -> f32 {
  let old = LOAD;
  let g = keep(ld_g(i) * scale) + keep(dyn_f32(7u) * old);
  let w = old - keep(dyn_f32(6u) * old);
  let m = keep(dyn_f32(1u) * ld_m(i)) + keep(dyn_f32(2u) * g);
  let v = keep(dyn_f32(3u) * ld_v(i)) + keep(dyn_f32(4u) * keep(g * g));
  st_m(i, m);
  st_v(i, v);
  let p = w - dyn_f32(8u) * m / (sqrt_f(v) / dyn_f32(9u) + dyn_f32(5u));
  MASTER
  return p;
}
";

/// `adamw`.
pub fn adamw(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    let r = Adamw::read(o)?;
    let (p, each, master) = (r.params, r.each, r.master);
    let mut body = ADAMW.to_string();
    let mut put = |from: &str, to: &str| body = body.replace(from, to);
    let (coef, skip) = (r.coef, r.skip);
    put("SKIP", if skip { "ldu_skip(0u) != 0u" } else { "false" });
    let scaled = "keep(dyn_f32(0u) * ld_coef(0u))";
    put("COEF", if coef { scaled } else { "dyn_f32(0u)" });
    put("LOAD", if master { "ld_w(i)" } else { "ld_p(i)" });
    put("MASTER", if master { "st_w(i, p);" } else { "" });
    put("STORE2", "st2_p(i, a, b);");
    put("STORE1", "st_p(i, a);");
    let mut passes = vec![];
    for (first, v, _) in r.tensors {
        let mut b = Binds::new(o, f);
        for (k, name) in ["p", "g", "m", "v", "w"].into_iter().take(each).enumerate() {
            let access = match k {
                1 => Access::Read,
                _ => Access::ReadWrite,
            };
            b.operand(name, first + k, access)?;
        }
        if coef {
            b.operand("coef", 0, Access::Read)?;
        }
        if skip {
            b.operand("skip", 1, Access::Read)?;
        }
        let n = v.total as u64;
        let groups = fold(n.div_ceil(2).div_ceil(SIZE), f)?;
        passes.push(b.pass("adamw", &body, vec![n as u32], groups)?);
    }
    Ok(Prepared {
        passes,
        dynamic: Some(Box::new(move |bytes| {
            let d = Dyn(bytes).read::<op::AdamwDyn>()?;
            if d.step == 0 {
                return fail(Code::Invalid, "adamw: step counts from 1, 0 was given");
            }
            let bc = |beta: f64| 1.0 - beta.powf(d.step as f64);
            let l2 = p.mode == 1;
            let factors = [
                d.grad_scale,
                p.beta1,
                1.0 - p.beta1,
                p.beta2,
                1.0 - p.beta2,
                p.eps,
                if l2 { 0.0 } else { d.lr * p.weight_decay },
                if l2 { p.weight_decay } else { 0.0 },
                d.lr / bc(p.beta1),
                bc(p.beta2).sqrt(),
            ];
            let mut w = [0; DYN_WORDS];
            for (w, x) in w.iter_mut().zip(factors) {
                *w = (x as f32).to_bits();
            }
            Ok(w)
        })),
        ..Default::default()
    })
}
