//! reduce, arg_reduce, cumsum, nonfinite_count.

use super::{arity, flags};
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, DType, OpRequest, Result, abi::op, fail, unsupported};

/// Splits `x` into the dims that stay and those of `axes`; `y` has x's shape with 1 where `axes` are, when it is given.
fn split(x: &View, axes: u32, y: Option<&View>) -> Result<(View, View)> {
    let rank = x.shape.len();
    let gone = |d: usize| axes >> d & 1 == 1;
    if axes >> rank != 0 {
        return fail(Code::Invalid, format!("dims {axes:#b} of rank {rank}"));
    }
    let want: Vec<i64> = (0..rank)
        .map(|d| if gone(d) { 1 } else { x.shape[d] })
        .collect();
    if let Some(y) = y.filter(|y| y.shape != want) {
        return fail(
            Code::Invalid,
            format!("the output has shape {:?}, {want:?} wanted", y.shape),
        );
    }
    Ok((x.pick(|d| !gone(d)), x.pick(gone)))
}

/// The one dim of `DimParams` as a bit.
fn dim(p: &op::DimParams) -> Result<u32> {
    flags(p.flags, 0)?;
    match p.dim {
        d @ 0..8 => Ok(1 << d),
        d => fail(Code::Invalid, format!("dim {d}")),
    }
}

pub fn reduce(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let p = o.params::<op::ReduceParams>()?;
    flags(p.flags, op::FLAG_ACCUM)?;
    if !(op::reduce::SUM..=op::reduce::PROD).contains(&p.kind) {
        return unsupported(format!("kind {}", p.kind));
    }
    let (y, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    if y.dtype != DType::F32 {
        same_dtype(&y, &x)?;
    }
    let (kept, gone) = split(&x, p.axes, Some(&y))?;
    let first = match p.kind {
        op::reduce::MAX => f64::NEG_INFINITY,
        op::reduce::MIN => f64::INFINITY,
        op::reduce::PROD => 1.0,
        _ => 0.0,
    };
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        for k in 0..kept.count {
            let (base, mut acc) = (kept.at(k), first);
            walk([&gone], |[at]| {
                let v = f64::from(x.float(&rx, base + at));
                acc = match p.kind {
                    op::reduce::SUM => acc + v,
                    op::reduce::SUMSQ => acc + v * v,
                    op::reduce::PROD => acc * v,
                    op::reduce::MAX if acc > v || acc.is_nan() => acc,
                    op::reduce::MIN if acc < v || acc.is_nan() => acc,
                    _ => v,
                };
            });
            if p.flags & op::FLAG_ACCUM != 0 {
                acc += f64::from(y.float(&ry, k));
            }
            y.put_float(&ry, k, acc as f32);
        }
    }))
}

/// The first wins; NaN is the largest.
pub fn arg_reduce(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let p = o.params::<op::DimParams>()?;
    let axes = dim(&p)?;
    if p.kind > 1 {
        return unsupported(format!("kind {}", p.kind));
    }
    let (y, x) = (View::output(o, 0, INDEX, false)?, View::new(o, 1, FLOATS)?);
    let (kept, gone) = split(&x, axes, Some(&y))?;
    if gone.count == 0 && y.count > 0 {
        return fail(Code::Invalid, "the dim is empty");
    }
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        for k in 0..kept.count {
            let (mut best, mut at) = (f32::NAN, 0);
            for i in 0..gone.count {
                let v = x.float(&rx, kept.at(k) + gone.at(i));
                let wins = match p.kind {
                    0 => v > best || (v.is_nan() && !best.is_nan()),
                    _ => v < best || (best.is_nan() && !v.is_nan()),
                };
                if i == 0 || wins {
                    (best, at) = (v, i);
                }
            }
            put_int(y.dtype, &ry, k, at);
        }
    }))
}

pub fn cumsum(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    let p = o.params::<op::DimParams>()?;
    let axes = dim(&p)?;
    if p.kind != 0 {
        return unsupported(format!("kind {}", p.kind));
    }
    let types = [FLOATS, INDEX].concat();
    let (y, x) = (View::output(o, 0, &types, false)?, View::new(o, 1, &types)?);
    same_shape(&[&y, &x])?;
    same_dtype(&x, &y)?;
    let (lines, line) = split(&x, axes, None)?;
    let (lines_y, line_y) = split(&y, axes, None)?;
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        for k in 0..lines.count {
            let (mut f, mut n) = (0f64, 0i64);
            for i in 0..line.count {
                let (from, to) = (lines.at(k) + line.at(i), lines_y.at(k) + line_y.at(i));
                if x.is_float() {
                    f += f64::from(x.float(&rx, from));
                    y.put_float(&ry, to, f as f32);
                } else {
                    n = n.wrapping_add(int(x.dtype, &rx, from));
                    put_int(y.dtype, &ry, to, n);
                }
            }
        }
    }))
}

pub fn nonfinite_count(o: &OpRequest<'_>) -> Result<Kernel> {
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let y = View::output(o, 0, &[DType::U32], false)?;
    let sources = (1..o.operands.len())
        .map(|i| View::new(o, i, FLOATS))
        .collect::<Result<Vec<_>>>()?;
    if y.count == 0 {
        return fail(Code::Invalid, "the count has no element");
    }
    Ok(Box::new(move |l| {
        let ry = l.region(0);
        let mut n = int(DType::U32, &ry, 0);
        for (i, x) in sources.iter().enumerate().filter(|s| s.1.count > 0) {
            let rx = l.region(i + 1);
            walk([x], |[at]| n += i64::from(!x.float(&rx, at).is_finite()));
        }
        put_int(DType::U32, &ry, 0, n);
    }))
}
