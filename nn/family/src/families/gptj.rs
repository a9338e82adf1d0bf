//! GPT-J: LayerNorm, the first elements of each head rotated as neighbouring pairs, attention and MLP behind one norm, a head with a bias.
//! Names and shapes of `GPTJForCausalLM` (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::rope::Rotary;
use crate::{Family, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gptj",
    architecture: "GPTJForCausalLM",
    doc: "LayerNorm, partial RoPE of neighbouring pairs, GELU, attention and MLP side by side",
    keys: &[&[
        vocab("50400"),
        ids("n_positions", "2048", "longest sequence"),
        width("n_embd", "4096", "width of the residual stream").required(),
        layers("n_layer", "28", "number of blocks").required(),
        width("n_head", "16", "attention heads").required(),
        width("rotary_dim", "64", "elements of a head that rotate, the first ones; absent = all").derived(Derive::HeadDim).nullable(),
        width("n_inner", "", "width of the MLP; absent = 4 x n_embd").derived(Derive::Mlp),
        activation("activation_function", "\"gelu_new\""),
        dropout("resid_pdrop", "0.0", "dropout of residual branches"),
        dropout("embd_pdrop", "0.0", "dropout of embeddings"),
        dropout("attn_pdrop", "0.0", "dropout of attention weights"),
        positive("layer_norm_epsilon", "1e-5", "added to the variance"),
        tied("false"),
        init(),
    ]],
    harmless: "n_ctx rotary summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout",
    roles: Roles {
        layers: "n_layer", width: "n_embd", heads: "n_head", kv_heads: "", head_dim: "", mlp: "n_inner", positions: "n_positions",
        act: "activation_function", rope: ["", ""], dropout: ["embd_pdrop", "resid_pdrop", "attn_pdrop"],
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors { ignored: &[".attn.bias", ".attn.masked_bias"], copies: &[], within: &[], stacks: &[] },
};

#[rustfmt::skip]
fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps, dropout) = (c.int("n_embd")?, c.eps()?, c.num("resid_pdrop")?);
    let (heads, head_dim, std) = (c.int("n_head")?, c.head_dim()?, c.num("initializer_range")?);
    let turned = c.int_or("rotary_dim", head_dim)?;
    if turned > head_dim || !turned.is_multiple_of(2) {
        return bad("rotary_dim", format!("{turned} is not an even number of the {head_dim} elements of a head"));
    }
    let rotary = Rotary { interleaved: true, ..Rotary::plain(10_000.0, turned) };
    let attention = Attention {
        qkv: Qkv::Separate(["attn.q_proj", "attn.k_proj", "attn.v_proj"].map(|n| linear(n, false))),
        out: linear("attn.out_proj", false),
        heads,
        kv_heads: heads,
        head_dim,
        causal: true,
        dropout: c.num("attn_pdrop")?,
        positions: Positions::Rotary(rotary),
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(linear("mlp.fc_in", true)),
        down: linear("mlp.fc_out", true),
        width: c.int_or("n_inner", 4 * width)?,
        act: c.act("activation_function")?,
    };
    let norm = Norm::layer("ln_1", eps);
    let layer = Layer { order: Order::Shared, dropout, ..Layer::of((Around::before(norm), attention), (Around::default(), mlp)) };
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?,
        positions: c.int("n_positions")?,
        width,
        base: "transformer.",
        stack: Stack {
            embed: Embed { prefix: "transformer", table: "wte.weight", dropout: c.num("embd_pdrop")?, ..Embed::default() },
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
            bias: Some("lm_head.bias"),
            ..Head::default()
        },
        init: Init { std, residual: std },
    })
}
