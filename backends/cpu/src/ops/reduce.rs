//! reduce over chosen dims: f64 partial sums of fixed pieces, added in fixed order.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, sum};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Plan, Result};

clones! {
    fn add(x: &[f32], acc: &mut [f64]) { for (a, x) in acc.iter_mut().zip(x) { *a += *x as f64; } }
    fn add_squares(x: &[f32], acc: &mut [f64]) { for (a, x) in acc.iter_mut().zip(x) { *a += *x as f64 * *x as f64; } }
    fn times(x: &[f32], acc: &mut [f64]) { for (a, x) in acc.iter_mut().zip(x) { *a *= *x as f64; } }
}

/// One step of a maximum or minimum that lets NaN through.
fn better(kind: u32, a: f64, b: f64) -> f64 {
    let first = if kind == op::reduce::MAX {
        a > b
    } else {
        a < b
    };
    if first || a.is_nan() { a } else { b }
}

/// The value of nothing.
fn identity(kind: u32) -> f64 {
    match kind {
        op::reduce::MAX => f64::NEG_INFINITY,
        op::reduce::MIN => f64::INFINITY,
        op::reduce::PROD => 1.0,
        _ => 0.0,
    }
}

/// Joins two partial results.
fn join(kind: u32, a: f64, b: f64) -> f64 {
    match kind {
        op::reduce::MAX | op::reduce::MIN => better(kind, a, b),
        op::reduce::PROD => a * b,
        _ => a + b,
    }
}

/// Reduces a block to one value.
fn whole(kind: u32, x: &[f32]) -> f64 {
    match kind {
        op::reduce::SUM => sum::sum(x),
        op::reduce::SUMSQ => sum::sumsq(x),
        op::reduce::MAX => sum::max(x) as f64,
        op::reduce::MIN => sum::min(x) as f64,
        _ => sum::product(x),
    }
}

/// Joins a block into as many running values.
fn across(kind: u32, x: &[f32], acc: &mut [f64]) {
    match kind {
        op::reduce::SUM => add(x, acc),
        op::reduce::SUMSQ => add_squares(x, acc),
        op::reduce::PROD => times(x, acc),
        _ => {
            for (a, x) in acc.iter_mut().zip(x) {
                *a = better(kind, *a, *x as f64);
            }
        }
    }
}

struct Reduce {
    kind: u32,
    accumulate: bool,
    dst: View,
    /// The dims that stay, the dims that go.
    kept: View,
    gone: View,
    /// Do neighbouring elements lie in the dims that go?
    along: bool,
    /// Elements of the gone dims in one partial result.
    piece: usize,
}

/// `reduce`.
pub fn reduce(o: &OpRequest<'_>, _: usize) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(o, 2..=2)?;
    let p = o.params::<op::ReduceParams>()?;
    flags(o, p.flags, op::FLAG_ACCUM)?;
    if !(op::reduce::SUM..=op::reduce::PROD).contains(&p.kind) {
        return refuse(o, format!("kind {} is unknown", p.kind));
    }
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if dst.dtype != src.dtype && dst.dtype != crossweave_plugin::DType::F32 {
        return refuse(
            o,
            format!("dst {} over src {}", dst.dtype.name(), src.dtype.name()),
        );
    }
    let rank = src.shape.len();
    if rank < 32 && p.axes >> rank != 0 {
        return invalid(o, format!("axes {:#b} beyond rank {rank}", p.axes));
    }
    let gone_dims: Vec<usize> = (0..rank).filter(|d| p.axes >> d & 1 == 1).collect();
    let kept_dims: Vec<usize> = (0..rank).filter(|d| p.axes >> d & 1 == 0).collect();
    let want: Vec<usize> = (0..rank)
        .map(|d| {
            if p.axes >> d & 1 == 1 {
                1
            } else {
                src.shape[d]
            }
        })
        .collect();
    shape(o, 0, &dst, &want)?;
    let (kept, gone) = (src.pick(&kept_dims), src.pick(&gone_dims));
    let step = |v: &View| v.dims.iter().filter(|d| d.1 > 0).map(|d| d.1).min();
    let along = match (step(&kept), step(&gone)) {
        (Some(k), Some(g)) => g < k,
        (None, _) => true,
        (_, None) => false,
    };
    // Enough pieces for a large team when few values stay; pieces stay large enough to pay for themselves.
    let piece = if kept.total >= 4 * CHUNK {
        gone.total.max(1)
    } else if along {
        (gone.total.div_ceil(256)).max(4 * CHUNK)
    } else {
        gone.total
            .div_ceil(256)
            .max((CHUNK / kept.total.max(1)).max(64))
    };
    let parts = gone.total.div_ceil(piece);
    let bytes = if parts > 1 { parts * kept.total * 8 } else { 0 };
    let k = Reduce {
        kind: p.kind,
        accumulate: p.flags & op::FLAG_ACCUM != 0,
        dst,
        kept,
        gone,
        along,
        piece,
    };
    Ok((Box::new(k), plan(o, bytes as u64)))
}

impl Reduce {
    /// Writes `acc` to kept elements `at..`.
    ///
    /// # Safety
    /// `y` is the output; the elements are in range and ours.
    unsafe fn finish(&self, y: Ptr, at: usize, acc: &[f64]) {
        let mut out = [0f32; BLOCK];
        let out = &mut out[..acc.len()];
        // SAFETY: forwarded.
        unsafe {
            if self.accumulate {
                self.dst.load(y, at, out);
                for (o, a) in out.iter_mut().zip(acc) {
                    *o = (*o as f64 + a) as f32;
                }
            } else {
                for (o, a) in out.iter_mut().zip(acc) {
                    *o = *a as f32;
                }
            }
            self.dst.store(y, at, out);
        }
    }

    /// Partial results of kept elements `at..at + acc.len()` over gone elements `from..from + len`.
    ///
    /// # Safety
    /// `x` is the input, all in range.
    unsafe fn partial(&self, x: Ptr, at: usize, from: usize, len: usize, acc: &mut [f64]) {
        let mut buf = [0f32; BLOCK];
        acc.fill(identity(self.kind));
        let elem = self.kept.elem();
        if self.along {
            let mut i = 0;
            self.kept.rows(at, acc.len(), |off, stride, n| {
                for j in 0..n {
                    let a = &mut acc[i];
                    // SAFETY: forwarded.
                    let base = unsafe { Ptr(x.at::<u8>((off + j * stride) * elem)) };
                    blocks(from, len, |g, m| {
                        // SAFETY: forwarded.
                        let v = unsafe { self.gone.get(base, g, m, &mut buf) };
                        *a = join(self.kind, *a, whole(self.kind, v));
                    });
                    i += 1;
                }
            });
        } else {
            self.gone.rows(from, len, |off, stride, n| {
                for j in 0..n {
                    // SAFETY: forwarded.
                    unsafe {
                        let base = Ptr(x.at::<u8>((off + j * stride) * elem));
                        across(self.kind, self.kept.get(base, at, acc.len(), &mut buf), acc);
                    }
                }
            });
        }
    }
}

impl Kernel for Reduce {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x, part) = (Ptr(l.operands[0]), Ptr(l.operands[1]), Ptr(l.workspace));
        let (kept, gone) = (self.kept.total, self.gone.total);
        if kept == 0 {
            return;
        }
        let parts = gone.div_ceil(self.piece).max(1);
        // Kept elements of a task: a block, fewer when each of them is much work.
        let width = if self.along {
            (CHUNK / gone.clamp(1, self.piece)).clamp(1, BLOCK)
        } else {
            BLOCK
        };
        let cuts = kept.div_ceil(width);
        l.team.run(cuts * parts, &|t| {
            let (at, p) = (t / parts * width, t % parts);
            let n = width.min(kept - at);
            let from = p * self.piece;
            let len = self.piece.min(gone - from);
            let mut acc = [0f64; BLOCK];
            let acc = &mut acc[..n];
            // SAFETY: in range by the split; each task writes its own outputs or its own slots of the workspace.
            unsafe {
                self.partial(x, at, from, len, acc);
                if parts == 1 {
                    self.finish(y, at, acc);
                } else {
                    part.slice_mut::<f64>(p * kept + at, n).copy_from_slice(acc);
                }
            }
        });
        if parts == 1 {
            return;
        }
        chunks(l.team, kept, BLOCK, &|at, n| {
            let mut acc = [0f64; BLOCK];
            let acc = &mut acc[..n];
            acc.fill(identity(self.kind));
            // SAFETY: the partial results are finished; outputs belong to this task.
            unsafe {
                for p in 0..parts {
                    for (a, v) in acc.iter_mut().zip(part.slice::<f64>(p * kept + at, n)) {
                        *a = join(self.kind, *a, *v);
                    }
                }
                self.finish(y, at, acc);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::{Code, DType};

    #[test]
    fn every_choice_of_dims_kinds_and_strides() {
        let mut rng = Rng(13);
        for t in STORAGES {
            for shape in [
                [0, 2, 3],
                [1, 1, 1],
                [3, 5, 7],
                [33, 4, 65],
                [2, 3, 1000],
                [700, 1, 33],
                [1, 1, 150_000],
                [3000, 2, 3],
            ] {
                let [a, b, c] = shape;
                let n = a * b * c;
                let v = rng.floats(n, 1.0);
                for stride in [[b * c, c, 1], [1, a * c, a], [2 * b * c + 3, c, 1]] {
                    let x = Tensor::strided(t, &shape, &stride, &v);
                    let xv = x.values();
                    for axes in 0..8u32 {
                        let out: Vec<usize> = (0..3)
                            .map(|d| if axes >> d & 1 == 1 { 1 } else { shape[d] })
                            .collect();
                        let m: usize = out.iter().product();
                        for kind in 1..=5 {
                            let accum = kind == op::reduce::SUM && axes % 2 == 1;
                            let (mut want, mut mag) = (vec![identity(kind); m], vec![0.0; m]);
                            for (i, v) in xv.iter().enumerate() {
                                let ix = [i / (b * c), i / c % b, i % c];
                                let at = (0..3).fold(0, |at, d| {
                                    at * out[d] + if out[d] == 1 { 0 } else { ix[d] }
                                });
                                let v = if kind == op::reduce::SUMSQ { v * v } else { *v };
                                want[at] = join(kind, want[at], v);
                                mag[at] += v.abs();
                            }
                            let old = if accum {
                                Tensor::new(DType::F32, &out, &vec![0.5; m])
                            } else {
                                Tensor::poison(DType::F32, &out)
                            };
                            if accum {
                                want.iter_mut().for_each(|w| *w += 0.5);
                            }
                            let p = op::ReduceParams {
                                kind,
                                axes,
                                flags: if accum { op::FLAG_ACCUM } else { 0 },
                                ..Default::default()
                            };
                            let mut ops = [old, x.clone()];
                            run(op::REDUCE, p.as_bytes(), &[], &mut ops);
                            let what =
                                format!("reduce {kind} of {shape:?} {stride:?} axes {axes:#b}");
                            // Products of many numbers below one vanish; f32 shows them as zero.
                            close(&what, &ops[0].values(), &want, |i| match kind {
                                op::reduce::MAX | op::reduce::MIN => 0.0,
                                op::reduce::PROD => 2e-7 * want[i].abs() + 1e-37,
                                _ => 2e-7 * mag[i] + 1e-7,
                            });
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nan_comes_through_and_cancelling_pairs_cancel() {
        let n = 100_001;
        let mut v = vec![0.0; n];
        for i in 0..n / 2 {
            v[i] = 1e7 + i as f64;
            v[n - 1 - i] = -(1e7 + i as f64);
        }
        v[n / 2] = 0.25;
        let p = |kind| op::ReduceParams {
            kind,
            axes: 1,
            ..Default::default()
        };
        let mut ops = [
            Tensor::poison(DType::F32, &[1]),
            Tensor::new(DType::F32, &[n], &v),
        ];
        run(op::REDUCE, p(op::reduce::SUM).as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values(), [0.25]);
        v[77] = f64::NAN;
        for kind in 1..=5 {
            let mut ops = [
                Tensor::poison(DType::F32, &[1]),
                Tensor::new(DType::F32, &[n], &v),
            ];
            run(op::REDUCE, p(kind).as_bytes(), &[], &mut ops);
            assert!(ops[0].values()[0].is_nan(), "kind {kind}");
            let (dst, row) = (
                Tensor::poison(DType::F32, &[1, 2]),
                [1.0, f64::NAN, 2.0, 3.0, 4.0, 5.0],
            );
            let mut ops = [dst, Tensor::new(DType::F32, &[3, 2], &row)];
            run(op::REDUCE, p(kind).as_bytes(), &[], &mut ops);
            let v = ops[0].values();
            assert!(v[1].is_nan() && !v[0].is_nan());
        }
    }

    #[test]
    fn refusals() {
        let x = Tensor::poison(DType::F32, &[3, 4]);
        let ask = |dst: Tensor, kind, axes| {
            let p = op::ReduceParams {
                kind,
                axes,
                ..Default::default()
            };
            refusal(op::REDUCE, p.as_bytes(), &[dst, x.clone()])
        };
        assert_eq!(ask(Tensor::poison(DType::F32, &[3, 1]), 1, 2), None);
        assert_eq!(
            ask(Tensor::poison(DType::F32, &[3]), 1, 2),
            Some(Code::Invalid)
        );
        assert_eq!(
            ask(Tensor::poison(DType::F32, &[3, 1]), 9, 2),
            Some(Code::Unsupported)
        );
        assert_eq!(
            ask(Tensor::poison(DType::F32, &[3, 4]), 1, 4),
            Some(Code::Invalid)
        );
        assert_eq!(
            ask(Tensor::poison(DType::Bf16, &[3, 1]), 1, 2),
            Some(Code::Unsupported)
        );
    }
}
