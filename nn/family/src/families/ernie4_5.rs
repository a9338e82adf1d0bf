//! ERNIE 4.5 (the dense models): Llama with neighbours as rotary pairs, one switch for all biases, and no dropout. Names and shapes of
//! `Ernie4_5ForCausalLM` (huggingface/transformers).

use super::llama;
use super::sizes::{Defaults, preset, sizes, without_dropout};
use crate::desc::Positions;
use crate::keys::*;
use crate::{Family, ROLES, Roles, Tensors, keys_only};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "ernie4_5",
    architecture: "Ernie4_5ForCausalLM",
    doc: "Llama with neighbours as rotary pairs",
    keys: &[&without_dropout(sizes(Defaults {
        vocab: "103424", hidden: "1024", mlp: "3072", layers: "18", heads: "16", kv_heads: "2", head_dim: "128", positions: "131072",
        eps: "1e-5", tied: "true", pad: "0",
    })), &rope("500000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("use_bias", "false", "biases in attention and MLP"),
    ]],
    harmless: "",
    roles: Roles { dropout: [""; 3], ..ROLES },
    preset,
    build: |c| llama::model(c, [c.flag("use_bias"); 3], |_, l| {
        if let Positions::Rotary(r) = &mut l.attention.1.positions {
            r.interleaved = true;
        }
        Ok(())
    }),
    nested: not_nested,
    export: keys_only,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};
