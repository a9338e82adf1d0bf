//! cast and iota: values from one dtype to another with exactly one rounding.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::convert;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Plan, Result};

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
pub fn cast(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let eight = |i| o.layout(i).is_some_and(|l| l.dtype == DType::F8E4M3.id());
    if eight(0) != eight(1) {
        return super::fp8::cast(o);
    }
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
pub fn iota(o: &OpRequest<'_>, _: usize) -> Prepared {
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// What a value becomes, by the slow road: search of the neighbours in f64.
    fn nearest_16(t: DType, x: f64) -> f64 {
        let val = |b: u16| match t {
            DType::Bf16 => half::bf16::from_bits(b).to_f64(),
            _ => half::f16::from_bits(b).to_f64(),
        };
        let inf: u16 = if t == DType::Bf16 { 0x7f80 } else { 0x7c00 };
        let a = x.abs();
        // The step beyond the largest finite value decides overflow.
        let top = 2.0 * val(inf - 1) - val(inf - 2);
        let of = |b: u16| if b == inf { top } else { val(b) };
        let (mut lo, mut hi) = (0u16, inf);
        while hi - lo > 1 {
            let mid = lo + (hi - lo) / 2;
            if of(mid) <= a { lo = mid } else { hi = mid }
        }
        if a >= of(inf) {
            return f64::INFINITY.copysign(x);
        }
        let (dl, dh) = (a - of(lo), of(hi) - a);
        let b = if dl < dh || (dl == dh && lo % 2 == 0) {
            lo
        } else {
            hi
        };
        val(b).copysign(x)
    }

    fn model(from: DType, to: DType, x: f64) -> f64 {
        if from.is_float() || x.abs() < 9e15 {
            match to {
                DType::F64 => x,
                DType::F32 => x as f32 as f64,
                DType::Bf16 | DType::F16 if x.is_finite() => nearest_16(to, x),
                DType::Bf16 | DType::F16 => x,
                DType::I8 if from.is_float() => x as i8 as f64,
                DType::U8 if from.is_float() => x as u8 as f64,
                DType::I32 if from.is_float() => x as i32 as f64,
                DType::U32 if from.is_float() => x as u32 as f64,
                DType::I64 if from.is_float() => x as i64 as f64,
                DType::U64 if from.is_float() => x as u64 as f64,
                DType::I8 => x as i64 as i8 as f64,
                DType::U8 => x as i64 as u8 as f64,
                DType::I32 => x as i64 as i32 as f64,
                DType::U32 => x as i64 as u32 as f64,
                DType::I64 => x as i64 as f64,
                _ => x as i64 as u64 as f64,
            }
        } else {
            unreachable!("integers of the test are small")
        }
    }

    #[test]
    fn every_pair_of_dtypes() {
        let mut rng = Rng(6);
        for from in ALL {
            for to in ALL {
                for n in [0, 1, 7, 33, 1000] {
                    let mut v: Vec<f64> = (0..n)
                        .map(|i| {
                            if i % 3 == 0 {
                                rng.unit() * 1e5
                            } else {
                                rng.unit() * 100.0
                            }
                        })
                        .collect();
                    if n > 10 && from.is_float() {
                        v[1] = f64::NAN;
                        v[2] = f64::INFINITY;
                        v[3] = -f64::INFINITY;
                        v[4] = 1e-7;
                        v[5] = -0.0;
                        v[6] = 65520.0;
                        v[7] = 3e38;
                    }
                    let src = Tensor::strided(*from, &[n], &[2], &v);
                    let want: Vec<f64> =
                        src.values().iter().map(|x| model(*from, *to, *x)).collect();
                    let mut ops = [Tensor::poison(*to, &[n]), src];
                    run(op::CAST, op::NoParams::default().as_bytes(), &[], &mut ops);
                    close(
                        &format!("{from:?} to {to:?}"),
                        &ops[0].values(),
                        &want,
                        |_| 0.0,
                    );
                }
            }
        }
    }

    #[test]
    fn wide_sources_round_once() {
        // Just above a tie of bf16 by less than f32 or f64 sees: rounding twice would go down.
        let up = 1.0 + 1.0 / 256.0 + 1e-12;
        let mut ops = [
            Tensor::poison(DType::Bf16, &[1]),
            Tensor::new(DType::F64, &[1], &[up]),
        ];
        run(op::CAST, op::NoParams::default().as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values(), [1.0 + 1.0 / 128.0]);
        let i = (1i64 << 62) + (1 << 54) + 1;
        let mut src = Tensor::poison(DType::I64, &[1]);
        src.data[0] = i as u64;
        let mut ops = [Tensor::poison(DType::Bf16, &[1]), src];
        run(op::CAST, op::NoParams::default().as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values(), [2f64.powi(62) + 2f64.powi(55)]);
    }

    #[test]
    fn iota_counts() {
        for t in ALL {
            for n in [0, 1, 7, 33, 100] {
                let p = op::IotaParams {
                    start: 3.0,
                    step: 1.0,
                    ..Default::default()
                };
                let mut ops = [Tensor::poison(*t, &[n])];
                run(op::IOTA, p.as_bytes(), &[], &mut ops);
                let want: Vec<f64> = (0..n).map(|i| 3.0 + i as f64).collect();
                close("iota", &ops[0].values(), &want, |_| 0.0);
            }
        }
        let p = op::IotaParams {
            start: 1.0,
            step: -0.25,
            ..Default::default()
        };
        let mut ops = [Tensor::poison(DType::F32, &[40_003])];
        run(op::IOTA, p.as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values()[40_002], 1.0 - 0.25 * 40_002.0);
    }
}
