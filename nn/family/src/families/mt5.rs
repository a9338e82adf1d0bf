//! mT5: T5 1.1 of many languages, whose logits are never scaled. Names and shapes of `MT5ForConditionalGeneration` (huggingface/transformers).
//!
//! A `tie_word_embeddings` of true is read as transformers 5.x has it, which ties the head to the embedding without a scale where the files
//! hold no head; 4.x would scale the logits.

use super::t5;
use crate::Family;
use crate::desc::Model;
use crate::keys::*;

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "mt5",
    architecture: "MT5ForConditionalGeneration",
    doc: "T5 1.1 of many languages: GEGLU, logits without a scale",
    keys: &[&[
        vocab("250112"),
        width("d_model", "512", "width of the residual stream").required(),
        width("d_kv", "64", "width of a head; absent = d_model / num_heads").derived(Derive::HeadDim),
        width("d_ff", "1024", "width of the MLP; absent = 4 x d_model").derived(Derive::Mlp),
        layers("num_layers", "8", "blocks of the encoder").required(),
        layers("num_decoder_layers", "", "blocks of the decoder; absent = num_layers"),
        width("num_heads", "6", "attention heads").required(),
        width("relative_attention_num_buckets", "32", "rows of the biases by distance"),
        ids("relative_attention_max_distance", "128", "tokens at least so far apart share a row"),
        dropout("dropout_rate", "0.1", "dropout of embeddings, residual branches, attention weights and within the MLP"),
        positive("layer_norm_epsilon", "1e-6", "added to the mean square"),
        feed_forward("feed_forward_proj", "\"gated-gelu\""),
        tied("false"),
        count("decoder_start_token_id", "0", "what a decoder begins with").unasked(),
        count("pad_token_id", "0", "what a decoder reads in place of a label that does not count").unasked(),
        only("is_encoder_decoder", "true", "an encoder or a decoder alone"),
        only("is_decoder", "false", "a decoder alone"),
    ]],
    harmless: "classifier_dropout dense_act_fn is_gated_act initializer_factor n_positions output_past tie_encoder_decoder tokenizer_class",
    build,
    ..t5::FAMILY
};

fn build(c: &Config) -> Result<Model, ConfigError> {
    let mut m = t5::build(c)?;
    m.head.scale = 0.0;
    Ok(m)
}
