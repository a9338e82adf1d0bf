//! `elementwise_program` itself, instruction by instruction, in f32 temporaries of its shape. Constants and scalars are one element each.

use super::build::{Build, Given, View, read};
use crossweave_hal::abi::op::{self, binary, compare, inst, unary};
use crossweave_hal::{DType, OpRequest, Recipe};
use std::sync::Arc;

struct Machine {
    b: Build,
    shape: Vec<u64>,
    regs: Vec<Option<View>>,
}

impl Machine {
    fn reg(&self, r: u32) -> Option<View> {
        self.regs
            .get(r as usize)?
            .as_ref()
            .map(|v| v.over(&self.shape))
    }
    fn fresh(&mut self) -> View {
        self.b.temp(DType::F32, &self.shape)
    }
    fn one(&mut self, kind: u32, x: &View) -> View {
        let y = self.fresh();
        self.b.kind(op::UNARY, kind, &[&y, x]);
        y
    }
    fn two(&mut self, kind: u32, x: &View, z: &View) -> View {
        let y = self.fresh();
        self.b.kind(op::BINARY, kind, &[&y, x, z]);
        y
    }
    fn test(&mut self, kind: u32, x: &View, z: &View) -> View {
        let t = self.b.temp(DType::U8, &self.shape);
        self.b.kind(op::COMPARE, kind, &[&t, x, z]);
        t
    }
    fn constant(&mut self, v: f32) -> View {
        self.b.constant(v).over(&self.shape)
    }
    fn select(&mut self, cond: &View, yes: &View, no: &View) -> View {
        let y = self.fresh();
        let o = [Some(&y), Some(cond), Some(yes), Some(no)];
        let p = op::NoParams::default();
        self.b.op(op::SELECT, p.as_bytes(), &o, None);
        y
    }

    /// `x z + c` rounded once, from operations that round each: the product's and the sum's errors are computed exactly (Dekker, Knuth) and
    /// added back; where that overflows, the plain result stands.
    fn fma(&mut self, x: &View, z: &View, c: &View) -> View {
        use binary::{ADD, MUL, SUB};
        let k = self.constant(4097.0);
        let mut halves = [(); 2].map(|()| None);
        for (slot, v) in halves.iter_mut().zip([x, z]) {
            let t = self.two(MUL, v, &k);
            let u = self.two(SUB, &t, v);
            let hi = self.two(SUB, &t, &u);
            let lo = self.two(SUB, v, &hi);
            *slot = Some((hi, lo));
        }
        let p = self.two(MUL, x, z);
        let plain = self.two(ADD, &p, c);
        let [Some((xh, xl)), Some((zh, zl))] = halves else {
            return plain;
        };
        let mut e = self.two(MUL, &xh, &zh);
        e = self.two(SUB, &e, &p);
        for (a, b) in [(&xh, &zl), (&xl, &zh), (&xl, &zl)] {
            let t = self.two(MUL, a, b);
            e = self.two(ADD, &e, &t);
        }
        // The error of p + c.
        let part = self.two(SUB, &plain, &p);
        let rest = self.two(SUB, &plain, &part);
        let rest = self.two(SUB, &p, &rest);
        let part = self.two(SUB, c, &part);
        let f = self.two(ADD, &rest, &part);
        let f = self.two(ADD, &f, &e);
        let y = self.two(ADD, &plain, &f);
        let sound = self.test(compare::EQ, &y, &y);
        self.select(&sound, &y, &plain)
    }

    fn run(&mut self, i: &op::ProgramInst) -> Option<View> {
        let simple = |op| {
            Some(match op {
                inst::NEG => unary::NEG,
                inst::ABS => unary::ABS,
                inst::SQRT => unary::SQRT,
                inst::RSQRT => unary::RSQRT,
                inst::EXP => unary::EXP,
                inst::LOG => unary::LOG,
                inst::TANH => unary::TANH,
                inst::ERF => unary::ERF,
                inst::SIGMOID => unary::SIGMOID,
                inst::FLOOR => unary::FLOOR,
                _ => return None,
            })
        };
        let pair = |op| {
            Some(match op {
                inst::ADD => binary::ADD,
                inst::SUB => binary::SUB,
                inst::MUL => binary::MUL,
                inst::DIV => binary::DIV,
                inst::MAX => binary::MAX,
                inst::MIN => binary::MIN,
                _ => return None,
            })
        };
        Some(match i.op {
            inst::CONST => self.b.constant(i.imm),
            inst::SCALAR => {
                let k = i.imm as usize;
                if k >= 8 || i.imm.fract() != 0.0 || i.imm < 0.0 {
                    return None;
                }
                self.b.dyn_word(
                    DType::F32,
                    Arc::new(move |d: &[u8]| {
                        read::<op::ProgramDyn>(d).map_or(0, |d| d.scalars[k].to_bits())
                    }),
                )
            }
            inst::MOV => self.reg(i.a)?,
            inst::LT => {
                let (x, z) = (self.reg(i.a)?, self.reg(i.b)?);
                let t = self.test(compare::LT, &x, &z);
                let y = self.fresh();
                self.b.copy(&y, &t);
                y
            }
            inst::SELECT => {
                let (x, yes, no) = (self.reg(i.a)?, self.reg(i.b)?, self.reg(i.c)?);
                let zero = self.constant(0.0);
                let t = self.test(compare::NE, &x, &zero);
                self.select(&t, &yes, &no)
            }
            inst::FMA => {
                let (x, z, c) = (self.reg(i.a)?, self.reg(i.b)?, self.reg(i.c)?);
                self.fma(&x, &z, &c)
            }
            op => match (simple(op), pair(op)) {
                (Some(k), _) => {
                    let x = self.reg(i.a)?;
                    self.one(k, &x)
                }
                (_, Some(k)) => {
                    let (x, z) = (self.reg(i.a)?, self.reg(i.b)?);
                    self.two(k, &x, &z)
                }
                _ => return None,
            },
        })
    }
}

pub(super) fn recipe(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::ProgramParams = g.params()?;
    let n = o.operands.len();
    let insts = p.insts.get(..p.n_insts as usize)?;
    let shape = g.view(0)?.shape;
    let mut m = Machine {
        b: Build::default(),
        shape,
        regs: vec![None; op::PROGRAM_MAX_REGS],
    };
    let written = |r: u32| (r as usize) < n && p.writes >> r & 1 == 1;
    for i in insts {
        if i.dst as usize >= op::PROGRAM_MAX_REGS || ((i.dst as usize) < n && !written(i.dst)) {
            return None;
        }
        // Operands are widened where first read: an aliased output is stored only after the last instruction.
        let sources = match i.op {
            inst::CONST | inst::SCALAR => 0,
            inst::ADD..=inst::MIN | inst::LT => 2,
            inst::FMA | inst::SELECT => 3,
            _ => 1,
        };
        for r in [i.a, i.b, i.c].into_iter().take(sources) {
            if (r as usize) < n && m.regs[r as usize].is_none() {
                let v = g.view(r as usize)?;
                let f = if v.dtype == DType::F32 {
                    v
                } else {
                    m.b.f32(&v)
                };
                m.regs[r as usize] = Some(f);
            }
        }
        m.regs[i.dst as usize] = Some(m.run(i)?);
    }
    // A result that is another operand's memory, unread so far, must not be overwritten before it is stored.
    let outs: Vec<usize> = (0..n)
        .filter(|r| written(*r as u32) && m.regs[*r].is_some())
        .collect();
    let mut stores = vec![];
    for r in outs {
        let (dst, mut value) = (g.view(r)?, m.reg(r as u32)?);
        if value.is_operand() {
            if value == dst {
                continue;
            }
            let t = m.fresh();
            m.b.copy(&t, &value);
            value = t;
        }
        stores.push((dst, value));
    }
    for (dst, value) in stores {
        m.b.copy(&dst, &value);
    }
    Some(m.b.finish())
}
