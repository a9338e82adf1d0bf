//! `grouped_matmul` and `grouped_matmul_dw`: one product of [`crate::gemm`] for each group that has rows. The ends of groups are memory of
//! this device, so that they are read where the op runs, and each product is as large as its group.

use super::view::*;
use crate::gemm::elem::Elem;
use crate::gemm::tile::Isa;
use crate::gemm::{Gemm, Operands};
use crate::isa::Isas;
use crate::kernel::{Kernel, Launch};
use crossweave_abi::op::{FLAG_ACCUM, GroupedParams, NoParams};
use crossweave_plugin::{DType, OpRequest, Plan, Result};
use std::ops::Range;

/// The groups of rows of a launch.
struct Groups {
    ends: View,
    rows: usize,
}

impl Groups {
    fn new(o: &OpRequest<'_>, i: usize, [groups, rows]: [usize; 2]) -> Result<Groups> {
        let ends = input(o, i, &[DType::I32])?;
        shape(o, i, &ends, &[groups])?;
        if i32::try_from(rows).is_err() {
            return refuse(o, format!("{rows} rows, whose ends are no i32"));
        }
        Ok(Groups { ends, rows })
    }

    /// The rows of each group. Ends that are none give other ranges, but each within the rows and behind the one before.
    ///
    /// # Safety
    /// `p` is the live operand.
    unsafe fn each(&self, p: Ptr) -> Vec<Range<usize>> {
        let mut from = 0;
        (0..self.ends.total)
            .map(|e| {
                // SAFETY: element `e` of the operand.
                let end = unsafe { index_at(DType::I32, p, self.ends.offset(e)) };
                let end = (end.max(0) as usize).clamp(from, self.rows);
                std::mem::replace(&mut from, end)..end
            })
            .collect()
    }
}

/// The storage of an operand that is one of matrices.
fn elem(o: &OpRequest<'_>, v: &View) -> Result<Elem> {
    match Elem::of(v.dtype) {
        Some(e) => Ok(e),
        None => refuse(o, format!("dtype {} is no float", v.dtype.name())),
    }
}

/// Rank `N` of an operand.
fn dims<const N: usize>(o: &OpRequest<'_>, i: usize, v: &View) -> Result<[usize; N]> {
    match v.shape.as_slice().try_into() {
        Ok(dims) => Ok(dims),
        Err(_) => invalid(
            o,
            format!("{}: shape {:?}, {N} dims wanted", named(o, i), v.shape),
        ),
    }
}

struct Product {
    /// The product of all rows with one weight; a group's has its rows.
    gemm: Gemm,
    groups: Groups,
    /// Elements between weights.
    apart: usize,
}

/// The kernel of `grouped_matmul`: each group of rows times its own matrix.
pub fn prepare(o: &OpRequest<'_>, threads: usize, isas: Isas) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(o, 4..=4)?;
    let p: NoParams = o.params()?;
    flags(o, p.flags, 0)?;
    let (y, x, w) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    same_dtype(o, 1, &x, &y)?;
    same_dtype(o, 2, &w, &y)?;
    let [n, k] = dims(o, 1, &x)?;
    let [groups, out, _] = dims(o, 2, &w)?;
    shape(o, 0, &y, &[n, out])?;
    shape(o, 2, &w, &[groups, out, k])?;
    let groups = Groups::new(o, 3, [groups, n])?;
    let e = elem(o, &y)?;
    let gemm = Gemm::new(
        [1, n, out, k],
        e,
        [x.stride[0] as isize, x.stride[1] as isize, 0],
        [w.stride[1] as isize, w.stride[2] as isize, 0],
        e,
        [out as isize, 0],
        None,
        1.0,
        false,
        threads,
        Isa::of(isas, e),
    );
    let plan = plan(o, gemm.workspace() as u64);
    let apart = w.stride[0];
    Ok((
        Box::new(Product {
            gemm,
            groups,
            apart,
        }),
        plan,
    ))
}

impl Kernel for Product {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, x, w, ends] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        let (n, width, e) = (self.gemm.m, self.gemm.n, self.gemm.operand);
        if n == 0 || width == 0 {
            return;
        }
        // SAFETY: the live operand.
        let each = unsafe { self.groups.each(ends) };
        for (g, rows) in each.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            let mut gemm = self.gemm.clone();
            gemm.m = rows.len();
            let o = Operands {
                c: e.at_mut(y.0, (rows.start * width) as isize),
                a: e.at(x.0, rows.start as isize * gemm.a[0]),
                b: e.at(w.0, (g * self.apart) as isize),
                bias: std::ptr::null(),
                workspace: l.workspace,
            };
            // SAFETY: rows of valid operands and the weight of a group; the workspace is that of more rows.
            unsafe { gemm.run(o, l.team) };
        }
        let behind = each.last().map_or(0, |r| r.end);
        // SAFETY: the rows behind the last group, which nobody else writes; zero bits are 0 in every float.
        unsafe {
            y.slice_mut::<u8>(behind * width * e.bytes(), (n - behind) * width * e.bytes())
                .fill(0)
        };
    }
}

struct Weights {
    /// The product over all rows; a group's sums over its rows.
    gemm: Gemm,
    groups: Groups,
    isa: Isa,
    threads: usize,
}

/// The kernel of `grouped_matmul_dw`: for each group the product of its rows of both operands.
pub fn prepare_dw(
    o: &OpRequest<'_>,
    threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    arity(o, 4..=4)?;
    let p: GroupedParams = o.params()?;
    flags(o, p.flags, FLAG_ACCUM)?;
    let (dw, dy, x) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    same_dtype(o, 2, &x, &dy)?;
    if dw.dtype != DType::F32 {
        same_dtype(o, 0, &dw, &dy)?;
    }
    let [n, out] = dims(o, 1, &dy)?;
    let [groups, _, k] = dims(o, 0, &dw)?;
    shape(o, 0, &dw, &[groups, out, k])?;
    shape(o, 2, &x, &[n, k])?;
    let groups = Groups::new(o, 3, [groups, n])?;
    let isa = Isa::of(isas, elem(o, &dy)?);
    let gemm = Gemm::new(
        [1, out, k, n],
        elem(o, &dy)?,
        [dy.stride[1] as isize, dy.stride[0] as isize, 0],
        [x.stride[1] as isize, x.stride[0] as isize, 0],
        elem(o, &dw)?,
        [k as isize, 0],
        None,
        1.0,
        p.flags & FLAG_ACCUM != 0,
        threads,
        isa,
    );
    let plan = plan(o, gemm.workspace_of_fewer() as u64);
    let kernel = Weights {
        gemm,
        groups,
        isa,
        threads,
    };
    Ok((Box::new(kernel), plan))
}

impl Kernel for Weights {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [dw, dy, x, ends] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        let g = &self.gemm;
        if g.m == 0 || g.n == 0 {
            return;
        }
        // SAFETY: the live operand.
        let each = unsafe { self.groups.each(ends) };
        for (group, rows) in each.iter().enumerate() {
            if rows.is_empty() && g.accumulate {
                continue;
            }
            // How a sum is cut follows from its length.
            let gemm = Gemm::new(
                [1, g.m, g.n, rows.len()],
                g.operand,
                g.a,
                g.b,
                g.out,
                g.c,
                None,
                g.alpha,
                g.accumulate,
                self.threads,
                self.isa,
            );
            let o = Operands {
                c: g.out.at_mut(dw.0, (group * g.m * g.n) as isize),
                a: g.operand.at(dy.0, rows.start as isize * g.a[1]),
                b: g.operand.at(x.0, rows.start as isize * g.b[1]),
                bias: std::ptr::null(),
                workspace: l.workspace,
            };
            // SAFETY: rows of valid operands and the gradient of a group; the workspace is that of any number of rows up to all.
            unsafe { gemm.run(o, l.team) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_abi::op;

    fn ends(all: &[usize]) -> Tensor {
        let v: Vec<f64> = all.iter().map(|n| *n as f64).collect();
        Tensor::new(DType::I32, &[all.len()], &v)
    }

    /// A row has the bits that it has alone, and the same bits with any team; what is behind the last group is not read.
    #[test]
    fn the_bits_of_a_row_do_not_depend_on_other_rows() {
        let mut r = Rng(77);
        let (n, k, out) = (41, 450, 37);
        for t in STORAGES {
            let mut x = r.floats(n * k, 1.0);
            let w = Tensor::new(t, &[3, out, k], &r.floats(3 * out * k, 1.0));
            x[38 * k..].fill(f64::NAN);
            let run_of = |x: &[f64], e: &[usize], n: usize| {
                let mut ops = [
                    Tensor::new(t, &[n, out], &vec![f64::NAN; n * out]),
                    Tensor::new(t, &[n, k], x),
                    w.clone(),
                    ends(e),
                ];
                run(
                    op::GROUPED_MATMUL,
                    NoParams::default().as_bytes(),
                    &[],
                    &mut ops,
                );
                ops[0].values()
            };
            let all = run_of(&x, &[20, 20, 38], n);
            assert!(all[38 * out..].iter().all(|v| *v == 0.0), "{t:?}");
            for i in [0, 19, 20, 37] {
                let e = if i < 20 { [1, 1, 1] } else { [0, 0, 1] };
                let one = run_of(&x[i * k..(i + 1) * k], &e, 1);
                assert_eq!(one, all[i * out..(i + 1) * out], "{t:?} row {i}");
            }
        }
    }
}
