//! What a command fails with: the errors of jobs become the command's here, and each gives the exit status of the process.

use crate::job_error::JobError;
use crate::train_error::TrainError;
use crossweave_checkpoint::CheckpointError;
use crossweave_config::Errors;
use crossweave_hal::LoadError;
use crossweave_report::ReportError;
use std::path::Path;

/// Result of every command.
pub type Result<T> = std::result::Result<T, CliError>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A job: its config and files, its devices, its ranks.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// The conformance kit.
    #[error("{0}")]
    Conform(#[from] crossweave_conform::Trouble),
    /// The command has printed what there is to say.
    #[error("")]
    Said {
        /// Exit status.
        code: u8,
    },
}

/// Errors of the crates below, which are those of a job.
macro_rules! of_train {
    ($($source:ty),+) => {$(
        impl From<$source> for CliError {
            fn from(e: $source) -> CliError {
                CliError::Train(Box::new(e.into()))
            }
        }
    )+};
}
of_train!(
    TrainError,
    JobError,
    Errors,
    CheckpointError,
    LoadError,
    ReportError,
    crossweave_hal::Error
);

impl CliError {
    /// Wraps a system error with the file and the verb.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CliError {
        let job = JobError::io(action, path);
        move |source| job(source).into()
    }

    /// A refusal of the command line: see [`JobError::refused`].
    pub fn refused(what: impl Into<String>, fix: impl Into<String>) -> CliError {
        JobError::refused(what, fix).into()
    }

    /// Has it been said already, here or by another process?
    pub fn is_silent(&self) -> bool {
        match self {
            CliError::Train(e) => e.is_silent(),
            CliError::Said { .. } => true,
            CliError::Conform(_) => false,
        }
    }

    /// The exit status of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Train(e) => e.exit_code(),
            CliError::Conform(t) => t.exit_code(),
            CliError::Said { code } => *code,
        }
    }
}
