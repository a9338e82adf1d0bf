//! embedding_*. The backward links equal indices into chains in order of position; the first position of a chain adds up all of it, so that
//! sums run in that order, whatever ran when, without atomics.

use super::pointwise::{SIZE, each};
use super::softmax::row_of;
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_plugin::{DType, OpRequest, Result, op};

/// `embedding_fwd`.
pub fn embedding(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    let r = op::Embedding::read(o)?;
    let ignore = r.index.ignore;
    let (y, table) = (view(o, 0, r.y)?, view(o, 1, r.table)?);
    let index = view(o, 2, r.index.view)?;
    let pos = r.pos.map(|p| view(o, 3, p)).transpose()?;
    let (n, d) = (table.shape[0], table.shape[1]);
    let mut t = Text::default();
    t.param("d", d)
        .param("row", table.stride[0])
        .param("col", table.stride[1]);
    let head = index.offsets("index_at", &mut t) + &row_of("index", index.dtype, ignore, n, &mut t);
    let mut compute = "let i = e / $d; let c = e - i * $d; let k = row_of_index(index_at(i));
  var r0 = 0.0; if k < $index_limit { r0 = ld_table(k * $row + c * $col); } "
        .to_string();
    let mut binds = Binds::new(o, facts);
    binds.operand("y", 0, Access::ReadWrite)?;
    if n > 0 {
        binds.operand("table", 1, Access::Read)?;
    } else {
        compute = compute.replace(
            "if k < $index_limit { r0 = ld_table(k * $row + c * $col); }",
            "",
        );
    }
    binds.operand("index", 2, Access::Read)?;
    if let Some(p) = &pos {
        t.param("positions", r.t as u32)
            .param("pos_row", p.stride[0])
            .param("pos_col", p.stride[1]);
        compute.push_str("r0 += ld_pos((i % $positions) * $pos_row + c * $pos_col);");
        binds.operand("pos", 3, Access::Read)?;
    }
    each(o, facts, t, head, binds, &compute, &[("y", &y)])
}

/// `embedding_bwd`.
pub fn embedding_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    let r = op::EmbeddingBackward::read(o)?;
    let ignore = r.index.ignore;
    let (dtable, dy) = (view(o, 0, r.dtable)?, view(o, 2, r.dy)?);
    let index = view(o, 3, r.index.view)?;
    let dpos = r.dpos.map(|p| view(o, 1, p)).transpose()?;
    let (v, d) = (dtable.shape[0], dtable.shape[1]);
    let positions = r.t as u32;
    let n = index.total;
    if n == 0 || d == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let bytes = u64::from(n) * 4;
    let per_index = fold(u64::from(n.div_ceil(SIZE)), facts)?;
    let one_each = format!(
        "@compute @workgroup_size({SIZE}) fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{
  let i = at.x + at.y * nwg.x * {SIZE}u;
  if i >= $n {{ return; }}
"
    );
    let mut passes = vec![];

    // rows[i]: the table's row of position i, or a number past all rows; first[i]: it may begin a chain.
    let mut t = Text::default();
    t.param("n", n);
    let body = index.offsets("index_at", &mut t)
        + &row_of("index", index.dtype, ignore, v, &mut t)
        + &one_each
        + "  let k = row_of_index(index_at(i));
  stu_rows(i, k);
  stu_first(i, select(0u, 1u, k < $index_limit));
}
";
    let mut binds = Binds::new(o, facts);
    binds
        .operand("index", 3, Access::Read)?
        .workspace("rows", 0, bytes, DType::U32, Access::ReadWrite)?
        .workspace("first", bytes, bytes, DType::U32, Access::ReadWrite)?;
    passes.push(binds.pass(
        "embedding rows",
        &t.fill(&body),
        t.params.clone(),
        per_index,
    )?);

    // next[i]: the next position with that row, or n. It has one predecessor, so one invocation clears its mark.
    let mut t = Text::default();
    t.param("n", n).param("limit", v);
    let body = one_each
        + "  let k = ldu_rows(i);
  var j = $n;
  if k < $limit {
    j = i + 1u;
    while j < $n { if ldu_rows(j) == k { break; } j++; }
    if j < $n { stu_first(j, 0u); }
  }
  stu_next(i, j);
}
";
    let mut binds = Binds::new(o, facts);
    binds
        .workspace("rows", 0, bytes, DType::U32, Access::Read)?
        .workspace("first", bytes, bytes, DType::U32, Access::ReadWrite)?
        .workspace("next", 2 * bytes, bytes, DType::U32, Access::ReadWrite)?;
    passes.push(binds.pass(
        "embedding chains",
        &t.fill(&body),
        t.params.clone(),
        per_index,
    )?);

    let wg = 64.min(facts.max_invocations);
    let across = d.div_ceil(wg);
    let mut t = Text::default();
    t.param("n", n)
        .param("d", d)
        .param("across", across)
        .param("dy_step", dy.step());
    let dy_row = dy.row_offsets("dy_row", &mut t);
    let head = |bound: &str| {
        format!(
            "{dy_row}@compute @workgroup_size({wg}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin(local_invocation_index) lane: u32) {{
  let wid = wg.x + wg.y * nwg.x;
  let i = wid / $across;
  let c = (wid % $across) * {wg}u + lane;
  if i >= {bound} || c >= $d {{ return; }}
"
        )
    };
    let body = head("$n")
        + "  if ldu_first(i) == 0u { return; }
  let o = ldu_rows(i) * $d + c;
  var s = ld_dtable(o);
  for (var j = i; j < $n; j = ldu_next(j)) { s += ld_dy(dy_row(j) + c * $dy_step); }
  st_dtable(o, s);
}
";
    if v > 0 {
        let mut binds = Binds::new(o, facts);
        binds
            .operand("dtable", 0, Access::ReadWrite)?
            .operand("dy", 2, Access::Read)?
            .workspace("rows", 0, bytes, DType::U32, Access::Read)?
            .workspace("first", bytes, bytes, DType::U32, Access::Read)?
            .workspace("next", 2 * bytes, bytes, DType::U32, Access::Read)?;
        let groups = fold(u64::from(n) * u64::from(across), facts)?;
        passes.push(binds.pass("embedding table", &t.fill(&body), t.params.clone(), groups)?);
    }
    if dpos.is_some() {
        t.param("positions", positions);
        let body = head("$positions")
            + "  var s = ld_dpos(i * $d + c);
  for (var j = i; j < $n; j += $positions) { s += ld_dy(dy_row(j) + c * $dy_step); }
  st_dpos(i * $d + c, s);
}
";
        let mut binds = Binds::new(o, facts);
        binds
            .operand("dpos", 1, Access::ReadWrite)?
            .operand("dy", 2, Access::Read)?;
        let groups = fold(u64::from(positions) * u64::from(across), facts)?;
        passes.push(binds.pass(
            "embedding positions",
            &t.fill(&body),
            t.params.clone(),
            groups,
        )?);
    }
    Ok(Prepared {
        workspace_bytes: 3 * bytes,
        ..Prepared::of(passes)
    })
}
