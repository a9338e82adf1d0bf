//! matmul: B as dense f32, then row by row.

use super::flags;
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, DType, OpRequest, Result, abi::op, fail, unsupported};

/// `[M, N]` as `[B, M, N]`.
fn batched(mut v: View, batch: i64) -> Result<View> {
    match v.shape.len() {
        3 => {}
        2 => {
            v.shape.insert(0, batch);
            v.stride.insert(0, 0);
        }
        r => return unsupported(format!("rank {r}")),
    }
    Ok(v)
}

pub fn matmul(o: &OpRequest<'_>) -> Result<Kernel> {
    if !(3..=4).contains(&o.operands.len()) {
        return fail(
            Code::Invalid,
            format!("{} operands, 3 or 4 wanted", o.operands.len()),
        );
    }
    let p = o.params::<op::MatmulParams>()?;
    flags(p.flags, op::FLAG_ACCUM)?;
    if p.epilogue != 0 || (p.acc_dtype != 0 && p.acc_dtype != DType::F32.id()) {
        return unsupported("an epilogue, or accumulation not in f32");
    }
    let c = batched(View::output(o, 0, FLOATS, true)?, 1)?;
    let a = batched(View::new(o, 1, FLOATS)?, c.shape[0])?;
    let b = batched(View::new(o, 2, FLOATS)?, c.shape[0])?;
    let bias = o.layout(3).map(|_| View::new(o, 3, FLOATS)).transpose()?;
    same_dtype(&b, &a)?;
    if c.dtype != DType::F32 {
        same_dtype(&c, &a)?;
    }
    let (batch, m, n, k) = (c.shape[0], c.shape[1], c.shape[2], a.shape[2]);
    if (n > 1 && c.stride[2] != 1) || (m > 1 && c.stride[1] < n) {
        return unsupported("rows of C are strided or overlap");
    }
    let fits = a.shape == [batch, m, k] && b.shape == [batch, k, n];
    if !fits || bias.as_ref().is_some_and(|v| v.shape != [n]) {
        return fail(
            Code::Invalid,
            format!(
                "C {:?}, A {:?}, B {:?} do not fit",
                c.shape, a.shape, b.shape
            ),
        );
    }
    let alpha = if p.alpha == 0.0 { 1.0 } else { p.alpha as f32 };
    let accumulate = p.flags & op::FLAG_ACCUM != 0;
    Ok(Box::new(move |l| {
        if c.count == 0 {
            return;
        }
        let rc = l.region(0);
        let (mut dense, mut sum) = (vec![0f32; (k * n) as usize], vec![0f32; n as usize]);
        for batch in 0..batch {
            for (t, d) in dense.iter_mut().enumerate() {
                *d = b.float(&l.region(2), b.at(batch * k * n + t as i64));
            }
            for i in 0..m {
                sum.fill(0.0);
                for (t, row) in dense.chunks_exact(n as usize).enumerate() {
                    let x = a.float(&l.region(1), a.at((batch * m + i) * k + t as i64));
                    for (s, y) in sum.iter_mut().zip(row) {
                        *s += x * y;
                    }
                }
                for (j, s) in sum.iter().enumerate() {
                    let at = c.at((batch * m + i) * n + j as i64);
                    let mut y = s * alpha;
                    if let Some(v) = &bias {
                        y += v.float(&l.region(3), v.at(j as i64));
                    }
                    if accumulate {
                        y += c.float(&rc, at);
                    }
                    c.put_float(&rc, at, y);
                }
            }
        }
    }))
}
