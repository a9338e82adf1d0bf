//! RoBERTa and XLM-RoBERTa: BERT with positions from the row behind that of padding, and a head whose names are its own. Names and shapes of
//! `RobertaForMaskedLM` and `XLMRobertaForMaskedLM` (huggingface/transformers).

use super::bert::encoder;
use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
const KEYS: [Key; 16] = [
    width("hidden_size", "768", "width of the residual stream").required(),
    width("intermediate_size", "3072", "width of the MLP; absent = 4 x hidden_size").derived(Derive::Mlp),
    layers("num_hidden_layers", "12", "number of blocks").required(),
    width("num_attention_heads", "12", "attention heads").required(),
    ids("max_position_embeddings", "512", "rows of the table of positions: the longest sequence, pad_token_id and one more"),
    width("type_vocab_size", "2", "rows of the table of kinds of token"),
    activation("hidden_act", "\"gelu\""),
    positive("layer_norm_eps", "1e-12", "added to the variance"),
    only("tie_word_embeddings", "true", "a head of its own"),
    dropout("hidden_dropout_prob", "0.1", "dropout of embeddings and residual branches"),
    dropout("attention_probs_dropout_prob", "0.1", "dropout of attention weights"),
    count("pad_token_id", "1", "tokens of this id add nothing to the embedding's gradient; positions begin in the row behind this one"),
    init(),
    only("position_embedding_type", "\"absolute\"", "positions by distance"),
    only("is_decoder", "false", "tokens that see those before them only"),
    only("add_cross_attention", "false", "cross-attention"),
];

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "roberta",
    architecture: "RobertaForMaskedLM",
    doc: "BERT with positions behind the row of padding",
    keys: &[&[vocab("50265")], &KEYS],
    harmless: "classifier_dropout gradient_checkpointing",
    roles: Roles {
        kv_heads: "", head_dim: "", rope: ["", ""],
        dropout: ["", "hidden_dropout_prob", "attention_probs_dropout_prob"],
        ..ROLES
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: keys_only,
    lora: &["query", "value"],
    fan_in_fan_out: false,
    tensors: Tensors {
        ignored: &["roberta.pooler.", "pooler.", ".embeddings.position_ids", ".embeddings.token_type_ids"],
        copies: &[],
        within: &[],
        stacks: &[],
    },
};

pub const XLM_ROBERTA: Family = Family {
    name: "xlm-roberta",
    architecture: "XLMRobertaForMaskedLM",
    doc: "RoBERTa of many languages",
    keys: &[&[vocab("30522")], &KEYS],
    ..FAMILY
};

#[rustfmt::skip]
fn build(c: &Config) -> Result<Model, ConfigError> {
    let (eps, rows, vocab) = (c.eps()?, c.int("max_position_embeddings")?, c.int_or("vocab_size", 1)?);
    let Some(pad) = c.padding(vocab)? else {
        return bad("pad_token_id", "null is not available: positions begin in the row behind it");
    };
    let first = pad + 1;
    if first >= rows {
        return bad("max_position_embeddings", format!("{rows} rows leave no position behind that of pad_token_id {pad}"));
    }
    let mut m = encoder(c, "roberta.", ["roberta.embeddings", "roberta.encoder.layer"])?;
    m.positions = rows - first;
    m.stack.embed.positions = Some(Learned { table: "position_embeddings.weight", rows, first });
    m.head = Head {
        before: Some(Before {
            linear: linear("lm_head.dense", true),
            // The class takes this one, whatever the layers take.
            act: Act::GeluErf,
            norm: Norm::layer("lm_head.layer_norm", eps),
        }),
        lm: "lm_head.decoder",
        tied: true,
        bias: Some("lm_head.bias"),
        ..Head::default()
    };
    Ok(m)
}
