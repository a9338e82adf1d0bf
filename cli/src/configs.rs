//! `crossweave config`: check, schema, explain.

use crate::args::ConfigAction;
use crate::error::{CliError, Result};
use crate::say::say;
use crossweave_config::{Config, json_schema, reference, split_set};
use crossweave_files as files;
use std::path::Path;

/// Reads a config with `--set` pairs laid over it.
///
/// # Errors
/// A file that cannot be read; everything that is wrong in it.
pub fn load(path: &Path, sets: &[String]) -> Result<Config> {
    let sets = sets
        .iter()
        .map(|s| split_set(s))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let text = files::read(path, files::TEXT).map_err(CliError::io("read the config", path))?;
    Ok(Config::load(&path.display().to_string(), text, &sets)?)
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
        } => {
            let config = load(&config, &sets)?;
            say!(
                "{}",
                config.check(config.ranks(ranks.map(u64::from)))?.trim_end()
            );
        }
        ConfigAction::Schema => say!("{}", json_schema().trim_end()),
        ConfigAction::Explain {
            config: Some(path),
            sets,
        } => say!("{}", load(&path, &sets)?.explain().trim_end()),
        ConfigAction::Explain { config: None, .. } => say!("{}", reference().trim_end()),
    }
    Ok(())
}
