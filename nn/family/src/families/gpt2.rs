//! GPT-2: pre-LayerNorm, learned positions, fused qkv, Conv1D weights `[in, out]`. Names and shapes of `GPT2LMHeadModel` (huggingface/transformers).

use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only};
use serde_json::json;

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gpt2",
    architecture: "GPT2LMHeadModel",
    doc: "LayerNorm, learned positions, GELU",
    keys: &[&[
        vocab("50257"),
        ids("n_positions", "1024", "longest sequence"),
        width("n_embd", "768", "width of the residual stream"),
        layers("n_layer", "12", "number of blocks"),
        width("n_head", "12", "attention heads"),
        width("n_inner", "", "width of the MLP; absent = 4 x n_embd").derived(Derive::Mlp),
        activation("activation_function", "\"gelu_new\""),
        dropout("resid_pdrop", "0.1", "dropout of residual branches"),
        dropout("embd_pdrop", "0.1", "dropout of embeddings"),
        dropout("attn_pdrop", "0.1", "dropout of attention weights"),
        positive("layer_norm_epsilon", "1e-5", "added to the variance"),
        tied("true"),
        flag("scale_attn_weights", "true", "scores are divided by the root of a head's width"),
        flag("scale_attn_by_inverse_layer_idx", "false", "scores of layer l are divided by l + 1 too"),
        init(),
        only("add_cross_attention", "false", "cross-attention"),
    ]],
    harmless: "n_ctx reorder_and_upcast_attn summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout",
    roles: Roles {
        layers: "n_layer", width: "n_embd", heads: "n_head", kv_heads: "", head_dim: "", mlp: "n_inner", positions: "n_positions", act: "activation_function",
        dropout: ["embd_pdrop", "resid_pdrop", "attn_pdrop"], ..ROLES
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: |c, out| {
        out.insert("n_ctx".into(), c.map["n_positions"].clone());
        out.insert("reorder_and_upcast_attn".into(), json!(false));
        out.insert("summary_type".into(), json!("cls_index"));
    },
    lora: &["c_attn"],
    fan_in_fan_out: true,
    tensors: Tensors { ignored: &[".attn.bias", ".attn.masked_bias", ".crossattention.bias", ".crossattention.masked_bias"], copies: &[], within: &[], stacks: &[] },
};

fn build(c: &Config) -> Result<Model, ConfigError> {
    let (width, eps) = (c.int("n_embd")?, c.num("layer_norm_epsilon")?);
    let (heads, head_dim) = (c.int("n_head")?, c.head_dim()?);
    let (layers, std) = (c.int("n_layer")?, c.num("initializer_range")?);
    let positions = c.int("n_positions")?;
    let root = match c.flag("scale_attn_weights") {
        true => (head_dim as f64).powf(-0.5),
        false => 1.0,
    };
    let by_depth = c.flag("scale_attn_by_inverse_layer_idx");
    let layer = |l: u64| -> Result<Layer, ConfigError> {
        let attention = Attention {
            qkv: Qkv::Fused(linear("attn.c_attn", true)),
            out: linear("attn.c_proj", true),
            heads,
            kv_heads: heads,
            head_dim,
            scale: root / if by_depth { (l + 1) as f64 } else { 1.0 },
            causal: true,
            dropout: c.num("attn_pdrop")?,
            ..Attention::default()
        };
        let mlp = Mlp {
            up: Up::Plain(linear("mlp.c_fc", true)),
            down: linear("mlp.c_proj", true),
            width: c.int_or("n_inner", 4 * width)?,
            act: c.act("activation_function")?,
        };
        Ok(Layer {
            conv1d: true,
            dropout: c.num("resid_pdrop")?,
            ..Layer::new(
                (Norm::layer("ln_1", eps), attention),
                (Norm::layer("ln_2", eps), mlp),
            )
        })
    };
    Ok(Model {
        vocab: c.int_or("vocab_size", 1)?,
        positions,
        width,
        base: "transformer.",
        stack: Stack {
            embed: Embed {
                prefix: "transformer",
                table: "wte.weight",
                positions: Some(Learned {
                    table: "wpe.weight",
                    rows: positions,
                    first: 0,
                }),
                dropout: c.num("embd_pdrop")?,
                ..Embed::default()
            },
            prefix: "transformer.h",
            layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
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
        init: Init {
            std,
            residual: f64::from(std as f32 / (2.0 * layers as f32).sqrt()), // In f32, so that a seed gives the weights that it gave before.
        },
    })
}
