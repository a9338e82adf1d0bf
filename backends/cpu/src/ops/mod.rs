//! One file per op (or family): what is supported, and the kernel.

mod activation;
mod adamw;
pub(crate) mod attention;
mod cast;
mod copy;
mod fp8;
mod grouped;
mod index;
mod matmul;
mod multi;
mod norm;
mod pointwise;
mod program;
mod random;
mod reduce;
mod rope;
mod scan;
mod softmax;
mod sort;
#[cfg(test)]
mod testing;
mod view;

use crate::isa::Isas;
use crate::kernel::{Kernel, Prepare, PrepareTiled};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Plan, Result, unsupported};

/// Which file serves which id; with [`TILED`] the only list of ops in this backend.
const TABLE: &[(u32, Prepare)] = &[
    (op::COPY_STRIDED, copy::copy_strided),
    (op::CAST, cast::cast),
    (op::FILL_STRIDED, copy::fill_strided),
    (op::IOTA, cast::iota),
    (op::UNARY, pointwise::unary),
    (op::BINARY, pointwise::binary),
    (op::COMPARE, pointwise::compare),
    (op::SELECT, pointwise::select),
    (op::AXPBY, pointwise::axpby),
    (op::CLAMP, pointwise::clamp),
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
    (op::ELEMENTWISE_PROGRAM, program::program),
    (op::ADAMW, adamw::adamw),
    (op::LAYER_NORM_FWD, norm::layer_forward),
    (op::LAYER_NORM_BWD, norm::layer_backward),
    (op::RMS_NORM_FWD, norm::rms_forward),
    (op::RMS_NORM_BWD, norm::rms_backward),
    (op::SOFTMAX_FWD, softmax::softmax),
    (op::SOFTMAX_BWD, softmax::softmax_backward),
    (op::CROSS_ENTROPY_FWD, softmax::cross_entropy),
    (op::CROSS_ENTROPY_BWD, softmax::cross_entropy_backward),
    (op::ACTIVATION_FWD, activation::forward),
    (op::ACTIVATION_BWD, activation::backward),
    (op::SWIGLU_FWD, activation::swiglu),
    (op::SWIGLU_BWD, activation::swiglu_backward),
    (op::ROPE, rope::rope),
    (op::EMBEDDING_FWD, index::embedding),
    (op::EMBEDDING_BWD, index::embedding_backward),
    (op::MULTI_SUMSQ, multi::sumsq),
    (op::MULTI_SCALE, multi::scale_all),
    (op::DROPOUT, random::dropout),
    (op::ADD, pointwise::add),
];

/// The ops written in register tiles of an instruction set.
const TILED: &[(u32, PrepareTiled)] = &[
    (op::MATMUL, matmul::prepare),
    (op::GROUPED_MATMUL, grouped::prepare),
    (op::GROUPED_MATMUL_DW, grouped::prepare_dw),
    (op::ATTENTION_FWD, attention::prepare_fwd),
    (op::ATTENTION_BWD, attention::prepare_bwd),
    (op::ATTENTION_VARLEN_FWD, attention::varlen::prepare_fwd),
    (op::ATTENTION_VARLEN_BWD, attention::varlen::prepare_bwd),
    (op::ATTENTION_EXT_FWD, attention::ext::prepare_fwd),
    (op::ATTENTION_EXT_BWD, attention::ext::prepare_bwd),
];

/// Finds the op's file and asks it, for a team of so many threads and the instruction sets in use.
pub fn prepare(
    o: &OpRequest<'_>,
    team_threads: usize,
    isas: Isas,
) -> Result<(Box<dyn Kernel>, Plan)> {
    if let Some((_, f)) = TILED.iter().find(|(id, _)| *id == o.id) {
        return f(o, team_threads, isas);
    }
    match TABLE.iter().find(|(id, _)| *id == o.id) {
        Some((_, f)) => f(o, team_threads),
        None => unsupported(format!(
            "op {:#06x} {}",
            o.id,
            op::spec(o.id).map_or("(unknown)", |s| s.name)
        )),
    }
}
