//! What a run is asked for beside its config: the fields that a command line or another program fills in.

use crate::backend::BackendChoice;
use crate::events::Events;
use crate::ranks::Ranks;
use crate::surroundings::Surroundings;
use std::path::PathBuf;
use std::sync::Arc;

/// A run as it is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The file of the config.
    pub config: PathBuf,
    /// Keys that are laid over it: `key.path=value`.
    pub sets: Vec<String>,
    /// Ranks of the job, or of this process by back end. `None`: `mesh.dp`, else one.
    pub ranks: Option<Ranks>,
    /// The back end that computes.
    pub backend: BackendChoice,
    /// Optimizer steps, in place of `run.steps` or `run.epochs`.
    pub steps: Option<u64>,
    /// Output folder. `None`: the folder of `resume`, `run.out`, or a new one under `runs/`.
    pub out: Option<PathBuf>,
    /// Folder of the run that is continued.
    pub resume: Option<PathBuf>,
    /// Where a timeline of all ranks goes.
    pub trace: Option<PathBuf>,
    /// Which steps are reported.
    pub lines: Lines,
    /// What lies around the job.
    pub around: Surroundings,
    /// Who watches.
    pub events: Arc<dyn Events>,
}

/// Which steps are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// None, and no closing table: warnings and errors only.
    Quiet,
    /// Those of `run.log_every`.
    Configured,
    /// Every step.
    Each,
}

impl Lines {
    /// Steps between two that are reported, where `run.log_every` is `configured`; none where no step is.
    pub fn every(self, configured: Option<u64>) -> Option<u64> {
        match self {
            Lines::Quiet => None,
            Lines::Configured => configured.or(Some(1)),
            Lines::Each => Some(1),
        }
    }
}
