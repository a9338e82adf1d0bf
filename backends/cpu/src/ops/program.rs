//! elementwise_program: a register machine whose registers are blocks, so that each instruction is one vector loop.
//!
//! At prepare the program is rewritten so that little but arithmetic is left: moves become names, values that are the same for every element
//! are made once a task, registers are shared by values that do not live together (few stay in the first-level cache), and dense f32
//! operands are read where they lie.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math};
use crossweave_abi::op::{self, inst};
use crossweave_plugin::{DType, Dyn, OpRequest, Plan, Result, op as request};

/// Elements of a register.
const LANE: usize = 512;

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

/// Where a value is while a block is worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// In a register.
    Reg(usize),
    /// In an operand of dense f32, read in place: nothing is stored before the block's last instruction.
    Operand(usize),
}

/// One vector loop. `dst` is none of the registers in `src`.
#[derive(Clone, Copy)]
struct Step {
    act: Do,
    dst: usize,
    src: [At; 3],
}

/// A value that is the same for all elements: made once a task.
#[derive(Clone, Copy)]
enum Uniform {
    Const(f32),
    Scalar(usize),
    Operand(usize),
}

struct Program {
    steps: Vec<Step>,
    operands: Vec<View>,
    uniforms: Vec<(Uniform, usize)>,
    /// Operands loaded into a register a block.
    loads: Vec<(usize, usize)>,
    /// Operands written at the end of a block, each from a register.
    stores: Vec<(usize, usize)>,
    registers: usize,
    total: usize,
}

/// A value while the program is rewritten: what makes it, and what reads it last.
struct Value {
    made: Made,
    /// Index of the last instruction that reads it; `usize::MAX` when it is stored.
    last: Option<usize>,
}

enum Made {
    Uniform(Uniform),
    Operand(usize),
    Step(Do, [usize; 3], usize),
}

/// The program over values instead of registers, in the order they are made.
#[derive(Default)]
struct Values {
    list: Vec<Value>,
    /// Which value a register of the program holds.
    held: Vec<Option<usize>>,
}

impl Values {
    fn add(&mut self, made: Made) -> usize {
        self.list.push(Value { made, last: None });
        self.list.len() - 1
    }

    /// The value in register `r`, an operand's own when nothing was written there yet.
    fn read(&mut self, r: usize, operands: &[View]) -> Option<usize> {
        if let Some(v) = *self.held.get(r)? {
            return Some(v);
        }
        let view = operands.get(r)?;
        let whole = view.total > 1 && view.dims.iter().all(|(_, stride)| *stride == 0);
        let v = self.add(if whole {
            Made::Uniform(Uniform::Operand(r))
        } else {
            Made::Operand(r)
        });
        self.held[r] = Some(v);
        Some(v)
    }

    /// Gives every value a place. Registers of uniform values and of loads are theirs alone; results share what is free.
    fn place(mut self, stores: &[(usize, usize)], operands: Vec<View>) -> Program {
        for (_, v) in stores {
            self.list[*v].last = Some(usize::MAX);
        }
        let total = operands[0].total;
        let mut p = Program {
            steps: vec![],
            uniforms: vec![],
            loads: vec![],
            stores: vec![],
            registers: 0,
            total,
            operands,
        };
        let mut place: Vec<At> = vec![At::Reg(0); self.list.len()];
        let mut fresh = 0..;
        let mut free: Vec<usize> = vec![];
        let mut next = |free: &mut Vec<usize>| free.pop().or_else(|| fresh.next()).unwrap_or(0);
        for (i, v) in self.list.iter().enumerate() {
            match v.made {
                Made::Uniform(u) => {
                    let r = next(&mut vec![]);
                    p.uniforms.push((u, r));
                    place[i] = At::Reg(r);
                }
                Made::Operand(o) => {
                    let view = &p.operands[o];
                    // What is stored unchanged is read first: another store may write over it.
                    let stored = v.last == Some(usize::MAX);
                    let dense = view.dtype == DType::F32 && matches!(view.dims[..], [(_, 1)]);
                    place[i] = if dense && !stored {
                        At::Operand(o)
                    } else {
                        let r = next(&mut vec![]);
                        p.loads.push((o, r));
                        At::Reg(r)
                    };
                }
                Made::Step(..) => {}
            }
        }
        for (i, v) in self.list.iter().enumerate() {
            let Made::Step(act, src, k) = v.made else {
                continue;
            };
            let dst = next(&mut free);
            place[i] = At::Reg(dst);
            p.steps.push(Step {
                act,
                dst,
                src: src.map(|s| place[s]),
            });
            // Sources read for the last time give their registers back, after the result has one of its own.
            for (n, s) in src.iter().enumerate() {
                let done = self.list[*s].last == Some(k) && !src[..n].contains(s);
                if let (true, Made::Step(..), At::Reg(r)) = (done, &self.list[*s].made, place[*s]) {
                    free.push(r);
                }
            }
            if v.last.is_none() {
                free.push(dst);
            }
        }
        p.registers = next(&mut vec![]);
        for (o, v) in stores {
            if let At::Reg(r) = place[*v] {
                p.stores.push((*o, r));
            }
        }
        p
    }
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
pub fn program(o: &OpRequest<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    let r = request::Program::read(o)?;
    let n = r.operands.len();
    let written = |i: usize| r.written(i);
    let operands = &r.operands;
    let mut values = Values {
        held: vec![None; op::PROGRAM_MAX_REGS],
        ..Default::default()
    };
    let mut assigned = 0u64;
    for (k, c) in r.instructions().iter().enumerate() {
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
        let dst = c.dst as usize;
        let mut src = [0; 3];
        for (r, s) in [c.a, c.b, c.c].into_iter().zip(&mut src).take(used) {
            let Some(v) = values.read(r as usize, operands) else {
                return invalid(
                    o,
                    format!("instruction {k} reads register {r} before anything wrote it"),
                );
            };
            *s = v;
        }
        // Places not used repeat the first, so that every source of a step is a value it reads.
        for n in used..3 {
            src[n] = src[0];
        }
        if dst >= op::PROGRAM_MAX_REGS || (dst < n && !written(dst)) {
            return invalid(
                o,
                format!(
                    "instruction {k} writes register {dst}, which is not a temporary or a written operand"
                ),
            );
        }
        let v = match act {
            Do::Const(x) => values.add(Made::Uniform(Uniform::Const(x))),
            Do::Scalar(i) => values.add(Made::Uniform(Uniform::Scalar(i))),
            Do::Move => src[0],
            _ => {
                src.iter().for_each(|s| values.list[*s].last = Some(k));
                values.add(Made::Step(act, src, k))
            }
        };
        values.held[dst] = Some(v);
        assigned |= 1 << dst;
    }
    let stores: Vec<(usize, usize)> = (0..n)
        .filter(|i| written(*i) && assigned >> i & 1 == 1)
        .filter_map(|i| Some((i, values.held[i]?)))
        .collect();
    let k = values.place(&stores, operands.clone());
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
            let width = LANE.min(len);
            let mut regs = vec![0f32; self.registers * LANE];
            let base = Ptr(regs.as_mut_ptr().cast());
            for &(u, r) in &self.uniforms {
                let value = match u {
                    Uniform::Const(v) => v,
                    Uniform::Scalar(i) => scalars[i],
                    // SAFETY: the operand has one element, which every index of the shape shows.
                    Uniform::Operand(o) => unsafe {
                        load_one(self.operands[o].dtype, args.at(o), 0)
                    },
                };
                // SAFETY: register `r` lies inside `regs`.
                unsafe { base.slice_mut::<f32>(r * LANE, width) }.fill(value);
            }
            for at in (start..start + len).step_by(LANE) {
                let n = LANE.min(start + len - at);
                for &(o, r) in &self.loads {
                    // SAFETY: in range by the chunking; operands are written only after the block's instructions have run.
                    unsafe {
                        self.operands[o].load(args.at(o), at, base.slice_mut(r * LANE, n));
                    }
                }
                // SAFETY: registers lie inside `regs`, operands read in place are dense f32 in range by the chunking, and nothing writes
                // either while a step reads it: the step's own result goes to a register that is none of its sources.
                let get = |s: At| unsafe {
                    match s {
                        At::Reg(r) => base.slice::<f32>(r * LANE, n),
                        At::Operand(o) => args.at(o).slice::<f32>(at, n),
                    }
                };
                for s in &self.steps {
                    // SAFETY: as above.
                    let d = unsafe { base.slice_mut::<f32>(s.dst * LANE, n) };
                    let [a, b, c] = s.src.map(get);
                    match s.act {
                        Do::One(f) => {
                            d.copy_from_slice(a);
                            f(d);
                        }
                        Do::Two(f) => f(a, b, d),
                        Do::Three(f) => f(a, b, c, d),
                        // Not steps: they became names and uniform values.
                        Do::Const(_) | Do::Scalar(_) | Do::Move => {}
                    }
                }
                for &(w, r) in &self.stores {
                    // SAFETY: in range by the chunking; tasks write disjoint elements, from a register of their own.
                    unsafe {
                        self.operands[w].store(args.at(w), at, base.slice(r * LANE, n));
                    }
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    fn code(writes: u32, list: &[(u32, u32, u32, u32, u32, f32)]) -> op::ProgramParams {
        let mut p = op::ProgramParams {
            n_insts: list.len() as u32,
            writes,
            ..Default::default()
        };
        for (i, &(op, dst, a, b, c, imm)) in list.iter().enumerate() {
            p.insts[i].op = op;
            (p.insts[i].dst, p.insts[i].a, p.insts[i].b, p.insts[i].c) = (dst, a, b, c);
            p.insts[i].imm = imm;
        }
        p
    }

    #[test]
    fn arithmetic_is_f32_in_the_order_written() {
        // Operands: 0 = y (written), 1 = x, 2 = row vector, 3 = one u32. y = select(u != 0, fma(x, row, s0) * x + x, y).
        let p = code(
            1,
            &[
                (inst::SCALAR, 10, 0, 0, 0, 1.0),
                (inst::FMA, 11, 1, 2, 10, 0.0),
                (inst::MUL, 11, 11, 1, 0, 0.0),
                (inst::ADD, 12, 11, 1, 0, 0.0),
                (inst::SELECT, 0, 3, 12, 0, 0.0),
            ],
        );
        let d = op::ProgramDyn::new(&[9.0, 0.7]);
        let mut rng = Rng(23);
        for t in STORAGES {
            for (n, m) in [(0, 4), (1, 1), (3, 11), (33, 130), (5, 8009)] {
                for skip in [0.0, 1.0] {
                    let x = Tensor::strided(t, &[n, m], &[1, n.max(1)], &rng.floats(n * m, 2.0));
                    let row: Vec<f64> = (0..n * m).map(|i| (i % m) as f64 * 0.37).collect();
                    let row = Tensor::strided(DType::F32, &[n, m], &[0, 1], &row);
                    let y = Tensor::new(t, &[n, m], &rng.floats(n * m, 1.0));
                    let flag = Tensor::strided(DType::U32, &[n, m], &[0, 0], &vec![skip; n * m]);
                    let (xv, rv, yv) = (x.values(), row.values(), y.values());
                    let want: Vec<f64> = (0..n * m)
                        .map(|i| {
                            let (x, r) = (xv[i] as f32, rv[i] as f32);
                            if skip == 0.0 {
                                yv[i]
                            } else {
                                (x.mul_add(r, 0.7) * x + x) as f64
                            }
                        })
                        .collect();
                    let want = Tensor::new(t, &[n, m], &want);
                    let mut ops = [y, x, row, flag];
                    run(
                        op::ELEMENTWISE_PROGRAM,
                        p.as_bytes(),
                        d.as_bytes(),
                        &mut ops,
                    );
                    assert!(ops[0].data == want.data, "{t:?} {n} {m}: exact bits");
                }
            }
        }
    }

    #[test]
    fn each_instruction() {
        let two: [(u32, fn(f64, f64) -> f64); 7] = [
            (inst::ADD, |a, b| a + b),
            (inst::SUB, |a, b| a - b),
            (inst::MUL, |a, b| a * b),
            (inst::DIV, |a, b| a / b),
            (inst::MAX, f64::max),
            (inst::MIN, f64::min),
            (inst::LT, |a, b| (a < b) as u8 as f64),
        ];
        let one: [(u32, fn(f64) -> f64); 10] = [
            (inst::MOV, |a| a),
            (inst::NEG, |a| -a),
            (inst::ABS, f64::abs),
            (inst::SQRT, f64::sqrt),
            (inst::RSQRT, |a| 1.0 / a.sqrt()),
            (inst::EXP, f64::exp),
            (inst::LOG, f64::ln),
            (inst::TANH, f64::tanh),
            (inst::SIGMOID, |a| 1.0 / (1.0 + (-a).exp())),
            (inst::FLOOR, f64::floor),
        ];
        let mut rng = Rng(24);
        let n = 1000;
        let a = Tensor::new(DType::F32, &[n], &rng.floats(n, 3.0));
        let b = Tensor::new(DType::F32, &[n], &rng.floats(n, 3.0));
        let (av, bv) = (a.values(), b.values());
        let check = |op: u32, want: Vec<f64>| {
            let p = code(1, &[(op, 0, 1, 2, 0, 0.0)]);
            let mut ops = [Tensor::poison(DType::F32, &[n]), a.clone(), b.clone()];
            run(op::ELEMENTWISE_PROGRAM, p.as_bytes(), &[], &mut ops);
            close(&format!("inst {op}"), &ops[0].values(), &want, |i| {
                rounding(DType::F32, want[i], 4.0)
            });
        };
        for (op, f) in two {
            check(op, (0..n).map(|i| f(av[i], bv[i])).collect());
        }
        for (op, f) in one {
            check(op, av.iter().map(|a| f(*a)).collect());
        }
        check(inst::CONST, vec![0.0; n]);
    }

    #[test]
    fn refusals() {
        let ops = [
            Tensor::poison(DType::F32, &[4]),
            Tensor::poison(DType::F32, &[4]),
        ];
        let ask = |p: op::ProgramParams| refusal(op::ELEMENTWISE_PROGRAM, p.as_bytes(), &ops);
        assert_eq!(ask(code(1, &[(inst::MOV, 0, 1, 0, 0, 0.0)])), None);
        assert_eq!(
            ask(code(1, &[(99, 0, 1, 0, 0, 0.0)])),
            Some(Code::Unsupported),
            "unknown op"
        );
        assert_eq!(
            ask(code(1, &[(inst::MOV, 1, 0, 0, 0, 0.0)])),
            Some(Code::Invalid),
            "writes a read-only operand"
        );
        assert_eq!(
            ask(code(1, &[(inst::MOV, 0, 9, 0, 0, 0.0)])),
            Some(Code::Invalid),
            "reads an empty register"
        );
        assert_eq!(
            ask(code(4, &[])),
            Some(Code::Invalid),
            "writes beyond the operands"
        );
        assert_eq!(
            ask(code(1, &[(inst::MOV, 64, 1, 0, 0, 0.0)])),
            Some(Code::Invalid),
            "register 64"
        );
    }
}
