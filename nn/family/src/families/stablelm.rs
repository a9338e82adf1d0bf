//! StableLM: Llama with LayerNorm, a quarter of each head rotated, and attention beside the MLP where asked. Names and shapes of
//! `StableLmForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset_heads, sizes_by};
use crate::desc::{Around, Norm, NormKind, Order, Over, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "stablelm",
    architecture: "StableLmForCausalLM",
    doc: "Llama with LayerNorm and partial RoPE",
    keys: &[&sizes_by("layer_norm_eps", Defaults {
        vocab: "50304", hidden: "2560", mlp: "6912", layers: "32", heads: "32", kv_heads: "32", head_dim: "", positions: "4096",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("use_qkv_bias", "false", "biases in q, k and v"),
        flag("use_parallel_residual", "false", "attention and MLP both see the norm of what goes into the block"),
        rotated("partial_rotary_factor", "0.25"),
        flag("qk_layernorm", "false", "a norm of its own for each head of q and k"),
        only("hidden_dropout", "0.0", "dropout of the MLP alone"),
    ]],
    harmless: "",
    roles: ROLES,
    preset: preset_heads,
    build: |c| {
        let own = c.int("hidden_size")? / c.int("num_attention_heads")?;
        if c.head_dim()? != own {
            return bad("head_dim", format!("this family's is hidden_size / num_attention_heads, {own}"));
        }
        let eps = c.eps()?;
        let m = llama::model(c, [c.flag("use_qkv_bias"), false, false], |_, l| {
            if c.flag("use_parallel_residual") {
                l.order = Order::Shared;
                l.mlp.0 = Around::default();
            }
            if c.flag("qk_layernorm") {
                let norms = ["self_attn.q_layernorm", "self_attn.k_layernorm"].map(|n| Norm::layer(n, eps));
                l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Apart });
            }
            Ok(())
        })?;
        Ok(m.normed_by(NormKind::Layer))
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
