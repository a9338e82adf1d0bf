//! Programs in which an instruction is another one, or several: what an interpreter or a compiler of `elementwise_program` gets wrong.

use crate::ops::Asked;
use crossweave_abi::op::{self, PROGRAM_MAX_INSTS, ProgramInst, inst};
use crossweave_plugin::{OpRequest, Result};

/// The last registers, which hold what lies between.
const R0: u32 = 61;
const R1: u32 = 62;
const R2: u32 = 63;

fn i(op: u32, dst: u32, a: u32, b: u32, c: u32) -> ProgramInst {
    ProgramInst {
        op,
        dst,
        a,
        b,
        c,
        ..ProgramInst::default()
    }
}

fn constant(dst: u32, imm: f32) -> ProgramInst {
    ProgramInst {
        imm,
        ..i(inst::CONST, dst, 0, 0, 0)
    }
}

/// What stands for an instruction.
fn instead(bug: &str, x: ProgramInst) -> Option<Vec<ProgramInst>> {
    let (d, a, b, c) = (x.dst, x.a, x.b, x.c);
    Some(match (bug, x.op) {
        ("program_min_drops_nan", inst::MIN) => {
            vec![i(inst::LT, R0, a, b, 0), i(inst::SELECT, d, R0, a, b)]
        }
        ("program_max_drops_nan", inst::MAX) => {
            vec![i(inst::LT, R0, b, a, 0), i(inst::SELECT, d, R0, a, b)]
        }
        ("program_sigmoid_by_e_to_x", inst::SIGMOID) => vec![
            i(inst::EXP, R0, a, 0, 0),
            constant(R1, 1.0),
            i(inst::ADD, R2, R0, R1, 0),
            i(inst::DIV, d, R0, R2, 0),
        ],
        ("program_tanh_by_e_to_x", inst::TANH) => vec![
            i(inst::ADD, R0, a, a, 0),
            i(inst::EXP, R0, R0, 0, 0),
            constant(R1, 1.0),
            i(inst::SUB, R2, R0, R1, 0),
            i(inst::ADD, R0, R0, R1, 0),
            i(inst::DIV, d, R2, R0, 0),
        ],
        ("program_selects_by_sign", inst::SELECT) => vec![
            constant(R0, 0.0),
            i(inst::LT, R0, R0, a, 0),
            i(inst::SELECT, d, R0, b, c),
        ],
        ("program_fma_rounds_twice", inst::FMA) => {
            vec![i(inst::MUL, R0, a, b, 0), i(inst::ADD, d, R0, c, 0)]
        }
        ("program_lt_is_le", inst::LT) => vec![
            i(inst::LT, R0, b, a, 0),
            constant(R1, 0.0),
            constant(R2, 1.0),
            i(inst::SELECT, d, R0, R1, R2),
        ],
        ("program_has_32_registers", _) => vec![ProgramInst {
            dst: d & 31,
            a: a & 31,
            b: b & 31,
            c: c & 31,
            ..x
        }],
        ("program_has_60_registers", _) => vec![ProgramInst {
            dst: d % 60,
            a: a % 60,
            b: b % 60,
            c: c % 60,
            ..x
        }],
        ("program_has_4_scalars", inst::SCALAR) => vec![ProgramInst {
            imm: (x.imm as u32 % 4) as f32,
            ..x
        }],
        _ => return None,
    })
}

/// The program that the back end is asked for instead; longer ones than it takes are left alone.
pub fn asked(bug: &str, o: &OpRequest<'_>) -> Result<Option<Asked>> {
    if o.id != op::ELEMENTWISE_PROGRAM || !bug.starts_with("program") {
        return Ok(None);
    }
    let mut p = o.params::<op::ProgramParams>()?;
    let mut code = vec![];
    let mut changed = false;
    for x in &p.insts[..p.n_insts as usize] {
        let other = instead(bug, *x);
        changed |= other.is_some();
        code.extend(other.unwrap_or_else(|| vec![*x]));
    }
    if bug == "programs_end_at_48" && code.len() > 48 {
        code.truncate(48);
        changed = true;
    }
    if !changed || code.len() > PROGRAM_MAX_INSTS {
        return Ok(None);
    }
    p.n_insts = code.len() as u32;
    p.insts[..code.len()].copy_from_slice(&code);
    Ok(Some((o.operands.to_vec(), p.as_bytes().to_vec())))
}
