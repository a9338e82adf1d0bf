//! OLMo 3: OLMo 2 with a window in three of four layers, whose rotation is never scaled. Names and shapes of `Olmo3ForCausalLM`
//! (huggingface/transformers).

use super::gemma3::by_kind;
use super::olmo2;
use super::sizes::{Defaults, preset, sizes};
use crate::desc::Positions;
use crate::keys::*;
use crate::rope::{Rotary, parameters};
use crate::{Family, ROLES, Tensors};
use serde_json::{Map, Value, json};

/// The rotary base of layers with a window, which only 5.x keeps apart: where the file says nothing of them, what 5.23 takes.
const NEAR: &str = "rope_parameters.sliding_attention.rope_theta";

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "olmo3",
    architecture: "Olmo3ForCausalLM",
    doc: "OLMo 2 with a window in three of four layers",
    keys: &[&sizes(Defaults {
        vocab: "50304", hidden: "4096", mlp: "11008", layers: "32", heads: "32", kv_heads: "", head_dim: "", positions: "2048",
        eps: "1e-5", tied: "false", pad: "1",
    }), &rope("500000.0"), &[
        activation("hidden_act", "\"silu\""),
        flag("attention_bias", "false", "biases in the attention projections"),
        window("4096").fresh("4096"),
        layer_types(),
        positive(NEAR, "500000.0", "rotary base of the layers with a window").unasked(),
    ]],
    harmless: "",
    roles: ROLES,
    preset,
    build: |c| olmo2::model(c, |i, l| {
        if c.sliding(i)?.unwrap_or(!(i + 1).is_multiple_of(4)) {
            l.attention.1.window = c.int("sliding_window")?;
            l.attention.1.positions = Positions::Rotary(Rotary::plain(c.num(NEAR)?, c.head_dim()?));
        }
        Ok(())
    }),
    nested,
    export,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

/// The base of layers that see everything is stated too, since 5.23 takes another than 4.57 where it is absent.
fn nested(
    out: Map<String, Value>,
    p: Map<String, Value>,
) -> Result<Map<String, Value>, ConfigError> {
    let mut out = by_kind(out, p, NEAR)?;
    out.entry("rope_theta").or_insert(json!(500_000.0));
    Ok(out)
}

fn export(c: &Config, out: &mut Map<String, Value>) {
    out.remove(NEAR);
    let near = parameters(None, &c.map[NEAR]);
    let full = out["rope_parameters"].clone();
    let both = json!({"full_attention": full, "sliding_attention": near});
    out.insert("rope_parameters".into(), both);
}
