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

/// The config with the name of a model of the hub cache as that of the revision it stands for.
///
/// # Errors
/// A model that is not in the cache.
pub fn pinned(mut config: Config, caches: &Caches) -> Result<Config> {
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
    parse(&path.display().to_string(), &text, sets)
}

/// As [`read`], of the text of a config; `name` is used in messages.
///
/// # Errors
/// Everything that is wrong in it.
pub fn parse(name: &str, text: &[u8], sets: &[String]) -> Result<Config> {
    let sets = sets
        .iter()
        .map(|s| split_set(s))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Config::load(name, text, &sets)?)
}
