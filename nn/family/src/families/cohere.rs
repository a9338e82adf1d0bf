//! Cohere (Command R): LayerNorm without a bias, attention and gated MLP behind one norm, neighbours as rotary pairs, a factor of the logits.
//! Names and shapes of `CohereForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset_heads, sizes_by};
use crate::desc::{Around, Layer, Model, Norm, NormKind, Order, Over, Positions, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "cohere",
    architecture: "CohereForCausalLM",
    doc: "LayerNorm without a bias, attention and MLP side by side",
    keys: &[&COHERE, &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        positive("logit_scale", "0.0625", "factor of the logits"),
        flag("use_qk_norm", "false", "a norm of its own for each head of q and k"),
    ]],
    harmless: "",
    roles: ROLES,
    preset: preset_heads,
    build: |c| {
        let eps = c.eps()?;
        model(c, |_, l| {
            if c.flag("use_qk_norm") {
                let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|n| Norm::layer(n, eps));
                l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Rows });
            }
            Ok(())
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// Sizes of both generations.
#[rustfmt::skip]
pub const COHERE: [Key; 13] = sizes_by("layer_norm_eps", Defaults {
    vocab: "256000", hidden: "8192", mlp: "22528", layers: "40", heads: "64", kv_heads: "", head_dim: "", positions: "8192",
    eps: "1e-5", tied: "true", pad: "0",
});

/// The Cohere of these keys; `change` makes each layer what it is.
pub fn model(
    c: &Config,
    change: impl Fn(u64, &mut Layer) -> Result<(), ConfigError>,
) -> Result<Model, ConfigError> {
    let bias = c.flag("attention_bias");
    let mut m = llama::model(c, [bias, bias, false], |i, l| {
        l.order = Order::Shared;
        l.mlp.0 = Around::default();
        if let Positions::Rotary(r) = &mut l.attention.1.positions {
            r.interleaved = true;
        }
        change(i, l)
    })?;
    m.head.scale = c.num("logit_scale")?;
    Ok(m.normed_by(NormKind::LayerNoBias))
}
