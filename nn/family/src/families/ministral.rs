//! Ministral: Mistral whose layers may differ in whether they see a window. Names and shapes of `MinistralForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "ministral",
    architecture: "MinistralForCausalLM",
    doc: "Llama with a sliding window in the layers that say so",
    keys: &[&sizes(Defaults {
        vocab: "32000", hidden: "4096", mlp: "14336", layers: "32", heads: "32", kv_heads: "8", head_dim: "", positions: "131072",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        window("4096").fresh("4096"),
        layer_types(),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| llama::model(c, [false; 3], |i, l| {
        let window = c.int_or("sliding_window", 0)?;
        match c.sliding(i)? {
            Some(true) if window == 0 => return bad("layer_types", "sliding_attention without sliding_window"),
            Some(false) => {}
            Some(true) | None => l.attention.1.window = window,
        }
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
