//! Phi (1, 1.5, 2): LayerNorm, half of each head rotated, attention and MLP behind one norm, a head with a bias. Names and shapes of
//! `PhiForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset_heads, sizes_by};
use crate::desc::{Around, Norm, NormKind, Order, Over, QkNorm, Up, linear};
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "phi",
    architecture: "PhiForCausalLM",
    doc: "LayerNorm, partial RoPE, GELU, attention and MLP side by side",
    keys: &[&sizes_by("layer_norm_eps", Defaults {
        vocab: "51200", hidden: "2048", mlp: "8192", layers: "24", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"gelu_new\""),
        rotated("partial_rotary_factor", "0.5"),
        dropout("resid_pdrop", "0.0", "dropout of residual branches"),
        dropout("embd_pdrop", "0.0", "dropout of embeddings"),
        flag("qk_layernorm", "false", "layer norms of each head of q and k"),
    ]],
    harmless: "",
    roles: Roles { dropout: ["embd_pdrop", "resid_pdrop", "attention_dropout"], ..ROLES },
    preset: preset_heads,
    build: |c| {
        let eps = c.eps()?;
        let mut m = llama::model(c, [true; 3], |_, l| {
            l.order = Order::Shared;
            l.mlp.0 = Around::default();
            l.attention.1.out = linear("self_attn.dense", true);
            l.mlp.1.up = Up::Plain(linear("mlp.fc1", true));
            l.mlp.1.down = linear("mlp.fc2", true);
            l.dropout = c.num("resid_pdrop")?;
            if c.flag("qk_layernorm") {
                let names = ["self_attn.q_layernorm", "self_attn.k_layernorm"];
                let norms = names.map(|n| Norm::layer(n, eps));
                l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Head });
            }
            Ok(())
        })?;
        m.stack.embed.dropout = c.num("embd_pdrop")?;
        m.head.bias = Some("lm_head.bias");
        if let Some(norm) = &mut m.head.norm {
            norm.name = "model.final_layernorm";
        }
        Ok(m.normed_by(NormKind::Layer))
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj", "fc1", "fc2"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
