//! Opens the corpus of a job.

use crate::job_error::Result;
use crate::surroundings::Caches;
use crossweave_config::Data;
use crossweave_data::{Corpus, DataSpec, Progress};
use std::path::{Path, PathBuf};

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

/// Opens the corpus; `progress` follows how it is built.
///
/// # Errors
/// Any of the data layer.
pub fn open(spec: &DataSpec, cache: &Path, progress: &dyn Progress) -> Result<Corpus> {
    Ok(crossweave_data::open(spec, cache, progress)?)
}
