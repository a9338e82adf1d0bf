//! `arg_reduce` and `cumsum`: one dim is walked in order, line by line.

use crate::operand::*;
use crate::{DType, OpRequest, Result};
use crossweave_abi::op;

/// Types of running sums.
pub const NUMBERS: &[DType] = &[DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64];

/// A request of `arg_reduce`: where along `dim` the largest element is, or the smallest.
pub struct ArgReduce {
    /// The result, of the shape of `src` with one element in `dim`, dense.
    pub dst: View,
    /// What is searched.
    pub src: View,
    /// The dim that is walked; not empty where there is a result.
    pub dim: usize,
    /// The smallest is searched for.
    pub smallest: bool,
}

impl ArgReduce {
    /// Reads a request.
    ///
    /// # Errors
    /// `Invalid` for shapes that contradict each other, `Unsupported` for types, kinds and flags that the op does not have.
    pub fn read(o: &OpRequest<'_>) -> Result<ArgReduce> {
        arity(o, 2..=2)?;
        let p = o.params::<op::DimParams>()?;
        flags(o, p.flags, 0)?;
        if p.kind > 1 {
            return refuse(o, format!("kind {} (0 = largest, 1 = smallest)", p.kind));
        }
        let (dst, src) = (output(o, 0, INDEX)?, input(o, 1, FLOATS)?);
        let dim = p.dim as usize;
        let Some(&n) = src.shape.get(dim) else {
            return invalid(o, format!("dim {dim} of rank {}", src.shape.len()));
        };
        let mut want = src.shape.clone();
        want[dim] = 1;
        shape(o, 0, &dst, &want)?;
        if n == 0 && dst.total > 0 {
            return invalid(o, format!("dim {dim} is empty: it has no largest element"));
        }
        Ok(ArgReduce {
            dst,
            src,
            dim,
            smallest: p.kind == 1,
        })
    }
}

/// A request of `cumsum`: running sums along `dim`.
pub struct Cumsum {
    /// The result, dense.
    pub dst: View,
    /// What is summed, of the same shape and type.
    pub src: View,
    /// The dim that is walked.
    pub dim: usize,
}

impl Cumsum {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`ArgReduce::read`].
    pub fn read(o: &OpRequest<'_>) -> Result<Cumsum> {
        arity(o, 2..=2)?;
        let p = o.params::<op::DimParams>()?;
        flags(o, p.flags, 0)?;
        let (dst, src) = (output(o, 0, NUMBERS)?, input(o, 1, NUMBERS)?);
        shape(o, 1, &src, &dst.shape)?;
        same_dtype(o, 1, &src, &dst)?;
        let dim = p.dim as usize;
        if p.kind != 0 || dim >= src.shape.len() {
            return invalid(
                o,
                format!("kind {}, dim {dim} of rank {}", p.kind, src.shape.len()),
            );
        }
        Ok(Cumsum { dst, src, dim })
    }
}
