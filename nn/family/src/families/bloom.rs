//! BLOOM: LayerNorm, also of the embeddings, biases by distance (ALiBi), GELU. Names and shapes of `BloomForCausalLM`
//! (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "bloom",
    architecture: "BloomForCausalLM",
    doc: "LayerNorm, ALiBi, GELU",
    keys: &[&[
        vocab("250880"),
        width("hidden_size", "64", "width of the residual stream").required(),
        layers("n_layer", "2", "number of blocks").required(),
        width("n_head", "8", "attention heads").required(),
        ids("seq_length", "2048", "longest sequence"),
        positive("layer_norm_epsilon", "1e-5", "added to the variance"),
        tied("true"),
        dropout("attention_dropout", "0.0", "dropout of attention weights"),
        dropout("hidden_dropout", "0.0", "dropout of residual branches"),
        flag("apply_residual_connection_post_layernorm", "false", "the results of the norms are what is added to"),
        init(),
    ]],
    harmless: "pretraining_tp slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi skip_bias_add \
skip_bias_add_qkv",
    roles: Roles {
        layers: "n_layer", heads: "n_head", kv_heads: "", head_dim: "", mlp: "", positions: "seq_length", act: "",
        dropout: ["", "hidden_dropout", "attention_dropout"],
        ..ROLES
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: keys_only,
    lora: &["query_key_value"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps) = (c.int("hidden_size")?, c.num("layer_norm_epsilon")?);
    let (heads, head_dim) = (c.int("n_head")?, c.head_dim()?);
    let std = c.num("initializer_range")?;
    let attention = Attention {
        qkv: Qkv::ByHead(linear("self_attention.query_key_value", true)),
        out: linear("self_attention.dense", true),
        heads,
        kv_heads: heads,
        head_dim,
        causal: true,
        dropout: c.num("attention_dropout")?,
        positions: Positions::Alibi,
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(linear("mlp.dense_h_to_4h", true)),
        down: linear("mlp.dense_4h_to_h", true),
        width: 4 * width,
        act: Act::GeluTanh,
    };
    let norms = ["input_layernorm", "post_attention_layernorm"].map(|n| Norm::layer(n, eps));
    let layer = Layer {
        residual_of_norm: c.flag("apply_residual_connection_post_layernorm"),
        dropout: c.num("hidden_dropout")?,
        ..Layer::new((norms[0], attention), (norms[1], mlp))
    };
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?,
        positions: c.int("seq_length")?,
        width,
        base: "transformer.",
        stack: Stack {
            embed: Embed {
                prefix: "transformer",
                table: "word_embeddings.weight",
                norm: Some(Norm::layer("word_embeddings_layernorm", eps)),
                ..Embed::default()
            },
            prefix: "transformer.h",
            layers: vec![layer; c.int("n_layer")? as usize],
        },
        decoder: None,
        vision: None,
        balance: None,
        head: Head {
            norm: Some(Norm::layer("transformer.ln_f", eps)),
            lm: "lm_head",
            tied: c.flag("tie_word_embeddings"),
            ..Head::default()
        },
        init: Init { std, residual: std },
    })
}
