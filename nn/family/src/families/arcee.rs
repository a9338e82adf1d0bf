//! Arcee (AFM): Llama whose MLP is squared ReLU between two layers. Names and shapes of `ArceeForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Up, linear};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "arcee",
    architecture: "ArceeForCausalLM",
    doc: "Llama with a squared ReLU between the two layers of the MLP",
    keys: &[&sizes(Defaults {
        vocab: "32000", hidden: "2560", mlp: "18432", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "4096",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"relu2\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        flag("mlp_bias", "false", "biases in the MLP"),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| {
        let (bias, mlp) = (c.flag("attention_bias"), c.flag("mlp_bias"));
        llama::model(c, [bias, bias, mlp], |_, l| {
            l.mlp.1.up = Up::Plain(linear("mlp.up_proj", mlp));
            Ok(())
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
