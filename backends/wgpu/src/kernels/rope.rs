//! rope: an invocation turns one pair (two neighbouring ones where they share words), or copies what is not turned.

use super::pointwise::SIZE;
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_plugin::op::Rope;
use crossweave_plugin::{DType, OpRequest, Result};

/// `rope`.
pub fn rope(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    let r = Rope::read(o)?;
    let (y, x) = (view(o, 0, r.y)?, view(o, 1, r.x)?);
    let (cos, sin) = (view(o, 2, r.cos)?, view(o, 3, r.sin)?);
    let (t, h, d) = (y.shape[1], y.shape[2], y.shape[3]);
    if y.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let half = cos.shape[1];
    let (inverse, interleaved) = (r.inverse, r.interleaved);
    let words = y.dtype != DType::F32 && y.pairs();
    // Elements of each half (or of the rest) an invocation writes together.
    let by_two = words && d % 2 == 0 && (interleaved || half % 2 == 0);
    let rest = d - 2 * half;
    let (turns, copies) = match (by_two, interleaved) {
        (true, true) => (half, rest / 2),
        (true, false) => (half / 2, rest / 2),
        (false, _) => (half, rest),
    };
    let heads = y.total / d;
    let units = u64::from(heads) * u64::from(turns + copies);
    let mut text = Text::default();
    text.param("units", units as u32)
        .param("per_head", turns + copies)
        .param("turns", turns)
        .param("half", half)
        .param("heads", h)
        .param("positions", t)
        .param("cos_row", cos.stride[0])
        .param("cos_col", cos.stride[1])
        .param("sin_row", sin.stride[0])
        .param("sin_col", sin.stride[1]);
    let head = y.row_offsets("y_row", &mut text) + &x.row_offsets("x_row", &mut text);
    let turn = |a: &str, b: &str, i: &str, out: &str| {
        format!(
            "let c{out} = ld_cos(oc + ({i}) * $cos_col); let s{out} = {}ld_sin(os + ({i}) * $sin_col);
    let a{out} = ld_x(ox + {a}); let b{out} = ld_x(ox + {b});
    let p{out} = a{out} * c{out} - b{out} * s{out}; let q{out} = b{out} * c{out} + a{out} * s{out};",
            if inverse { "-" } else { "" }
        )
    };
    let (turned, copied) = match (interleaved, by_two) {
        (true, two) => {
            let store = if two {
                "st2_y(oy + 2u * i, p0, q0);"
            } else {
                "st_y(oy + 2u * i, p0); st_y(oy + 2u * i + 1u, q0);"
            };
            (turn("2u * i", "2u * i + 1u", "i", "0") + store, two)
        }
        (false, true) => (
            "let j = 2u * i; ".to_string()
                + &turn("j", "j + $half", "j", "0")
                + &turn("j + 1u", "j + 1u + $half", "j + 1u", "1")
                + "st2_y(oy + j, p0, p1); st2_y(oy + j + $half, q0, q1);",
            true,
        ),
        (false, false) => (
            turn("i", "i + $half", "i", "0") + "st_y(oy + i, p0); st_y(oy + i + $half, q0);",
            false,
        ),
    };
    let copied = if copied {
        "let j = 2u * ($half + i - $turns); st2_y(oy + j, ld_x(ox + j), ld_x(ox + j + 1u));"
    } else {
        "let j = 2u * $half + i - $turns; st_y(oy + j, ld_x(ox + j));"
    };
    let body = format!(
        "{head}@compute @workgroup_size({SIZE}) fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{
  let e = at.x + at.y * nwg.x * {SIZE}u;
  if e >= $units {{ return; }}
  let r = e / $per_head;
  let i = e - r * $per_head;
  let t = (r / $heads) % $positions;
  let ox = x_row(r); let oy = y_row(r);
  let oc = t * $cos_row; let os = t * $sin_row;
  if i < $turns {{
    {turned}
  }} else {{
    {copied}
  }}
}}
"
    );
    let mut binds = Binds::new(o, facts);
    binds
        .operand("y", 0, Access::ReadWrite)?
        .operand("x", 1, Access::Read)?;
    // No angles, nothing to bind.
    if half > 0 {
        binds
            .operand("cos", 2, Access::Read)?
            .operand("sin", 3, Access::Read)?;
    }
    let body = if half > 0 {
        body
    } else {
        body.replace(&turned, "")
    };
    let groups = fold(units.div_ceil(u64::from(SIZE)), facts)?;
    let pass = binds.pass("rope", &text.fill(&body), text.params.clone(), groups)?;
    Ok(Prepared::of(vec![pass]))
}
