//! From row-major layouts to the library's column-major ones. Memory that is row-major `M x N` is column-major `N x M`, so `C = A B` is asked for
//! as `C' = B' A'`: the library's first matrix is our `B`, its `m` our `N`, and nothing is moved.

use super::{R_16BF, R_16F, R_32F};
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{FLAG_ACCUM, MatmulParams};
use crossweave_plugin::{DType, OpRequest, Result, abi};

/// A matrix as the library sees it: column-major `rows x cols`, columns `ld` apart, batches `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    pub rows: u64,
    pub cols: u64,
    pub ld: i64,
    pub step: i64,
    /// Used transposed.
    pub transposed: bool,
}

/// One product, in the library's order of operands: `first` is our B, `second` our A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    pub first: Matrix,
    pub second: Matrix,
    pub out: Matrix,
    pub batch: i32,
    /// The library's type of A and B, and of C.
    pub input: u32,
    pub output: u32,
    /// Bytes of their elements.
    pub widths: (u64, u64),
    /// Products of f32 may round to TF32.
    pub tf32: bool,
    pub bias: Option<u32>,
    pub accumulate: bool,
    /// Bits of an f32.
    pub alpha: u32,
}

fn kind(d: DType) -> Option<u32> {
    match d {
        DType::F32 => Some(R_32F),
        DType::F16 => Some(R_16F),
        DType::Bf16 => Some(R_16BF),
        _ => None,
    }
}

/// Our `r x c` matrix with strides, as column-major `c x r` (plain) or `r x c` (transposed). `None`: neither.
fn matrix(r: i64, c: i64, row: i64, col: i64, step: i64) -> Option<Matrix> {
    let fits = |ld: i64, rows: i64| (1..=i64::from(i32::MAX)).contains(&ld) && ld >= rows;
    let of = |rows: i64, cols: i64, ld: i64, transposed| Matrix {
        rows: rows as u64,
        cols: cols as u64,
        ld,
        step,
        transposed,
    };
    // A stride over a dimension of one element is never taken: any will do.
    let plain = if r == 1 { c.max(1) } else { row };
    if (col == 1 || c == 1) && fits(plain, c) {
        return Some(of(c, r, plain, false));
    }
    let turned = if c == 1 { r.max(1) } else { col };
    if (row == 1 || r == 1) && fits(turned, r) {
        return Some(of(r, c, turned, true));
    }
    None
}

/// Rows, columns, strides of row, column and batch.
fn read(l: &Layout) -> Option<[i64; 5]> {
    let r = l.rank as usize;
    if !(2..=3).contains(&r) {
        return None;
    }
    let step = if r == 3 { l.stride[0] } else { 0 };
    Some([
        l.shape[r - 2],
        l.shape[r - 1],
        l.stride[r - 2],
        l.stride[r - 1],
        step,
    ])
}

impl Problem {
    /// May K be split? With a bias and 16 bits it may not: cuBLASLt rounds the sum before it adds the bias, so that the result is rounded twice
    /// (seen on an H100: exactly 269 came out as 270).
    pub(crate) fn may_split(&self) -> bool {
        self.bias.is_none() || self.widths.1 >= 4
    }

    /// The product of an op that has been checked, or `None` where the library cannot be asked for it.
    pub(crate) fn of(o: &OpRequest<'_>) -> Result<Option<Problem>> {
        let p: MatmulParams = o.params()?;
        Ok(Problem::build(o, &p))
    }

    fn build(o: &OpRequest<'_>, p: &MatmulParams) -> Option<Problem> {
        let (lc, la, lb) = (o.layout(0)?, o.layout(1)?, o.layout(2)?);
        let (c, a, b) = (read(lc)?, read(la)?, read(lb)?);
        let [m, n, c_row, c_col, c_step] = c;
        let k = a[1];
        let small = |d: i64| (1..=i64::from(i32::MAX)).contains(&d);
        let batch = if lc.rank == 3 { lc.shape[0] } else { 1 };
        if ![m, n, k, batch].into_iter().all(small)
            || (n > 1 && c_col != 1)
            || c_step < 0
            || a[4] < 0
            || b[4] < 0
        {
            return None;
        }
        // Batches of the output that overlap would race.
        if batch > 1 && c_step < n {
            return None;
        }
        let out = matrix(m, n, c_row, 1, c_step).filter(|x| !x.transposed)?;
        let (input, output) = (o.dtype(1)?, o.dtype(0)?);
        let bias = match o.layout(3) {
            None => None,
            Some(l) if l.rank == 1 && (l.stride[0] == 1 || n == 1) => Some(kind(o.dtype(3)?)?),
            Some(_) => return None,
        };
        let accumulate = p.flags & FLAG_ACCUM != 0;
        // As in `may_split`; with C added too it has been seen where K is 1,028.
        if accumulate && bias.is_some() && output != DType::F32 {
            return None;
        }
        let tf32 = o.math_flags & abi::MATH_TF32 != 0 && input == DType::F32;
        Some(Problem {
            first: matrix(k, n, b[2], b[3], b[4])?,
            second: matrix(m, k, a[2], a[3], a[4])?,
            out,
            batch: batch as i32,
            input: kind(input)?,
            output: kind(output)?,
            widths: (input.bits() / 8, output.bits() / 8),
            tf32,
            bias,
            accumulate,
            alpha: if p.alpha == 0.0 { 1f32 } else { p.alpha as f32 }.to_bits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dtype: DType, shape: &[i64], stride: &[i64]) -> Layout {
        let mut l = Layout {
            size: size_of::<Layout>() as u32,
            dtype: dtype.id(),
            rank: shape.len() as u32,
            flags: 0,
            shape: [0; 8],
            stride: [0; 8],
        };
        l.shape[..shape.len()].copy_from_slice(shape);
        l.stride[..stride.len()].copy_from_slice(stride);
        l
    }

    fn problem(layouts: &[Layout], p: &MatmulParams) -> Option<Problem> {
        let o = OpRequest::new(
            abi::op::MATMUL,
            layouts,
            p.as_bytes(),
            abi::MATH_DETERMINISTIC,
        );
        Problem::of(&o).unwrap()
    }

    /// Element `(i, j)` of a column-major matrix used as the library would.
    fn element(x: &Matrix, batch: i64, i: u64, j: u64) -> i64 {
        let (i, j) = if x.transposed { (j, i) } else { (i, j) };
        assert!(i < x.rows && j < x.cols);
        batch * x.step + i as i64 + j as i64 * x.ld
    }

    /// What the library computes from a problem, over numbers.
    fn played(p: &Problem, a: &[f64], b: &[f64], c: &mut [f64]) {
        let (m, n) = (p.out.rows, p.out.cols);
        let k = if p.first.transposed {
            p.first.rows
        } else {
            p.first.cols
        };
        assert_eq!(
            k,
            if p.second.transposed {
                p.second.cols
            } else {
                p.second.rows
            }
        );
        for batch in 0..i64::from(p.batch) {
            for i in 0..m {
                for j in 0..n {
                    let sum: f64 = (0..k)
                        .map(|x| {
                            b[element(&p.first, batch, i, x) as usize]
                                * a[element(&p.second, batch, x, j) as usize]
                        })
                        .sum();
                    let at = element(&p.out, batch, i, j) as usize;
                    let old = if p.accumulate { c[at] } else { 0.0 };
                    c[at] = f64::from(f32::from_bits(p.alpha)) * sum + old;
                }
            }
        }
    }

    #[test]
    fn the_librarys_product_is_ours_for_every_layout_it_takes() {
        let (f, mut taken) = (DType::F32, 0);
        for batch in [1i64, 3] {
            for (m, n, k) in [
                (2i64, 3i64, 4i64),
                (1, 3, 4),
                (2, 1, 4),
                (2, 3, 1),
                (1, 1, 1),
                (4, 4, 4),
            ] {
                for (at, bt) in [(false, false), (true, false), (false, true), (true, true)] {
                    for (pad, shared_b) in [(0, false), (5, false), (5, true)] {
                        let two = |r: i64, c: i64, turned: bool| {
                            if turned { [1, r + pad] } else { [c + pad, 1] }
                        };
                        let span = |r: i64, c: i64, turned: bool| {
                            (r.max(c) + pad) * (r.max(c) + pad) + if turned { 1 } else { 2 }
                        };
                        let (sa, sb, sc) = (two(m, k, at), two(k, n, bt), two(m, n, false));
                        let (ea, eb, ec) = (
                            span(m, k, at),
                            if shared_b { 0 } else { span(k, n, bt) },
                            span(m, n, false),
                        );
                        let l = [
                            layout(f, &[batch, m, n], &[ec, sc[0], sc[1]]),
                            layout(f, &[batch, m, k], &[ea, sa[0], sa[1]]),
                            layout(f, &[batch, k, n], &[eb, sb[0], sb[1]]),
                        ];
                        let params = MatmulParams {
                            alpha: 0.5,
                            flags: FLAG_ACCUM,
                            ..MatmulParams::default()
                        };
                        let p = problem(&l, &params).expect("a layout the library takes");
                        taken += 1;
                        let numbers = |n: i64, seed: i64| {
                            (0..n)
                                .map(|i| ((i * 37 + seed) % 11) as f64)
                                .collect::<Vec<_>>()
                        };
                        let a = numbers(batch * ea.max(1) + 200, 1);
                        let b = numbers(batch * eb.max(1) + 200, 5);
                        let mut c = numbers(batch * ec + 200, 7);
                        let mut want = c.clone();
                        for x in 0..batch {
                            for i in 0..m {
                                for j in 0..n {
                                    let sum: f64 = (0..k)
                                        .map(|y| {
                                            a[(x * ea + i * sa[0] + y * sa[1]) as usize]
                                                * b[(x * eb + y * sb[0] + j * sb[1]) as usize]
                                        })
                                        .sum();
                                    want[(x * ec + i * sc[0] + j * sc[1]) as usize] += 0.5 * sum;
                                }
                            }
                        }
                        played(&p, &a, &b, &mut c);
                        assert_eq!(
                            c, want,
                            "batch {batch} m {m} n {n} k {k} {at} {bt} pad {pad}"
                        );
                    }
                }
            }
        }
        assert_eq!(taken, 2 * 6 * 4 * 3);
    }

    #[test]
    fn what_cannot_be_said_to_the_library_is_left_to_the_kernel() {
        let f = DType::Bf16;
        let good = [
            layout(f, &[4, 6], &[6, 1]),
            layout(f, &[4, 5], &[5, 1]),
            layout(f, &[5, 6], &[6, 1]),
        ];
        let p = MatmulParams::default();
        assert!(problem(&good, &p).is_some());
        let with = |i: usize, l: Layout| {
            let mut all = good;
            all[i] = l;
            problem(&all, &p)
        };
        // Rows that are one row, no unit stride, elements that are not next to each other, nothing to multiply.
        assert_eq!(with(1, layout(f, &[4, 5], &[0, 1])), None);
        assert_eq!(with(1, layout(f, &[4, 5], &[10, 2])), None);
        assert_eq!(with(0, layout(f, &[4, 6], &[12, 2])), None);
        assert_eq!(
            with(2, layout(DType::F64, &[5, 6], &[6, 1])).map(|p| p.input),
            Some(R_16BF)
        );
        let none = [
            layout(f, &[4, 6], &[6, 1]),
            layout(f, &[4, 0], &[1, 1]),
            layout(f, &[0, 6], &[6, 1]),
        ];
        assert_eq!(problem(&none, &p), None);
    }

    #[test]
    fn types_flags_and_bias() {
        let bias = layout(DType::F32, &[6], &[1]);
        let f = DType::F32;
        let l = [
            layout(f, &[4, 6], &[6, 1]),
            layout(f, &[4, 5], &[5, 1]),
            layout(f, &[5, 6], &[6, 1]),
            bias,
        ];
        let p = problem(&l, &MatmulParams::default()).unwrap();
        assert_eq!(
            (p.bias, p.tf32, p.accumulate, f32::from_bits(p.alpha)),
            (Some(R_32F), false, false, 1.0)
        );
        let params = MatmulParams::default();
        let o = OpRequest::new(abi::op::MATMUL, &l, params.as_bytes(), abi::MATH_TF32);
        assert!(Problem::of(&o).unwrap().unwrap().tf32);
        let mut strided = l;
        strided[3] = layout(f, &[6], &[2]);
        assert_eq!(problem(&strided, &params), None);
        // TF32 is for f32 only.
        let h = DType::F16;
        let half = [
            layout(h, &[4, 6], &[6, 1]),
            layout(h, &[4, 5], &[5, 1]),
            layout(h, &[5, 6], &[6, 1]),
        ];
        let o = OpRequest::new(abi::op::MATMUL, &half, params.as_bytes(), abi::MATH_TF32);
        assert!(!Problem::of(&o).unwrap().unwrap().tf32);
    }
}
