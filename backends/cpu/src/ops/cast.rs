//! cast and iota: values from one dtype to another with exactly one rounding.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::convert;
use crossweave_abi::op;
use crossweave_plugin::{DType, Op, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

const ALL: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
];

/// f64 to f32 so that a later rounding to 16 bits is right: inexact results get an odd last bit.
pub fn round_to_odd(x: f64) -> f32 {
    let f = x as f32;
    if f as f64 == x || f.is_nan() {
        return f;
    }
    let toward_zero = if (f as f64).abs() > x.abs() {
        f.to_bits() - 1
    } else {
        f.to_bits()
    };
    f32::from_bits(toward_zero | 1)
}

/// A value on its way: integers exact, floats as f64 (every float dtype fits).
#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

/// # Safety
/// The element is live.
unsafe fn read(t: DType, p: Ptr, off: usize) -> Value {
    // SAFETY: forwarded.
    unsafe {
        match t {
            DType::I8 => Value::Int(*p.at::<i8>(off) as i128),
            DType::U8 => Value::Int(*p.at::<u8>(off) as i128),
            DType::I32 => Value::Int(*p.at::<i32>(off) as i128),
            DType::U32 => Value::Int(*p.at::<u32>(off) as i128),
            DType::I64 => Value::Int(*p.at::<i64>(off) as i128),
            DType::U64 => Value::Int(*p.at::<u64>(off) as i128),
            DType::F64 => Value::Float(*p.at::<f64>(off)),
            t => Value::Float(load_one(t, p, off) as f64),
        }
    }
}

/// An integer as f64, odd where inexact (the next rounding, to fewer bits, is then right).
fn int_to_odd(i: i128) -> f64 {
    let a = i.unsigned_abs();
    if a < 1 << 53 {
        return i as f64;
    }
    let hi = (a >> 11) | u128::from(a & 0x7ff != 0);
    let f = hi as f64 * 2048.0;
    if i < 0 { -f } else { f }
}

/// # Safety
/// The element is live and ours.
unsafe fn write(t: DType, p: Ptr, off: usize, v: Value) {
    // Integers wrap into a narrower integer as in C and torch; floats saturate, NaN gives 0 (Rust's `as`).
    macro_rules! int {
        ($t:ty) => {
            match v {
                Value::Int(i) => i as $t,
                Value::Float(f) => f as $t,
            }
        };
    }
    let odd = || match v {
        Value::Int(i) => round_to_odd(int_to_odd(i)),
        Value::Float(f) => round_to_odd(f),
    };
    // SAFETY: forwarded.
    unsafe {
        match t {
            DType::I8 => *p.at(off) = int!(i8),
            DType::U8 => *p.at(off) = int!(u8),
            DType::I32 => *p.at(off) = int!(i32),
            DType::U32 => *p.at(off) = int!(u32),
            DType::I64 => *p.at(off) = int!(i64),
            DType::U64 => *p.at(off) = int!(u64),
            DType::F64 => {
                *p.at(off) = match v {
                    Value::Int(i) => i as f64,
                    Value::Float(f) => f,
                }
            }
            DType::F32 => {
                *p.at(off) = match v {
                    Value::Int(i) => i as f32,
                    Value::Float(f) => f as f32,
                }
            }
            DType::Bf16 => *p.at(off) = convert::bf16_of_f32(odd()),
            _ => *p.at(off) = convert::f16_of_f32(odd()),
        }
    }
}

struct Cast {
    dst: View,
    src: View,
}

/// `cast`.
pub fn cast(o: &Op<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, src) = (output(o, 0, ALL)?, input(o, 1, ALL)?);
    shape(o, 1, &src, &dst.shape)?;
    Ok((Box::new(Cast { dst, src }), plan(o, 0)))
}

impl Kernel for Cast {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        let (td, ts) = (self.dst.dtype, self.src.dtype);
        let fast = FLOATS.contains(&td) && FLOATS.contains(&ts);
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            if !fast {
                let mut at = start;
                self.src.rows(start, len, |off, stride, n| {
                    for i in 0..n {
                        // SAFETY: the walk stays inside the layout; tasks write disjoint elements.
                        unsafe { write(td, y, at + i, read(ts, x, off + i * stride)) };
                    }
                    at += n;
                });
                return;
            }
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    let v = self.src.get(x, at, n, &mut buf);
                    self.dst.store(y, at, v);
                }
            });
        });
    }
}

struct Iota {
    dst: View,
    start: f64,
    step: f64,
}

/// `iota`.
pub fn iota(o: &Op<'_>, _: usize) -> Prepared {
    arity(o, 1..=1)?;
    let p = o.params::<op::IotaParams>()?;
    flags(o, p.flags, 0)?;
    let k = Iota {
        dst: output(o, 0, ALL)?,
        start: p.start,
        step: p.step,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Iota {
    unsafe fn run(&self, l: &Launch<'_>) {
        let y = Ptr(l.operands[0]);
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            for i in start..start + len {
                let v = Value::Float(self.start + self.step * i as f64);
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe { write(self.dst.dtype, y, i, v) };
            }
        });
    }
}
