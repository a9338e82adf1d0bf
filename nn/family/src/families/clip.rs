//! CLIP's vision tower: patches, a class token, learned positions, layers behind LayerNorm that see all. Names and shapes of `CLIPVisionModel`
//! (huggingface/transformers). A part of other families: it predicts nothing by itself.

use crate::desc::*;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, dimensions_only, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "clip_vision_model",
    architecture: "CLIPVisionModel",
    doc: "a tower over images",
    keys: &[&[
        width("hidden_size", "768", "width of the residual stream"),
        width("intermediate_size", "3072", "width of the MLP"),
        layers("num_hidden_layers", "12", "number of blocks"),
        width("num_attention_heads", "12", "attention heads"),
        width("num_channels", "3", "colours"),
        width("image_size", "224", "pixels of a side"),
        width("patch_size", "32", "pixels of a patch's side"),
        activation("hidden_act", "\"quick_gelu\""),
        positive("layer_norm_eps", "1e-5", "added to the variance"),
        dropout("attention_dropout", "0.0", "dropout of attention weights"),
        init(),
    ]],
    harmless: "initializer_factor projection_dim vocab_size",
    roles: Roles { kv_heads: "", head_dim: "", rope: ["", ""], positions: "", ..ROLES },
    preset: dimensions_only,
    build: |c| Ok(tower(c)?.1),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// A layer's parameters by the names of its modules, each `[output, input]` with a bias, and of norms.
#[rustfmt::skip]
fn parameters(layer: &Layer, width: u64) -> Vec<(String, Vec<u64>)> {
    let (mut out, mlp) = (vec![], &layer.mlp.1);
    let mut linear = |l: Linear, shape: [u64; 2]| {
        out.push((format!("{}.weight", l.name), shape.to_vec()));
        out.push((format!("{}.bias", l.name), vec![shape[0]]));
    };
    if let Qkv::Separate(all) = layer.attention.1.qkv {
        all.into_iter().for_each(|l| linear(l, [width; 2]));
    }
    linear(layer.attention.1.out, [width; 2]);
    if let Up::Plain(l) = mlp.up {
        linear(l, [mlp.width, width]);
    }
    linear(mlp.down, [width, mlp.width]);
    let norms = [layer.attention.0.before, layer.mlp.0.before];
    for norm in norms.into_iter().flatten() {
        out.extend(["weight", "bias"].map(|end| (format!("{}.{end}", norm.name), vec![width])));
    }
    out
}

/// The beginning of the names of a tower in a larger model.
pub const PREFIX: &str = "vision_tower.vision_model";

/// A norm of the whole tower.
const NORMS: [&str; 2] = ["pre_layrnorm", "vision_tower.vision_model.post_layernorm"];

/// The norm before the layers, and the tower.
#[rustfmt::skip]
pub fn tower(c: &Config) -> Result<(Norm, Model), ConfigError> {
    let (width, eps, heads) = (c.int("hidden_size")?, c.eps()?, c.int("num_attention_heads")?);
    let (side, patch) = (c.int("image_size")?, c.int("patch_size")?);
    if !side.is_multiple_of(patch) {
        let what = format!("patches of {patch} pixels do not divide images of {side}");
        return bad("patch_size", what);
    }
    let named = |name| linear(name, true);
    let attention = Attention {
        qkv: Qkv::Separate(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(named)),
        out: named("self_attn.out_proj"),
        heads,
        kv_heads: heads,
        head_dim: c.head_dim()?,
        dropout: c.num("attention_dropout")?,
        ..Attention::default()
    };
    let mlp = Mlp {
        up: Up::Plain(named("mlp.fc1")),
        down: named("mlp.fc2"),
        width: c.int("intermediate_size")?,
        act: c.act("hidden_act")?,
    };
    let norms = ["layer_norm1", "layer_norm2"].map(|n| Norm::layer(n, eps));
    let layer = Layer::new((norms[0], attention), (norms[1], mlp));
    let std = c.num("initializer_range")?;
    let layers = vec![layer; c.int("num_hidden_layers")? as usize];
    let stack = Stack { embed: Embed::default(), prefix: "vision_tower.vision_model.encoder.layers", layers };
    let (positions, head) = ((side / patch).saturating_pow(2).saturating_add(1), Head::default());
    let init = Init { std, residual: std };
    let model = Model { vocab: 0, positions, width, base: "", stack, decoder: None, head, vision: None, balance: None, init };
    Ok((Norm::layer(NORMS[0], eps), model))
}

/// Cuts the tower behind `layers` of its layers: the parameters of the others, and of the norm behind the last.
#[rustfmt::skip]
pub fn cut(tower: &mut Model, layers: usize) -> Vec<(String, Vec<u64>)> {
    let (prefix, width) = (tower.stack.prefix, tower.width);
    let rest = tower.stack.layers.split_off(layers.min(tower.stack.layers.len()));
    let each = rest.iter().enumerate().flat_map(|(i, layer)| {
        let all = parameters(layer, width).into_iter();
        all.map(move |(name, shape)| (format!("{prefix}.{}.{name}", layers + i), shape))
    });
    let norm = ["weight", "bias"].map(|end| (format!("{}.{end}", NORMS[1]), vec![width]));
    each.chain(norm).collect()
}
