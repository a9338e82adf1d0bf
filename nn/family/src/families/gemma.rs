//! Gemma: Llama with norms scaled by `1 + w`, GEGLU, and embeddings times the root of the width. Names and shapes of `GemmaForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::NormKind;
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gemma",
    architecture: "GemmaForCausalLM",
    doc: "norms scaled by 1 + w, GEGLU, scaled embeddings",
    keys: &[&sizes(Defaults {
        vocab: "256000", hidden: "3072", mlp: "24576", layers: "28", heads: "16", kv_heads: "16", head_dim: "256", positions: "8192",
        eps: "1e-6", tied: "true", pad: "0",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"gelu_pytorch_tanh\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        only("use_bidirectional_attention", "false", "tokens that see those after them"),
    ]],
    // The PyTorch model reads hidden_act alone.
    harmless: "hidden_activation",
    roles: ROLES,
    preset,
    build: |c| {
        let bias = c.flag("attention_bias");
        let mut m = llama::model(c, [bias, bias, false], |_, _| Ok(()))?.normed_by(NormKind::RmsPlusOne);
        m.stack.embed.scale = (m.width as f64).sqrt();
        Ok(m)
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
