//! `crossweave config`: check, schema, explain.

use crate::args::ConfigAction;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::{hub, model, source};
use crossweave_checkpoint::{PublicKey, SecretKey};
use crossweave_config::{Config, Model, json_schema, reference, split_set};
use crossweave_files as files;
use std::path::Path;

/// Reads a config with `--set` pairs laid over it. The name of a model of the hub cache becomes that of the revision it stands for.
///
/// # Errors
/// A file that cannot be read; everything that is wrong in it; a model that is not in the cache.
pub fn load(path: &Path, sets: &[String]) -> Result<Config> {
    let mut config = read(path, sets)?;
    hub::pin(&mut config)?;
    Ok(config)
}

/// As [`load`], without a look at the files that the config names.
fn read(path: &Path, sets: &[String]) -> Result<Config> {
    let sets = sets
        .iter()
        .map(|s| split_set(s))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let text = files::read(path, files::TEXT).map_err(CliError::io("read the config", path))?;
    Ok(Config::load(&path.display().to_string(), text, &sets)?)
}

/// Opens what the config names, as far as headers go: the model's folder, whose names and shapes must be the model's, the tokenizer, the
/// data, the keys of signatures. Nothing is written.
fn files_of(config: &Config) -> Result<()> {
    let s = &config.settings;
    let mut vocab = None;
    if let Some(m @ Model::Hf(_)) = &s.model {
        vocab = Some(model::of_config(m, None)?.spec.model().vocab() as usize);
    }
    if let Some(data) = &s.data {
        let mut spec = source::spec(data, s.model.as_ref())?;
        spec.model_vocab = vocab.or(spec.model_vocab);
        crossweave_data::check(&spec)?;
    }
    if let Some(key) = &s.checkpoint.sign_key {
        SecretKey::read(key.as_ref())?;
    }
    if let Some(key) = &s.checkpoint.trust_key {
        PublicKey::read(key.as_ref())?;
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// A config that is wrong.
pub fn run(action: ConfigAction) -> Result<()> {
    match action {
        ConfigAction::Check {
            config,
            ranks,
            sets,
            no_files,
        } => {
            let config = match no_files {
                true => read(&config, &sets)?,
                false => load(&config, &sets)?,
            };
            let text = config.check(config.ranks(ranks.map(u64::from)))?;
            if !no_files {
                files_of(&config)?;
            }
            say!("{}", text.trim_end());
        }
        ConfigAction::Schema => say!("{}", json_schema().trim_end()),
        ConfigAction::Explain {
            config: Some(path),
            sets,
        } => say!("{}", read(&path, &sets)?.explain().trim_end()),
        ConfigAction::Explain { config: None, .. } => say!("{}", reference().trim_end()),
    }
    Ok(())
}
