//! The fused kernels and the matrix product: one file per family, each answering `Unsupported` for what it does not do.
//!
//! Everything is WGSL text made at prepare (`text`) over the accessors of [`crate::wgsl`]; arithmetic is in f32 whatever the storage, sums
//! run in an order that follows from the shape and the adapter alone.

mod attention;
mod embedding;
mod math;
mod matmul;
mod norm;
mod pointwise;
mod rope;
mod rows;
mod softmax;
mod text;
mod view;

use crate::kernel::{Facts, Prepared, op_name};
use crossweave_abi::op;
use crossweave_plugin::{OpRequest, Result, unsupported};

type Prepare = fn(&OpRequest<'_>, &Facts) -> Result<Prepared>;

/// Which function serves which id.
const TABLE: &[(u32, Prepare)] = &[
    (op::MATMUL, matmul::matmul),
    (op::LAYER_NORM_FWD, norm::layer_forward),
    (op::LAYER_NORM_BWD, norm::layer_backward),
    (op::RMS_NORM_FWD, norm::rms_forward),
    (op::RMS_NORM_BWD, norm::rms_backward),
    (op::SOFTMAX_FWD, softmax::softmax),
    (op::SOFTMAX_BWD, softmax::softmax_backward),
    (op::CROSS_ENTROPY_FWD, softmax::cross_entropy),
    (op::CROSS_ENTROPY_BWD, softmax::cross_entropy_backward),
    (op::ATTENTION_FWD, attention::forward),
    (op::ATTENTION_BWD, attention::backward),
    (op::ACTIVATION_FWD, pointwise::activation),
    (op::ACTIVATION_BWD, pointwise::activation_backward),
    (op::SWIGLU_FWD, pointwise::swiglu),
    (op::SWIGLU_BWD, pointwise::swiglu_backward),
    (op::ROPE, rope::rope),
    (op::EMBEDDING_FWD, embedding::embedding),
    (op::EMBEDDING_BWD, embedding::embedding_backward),
];

/// Finds the op's function and asks it.
pub fn prepare(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    match TABLE.iter().find(|(id, _)| *id == o.id) {
        Some((_, f)) => f(o, facts),
        None => unsupported(format!("{} ({:#06x})", op_name(o), o.id)),
    }
}

/// The size of subgroups where all have one and it is small: those of CPU drivers, whose lanes are vector registers. There a workgroup of
/// one subgroup needs no barrier, and a barrier is the dearest thing there is.
fn one_small_subgroup(facts: &Facts) -> Option<u32> {
    match facts.subgroup {
        Some((least, most)) if least == most && (4..=16).contains(&most) => Some(most),
        _ => None,
    }
}
