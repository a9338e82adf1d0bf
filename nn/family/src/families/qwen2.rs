//! Qwen2: Llama with biases in q, k and v, and a window in the upper layers where asked. Names and shapes of `Qwen2ForCausalLM`
//! (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::Layer;
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "qwen2",
    architecture: "Qwen2ForCausalLM",
    doc: "Llama with biases in q, k and v",
    keys: &[&sizes(Defaults {
        vocab: "151936", hidden: "4096", mlp: "22016", layers: "32", heads: "32", kv_heads: "32", head_dim: "", positions: "32768",
        eps: "1e-6", tied: "false", pad: "",
    }), &rope("10000.0"), &WINDOWS],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| llama::model(c, [true, false, false], |i, l| windowed(c, i, l)),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// Activation, and which layers see a window.
pub const WINDOWS: [Key; 5] = [
    activation("hidden_act", "\"silu\""),
    flag(
        "use_sliding_window",
        "false",
        "layers from max_window_layers on see a window",
    ),
    window("4096").fresh("4096"),
    count(
        "max_window_layers",
        "28",
        "layers that see everything, from the first",
    ),
    layer_types(),
];

/// Gives layer `l` its window.
pub fn windowed(c: &Config, i: u64, l: &mut Layer) -> Result<(), ConfigError> {
    if slides(c, i, i >= c.int("max_window_layers")?)? {
        l.attention.1.window = c.int("sliding_window")?;
    }
    Ok(())
}

/// Does layer `i` see a window: as the kinds of the layers say, else where windows are used and it is `one` of those that have them?
pub fn slides(c: &Config, i: u64, one: bool) -> Result<bool, ConfigError> {
    let on = c.flag("use_sliding_window") && c.has("sliding_window");
    match c.sliding(i)? {
        Some(true) if !on => bad(
            "layer_types",
            "sliding_attention without use_sliding_window and sliding_window",
        ),
        Some(slides) => Ok(slides),
        None => Ok(on && one),
    }
}
