//! Ministral 3: Mistral with yarn, whose queries grow with their position beyond the original length. Names and shapes of
//! `Ministral3ForCausalLM` (huggingface/transformers), which 5.x alone has.

use super::llama;
use super::sizes::{Defaults, preset, sizes};
use crate::keys::*;
use crate::{Family, ROLES, Tensors, keys_only};

/// The scaling that the class takes where a file says nothing of positions.
const YARN: &str = r#"{"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}"#;

/// The rotary base, and a scaling where there is none.
const YARNED: [Key; 2] = {
    let mut keys = rope("1000000.0");
    keys[1].default = YARN;
    keys[1] = keys[1].unasked();
    keys
};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "ministral3",
    architecture: "Ministral3ForCausalLM",
    doc: "Mistral with yarn, and queries that grow with their position beyond the original length",
    keys: &[&sizes(Defaults {
        vocab: "131072", hidden: "4096", mlp: "14336", layers: "34", heads: "32", kv_heads: "8", head_dim: "128", positions: "262144",
        eps: "1e-5", tied: "false", pad: "11",
    }), &YARNED, &[
        activation("hidden_act", "\"silu\""),
        window(""),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| llama::model(c, [false; 3], |_, l| {
        l.attention.1.window = c.int_or("sliding_window", 0)?;
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
