//! Nemotron (3 8B, 4 15B, Minitron): LayerNorm scaled by `1 + w`, half of each head rotated, squared ReLU between the two layers of the MLP.
//! Names and shapes of `NemotronForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset_heads, sizes_by};
use crate::desc::{NormKind, Up, linear};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "nemotron",
    architecture: "NemotronForCausalLM",
    doc: "LayerNorm scaled by 1 + w, half of each head rotated, a squared ReLU",
    keys: &[&sizes_by("norm_eps", Defaults {
        vocab: "256000", hidden: "6144", mlp: "24576", layers: "32", heads: "48", kv_heads: "", head_dim: "", positions: "4096",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"relu2\""),
        rotated("partial_rotary_factor", "0.5"),
        flag("attention_bias", "false", "biases in the attention projections"),
        flag("mlp_bias", "false", "biases in the MLP"),
    ]],
    harmless: "",
    roles: ROLES,
    preset: preset_heads,
    build: |c| {
        let (bias, mlp) = (c.flag("attention_bias"), c.flag("mlp_bias"));
        let m = llama::model(c, [bias, bias, mlp], |_, l| {
            l.mlp.1.up = Up::Plain(linear("mlp.up_proj", mlp));
            Ok(())
        })?;
        Ok(m.normed_by(NormKind::LayerPlusOne))
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
