//! `crossweave config`: check, schema, explain.

use crate::args::ConfigAction;
use crate::error::{CliError, Result};
use crossweave_config::{Config, json_schema, reference, split_set};
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
    let text = std::fs::read(path).map_err(CliError::io("read the config", path))?;
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
            print!("{}", config.check(config.ranks(ranks.map(u64::from)))?);
        }
        ConfigAction::Schema => print!("{}", json_schema()),
        ConfigAction::Explain {
            config: Some(path),
            sets,
        } => print!("{}", load(&path, &sets)?.explain()),
        ConfigAction::Explain { config: None, .. } => print!("{}", reference()),
    }
    Ok(())
}
