//! `crossweave config`: check, schema, explain.

use crate::args::ConfigAction;
use crate::asked;
use crate::check::{Checked, check};
use crate::config_file::load;
use crate::error::{CliError, Result};
use crate::ranks::Ranks;
use crate::say::say;
use crate::surroundings::{Caches, Surroundings};
use crate::train::Request;
use crate::width::columns;
use crossweave_config::{explain_key, json_schema, keys, reference};
use std::path::Path;

/// One key, all keys of a config, or all keys there are.
fn explain(
    what: Option<String>,
    key: Option<String>,
    sets: &[String],
    markdown: bool,
    caches: &Caches,
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
        .map(|path| load(Path::new(&path), sets, caches))
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

/// Returns the page of a checked config: its summary, and the remarks on its data.
fn page(found: &Checked) -> String {
    let remarks = found.remarks.iter().map(|r| format!("{r}\n"));
    found.config.summary(&found.resolved) + &remarks.collect::<String>()
}

/// Runs the command.
///
/// # Errors
/// A config that is wrong.
pub fn run(action: ConfigAction, around: &Surroundings) -> Result<()> {
    match action {
        ConfigAction::Check {
            config,
            ranks,
            sets,
            no_files,
            backend,
        } => {
            let request = Request {
                sets,
                ranks: ranks.map(Ranks::Count),
                backend: (&backend).into(),
                ..asked::of(&config, around)
            };
            let text = match no_files {
                true => {
                    let config = request.read()?;
                    config.check(request.ranks_of(&config))?
                }
                false => page(&check(&request)?),
            };
            say!("{}", text.trim_end());
        }
        ConfigAction::Schema => say!("{}", json_schema().trim_end()),
        ConfigAction::Explain {
            what,
            key,
            sets,
            markdown,
        } => say!(
            "{}",
            explain(what, key, &sets, markdown, &around.caches)?.trim_end()
        ),
    }
    Ok(())
}
