//! softmax_* and cross_entropy_*: one workgroup a row; maximum, sum of exponentials, result.

use super::math::MATH;
use super::norm::row_store;
use super::rows::{rows, sums};
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_abi::op::{FLAG_HAS_IGNORE, NoParams, XentParams};
use crossweave_plugin::{DType, OpRequest, Result};

/// Below every logit that is not minus infinity; minus infinity less this is still minus infinity.
const LOWEST: &str = "-3.4028234e38";

fn rows_of(o: &OpRequest<'_>, x: &View) -> Result<(u32, u32)> {
    match x.rows() {
        Some(r) => Ok(r),
        None => invalid(o, "rank 0, rows wanted"),
    }
}

/// Text that leaves `top`, the row's maximum, and `total`, the sum of exp(x - top).
fn statistics() -> String {
    format!(
        "  var m = {LOWEST};
  for (var c = lane; c < $d; c += $wg) {{ m = max(m, ld_x(ox + c * $x_step)); }}
  let top = all_max(m, lane, sub);
  {}  let total = all_add(sum_s, lane, sub);
",
        sums(&["s"], "s += exp_neg(ld_x(ox + c * $x_step) - top);")
    )
}

/// `softmax_fwd`.
pub fn softmax(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 2..=2)?;
    flags(o, o.params::<NoParams>()?.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let (n, d) = rows_of(o, &x)?;
    if y.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let mut t = Text::default();
    t.param("d", d).param("groups", n).param("x_step", x.step());
    let body = x.row_offsets("x_row", &mut t)
        + MATH
        + &rows(facts, d, &mut t)
        + "$main\n  let ox = x_row(row);\n"
        + &statistics()
        + "  let scale = 1.0 / total;\n"
        + &row_store(&y, d, "exp_neg(ld_x(ox + c * $x_step) - top) * scale", "y")
        + "}\n";
    let mut binds = Binds::new(o, facts);
    binds
        .operand("y", 0, Access::ReadWrite)?
        .operand("x", 1, Access::Read)?;
    let groups = fold(u64::from(n), facts)?;
    let pass = binds.pass("softmax", &t.fill(&body), t.params.clone(), groups)?;
    Ok(Prepared::of(vec![pass]))
}

/// `softmax_bwd`.
pub fn softmax_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    flags(o, o.params::<NoParams>()?.flags, 0)?;
    let dx = output(o, 0, FLOATS)?;
    let (dy, y) = (input(o, 1, FLOATS)?, input(o, 2, FLOATS)?);
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &y, &dx.shape)?;
    let (n, d) = rows_of(o, &dx)?;
    if dx.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let mut t = Text::default();
    t.param("d", d).param("groups", n);
    t.param("dy_step", dy.step()).param("y_step", y.step());
    let (g, p) = ("ld_dy(og + c * $dy_step)", "ld_y(oy + c * $y_step)");
    let body = dy.row_offsets("dy_row", &mut t)
        + &y.row_offsets("y_row", &mut t)
        + &rows(facts, d, &mut t)
        + "$main\n  let og = dy_row(row); let oy = y_row(row);\n"
        + &sums(&["s"], &format!("s += {g} * {p};"))
        + "  let dot_gy = all_add(sum_s, lane, sub);\n"
        + &row_store(&dx, d, &format!("{p} * ({g} - dot_gy)"), "dx")
        + "}\n";
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dx", 0, Access::ReadWrite)?
        .operand("dy", 1, Access::Read)?
        .operand("y", 2, Access::Read)?;
    let groups = fold(u64::from(n), facts)?;
    let pass = binds.pass("softmax backward", &t.fill(&body), t.params.clone(), groups)?;
    Ok(Prepared::of(vec![pass]))
}

/// What `row_of_<name>(i)` answers for an index that is skipped.
const IGNORED: &str = "4294967294u";
/// And for one out of range.
const BAD: &str = "4294967295u";

/// `fn row_of_<name>(o: u32) -> u32`: the index at element offset `o` of bind `name`, or that it is ignored or bad. 64 bits are compared whole.
pub fn row_of(name: &str, dtype: DType, ignore: Option<i64>, limit: u32, t: &mut Text) -> String {
    let low = |v: i64| v as u64 as u32;
    let high = |v: i64| ((v as u64) >> 32) as u32;
    t.param(&format!("{name}_limit"), limit);
    let skip = match ignore {
        Some(v) => {
            t.param(&format!("{name}_low"), low(v))
                .param(&format!("{name}_high"), high(v));
            format!("if v.x == ${name}_low && v.y == ${name}_high {{ return {IGNORED}; }}")
        }
        None => String::new(),
    };
    let load = if dtype == DType::I64 {
        format!("let v = ldb_{name}(o);")
    } else {
        format!(
            "let b = ldu_{name}(o); let v = vec2<u32>(b, select(0u, 4294967295u, (b >> 31u) == 1u));"
        )
    };
    format!(
        "fn row_of_{name}(o: u32) -> u32 {{ {load} {skip} return select({BAD}, v.x, v.y == 0u && v.x < ${name}_limit); }}\n"
    )
}

fn ignore_of(o: &OpRequest<'_>) -> Result<Option<i64>> {
    let p = o.params::<XentParams>()?;
    flags(o, p.flags, FLAG_HAS_IGNORE)?;
    Ok((p.flags & FLAG_HAS_IGNORE != 0).then_some(p.ignore))
}

/// `cross_entropy_fwd`.
pub fn cross_entropy(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 4..=4)?;
    let x = input(o, 2, FLOATS)?;
    let (n, d) = rows_of(o, &x)?;
    for i in [0, 1] {
        per_row(o, i, &output(o, i, F32)?, n)?;
    }
    let target = input(o, 3, INDEX)?;
    per_row(o, 3, &target, n)?;
    let ignore = ignore_of(o)?;
    if n == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let mut t = Text::default();
    t.param("d", d).param("groups", n).param("x_step", x.step());
    let body = x.row_offsets("x_row", &mut t)
        + &target.offsets("target_at", &mut t)
        + &row_of("target", target.dtype, ignore, d, &mut t)
        + MATH
        + &rows(facts, d, &mut t)
        + "$main\n  let ox = x_row(row);\n"
        + &statistics()
        + &format!(
            "  if lane == 0u {{
    // A row without a finite logit has log 0.
    let z = top + log_f(total);
    st_lse(row, z);
    let k = row_of_target(target_at(row));
    var loss = 0.0;
    if k == {BAD} {{ loss = nan_f(); }} else if k != {IGNORED} {{ loss = z - ld_x(ox + k * $x_step); }}
    st_loss(row, loss);
  }}
}}
"
        );
    let mut binds = Binds::new(o, facts);
    binds
        .operand("loss", 0, Access::ReadWrite)?
        .operand("lse", 1, Access::ReadWrite)?
        .operand("x", 2, Access::Read)?
        .operand("target", 3, Access::Read)?;
    let groups = fold(u64::from(n), facts)?;
    let pass = binds.pass("cross entropy", &t.fill(&body), t.params.clone(), groups)?;
    Ok(Prepared::of(vec![pass]))
}

/// `cross_entropy_bwd`.
pub fn cross_entropy_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 5..=5)?;
    let (dx, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &dx.shape)?;
    let (n, d) = rows_of(o, &x)?;
    let (lse, dloss) = (input(o, 2, F32)?, input(o, 4, F32)?);
    let target = input(o, 3, INDEX)?;
    for (i, v) in [(2, &lse), (3, &target), (4, &dloss)] {
        per_row(o, i, v, n)?;
    }
    let ignore = ignore_of(o)?;
    if dx.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let mut t = Text::default();
    t.param("d", d).param("groups", n).param("x_step", x.step());
    let body = x.row_offsets("x_row", &mut t)
        + &target.offsets("target_at", &mut t)
        + &lse.offsets("lse_at", &mut t)
        + &dloss.offsets("dloss_at", &mut t)
        + &row_of("target", target.dtype, ignore, d, &mut t)
        + MATH
        + &rows(facts, d, &mut t)
        + &format!(
            "fn grad(x: f32, c: u32, k: u32, z: f32, g: f32) -> f32 {{
  if k == {IGNORED} {{ return 0.0; }}
  return (exp_neg(x - z) - select(0.0, 1.0, c == k)) * g;
}}
$main
  let ox = x_row(row);
  let k = row_of_target(target_at(row));
  let z = ld_lse(lse_at(row));
  var g = ld_dloss(dloss_at(row));
  if k == {BAD} {{ g = nan_f(); }}
"
        )
        + &row_store(&dx, d, "grad(ld_x(ox + c * $x_step), c, k, z, g)", "dx")
        + "}\n";
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dx", 0, Access::ReadWrite)?
        .operand("x", 1, Access::Read)?
        .operand("lse", 2, Access::Read)?
        .operand("target", 3, Access::Read)?
        .operand("dloss", 4, Access::Read)?;
    let groups = fold(u64::from(n), facts)?;
    let pass = binds.pass(
        "cross entropy backward",
        &t.fill(&body),
        t.params.clone(),
        groups,
    )?;
    Ok(Prepared::of(vec![pass]))
}
