//! elementwise_program, written out as WGSL: one line an instruction. Products are kept from being joined with sums, as the op says.

use super::elementwise::{Elementwise, Kind};
use super::view::*;
use crate::kernel::{DYN_WORDS, Facts, Prepared};
use crossweave_abi::op::{self, inst};
use crossweave_plugin::op::Program;
use crossweave_plugin::{DType, Dyn, OpRequest, Result};
use std::fmt::Write;

/// `ProgramDyn`, whose absence means zeros.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Scalars(op::ProgramDyn);
impl Default for Scalars {
    fn default() -> Self {
        Scalars(op::ProgramDyn::new(&[]))
    }
}
// SAFETY: transparent over a `Sized32` struct.
unsafe impl crossweave_abi::read::Sized32 for Scalars {}

/// `elementwise_program`.
pub fn program(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    let r = Program::read(o)?;
    let n = r.operands.len();
    let written = |i: usize| r.written(i);
    let views = &r.operands;
    let mut e = Elementwise::new(o, f, views[0].total);
    // The text of what a register holds now; operands are read where they are first used.
    let mut held: Vec<Option<String>> = vec![None; op::PROGRAM_MAX_REGS];
    let (mut used, mut assigned) = (0u64, 0u64);
    let mut lines = String::new();
    for (k, c) in r.instructions().iter().enumerate() {
        let sources = match c.op {
            inst::CONST => 0,
            inst::SCALAR if (0.0..8.0).contains(&c.imm) && c.imm.fract() == 0.0 => 0,
            inst::MOV | inst::NEG..=inst::FLOOR => 1,
            inst::ADD..=inst::MIN | inst::LT => 2,
            inst::FMA | inst::SELECT => 3,
            _ => {
                return refuse(
                    o,
                    format!("instruction {k}: op {} (imm {}) is unknown", c.op, c.imm),
                );
            }
        };
        let mut src = [String::new(), String::new(), String::new()];
        for (r, s) in [c.a, c.b, c.c].into_iter().zip(&mut src).take(sources) {
            let r = r as usize;
            *s = match held.get(r) {
                Some(Some(text)) => text.clone(),
                Some(None) if r < n => {
                    used |= 1 << r;
                    format!("v{r}")
                }
                _ => {
                    return invalid(
                        o,
                        format!("instruction {k} reads register {r} before anything wrote it"),
                    );
                }
            };
        }
        let dst = c.dst as usize;
        if dst >= op::PROGRAM_MAX_REGS || (dst < n && !written(dst)) {
            return invalid(
                o,
                format!(
                    "instruction {k} writes register {dst}, which is not a temporary or a written operand"
                ),
            );
        }
        let [a, b, c3] = &src;
        let text = match c.op {
            inst::CONST => e.paramf(c.imm),
            inst::SCALAR => format!("dyn_f32({}u)", c.imm as u32),
            inst::MOV => a.clone(),
            inst::ADD => format!("{a} + {b}"),
            inst::SUB => format!("{a} - {b}"),
            inst::MUL => format!("keep({a} * {b})"),
            inst::DIV => format!("div_f({a}, {b})"),
            inst::MAX => format!("max_nan({a}, {b})"),
            inst::MIN => format!("min_nan({a}, {b})"),
            inst::FMA => format!("fma_f({a}, {b}, {c3})"),
            inst::NEG => format!("-{a}"),
            inst::ABS => format!("abs({a})"),
            inst::SQRT => format!("sqrt_f({a})"),
            inst::RSQRT => format!("rsqrt_f({a})"),
            inst::EXP => format!("exp_f({a})"),
            inst::LOG => format!("log_f({a})"),
            inst::TANH => format!("tanh_f({a})"),
            inst::ERF => format!("erf_f({a})"),
            inst::SIGMOID => format!("sigmoid_f({a})"),
            inst::FLOOR => format!("floor({a})"),
            inst::LT => format!("select(0.0, 1.0, {a} < {b})"),
            _ => format!("select({c3}, {b}, {a} != 0.0 || is_nan({a}))"),
        };
        let _ = writeln!(lines, "  let t{k} = {text};");
        held[dst] = Some(format!("t{k}"));
        assigned |= 1 << dst;
    }
    let mut before = String::new();
    let mut after = String::new();
    for (i, v) in views.iter().enumerate() {
        let (reads, writes) = (used >> i & 1 == 1, written(i) && assigned >> i & 1 == 1);
        let name = format!("x{i}");
        let raw = v.dtype == DType::U32;
        let kind = if raw { Kind::Bits } else { Kind::Float };
        match (reads, writes) {
            (false, false) => continue,
            (true, false) => e.input(&name, i, v, kind)?,
            (r, true) => e.output(&name, i, v, kind, r)?,
        }
        if reads {
            let value = if raw {
                format!("f32({name}.x)")
            } else {
                name.clone()
            };
            let _ = writeln!(before, "  let v{i} = {value};");
        }
        if let (true, Some(t)) = (writes, &held[i]) {
            let value = match raw {
                true => {
                    format!("clamp_64(i64_of_f32({t}), vec2<u32>(), vec2<u32>(0xffffffffu, 0u))")
                }
                false => t.clone(),
            };
            let _ = writeln!(after, "  let o_{name} = {value};");
        }
    }
    if assigned & u64::from(r.params.writes) == 0 {
        return Ok(Prepared::default());
    }
    let pass = e.pass("elementwise_program", &format!("{before}{lines}{after}"))?;
    Ok(Prepared {
        passes: vec![pass],
        dynamic: Some(Box::new(|bytes| {
            let s = Dyn(bytes).read::<Scalars>()?.0.scalars;
            let mut w = [0; DYN_WORDS];
            w.iter_mut().zip(s).for_each(|(w, s)| *w = s.to_bits());
            Ok(w)
        })),
        ..Default::default()
    })
}
