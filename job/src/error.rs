//! Why a config and the files it names make no job: the crates' own errors keep their sentences, and each has a code, a key and a fix.

use crossweave_checkpoint::CheckpointError;
use crossweave_config::{Errors, Problem};
use crossweave_data::DataError;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Result of opening the files of a job.
pub type Result<T> = std::result::Result<T, JobError>;

/// What a config, or a file that it names, is refused for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] Errors),
    /// The corpus, the tokenizer or the batches.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Parameter groups.
    #[error(transparent)]
    Groups(#[from] crossweave_planner::Error),
    /// A model folder or a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file.
    #[error("cannot {action} {}: {source}; fix: {}", path.display(), crossweave_files::fix(source))]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A setting, a file or a flag that cannot be used.
    #[error("{what}; fix: {fix}")]
    Refused {
        /// What is wrong: the key, file or flag, and the value.
        what: String,
        /// What to do.
        fix: String,
    },
}

/// Characters of what is wrong that a message has: it quotes values of files, which may be of any length.
const MOST: usize = 1000;

impl JobError {
    /// Wraps a system error with the file and the verb.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> JobError {
        let path = path.to_path_buf();
        move |source| JobError::Io {
            action,
            path,
            source,
        }
    }

    /// A refusal: `what` names the key, file or flag and its value, `fix` what to do. Each is cut to 1000 characters.
    pub fn refused(what: impl Into<String>, fix: impl Into<String>) -> JobError {
        JobError::Refused {
            what: crossweave_files::elide(&what.into(), MOST),
            fix: crossweave_files::elide(&fix.into(), MOST),
        }
    }
}

/// Errors that can be placed in a config: those of opening a job, and those of running one.
pub trait Placeable: Display + From<Errors> {
    /// The problems of a config, each with its place.
    ///
    /// # Errors
    /// The error itself where it is of another kind.
    fn problems(self) -> std::result::Result<Vec<Problem>, Self>;

    /// What is wrong, and what to do about it where the message says so.
    fn parts(&self) -> (String, Option<String>) {
        let text = self.to_string();
        match text.split_once("; fix: ") {
            Some((what, fix)) => (what.to_string(), Some(fix.to_string())),
            None => (text, None),
        }
    }
}

impl Placeable for JobError {
    fn problems(self) -> std::result::Result<Vec<Problem>, JobError> {
        match self {
            JobError::Config(Errors(problems)) => Ok(problems),
            e => Err(e),
        }
    }
}

impl Placeable for Errors {
    fn problems(self) -> std::result::Result<Vec<Problem>, Errors> {
        Ok(self.0)
    }
}
