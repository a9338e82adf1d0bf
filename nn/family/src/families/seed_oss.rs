//! Seed-OSS: Llama with biases in q, k and v, and dropout of residual branches. Names and shapes of `SeedOssForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes, with_attention_dropout};
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "seed_oss",
    architecture: "SeedOssForCausalLM",
    doc: "Llama with biases in q, k and v, and dropout of residual branches",
    keys: &[&with_attention_dropout("0.1", sizes(Defaults {
        vocab: "155136", hidden: "4096", mlp: "27648", layers: "64", heads: "80", kv_heads: "8", head_dim: "128", positions: "524288",
        eps: "1e-6", tied: "false", pad: "1",
    })), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "true", "biases in q, k and v"),
        flag("attention_out_bias", "false", "a bias in the output of attention"),
        flag("mlp_bias", "false", "biases in the MLP"),
        dropout("residual_dropout", "0.1", "dropout of residual branches"),
    ]],
    harmless: "pretraining_tp",
    roles: Roles { dropout: ["", "residual_dropout", "attention_dropout"], ..ROLES },
    preset,
    build: |c| llama::model(c, ["attention_bias", "attention_out_bias", "mlp_bias"].map(|key| c.flag(key)), |_, l| {
        l.dropout = c.num("residual_dropout")?;
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
