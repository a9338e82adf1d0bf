//! rope: rotates pairs of the first R elements of each head by the angles of its position.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::clones;
use crossweave_plugin::op::Rope as Request;
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

struct Rope(Request);

/// `rope`.
pub fn rope(o: &OpRequest<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    Ok((Box::new(Rope(Request::read(o)?)), plan(o, 0)))
}

impl Kernel for Rope {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, x, cos, sin] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        let [b, t, h, d] = [0, 1, 2, 3].map(|i| self.0.y.shape[i]);
        if self.0.y.total == 0 {
            return;
        }
        let half = self.0.cos.shape[1];
        let sign = if self.0.inverse { -1.0 } else { 1.0 };
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
                        self.0.cos.dtype,
                        cos,
                        it * self.0.cos.stride[0],
                        self.0.cos.stride[1],
                        &mut c,
                    );
                    load_row(
                        self.0.sin.dtype,
                        sin,
                        it * self.0.sin.stride[0],
                        self.0.sin.stride[1],
                        &mut s,
                    );
                    for ih in 0..h {
                        let at = |v: &View| ib * v.stride[0] + it * v.stride[1] + ih * v.stride[2];
                        load_row(self.0.x.dtype, x, at(&self.0.x), 1, &mut head);
                        if self.0.interleaved {
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
                        store_row(self.0.y.dtype, y, at(&self.0.y), 1, &head);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use crossweave_abi::op;
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
