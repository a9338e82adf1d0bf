//! The one decomposition of every fused op: native → `elementwise_program` → primitives, in the order of docs/layers.md.
//!
//! A recipe is built once, at prepare, from layouts and params alone. Pointwise pieces go through `elementwise_program`, which has a recipe
//! of its own for devices that lack it too. Intermediate values are f32 whatever the storage, and every output that may share memory
//! with an input is written after the last read of that input.

mod attention;
mod attention_ext;
mod build;
mod grouped;
mod index;
mod norm;
mod optim;
mod pointwise;
mod program;
mod softmax;
mod xent;

pub(crate) use pointwise::act;

use crossweave_hal::abi::op;
use crossweave_hal::{Decompose, OpRequest, Recipe};

/// Every fused op of the table in simpler ops; `None` for primitives and for layouts that fit no row of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decompositions;

impl Decompose for Decompositions {
    fn recipe(&self, o: &OpRequest) -> Option<Recipe> {
        match o.id {
            op::ELEMENTWISE_PROGRAM => program::recipe(o),
            op::ADAMW => optim::adamw(o),
            op::LAYER_NORM_FWD => norm::layer_fwd(o),
            op::LAYER_NORM_BWD => norm::layer_bwd(o),
            op::RMS_NORM_FWD => norm::rms_fwd(o),
            op::RMS_NORM_BWD => norm::rms_bwd(o),
            op::SOFTMAX_FWD => softmax::fwd(o),
            op::SOFTMAX_BWD => softmax::bwd(o),
            op::CROSS_ENTROPY_FWD => xent::fwd(o),
            op::CROSS_ENTROPY_BWD => xent::bwd(o),
            op::ATTENTION_FWD => attention::fwd(o),
            op::ATTENTION_BWD => attention::bwd(o),
            op::ATTENTION_VARLEN_FWD => attention::varlen_fwd(o),
            op::ATTENTION_VARLEN_BWD => attention::varlen_bwd(o),
            op::ATTENTION_EXT_FWD => attention_ext::fwd(o),
            op::ATTENTION_EXT_BWD => attention_ext::bwd(o),
            op::ACTIVATION_FWD => pointwise::activation_fwd(o),
            op::ACTIVATION_BWD => pointwise::activation_bwd(o),
            op::SWIGLU_FWD => pointwise::swiglu_fwd(o),
            op::SWIGLU_BWD => pointwise::swiglu_bwd(o),
            op::ROPE => pointwise::rope(o),
            op::EMBEDDING_FWD => index::embedding_fwd(o),
            op::EMBEDDING_BWD => index::embedding_bwd(o),
            op::MULTI_SUMSQ => optim::multi_sumsq(o),
            op::MULTI_SCALE => optim::multi_scale(o),
            op::DROPOUT => pointwise::dropout(o),
            op::ADD => pointwise::add(o),
            op::GROUPED_MATMUL => grouped::product(o),
            op::GROUPED_MATMUL_DW => grouped::weights(o),
            _ => None,
        }
    }
}
