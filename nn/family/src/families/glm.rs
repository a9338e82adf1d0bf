//! GLM-4 (9B): Llama with half of each head rotated in neighbouring pairs, and gate and up in one layer. Names and shapes of
//! `GlmForCausalLM` (huggingface/transformers).

use super::glm4::glm;
use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "glm",
    architecture: "GlmForCausalLM",
    doc: "Llama with half of each head rotated",
    keys: &[&sizes(Defaults {
        vocab: "151552", hidden: "4096", mlp: "13696", layers: "40", heads: "32", kv_heads: "2", head_dim: "128", positions: "131072",
        eps: "0.00000015625", tied: "false", pad: "151329",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        rotated("partial_rotary_factor", "0.5"),
        flag("attention_bias", "true", "biases in q, k and v"),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| llama::model(c, [c.flag("attention_bias"), false, false], |_, l| {
        glm(l);
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
