//! What a run is asked for beside its config: the fields that a command line or another program fills in.

use crate::backend::BackendChoice;
use crate::config_file;
use crate::events::Events;
use crate::job::Job;
use crate::job::open::Opened;
use crate::model::OwnUnits;
use crate::ranks::Ranks;
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crossweave_config::Config;
use crossweave_data::DataSource;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run as it is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The file of the config, or its name where `text` holds it.
    pub config: PathBuf,
    /// The config itself, where no file holds it.
    pub text: Option<String>,
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
    /// The run that is continued.
    pub resume: Option<Continued>,
    /// The output folder is taken over from a job of another host, which its user says is lost.
    pub take_over: bool,
    /// Where a timeline of all ranks goes.
    pub trace: Option<PathBuf>,
    /// Which steps are reported.
    pub lines: Lines,
    /// What lies around the job.
    pub around: Surroundings,
    /// Who watches.
    pub events: Arc<dyn Events>,
    /// What the program hands in beside the config.
    pub given: Given,
}

/// What a program hands in beside a config.
#[derive(Clone, Default)]
pub struct Given {
    /// Rows to train on, in place of the config's.
    pub rows: Option<Arc<dyn DataSource>>,
    /// What becomes of the units that the config declares.
    pub units: Option<OwnUnits>,
}

/// Which run a run continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Continued {
    /// The one in this folder, which must hold one.
    Run(PathBuf),
    /// The one in the output folder, from its newest checkpoint; where there is none yet a run begins, in that folder.
    Own,
}

impl Continued {
    /// The folder that is named.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Continued::Run(folder) => Some(folder),
            Continued::Own => None,
        }
    }
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given")
            .field("rows", &self.rows.is_some())
            .field("units", &self.units.is_some())
            .finish()
    }
}

impl Request {
    /// A run of the config in a file, by itself: on as many ranks as the config says, of the back end that it names.
    pub fn new(config: PathBuf, around: Surroundings, events: Arc<dyn Events>) -> Request {
        Request {
            config,
            text: None,
            sets: vec![],
            ranks: None,
            backend: BackendChoice::default(),
            steps: None,
            out: None,
            resume: None,
            take_over: false,
            trace: None,
            lines: Lines::Configured,
            around,
            events,
            given: Given::default(),
        }
    }

    /// Ranks of the job of a config: those asked for, else its mesh, else one.
    pub fn ranks_of(&self, config: &Config) -> u64 {
        config.ranks(self.ranks.as_ref().map(|r| r.count().into()))
    }

    /// Whether the command line names back ends, which are then no key of the config.
    pub fn names_backend(&self) -> bool {
        let parts = matches!(self.ranks, Some(Ranks::Parts(_)));
        parts || self.backend.plugin.is_some() || !self.backend.layers.is_empty()
    }

    /// The job of a config on `ranks` ranks, as far as its steps depend on it: no text is read.
    ///
    /// # Errors
    /// A config that is wrong, or has no model or no data; the first fault of its files.
    pub fn sizes(&self, config: Config, ranks: u64) -> Result<Job> {
        let mut job = Opened::sizes(config, ranks, &self.around.caches)?;
        job.source.own = self.given.units.clone();
        Ok(job)
    }

    /// The config, with what is laid over it.
    ///
    /// # Errors
    /// A file that cannot be read; everything that is wrong in it; a model that is not in the cache; rows whose source panics.
    pub fn load(&self) -> Result<Config> {
        Ok(config_file::pinned(self.read()?, &self.around.caches)?)
    }

    /// As [`Request::load`], without a look at the files that the config names.
    ///
    /// # Errors
    /// A file that cannot be read; everything that is wrong in it; rows whose source panics.
    pub fn read(&self) -> Result<Config> {
        let mut config = match &self.text {
            Some(text) => {
                let name = self.config.display().to_string();
                config_file::parse(&name, text.as_bytes(), &self.sets)?
            }
            None => config_file::read(&self.config, &self.sets)?,
        };
        if let Some(rows) = &self.given.rows {
            // What the config says of data is of other data.
            let seq_len = catch_unwind(AssertUnwindSafe(|| rows.seq_len()));
            let seq_len = seq_len.map_err(|_| {
                TrainError::refused("the data source panicked over its sizes", "mend it")
            })?;
            let data = json!({"train": {"indexed": OF_PROGRAM}, "seq_len": seq_len});
            config.set("data", &data.to_string())?;
        }
        if let Some(steps) = self.steps {
            // The command line counts, whichever way the file says how long the run is.
            if config.settings.run.epochs.is_some() {
                config.set("run.epochs", "null")?;
            }
            config.set("run.steps", &steps.to_string())?;
        }
        if let Some(name) = &self.backend.name {
            let text = serde_json::Value::from(name.as_str()).to_string();
            config.set("run.backend", &text)?;
        }
        Ok(config)
    }
}

/// What a run's record has in the place of a file, where the program hands in the rows.
const OF_PROGRAM: &str = "(rows of the program)";

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
