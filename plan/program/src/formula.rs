//! Expressions that write an `elementwise_program`: recipes and optimizers read like the formulas they are.
//!
//! ```
//! use crossweave_program::Prog;
//! // y = max(x, 0) * s, over operands 0 = y (written), 1 = x; s is launch-time scalar 0.
//! let p = Prog::new(2);
//! let x = p.operand(1);
//! let y = x.max(x.lit(0.0)) * x.scalar(0);
//! let params = p.finish(&[y]);
//! assert_eq!((params.n_insts, params.writes), (5, 0b1));
//! ```

use crate::params::{ParamBlock, Word};
use crate::scalar::ScalarId;
use crossweave_abi::op::{self, ProgramInst, inst};
use std::cell::{Cell, RefCell};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A program being written.
pub struct Prog {
    insts: RefCell<Vec<ProgramInst>>,
    next: Cell<u32>,
    operands: u32,
    /// Constants that are step scalars: instruction, and which.
    scalars: RefCell<Vec<(usize, ScalarId)>>,
}

/// Registers an instruction reads.
fn sources(i: &ProgramInst) -> usize {
    match i.op {
        inst::CONST | inst::SCALAR => 0,
        inst::ADD..=inst::MIN | inst::LT => 2,
        inst::FMA | inst::SELECT => 3,
        _ => 1,
    }
}

/// Gives temporaries that do not live together one register: a long formula has more values than there are registers.
fn share(insts: &mut [ProgramInst], operands: u32) {
    let reads = |i: &ProgramInst| [i.a, i.b, i.c].into_iter().take(sources(i));
    let mut last = std::collections::HashMap::new();
    for (k, i) in insts.iter().enumerate() {
        last.extend(reads(i).map(|r| (r, k)));
    }
    let mut home = std::collections::HashMap::new();
    let mut free: Vec<u32> = vec![];
    let mut next = operands;
    for (k, i) in insts.iter_mut().enumerate() {
        let read: Vec<u32> = reads(i).collect();
        let at = |r: u32| home.get(&r).copied().unwrap_or(r);
        (i.a, i.b, i.c) = (at(i.a), at(i.b), at(i.c));
        for (n, r) in read.iter().enumerate() {
            let done = *r >= operands && last.get(r) == Some(&k) && !read[..n].contains(r);
            free.extend(home.get(r).filter(|_| done));
        }
        if i.dst < operands {
            continue;
        }
        let to = free.pop().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        home.insert(i.dst, to);
        if !last.contains_key(&i.dst) {
            free.push(to);
        }
        i.dst = to;
    }
}

impl Prog {
    /// Over so many operands; temporaries follow them.
    pub fn new(operands: u32) -> Prog {
        Prog {
            insts: RefCell::default(),
            next: Cell::new(operands),
            operands,
            scalars: RefCell::default(),
        }
    }
    /// The value of an operand.
    pub fn operand(&self, reg: u32) -> Ex<'_> {
        Ex { prog: self, reg }
    }
    fn push(&self, op: u32, src: [u32; 3], imm: f32) -> Ex<'_> {
        // A constant or scalar already there is the same value: programs are short, and long ones are refused.
        if matches!(op, inst::CONST | inst::SCALAR) {
            let (insts, scalars) = (self.insts.borrow(), self.scalars.borrow());
            let same = |(k, i): &(usize, &ProgramInst)| {
                i.op == op
                    && i.imm.to_bits() == imm.to_bits()
                    && !scalars.iter().any(|(at, _)| at == k)
            };
            if let Some((_, i)) = insts.iter().enumerate().find(same) {
                return self.operand(i.dst);
            }
        }
        let dst = self.next.replace(self.next.get() + 1);
        let [a, b, c] = src;
        self.insts.borrow_mut().push(ProgramInst {
            op,
            dst,
            a,
            b,
            c,
            imm,
            ..Default::default()
        });
        self.operand(dst)
    }
    /// The params: result `i` goes to operand `i`. Moves come last, so that operands are read before any is written.
    pub fn finish(&self, results: &[Ex<'_>]) -> op::ProgramParams {
        for (i, r) in results.iter().enumerate() {
            self.insts.borrow_mut().push(ProgramInst {
                op: inst::MOV,
                dst: i as u32,
                a: r.reg,
                ..Default::default()
            });
        }
        let mut insts = self.insts.borrow().clone();
        if self.next.get() as usize > op::PROGRAM_MAX_REGS {
            share(&mut insts, self.operands);
        }
        let mut p = op::ProgramParams {
            n_insts: insts.len() as u32,
            writes: (1 << results.len()) - 1,
            ..Default::default()
        };
        // A program too long is stated as such and refused at prepare.
        for (to, from) in p.insts.iter_mut().zip(&insts) {
            *to = *from;
        }
        p
    }
}

impl Prog {
    /// The same as [`Prog::finish`], with the step scalars that [`Ex::step`] has named.
    pub fn finish_block(&self, results: &[Ex<'_>]) -> ParamBlock {
        let params = self.finish(results);
        let first = std::mem::offset_of!(op::ProgramParams, insts);
        let imm = std::mem::offset_of!(ProgramInst, imm);
        let at = |k: usize| first + k * size_of::<ProgramInst>() + imm;
        let scalars = self.scalars.borrow();
        let fields = scalars.iter().map(|(k, s)| (at(*k), Word::F32, *s));
        ParamBlock::with(params.as_bytes(), &fields.collect::<Vec<_>>())
    }

    fn step(&self, scalar: ScalarId) -> Ex<'_> {
        let known = self
            .scalars
            .borrow()
            .iter()
            .find(|(_, s)| *s == scalar)
            .copied();
        if let Some((k, _)) = known {
            return self.operand(self.insts.borrow()[k].dst);
        }
        let dst = self.next.replace(self.next.get() + 1);
        let mut insts = self.insts.borrow_mut();
        self.scalars.borrow_mut().push((insts.len(), scalar));
        insts.push(ProgramInst {
            op: inst::CONST,
            dst,
            ..Default::default()
        });
        self.operand(dst)
    }
}

/// A value of the program.
#[derive(Clone, Copy)]
pub struct Ex<'p> {
    prog: &'p Prog,
    reg: u32,
}

impl<'p> Ex<'p> {
    fn one(self, op: u32) -> Ex<'p> {
        self.prog.push(op, [self.reg, 0, 0], 0.0)
    }
    fn two(self, op: u32, b: Ex<'p>) -> Ex<'p> {
        self.prog.push(op, [self.reg, b.reg, 0], 0.0)
    }
    /// A constant of the same program.
    pub fn lit(self, v: f32) -> Ex<'p> {
        self.prog.push(inst::CONST, [0; 3], v)
    }
    /// A step scalar as a constant: another value is another kernel.
    pub fn step(self, scalar: ScalarId) -> Ex<'p> {
        self.prog.step(scalar)
    }
    /// Launch-time scalar `i`.
    pub fn scalar(self, i: usize) -> Ex<'p> {
        self.prog.push(inst::SCALAR, [0; 3], i as f32)
    }
    /// e to its power.
    pub fn exp(self) -> Ex<'p> {
        self.one(inst::EXP)
    }
    /// Natural logarithm.
    pub fn log(self) -> Ex<'p> {
        self.one(inst::LOG)
    }
    /// Square root.
    pub fn sqrt(self) -> Ex<'p> {
        self.one(inst::SQRT)
    }
    /// Its magnitude.
    pub fn abs(self) -> Ex<'p> {
        self.one(inst::ABS)
    }
    /// The next whole number at or below.
    pub fn floor(self) -> Ex<'p> {
        self.one(inst::FLOOR)
    }
    /// Hyperbolic tangent.
    pub fn tanh(self) -> Ex<'p> {
        self.one(inst::TANH)
    }
    /// Error function.
    pub fn erf(self) -> Ex<'p> {
        self.one(inst::ERF)
    }
    /// Logistic function.
    pub fn sigmoid(self) -> Ex<'p> {
        self.one(inst::SIGMOID)
    }
    /// The smaller.
    pub fn min(self, b: Ex<'p>) -> Ex<'p> {
        self.two(inst::MIN, b)
    }
    /// The larger.
    pub fn max(self, b: Ex<'p>) -> Ex<'p> {
        self.two(inst::MAX, b)
    }
    /// 1 where `self < b`, else 0.
    pub fn less(self, b: Ex<'p>) -> Ex<'p> {
        self.two(inst::LT, b)
    }
    /// `a` where `self` is not zero, else `b`.
    pub fn choose(self, a: Ex<'p>, b: Ex<'p>) -> Ex<'p> {
        self.prog.push(inst::SELECT, [self.reg, a.reg, b.reg], 0.0)
    }
}

impl Neg for Ex<'_> {
    type Output = Self;
    fn neg(self) -> Self {
        self.one(inst::NEG)
    }
}

macro_rules! operator {
    ($($Trait:ident $f:ident $inst:ident),*) => { $(
        impl $Trait for Ex<'_> {
            type Output = Self;
            fn $f(self, b: Self) -> Self {
                self.two(inst::$inst, b)
            }
        }
        impl $Trait<f32> for Ex<'_> {
            type Output = Self;
            fn $f(self, b: f32) -> Self {
                self.two(inst::$inst, self.lit(b))
            }
        }
    )* };
}
operator!(Add add ADD, Sub sub SUB, Mul mul MUL, Div div DIV);
