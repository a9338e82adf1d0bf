//! A fused op, as yours will be added: a check, the loop that becomes a kernel, a line in the table of `ops.rs`, and its test below. Softmax in three
//! passes over a row, where the core would launch five ops.

use super::{arity, flags};
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, OpRequest, Result, abi::op, fail};

pub fn softmax_fwd(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    same_shape(&[&y, &x])?;
    same_dtype(&y, &x)?;
    let Some(n) = y.shape.last().copied() else {
        return fail(Code::Invalid, "there is no last dim");
    };
    Ok(Box::new(move |l| {
        let [ry, rx] = l.regions();
        let rows = if y.count > 0 { y.count / n } else { 0 };
        for row in 0..rows {
            let value = |i: i64| f64::from(x.float(&rx, x.at(row * n + i)));
            // A NaN stays: nothing is larger.
            let most = (0..n).map(value).fold(f64::NEG_INFINITY, |most, v| {
                if v > most || v.is_nan() { v } else { most }
            });
            let sum: f64 = (0..n).map(|i| (value(i) - most).exp()).sum();
            for i in 0..n {
                y.put_float(&ry, row * n + i, ((value(i) - most).exp() / sum) as f32);
            }
        }
    }))
}

/// The op against its formula, through the back end's own functions: `cargo test`. The kit asks far more (op.softmax_fwd.*); this is for a debugger,
/// and a place for what only you know of your kernel.
#[cfg(test)]
mod tests {
    use crate::Softdev;
    use crate::memory::region;
    use crate::ops::SoftdevOps;
    use crossweave_plugin::abi::{Layout, op};
    use crossweave_plugin::{Backend, DType, Dyn, Host, MemKind, OpRequest, Ops, Span};

    #[test]
    fn softmax_is_its_formula() {
        let (rows, width) = (5, 300);
        let n = rows * width;
        let b = Softdev::init(Host::none()).unwrap();
        let d = b.open(0).unwrap();
        let s = b.stream(&d, 0).unwrap();
        let [x, y] = [(); 2].map(|()| b.alloc(&d, MemKind::Device, 4 * n, 0).unwrap());
        let span = |mem| Span {
            mem,
            offset: 0,
            bytes: 4 * n,
        };
        let given: Vec<f32> = (0..n)
            .map(|i| (i as f32).sin() * 20.0 + (i / width) as f32 * 100.0)
            .collect();
        let into = region(&span(&x), "x").unwrap();
        for (i, v) in given.iter().enumerate() {
            into.put(4 * i, v.to_le_bytes());
        }

        let layouts = [Layout::contiguous(DType::F32, &[rows, width]); 2];
        let request = OpRequest::new(op::SOFTMAX_FWD, &layouts, &[], 0);
        let (prepared, _) = SoftdevOps::prepare(&b, &d, &request).unwrap();
        let operands = [Some(span(&y)), Some(span(&x))];
        SoftdevOps::launch(&b, &prepared, &s, &operands, None, Dyn(&[])).unwrap();
        b.stream_sync(&s, None).unwrap();

        let out = region(&span(&y), "y").unwrap();
        for (r, row) in given.chunks(width as usize).enumerate() {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f64> = row.iter().map(|v| f64::from(v - most).exp()).collect();
            let sum: f64 = e.iter().sum();
            for (i, e) in e.iter().enumerate() {
                let at = 4 * (r * width as usize + i);
                let got = f64::from(f32::from_le_bytes(out.get(at)));
                let close = (got - e / sum).abs() <= 1e-5 * e / sum + 1e-37;
                assert!(
                    close,
                    "row {r}, element {i}: {got}, and {} is right",
                    e / sum
                );
            }
        }
    }
}
