//! activation_* and swiglu_*: an invocation computes two neighbouring elements.

use super::math::MATH;
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Prepared, fold};
use crossweave_abi::op::{KindParams, NoParams, activation};
use crossweave_plugin::{DType, OpRequest, Result};

/// Invocations of a workgroup.
pub const SIZE: u32 = 64;

/// sqrt(8 / pi): gelu_new is x sigmoid(2 u), which keeps its accuracy in the lower tail.
const GELU: &str =
    "fn gelu_u(x: f32) -> f32 { return 1.5957691216 * (x + 0.044715 * x * x * x); }\n";

fn function(o: &OpRequest<'_>, backward: bool) -> Result<String> {
    // Far out a derivative is 0 where its factor may be infinite.
    let text = match (o.params::<KindParams>()?.kind, backward) {
        (activation::GELU_TANH, false) => "fn act(x: f32) -> f32 { return x * gate(gelu_u(x)).x; }",
        (activation::GELU_TANH, true) => {
            "fn act(x: f32) -> f32 { let s = gate(gelu_u(x));
  let t = x * s.y * (1.5957691216 * (1.0 + 0.134145 * x * x));
  return s.x + select(t, 0.0, s.y == 0.0); }"
        }
        (activation::GELU_ERF, false) => {
            "fn act(x: f32) -> f32 { return x * (0.5 + 0.5 * erf_f(x * 0.70710678)); }"
        }
        (activation::GELU_ERF, true) => {
            "fn act(x: f32) -> f32 { let pdf = 0.39894228 * exp_neg(-0.5 * x * x);
  return 0.5 + 0.5 * erf_f(x * 0.70710678) + select(x * pdf, 0.0, pdf == 0.0); }"
        }
        (activation::SILU, false) => "fn act(x: f32) -> f32 { return x * gate(x).x; }",
        (activation::SILU, true) => {
            "fn act(x: f32) -> f32 { let s = gate(x); return s.x + select(x * s.y, 0.0, s.y == 0.0); }"
        }
        // By its bits: a driver takes `select(x, 0, x < 0)` for a maximum, which loses NaN.
        (activation::RELU, false) => {
            "fn act(x: f32) -> f32 { return select(x, 0.0, bitcast<u32>(x) - 0x80000001u < 0x7f800000u); }"
        }
        (activation::RELU, true) => "fn act(x: f32) -> f32 { return select(1.0, 0.0, x <= 0.0); }",
        (k, _) => return refuse(o, format!("kind {k} is unknown")),
    };
    Ok(format!("{MATH}{GELU}{text}\n"))
}

/// A pass over `total` elements: `compute` defines `let r0`, … from the element `e`, and each `(operand name, view)` of `outputs` stores its
/// `r<k>`, by twos where that writes whole words.
pub fn each(
    o: &OpRequest<'_>,
    facts: &Facts,
    mut t: Text,
    mut head: String,
    binds: Binds<'_>,
    compute: &str,
    outputs: &[(&str, &View)],
) -> Result<Prepared> {
    let total = outputs[0].1.total;
    if total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    let results: Vec<String> = (0..outputs.len()).map(|k| format!("r{k}")).collect();
    let kind = match outputs.len() {
        1 => "f32".to_string(),
        n => format!("vec{n}<f32>"),
    };
    head.push_str(&format!(
        "fn compute(e: u32) -> {kind} {{ {compute} return {kind}({}); }}\n",
        results.join(", ")
    ));
    let (mut two, mut one) = (String::new(), String::new());
    for (k, (name, v)) in outputs.iter().enumerate() {
        head.push_str(&v.offsets(&format!("{name}_at"), &mut t));
        let part = match outputs.len() {
            1 => "",
            _ => [".x", ".y", ".z", ".w"][k],
        };
        one.push_str(&format!("st_{name}({name}_at(e), a{part}); "));
        if v.dense() || (v.dtype != DType::F32 && v.pairs()) {
            two.push_str(&format!("st2_{name}({name}_at(e), a{part}, b{part}); "));
        } else {
            two.push_str(&format!(
                "st_{name}({name}_at(e), a{part}); st_{name}({name}_at(e + 1u), b{part}); "
            ));
        }
    }
    t.param("total", total);
    let body = format!(
        "{head}@compute @workgroup_size({SIZE}) fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{
  let e = 2u * (at.x + at.y * nwg.x * {SIZE}u);
  if e >= $total {{ return; }}
  let a = compute(e);
  if e + 1u < $total {{ let b = compute(e + 1u); {two}}} else {{ {one}}}
}}
"
    );
    let groups = fold(u64::from(total.div_ceil(2 * SIZE)), facts)?;
    let label = crate::kernel::op_name(o);
    let pass = binds.pass(label, &t.fill(&body), t.params.clone(), groups)?;
    Ok(Prepared::of(vec![pass]))
}

/// `activation_fwd`.
pub fn activation(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 2..=2)?;
    let act = function(o, false)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let mut t = Text::default();
    let head = act + &x.offsets("x_at", &mut t);
    let mut binds = Binds::new(o, facts);
    binds
        .operand("y", 0, Access::ReadWrite)?
        .operand("x", 1, Access::Read)?;
    each(
        o,
        facts,
        t,
        head,
        binds,
        "let r0 = act(ld_x(x_at(e)));",
        &[("y", &y)],
    )
}

/// `activation_bwd`.
pub fn activation_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    let act = function(o, true)?;
    let dx = output(o, 0, FLOATS)?;
    let (dy, x) = (input(o, 1, FLOATS)?, input(o, 2, FLOATS)?);
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &x, &dx.shape)?;
    let mut t = Text::default();
    let head = act + &x.offsets("x_at", &mut t) + &dy.offsets("dy_at", &mut t);
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dx", 0, Access::ReadWrite)?
        .operand("dy", 1, Access::Read)?
        .operand("x", 2, Access::Read)?;
    let compute = "let r0 = ld_dy(dy_at(e)) * act(ld_x(x_at(e)));";
    each(o, facts, t, head, binds, compute, &[("dx", &dx)])
}

/// `swiglu_fwd`.
pub fn swiglu(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 3..=3)?;
    flags(o, o.params::<NoParams>()?.flags, 0)?;
    let y = output(o, 0, FLOATS)?;
    let (gate, up) = (input(o, 1, FLOATS)?, input(o, 2, FLOATS)?);
    shape(o, 1, &gate, &y.shape)?;
    shape(o, 2, &up, &y.shape)?;
    let mut t = Text::default();
    let head = MATH.to_string() + &gate.offsets("gate_at", &mut t) + &up.offsets("up_at", &mut t);
    let mut binds = Binds::new(o, facts);
    binds
        .operand("y", 0, Access::ReadWrite)?
        .operand("gate", 1, Access::Read)?
        .operand("up", 2, Access::Read)?;
    let compute = "let g = ld_gate(gate_at(e)); let r0 = g * gate(g).x * ld_up(up_at(e));";
    each(o, facts, t, head, binds, compute, &[("y", &y)])
}

/// `swiglu_bwd`.
pub fn swiglu_backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 5..=5)?;
    flags(o, o.params::<NoParams>()?.flags, 0)?;
    let (dgate, dup) = (output_strided(o, 0, FLOATS)?, output_strided(o, 1, FLOATS)?);
    let ins = [
        input(o, 2, FLOATS)?,
        input(o, 3, FLOATS)?,
        input(o, 4, FLOATS)?,
    ];
    shape(o, 1, &dup, &dgate.shape)?;
    let mut t = Text::default();
    let mut head = MATH.to_string();
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dgate", 0, Access::ReadWrite)?
        .operand("dup", 1, Access::ReadWrite)?;
    for (i, (v, name)) in ins.iter().zip(["dy", "gate", "up"]).enumerate() {
        shape(o, 2 + i, v, &dgate.shape)?;
        head.push_str(&v.offsets(&format!("{name}_at"), &mut t));
        binds.operand(name, 2 + i, Access::Read)?;
    }
    let compute = "let g = ld_gate(gate_at(e)); let u = ld_up(up_at(e)); let d = ld_dy(dy_at(e)); let s = gate(g);
  let r0 = d * u * (s.x + select(g * s.y, 0.0, s.y == 0.0)); let r1 = d * (g * s.x);";
    each(
        o,
        facts,
        t,
        head,
        binds,
        compute,
        &[("dgate", &dgate), ("dup", &dup)],
    )
}
