//! What a step needs to be rehearsed on the null device: the model, the sizes and the resolved config, without text being read.

use crate::job::Job;
use crate::job_error::{JobError, Result};
use crate::model;
use crate::surroundings::Caches;
use crate::{objective, source, teacher};
use crossweave_config::{Config, Data, Given, Model};
use crossweave_data::Tokenizer;

/// The job of a config on `ranks` ranks, as far as its steps depend on it.
///
/// # Errors
/// A config that is wrong, or has no model or no data.
pub fn job(mut config: Config, ranks: u64, caches: &Caches) -> Result<Job> {
    let (Some(data), Some(model)) = (&config.settings.data, &config.settings.model) else {
        config.resolve(ranks)?;
        return Err(JobError::refused(
            "the config has no model or no data",
            "add it",
        ));
    };
    // No text is read: a plan needs sizes only.
    let mut spec = source::spec(data, Some(model), caches)?;
    let opened = match model {
        Model::Hf(_) => Some(model::of_config(model, None, caches)?),
        Model::New(_) => None,
    };
    if let Some(s) = &opened {
        spec.objective = objective::of(data, Some(model), Some(&s.spec))?;
        spec.model_vocab = Some(s.spec.model().vocab as usize);
    }
    let objective = spec.objective;
    let mut vocab = None;
    let mut given = Given::default();
    let mut labels_found = None;
    let (mut columns, mut asked, mut images) = (None, None, None);
    let length = match data {
        Data::Tokens(d) => {
            let labels = d.labels.as_deref();
            let path = d.tokens.as_ref();
            let file = crossweave_data::GivenTokens::open(path, &d.key, labels, None, objective)?;
            columns = file.columns();
            images = file.images_of_a_row();
            labels_found = file.labels_key().map(str::to_string);
            given = Given {
                batch: Some(file.batch()),
                steps: Some(file.steps()),
                ..Given::default()
            };
            Some(crossweave_data::SequenceSource::row_len(&file) as u64 - 1)
        }
        Data::Text(d) => {
            let open = |t| Tokenizer::open(t, spec.model_vocab);
            let tokenizer = spec.tokenizer.as_ref().map(open).transpose()?;
            let ids = objective.ids(tokenizer.as_ref(), spec.model_vocab)?;
            if let (Some(t), Model::New(_)) = (&tokenizer, model) {
                vocab = Some(t.vocab_size().max(ids.vocab()) as u64);
            }
            asked = Some(ids);
            d.seq_len
        }
    };
    if let Some(labels) = labels_found {
        config.set("data.labels", &serde_json::Value::from(labels).to_string())?;
    }
    objective::tell(&mut config, objective)?;
    let resolved = config.resolve_given(ranks, given)?;
    let mut source = match opened {
        Some(s) => s,
        None => model::of_config(&resolved.model, vocab, caches)?,
    };
    let longest = source.spec.model().positions;
    let mut seq = length.unwrap_or(longest.min(objective::sample(&resolved.data)));
    if let Some(ids) = asked {
        columns = ids.columns(seq as usize);
        seq = columns.map_or(seq, |c| c.all() as u64);
    }
    source.reads(columns)?;
    source.sees(images, &resolved)?;
    let sample = columns.map_or(seq, |c| c.longest() as u64);
    teacher::hear(&mut source, &resolved, sample, columns, caches)?;
    Ok(Job::new(resolved, source, seq, None))
}
