//! Granite: Llama with factors of embeddings, scores, residual branches and logits. Names and shapes of `GraniteForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "granite",
    architecture: "GraniteForCausalLM",
    doc: "Llama with factors of embeddings, scores, residual branches and logits",
    keys: &[&sizes(Defaults {
        vocab: "32000", hidden: "4096", mlp: "11008", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        flag("mlp_bias", "false", "biases in the MLP"),
        positive("embedding_multiplier", "1.0", "factor of the embeddings"),
        positive("attention_multiplier", "1.0", "factor of the scores"),
        positive("residual_multiplier", "1.0", "factor of what attention and MLP add"),
        positive("logits_scaling", "1.0", "logits are divided by it"),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| {
        let bias = c.flag("attention_bias");
        let factor = |name| -> Result<f64, ConfigError> {
            let x = c.num(name)?;
            Ok(if x == 1.0 { 0.0 } else { x })
        };
        let mut m = llama::model(c, [bias, bias, c.flag("mlp_bias")], |_, l| {
            l.attention.1.scale = c.num("attention_multiplier")?;
            l.factor = factor("residual_multiplier")?;
            Ok(())
        })?;
        m.stack.embed.scale = factor("embedding_multiplier")?;
        m.head.scale = match factor("logits_scaling")? {
            0.0 => 0.0,
            by => 1.0 / by,
        };
        Ok(m)
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
