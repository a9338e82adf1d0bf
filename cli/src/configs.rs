//! `crossweave config`: check, schema, explain.

use crate::args::ConfigAction;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::width::columns;
use crate::{hub, model, objective, source};
use crossweave_checkpoint::{PublicKey, SecretKey};
use crossweave_config::{Config, Model, explain_key, json_schema, keys, reference, split_set};
use crossweave_data::Remark;
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
///
/// # Errors
/// A file that cannot be read; everything that is wrong in it.
pub fn read(path: &Path, sets: &[String]) -> Result<Config> {
    let sets = sets
        .iter()
        .map(|s| split_set(s))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let text = files::read(path, files::TEXT).map_err(CliError::io("read the config", path))?;
    Ok(Config::load(&path.display().to_string(), text, &sets)?)
}

/// Opens what the config names, as far as headers go: the model's folder, whose names and shapes must be the model's, the tokenizer, the
/// data, the keys of signatures. Nothing is written. What is remarkable about model and data comes back.
fn files_of(config: &Config) -> Result<Vec<Remark>> {
    let s = &config.settings;
    let (mut opened, mut told) = (None, vec![]);
    if let Some(m @ Model::Hf(_)) = &s.model {
        let source = model::of_config(m, None)?;
        told.extend(source.remarks());
        opened = Some(source.spec);
    }
    if let Some(data) = &s.data {
        let mut spec = source::spec(data, s.model.as_ref())?;
        if let Some(opened) = &opened {
            spec.model_vocab = Some(opened.model().vocab as usize);
            spec.objective = objective::of(data, s.model.as_ref(), Some(opened))?;
        }
        told.extend(crossweave_data::check(&spec)?);
    }
    if let Some(key) = &s.checkpoint.sign_key {
        SecretKey::read(key.as_ref())?;
    }
    if let Some(key) = &s.checkpoint.trust_key {
        PublicKey::read(key.as_ref())?;
    }
    Ok(told)
}

/// One key, all keys of a config, or all keys there are.
fn explain(
    what: Option<String>,
    key: Option<String>,
    sets: &[String],
    markdown: bool,
) -> Result<String> {
    let width = columns();
    let (config, key) = match (what, key) {
        (Some(what), None) if !is_config(&what) => (None, Some(what)),
        (config, key) => (config, key),
    };
    if markdown {
        return match (config, key) {
            (None, None) => Ok(reference()),
            _ => Err(CliError::refused(
                "--markdown is the whole reference",
                "give neither a config nor a key with it",
            )),
        };
    }
    if config.is_none() && !sets.is_empty() {
        return Err(CliError::refused(
            "--set without a config has nothing to be laid over",
            "name the config first: crossweave config explain CONFIG.json [KEY] --set key=value",
        ));
    }
    let config = config
        .map(|path| load(Path::new(&path), sets))
        .transpose()?;
    match (config, key) {
        (config, Some(key)) => explain_key(&key, config.as_ref(), width)
            .map_err(|(what, fix)| CliError::refused(what, fix)),
        (Some(config), None) => Ok(config.explain(width)),
        (None, None) => Ok(keys(width)),
    }
}

/// A file, or what is written like one, and not a key.
fn is_config(what: &str) -> bool {
    Path::new(what).is_file() || what.ends_with(".json") || what.contains(['/', '\\'])
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
            let mut text = config.check(config.ranks(ranks.map(u64::from)))?;
            if !no_files {
                let remarks = files_of(&config)?;
                text.extend(remarks.iter().map(|r| format!("{r}\n")));
            }
            say!("{}", text.trim_end());
        }
        ConfigAction::Schema => say!("{}", json_schema().trim_end()),
        ConfigAction::Explain {
            what,
            key,
            sets,
            markdown,
        } => say!("{}", explain(what, key, &sets, markdown)?.trim_end()),
    }
    Ok(())
}
