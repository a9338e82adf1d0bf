//! From `data` of a config to what the data layer is asked for.

use crate::adapter;
use crate::caches::Caches;
use crate::error::{JobError, Result};
use crate::hub::{self, Part};
use crate::objective;
use crate::tokens;
use crossweave_config::{self as config, Data, DataFormat, LossOn, OnLong, OnNull, TextSource};
use crossweave_data::{
    CargoSource, DataSpec, Examples, FilesSource, Rows, Source, TokenizerSpec, Validation, Weighted,
};
use std::path::{Path, PathBuf};

/// What the data layer is asked for.
///
/// # Errors
/// A working directory or cargo home that cannot be found; a tokenizer note that cannot be read; a model that is not there.
pub fn spec(data: &Data, model: Option<&config::Model>, caches: &Caches) -> Result<DataSpec> {
    let hf = match model {
        Some(config::Model::Hf(m)) => {
            let folder = hub::folder(&m.hf, "model.hf", Part::Model, caches)?;
            Some(adapter::words_folder(&folder)?)
        }
        _ => None,
    };
    let hf = hf.as_deref();
    let model_vocab = match model {
        Some(config::Model::New(m)) => m.vocab_size(),
        _ => None,
    };
    let mut out = DataSpec {
        train: Source::Indexed(PathBuf::new()),
        objective: objective::of(data, model, None)?,
        examples: None,
        validation: Validation::None,
        tokenizer: None,
        model_vocab: model_vocab.map(|v| v as usize),
    };
    match data {
        Data::Tokens(d) => {
            out.train = Source::Given {
                file: d.tokens.clone().into(),
                key: d.key.clone(),
                labels: d.labels.clone(),
            };
            out.tokenizer = hf.map(tokens::of_folder).transpose()?.flatten();
        }
        Data::Text(d) => {
            out.train = text(&d.train, d, caches)?;
            out.examples = examples(d);
            out.tokenizer = tokenizer(d, hf, caches)?;
            out.validation = match (&d.validation, d.validation_fraction, &d.split) {
                (Some(source), _, _) => Validation::Source(text(source, d, caches)?),
                (None, Some(f), _) if f > 0.0 => Validation::Fraction(f),
                (None, None, Some(split)) => Validation::Split(split.clone()),
                _ => Validation::None,
            };
        }
    }
    Ok(out)
}

/// Tokens that are given need a tokenizer only to show samples, so one is opened only where something names it.
fn tokenizer(
    d: &config::TextData,
    hf: Option<&Path>,
    caches: &Caches,
) -> Result<Option<TokenizerSpec>> {
    let named = d.tokenizer.is_some()
        || match hf {
            Some(dir) => tokens::of_folder(dir)?.is_some(),
            None => false,
        };
    if is_indexed(&d.train) && !named {
        return Ok(None);
    }
    Ok(Some(tokens::of_config(d, hf, caches)?))
}

/// What the rows of files are, where they are examples.
fn examples(d: &config::TextData) -> Option<Examples> {
    let rows = match d.format {
        None | Some(DataFormat::Text) => return None,
        Some(DataFormat::PromptCompletion) => Rows::PromptCompletion,
        Some(DataFormat::Messages) => Rows::Messages,
        Some(DataFormat::ShareGpt) => Rows::ShareGpt,
        Some(DataFormat::Alpaca) => Rows::Alpaca,
        Some(DataFormat::Tokens) => Rows::Tokens,
    };
    Some(Examples {
        rows,
        all: d.loss_on == Some(LossOn::All),
        template: d.chat_template.as_ref().map(PathBuf::from),
        skip_null: d.on_null == Some(OnNull::Skip),
        pack: d.pack == Some(true),
        refuse_long: d.on_long == Some(OnLong::Refuse),
    })
}

/// Whether a source holds tokens only, and no text.
pub fn is_indexed(source: &TextSource) -> bool {
    match source {
        TextSource::Indexed(_) => true,
        TextSource::Globs(_) | TextSource::Cargo(_) => false,
        TextSource::Mixture(parts) => parts.iter().all(|p| p.indexed.is_some()),
    }
}

fn files(globs: &[String], field: Option<&String>, d: &config::TextData) -> Result<Source> {
    let here = Path::new(".");
    let base = std::path::absolute(here).map_err(JobError::io("find", here))?;
    Ok(Source::Files(FilesSource {
        globs: globs.to_vec(),
        exclude: d.exclude.clone().unwrap_or_default(),
        text_key: field
            .or(d.field.as_ref())
            .or(d.jsonl_field.as_ref())
            .cloned()
            .unwrap_or_else(|| "text".into()),
        skip_null: d.on_null == Some(OnNull::Skip),
        base,
    }))
}

fn text(source: &TextSource, d: &config::TextData, caches: &Caches) -> Result<Source> {
    Ok(match source {
        TextSource::Globs(globs) => files(globs, None, d)?,
        TextSource::Mixture(parts) => {
            let part = |p: &config::MixtureSource| -> Result<Weighted> {
                let source = match (&p.files, &p.indexed) {
                    (None, Some(prefix)) => Source::Indexed(prefix.clone().into()),
                    // Resolving refuses a source that names both, or nothing.
                    (globs, _) => files(globs.as_deref().unwrap_or_default(), p.field.as_ref(), d)?,
                };
                Ok(Weighted {
                    source,
                    weight: p.weight,
                })
            };
            Source::Mixture(parts.iter().map(part).collect::<Result<_>>()?)
        }
        TextSource::Indexed(i) => Source::Indexed(i.indexed.clone().into()),
        TextSource::Cargo(c) => Source::Cargo(CargoSource {
            lock: c.cargo_sources.lock.clone().into(),
            cargo_home: caches.cargo.clone().ok_or_else(|| {
                JobError::refused(
                    "data.train.cargo_sources: neither CARGO_HOME nor HOME is set",
                    "set CARGO_HOME to cargo's folder",
                )
            })?,
            packages: c.cargo_sources.packages.clone(),
            extensions: c.cargo_sources.extensions.clone(),
        }),
    })
}
