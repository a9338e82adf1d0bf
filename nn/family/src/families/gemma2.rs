//! Gemma 2: Llama with norms around attention and MLP scaled by `1 + w`, GEGLU, soft caps, a window in every other layer, and embeddings times
//! the root of the width. Names and shapes of `Gemma2ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Around, Layer, Model, Norm, NormKind};
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gemma2",
    architecture: "Gemma2ForCausalLM",
    doc: "norms on both sides, GEGLU, soft caps, a window in every other layer",
    keys: &[&sizes(Defaults {
        vocab: "256000", hidden: "2304", mlp: "9216", layers: "26", heads: "8", kv_heads: "4", head_dim: "256", positions: "8192",
        eps: "1e-6", tied: "true", pad: "0",
    }), &rope("10000.0"), &GEMMA, &[
        positive("attn_logit_softcapping", "50.0", "soft cap of the scores; absent = none").fresh("").nullable(),
        positive("final_logit_softcapping", "30.0", "soft cap of the logits; absent = none").fresh("").nullable(),
        window("4096").fresh("4096"),
    ]],
    harmless: "hidden_act",
    roles: Roles { act: "hidden_activation", ..ROLES },
    preset,
    build: |c| model(c, |i, l| {
        l.attention.1.cap = c.num_or_zero("attn_logit_softcapping");
        if c.sliding(i)?.unwrap_or(i % 2 == 0) {
            l.attention.1.window = c.int("sliding_window")?;
        }
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// Keys that every Gemma has.
#[rustfmt::skip]
pub const GEMMA: [Key; 5] = [
    activation("hidden_activation", "\"gelu_pytorch_tanh\""),
    flag("attention_bias", "false", "biases in the attention projections"),
    positive("query_pre_attn_scalar", "256", "scores are divided by its root; absent = head_dim").derived(Derive::HeadDim),
    layer_types(),
    only("use_bidirectional_attention", "false", "tokens that see those after them"),
];

/// The Gemma of these keys; `change` makes each layer what it is.
pub fn model(
    c: &Config,
    change: impl Fn(u64, &mut Layer) -> Result<(), ConfigError>,
) -> Result<Model, ConfigError> {
    let (bias, eps) = (c.flag("attention_bias"), c.num("rms_norm_eps")?);
    let norm = |name| Norm {
        name,
        kind: NormKind::RmsPlusOne,
        eps,
    };
    let around = |before, after| Around::both(norm(before), norm(after));
    let mut m = llama::model(c, [bias, bias, false], |i, l| {
        l.attention.0 = around("input_layernorm", "post_attention_layernorm");
        l.mlp.0 = around("pre_feedforward_layernorm", "post_feedforward_layernorm");
        if c.has("query_pre_attn_scalar") {
            l.attention.1.scale = c.num("query_pre_attn_scalar")?.powf(-0.5);
        }
        change(i, l)
    })?;
    m.stack.embed.scale = (m.width as f64).sqrt();
    m.head.norm = Some(norm("model.norm"));
    m.head.cap = c.num_or_zero("final_logit_softcapping");
    Ok(m)
}
