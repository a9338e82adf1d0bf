//! OLMo 2: Llama whose norms stand behind attention and MLP, with norms over all heads of q and of k. Names and shapes of
//! `Olmo2ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Around, Layer, Model, Norm, Over, QkNorm};
use crate::keys::*;
use crate::rope::typed_scaling;
use crate::{Family, ROLES, Tensors};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "olmo2",
    architecture: "Olmo2ForCausalLM",
    doc: "Llama with norms behind attention and MLP",
    keys: &[&sizes(Defaults {
        vocab: "50304", hidden: "4096", mlp: "11008", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-5", tied: "false", pad: "1",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| model(c, |_, _| Ok(())),
    nested: not_nested,
    export: typed_scaling,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// The OLMo of these keys; `change` makes each layer what it is.
pub fn model(
    c: &Config,
    change: impl Fn(u64, &mut Layer) -> Result<(), ConfigError>,
) -> Result<Model, ConfigError> {
    let (bias, eps) = (c.flag("attention_bias"), c.eps()?);
    llama::model(c, [bias, bias, false], |i, l| {
        let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|n| Norm::rms(n, eps));
        let over = Over::All;
        l.attention.1.qk_norm = Some(QkNorm { norms, over });
        l.attention.0 = Around::after(Norm::rms("post_attention_layernorm", eps));
        l.mlp.0 = Around::after(Norm::rms("post_feedforward_layernorm", eps));
        change(i, l)
    })
}
