//! multi_sumsq, multi_scale, nonfinite_count: one launch over many tensors, tasks of a fixed number of elements.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, sum};
use crossweave_abi::op;
use crossweave_plugin::{DType, Dyn, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

clones! {
    fn scale(x: &mut [f32], k: f32) { for v in x { *v *= k; } }
    /// Infinite and NaN elements have all exponent bits set.
    fn nonfinite(x: &[f32]) -> u32 {
        let mut n = 0;
        for v in x { n += ((v.to_bits() & 0x7f80_0000) == 0x7f80_0000) as u32; }
        n
    }
}

/// Tensors `first..` of the operands, cut into tasks.
struct Tensors {
    first: usize,
    views: Vec<View>,
    tasks: Vec<usize>,
}

impl Tensors {
    fn new(o: &OpRequest<'_>, first: usize, outputs: bool) -> Result<Tensors> {
        let (mut views, mut tasks) = (Vec::new(), vec![0]);
        for i in first..o.operands.len() {
            let v = if outputs {
                output_strided(o, i, FLOATS)?
            } else {
                input(o, i, FLOATS)?
            };
            tasks.push(tasks[i - first] + v.total.div_ceil(CHUNK));
            views.push(v);
        }
        Ok(Tensors {
            first,
            views,
            tasks,
        })
    }

    fn count(&self) -> usize {
        self.tasks[self.views.len()]
    }

    /// `body(task, view, address, start, len)` for every chunk.
    fn run(&self, l: &Launch<'_>, body: &(dyn Fn(usize, &View, Ptr, usize, usize) + Sync)) {
        let args = Args::of(l);
        l.team.run(self.count(), &|t| {
            let i = self.tasks.partition_point(|s| *s <= t) - 1;
            let start = (t - self.tasks[i]) * CHUNK;
            let v = &self.views[i];
            let len = CHUNK.min(v.total - start);
            body(t, v, args.at(self.first + i), start, len);
        });
    }
}

struct SumSquares(Tensors);

/// `multi_sumsq`.
pub fn sumsq(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, F32)?)?;
    let t = Tensors::new(o, 1, false)?;
    let bytes = t.count() * 8;
    Ok((Box::new(SumSquares(t)), plan(o, bytes as u64)))
}

impl Kernel for SumSquares {
    unsafe fn run(&self, l: &Launch<'_>) {
        let part = Ptr(l.workspace);
        self.0.run(l, &|t, v, x, start, len| {
            let mut buf = [0f32; BLOCK];
            let mut s = 0f64;
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking.
                s += sum::sumsq(unsafe { v.get(x, at, n, &mut buf) });
            });
            // SAFETY: one slot a task.
            unsafe { *part.at::<f64>(t) = s };
        });
        let mut s = 0f64;
        for t in 0..self.0.count() {
            // SAFETY: written above by every task.
            s += unsafe { *part.at::<f64>(t) };
        }
        // SAFETY: operand 0 is one f32.
        unsafe {
            let out = Ptr(l.operands[0]).at::<f32>(0);
            *out = (*out as f64 + s) as f32;
        }
    }
}

struct Scale(Tensors);

/// `multi_scale`.
pub fn scale_all(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    if let Some(c) = optional(o, 0, F32)? {
        scalar(o, 0, &c)?;
    }
    Ok((Box::new(Scale(Tensors::new(o, 1, true)?)), plan(o, 0)))
}

impl Kernel for Scale {
    fn check(&self, dynamic: &[u8]) -> Result<()> {
        Dyn(dynamic).read::<op::ScaleDyn>().map(|_| ())
    }

    unsafe fn run(&self, l: &Launch<'_>) {
        let d = Dyn(l.dynamic).read::<op::ScaleDyn>().unwrap_or_default();
        let coef = l.operands[0].cast::<f32>();
        // SAFETY: a present coef is one f32.
        let k = d.scale as f32
            * if coef.is_null() {
                1.0
            } else {
                unsafe { *coef }
            };
        self.0.run(l, &|_, v, x, start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks touch disjoint elements.
                unsafe {
                    v.load(x, at, &mut buf[..n]);
                    scale(&mut buf[..n], k);
                    v.store(x, at, &buf[..n]);
                }
            });
        });
    }
}

struct Nonfinite(Tensors);

/// `nonfinite_count`.
pub fn nonfinite_count(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 1..=usize::MAX)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    scalar(o, 0, &output(o, 0, &[DType::U32])?)?;
    let t = Tensors::new(o, 1, false)?;
    let bytes = t.count() * 4;
    Ok((Box::new(Nonfinite(t)), plan(o, bytes as u64)))
}

impl Kernel for Nonfinite {
    unsafe fn run(&self, l: &Launch<'_>) {
        let part = Ptr(l.workspace);
        self.0.run(l, &|t, v, x, start, len| {
            let mut buf = [0f32; BLOCK];
            let mut count = 0;
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking.
                count += nonfinite(unsafe { v.get(x, at, n, &mut buf) });
            });
            // SAFETY: one slot a task.
            unsafe { *part.at::<u32>(t) = count };
        });
        // SAFETY: every slot was written above; operand 0 is one u32.
        unsafe {
            let out = Ptr(l.operands[0]).at::<u32>(0);
            for t in 0..self.0.count() {
                *out = (*out).saturating_add(*part.at::<u32>(t));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn sums_scales_and_counts_over_many_tensors() {
        let none = op::NoParams::default();
        let mut rng = Rng(21);
        let list: Vec<Tensor> = SIZES
            .iter()
            .flat_map(|n| STORAGES.map(|t| Tensor::new(t, &[*n], &rng.floats(*n, 2.0))))
            .collect();
        let mut ops = vec![Tensor::new(DType::F32, &[1], &[3.0])];
        ops.extend(list.clone());
        run(op::MULTI_SUMSQ, none.as_bytes(), &[], &mut ops);
        let want = 3.0
            + list
                .iter()
                .flat_map(|t| t.values())
                .map(|v| v * v)
                .sum::<f64>();
        close("sumsq", &ops[0].values(), &[want], |_| 1e-7 * want);

        for coef in [Some(0.5), None] {
            let c = coef.map_or(Tensor::absent(), |c| Tensor::new(DType::F32, &[1], &[c]));
            let mut ops = vec![c];
            ops.extend(list.clone());
            let d = op::ScaleDyn {
                scale: 0.3,
                ..Default::default()
            };
            run(op::MULTI_SCALE, none.as_bytes(), d.as_bytes(), &mut ops);
            for (a, b) in ops[1..].iter().zip(&list) {
                let want: Vec<f64> = b
                    .values()
                    .iter()
                    .map(|v| v * 0.3 * coef.unwrap_or(1.0))
                    .collect();
                close("scale", &a.values(), &want, |i| {
                    rounding(a.dtype, want[i], 1.0)
                });
            }
        }

        let mut bad = list.clone();
        let mut planted = 0;
        for t in &mut bad {
            let mut v = t.values();
            for (i, x) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
                .iter()
                .enumerate()
            {
                if v.len() > 6 {
                    let at = v.len() - 1 - i;
                    v[at] = *x;
                    planted += 1;
                }
            }
            *t = Tensor::new(t.dtype, &[v.len()], &v);
        }
        let mut ops = vec![Tensor::new(DType::U32, &[1], &[2.0])];
        ops.extend(bad);
        run(op::NONFINITE_COUNT, none.as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values(), [2.0 + planted as f64]);
    }

    #[test]
    fn no_tensors_at_all() {
        let none = op::NoParams::default();
        let mut ops = [Tensor::new(DType::F32, &[1], &[3.0])];
        run(op::MULTI_SUMSQ, none.as_bytes(), &[], &mut ops);
        assert_eq!(ops[0].values(), [3.0]);
    }
}
