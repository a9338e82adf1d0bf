//! Everything a command can fail with, as one type: the crates' own errors keep their words, this adds only what the command line knows.

use crate::report::ReportError;
use crossweave_checkpoint::CheckpointError;
use crossweave_config::Errors;
use crossweave_data::DataError;
use crossweave_hal::LoadError;
use crossweave_mesh::rank_words;
use crossweave_plan::Law;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Result of every command.
pub type Result<T> = std::result::Result<T, CliError>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] Errors),
    /// The corpus, the tokenizer or the batches.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A model folder or a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A plugin cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A folder or file that another process writes.
    #[error(transparent)]
    Claim(#[from] crossweave_claim::ClaimError),
    /// The device layer.
    #[error("{}{}", .0, room(Some(.0)))]
    Hal(#[from] crossweave_hal::Error),
    /// The conformance kit.
    #[error("{0}")]
    Conform(#[from] crossweave_conform::Trouble),
    /// Training or inference.
    #[error("{}{}", .0, room_of(.0))]
    Engine(#[from] crossweave_engine::Error),
    /// A report.
    #[error("{0}")]
    Report(#[from] ReportError),
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
    /// Something the command line itself refuses.
    #[error("{what}; fix: {fix}")]
    Refused {
        /// What is wrong: the key, file or flag, and the value.
        what: String,
        /// What to do.
        fix: String,
    },
    /// The user stopped the run; everything is saved.
    #[error("stopped at step {step} by a signal; continue with `--resume {}`", out.display())]
    Stopped {
        /// Steps done.
        step: u64,
        /// The run's folder.
        out: PathBuf,
    },
    /// Some of this process's ranks.
    #[error("{whom}: {source}")]
    Of {
        /// Them, in words.
        whom: String,
        /// Why.
        source: Box<CliError>,
    },
    /// A rank of this process, one of several.
    #[error("{}{source}", speaker(*rank, source))]
    OnRank {
        /// The rank.
        rank: u32,
        /// Why.
        source: Box<CliError>,
    },
    /// Another process of the job.
    #[error("{} stop{}: {failure}{}", rank_words(here), if here.len() == 1 { "s" } else { "" }, was.as_ref().map_or(String::new(), |w| format!("; {w}")))]
    Peer {
        /// The ranks of this process.
        here: Range<u32>,
        /// What the other said, or that it died.
        failure: crossweave_mesh::PeerFailure,
        /// Where the checker has seen it last, of one that died without a word.
        was: Option<String>,
    },
    /// Another process has said it.
    #[error("")]
    Elsewhere {
        /// Exit code of all.
        code: u8,
    },
}

/// Characters of what is wrong that a message has: it quotes values of files, which may be of any length.
const MOST: usize = 1000;

/// What to do about memory that a device does not have.
const ROOM: &str = "; fix: keep less there with a smaller train_micro_batch_size_per_gpu, model.recompute, a higher zero_optimization.stage, \
     zero_optimization.offload_optimizer or more ranks (`crossweave estimate` says what each saves); or raise the budget: the \
     back end's own (CROSSWEAVE_PLUGIN_OPTIONS, such as cpu.memory_bytes), or the limits of the process (ulimit -v and -d of memory, -u of threads)";

/// What to do about memory that the process itself does not have.
pub const HOST_ROOM: &str = "keep less on this machine with fewer ranks, smaller text files, a smaller train_micro_batch_size_per_gpu, \
     zero_optimization.offload_optimizer with device \"nvme\", or checkpoint.async false; or raise the limit of the process (ulimit -v and -d), or of \
     its group, or take a machine with more memory";

fn room(e: Option<&crossweave_hal::Error>) -> &'static str {
    match e.map(|e| e.code) {
        Some(crossweave_hal::Code::Oom) => ROOM,
        _ => "",
    }
}

/// As [`room`], also where the plan already shows that there is too little.
fn room_of(e: &crossweave_engine::Error) -> &'static str {
    match e.plan() {
        Some(p) if p.law == Law::Budget => ROOM,
        _ => room(e.hal()),
    }
}

impl CliError {
    /// Wraps a system error with the file and the verb.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CliError {
        let path = path.to_path_buf();
        move |source| CliError::Io {
            action,
            path,
            source,
        }
    }

    /// Refuses a place whose file would be replaced by a finished one, where what is there is no file: `/dev/null` would not be it again.
    ///
    /// # Errors
    /// A folder, a device, a pipe.
    pub fn not_a_file(option: &str, path: &Path) -> std::result::Result<(), CliError> {
        match std::fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                let what = if there.is_dir() {
                    "a folder"
                } else {
                    "no regular file"
                };
                Err(CliError::refused(
                    format!("{option} {}: is {what}", path.display()),
                    "name a file",
                ))
            }
            _ => Ok(()),
        }
    }

    /// A refusal of the command line.
    pub fn refused(what: impl Into<String>, fix: impl Into<String>) -> CliError {
        CliError::Refused {
            what: crossweave_files::elide(&what.into(), MOST),
            fix: crossweave_files::elide(&fix.into(), MOST),
        }
    }

    /// A failure of rank `rank`, where there are several processes; one that has its rank keeps it.
    pub fn on_rank(rank: u32, source: CliError) -> CliError {
        match source {
            CliError::OnRank { .. } | CliError::Elsewhere { .. } => source,
            _ => CliError::OnRank {
                rank,
                source: Box::new(source),
            },
        }
    }

    /// Another process's failure, as the process of the ranks `here` has it. What the first process has said itself is not repeated.
    pub fn peer(
        here: Range<u32>,
        failure: &crossweave_mesh::PeerFailure,
        was: Option<String>,
    ) -> CliError {
        match (failure.process, &failure.message) {
            (0, Some(_)) => CliError::Elsewhere { code: 1 },
            _ => CliError::Peer {
                here,
                failure: failure.clone(),
                was: was.filter(|_| failure.message.is_none()),
            },
        }
    }

    /// Has somebody else said it already?
    pub fn is_silent(&self) -> bool {
        matches!(self, CliError::Elsewhere { .. })
    }

    /// Does the run's folder belong to another process now? Nothing more may be written there.
    pub fn is_lost_claim(&self) -> bool {
        use crossweave_claim::ClaimError::Lost;
        matches!(
            self,
            CliError::Claim(Lost { .. })
                | CliError::Checkpoint(CheckpointError::Claim(Lost { .. }))
        )
    }

    /// Was this caused by another rank's failure? The first cause is the one to show.
    pub fn is_secondary(&self) -> bool {
        matches!(self, CliError::OnRank { source, .. } if source.is_secondary())
            || matches!(self, CliError::Engine(e) if e.is_secondary())
            || matches!(self, CliError::Hal(e) if e.code == crossweave_hal::Code::Aborted)
            || matches!(self, CliError::Checkpoint(CheckpointError::GivenUp { .. }))
    }

    /// Can another rank's failure have caused this one of `rank`? What a rank has met alone is reported at once, before its end is noticed.
    pub fn may_follow(&self, rank: u32) -> bool {
        use crossweave_hal::{Code, JobRank};
        let hal = match self {
            CliError::Engine(e) => e.hal(),
            CliError::Hal(e) => Some(e),
            _ => None,
        };
        // Who did not come in time has been found out, from what all ranks show.
        let judged = |e: &crossweave_hal::Error| e.code == Code::Timeout && e.at == "checker";
        let between = |e: &crossweave_hal::Error| {
            let follows = matches!(e.code, Code::Comm | Code::Aborted | Code::Timeout);
            follows && e.peer != Some(JobRank(rank)) && !judged(e)
        };
        hal.is_some_and(between)
    }

    /// The exit status of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            // What shells report for a process that ended on an interrupt.
            CliError::Stopped { .. } => 130,
            CliError::Elsewhere { code } => *code,
            CliError::OnRank { source, .. } => source.exit_code(),
            CliError::Conform(t) => t.exit_code(),
            _ => 1,
        }
    }
}

/// Who says `source`, where its words do not begin with that; rank 0 speaks for the job.
fn speaker(rank: u32, source: &CliError) -> String {
    let words = source.to_string();
    let named = |c: &char| words.starts_with(&format!("rank {rank}{c}"));
    match rank == 0 || [',', ':'].iter().any(named) {
        true => String::new(),
        false => format!("rank {rank}: "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_hal::{Code, Error};

    #[test]
    fn memory_that_is_not_there_comes_with_the_keys_that_help() {
        let words = "mem_alloc: 9 B: more than the device has left (3 B of 8 B are given out, the budget of cpu.memory_bytes)";
        let oom = CliError::Hal(Error::new(Code::Oom, "alloc", words)).to_string();
        for part in [
            "of 8 B",
            "cpu.memory_bytes",
            "fix:",
            "train_micro_batch_size_per_gpu",
        ] {
            assert!(oom.contains(part), "{oom}");
        }
        let other = CliError::Hal(Error::new(Code::Comm, "alloc", "x")).to_string();
        assert!(!other.contains("fix:"), "{other}");
    }
}
