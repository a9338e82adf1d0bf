//! One file per op (or family): what is supported, and its passes.

mod elementwise;
mod index;
mod multi;
mod pointwise;
mod program;
mod random;
mod reduce;
mod scan;
mod sort;

use crate::kernel::{Facts, Prepared};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Result, operand as view};

/// What an op's file exports: answers `Unsupported` without side effects for what it does not do.
pub type Prepare = fn(op: &OpRequest<'_>, facts: &Facts) -> Result<Prepared>;

/// Which file serves which id; what is not here is asked of [`crate::kernels`].
const TABLE: &[(u32, Prepare)] = &[
    (op::COPY_STRIDED, pointwise::copy_strided),
    (op::CAST, pointwise::cast),
    (op::FILL_STRIDED, pointwise::fill_strided),
    (op::IOTA, pointwise::iota),
    (op::UNARY, pointwise::unary),
    (op::BINARY, pointwise::binary),
    (op::COMPARE, pointwise::compare),
    (op::SELECT, pointwise::select),
    (op::AXPBY, pointwise::axpby),
    (op::CLAMP, pointwise::clamp),
    (op::ADD, pointwise::add),
    (op::REDUCE, reduce::reduce),
    (op::ARG_REDUCE, scan::arg_reduce),
    (op::CUMSUM, scan::cumsum),
    (op::NONFINITE_COUNT, multi::nonfinite_count),
    (op::GATHER_ROWS, index::gather_rows),
    (op::SCATTER_ADD_ROWS, index::scatter_add_rows),
    (op::SORT_PAIRS, sort::sort_pairs),
    (op::TOPK, sort::topk),
    (op::HISTOGRAM, index::histogram),
    (op::PHILOX, random::philox),
    (op::DROPOUT, random::dropout),
    (op::ELEMENTWISE_PROGRAM, program::program),
    (op::ADAMW, multi::adamw),
    (op::MULTI_SUMSQ, multi::sumsq),
    (op::MULTI_SCALE, multi::scale_all),
];

/// Finds the op's file and asks it.
pub fn prepare(op: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    match TABLE.iter().find(|(id, _)| *id == op.id) {
        Some((_, f)) => f(op, facts),
        None => crate::kernels::prepare(op, facts),
    }
}
