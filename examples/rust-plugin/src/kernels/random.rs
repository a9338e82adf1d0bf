//! philox, word for word as the op table has it.

use super::arity;
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{DType, OpRequest, Result, abi::op, unsupported};

/// One block of four words.
fn block(counter: u64, stream: u64, seed: u64) -> [u32; 4] {
    let mut x = [
        counter as u32,
        (counter >> 32) as u32,
        stream as u32,
        (stream >> 32) as u32,
    ];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let (a, b) = (u64::from(x[0]) * 0xD251_1F53, u64::from(x[2]) * 0xCD9E_8D57);
        x = [
            (b >> 32) as u32 ^ x[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ x[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    x
}

/// Lane `w` of a block by Box-Muller.
fn normal(x: &[u32; 4], w: usize) -> f32 {
    const U: f64 = 1.0 / 16_777_216.0;
    let r = (-2.0 * (f64::from((x[w & !1] >> 8) + 1) * U).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * (f64::from(x[w | 1] >> 8) * U)).sin_cos();
    (r * if w & 1 == 1 { sin } else { cos }) as f32
}

pub fn philox(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 1)?;
    let p = o.params::<op::PhiloxParams>()?;
    let types: &[DType] = match p.kind {
        op::philox::BITS => &[DType::U32],
        op::philox::UNIFORM | op::philox::NORMAL => FLOATS,
        k => return unsupported(format!("kind {k}")),
    };
    let y = View::output(o, 0, types, false)?;
    let (lo, hi) = (p.lo as f32, p.hi as f32);
    Ok(Box::new(move |l| {
        let d = &l.philox;
        for e in 0..y.count {
            let (w, ry) = (e as usize % 4, l.region(0));
            let x = block(d.offset.wrapping_add(e as u64 / 4), d.stream, d.seed);
            match p.kind {
                op::philox::BITS => put_int(y.dtype, &ry, e, x[w].into()),
                op::philox::UNIFORM => y.put_float(
                    &ry,
                    e,
                    lo + (hi - lo) * ((x[w] >> 8) as f32 * (1.0 / 16_777_216.0)),
                ),
                _ => y.put_float(&ry, e, lo + hi * normal(&x, w)),
            }
        }
    }))
}
