//! Qwen3: Llama with a norm over each head of q and k. Names and shapes of `Qwen3ForCausalLM` (huggingface/transformers).

use super::llama;
use super::qwen2::{WINDOWS, windowed};
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Norm, Over, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "qwen3",
    architecture: "Qwen3ForCausalLM",
    doc: "Llama with norms of q and k",
    keys: &[&sizes(Defaults {
        vocab: "151936", hidden: "4096", mlp: "22016", layers: "32", heads: "32", kv_heads: "32", head_dim: "128", positions: "32768",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &WINDOWS, &[
        flag("attention_bias", "false", "biases in the attention projections"),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| {
        let (bias, eps) = (c.flag("attention_bias"), c.num("rms_norm_eps")?);
        llama::model(c, [bias, bias, false], |i, l| {
            let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|n| Norm::rms(n, eps));
            l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Head });
            windowed(c, i, l)
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
