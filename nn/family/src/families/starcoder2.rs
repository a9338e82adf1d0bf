//! StarCoder2: LayerNorm, RoPE, a window, biases everywhere, an MLP that is not gated. Names and shapes of `Starcoder2ForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset_heads, sizes_by};
use crate::desc::{NormKind, Up, linear};
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    doc: "LayerNorm, RoPE, a window, GELU",
    keys: &[&sizes_by("norm_epsilon", Defaults {
        vocab: "49152", hidden: "3072", mlp: "12288", layers: "30", heads: "24", kv_heads: "2", head_dim: "", positions: "4096",
        eps: "1e-5", tied: "true", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"gelu_pytorch_tanh\""),
        flag("use_bias", "true", "biases in attention and MLP"),
        window(""),
        dropout("residual_dropout", "0.0", "dropout of residual branches"),
        dropout("embedding_dropout", "0.0", "dropout of embeddings"),
    ]],
    harmless: "",
    roles: Roles { dropout: ["embedding_dropout", "residual_dropout", "attention_dropout"], ..ROLES },
    preset: preset_heads,
    build: |c| {
        let bias = c.flag("use_bias");
        let mut m = llama::model(c, [bias; 3], |_, l| {
            l.mlp.1.up = Up::Plain(linear("mlp.c_fc", bias));
            l.mlp.1.down = linear("mlp.c_proj", bias);
            l.attention.1.window = c.int_or("sliding_window", 0)?;
            l.dropout = c.num("residual_dropout")?;
            Ok(())
        })?;
        m.stack.embed.dropout = c.num("embedding_dropout")?;
        Ok(m.normed_by(NormKind::Layer))
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
