//! GLM-4 (0414): Llama with norms around attention and MLP, half of each head rotated in neighbouring pairs, and gate and up in one layer.
//! Names and shapes of `Glm4ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Around, Layer, Norm, Positions, Up, linear};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "glm4",
    architecture: "Glm4ForCausalLM",
    doc: "norms on both sides, half of each head rotated",
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
    build: |c| {
        let eps = c.num("rms_norm_eps")?;
        let around = |before, after| Around::both(Norm::rms(before, eps), Norm::rms(after, eps));
        llama::model(c, [c.flag("attention_bias"), false, false], |_, l| {
            l.attention.0 = around("input_layernorm", "post_self_attn_layernorm");
            l.mlp.0 = around("post_attention_layernorm", "post_mlp_layernorm");
            glm(l);
            Ok(())
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// Neighbours are pairs; gate and up are one layer.
pub fn glm(l: &mut Layer) {
    l.mlp.1.up = Up::GatedFused(linear("mlp.gate_up_proj", false));
    if let Positions::Rotary(r) = &mut l.attention.1.positions {
        r.interleaved = true;
    }
}
