//! T5 (1.0 and 1.1): an encoder and a decoder, RMSNorm, biases by distance in buckets, unscaled scores, no biases elsewhere. Names and shapes of
//! `T5ForConditionalGeneration` (huggingface/transformers).

use super::sizes::buckets;
use crate::desc::*;
use crate::keys::*;
use crate::{Family, Roles, Tensors, dimensions_only};
use serde_json::json;

/// Longest text of encoder and of decoder, for which one line of buckets is made.
const POSITIONS: u64 = 4096;

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "t5",
    architecture: "T5ForConditionalGeneration",
    doc: "an encoder and a decoder: RMSNorm, biases by distance, ReLU or GEGLU",
    keys: &[&[
        vocab("32128"),
        width("d_model", "512", "width of the residual stream").required(),
        width("d_kv", "64", "width of a head; absent = d_model / num_heads").derived(Derive::HeadDim),
        width("d_ff", "2048", "width of the MLP; absent = 4 x d_model").derived(Derive::Mlp),
        layers("num_layers", "6", "blocks of the encoder").required(),
        layers("num_decoder_layers", "", "blocks of the decoder; absent = num_layers"),
        width("num_heads", "8", "attention heads").required(),
        width("relative_attention_num_buckets", "32", "rows of the biases by distance"),
        ids("relative_attention_max_distance", "128", "tokens at least so far apart share a row"),
        dropout("dropout_rate", "0.1", "dropout of embeddings, residual branches, attention weights and within the MLP"),
        positive("layer_norm_epsilon", "1e-6", "added to the mean square"),
        feed_forward("feed_forward_proj", "\"relu\""),
        tied("true"),
        flag("scale_decoder_outputs", "", "logits are divided by the root of d_model; absent = tie_word_embeddings"),
        count("decoder_start_token_id", "", "what a decoder begins with; absent = pad_token_id").unasked(),
        count("pad_token_id", "0", "what a decoder begins with").unasked(),
        only("is_encoder_decoder", "true", "an encoder or a decoder alone"),
        only("is_decoder", "false", "a decoder alone"),
    ]],
    harmless: "classifier_dropout dense_act_fn is_gated_act initializer_factor n_positions output_past tie_encoder_decoder",
    roles: Roles {
        layers: "num_layers", width: "d_model", heads: "num_heads", kv_heads: "", head_dim: "d_kv", mlp: "d_ff", positions: "", act: "",
        rope: ["", ""], dropout: ["", "dropout_rate", ""],
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: |c, out| _ = out.insert("decoder_start_token_id".into(), json!(c.get("decoder_start_token_id").or(c.get("pad_token_id")))),
    lora: &["q", "v"],
    fan_in_fan_out: false,
    // The first files have a table that no layer reads.
    tensors: Tensors { ignored: &["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
        copies: &[("encoder.embed_tokens.weight", "shared.weight"), ("decoder.embed_tokens.weight", "shared.weight")], within: &[], stacks: &[] },
};

/// Names of modules in one.
macro_rules! within {
    ($outer:literal: $($name:literal)*) => { [$(concat!($outer, ".", $name)),*] };
}

#[rustfmt::skip]
pub fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps, dropout) = (c.int("d_model")?, c.num("layer_norm_epsilon")?, c.num("dropout_rate")?);
    let (heads, head_dim, scale) = (c.int("num_heads")?, c.head_dim()?, 1.0);
    let (layers, pad) = (c.int("num_layers")?, c.int_or("pad_token_id", 0)?);
    let [far, rows] = buckets(c, "relative_attention_max_distance", "relative_attention_num_buckets")?;
    let ((gated, act), inner) = (c.feed_forward("feed_forward_proj")?, c.int_or("d_ff", 4 * width)?);
    let plain = |[q, k, v, o]: [&'static str; 4]| ([q, k, v].map(|n| linear(n, false)), linear(o, false));
    let own = |causal, first: bool| {
        let (qkv, out) = plain(within!("layer.0.SelfAttention": "q" "k" "v" "o"));
        let table = first.then_some("layer.0.SelfAttention.relative_attention_bias.weight");
        let positions = Positions::Buckets(Buckets { table, rows, far });
        Attention { qkv: Qkv::Separate(qkv), out, heads, kv_heads: heads, head_dim, scale, causal, dropout, positions, ..Attention::default() }
    };
    let norm = |name| Around::before(Norm::rms(name, eps));
    let mlp = |names| {
        let ([wi, gate, up], down) = plain(names);
        let up = if gated { Up::Gated([gate, up]) } else { Up::Plain(wi) };
        Mlp { up, down, width: inner, act }
    };
    let reads = |l: u64| {
        let mlp = (norm("layer.1.layer_norm"), mlp(within!("layer.1.DenseReluDense": "wi" "wi_0" "wi_1" "wo")));
        Layer { dropout, inner_dropout: dropout, ..Layer::of((norm("layer.0.layer_norm"), own(false, l == 0)), mlp) }
    };
    let writes = |l: u64| {
        let (qkv, out) = plain(within!("layer.1.EncDecAttention": "q" "k" "v" "o"));
        Layer {
            attention: (norm("layer.0.layer_norm"), own(true, l == 0)),
            cross: Some((norm("layer.1.layer_norm"), Cross { qkv, out, heads, head_dim, scale, dropout })),
            mlp: (norm("layer.2.layer_norm"), mlp(within!("layer.2.DenseReluDense": "wi" "wi_0" "wi_1" "wo"))),
            ..reads(l)
        }
    };
    let tied = c.flag("tie_word_embeddings");
    let scaled = c.flag("scale_decoder_outputs") || tied && !c.has("scale_decoder_outputs");
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?, positions: POSITIONS, width,
        base: "",
        stack: Stack {
            embed: Embed { prefix: "shared", table: "weight", dropout, ..Embed::default() },
            prefix: "encoder.block", layers: (0..layers).map(reads).collect(),
        },
        decoder: Some(Decoder {
            read: 0,
            tokens: [c.int_or("decoder_start_token_id", pad)?, pad],
            norm: Norm::rms("encoder.final_layer_norm", eps),
            dropout,
            prefix: "decoder.block",
            layers: (0..c.int_or("num_decoder_layers", layers)?).map(writes).collect(),
        }),
        head: Head {
            norm: Some(Norm::rms("decoder.final_layer_norm", eps)),
            dropout,
            lm: "lm_head",
            tied,
            scale: if scaled { (width as f64).powf(-0.5) } else { 0.0 },
            ..Head::default()
        },
        vision: None, balance: None, init: Init { std: 0.02, residual: 0.02 },
    })
}
