//! sort_pairs and topk: a merge sort of positions, stable, ties by position, NaN above every number. In each pass an element finds its
//! place by searching the neighbouring run, so nothing depends on the order in which invocations run.

use super::elementwise::{SIZE, index};
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Pass, Prepared, fold};
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};

const KEYS: &[DType] = &[DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64];

/// The row count and length of `[.., n]`.
fn rows_of(o: &OpRequest<'_>, v: &View) -> Result<(usize, usize)> {
    match v.shape.split_last() {
        Some((&n, outer)) => Ok((outer.iter().product(), n)),
        None => invalid(o, "rank 0, rows wanted"),
    }
}

/// `fn key(i) -> vec2<u32>`: unsigned words in the order wanted.
fn key(t: DType, descending: bool) -> String {
    let up = match t {
        DType::I64 => "let b = ldb_x(at(i)); let k = vec2<u32>(b.x, b.y ^ 0x80000000u);",
        DType::I32 => "let k = vec2<u32>(0u, ldu_x(at(i)) ^ 0x80000000u);",
        // -0 equals 0, NaN is last.
        _ => {
            "let v = ld_x(at(i)); var b = bitcast<u32>(v); if (b << 1u) == 0u { b = 0u; } \
             let u = select(b | 0x80000000u, ~b, (b >> 31u) != 0u); let k = vec2<u32>(0u, select(u, 0xffffffffu, is_nan(v)));"
        }
    };
    let turn = if descending { "~k" } else { "k" };
    format!("fn key(i: u32) -> vec2<u32> {{ {up} return {turn}; }}\n")
}

/// Parameters: 0 elements in all, 1 of a row, 2 length of a run.
const MERGE: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let g = gid.x + gid.y * nwg.x * 64u;
  if g >= param(0u) { return; }
  let n = param(1u);
  let run = param(2u);
  let base = (g / n) * n;
  let p = g % n;
  let me = PERM;
  let start = (p / (2u * run)) * (2u * run);
  let left = p < start + run;
  // The other run.
  var lo = start;
  var hi = min(start + run, n);
  if left { lo = min(start + run, n); hi = min(start + 2u * run, n); }
  let first = lo;
  let k = key(base + me);
  while lo < hi {
    let mid = (lo + hi) / 2u;
    let q = key(base + OTHER);
    // From the right run an equal key of the left one comes before.
    let before = select(!below_64(k, q), below_64(q, k), left);
    if before { lo = mid + 1u; } else { hi = mid; }
  }
  let own = select(p - start - run, p - start, left);
  stu_b(base + start + own + (lo - first), me);
}
";

/// Passes that leave row-wise sorted positions in the workspace, and where.
fn order(
    o: &OpRequest<'_>,
    f: &Facts,
    operand: usize,
    v: &View,
    n: usize,
    descending: bool,
) -> Result<(Vec<Pass>, u64, u64)> {
    let total = v.total as u64;
    let half = (4 * total).next_multiple_of(64);
    let (at, more) = index("at", v, 3);
    let key = key(v.dtype, descending);
    let mut passes = vec![];
    let mut run = 1u64;
    let mut here = 0;
    loop {
        let mut b = Binds::new(o, f);
        b.operand("x", operand, Access::Read)?;
        let (mine, other) = match passes.is_empty() {
            true => ("p", "mid"),
            false => {
                b.workspace("a", here, 4 * total, DType::U32, Access::Read)?;
                ("ldu_a(g)", "ldu_a(base + mid)")
            }
        };
        here = half - here;
        b.workspace("b", here, 4 * total, DType::U32, Access::ReadWrite)?;
        let merge = MERGE.replace("PERM", mine).replace("OTHER", other);
        let mut params = vec![total as u32, n as u32, run as u32];
        params.extend(&more);
        let groups = fold(total.div_ceil(SIZE), f)?;
        passes.push(b.pass("sort_merge", &format!("{at}{key}{merge}"), params, groups)?);
        run *= 2;
        if run >= n as u64 {
            return Ok((passes, here, 2 * half));
        }
    }
}

/// `sort_pairs`.
pub fn sort_pairs(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 4..=4)?;
    let p = o.params::<op::DimParams>()?;
    flags(o, p.flags, op::FLAG_DESCENDING)?;
    let (ko, vo) = (output(o, 0, KEYS)?, output(o, 1, INDEX)?);
    let (keys, values) = (input(o, 2, KEYS)?, input(o, 3, INDEX)?);
    for (i, v) in [(1, &vo), (2, &keys), (3, &values)] {
        shape(o, i, v, &ko.shape)?;
    }
    same_dtype(o, 2, &keys, &ko)?;
    same_dtype(o, 3, &values, &vo)?;
    let (_, n) = rows_of(o, &keys)?;
    if keys.total == 0 {
        return Ok(Prepared::default());
    }
    let down = p.flags & op::FLAG_DESCENDING != 0;
    let (mut passes, at, bytes) = order(o, f, 2, &keys, n, down)?;
    for (label, out, from, v) in [("sort_keys", 0, 2, &keys), ("sort_values", 1, 3, &values)] {
        let (text, more) = index("at", v, 2);
        let mut b = Binds::new(o, f);
        b.operand("y", out, Access::ReadWrite)?;
        b.operand("x", from, Access::Read)?;
        b.workspace("a", at, 4 * keys.total as u64, DType::U32, Access::Read)?;
        let body = format!(
            "{text}{}  stb_y(g, ldb_x(at((g / n) * n + ldu_a(g))));\n}}\n",
            HEAD
        );
        let mut params = vec![keys.total as u32, n as u32];
        params.extend(more);
        let groups = fold((keys.total as u64).div_ceil(SIZE), f)?;
        passes.push(b.pass(label, &body, params, groups)?);
    }
    Ok(Prepared {
        passes,
        workspace_bytes: bytes,
        ..Default::default()
    })
}

const HEAD: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let g = gid.x + gid.y * nwg.x * 64u;
  if g >= param(0u) { return; }
  let n = param(1u);
";

/// `topk`.
pub fn topk(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    let p = o.params::<op::DimParams>()?;
    // Largest first is the only order there is, said or not.
    flags(o, p.flags, op::FLAG_DESCENDING)?;
    let (values, ix) = (output(o, 0, FLOATS)?, output(o, 1, INDEX)?);
    let src = input(o, 2, FLOATS)?;
    shape(o, 1, &ix, &values.shape)?;
    same_dtype(o, 2, &src, &values)?;
    let (_, n) = rows_of(o, &src)?;
    let (_, k) = rows_of(o, &values)?;
    let mut want = src.shape.clone();
    if let Some(last) = want.last_mut() {
        *last = k;
    }
    shape(o, 0, &values, &want)?;
    if k > n {
        return invalid(o, format!("k = {k} of {n} elements"));
    }
    if values.total == 0 {
        return Ok(Prepared::default());
    }
    let (mut passes, at, bytes) = order(o, f, 2, &src, n, true)?;
    let (text, more) = index("at", &src, 3);
    let mut b = Binds::new(o, f);
    b.operand("y", 0, Access::ReadWrite)?;
    b.operand("i", 1, Access::ReadWrite)?;
    b.operand("x", 2, Access::Read)?;
    b.workspace("a", at, 4 * src.total as u64, DType::U32, Access::Read)?;
    let body = format!(
        "{text}{HEAD}  let row = g / param(2u); let best = ldu_a(row * n + g % param(2u));\n  \
         stb_y(g, ldb_x(at(row * n + best))); stb_i(g, vec2<u32>(best, 0u));\n}}\n"
    );
    let mut params = vec![values.total as u32, n as u32, k as u32];
    params.extend(more);
    let groups = fold((values.total as u64).div_ceil(SIZE), f)?;
    passes.push(b.pass("topk", &body, params, groups)?);
    Ok(Prepared {
        passes,
        workspace_bytes: bytes,
        ..Default::default()
    })
}
