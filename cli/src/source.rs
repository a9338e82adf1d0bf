//! From `data` of a config to an open corpus, with a progress bar while text becomes tokens.

use crate::adapter;
use crate::hub::{self, Part};
use crate::job_error::{JobError, Result};
use crate::objective;
use crate::surroundings::Caches;
use crate::tokens;
use crossweave_config::{self as config, Data, DataFormat, LossOn, OnNull, TextSource};
use crossweave_data::{
    CargoSource, Corpus, DataSpec, Examples, FilesSource, Phase, Progress, Rows, Source,
    TokenizerSpec, Validation, Weighted,
};
use crossweave_words::Size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

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

/// Folder of tokenised data: `data.cache_dir`, else that of the surroundings, else one beside the run.
pub fn cache_dir(data: &Data, out: &Path, caches: &Caches) -> PathBuf {
    let given = match data {
        Data::Text(d) => d.cache_dir.as_ref().map(PathBuf::from),
        Data::Tokens(_) => None,
    };
    given
        .or_else(|| caches.tokens.clone())
        .unwrap_or_else(|| out.join("cache"))
}

/// Opens the corpus, with a bar on a terminal while it is built.
///
/// # Errors
/// Any of the data layer.
pub fn open(spec: &DataSpec, cache: &Path) -> Result<Corpus> {
    Ok(crossweave_data::open(spec, cache, &Bar::default())?)
}

/// Between two lines where no terminal shows a bar.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// A bar per phase; where there is no terminal, a line every few seconds.
#[derive(Default)]
struct Bar(Mutex<Option<(ProgressBar, Instant)>>);

impl Bar {
    fn with(&self, f: impl FnOnce(&mut Option<(ProgressBar, Instant)>)) {
        // The bar is only drawn, so one that a panicking thread held is as good as any.
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()));
    }
}

impl Progress for Bar {
    fn begin(&self, phase: Phase, total: u64) {
        let what = match phase {
            Phase::Hash => "reading the corpus",
            Phase::Tokenize => "tokenising",
        };
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(
            "{msg:<20} {wide_bar:.cyan/blue} {read} of {all}, {speed} eta {eta}",
        ) {
            type Out<'a> = &'a mut dyn std::fmt::Write;
            // What cannot be drawn is not drawn.
            let style = style
                .with_key("read", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}", Size(s.pos()));
                })
                .with_key("all", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}", Size(s.len().unwrap_or(0)));
                })
                .with_key("speed", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}/s", Size(s.per_sec() as u64));
                });
            bar.set_style(style);
        }
        self.with(|slot| *slot = Some((bar, Instant::now())));
    }
    fn advance(&self, bytes: u64) {
        self.with(|slot| {
            let Some((bar, since)) = slot else { return };
            bar.inc(bytes);
            if bar.is_hidden() && since.elapsed() > BETWEEN_LINES {
                *since = Instant::now();
                let (done, all) = (bar.position(), bar.length().unwrap_or(0));
                eprintln!("{}: {} of {}", bar.message(), Size(done), Size(all));
            }
        });
    }
    fn warn(&self, words: &str) {
        eprintln!("warning: {words}");
    }
    fn end(&self) {
        self.with(|slot| {
            if let Some((bar, _)) = slot.take() {
                bar.finish_and_clear();
            }
        });
    }
}
