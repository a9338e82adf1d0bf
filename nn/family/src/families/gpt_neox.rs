//! GPT-NeoX: LayerNorm, a quarter of each head rotated, attention and MLP side by side. Names and shapes of `GPTNeoXForCausalLM`
//! (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::rope::rotary;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gpt_neox",
    architecture: "GPTNeoXForCausalLM",
    doc: "LayerNorm, partial RoPE, GELU, attention and MLP side by side",
    keys: &[&[
        vocab("50432"),
        width("hidden_size", "6144", "width of the residual stream").required(),
        width("intermediate_size", "24576", "width of the MLP; absent = 4 x hidden_size").derived(Derive::Mlp),
        layers("num_hidden_layers", "44", "number of blocks").required(),
        width("num_attention_heads", "64", "attention heads").required(),
        ids("max_position_embeddings", "2048", "longest sequence"),
        positive("layer_norm_eps", "1e-5", "added to the variance"),
        activation("hidden_act", "\"gelu\""),
        tied("false"),
        dropout("attention_dropout", "0.0", "dropout of attention weights"),
        dropout("hidden_dropout", "0.0", "dropout of embeddings and residual branches"),
        flag("use_parallel_residual", "true", "attention and MLP both see what goes into the block"),
        flag("attention_bias", "true", "biases in the attention projections"),
        rotated("rotary_pct", "0.25"),
        init(),
    ], &rope_by("rotary_emb_base", "10000.0")],
    harmless: "classifier_dropout is_decoder",
    roles: Roles {
        kv_heads: "", head_dim: "", rope: ["rotary_emb_base", "rotary_pct"],
        dropout: ["", "hidden_dropout", "attention_dropout"],
        ..ROLES
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: keys_only,
    lora: &["query_key_value"],
    fan_in_fan_out: false,
    // Every Pythia has the masks.
    tensors: Tensors { ignored: &[".attention.bias", ".attention.masked_bias"], copies: &[], within: &[], stacks: &[] },
};

fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps) = (c.int("hidden_size")?, c.num("layer_norm_eps")?);
    let (heads, head_dim) = (c.int("num_attention_heads")?, c.head_dim()?);
    let (bias, std) = (c.flag("attention_bias"), c.num("initializer_range")?);
    let dropout = c.num("hidden_dropout")?;
    let attention = Attention {
        qkv: Qkv::ByHead(linear("attention.query_key_value", bias)),
        out: linear("attention.dense", bias),
        heads,
        kv_heads: heads,
        head_dim,
        causal: true,
        dropout: c.num("attention_dropout")?,
        positions: Positions::Rotary(rotary(c, c.rotated()?)?),
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(linear("mlp.dense_h_to_4h", true)),
        down: linear("mlp.dense_4h_to_h", true),
        width: c.int_or("intermediate_size", 4 * width)?,
        act: c.act("hidden_act")?,
    };
    let norms = ["input_layernorm", "post_attention_layernorm"].map(|n| Norm::layer(n, eps));
    let layer = Layer {
        order: match c.flag("use_parallel_residual") {
            true => Order::Parallel,
            false => Order::Sequential,
        },
        dropout,
        ..Layer::new((norms[0], attention), (norms[1], mlp))
    };
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?,
        positions: c.int("max_position_embeddings")?,
        width,
        base: "gpt_neox.",
        stack: Stack {
            embed: Embed {
                prefix: "gpt_neox",
                table: "embed_in.weight",
                dropout,
                ..Embed::default()
            },
            prefix: "gpt_neox.layers",
            layers: vec![layer; c.int("num_hidden_layers")? as usize],
        },
        decoder: None,
        vision: None,
        balance: None,
        head: Head {
            norm: Some(Norm::layer("gpt_neox.final_layer_norm", eps)),
            lm: "embed_out",
            tied: c.flag("tie_word_embeddings"),
            ..Head::default()
        },
        init: Init { std, residual: std },
    })
}
