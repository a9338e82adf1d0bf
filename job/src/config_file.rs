//! The config of a job, read from its file with `--set` pairs laid over it.

use crate::caches::Caches;
use crate::error::{JobError, Result};
use crate::found;
use crate::hub;
use crossweave_config::{Config, split_set};
use crossweave_files as files;
use std::path::Path;

/// Reads a config with `--set` pairs laid over it. The name of a model of the hub cache becomes that of the revision it stands for.
///
/// # Errors
/// A file that cannot be read; everything that is wrong in it; a model that is not in the cache.
pub fn load(path: &Path, sets: &[String], caches: &Caches) -> Result<Config> {
    pinned(read(path, sets)?, caches)
}

/// As [`load`], of a config that no file holds; `name` is used in messages.
///
/// # Errors
/// As [`load`].
pub fn of_text(name: &str, text: &str, sets: &[String], caches: &Caches) -> Result<Config> {
    pinned(parsed(name, text.as_bytes(), sets)?, caches)
}

fn pinned(mut config: Config, caches: &Caches) -> Result<Config> {
    let pinned = hub::pin(&mut config, caches);
    found::at(&config, "model", pinned)?;
    Ok(config)
}

/// As [`load`], without a look at the files that the config names.
///
/// # Errors
/// A file that cannot be read; everything that is wrong in it.
pub fn read(path: &Path, sets: &[String]) -> Result<Config> {
    let text = files::read(path, files::TEXT).map_err(JobError::io("read the config", path))?;
    parsed(&path.display().to_string(), &text, sets)
}

fn parsed(name: &str, text: &[u8], sets: &[String]) -> Result<Config> {
    let sets = sets
        .iter()
        .map(|s| split_set(s))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Config::load(name, text, &sets)?)
}
