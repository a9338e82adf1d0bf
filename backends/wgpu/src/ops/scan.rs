//! arg_reduce and cumsum: one dim walked in order, a line an invocation.

use super::elementwise::{SIZE, index};
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_plugin::{DType, OpRequest, Result, op};

/// Elements that one invocation walks in a dispatch. A software Vulkan driver of Mesa (llvmpipe) ends the loops of an
/// invocation after 65,535 rounds in all, without a word; a store of 16 bits is a loop of its own.
const WALK: usize = 16_384;

/// A dim of `n` elements in walks; one of nothing where there are none.
fn walks(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n.max(1))
        .step_by(WALK)
        .map(move |from| (from, (from + WALK).min(n)))
}

const HEAD: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let line = gid.x + gid.y * nwg.x * 64u;
  if line >= param(0u) { return; }
";

/// `arg_reduce`.
pub fn arg_reduce(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    let r = op::ArgReduce::read(o)?;
    let dst = r.dst;
    let (lines, n, step) = r.src.lines(r.dim);
    let (text, more) = index("at", &lines, 4);
    // The first NaN beats every number as the largest and loses to every number as the smallest.
    let wins = match r.smallest {
        false => "select(v > best && !is_nan(best), !is_nan(best), is_nan(v))",
        true => "!is_nan(v) && (is_nan(best) || v < best)",
    };
    let body = |first: &str| {
        format!(
            "{text}{HEAD}  let base = at(line); var where_ = {first}; var best = ld_x(base + where_ * param(2u));\n  \
             for (var k = param(3u); k < param(1u); k++) {{ let v = ld_x(base + k * param(2u)); if {wins} {{ best = v; where_ = k; }} }}\n  \
             stb_y(line, vec2<u32>(where_, 0u));\n}}\n"
        )
    };
    let groups = fold((dst.total as u64).div_ceil(SIZE), f)?;
    let mut passes = vec![];
    for (from, to) in walks(n) {
        // What was the best so far is in the output.
        let (first, from) = match from {
            0 => ("0u", 1),
            k => ("ldb_y(line).x", k),
        };
        let mut params = vec![lines.total as u32, to as u32, step as u32, from as u32];
        params.extend(&more);
        let mut b = Binds::new(o, f);
        b.operand("y", 0, Access::ReadWrite)?;
        b.operand("x", 1, Access::Read)?;
        passes.push(b.pass("arg_reduce", &body(first), params, groups)?);
    }
    Ok(Prepared::of(passes))
}

/// `cumsum`.
pub fn cumsum(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    let op::Cumsum { dst, src, dim } = op::Cumsum::read(o)?;
    let (from, n, step_in) = src.lines(dim);
    let (to, _, step_out) = dst.lines(dim);
    let (a, more) = index("at_from", &from, 5);
    let (c, rest) = index("at_to", &to, 5 + more.len());
    // What a walk begins with: nothing, or what the one before has come to. A sum of floats keeps what its output rounds.
    let float = src.dtype.is_float();
    let (zero, carried, step) = match src.dtype {
        _ if float => (
            "vec2<f32>()",
            "vec2<f32>(ld_c(2u * line), ld_c(2u * line + 1u))",
            "s = sum_in(s, ld_x(x)); st_y(y, s.x + s.y);",
        ),
        DType::I32 => (
            "vec2<u32>()",
            "vec2<u32>(ldu_y(to + (param(4u) - 1u) * param(3u)), 0u)",
            "s.x = s.x + ldu_x(x); stu_y(y, s.x);",
        ),
        _ => (
            "vec2<u32>()",
            "ldb_y(to + (param(4u) - 1u) * param(3u))",
            "s = add_64(s, ldb_x(x)); stb_y(y, s);",
        ),
    };
    let several = n > WALK && float;
    let keep = match several {
        true => "  st_c(2u * line, s.x); st_c(2u * line + 1u, s.y);\n",
        false => "",
    };
    let body = |begin: &str| {
        format!(
            "{a}{c}{HEAD}  let start = at_from(line); let to = at_to(line); var s = {begin};\n  \
             for (var k = param(4u); k < param(1u); k++) {{ let x = start + k * param(2u); let y = to + k * param(3u); {step} }}\n{keep}}}\n"
        )
    };
    let lines = if n == 0 { 0 } else { from.total as u64 };
    let groups = fold(lines.div_ceil(SIZE), f)?;
    let workspace_bytes = if several { 8 * lines } else { 0 };
    let mut passes = vec![];
    for (k, end) in walks(n) {
        let mut params = vec![
            from.total as u32,
            end as u32,
            step_in as u32,
            step_out as u32,
            k as u32,
        ];
        params.extend(&more);
        params.extend(&rest);
        let mut b = Binds::new(o, f);
        b.operand("y", 0, Access::ReadWrite)?;
        b.operand("x", 1, Access::Read)?;
        if several {
            b.workspace("c", 0, workspace_bytes, DType::F32, Access::ReadWrite)?;
        }
        let begin = if k == 0 { zero } else { carried };
        passes.push(b.pass("cumsum", &body(begin), params, groups)?);
    }
    Ok(Prepared {
        passes,
        workspace_bytes,
        ..Default::default()
    })
}
