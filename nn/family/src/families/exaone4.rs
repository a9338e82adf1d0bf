//! EXAONE 4: norms behind attention and MLP, a norm over each head of q and k; where layers see windows, those that see everything have no
//! positions. Names and shapes of `Exaone4ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Around, Layer, Norm, Over, Positions, QkNorm};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "exaone4",
    architecture: "Exaone4ForCausalLM",
    doc: "norms behind attention and MLP, norms of q and k, a window in three of four layers and no positions in the others",
    keys: &[&sizes(Defaults {
        vocab: "102400", hidden: "4096", mlp: "16384", layers: "32", heads: "32", kv_heads: "32", head_dim: "", positions: "2048",
        eps: "1e-5", tied: "false", pad: "",
    }), &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        window("4096").fresh("4096"),
        pattern("sliding_window_pattern", "4", "every so many layers one sees everything; where layer_types is given it says nothing"),
        layer_types(),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| {
        let eps = c.eps()?;
        llama::model(c, [false; 3], |i, l| {
            let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|n| Norm::rms(n, eps));
            l.attention.1.qk_norm = Some(QkNorm { norms, over: Over::Head });
            l.attention.0 = Around::after(Norm::rms("post_attention_layernorm", eps));
            l.mlp.0 = Around::after(Norm::rms("post_feedforward_layernorm", eps));
            windowed(c, i, l)
        })
    },
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// Gives layer `i` its window, or takes its positions where other layers have windows.
fn windowed(c: &Config, i: u64, l: &mut Layer) -> Result<(), ConfigError> {
    let window = c.int_or("sliding_window", 0)?;
    let slides = match c.sliding(i)? {
        Some(true) if window == 0 => {
            return bad("layer_types", "sliding_attention without sliding_window");
        }
        Some(slides) => slides,
        None if window == 0 => {
            let what = "null, and transformers cannot make this family's layers from that alone: give layer_types";
            return bad("sliding_window", what);
        }
        None => !(i + 1).is_multiple_of(c.every("sliding_window_pattern")?),
    };
    match (slides, window) {
        (true, _) => l.attention.1.window = window,
        (false, 0) => {}
        (false, _) => l.attention.1.positions = Positions::None,
    }
    Ok(())
}
