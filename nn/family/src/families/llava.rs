//! LLaVA: CLIP's vision tower, a projector of two layers, and a Llama in which the features of an image stand at the places of its tokens. Names and
//! shapes of `LlavaForConditionalGeneration` (huggingface/transformers).

use super::{clip, llama};
use crate::desc::*;
use crate::keys::*;
use crate::{Family, Roles, Tensors, dimensions_only};
use serde_json::{Value, json};

#[rustfmt::skip]
pub const FAMILY: Family = Family {
    name: "llava",
    architecture: "LlavaForConditionalGeneration",
    doc: "a vision tower (CLIP), a projector and a Llama",
    keys: &[&[
        part("text_config", "keys of the language model, a llama"),
        part("vision_config", "keys of the vision tower, a clip_vision_model"),
        count("image_token_index", "32000", "the token that stands for a feature of an image").unasked(),
        activation("projector_hidden_act", "\"gelu\"").unasked(),
        flag("multimodal_projector_bias", "true", "biases in the projector").unasked(),
        place("vision_feature_layer", "-2", "the layer whose result is taken; 0: what goes into the first"),
        word("vision_feature_select_strategy", &["default", "full"], "\"default\"", "default: without the class token"),
        only("tie_word_embeddings", "false", "a head that is the embedding"),
    ]],
    // The first files count rows of the embedding beside the text's keys too.
    harmless: "ignore_index image_seq_length vocab_size",
    roles: Roles {
        layers: "", width: "", heads: "", kv_heads: "", head_dim: "", mlp: "", positions: "", act: "projector_hidden_act",
        rope: ["", ""], dropout: ["", "", ""],
    },
    preset: dimensions_only,
    build,
    nested: not_nested,
    export: |c, out| {
        for (name, family) in PARTS {
            // They have been read when the model was made.
            let keys = keys_of(c, name, family).map(|part| part.hf());
            out.insert(name.into(), json!(keys.unwrap_or_default()));
        }
    },
    lora: &["q_proj", "v_proj"],
    fan_in_fan_out: false,
    tensors: Tensors::PLAIN,
};

#[rustfmt::skip]
pub const PARTS: [(&str, &Family); 2] = [("text_config", &llama::FAMILY), ("vision_config", &clip::FAMILY)];

/// The keys of a part.
#[rustfmt::skip]
fn keys_of(c: &Config, name: &str, family: &'static Family) -> Result<Config, ConfigError> {
    let Some(Value::Object(given)) = c.get(name) else {
        return bad(name, "missing: a model of this family is read from a folder whose config.json has it");
    };
    let kind = given.get("model_type").and_then(Value::as_str);
    if kind.is_some_and(|kind| kind != family.name) {
        let what = format!("{:?} is not available; only {:?} is", kind.unwrap_or_default(), family.name);
        return bad(&format!("{name}.model_type"), what);
    }
    Config::of_hf(family, given).map_err(|e| within(name, e))
}

fn within(name: &str, e: ConfigError) -> ConfigError {
    let key = format!("{name}.{}", e.key);
    ConfigError { key, ..e }
}

#[rustfmt::skip]
fn build(c: &Config) -> Result<Model, ConfigError> {
    let [text, images] = PARTS.map(|(name, family)| keys_of(c, name, family));
    let (text, images) = (text?, images?);
    let (norm, mut tower) = clip::tower(&images).map_err(|e| within("vision_config", e))?;
    let mut model = (text.family.build)(&text).map_err(|e| within("text_config", e))?;
    if model.head.tied {
        return bad("text_config.tie_word_embeddings", "true is not available; only false is");
    }
    let token = c.int("image_token_index")?;
    if token >= model.vocab {
        return bad("image_token_index", format!("{token} is no token of the {} of text_config.vocab_size", model.vocab));
    }
    let (last, place) = (tower.stack.layers.len() as i64, c.get("vision_feature_layer").and_then(Value::as_i64).unwrap_or(-2));
    let layers = if place < 0 { last + 1 + place } else { place };
    if !(0..=last).contains(&layers) {
        return bad("vision_feature_layer", format!("{place} is no layer of a tower of {last}"));
    }
    let kept = clip::cut(&mut tower, layers as usize);
    let size = |key| images.int(key);
    let bias = c.flag("multimodal_projector_bias");
    model.vision = Some(Vision {
        tower: Box::new(tower),
        prefix: clip::PREFIX,
        tables: ["embeddings.patch_embedding.weight", "embeddings.class_embedding", "embeddings.position_embedding.weight"],
        norm,
        image: [size("num_channels")?, size("image_size")?, size("patch_size")?],
        drops_class: c.get("vision_feature_select_strategy") == Some(&json!("default")),
        project: ["multi_modal_projector.linear_1", "multi_modal_projector.linear_2"].map(|n| linear(n, bias)),
        act: c.act("projector_hidden_act")?,
        token,
        images: 1,
        kept,
        parts: ["vision_tower.", "multi_modal_projector.", "language_model."],
    });
    // Its names are those of a Llama within.
    model.base = "";
    model.stack.embed.prefix = "language_model.model";
    model.stack.prefix = "language_model.model.layers";
    if let Some(norm) = &mut model.head.norm {
        norm.name = "language_model.model.norm";
    }
    model.head.lm = "language_model.lm_head";
    Ok(model)
}
