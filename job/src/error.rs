//! Why a config and the files it names make no job: the crates' own errors keep their sentences, and each has a code, a key and a fix.

use crossweave_checkpoint::CheckpointError;
use crossweave_config::{At, Errors, Problem, is_path};
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
    /// The config, its files and the back end do not go together.
    #[error(transparent)]
    Faults(#[from] ConfigFaults),
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

/// The kind of a failure, for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The config is wrong.
    Config,
    /// The corpus, the tokenizer or the batches.
    Data,
    /// A model folder or a checkpoint.
    Checkpoint,
    /// The system refused to read or write a file.
    Io,
    /// A setting, a file or an argument that cannot be used.
    Refused,
    /// The step breaks a law of plans, or does not fit the memory of the device.
    Plan,
    /// A plugin cannot be loaded.
    Plugin,
    /// Another process writes the same folder or file.
    Claimed,
    /// The device, its memory or its links.
    Device,
    /// A loss, a gradient or a parameter is no finite number.
    NotFinite,
    /// The run was asked to stop.
    Stopped,
    /// The trainer has failed before.
    Failed,
    /// Another process of the job.
    Peer,
}

impl ErrorCode {
    /// Its name, which stays.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Config => "config",
            ErrorCode::Data => "data",
            ErrorCode::Checkpoint => "checkpoint",
            ErrorCode::Io => "io",
            ErrorCode::Refused => "refused",
            ErrorCode::Plan => "plan",
            ErrorCode::Plugin => "plugin",
            ErrorCode::Claimed => "claimed",
            ErrorCode::Device => "device",
            ErrorCode::NotFinite => "not_finite",
            ErrorCode::Stopped => "stopped",
            ErrorCode::Failed => "failed",
            ErrorCode::Peer => "peer",
        }
    }
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

impl JobError {
    /// The kind of failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            JobError::Config(_) | JobError::Faults(_) => ErrorCode::Config,
            JobError::Data(DataError::Io { .. }) | JobError::Io { .. } => ErrorCode::Io,
            JobError::Data(_) => ErrorCode::Data,
            JobError::Groups(crossweave_planner::Error::Invalid(_)) | JobError::Refused { .. } => {
                ErrorCode::Refused
            }
            JobError::Groups(_) => ErrorCode::Plan,
            JobError::Checkpoint(CheckpointError::Claim(_)) => ErrorCode::Claimed,
            JobError::Checkpoint(CheckpointError::Io { .. }) => ErrorCode::Io,
            JobError::Checkpoint(_) => ErrorCode::Checkpoint,
        }
    }

    /// The key of the config that it is about, the first of several; none where it is about none, or about no key alone.
    pub fn key(&self) -> Option<String> {
        match self {
            JobError::Config(_) | JobError::Faults(_) => {
                let faults = self.faults();
                faults.iter().find_map(ConfigFault::key).map(str::to_string)
            }
            e => first_key(&e.to_string()).map(str::to_string),
        }
    }

    /// The rank of the job that it is about.
    pub fn rank(&self) -> Option<u32> {
        match self {
            JobError::Groups(e) => e.rank(),
            _ => None,
        }
    }

    /// The optimizer step of the checkpoint that it is about.
    pub fn step(&self) -> Option<u64> {
        match self {
            JobError::Checkpoint(
                CheckpointError::GivenUp { step } | CheckpointError::Damaged { step, .. },
            ) => Some(*step),
            _ => None,
        }
    }

    /// Every fault of the config that it consists of, in the order in which they were found; none where it is no error of a config.
    pub fn faults(&self) -> Vec<ConfigFault> {
        match self {
            JobError::Config(e) => ConfigFaults::from(e.clone()).0,
            JobError::Faults(ConfigFaults(faults)) => faults.clone(),
            _ => vec![],
        }
    }

    /// What to do about it, the first remedy of several.
    pub fn fix(&self) -> Option<String> {
        match self {
            JobError::Config(_) | JobError::Faults(_) => {
                let faults = self.faults();
                faults.iter().find_map(ConfigFault::fix).map(str::to_string)
            }
            e => e.parts().1,
        }
    }
}

/// The first key of a config that a sentence names.
pub fn first_key(words: &str) -> Option<&str> {
    let clean = |c: char| !(c.is_alphanumeric() || "._[]".contains(c));
    let words = words.split([' ', ',', ';', '=']);
    let mut words = words.map(|w| w.trim_matches(clean).trim_end_matches('.'));
    // Names of a model's files are written like paths of its section.
    let file = |w: &str| w.ends_with(".safetensors") || w.ends_with(".json");
    words.find(|w| is_path(w) && !file(w))
}

/// A fault of a config: the kind of failure, with its place, its key and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The kind of failure that the key leads to.
    pub code: ErrorCode,
    /// Where it is, what is wrong, and the remedy.
    pub problem: Problem,
}

impl ConfigFault {
    /// The dotted path of the key; none where the fault lies in the whole file.
    pub fn key(&self) -> Option<&str> {
        Some(&*self.problem.path).filter(|path| !path.is_empty())
    }

    /// The line of the config, from 1; none of what was set beside the file, or is missing in it.
    pub fn line(&self) -> Option<u32> {
        match self.problem.at {
            At::File { line, .. } => Some(line),
            At::Set(_) | At::Whole => None,
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> Option<&str> {
        Some(&*self.problem.fix).filter(|fix| !fix.is_empty())
    }
}

/// The faults of a config, in the order in which they were found; never empty as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults(pub Vec<ConfigFault>);

impl From<Errors> for ConfigFaults {
    fn from(Errors(problems): Errors) -> ConfigFaults {
        let code = ErrorCode::Config;
        let fault = |problem| ConfigFault { code, problem };
        ConfigFaults(problems.into_iter().map(fault).collect())
    }
}

impl Display for ConfigFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problems = self.0.iter().map(|fault| fault.problem.clone());
        Errors(problems.collect()).fmt(f)
    }
}

impl std::error::Error for ConfigFaults {}

/// Errors that can be placed in a config: those of opening a job, and those of running one.
pub trait Placeable: Display + Sized {
    /// The faults of a config, each with its place.
    ///
    /// # Errors
    /// The error itself where it is of another kind.
    fn placed(self) -> std::result::Result<ConfigFaults, Self>;

    /// The kind of failure.
    fn code(&self) -> ErrorCode;

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
    fn placed(self) -> std::result::Result<ConfigFaults, JobError> {
        match self {
            JobError::Config(e) => Ok(e.into()),
            JobError::Faults(faults) => Ok(faults),
            e => Err(e),
        }
    }

    fn code(&self) -> ErrorCode {
        JobError::code(self)
    }
}

impl Placeable for Errors {
    fn placed(self) -> std::result::Result<ConfigFaults, Errors> {
        Ok(self.into())
    }

    fn code(&self) -> ErrorCode {
        ErrorCode::Config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_config::Config;

    /// Each kind of failure gives what a program decides by, read off the error itself and not guessed.
    #[test]
    fn a_key_is_told_from_a_file_of_the_model() {
        let words = "model.safetensors is cut off; model.safetensors.index.json names it";
        assert_eq!(first_key(words), None);
        let words = "model.safetensors is not what model.hf promises; set run.out";
        assert_eq!(first_key(words), Some("model.hf"));
    }

    #[test]
    fn errors_give_their_code_key_rank_step_and_fix() {
        let text = r#"{"mesh": {"pp": "two"}, "run": {"stepz": 3}}"#;
        let e = JobError::from(Config::load("c.json", text, &[]).err().unwrap());
        assert_eq!(
            (e.code(), e.key().as_deref()),
            (ErrorCode::Config, Some("mesh.pp"))
        );
        assert!(e.fix().is_some() && e.rank().is_none() && e.step().is_none());

        let e = JobError::refused(
            "mesh.pp: 9 stages, and the model has 4 units",
            "set it to 4",
        );
        assert_eq!(e.code().name(), "refused");
        assert_eq!(e.key().as_deref(), Some("mesh.pp"));
        assert_eq!(e.fix().as_deref(), Some("set it to 4"));
        // A key in the midst of a sentence, in backticks or at its end, is found too; the path of a file is none.
        let inner = JobError::refused("states go, by `run.steps`, away", "stay");
        assert_eq!(inner.key().as_deref(), Some("run.steps"));
        assert_eq!(
            JobError::refused("see run.out.", "x").key().as_deref(),
            Some("run.out")
        );
        assert_eq!(
            JobError::refused("/m/model.safetensors is short", "x").key(),
            None
        );

        let e = JobError::from(CheckpointError::GivenUp { step: 7 });
        assert_eq!((e.code(), e.step()), (ErrorCode::Checkpoint, Some(7)));
        let e = JobError::from(crossweave_planner::Error::Place {
            rank: 3,
            what: "wte".into(),
        });
        assert_eq!((e.code(), e.rank()), (ErrorCode::Plan, Some(3)));
        let gone = std::io::Error::from(std::io::ErrorKind::NotFound);
        let e = JobError::io("read", Path::new("c.json"))(gone);
        assert_eq!(e.code(), ErrorCode::Io);
        assert!(e.fix().is_some(), "{e}");
    }
}
