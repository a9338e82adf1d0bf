//! What `--model` may name: a model folder, a run's folder, one of its checkpoints, or a model of the hub cache; with its tokenizer.
//!
//! For a run, the newest checkpoint is taken, since the exported model is never newer; without checkpoints it is the exported model.

use crate::companions::Companions;
use crate::hub::{self, Part};
use crate::job::{Caches, data_spec};
use crate::job_error::{JobError, Result};
use crate::model::{self, Source};
use crate::{adapted, adapter, described, tokens};
use crossweave_checkpoint::{Checkpoint, CheckpointError, MANIFEST, Proof, list};
use crossweave_config as config;
use crossweave_data::{Remark, Tokenizer, TokenizerSpec};
use crossweave_nn::ModelSpec;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A trained model, not on a device yet.
pub struct Trained {
    /// Its blocks and where its weights are.
    pub source: Source,
    /// What is remarkable about a folder.
    pub remarks: Vec<Remark>,
    /// The folder, where it is a model's.
    folder: Option<PathBuf>,
}

/// Finds the model.
///
/// # Errors
/// Nothing there; a folder that is neither a model's nor a run's, or is damaged; a run that has saved nothing yet.
pub fn open(named: &Path, caches: &Caches) -> Result<Trained> {
    let dir = match named.to_str() {
        Some(name) => hub::folder(name, "--model", Part::Model, caches)?,
        None => named.to_path_buf(),
    };
    let of_folder = |dir: PathBuf| -> Result<Trained> {
        let source = model::open_folder(&dir)?;
        Ok(Trained {
            remarks: source.remarks(),
            source,
            folder: Some(dir),
        })
    };
    let of_checkpoint = |dir: &Path| -> Result<Trained> {
        let checkpoint = Checkpoint::open_as(dir, Proof::AsRead)?;
        described::check(&checkpoint)?;
        Ok(Trained {
            source: match adapted::of_checkpoint(&checkpoint)? {
                Some(mut source) => {
                    source.checkpoint = Some(checkpoint);
                    source
                }
                None => of_checkpoint_alone(checkpoint, caches)?,
            },
            folder: None,
            remarks: vec![],
        })
    };
    if !dir.is_dir() || is_model(&dir) {
        return of_folder(dir);
    }
    if dir.join(MANIFEST).is_file() || !list(&dir)?.is_empty() {
        return of_checkpoint(&dir);
    }
    let exported = dir.join("model");
    if is_model(&exported) {
        return of_folder(exported);
    }
    if dir.join("config.json").is_file() && is_run(&dir) {
        return Err(JobError::refused(
            format!(
                "--model {}: is the folder of a run that has saved nothing yet",
                dir.display()
            ),
            "wait for its first checkpoint (run.checkpoint_every), or let it finish",
        ));
    }
    of_folder(dir)
}

/// Does the folder's `config.json` describe a model, or are there weights?
fn is_model(dir: &Path) -> bool {
    let told = json(&dir.join("config.json")).is_some_and(|c| c.get("model_type").is_some());
    told || adapter::is_folder(dir)
        || ["model.safetensors", "model.safetensors.index.json"]
            .iter()
            .any(|f| dir.join(f).exists())
}

/// Is `config.json` the record of a run?
fn is_run(dir: &Path) -> bool {
    json(&dir.join("config.json")).is_some_and(|c| c["run"].is_object() && c["model"].is_object())
}

fn json(path: &Path) -> Option<Value> {
    let bytes = crossweave_files::read(path, crossweave_files::TABLE).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The model of a run's checkpoint.
///
/// # Errors
/// A checkpoint that remembers no model.
fn of_checkpoint_alone(checkpoint: Checkpoint, caches: &Caches) -> Result<Source> {
    Ok(Source {
        spec: spec(&checkpoint, caches)?,
        folder: None,
        checkpoint: Some(checkpoint),
        lora: None,
        adapter: None,
        fingerprint: None,
        teacher: None,
        own: None,
    })
}

impl Trained {
    /// The tokenizer it was trained with.
    ///
    /// # Errors
    /// None is known; one that is damaged or larger than the vocabulary.
    pub fn tokenizer(&self, caches: &Caches) -> Result<Tokenizer> {
        let vocab = self.source.spec.model().vocab;
        if let Some(dir) = &self.folder {
            return tokens::open_for(&adapter::words_folder(dir)?, vocab);
        }
        let checkpoint = self.source.checkpoint.as_ref();
        let spec = checkpoint
            .map(|c| tokenizer_spec(c, caches))
            .transpose()?
            .flatten();
        let spec = spec.ok_or_else(|| {
            JobError::refused(
                "the run was trained on given tokens, and no tokenizer of theirs is known",
                "export it with `crossweave checkpoint export`, and put the tokenizer.json of the tokens into the model's folder",
            )
        })?;
        Ok(Tokenizer::open(&spec, Some(vocab as usize))?)
    }
}

/// The model a checkpoint holds, as its `config.json`: what the checkpoint remembers, or (before it did) what its run's config describes.
///
/// # Errors
/// A checkpoint that remembers no model.
pub fn hf_config(from: &Checkpoint, caches: &Caches) -> Result<Value> {
    let state = from.state();
    if state["hf_config"].is_object() {
        return Ok(state["hf_config"].clone());
    }
    let told = serde_json::from_value::<config::Model>(state["config"]["model"].clone());
    let Ok(told) = told else {
        return Err(JobError::Checkpoint(CheckpointError::NotFound {
            path: from.path().to_path_buf(),
            reason: "remembers no model".into(),
            fix: "name a checkpoint that `crossweave train` wrote".into(),
        }));
    };
    Ok(model::of_config(&told, None, caches)?.hf_config(None))
}

/// The model of a checkpoint, in numbers.
///
/// # Errors
/// As [`hf_config`]; numbers that are no model's.
pub fn spec(from: &Checkpoint, caches: &Caches) -> Result<ModelSpec> {
    ModelSpec::from_hf(&hf_config(from, caches)?).map_err(|e| {
        JobError::refused(
            format!(
                "{}: the model it remembers: {}: {}",
                from.path().display(),
                e.key,
                e.what
            ),
            "restore the checkpoint from a copy; `crossweave checkpoint verify` says which file is damaged",
        )
    })
}

/// The exported model of the run that a checkpoint belongs to, where there is one.
fn exported(from: &Checkpoint) -> Option<PathBuf> {
    let run = from.path().parent()?.parent()?;
    Some(run.join("model")).filter(|dir| is_model(dir))
}

/// The tokenizer of a checkpoint's run: the one beside the exported model, which is whole in itself, else the one its config names.
/// `None` for given tokens without one.
///
/// # Errors
/// A checkpoint that remembers no data; files that the config names and that are gone.
pub fn tokenizer_spec(from: &Checkpoint, caches: &Caches) -> Result<Option<TokenizerSpec>> {
    if let Some(dir) = exported(from)
        && let Some(spec) = tokens::of_folder(&dir)?
    {
        return Ok(Some(spec));
    }
    let part = |key: &str| from.state()["config"][key].clone();
    let (Ok(data), Ok(model)) = (
        serde_json::from_value::<config::Data>(part("data")),
        serde_json::from_value::<config::Model>(part("model")),
    ) else {
        return Err(JobError::refused(
            "the checkpoint remembers no data",
            "copy the tokenizer's files beside it",
        ));
    };
    Ok(data_spec::spec(&data, Some(&model), caches)?.tokenizer)
}

/// The files that go beside the weights of a checkpoint's model; `warn` takes what is wrong with one that is copied all the same.
///
/// # Errors
/// A tokenizer that cannot be read any more.
pub fn companions(
    from: &Checkpoint,
    config: &Value,
    caches: &Caches,
    warn: &dyn Fn(&str),
) -> Result<Vec<crate::companions::File>> {
    let spec = tokenizer_spec(from, caches)?;
    let vocab = config["vocab_size"].as_u64().map(|v| v as usize);
    let open = |s: &TokenizerSpec| Tokenizer::open(s, vocab);
    let tokenizer = spec.as_ref().map(open).transpose()?;
    let hf = from.state()["config"]["model"]["hf"].as_str();
    let base = hf.and_then(|name| hub::folder(name, "model.hf", Part::Model, caches).ok());
    let folder = exported(from).or(base.filter(|dir| dir.is_dir()));
    Companions {
        tokenizer: spec.as_ref().zip(tokenizer.as_ref()),
        folder: folder.as_deref(),
        config,
        warn,
    }
    .files()
}
