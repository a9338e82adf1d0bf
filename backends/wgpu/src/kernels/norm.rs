//! layer_norm_* and rms_norm_*. Variance by a second pass over the row, which is in the cache by then; weight gradients as sums over fixed
//! blocks of rows, then over the blocks in order.

use super::rows::{rows, sums};
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_plugin::op::{NormBackward, NormForward};
use crossweave_plugin::{DType, OpRequest, Result};

/// `layer_norm_fwd`.
pub fn layer_forward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    forward(o, facts, true)
}
/// `rms_norm_fwd`.
pub fn rms_forward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    forward(o, facts, false)
}
/// `layer_norm_bwd`.
pub fn layer_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    backward(o, facts, true)
}
/// `rms_norm_bwd`.
pub fn rms_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    backward(o, facts, false)
}

fn forward(o: &OpRequest<'_>, facts: &Facts, centred: bool) -> Result<Prepared> {
    let r = NormForward::read(o, centred)?;
    let (at, eps) = (r.at, r.eps as f32);
    let (y, x, w) = (view(o, 0, r.y)?, view(o, at, r.x)?, view(o, at + 1, r.w)?);
    let b = r.b.map(|b| view(o, 5, b)).transpose()?;
    // Both fit: x does.
    let (n, d) = (r.n as u32, r.d as u32);
    if n == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let mut t = Text::default();
    t.param("d", d).param("groups", n).paramf("eps", eps);
    t.param("x_step", x.step()).param("w_step", w.step());
    let mut body = x.row_offsets("x_row", &mut t) + &rows(facts, d, &mut t);
    body.push_str("$main\n  let ox = x_row(row);\n");
    if centred {
        body.push_str(&sums(&["s"], "s += ld_x(ox + c * $x_step);"));
        body.push_str("  let mean = all_add(sum_s, lane, sub) / f32($d);\n");
        body.push_str(&sums(
            &["q"],
            "let v = ld_x(ox + c * $x_step) - mean; q += v * v;",
        ));
    } else {
        body.push_str(&sums(&["q"], "let v = ld_x(ox + c * $x_step); q += v * v;"));
    }
    body.push_str("  let rstd = 1.0 / sqrt(all_add(sum_q, lane, sub) / f32($d) + $eps);\n");
    let mut one = if centred {
        "(ld_x(ox + c * $x_step) - mean) * rstd * ld_w(c * $w_step)".to_string()
    } else {
        "ld_x(ox + c * $x_step) * rstd * ld_w(c * $w_step)".to_string()
    };
    if let Some(b) = &b {
        t.param("b_step", b.step());
        one.push_str(" + ld_b(c * $b_step)");
    }
    body.push_str(&row_store(&y, d, &one, "y"));
    let mean = if centred { "st_mean(row, mean); " } else { "" };
    body.push_str(&format!(
        "  if lane == 0u {{ {mean}st_rstd(row, rstd); }}\n}}\n"
    ));
    let mut binds = Binds::new(o, facts);
    binds.operand("y", 0, Access::ReadWrite)?;
    if centred {
        binds.operand("mean", 1, Access::ReadWrite)?;
    }
    binds
        .operand("rstd", at - 1, Access::ReadWrite)?
        .operand("x", at, Access::Read)?
        .operand("w", at + 1, Access::Read)?;
    if b.is_some() {
        binds.operand("b", 5, Access::Read)?;
    }
    let body = t.fill(&body);
    let pass = binds.pass(
        "norm forward",
        &body,
        t.params.clone(),
        fold(u64::from(n), facts)?,
    )?;
    Ok(Prepared::of(vec![pass]))
}

/// A loop that stores `one` (of column `c`) in a dense row: by twos where two 16-bit elements are a word, which then needs no merging.
pub fn row_store(y: &View, d: u32, one: &str, name: &str) -> String {
    if y.dtype != DType::F32 && d.is_multiple_of(2) {
        return format!(
            "  for (var e = 2u * lane; e < $d; e += 2u * $wg) {{
    var c = e; let first = {one};
    c = e + 1u; let second = {one};
    st2_{name}(row * $d + e, first, second);
  }}
"
        );
    }
    format!("  for (var c = lane; c < $d; c += $wg) {{ st_{name}(row * $d + c, {one}); }}\n")
}

/// Partial sums of the weight gradients: at most so many, by shape alone.
const PARTS: u32 = 64;
/// Rows of a partial sum, at least.
const PART_ROWS: u32 = 16;

fn backward(o: &OpRequest<'_>, facts: &Facts, centred: bool) -> Result<Prepared> {
    let r = NormBackward::read(o, centred)?;
    let (at, last, has_db) = (r.at, r.last, r.has_db);
    let (dx, dy) = (view(o, 0, r.dx)?, view(o, at, r.dy)?);
    let (x, w) = (view(o, at + 1, r.x)?, view(o, at + 2, r.w)?);
    let dres = r.dres.map(|v| view(o, last, v)).transpose()?;
    let (n, d) = (r.n as u32, r.d as u32);
    if dx.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let part_rows = n.div_ceil(PARTS).max(PART_ROWS);
    let parts = n.div_ceil(part_rows);
    let part_bytes = u64::from(parts) * u64::from(d) * 4;
    let hat = if centred {
        "(ld_x(ox + c * $x_step) - mean) * rstd"
    } else {
        "ld_x(ox + c * $x_step) * rstd"
    };
    let stats = if centred {
        "let mean = ld_mean(row); let rstd = ld_rstd(row);"
    } else {
        "let rstd = ld_rstd(row);"
    };
    let inputs = |t: &mut Text| {
        t.param("x_step", x.step()).param("dy_step", dy.step());
        x.row_offsets("x_row", t) + &dy.row_offsets("dy_row", t)
    };
    let bind_inputs = |binds: &mut Binds<'_>| -> Result<()> {
        binds
            .operand("dy", at, Access::Read)?
            .operand("x", at + 1, Access::Read)?
            .operand("rstd", last - 1, Access::Read)?;
        if centred {
            binds.operand("mean", 6, Access::Read)?;
        }
        Ok(())
    };
    let mut passes = vec![];

    // Partial sums first: dx may overwrite dy.
    let wg = 64.min(facts.max_invocations);
    let across = d.div_ceil(wg);
    let mut t = Text::default();
    t.param("d", d)
        .param("n", n)
        .param("across", across)
        .param("part_rows", part_rows)
        .param("parts", parts);
    let head = inputs(&mut t);
    let (db_var, db_add, db_store) = if has_db {
        ("var db = 0.0;", "db += g;", "st_pb(part * $d + c, db);")
    } else {
        ("", "", "")
    };
    let body = format!(
        "{head}
@compute @workgroup_size({wg}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin(local_invocation_index) lane: u32) {{
  let wid = wg.x + wg.y * nwg.x;
  let part = wid / $across;
  let c = (wid % $across) * {wg}u + lane;
  if part >= $parts || c >= $d {{ return; }}
  var dw = 0.0; {db_var}
  for (var row = part * $part_rows; row < min((part + 1u) * $part_rows, $n); row++) {{
    let ox = x_row(row); {stats}
    let g = ld_dy(dy_row(row) + c * $dy_step);
    dw += g * ({hat}); {db_add}
  }}
  st_pw(part * $d + c, dw); {db_store}
}}
"
    );
    let mut binds = Binds::new(o, facts);
    bind_inputs(&mut binds)?;
    binds.workspace("pw", 0, part_bytes, DType::F32, Access::ReadWrite)?;
    if has_db {
        binds.workspace("pb", part_bytes, part_bytes, DType::F32, Access::ReadWrite)?;
    }
    let groups = fold(u64::from(across) * u64::from(parts), facts)?;
    passes.push(binds.pass(
        "norm weight parts",
        &t.fill(&body),
        t.params.clone(),
        groups,
    )?);

    let mut t = Text::default();
    t.param("d", d).param("parts", parts);
    let one = |name: &str| {
        format!(
            "{{ var s = 0.0; for (var p = 0u; p < $parts; p++) {{ s += ld_p{name}(p * $d + c); }} st_d{name}(c, ld_d{name}(c) + s); }}\n"
        )
    };
    let sums_of = one("w") + &if has_db { one("b") } else { String::new() };
    let body = format!(
        "@compute @workgroup_size({wg}) fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{
  let c = at.x + at.y * nwg.x * {wg}u;
  if c >= $d {{ return; }}
  {sums_of}}}
"
    );
    let mut binds = Binds::new(o, facts);
    binds.operand("dw", 1, Access::ReadWrite)?.workspace(
        "pw",
        0,
        part_bytes,
        DType::F32,
        Access::Read,
    )?;
    if has_db {
        binds.operand("db", 2, Access::ReadWrite)?.workspace(
            "pb",
            part_bytes,
            part_bytes,
            DType::F32,
            Access::Read,
        )?;
    }
    let groups = fold(u64::from(across), facts)?;
    passes.push(binds.pass("norm weights", &t.fill(&body), t.params.clone(), groups)?);

    let mut t = Text::default();
    t.param("d", d).param("groups", n).param("w_step", w.step());
    let mut body = inputs(&mut t);
    if let Some(r) = &dres {
        t.param("dres_step", r.step());
        body.push_str(&r.row_offsets("dres_row", &mut t));
    }
    body.push_str(&rows(facts, d, &mut t));
    body.push_str(&format!(
        "$main\n  let ox = x_row(row); let oy = dy_row(row); {stats}\n"
    ));
    if dres.is_some() {
        body.push_str("  let os = dres_row(row);\n");
    }
    let g = "ld_dy(oy + c * $dy_step) * ld_w(c * $w_step)";
    let (names, first): (&[&str], _) = if centred {
        (&["a", "b"], "a += g; ")
    } else {
        (&["b"], "")
    };
    body.push_str(&sums(
        names,
        &format!("let g = {g}; {first}b += g * ({hat});"),
    ));
    let mut one = if centred {
        body.push_str("  let mean_g = all_add(sum_a, lane, sub) / f32($d);\n");
        format!("rstd * ({g} - mean_g - ({hat}) * mean_gh)")
    } else {
        format!("rstd * ({g} - ({hat}) * mean_gh)")
    };
    body.push_str("  let mean_gh = all_add(sum_b, lane, sub) / f32($d);\n");
    if dres.is_some() {
        one.push_str(" + ld_dres(os + c * $dres_step)");
    }
    body.push_str(&row_store(&dx, d, &one, "dx"));
    body.push_str("}\n");
    let mut binds = Binds::new(o, facts);
    binds.operand("dx", 0, Access::ReadWrite)?;
    bind_inputs(&mut binds)?;
    binds.operand("w", at + 2, Access::Read)?;
    if dres.is_some() {
        binds.operand("dres", last, Access::Read)?;
    }
    let groups = fold(u64::from(n), facts)?;
    passes.push(binds.pass("norm backward", &t.fill(&body), t.params.clone(), groups)?);
    Ok(Prepared {
        workspace_bytes: part_bytes * if has_db { 2 } else { 1 },
        ..Prepared::of(passes)
    })
}
