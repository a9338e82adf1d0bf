//! Falcon: LayerNorm, RoPE, GELU; attention and MLP side by side behind one norm or two, one key-value head or some. Names and shapes of
//! `FalconForCausalLM` (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::rope::rotary;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "falcon",
    architecture: "FalconForCausalLM",
    doc: "LayerNorm, RoPE, GELU, attention and MLP side by side",
    keys: &[&[
        vocab("65024"),
        width("hidden_size", "4544", "width of the residual stream").required(),
        layers("num_hidden_layers", "32", "number of blocks").required(),
        width("num_attention_heads", "71", "query heads").required(),
        width("num_kv_heads", "", "key/value heads of the new architecture; absent = num_attention_heads").nullable(),
        width("ffn_hidden_size", "", "width of the MLP; absent = 4 x hidden_size").derived(Derive::Mlp).nullable(),
        ids("max_position_embeddings", "2048", "longest sequence"),
        positive("layer_norm_epsilon", "1e-5", "added to the variance"),
        activation("activation", "\"gelu\""),
        tied("true"),
        flag("new_decoder_architecture", "false", "a norm each for attention and MLP"),
        flag("multi_query", "true", "one key/value head"),
        flag("parallel_attn", "true", "attention and MLP both see what goes into the block"),
        flag("bias", "false", "biases in attention and MLP"),
        ids("num_ln_in_parallel_attn", "", "norms of a block of the new architecture; absent = 2").nullable(),
        only("alibi", "false", "biases by distance, which this family scales as no other"),
        only("hidden_dropout", "0.0", "dropout of the sum of attention and MLP"),
        only("attention_dropout", "0.0", "dropout, which this family applies in two places"),
        init(),
    ], &rope("10000.0")],
    harmless: "",
    roles: Roles {
        kv_heads: "num_kv_heads", head_dim: "", mlp: "ffn_hidden_size", act: "activation", dropout: [""; 3],
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

#[rustfmt::skip]
fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps, bias) = (c.int("hidden_size")?, c.eps()?, c.flag("bias"));
    let (heads, head_dim) = (c.int("num_attention_heads")?, c.head_dim()?);
    let (new, std) = (c.flag("new_decoder_architecture"), c.num("initializer_range")?);
    let fused = linear("self_attention.query_key_value", bias);
    let one = !new && c.flag("multi_query");
    let attention = Attention {
        qkv: if one { Qkv::Fused(fused) } else { Qkv::ByHead(fused) },
        out: linear("self_attention.dense", bias),
        heads,
        kv_heads: if one { 1 } else { c.int_or("num_kv_heads", heads)? },
        head_dim,
        causal: true,
        positions: Positions::Rotary(rotary(c, head_dim)?),
        ..Attention::default()
    };
    if !new && !one && attention.kv_heads != heads {
        let what = format!("{} for {heads} queries; groups of queries need new_decoder_architecture", attention.kv_heads);
        return bad("num_kv_heads", what);
    }
    let mlp = Mlp {
        up: Up::Plain(linear("mlp.dense_h_to_4h", bias)),
        down: linear("mlp.dense_4h_to_h", bias),
        width: c.int_or("ffn_hidden_size", 4 * width)?,
        act: c.act("activation")?,
    };
    let norm = |name| Around::before(Norm::layer(name, eps));
    let norms = c.int_or("num_ln_in_parallel_attn", if new { 2 } else { 1 })?;
    let (around, order) = match (c.flag("parallel_attn"), new, norms) {
        (true, true, 2) => ([norm("ln_attn"), norm("ln_mlp")], Order::Parallel),
        (true, _, 1) => ([norm("input_layernorm"), Around::default()], Order::Shared),
        (false, false, 1) => ([norm("input_layernorm"), norm("post_attention_layernorm")], Order::Sequential),
        (false, true, _) => return bad("parallel_attn", "new_decoder_architecture needs it"),
        _ => return bad("num_ln_in_parallel_attn", format!("{norms} is not available; 1 is, and 2 of the new architecture")),
    };
    let layer = Layer { order, ..Layer::of((around[0], attention), (around[1], mlp)) };
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?,
        positions: c.int("max_position_embeddings")?,
        width,
        base: "transformer.",
        stack: Stack {
            embed: Embed { prefix: "transformer", table: "word_embeddings.weight", ..Embed::default() },
            prefix: "transformer.h",
            layers: vec![layer; c.int("num_hidden_layers")? as usize],
        },
        decoder: None,
        vision: None,
        balance: None,
        head: Head { norm: Some(Norm::layer("transformer.ln_f", eps)), lm: "lm_head", tied: c.flag("tie_word_embeddings"), ..Head::default() },
        init: Init { std, residual: std },
    })
}
