//! Gemma 3 (text): Gemma 2 with norms of q and k instead of a cap, and layers that see a window with a rotary base of their own. Names and
//! shapes of `Gemma3ForCausalLM` (huggingface/transformers).

use super::gemma2::{self, GEMMA};
use super::sizes::{Defaults, preset, sizes};
use crate::desc::{Layer, Norm, NormKind, Over, Positions, QkNorm};
use crate::keys::*;
use crate::rope::{Rotary, parameters};
use crate::{Family, Outer, ROLES, Roles, Tensors};
use serde_json::{Map, Value, json};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "gemma3_text",
    architecture: "Gemma3ForCausalLM",
    doc: "Gemma 2 with norms of q and k, and five of six layers with a window and their own rotary base",
    keys: &[&sizes(Defaults {
        vocab: "262208", hidden: "2304", mlp: "9216", layers: "26", heads: "8", kv_heads: "4", head_dim: "256", positions: "131072",
        eps: "1e-6", tied: "true", pad: "0",
    }), &rope("1000000.0"), &GEMMA, &[
        positive("rope_local_base_freq", "10000.0", "rotary base of the layers with a window"),
        positive("final_logit_softcapping", "", "soft cap of the logits; absent = none").nullable(),
        only("attn_logit_softcapping", "null", "soft cap of the scores, which transformers reads and does not use"),
        window("4096").fresh("4096"),
        ids("sliding_window_pattern", "6", "every so many layers one sees everything"),
    ]],
    harmless: "hidden_act _sliding_window_pattern",
    roles: Roles { act: "hidden_activation", ..ROLES },
    preset,
    build: |c| gemma2::model(c, |i, l| layer(c, i, l)),
    nested: |out, p| by_kind(out, p, "rope_local_base_freq"),
    export,
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    // As the language model of Gemma 3 with a vision tower, of which texts alone ask nothing.
    tensors: Tensors {
        ignored: &["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."],
        within: &[
            ("model.", "language_model.model."),
            ("model.", "model.language_model."),
            ("lm_head.", "language_model.lm_head."),
        ],
        ..Tensors::PLAIN
    },
};

/// A `gemma3` folder: this is its language model, given tokens only.
pub const OUTER: Outer = Outer {
    name: "gemma3",
    part: "text_config",
    family: &FAMILY,
    quiet: &[
        "vision_config",
        "image_token_index",
        "boi_token_index",
        "eoi_token_index",
        "mm_tokens_per_image",
        "image_token_id",
        "boi_token_id",
        "eoi_token_id",
    ],
};

fn layer(c: &Config, i: u64, l: &mut Layer) -> Result<(), ConfigError> {
    let (kind, eps) = (NormKind::RmsPlusOne, c.num("rms_norm_eps")?);
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| Norm { name, kind, eps });
    let over = Over::Head;
    l.attention.1.qk_norm = Some(QkNorm { norms, over });
    let every = c.int("sliding_window_pattern")?;
    if c.sliding(i)?.unwrap_or(!(i + 1).is_multiple_of(every)) {
        let theta = c.num("rope_local_base_freq")?;
        l.attention.1.window = c.int("sliding_window")?;
        l.attention.1.positions = Positions::Rotary(Rotary::plain(theta, c.head_dim()?));
    }
    Ok(())
}

/// 5.x keeps the rotary settings of both kinds of layers in `rope_parameters`: the base of those with a window is the key `base`.
pub fn by_kind(
    mut out: Map<String, Value>,
    mut p: Map<String, Value>,
    base: &str,
) -> Result<Map<String, Value>, ConfigError> {
    let mut take = |kind: &str| match p.remove(kind) {
        Some(Value::Object(map)) => Ok(map),
        None | Some(Value::Null) => Ok(Map::new()),
        Some(v) => bad("rope_parameters", format!("{kind}: {v} is not an object")),
    };
    let (mut full, mut near) = (take("full_attention")?, take("sliding_attention")?);
    let kind = |m: &Map<String, Value>| m.get("rope_type").cloned().unwrap_or(json!("default"));
    if kind(&near) != json!("default") {
        let what = format!(
            "{} of sliding_attention is not available; only default is",
            kind(&near)
        );
        return bad("rope_parameters", what);
    }
    for (map, key) in [(&mut full, "rope_theta"), (&mut near, base)] {
        if let Some(theta) = map.remove("rope_theta").filter(|v| !v.is_null()) {
            laid(&mut out, key, theta)?;
        }
    }
    match kind(&full) != json!("default") {
        true => scaled(out, Value::Object(full)),
        false => Ok(out),
    }
}

fn export(c: &Config, out: &mut Map<String, Value>) {
    let near = parameters(None, &c.map["rope_local_base_freq"]);
    let full = out["rope_parameters"].clone();
    let both = json!({"full_attention": full, "sliding_attention": near});
    out.insert("rope_parameters".into(), both);
}
