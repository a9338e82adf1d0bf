//! Hunyuan (the dense models): Llama with a norm over each head of q and k behind the rotation. Names and shapes of
//! `HunYuanDenseV1ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Norm, Over, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "hunyuan_v1_dense",
    architecture: "HunYuanDenseV1ForCausalLM",
    doc: "Llama with norms of q and k behind the rotation",
    keys: &[&sizes(Defaults {
        vocab: "290943", hidden: "4096", mlp: "11008", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-5", tied: "false", pad: "0",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
    ]],
    // Published files say that they have the norms, and the class has them whatever they say.
    harmless: "pretraining_tp eod_token_id use_qk_norm",
    roles: ROLES,
    preset,
    build: |c| {
        let (bias, eps) = (c.flag("attention_bias"), c.eps()?);
        llama::model(c, [bias, bias, false], |_, l| {
            let norms = ["self_attn.query_layernorm", "self_attn.key_layernorm"].map(|n| Norm::rms(n, eps));
            l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Head });
            l.attention.1.rotates_first = true;
            Ok(())
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
