//! Llama: pre-RMSNorm, rotary positions, SwiGLU, grouped-query attention. Names and shapes of `LlamaForCausalLM` (huggingface/transformers).

use super::sizes::{Defaults, preset, sizes};
use crate::desc::*;
use crate::keys::*;
use crate::rope::rotary;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "llama",
    architecture: "LlamaForCausalLM",
    doc: "RMSNorm, RoPE, SwiGLU, grouped-query attention",
    keys: &[&sizes(Defaults {
        vocab: "32000", hidden: "4096", mlp: "11008", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        flag("mlp_bias", "false", "biases in the MLP"),
    ]],
    harmless: "pretraining_tp",
    roles: ROLES,
    preset,
    build: |c| {
        let bias = c.flag("attention_bias");
        model(c, [bias, bias, c.flag("mlp_bias")], |_, _| Ok(()))
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// The llama of these keys, with biases of q, k and v, of the output and of the MLP as stated; `change` makes each layer what it is.
pub fn model(
    c: &Config,
    [qkv, out, mlp]: [bool; 3],
    change: impl Fn(u64, &mut Layer) -> Result<(), ConfigError>,
) -> Result<Model, ConfigError> {
    let (width, eps) = (c.int("hidden_size")?, c.eps()?);
    let vocab = c.int_or("vocab_size", 1)?;
    let (heads, head_dim) = (c.int("num_attention_heads")?, c.head_dim()?);
    let std = c.num("initializer_range")?;
    let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    let attention = Attention {
        qkv: Qkv::Separate(names.map(|n| linear(n, qkv))),
        out: linear("self_attn.o_proj", out),
        heads,
        kv_heads: c.int_or("num_key_value_heads", heads)?,
        head_dim,
        causal: true,
        dropout: c.num_or_zero("attention_dropout"),
        positions: Positions::Rotary(rotary(c, c.rotated()?)?),
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Gated(["mlp.gate_proj", "mlp.up_proj"].map(|n| linear(n, mlp))),
        down: linear("mlp.down_proj", mlp),
        width: c.int_or("intermediate_size", (8 * width / 3).div_ceil(64) * 64)?,
        act: c.act(c.family.roles.act)?,
    };
    let layer = |l: u64| -> Result<Layer, ConfigError> {
        let norms = ["input_layernorm", "post_attention_layernorm"].map(|n| Norm::rms(n, eps));
        let mut layer = Layer::new((norms[0], attention.clone()), (norms[1], mlp));
        change(l, &mut layer)?;
        Ok(layer)
    };
    let layers = (0..c.int("num_hidden_layers")?).map(layer);
    Ok(Model {
        vocab,
        positions: c.int("max_position_embeddings")?,
        width,
        base: "model.",
        stack: Stack {
            embed: Embed {
                prefix: "model",
                table: "embed_tokens.weight",
                padding: c.padding(vocab)?,
                ..Embed::default()
            },
            prefix: "model.layers",
            layers: layers.collect::<Result<_, _>>()?,
        },
        decoder: None,
        vision: None,
        balance: None,
        head: Head {
            norm: Some(Norm::rms("model.norm", eps)),
            lm: "lm_head",
            tied: c.flag("tie_word_embeddings"),
            ..Head::default()
        },
        init: Init { std, residual: std },
    })
}
