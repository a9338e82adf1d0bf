//! Phi-3: Llama whose q, k and v are one layer, and gate and up another. Names and shapes of `Phi3ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Qkv, Up, linear};
use crate::keys::*;
use crate::rope::typed_scaling;
use crate::{Family, ROLES, Roles, Tensors};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "phi3",
    architecture: "Phi3ForCausalLM",
    doc: "Llama with fused projections",
    keys: &[&sizes(Defaults {
        vocab: "32064", hidden: "3072", mlp: "8192", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "4096",
        eps: "1e-5", tied: "false", pad: "32000",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        window(""),
        rotated("partial_rotary_factor", "1.0"),
        ids("original_max_position_embeddings", "4096", "length of the short rotary factors").unasked(),
        dropout("resid_pdrop", "0.0", "dropout of residual branches"),
    ]],
    // Its blocks have no dropout of embeddings.
    harmless: "embd_pdrop",
    roles: Roles { dropout: ["", "resid_pdrop", "attention_dropout"], ..ROLES },
    preset,
    build: |c| llama::model(c, [false; 3], |_, l| {
        l.attention.1.qkv = Qkv::Fused(linear("self_attn.qkv_proj", false));
        l.mlp.1.up = Up::GatedFused(linear("mlp.gate_up_proj", false));
        l.attention.1.window = c.int_or("sliding_window", 0)?;
        l.dropout = c.num("resid_pdrop")?;
        Ok(())
    }),
    nested: not_nested,
    export: typed_scaling,
    lora: &["qkv_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
