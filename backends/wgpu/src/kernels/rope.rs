//! rope: an invocation turns one pair (two neighbouring ones where they share words), or copies what is not turned.

use super::pointwise::SIZE;
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_abi::op::{FLAG_INTERLEAVED, FLAG_INVERSE, RopeParams};
use crossweave_plugin::{DType, OpRequest, Result};

/// `rope`.
pub fn rope(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 4..=4)?;
    let f = o.params::<RopeParams>()?.flags;
    flags(o, f, FLAG_INVERSE | FLAG_INTERLEAVED)?;
    let (y, x) = (output_strided(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    let (cos, sin) = (input(o, 2, F32)?, input(o, 3, F32)?);
    let [_, t, h, d] = y.shape[..] else {
        return invalid(
            o,
            format!("x has rank {}, [B, T, H, D] wanted", y.shape.len()),
        );
    };
    shape(o, 1, &x, &y.shape)?;
    shape(o, 3, &sin, &cos.shape)?;
    if cos.shape.len() != 2 || cos.shape[0] != t || u64::from(cos.shape[1]) * 2 > u64::from(d) {
        return invalid(
            o,
            format!(
                "cos, sin have shape {:?}, [{t}, R/2] with R <= {d} wanted",
                cos.shape
            ),
        );
    }
    for (v, who) in [(&x, "x"), (&y, "y")] {
        if d > 1 && v.step() != 1 {
            return refuse(o, format!("{who} needs unit stride in D"));
        }
    }
    if y.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let half = cos.shape[1];
    let interleaved = f & FLAG_INTERLEAVED != 0;
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
            if f & FLAG_INVERSE != 0 { "-" } else { "" }
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
