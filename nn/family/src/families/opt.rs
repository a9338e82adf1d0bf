//! OPT: LayerNorm before or behind, learned positions from row 2, ReLU. Names and shapes of `OPTForCausalLM` (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "opt",
    architecture: "OPTForCausalLM",
    doc: "LayerNorm, learned positions, ReLU",
    keys: &[&[
        vocab("50272"),
        width("hidden_size", "768", "width of the residual stream").required(),
        width("word_embed_proj_dim", "", "width of the embedding; absent = hidden_size").derived(Derive::Width).nullable(),
        width("ffn_dim", "3072", "width of the MLP; absent = 4 x hidden_size").derived(Derive::Mlp),
        layers("num_hidden_layers", "12", "number of blocks").required(),
        width("num_attention_heads", "12", "attention heads").required(),
        ids("max_position_embeddings", "2048", "longest sequence"),
        activation("activation_function", "\"relu\""),
        tied("true"),
        flag("do_layer_norm_before", "true", "norms stand before attention and MLP, else behind the sums"),
        flag("_remove_final_layer_norm", "false", "no norm before the head").unasked(),
        flag("enable_bias", "true", "biases in attention and MLP"),
        dropout("dropout", "0.1", "dropout of residual branches"),
        dropout("attention_dropout", "0.0", "dropout of attention weights"),
        only("layerdrop", "0.0", "layers that are left out at random"),
        only("layer_norm_elementwise_affine", "true", "norms without weights"),
        padding("1"),
        positive("init_std", "0.02", "standard deviation of the starting weights").unasked(),
    ]],
    harmless: "activation_dropout",
    roles: Roles {
        kv_heads: "", head_dim: "", mlp: "ffn_dim", act: "activation_function", rope: ["", ""],
        dropout: ["", "dropout", "attention_dropout"],
        ..ROLES
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    // The number of a format, from fairseq.
    tensors: Tensors { ignored: &["model.decoder.version", "decoder.version"], copies: &[], within: &[], stacks: &[] },
};

fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, bias) = (c.int("hidden_size")?, c.flag("enable_bias"));
    let (heads, head_dim) = (c.int("num_attention_heads")?, c.head_dim()?);
    let (positions, std) = (c.int("max_position_embeddings")?, c.num("init_std")?);
    let vocab = c.int_or("vocab_size", 1)?;
    let table = c.int_or("word_embed_proj_dim", width)?;
    let names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    let attention = Attention {
        qkv: Qkv::Separate(names.map(|n| linear(n, bias))),
        out: linear("self_attn.out_proj", bias),
        heads,
        kv_heads: heads,
        head_dim,
        causal: true,
        dropout: c.num("attention_dropout")?,
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(linear("fc1", bias)),
        down: linear("fc2", bias),
        width: c.int_or("ffn_dim", 4 * width)?,
        act: c.act("activation_function")?,
    };
    let before = c.flag("do_layer_norm_before");
    let around = ["self_attn_layer_norm", "final_layer_norm"].map(|n| match before {
        true => Around::before(Norm::layer(n, 1e-5)),
        false => Around::sum(Norm::layer(n, 1e-5)),
    });
    let layer = Layer {
        dropout: c.num("dropout")?,
        ..Layer::of((around[0], attention), (around[1], mlp))
    };
    let last = before && !c.flag("_remove_final_layer_norm");
    Ok(Model {
        vocab,
        positions,
        width,
        base: "model.",
        stack: Stack {
            embed: Embed {
                prefix: "model.decoder",
                table: "embed_tokens.weight",
                project: (table != width).then_some((table, "project_in")),
                padding: c.padding(vocab)?,
                positions: Some(Learned {
                    table: "embed_positions.weight",
                    rows: positions + 2,
                    first: 2,
                }),
                ..Embed::default()
            },
            prefix: "model.decoder.layers",
            layers: vec![layer; c.int("num_hidden_layers")? as usize],
        },
        decoder: None,
        vision: None,
        balance: None,
        head: Head {
            norm: last.then_some(Norm::layer("model.decoder.final_layer_norm", 1e-5)),
            project: "model.decoder.project_out",
            lm: "lm_head",
            tied: c.flag("tie_word_embeddings"),
            ..Head::default()
        },
        init: Init { std, residual: std },
    })
}
