//! BERT: LayerNorm behind the sums, learned positions, tokens that see each other, a head of two layers. Names and shapes of `BertForMaskedLM` and
//! `BertForPreTraining` (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

/// The class with a next-sentence head.
const BOTH_HEADS: &str = "BertForPreTraining";

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "bert",
    architecture: "BertForMaskedLM",
    doc: "an encoder: LayerNorm behind the sums, learned positions, GELU",
    keys: &[&[
        vocab("30522"),
        width("hidden_size", "768", "width of the residual stream").required(),
        width("intermediate_size", "3072", "width of the MLP; absent = 4 x hidden_size").derived(Derive::Mlp),
        layers("num_hidden_layers", "12", "number of blocks").required(),
        width("num_attention_heads", "12", "attention heads").required(),
        ids("max_position_embeddings", "512", "longest sequence"),
        width("type_vocab_size", "2", "rows of the table of kinds of token"),
        activation("hidden_act", "\"gelu\""),
        positive("layer_norm_eps", "1e-12", "added to the variance"),
        only("tie_word_embeddings", "true", "a head of its own"),
        dropout("hidden_dropout_prob", "0.1", "dropout of embeddings and residual branches"),
        dropout("attention_probs_dropout_prob", "0.1", "dropout of attention weights"),
        padding("0"),
        init(),
        only("position_embedding_type", "\"absolute\"", "positions by distance"),
        only("is_decoder", "false", "tokens that see those before them only"),
        only("add_cross_attention", "false", "cross-attention"),
        only("chunk_size_feed_forward", "0", "the MLP in parts"),
        classes(&["BertForMaskedLM", BOTH_HEADS], "[\"BertForMaskedLM\"]"),
    ]],
    harmless: "classifier_dropout gradient_checkpointing pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head \
pooler_type directionality",
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
    // Of a class with another head, or none: published files have both heads, whichever class they name.
    tensors: Tensors {
        ignored: &["bert.pooler.", "pooler.", "cls.seq_relationship.", ".embeddings.position_ids", ".embeddings.token_type_ids"],
        ..Tensors::PLAIN
    },
};

/// The encoder of these keys without its head, whose names begin with `base` and, of embedding and layers, as `prefixes` say.
#[rustfmt::skip]
pub fn encoder(c: &Config, base: &'static str, prefixes: [&'static str; 2]) -> Result<Model, ConfigError> {
    let (width, eps, act) = (c.int("hidden_size")?, c.eps()?, c.act("hidden_act")?);
    let (heads, head_dim) = (c.int("num_attention_heads")?, c.head_dim()?);
    let (vocab, positions) = (c.int_or("vocab_size", 1)?, c.int("max_position_embeddings")?);
    let (dropout, std) = (c.num("hidden_dropout_prob")?, c.num("initializer_range")?);
    let names = ["attention.self.query", "attention.self.key", "attention.self.value"];
    let attention = Attention {
        qkv: Qkv::Separate(names.map(|n| linear(n, true))),
        out: linear("attention.output.dense", true),
        heads, head_dim, kv_heads: heads,
        dropout: c.num("attention_probs_dropout_prob")?,
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(linear("intermediate.dense", true)),
        down: linear("output.dense", true),
        width: c.int_or("intermediate_size", 4 * width)?,
        act,
    };
    let around = ["attention.output.LayerNorm", "output.LayerNorm"].map(|n| Around::sum(Norm::layer(n, eps)));
    let layer = Layer { dropout, ..Layer::of((around[0], attention), (around[1], mlp)) };
    Ok(Model {
        vocab, positions, width, base,
        stack: Stack {
            embed: Embed {
                prefix: prefixes[0],
                table: "word_embeddings.weight",
                padding: c.padding(vocab)?,
                positions: Some(Learned { table: "position_embeddings.weight", rows: positions, first: 0 }),
                kinds: Some(Kinds { table: "token_type_embeddings.weight", rows: c.int("type_vocab_size")?, read: 0 }),
                norm: Some(Norm::layer("LayerNorm", eps)),
                dropout,
                ..Embed::default()
            },
            prefix: prefixes[1],
            layers: vec![layer; c.int("num_hidden_layers")? as usize],
        },
        decoder: None, vision: None, balance: None,
        head: Head::default(),
        init: Init { std, residual: std },
    })
}

#[rustfmt::skip]
fn build(c: &Config) -> Result<Model, ConfigError> {
    let (eps, act) = (c.eps()?, c.act("hidden_act")?);
    let pair = Pair { layers: ["bert.pooler.dense", "cls.seq_relationship"], act: Act::Tanh, labelled: false };
    let mut m = encoder(c, "bert.", ["bert.embeddings", "bert.encoder.layer"])?;
    m.head = Head {
            before: Some(Before {
                linear: linear("cls.predictions.transform.dense", true),
                act,
                norm: Norm::layer("cls.predictions.transform.LayerNorm", eps),
            }),
            lm: "cls.predictions.decoder",
            tied: true, bias: Some("cls.predictions.bias"),
            pair: c.is_class(BOTH_HEADS).then_some(pair),
            ..Head::default()
        };
    Ok(m)
}
