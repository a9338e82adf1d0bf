//! What is to be predicted (`data.objective`): what the model predicts, and the data layer's form of it.

use crate::error::{JobError, Result};
use crossweave_config::{self as config, Config, Data, MEAN_NOISE_SPAN_LENGTH, MLM_PROBABILITY};
use crossweave_data::{Images, Masking, Objective, Pairs, Spans};
use crossweave_nn::ModelSpec;

/// Most tokens of a sample where nothing says how many: 512 of models that read texts of any length, as T5 was trained.
pub fn sample(data: &Data) -> u64 {
    match data.objective() {
        Some(config::Objective::SpanCorruption) => 512,
        _ => u64::MAX,
    }
}

/// What the model of a config predicts by data that may not say so. `opened`: a folder's model.
///
/// # Errors
/// Data that ask for something else of a folder's model. (A new model's keys have been held against each other.)
pub fn of(
    data: &Data,
    model: Option<&config::Model>,
    opened: Option<&ModelSpec>,
) -> Result<Objective> {
    let new = match model {
        Some(config::Model::New(m)) => Some(m),
        _ => None,
    };
    let family = opened.map(ModelSpec::family);
    let family = family.or(new.and_then(|m| crossweave_nn::family(&m.family.to_ascii_lowercase())));
    let own = family.map(config::Objective::of);
    let asked = match (data.objective(), own, family) {
        (Some(asked), Some(own), Some(f)) if asked != own => {
            return Err(JobError::refused(
                format!(
                    "data.objective: a {} model predicts by {:?}, and {:?} is asked for",
                    f.name,
                    own.name(),
                    asked.name()
                ),
                "remove it, or name another model",
            ));
        }
        (asked, own, _) => asked.or(own).unwrap_or(config::Objective::Causal),
    };
    let new = new.and_then(|m| m.spec(None).ok());
    let described = opened.or(new.as_ref()).map(ModelSpec::model);
    let decoder = described.and_then(|m| m.decoder.as_ref());
    let [start, fill] = decoder.map_or([0; 2], |d| d.tokens.map(|t| t as u32));
    if let Some(v) = opened.and_then(|s| s.model().vision.as_ref()) {
        if let Data::Text(_) = data {
            return Err(JobError::refused(
                "data.train: this model reads images, which text does not have",
                "give batches with pixel_values by data.tokens",
            ));
        }
        return Ok(Objective::Captions(Images {
            token: v.token as u32,
            features: v.features(),
            size: v.image,
        }));
    }
    let id = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok());
    let (mut share, mut mean) = (MLM_PROBABILITY, MEAN_NOISE_SPAN_LENGTH);
    let (mut mask, mut first, mut pairs) = (None, None, None);
    if let Data::Text(d) = data {
        share = d.mlm_probability.unwrap_or(share);
        mean = d.mean_noise_span_length.unwrap_or(mean);
        (mask, first) = (id(d.mask_id), id(d.sentinel_id));
        pairs = d.next_sentence.unwrap_or(false).then(|| Pairs {
            first: id(d.cls_id),
            end: id(d.sep_id),
        });
    }
    Ok(match asked {
        config::Objective::Causal => Objective::Causal,
        config::Objective::MaskedLm => Objective::MaskedLm(Masking { share, mask, pairs }),
        config::Objective::SpanCorruption => Objective::SpanCorruption(Spans {
            share,
            mean,
            first,
            start,
            fill,
        }),
    })
}

/// Writes what is predicted into a config that does not say so, where it is not the next token.
///
/// # Errors
/// None that a config has not had before.
pub fn complete(config: &mut Config, objective: Objective) -> Result<()> {
    let name = match objective {
        Objective::Causal | Objective::Captions(_) => return Ok(()),
        Objective::MaskedLm(_) => config::Objective::MaskedLm.name(),
        Objective::SpanCorruption(_) => config::Objective::SpanCorruption.name(),
    };
    let text = serde_json::Value::from(name).to_string();
    Ok(config.set("data.objective", &text)?)
}
