//! elementwise_program as generated source: registers become variables, so one pass over memory does it all.

use super::point::{Arg, Numbers, Use, Work, point};
use super::{Answer, done};
use crate::launch::{Dynamic, Place};
use crate::source::Facts;
use crate::view::*;
use crossweave_abi::op::{self, ProgramInst, inst};
use crossweave_plugin::OpRequest;
use crossweave_plugin::op::Program;
use std::fmt::Write as _;

/// The C expression of an instruction over registers `a`, `b`, `c`, and how many it reads.
fn expression(i: &ProgramInst) -> Option<(String, usize)> {
    let (a, b, c) = (
        format!("r{}", i.a),
        format!("r{}", i.b),
        format!("r{}", i.c),
    );
    Some(match i.op {
        inst::CONST => (format!("cw_float_of_bits({:#010x}u)", i.imm.to_bits()), 0),
        inst::SCALAR if (0.0..8.0).contains(&i.imm) && i.imm.fract() == 0.0 => (
            format!("cw_float_of_bits(h.dynamic[{}])", i.imm as usize),
            0,
        ),
        inst::MOV => (a, 1),
        inst::ADD => (format!("cw_add({a}, {b})"), 2),
        inst::SUB => (format!("cw_add({a}, -{b})"), 2),
        inst::MUL => (format!("cw_mul({a}, {b})"), 2),
        inst::DIV => (format!("{a} / {b}"), 2),
        inst::MAX => (format!("cw_binary<5>({a}, {b})"), 2),
        inst::MIN => (format!("cw_binary<6>({a}, {b})"), 2),
        inst::LT => (format!("{a} < {b} ? 1.0f : 0.0f"), 2),
        inst::FMA => (format!("cw_fma({a}, {b}, {c})"), 3),
        inst::SELECT => (format!("{a} != 0.0f ? {b} : {c}"), 3),
        inst::NEG => (format!("cw_unary<1>({a})"), 1),
        inst::ABS => (format!("cw_unary<2>({a})"), 1),
        inst::EXP => (format!("cw_unary<3>({a})"), 1),
        inst::LOG => (format!("cw_unary<4>({a})"), 1),
        inst::SQRT => (format!("cw_unary<5>({a})"), 1),
        inst::RSQRT => (format!("cw_unary<6>({a})"), 1),
        inst::TANH => (format!("cw_unary<7>({a})"), 1),
        inst::ERF => (format!("cw_unary<8>({a})"), 1),
        inst::SIGMOID => (format!("cw_unary<9>({a})"), 1),
        inst::FLOOR => (format!("cw_unary<12>({a})"), 1),
        _ => return None,
    })
}

/// A name for the text: FNV-1a of 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `elementwise_program`.
pub(crate) fn program(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = Program::read(o)?;
    let n = r.operands.len();
    let written = |i: usize| r.written(i);
    let operands: Vec<View> = r.operands.iter().cloned().map(View::from).collect();
    // Bit r: the register holds something; bit i: the operand was read before it was written, or written.
    let mut known = 0u64;
    let (mut reads, mut stores) = (0u64, 0u64);
    let mut body = String::new();
    for (k, i) in r.instructions().iter().enumerate() {
        let Some((e, used)) = expression(i) else {
            return refuse(
                o,
                format!("instruction {k}: op {} (imm {}) is unknown", i.op, i.imm),
            );
        };
        for r in [i.a, i.b, i.c].into_iter().take(used) {
            let r = r as usize;
            if r >= op::PROGRAM_MAX_REGS || (r >= n && known >> r & 1 == 0) {
                return invalid(
                    o,
                    format!("instruction {k} reads register {r} before anything wrote it"),
                );
            }
            if r < n && known >> r & 1 == 0 {
                reads |= 1 << r;
                known |= 1 << r;
            }
        }
        let dst = i.dst as usize;
        if dst >= op::PROGRAM_MAX_REGS || (dst < n && !written(dst)) {
            return invalid(
                o,
                format!(
                    "instruction {k} writes register {dst}, which is not a temporary or a written operand"
                ),
            );
        }
        known |= 1 << dst;
        if dst < n {
            stores |= 1 << dst;
        }
        let _ = writeln!(body, "      r{dst} = {e};");
    }
    if stores == 0 {
        return super::nothing(o);
    }
    let mut text = String::from(
        "  template <class X> static CW_DEVICE void run(X& x, u64 e, const PointHead& h) {\n    (void)e; (void)h;\n    CW_UNROLL for (int i = 0; i < CW_V; i++) {\n",
    );
    for r in 0..op::PROGRAM_MAX_REGS {
        if known >> r & 1 == 1 {
            let from = if reads >> r & 1 == 1 {
                format!("x[{r}][i]")
            } else {
                "0.0f".into()
            };
            let _ = writeln!(text, "      float r{r} = {from};");
        }
    }
    text += &body;
    for r in 0..n {
        if stores >> r & 1 == 1 {
            let _ = writeln!(text, "      x[{r}][i] = r{r};");
        }
    }
    text += "    }\n  }\n};\n";
    // Of the storages too, so that kernels of one program can stand in one module.
    let types: String = operands.iter().map(|v| c_type(v.dtype)).collect();
    let name = format!("program_{:016x}", hash(&(types + &text)));
    let text = format!("struct {name} {{\n{text}");
    let args: Vec<Arg<'_>> = operands
        .iter()
        .enumerate()
        .map(|(i, v)| {
            let mode = match (reads >> i & 1 == 1, stores >> i & 1 == 1) {
                (_, false) => Use::In,
                (false, true) => Use::Out,
                (true, true) => Use::InOut,
            };
            Arg {
                view: Some(v),
                place: Place::Operand(i as u32),
                mode,
                c: c_type(v.dtype),
            }
        })
        .collect();
    let w = Work {
        value: "float",
        functor: &name,
        name: &name,
        text: &text,
    };
    let numbers = Numbers {
        dynamic: true,
        ..Numbers::default()
    };
    let l = point(f, &w, &operands[0].shape, &args, numbers);
    done(o, 0, l.into_iter().collect(), Dynamic::Program)
}
