//! gather_rows, scatter_add_rows and histogram. A row's sum runs in order of position: each position is linked to the next of its row, and
//! the first of them walks the chain.

use super::elementwise::{Elementwise, Kind, SIZE, index as walk};
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Result};

/// An index operand, and the text that decides whether value `r` means a row.
struct Rows {
    view: View,
    ignore: Option<i32>,
    limit: u32,
}

impl Rows {
    fn new(o: &OpRequest<'_>, i: usize, limit: usize) -> Result<Rows> {
        let p = o.params::<op::IndexParams>()?;
        flags(o, p.flags, op::FLAG_HAS_IGNORE)?;
        // A value beyond 32 bits is out of range anyway, so it need not be ignored as well.
        let ignore = i32::try_from(p.ignore).ok();
        Ok(Rows {
            view: input(o, i, INDEX)?,
            ignore: ignore.filter(|_| p.flags & op::FLAG_HAS_IGNORE != 0),
            limit: limit as u32,
        })
    }

    /// `fn row(i) -> i32`: the row of position `i`, or -1; with its parameters from `first` on.
    fn text(&self, first: usize) -> (String, Vec<u32>) {
        let (at, mut params) = walk("at_ix", &self.view, first + 2);
        params.splice(0..0, [self.limit, self.ignore.unwrap_or(-1) as u32]);
        let (limit, ignore) = (first, first + 1);
        let text = format!(
            "{at}fn row(i: u32) -> i32 {{ let r = idx_ix(at_ix(i)); \
             if r < 0 || u32(r) >= param({limit}u) || r == bitcast<i32>(param({ignore}u)) {{ return -1; }} return r; }}\n"
        );
        (text, params)
    }
}

/// `[rows, ..]` split into the row count and the width of a row.
fn table_of(o: &OpRequest<'_>, i: usize, v: &View) -> Result<(usize, usize)> {
    match v.shape.split_first() {
        Some((&n, rest)) => Ok((n, rest.iter().product())),
        None => invalid(o, format!("operand {i}: rank 0, rows wanted")),
    }
}

/// The shape `index's shape + row's shape`.
fn joined(index: &View, row: &[usize]) -> Vec<usize> {
    index.shape.iter().chain(row).copied().collect()
}

/// `gather_rows`.
pub fn gather_rows(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    let (dst, table) = (output(o, 0, WHOLE_BYTES)?, input(o, 1, WHOLE_BYTES)?);
    same_dtype(o, 1, &table, &dst)?;
    let (n, width) = table_of(o, 1, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 0, &dst, &joined(&rows.view, &table.shape[1..]))?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    e.table("x", 1, &table)?;
    e.table("ix", 2, &rows.view)?;
    let w = e.param(width as u32);
    let limit = e.param(rows.limit);
    let ignore = e.param(rows.ignore.unwrap_or(-1) as u32);
    let body = format!(
        "  let r = idx_ix(at_ix(i / {w})); var o_y = vec2<u32>();\n  \
         if r >= 0 && u32(r) < {limit} && r != bitcast<i32>({ignore}) {{ o_y = ldb_x(at_x(u32(r) * {w} + i % {w})); }}"
    );
    Ok(Prepared::of(vec![e.pass("gather_rows", &body)?]))
}

/// For each position, the next one of its row (or none), with the top bit where no earlier one has it.
const LINK: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let i = gid.x + gid.y * nwg.x * 64u;
  let n = param(0u);
  if i >= n { return; }
  let r = row(i);
  var next = 0x7fffffffu;
  var first = 0x80000000u;
  if r < 0 { first = 0u; } else {
    for (var k = 0u; k < i; k++) { if row(k) == r { first = 0u; break; } }
    for (var k = i + 1u; k < n; k++) { if row(k) == r { next = k; break; } }
  }
  stu_next(i, next | first);
}
";

/// Parameters: 0 positions, 1 width.
const CHAIN: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
  let g = gid.x + gid.y * nwg.x * 64u;
  let w = param(1u);
  var i = g / w;
  let c = g % w;
  if i >= param(0u) || (ldu_next(i) >> 31u) == 0u { return; }
  let at = u32(row(i)) * w + c;
  var s = ld_t(at);
  loop {
    s = s + ld_s(at_s(i * w + c));
    i = ldu_next(i) & 0x7fffffffu;
    if i == 0x7fffffffu { break; }
  }
  st_t(at, s);
}
";

/// `scatter_add_rows`.
pub fn scatter_add_rows(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    let (table, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if table.dtype != DType::F32 {
        same_dtype(o, 1, &src, &table)?;
    }
    let (n, width) = table_of(o, 0, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 1, &src, &joined(&rows.view, &table.shape[1..]))?;
    let positions = rows.view.total as u64;
    if positions == 0 || width == 0 {
        return Ok(Prepared::default());
    }
    let bytes = 4 * positions;
    let mut b = Binds::new(o, f);
    b.operand("ix", 2, Access::Read)?;
    b.workspace("next", 0, bytes, DType::U32, Access::ReadWrite)?;
    let (text, more) = rows.text(1);
    let mut params = vec![positions as u32];
    params.extend(more);
    let groups = fold(positions.div_ceil(SIZE), f)?;
    let link = b.pass("scatter_link", &format!("{text}{LINK}"), params, groups)?;
    let mut b = Binds::new(o, f);
    b.operand("t", 0, Access::ReadWrite)?;
    b.operand("s", 1, Access::Read)?;
    b.operand("ix", 2, Access::Read)?;
    b.workspace("next", 0, bytes, DType::U32, Access::Read)?;
    let (text, more) = rows.text(2);
    let mut params = vec![positions as u32, width as u32];
    params.extend(more);
    let (at_s, more) = walk("at_s", &src, params.len());
    params.extend(more);
    let body = format!("{text}{at_s}{CHAIN}");
    let groups = fold((positions * width as u64).div_ceil(SIZE), f)?;
    let chain = b.pass("scatter_add", &body, params, groups)?;
    Ok(Prepared {
        passes: vec![link, chain],
        workspace_bytes: bytes,
        ..Default::default()
    })
}

/// `histogram`: counts are whole numbers, so their order does not matter.
pub fn histogram(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let dst = output(o, 0, &[DType::I32, DType::U32])?;
    let index = input(o, 1, INDEX)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    let zero = e.pass("histogram_zero", "  let o_y = vec2<u32>();")?;
    let mut b = Binds::new(o, f);
    b.operand("y", 0, Access::ReadWrite)?;
    b.operand("ix", 1, Access::Read)?;
    let (at, more) = walk("at_ix", &index, 2);
    let body = format!(
        "{at}@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{\n  \
         let i = gid.x + gid.y * nwg.x * 64u;\n  if i >= param(0u) {{ return; }}\n  let v = idx_ix(at_ix(i));\n  \
         if v >= 0 && u32(v) < param(1u) {{ grow_y(off_y() + u32(v), 1u); }}\n}}\n"
    );
    let mut params = vec![index.total as u32, dst.total as u32];
    params.extend(more);
    let groups = fold((index.total as u64).div_ceil(SIZE), f)?;
    let count = b.pass("histogram", &body, params, groups)?;
    Ok(Prepared::of(vec![zero, count]))
}
