//! rope: rotates pairs of the first R elements of each head by the angles of its position.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Plan, Result};

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
pub fn rope(o: &OpRequest<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::DType;

    #[test]
    fn rotations_partial_strided_in_place_and_back() {
        let mut rng = Rng(9);
        for t in STORAGES {
            for ([b, s, h, d], r) in [
                ([1, 1, 1, 2], 2),
                ([2, 5, 3, 8], 8),
                ([2, 33, 2, 64], 64),
                ([1, 7, 2, 33], 16),
                ([0, 3, 1, 4], 4),
            ] {
                for interleaved in [false, true] {
                    let f = if interleaved { op::FLAG_INTERLEAVED } else { 0 };
                    let n = b * s * h * d;
                    let v = rng.floats(n, 1.0);
                    // [B, T, H, D] as a slice of a fused projection of three times the width.
                    let stride = [s * 3 * h * d, 3 * h * d, d, 1];
                    let x = Tensor::strided(t, &[b, s, h, d], &stride, &v);
                    let xv = x.values();
                    let angle: Vec<f64> = rng.floats(s * r / 2, 3.0);
                    let cos = Tensor::new(
                        DType::F32,
                        &[s, r / 2],
                        &angle.iter().map(|a| a.cos()).collect::<Vec<_>>(),
                    );
                    let sin = Tensor::new(
                        DType::F32,
                        &[s, r / 2],
                        &angle.iter().map(|a| a.sin()).collect::<Vec<_>>(),
                    );
                    let mut want = xv.clone();
                    for row in 0..b * s * h {
                        let it = row / h % s;
                        for i in 0..r / 2 {
                            let (p, q) = if interleaved {
                                (2 * i, 2 * i + 1)
                            } else {
                                (i, i + r / 2)
                            };
                            let (c, sn) =
                                (angle[it * r / 2 + i].cos(), angle[it * r / 2 + i].sin());
                            let (a, bb) = (xv[row * d + p], xv[row * d + q]);
                            want[row * d + p] = a * c - bb * sn;
                            want[row * d + q] = bb * c + a * sn;
                        }
                    }
                    let p = op::RopeParams {
                        flags: f,
                        ..Default::default()
                    };
                    let mut ops = [x.clone(), x.clone(), cos.clone(), sin.clone()];
                    run_aliased(op::ROPE, p.as_bytes(), &[], &mut ops, &[(1, 0)]);
                    close("rope", &ops[0].values(), &want, |i| {
                        rounding(t, want[i], 4.0) + 4e-7
                    });
                    // Backward undoes it.
                    let p = op::RopeParams {
                        flags: f | op::FLAG_INVERSE,
                        ..Default::default()
                    };
                    let y = ops[0].clone();
                    let mut ops = [Tensor::poison(t, &[b, s, h, d]), y, cos, sin];
                    run(op::ROPE, p.as_bytes(), &[], &mut ops);
                    close("inverse", &ops[0].values(), &xv, |_| {
                        3.0 * unit_of(t) + 1e-6
                    });
                }
            }
        }
    }
}
