//! elementwise_program: a register machine whose registers are blocks, so that each instruction is one vector loop.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math};
use crossweave_abi::op::{self, inst};
use crossweave_plugin::{DType, Dyn, Op, Plan, Result};

/// Elements of a register.
const LANE: usize = 256;

clones! {
    fn vadd(a: &[f32], b: &[f32], d: &mut [f32]) { for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = a + b; } }
    fn vsub(a: &[f32], b: &[f32], d: &mut [f32]) { for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = a - b; } }
    fn vmul(a: &[f32], b: &[f32], d: &mut [f32]) { for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = a * b; } }
    fn vdiv(a: &[f32], b: &[f32], d: &mut [f32]) { for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = a / b; } }
    fn vmax(a: &[f32], b: &[f32], d: &mut [f32]) {
        for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = if *a > *b || a.is_nan() { *a } else { *b }; }
    }
    fn vmin(a: &[f32], b: &[f32], d: &mut [f32]) {
        for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = if *a < *b || a.is_nan() { *a } else { *b }; }
    }
    fn vless(a: &[f32], b: &[f32], d: &mut [f32]) {
        for ((d, a), b) in d.iter_mut().zip(a).zip(b) { *d = if *a < *b { 1.0 } else { 0.0 }; }
    }
    fn vfma(a: &[f32], b: &[f32], c: &[f32], d: &mut [f32]) {
        for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) { *d = a.mul_add(*b, *c); }
    }
    fn vselect(a: &[f32], b: &[f32], c: &[f32], d: &mut [f32]) {
        for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) { *d = if *a != 0.0 { *b } else { *c }; }
    }
}

/// What an instruction does, looked up once at prepare.
#[derive(Clone, Copy)]
enum Do {
    Const(f32),
    Scalar(usize),
    Move,
    One(fn(&mut [f32])),
    Two(fn(&[f32], &[f32], &mut [f32])),
    Three(fn(&[f32], &[f32], &[f32], &mut [f32])),
}

#[derive(Clone, Copy)]
struct Step {
    act: Do,
    dst: usize,
    src: [usize; 3],
}

struct Program {
    steps: Vec<Step>,
    operands: Vec<View>,
    reads: Vec<usize>,
    writes: Vec<usize>,
    registers: usize,
    total: usize,
}

fn decode(op: u32, imm: f32) -> Option<Do> {
    Some(match op {
        inst::CONST => Do::Const(imm),
        inst::SCALAR if (0.0..8.0).contains(&imm) && imm.fract() == 0.0 => Do::Scalar(imm as usize),
        inst::MOV => Do::Move,
        inst::ADD => Do::Two(vadd),
        inst::SUB => Do::Two(vsub),
        inst::MUL => Do::Two(vmul),
        inst::DIV => Do::Two(vdiv),
        inst::MAX => Do::Two(vmax),
        inst::MIN => Do::Two(vmin),
        inst::LT => Do::Two(vless),
        inst::FMA => Do::Three(vfma),
        inst::SELECT => Do::Three(vselect),
        inst::NEG => Do::One(math::neg_block),
        inst::ABS => Do::One(math::abs_block),
        inst::SQRT => Do::One(math::sqrt_block),
        inst::RSQRT => Do::One(math::rsqrt_block),
        inst::EXP => Do::One(math::exp_block),
        inst::LOG => Do::One(math::log_block),
        inst::TANH => Do::One(math::tanh_block),
        inst::ERF => Do::One(math::erf_block),
        inst::SIGMOID => Do::One(math::sigmoid_block),
        inst::FLOOR => Do::One(math::floor_block),
        _ => return None,
    })
}

/// `elementwise_program`.
pub fn program(o: &Op<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(o, 1..=op::PROGRAM_MAX_OPERANDS)?;
    let p = o.params::<op::ProgramParams>()?;
    flags(o, p.flags, 0)?;
    let n = o.operands.len();
    if p.n_insts as usize > op::PROGRAM_MAX_INSTS {
        return invalid(
            o,
            format!(
                "{} instructions, at most {}",
                p.n_insts,
                op::PROGRAM_MAX_INSTS
            ),
        );
    }
    if p.writes >> n != 0 {
        return invalid(
            o,
            format!("writes {:#b} names operands beyond {n}", p.writes),
        );
    }
    let written = |i: usize| p.writes >> i & 1 == 1;
    let mut operands = Vec::new();
    for i in 0..n {
        let t = [DType::F32, DType::Bf16, DType::F16, DType::U32];
        let v = if written(i) {
            output(o, i, &t)?
        } else {
            input(o, i, &t)?
        };
        operands.push(v);
        shape(o, i, &operands[i], &operands[0].shape)?;
    }
    // `live`: registers that hold something; operands do from the start.
    let mut live: Vec<bool> = (0..op::PROGRAM_MAX_REGS).map(|r| r < n).collect();
    let (mut reads, mut assigned, mut registers) = (Vec::new(), 0u64, n);
    let mut steps = Vec::new();
    for (k, c) in p.insts[..p.n_insts as usize].iter().enumerate() {
        let Some(act) = decode(c.op, c.imm) else {
            return refuse(
                o,
                format!("instruction {k}: op {} (imm {}) is unknown", c.op, c.imm),
            );
        };
        let used = match act {
            Do::Const(_) | Do::Scalar(_) => 0,
            Do::Move | Do::One(_) => 1,
            Do::Two(_) => 2,
            Do::Three(_) => 3,
        };
        let (dst, src) = (c.dst as usize, [c.a, c.b, c.c].map(|r| r as usize));
        for r in &src[..used] {
            if !live.get(*r).copied().unwrap_or(false) {
                return invalid(
                    o,
                    format!("instruction {k} reads register {r} before anything wrote it"),
                );
            }
            if *r < n && assigned >> r & 1 == 0 && !reads.contains(r) {
                reads.push(*r);
            }
        }
        if dst >= op::PROGRAM_MAX_REGS || (dst < n && !written(dst)) {
            return invalid(
                o,
                format!(
                    "instruction {k} writes register {dst}, which is not a temporary or a written operand"
                ),
            );
        }
        live[dst] = true;
        assigned |= 1 << dst;
        registers = registers.max(dst + 1);
        steps.push(Step { act, dst, src });
    }
    let writes = (0..n)
        .filter(|i| written(*i) && assigned >> i & 1 == 1)
        .collect();
    let total = operands[0].total;
    let k = Program {
        steps,
        operands,
        reads,
        writes,
        registers,
        total,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Program {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<Scalars>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let scalars = Dyn(l.dynamic)
            .read::<Scalars>()
            .map_or([0.0; 8], |s| s.0.scalars);
        let args = Args::of(l);
        chunks(l.team, self.total, CHUNK, &|start, len| {
            let mut regs = vec![[0f32; LANE]; self.registers];
            for at in (start..start + len).step_by(LANE) {
                let n = LANE.min(start + len - at);
                for &r in &self.reads {
                    // SAFETY: in range by the chunking; operands are written only after the block's instructions have run.
                    unsafe { self.operands[r].load(args.at(r), at, &mut regs[r][..n]) };
                }
                for s in &self.steps {
                    // The result is made beside the registers: a source may be the destination.
                    let mut out = [0f32; LANE];
                    let d = &mut out[..n];
                    let [a, b, c] = s.src.map(|r| regs.get(r).map_or(&[][..], |r| &r[..n]));
                    match s.act {
                        Do::Const(v) => d.fill(v),
                        Do::Scalar(i) => d.fill(scalars[i]),
                        Do::Move => d.copy_from_slice(a),
                        Do::One(f) => {
                            d.copy_from_slice(a);
                            f(d);
                        }
                        Do::Two(f) => f(a, b, d),
                        Do::Three(f) => f(a, b, c, d),
                    }
                    regs[s.dst][..n].copy_from_slice(d);
                }
                for &w in &self.writes {
                    // SAFETY: in range by the chunking; tasks write disjoint elements.
                    unsafe { self.operands[w].store(args.at(w), at, &regs[w][..n]) };
                }
            }
        });
    }
}

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
