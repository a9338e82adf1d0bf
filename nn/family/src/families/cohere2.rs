//! Cohere 2 (Command R7B): Cohere whose layers see a window and rotate, but for every fourth, which sees everything and does not. Names and
//! shapes of `Cohere2ForCausalLM` (huggingface/transformers).

use super::cohere::{self, COHERE};
use super::sizes::preset_heads;
use crate::desc::Positions;
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "cohere2",
    architecture: "Cohere2ForCausalLM",
    doc: "Cohere with a window in three of four layers, and no positions in the others",
    keys: &[&COHERE, &rope("10000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        positive("logit_scale", "0.0625", "factor of the logits"),
        window("4096").fresh("4096"),
        ids("sliding_window_pattern", "4", "every so many layers one sees everything"),
        layer_types(),
    ]],
    harmless: "_sliding_window_pattern",
    roles: ROLES,
    preset: preset_heads,
    build: |c| cohere::model(c, |i, l| {
        let every = c.int("sliding_window_pattern")?;
        let slides = c.sliding(i)?.unwrap_or(!(i + 1).is_multiple_of(every));
        let window = c.int_or("sliding_window", 0)?;
        // The model turns on a window, not on the kind of the layer.
        match slides && window > 0 {
            true => l.attention.1.window = window,
            false => l.attention.1.positions = Positions::None,
        }
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
