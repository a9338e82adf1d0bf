//! rope: rotates pairs of the first R elements of each head by the angles of its position.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::{Op, Plan, Result};

clones! {
    fn rotate(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32], sign: f32) {
        for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
            let (x, y, s) = (*a, *b, sign * *s);
            *a = x * *c - y * s;
            *b = y * *c + x * s;
        }
    }
}

struct Rope {
    y: View,
    x: View,
    cos: View,
    sin: View,
    inverse: bool,
    interleaved: bool,
}

/// `rope`.
pub fn rope(o: &Op<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(o, 4..=4)?;
    let f = o.params::<op::RopeParams>()?.flags;
    flags(o, f, op::FLAG_INVERSE | op::FLAG_INTERLEAVED)?;
    let (y, x) = (output_strided(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    let (cos, sin) = (input(o, 2, F32)?, input(o, 3, F32)?);
    if y.shape.len() != 4 {
        return invalid(
            o,
            format!("x has rank {}, [B, T, H, D] wanted", y.shape.len()),
        );
    }
    shape(o, 1, &x, &y.shape)?;
    shape(o, 3, &sin, &cos.shape)?;
    let (t, d) = (y.shape[1], y.shape[3]);
    if cos.shape.len() != 2 || cos.shape[0] != t || cos.shape[1] * 2 > d {
        return invalid(
            o,
            format!(
                "cos, sin have shape {:?}, [{t}, R/2] with R <= {d} wanted",
                cos.shape
            ),
        );
    }
    for (v, who) in [(&x, "x"), (&y, "y")] {
        if d > 1 && v.stride[3] != 1 {
            return refuse(o, format!("{who} needs unit stride in D"));
        }
    }
    let k = Rope {
        y,
        x,
        cos,
        sin,
        inverse: f & op::FLAG_INVERSE != 0,
        interleaved: f & op::FLAG_INTERLEAVED != 0,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Rope {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, x, cos, sin] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        let [b, t, h, d] = [0, 1, 2, 3].map(|i| self.y.shape[i]);
        if self.y.total == 0 {
            return;
        }
        let half = self.cos.shape[1];
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let rows = (CHUNK / (h * d)).max(1);
        chunks(l.team, b * t, rows, &|start, len| {
            let mut head = vec![0f32; d];
            let (mut lo, mut hi) = (vec![0f32; half], vec![0f32; half]);
            let (mut c, mut s) = (vec![0f32; half], vec![0f32; half]);
            for r in start..start + len {
                let (ib, it) = (r / t, r % t);
                // SAFETY: indices stay below the shape; a head is read whole before it is written, by one task.
                unsafe {
                    load_row(
                        self.cos.dtype,
                        cos,
                        it * self.cos.stride[0],
                        self.cos.stride[1],
                        &mut c,
                    );
                    load_row(
                        self.sin.dtype,
                        sin,
                        it * self.sin.stride[0],
                        self.sin.stride[1],
                        &mut s,
                    );
                    for ih in 0..h {
                        let at = |v: &View| ib * v.stride[0] + it * v.stride[1] + ih * v.stride[2];
                        load_row(self.x.dtype, x, at(&self.x), 1, &mut head);
                        if self.interleaved {
                            for i in 0..half {
                                (lo[i], hi[i]) = (head[2 * i], head[2 * i + 1]);
                            }
                            rotate(&mut lo, &mut hi, &c, &s, sign);
                            for i in 0..half {
                                (head[2 * i], head[2 * i + 1]) = (lo[i], hi[i]);
                            }
                        } else {
                            let (a, rest) = head.split_at_mut(half);
                            rotate(a, &mut rest[..half], &c, &s, sign);
                        }
                        store_row(self.y.dtype, y, at(&self.y), 1, &head);
                    }
                }
            }
        });
    }
}
