//! arg_reduce and cumsum: one dim walked in order, lines in parallel.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crossweave_plugin::{DType, OpRequest, Plan, Result, op as request};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

struct ArgReduce {
    dtype: DType,
    dst: View,
    lines: View,
    n: usize,
    step: usize,
    smallest: bool,
}

/// `arg_reduce`.
pub fn arg_reduce(o: &OpRequest<'_>, _: usize) -> Prepared {
    let r = request::ArgReduce::read(o)?;
    let (lines, n, step) = r.src.lines(r.dim);
    let k = ArgReduce {
        dtype: r.src.dtype,
        dst: r.dst,
        lines,
        n,
        step,
        smallest: r.smallest,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for ArgReduce {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        let group = (CHUNK / self.n.max(1)).max(1);
        chunks(l.team, self.dst.total, group, &|start, len| {
            let mut line = start;
            self.lines.rows(start, len, |off, stride, n| {
                for j in 0..n {
                    let base = off + j * stride;
                    let (mut best, mut at) = (f32::NAN, 0);
                    for i in 0..self.n {
                        // SAFETY: inside the layout.
                        let v = unsafe { load_one(self.dtype, x, base + i * self.step) };
                        let wins = if v.is_nan() {
                            // The first NaN beats every number as the largest and loses to every number as the smallest.
                            !self.smallest && !best.is_nan()
                        } else if best.is_nan() {
                            self.smallest
                        } else if self.smallest {
                            v < best
                        } else {
                            v > best
                        };
                        if i == 0 || wins {
                            (best, at) = (v, i);
                        }
                    }
                    // SAFETY: one output a line, written by one task.
                    unsafe {
                        match self.dst.dtype {
                            DType::I64 => *y.at(line) = at as i64,
                            _ => *y.at(line) = at as i32,
                        }
                    }
                    line += 1;
                }
            });
        });
    }
}

struct Cumsum {
    dtype: DType,
    from: View,
    to: View,
    n: usize,
    step_in: usize,
    step_out: usize,
}

/// `cumsum`.
pub fn cumsum(o: &OpRequest<'_>, _: usize) -> Prepared {
    let r = request::Cumsum::read(o)?;
    let (from, n, step_in) = r.src.lines(r.dim);
    let (to, _, step_out) = r.dst.lines(r.dim);
    let k = Cumsum {
        dtype: r.src.dtype,
        from,
        to,
        n,
        step_in,
        step_out,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl Kernel for Cumsum {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        let group = (CHUNK / self.n.max(1)).max(1);
        chunks(l.team, self.from.total, group, &|start, len| {
            for line in start..start + len {
                let (a, b) = (self.from.offset(line), self.to.offset(line));
                let (mut f, mut i64s) = (0f64, 0i64);
                for i in 0..self.n {
                    let (s, d) = (a + i * self.step_in, b + i * self.step_out);
                    // SAFETY: inside the layouts; lines are disjoint, and an element is read before it is written.
                    unsafe {
                        match self.dtype {
                            DType::I32 => {
                                i64s = i64s.wrapping_add(*x.at::<i32>(s) as i64);
                                *y.at(d) = i64s as i32;
                            }
                            DType::I64 => {
                                i64s = i64s.wrapping_add(*x.at::<i64>(s));
                                *y.at(d) = i64s;
                            }
                            t => {
                                f += load_one(t, x, s) as f64;
                                store_row(t, y, d, 1, &[f as f32]);
                            }
                        }
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
    use crossweave_abi::op;
    use crossweave_plugin::Code;

    const SHAPES: [[usize; 3]; 5] = [
        [1, 1, 1],
        [3, 5, 7],
        [2, 33, 40],
        [1, 4099, 3],
        [40, 3, 170],
    ];

    /// `(outer, n, inner)` of a dim.
    fn around(shape: &[usize; 3], dim: usize) -> (usize, usize, usize) {
        (
            shape[..dim].iter().product(),
            shape[dim],
            shape[dim + 1..].iter().product(),
        )
    }

    fn dim(dim: usize, kind: u32) -> op::DimParams {
        op::DimParams {
            kind,
            dim: dim as u32,
            ..Default::default()
        }
    }

    #[test]
    fn first_of_equals_wins_and_nan_is_largest() {
        let mut rng = Rng(14);
        for t in STORAGES {
            for shape in SHAPES {
                let n: usize = shape.iter().product();
                // Small integers: many ties.
                let mut v: Vec<f64> = (0..n).map(|_| rng.below(5) as f64).collect();
                if n > 100 {
                    for _ in 0..n / 50 {
                        v[rng.below(n)] = f64::NAN;
                    }
                }
                let x = Tensor::strided(t, &shape, &[1, shape[0] * shape[2], shape[0]], &v);
                for d in 0..3 {
                    let (outer, len, inner) = around(&shape, d);
                    let mut out = shape;
                    out[d] = 1;
                    for kind in [0, 1] {
                        for index in [DType::I32, DType::I64] {
                            let mut ops = [Tensor::poison(index, &out), x.clone()];
                            run(op::ARG_REDUCE, dim(d, kind).as_bytes(), &[], &mut ops);
                            let mut want = Vec::new();
                            for o in 0..outer {
                                for i in 0..inner {
                                    let key = |k: usize| {
                                        let v = v[(o * len + k) * inner + i];
                                        let v = if v.is_nan() { f64::INFINITY } else { v };
                                        if kind == 0 { -v } else { v }
                                    };
                                    let best = (0..len).min_by(|a, b| key(*a).total_cmp(&key(*b)));
                                    want.push(best.unwrap() as f64);
                                }
                            }
                            close("arg", &ops[0].values(), &want, |_| 0.0);
                        }
                    }
                }
            }
        }
        let x = Tensor::poison(DType::F32, &[2, 0]);
        let y = Tensor::poison(DType::I32, &[2, 1]);
        assert_eq!(
            refusal(op::ARG_REDUCE, dim(1, 0).as_bytes(), &[y, x]),
            Some(Code::Invalid)
        );
    }

    #[test]
    fn running_sums() {
        let mut rng = Rng(15);
        for t in request::NUMBERS {
            for shape in SHAPES {
                let n: usize = shape.iter().product();
                let v: Vec<f64> = (0..n).map(|_| (rng.unit() * 8.0).floor()).collect();
                let x = Tensor::new(*t, &shape, &v);
                for d in 0..3 {
                    let (_, len, inner) = around(&shape, d);
                    let (mut want, mut mag) = (v.clone(), vec![0.0; n]);
                    for i in 0..n {
                        mag[i] = v[i].abs();
                        if i / inner % len > 0 {
                            want[i] += want[i - inner];
                            mag[i] += mag[i - inner];
                        }
                    }
                    // In place.
                    let mut ops = [x.clone(), x.clone()];
                    run_aliased(op::CUMSUM, dim(d, 0).as_bytes(), &[], &mut ops, &[(1, 0)]);
                    let u = if t.is_float() { unit_of(*t) } else { 0.0 };
                    close("cumsum", &ops[0].values(), &want, |i| {
                        u * want[i].abs() + 1e-7 * u * mag[i]
                    });
                }
            }
        }
    }
}
