//! unary, binary, compare, axpby, clamp.

use super::{arity, flags};
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{DType, OpRequest, Result, abi::op, unsupported};

/// The error function to f64's precision: std has none. By its series near 0, by the continued fraction of its complement beyond.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a > 6.0 {
        return x.signum();
    }
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while f64::abs(term) > f64::abs(sum) * 1e-17 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let tail = (1..=60)
        .rev()
        .fold(0.0, |f, k| f64::from(k) / 2.0 / (a + f));
    let rest = (-a * a).exp() / (a + tail) * std::f64::consts::FRAC_2_SQRT_PI / 2.0;
    (1.0 - rest).copysign(x)
}

pub fn unary(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let f: fn(f64) -> f64 = match o.params::<op::KindParams>()?.kind {
        op::unary::NEG => |x| -x,
        op::unary::ABS => f64::abs,
        op::unary::EXP => f64::exp,
        op::unary::LOG => f64::ln,
        op::unary::SQRT => f64::sqrt,
        op::unary::RSQRT => |x| 1.0 / x.sqrt(),
        op::unary::TANH => f64::tanh,
        op::unary::ERF => erf,
        op::unary::SIGMOID => |x| 1.0 / (1.0 + (-x).exp()),
        op::unary::SIN => f64::sin,
        op::unary::COS => f64::cos,
        op::unary::FLOOR => f64::floor,
        k => return unsupported(format!("kind {k}")),
    };
    let (y, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    same_shape(&[&y, &x])?;
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        walk([&y, &x], |[to, from]| {
            y.put_float(&ry, to, f(x.float(&rx, from).into()) as f32)
        });
    }))
}

/// The function of two floats; NaN of either side comes through.
fn two(kind: u32, a: f32, b: f32) -> f32 {
    match kind {
        op::binary::ADD => a + b,
        op::binary::SUB => a - b,
        op::binary::MUL => a * b,
        op::binary::DIV => a / b,
        op::binary::MAX if a > b || a.is_nan() => a,
        op::binary::MIN if a < b || a.is_nan() => a,
        op::binary::MAX | op::binary::MIN => b,
        _ => f64::from(a).powf(b.into()) as f32,
    }
}

/// The function of two integers; wraps in the storage's width, x / 0 = 0, the fraction of a power is cut off.
fn two_ints(kind: u32, a: i64, b: i64) -> i64 {
    match kind {
        op::binary::ADD => a.wrapping_add(b),
        op::binary::SUB => a.wrapping_sub(b),
        op::binary::MUL => a.wrapping_mul(b),
        op::binary::DIV if b == 0 => 0,
        op::binary::DIV => a.wrapping_div(b),
        op::binary::MAX => a.max(b),
        op::binary::MIN => a.min(b),
        _ if b < 0 && a != 1 && a != -1 => 0,
        _ => {
            let (mut r, mut a, mut e) = (1i64, a, if b < 0 { b as u64 & 1 } else { b as u64 });
            while e > 0 {
                if e & 1 == 1 {
                    r = r.wrapping_mul(a);
                }
                a = a.wrapping_mul(a);
                e >>= 1;
            }
            r
        }
    }
}

pub fn binary(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    if !(op::binary::ADD..=op::binary::POW).contains(&kind) {
        return unsupported(format!("kind {kind}"));
    }
    let y = View::output(o, 0, NUMBERS, false)?;
    let (a, b) = (View::new(o, 1, NUMBERS)?, View::new(o, 2, NUMBERS)?);
    same_shape(&[&y, &a, &b])?;
    same_dtype(&a, &y)?;
    same_dtype(&b, &y)?;
    Ok(Box::new(move |l| {
        let [ry, ra, rb] = l.regions();
        walk([&y, &a, &b], |[to, i, j]| {
            if y.is_float() {
                y.put_float(&ry, to, two(kind, a.float(&ra, i), b.float(&rb, j)));
            } else {
                put_int(
                    y.dtype,
                    &ry,
                    to,
                    two_ints(kind, int(a.dtype, &ra, i), int(b.dtype, &rb, j)),
                );
            }
        });
    }))
}

fn relation<T: PartialOrd>(kind: u32, a: T, b: T) -> bool {
    match kind {
        op::compare::EQ => a == b,
        op::compare::NE => a != b,
        op::compare::LT => a < b,
        op::compare::LE => a <= b,
        op::compare::GT => a > b,
        _ => a >= b,
    }
}

pub fn compare(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    if !(op::compare::EQ..=op::compare::GE).contains(&kind) {
        return unsupported(format!("kind {kind}"));
    }
    let y = View::output(o, 0, &[DType::U8], false)?;
    let (a, b) = (View::new(o, 1, NUMBERS)?, View::new(o, 2, NUMBERS)?);
    same_shape(&[&y, &a, &b])?;
    same_dtype(&b, &a)?;
    Ok(Box::new(move |l| {
        let [ry, ra, rb] = l.regions();
        walk([&y, &a, &b], |[to, i, j]| {
            let holds = if a.is_float() {
                relation(kind, a.float(&ra, i), b.float(&rb, j))
            } else {
                relation(kind, int(a.dtype, &ra, i), int(b.dtype, &rb, j))
            };
            ry.put(to as usize, [holds as u8]);
        });
    }))
}

pub fn axpby(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let p = o.params::<op::AxpbyParams>()?;
    flags(p.flags, 0)?;
    let (y, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    same_shape(&[&y, &x])?;
    let (alpha, beta) = (p.alpha as f32, p.beta as f32);
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        walk([&y, &x], |[to, from]| {
            let ax = alpha * x.float(&rx, from);
            // beta 0 does not read y, which may hold anything.
            let sum = if beta == 0.0 {
                ax
            } else {
                ax + beta * y.float(&ry, to)
            };
            y.put_float(&ry, to, sum);
        });
    }))
}

pub fn clamp(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let p = o.params::<op::ClampParams>()?;
    flags(p.flags, 0)?;
    let (y, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    same_shape(&[&y, &x])?;
    let (lo, hi) = (p.lo as f32, p.hi as f32);
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        walk([&y, &x], |[to, from]| {
            // NaN compares false and stays.
            let v = x.float(&rx, from);
            let v = if v < lo { lo } else { v };
            y.put_float(&ry, to, if v > hi { hi } else { v });
        });
    }))
}
