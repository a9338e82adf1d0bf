//! Folders outside of a config in which models, tokens and packages are found.

use std::path::PathBuf;

/// Where models and tokens are kept from run to run.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// The folder for tokenised data. `None`: one beside the run.
    pub tokens: Option<PathBuf>,
    /// The hub cache, in which models are found by name. `None`: models are found by path only.
    pub models: Option<PathBuf>,
    /// The folder of cargo, for `data.train.cargo_sources`.
    pub cargo: Option<PathBuf>,
}
