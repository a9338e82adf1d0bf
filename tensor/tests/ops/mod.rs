//! Every op of the table against plain f64 references: the list that both test programs run, with fused ops and without.

pub mod attention;
pub mod attention_ext;
pub mod bench;
pub mod grouped;
pub mod linear;
pub mod many;
pub mod norms;
pub mod pointwise;
pub mod primitives;

use bench::Bench;
use crossweave_hal::abi::op;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Case = (u32, fn(&Bench));

/// One test per op.
const CASES: &[Case] = &[
    (op::COPY_STRIDED, primitives::copy_strided),
    (op::CAST, primitives::cast),
    (op::FILL_STRIDED, primitives::fill_strided),
    (op::IOTA, primitives::iota),
    (op::UNARY, primitives::unary),
    (op::BINARY, primitives::binary),
    (op::COMPARE, primitives::compare),
    (op::SELECT, primitives::select),
    (op::AXPBY, primitives::axpby),
    (op::CLAMP, primitives::clamp),
    (op::REDUCE, primitives::reduce),
    (op::ARG_REDUCE, primitives::arg_reduce),
    (op::CUMSUM, primitives::cumsum),
    (op::NONFINITE_COUNT, primitives::nonfinite_count),
    (op::MATMUL, linear::matmul),
    (op::GATHER_ROWS, linear::gather_rows),
    (op::SCATTER_ADD_ROWS, linear::scatter_add_rows),
    (op::SORT_PAIRS, linear::sort_pairs),
    (op::TOPK, linear::topk),
    (op::HISTOGRAM, linear::histogram),
    (op::PHILOX, linear::philox),
    (op::ELEMENTWISE_PROGRAM, many::program),
    (op::ADAMW, many::adamw),
    (op::LAYER_NORM_FWD, norms::layer_norm_fwd),
    (op::LAYER_NORM_BWD, norms::layer_norm_bwd),
    (op::RMS_NORM_FWD, norms::rms_norm_fwd),
    (op::RMS_NORM_BWD, norms::rms_norm_bwd),
    (op::SOFTMAX_FWD, norms::softmax),
    (op::SOFTMAX_BWD, norms::softmax_bwd),
    (op::CROSS_ENTROPY_FWD, norms::cross_entropy_fwd),
    (op::CROSS_ENTROPY_BWD, norms::cross_entropy_bwd),
    (op::ATTENTION_FWD, attention::attention_fwd),
    (op::ATTENTION_BWD, attention::attention_bwd),
    (op::ATTENTION_VARLEN_FWD, attention::attention_varlen_fwd),
    (op::ATTENTION_VARLEN_BWD, attention::attention_varlen_bwd),
    (op::ATTENTION_EXT_FWD, attention_ext::attention_ext_fwd),
    (op::ATTENTION_EXT_BWD, attention_ext::attention_ext_bwd),
    (op::ACTIVATION_FWD, pointwise::activation_fwd),
    (op::ACTIVATION_BWD, pointwise::activation_bwd),
    (op::SWIGLU_FWD, pointwise::swiglu_fwd),
    (op::SWIGLU_BWD, pointwise::swiglu_bwd),
    (op::ROPE, pointwise::rope),
    (op::EMBEDDING_FWD, many::embedding_fwd),
    (op::EMBEDDING_BWD, many::embedding_bwd),
    (op::MULTI_SUMSQ, many::multi_sumsq),
    (op::MULTI_SCALE, many::multi_scale),
    (op::DROPOUT, many::dropout),
    (op::ADD, many::add),
    (op::GROUPED_MATMUL, grouped::grouped_matmul),
    (op::GROUPED_MATMUL_DW, grouped::grouped_matmul_dw),
];

/// Runs every op of the table and names all that fail, not the first alone.
pub fn every_op(fused: bool) {
    let missing: Vec<_> = op::OPS
        .iter()
        .filter(|o| !CASES.iter().any(|c| c.0 == o.id))
        .map(|o| o.name)
        .collect();
    assert!(
        missing.is_empty(),
        "ops of the table without a case: {missing:?}"
    );
    let failed = failures(&Bench::open(fused), |_| true);
    assert!(failed.is_empty(), "failed: {failed:?}; each says why above");
}

/// Runs the chosen ops on a device and names those that fail; each says why on standard error.
pub fn failures(bench: &Bench, chosen: impl Fn(u32) -> bool) -> Vec<&'static str> {
    CASES
        .iter()
        .filter(|(id, _)| chosen(*id))
        .filter(|(_, f)| catch_unwind(AssertUnwindSafe(|| f(bench))).is_err())
        .filter_map(|(id, _)| op::spec(*id).map(|s| s.name))
        .collect()
}
