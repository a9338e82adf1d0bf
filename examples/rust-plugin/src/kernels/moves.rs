//! copy_strided, cast, fill_strided, iota, select: elements from here to there.

use super::{arity, flags};
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, DType, OpRequest, Result, abi::op, fail};

pub fn copy_strided(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (View::output(o, 0, ANY, true)?, View::new(o, 1, ANY)?);
    same_shape(&[&y, &x])?;
    same_dtype(&x, &y)?;
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        walk([&y, &x], |[to, from]| {
            copy(size(y.dtype), &ry, to, &rx, from)
        });
    }))
}

pub fn cast(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (
        View::output(o, 0, NUMBERS, false)?,
        View::new(o, 1, NUMBERS)?,
    );
    same_shape(&[&y, &x])?;
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        walk([&y, &x], |[to, from]| {
            if x.is_float() {
                put_number(y.dtype, &ry, to, x.float(&rx, from).into());
            } else {
                put_whole(y.dtype, &ry, to, int(x.dtype, &rx, from));
            }
        });
    }))
}

/// Is the number a value of the dtype?
fn holds(d: DType, x: f64) -> bool {
    let (lo, hi) = match d {
        DType::U8 => (0.0, 255.0),
        DType::U32 => (0.0, u32::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        // The largest f64 below 2^63.
        DType::I64 => (i64::MIN as f64, 9_223_372_036_854_774_784.0),
        _ => return true,
    };
    x.fract() == 0.0 && (lo..=hi).contains(&x)
}

pub fn fill_strided(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 1)?;
    let p = o.params::<op::FillParams>()?;
    flags(p.flags, 0)?;
    let y = View::output(o, 0, NUMBERS, true)?;
    if !holds(y.dtype, p.value) {
        return fail(
            Code::Invalid,
            format!("{} is not a value of {}", p.value, y.dtype.name()),
        );
    }
    Ok(Box::new(move |l| {
        let [ry] = l.regions();
        walk([&y], |[to]| put_number(y.dtype, &ry, to, p.value));
    }))
}

pub fn iota(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 1)?;
    let p = o.params::<op::IotaParams>()?;
    flags(p.flags, 0)?;
    let y = View::output(o, 0, NUMBERS, false)?;
    Ok(Box::new(move |l| {
        let [ry] = l.regions();
        for i in 0..y.count {
            put_number(y.dtype, &ry, i, p.start + p.step * i as f64);
        }
    }))
}

pub fn select(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 4)?;
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let (y, c) = (
        View::output(o, 0, ANY, false)?,
        View::new(o, 1, &[DType::U8])?,
    );
    let (a, b) = (View::new(o, 2, ANY)?, View::new(o, 3, ANY)?);
    same_shape(&[&y, &c, &a, &b])?;
    same_dtype(&a, &y)?;
    same_dtype(&b, &y)?;
    Ok(Box::new(move |l| {
        let [ry, rc, ra, rb] = l.regions();
        walk([&y, &c, &a, &b], |[to, cond, yes, no]| {
            match rc.get::<1>(cond as usize) {
                [0] => copy(size(y.dtype), &ry, to, &rb, no),
                _ => copy(size(y.dtype), &ry, to, &ra, yes),
            }
        });
    }))
}
