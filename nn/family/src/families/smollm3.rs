//! SmolLM3: Llama of which every fourth layer has no positions. Names and shapes of `SmolLM3ForCausalLM` (huggingface/transformers).

use super::llama;
use super::qwen2::slides;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::Positions;
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    doc: "Llama without positions in every fourth layer",
    keys: &[&sizes(Defaults {
        vocab: "128256", hidden: "2048", mlp: "11008", layers: "36", heads: "16", kv_heads: "4", head_dim: "", positions: "32768",
        eps: "1e-6", tied: "true", pad: "128004",
    }), &rope("2000000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        flag("mlp_bias", "false", "biases in the MLP"),
        ids("no_rope_layer_interval", "4", "every so many layers one has no positions"),
        bits("no_rope_layers", "for each layer 1 where queries and keys are rotated and 0 where not; absent = as no_rope_layer_interval says"),
        flag("use_sliding_window", "false", "layers without positions see a window"),
        window("").fresh("4096"),
        layer_types(),
    ]],
    harmless: "pretraining_tp",
    roles: ROLES,
    preset,
    build: |c| {
        let bias = c.flag("attention_bias");
        llama::model(c, [bias, bias, c.flag("mlp_bias")], |i, l| {
            let every = c.int("no_rope_layer_interval")?;
            let rotates = c.bit("no_rope_layers", i)?.unwrap_or(!(i + 1).is_multiple_of(every));
            if !rotates {
                l.attention.1.positions = Positions::None;
            }
            if slides(c, i, !rotates)? {
                l.attention.1.window = c.int("sliding_window")?;
            }
            Ok(())
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
