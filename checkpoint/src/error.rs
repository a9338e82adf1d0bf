//! Every way a checkpoint can fail to be read or written, each naming the file, the tensor and the fix.

use crate::resolve::NameReport;
use std::path::{Path, PathBuf};

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, CheckpointError>;

/// Characters of a name that a message shows.
pub(crate) const MAX_NAME: usize = 200;

/// A failure to read or write a model directory or a training checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused a file operation.
    #[error("cannot {action} {}: {source}; fix: {}", path.display(), crossweave_files::fix(source))]
    Io {
        /// What was being done, as a verb ("read", "rename into place").
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file or folder that must be there is not.
    #[error("{}: {reason}; fix: {fix}", path.display())]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
        /// What is missing.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// Rank 0 has given a save up, and removed its folder, before another rank had written its part. The cause is in the
    /// error of rank 0.
    #[error(
        "rank 0 gave the checkpoint of step {step} up before this rank had written its part; fix: see what rank 0 reports"
    )]
    GivenUp {
        /// Step of the checkpoint.
        step: u64,
    },
    /// A JSON file does not parse, or lacks what its reader needs.
    #[error("{}:{line}:{column}: {reason}; fix: {fix}", path.display())]
    Json {
        /// The JSON file.
        path: PathBuf,
        /// 1-based line; 0 when the fault is not at one place.
        line: usize,
        /// 1-based column; 0 when the fault is not at one place.
        column: usize,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A safetensors file is damaged as a whole: truncated, header too large, header not JSON.
    #[error("{}: {reason}; fix: {fix}", path.display())]
    Header {
        /// The safetensors file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// One tensor's entry of a safetensors header is wrong.
    #[error("{}: tensor `{tensor}`: {reason}; fix: {fix}", path.display())]
    Tensor {
        /// The safetensors file.
        path: PathBuf,
        /// Name in the file.
        tensor: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// `model.safetensors.index.json` and the shards beside it do not agree.
    #[error("{}: tensor `{tensor}`, shard {shard}: {reason}; fix: {fix}", index.display())]
    Index {
        /// The index file.
        index: PathBuf,
        /// The (first) tensor concerned.
        tensor: String,
        /// The shard the index names for it.
        shard: String,
        /// What does not agree.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A tensor was asked for by a name that is not there.
    #[error("{}: no tensor `{tensor}`{}; fix: name one that is there, or restore the file from a copy", path.display(), nearest.as_ref().map(|n| format!("; the nearest name is `{n}`")).unwrap_or_default())]
    UnknownTensor {
        /// File or directory searched.
        path: PathBuf,
        /// Name asked for.
        tensor: String,
        /// The closest name that exists.
        nearest: Option<String>,
    },
    /// The parameters a model needs and the tensors a directory holds differ.
    #[error("{0}")]
    Names(Box<NameReport>),
    /// A tied head is stored beside its embedding with other values.
    #[error(
        "{}: `{alias}` and `{source_name}` are tied by the config but hold different values; fix: set \
         \"tie_word_embeddings\" to false in config.json to train both, or delete the one that is wrong", path.display()
    )]
    TiedDiffer {
        /// The model directory.
        path: PathBuf,
        /// Name of the tied tensor (`lm_head.weight`).
        alias: String,
        /// Name of the tensor it should equal.
        source_name: String,
    },
    /// The place to write to holds something this crate will not replace.
    #[error("{}: {reason}; fix: {fix}", path.display())]
    Target {
        /// The target directory.
        path: PathBuf,
        /// Why it is left alone.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// The caller gave something that cannot be written: a wrong byte count, a name twice, a rank out of range.
    #[error("cannot write `{what}`: {reason}; fix: {fix}")]
    Write {
        /// Tensor, blob or rank concerned.
        what: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// A training checkpoint's file fails its length or its hash.
    #[error("checkpoint of step {step}: {}: {reason}; fix: {fix}", path.display())]
    Damaged {
        /// Optimizer step of the checkpoint.
        step: u64,
        /// The damaged file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
        /// The newest older step that verifies, if there is one.
        previous_good: Option<u64>,
        /// What to do: names the previous good checkpoint.
        fix: String,
    },
    /// Another process writes there, or has taken the folder over.
    #[error(transparent)]
    Claim(#[from] crossweave_claim::ClaimError),
    /// A verification of several files found damage; the report lists every file.
    #[error("{report}")]
    VerifyFailed {
        /// The text that [`crate::verify`] would have returned, with the failures in it.
        report: String,
    },
}

impl CheckpointError {
    /// A closure for `map_err` that wraps the system's reason.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn header(path: &Path, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Header {
            path: path.to_path_buf(),
            reason: reason.into(),
            fix: fix.into(),
        }
    }

    pub(crate) fn tensor(
        path: &Path,
        tensor: &str,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::Tensor {
            path: path.to_path_buf(),
            tensor: crossweave_files::clip(tensor, MAX_NAME),
            reason: reason.into(),
            fix: fix.into(),
        }
    }

    pub(crate) fn json(
        path: &Path,
        error: &serde_json::Error,
        what: &str,
        fix: impl Into<String>,
    ) -> Self {
        Self::Json {
            path: path.to_path_buf(),
            line: error.line(),
            column: error.column(),
            reason: format!("{what}: {error}"),
            fix: fix.into(),
        }
    }

    pub(crate) fn write(
        what: impl Into<String>,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::Write {
            what: what.into(),
            reason: reason.into(),
            fix: fix.into(),
        }
    }
}
