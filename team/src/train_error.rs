//! Why a job cannot be begun or has failed: its code, the rank and the optimizer step where these are known, and the sentence that a
//! person reads.

use crate::job_error::{ConfigFault, ConfigFaults, ErrorCode, JobError, Placeable, first_key};
use crossweave_checkpoint::CheckpointError;
use crossweave_claim::ClaimError;
use crossweave_config::Errors;
use crossweave_data::DataError;
use crossweave_hal::LoadError;
use crossweave_mesh::{Cause, rank_words};
use crossweave_plan::Law;
use crossweave_report::ReportError;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Result of preparing and running a job.
pub type Result<T> = std::result::Result<T, TrainError>;

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The config, or a file that it names.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A plugin cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A folder or file that another process writes.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The device layer.
    #[error("{}{}", .0, room(Some(.0)))]
    Hal(#[from] crossweave_hal::Error),
    /// Training or inference.
    #[error("{}{}", .0, room_of(.0))]
    Engine(#[source] Box<crossweave_engine::Error>),
    /// The event files of a run.
    #[error("{0}")]
    Report(#[from] ReportError),
    /// The run was asked to stop; everything is saved.
    #[error("stopped at step {step} by a signal; continue with `--resume {}`", out.display())]
    Stopped {
        /// Steps done.
        step: u64,
        /// The run's folder.
        out: PathBuf,
    },
    /// A row of the program that a rank was to train on.
    #[error("rank {rank}, {source}")]
    Row {
        /// The rank.
        rank: u32,
        /// What is wrong with it.
        source: Box<DataError>,
    },
    /// A trainer is asked for more after it has failed.
    #[error("the trainer has failed {}: {first}", moment(*step))]
    Failed {
        /// The step in which it has, from 1; 0 before the first.
        step: u64,
        /// Why.
        first: String,
    },
    /// Some of this process's ranks.
    #[error("{whom}: {source}")]
    Of {
        /// These ranks, in words.
        whom: String,
        /// Why.
        source: Box<TrainError>,
    },
    /// A rank of this process, one of several.
    #[error("{}{source}", speaker(*rank, source))]
    OnRank {
        /// The rank.
        rank: u32,
        /// Why.
        source: Box<TrainError>,
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

/// What shells report for a process that ended on an interrupt.
pub const STOPPED: u8 = 130;
/// The exit status of a job that has lost something it needs: `EX_TEMPFAIL` of sysexits.h.
pub const LOST: u8 = 75;

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

/// Errors of the crates below, which are those of a job.
macro_rules! of_job {
    ($($source:ty),+) => {$(
        impl From<$source> for TrainError {
            fn from(e: $source) -> TrainError {
                TrainError::Job(e.into())
            }
        }
    )+};
}
of_job!(Errors, ConfigFaults, DataError, CheckpointError);

impl From<crossweave_engine::Error> for TrainError {
    fn from(e: crossweave_engine::Error) -> TrainError {
        TrainError::Engine(Box::new(e))
    }
}

impl TrainError {
    /// Wraps a system error with the file and the verb.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TrainError {
        let job = JobError::io(action, path);
        move |source| TrainError::Job(job(source))
    }

    /// Refuses a place whose file would be replaced by a finished one, where what is there is no file: `/dev/null` would not be it again.
    ///
    /// # Errors
    /// A folder, a device, a pipe.
    pub fn not_a_file(option: &str, path: &Path) -> Result<()> {
        match std::fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                let what = if there.is_dir() {
                    "a folder"
                } else {
                    "no regular file"
                };
                Err(TrainError::refused(
                    format!("{option} {}: is {what}", path.display()),
                    "name a file",
                ))
            }
            _ => Ok(()),
        }
    }

    /// A refusal: see [`JobError::refused`].
    pub fn refused(what: impl Into<String>, fix: impl Into<String>) -> TrainError {
        TrainError::Job(JobError::refused(what, fix))
    }

    /// A failure of rank `rank`, where there are several processes; one that has its rank keeps it.
    pub fn on_rank(rank: u32, source: TrainError) -> TrainError {
        match source {
            TrainError::OnRank { .. } | TrainError::Elsewhere { .. } => source,
            _ => TrainError::OnRank {
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
    ) -> TrainError {
        let said = matches!(failure.cause, Cause::Said { .. });
        match (failure.process, said) {
            (0, true) => TrainError::elsewhere(failure),
            _ => TrainError::Peer {
                here,
                failure: failure.clone(),
                was: was.filter(|_| !said),
            },
        }
    }

    /// Another process's failure, of which everything has been said.
    pub fn elsewhere(failure: &crossweave_mesh::PeerFailure) -> TrainError {
        let code = if failure.is_lost() { LOST } else { 1 };
        TrainError::Elsewhere { code }
    }

    /// Has the job lost something that it needs (a rank, a host, a link, a device)? The same job, begun again, may come further; a wrong
    /// config, wrong data or a mistake of the program ends it in the same way again.
    pub fn is_lost(&self) -> bool {
        use crossweave_hal::Code;
        // A mismatch or a cycle of waits, which the checker finds, is the program's own.
        let lost = |e: &crossweave_hal::Error| match e.code {
            Code::Comm => e.at != "checker",
            // What was aborted follows from the end of a rank of which nothing better is known.
            code => matches!(code, Code::Timeout | Code::DeviceLost | Code::Aborted),
        };
        match self {
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.is_lost(),
            TrainError::Peer { failure, .. } => failure.is_lost(),
            TrainError::Elsewhere { code } => *code == LOST,
            TrainError::Engine(e) => e.hal().is_some_and(lost),
            TrainError::Hal(e) => lost(e),
            _ => false,
        }
    }

    /// Has somebody else said it already?
    pub fn is_silent(&self) -> bool {
        matches!(self, TrainError::Elsewhere { .. })
    }

    /// Is it a refusal, which every process sees alike?
    pub fn is_refused(&self) -> bool {
        matches!(self, TrainError::Job(JobError::Refused { .. }))
    }

    /// Does the run's folder belong to another process now? Nothing more may be written there.
    pub fn is_lost_claim(&self) -> bool {
        use JobError::Checkpoint;
        let claim = match self {
            TrainError::Claim(e) | TrainError::Job(Checkpoint(CheckpointError::Claim(e))) => e,
            _ => return false,
        };
        matches!(claim, ClaimError::Lost { .. })
    }

    /// Was this caused by another rank's failure? The first cause is the one to show.
    pub fn is_secondary(&self) -> bool {
        use JobError::Checkpoint;
        match self {
            TrainError::OnRank { source, .. } => source.is_secondary(),
            TrainError::Engine(e) => e.is_secondary(),
            TrainError::Hal(e) => e.code == crossweave_hal::Code::Aborted,
            TrainError::Job(Checkpoint(e)) => matches!(e, CheckpointError::GivenUp { .. }),
            _ => false,
        }
    }

    /// Can another rank's failure have caused this one of `rank`? What a rank has met alone is reported at once, before its end is noticed.
    pub fn may_follow(&self, rank: u32) -> bool {
        use crossweave_hal::{Code, JobRank};
        let hal = match self {
            TrainError::Engine(e) => e.hal(),
            TrainError::Hal(e) => Some(e),
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

    /// The exit status of a process that ends by this, on which the processes of a job agree.
    pub fn exit_code(&self) -> u8 {
        match self {
            TrainError::Stopped { .. } => STOPPED,
            TrainError::Elsewhere { code } => *code,
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.exit_code(),
            e if e.is_lost() => LOST,
            _ => 1,
        }
    }
}

impl TrainError {
    /// The kind of failure; of a rank or of some ranks theirs.
    pub fn code(&self) -> ErrorCode {
        use crossweave_engine::Error;
        match self {
            TrainError::Job(e) => e.code(),
            TrainError::Load(_) => ErrorCode::Plugin,
            TrainError::Claim(_) => ErrorCode::Claimed,
            TrainError::Hal(_) => ErrorCode::Device,
            TrainError::Engine(e) => match **e {
                Error::Run { .. } => ErrorCode::Device,
                Error::Planning(_) => ErrorCode::Plan,
                Error::Scale { .. } | Error::NotFinite(_) => ErrorCode::NotFinite,
                Error::Invalid(_) => ErrorCode::Refused,
            },
            TrainError::Report(_) => ErrorCode::Io,
            TrainError::Stopped { .. } => ErrorCode::Stopped,
            TrainError::Row { .. } => ErrorCode::Data,
            TrainError::Failed { .. } => ErrorCode::Failed,
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.code(),
            TrainError::Peer { .. } | TrainError::Elsewhere { .. } => ErrorCode::Peer,
        }
    }

    /// The key of the config that it is about, the first of several.
    pub fn key(&self) -> Option<String> {
        match self {
            TrainError::Job(e) => e.key(),
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.key(),
            e => first_key(&e.to_string()).map(str::to_string),
        }
    }

    /// The rank of the job that failed: the one at fault where the error names it, else the one that met the failure; of
    /// another process's several the first.
    pub fn rank(&self) -> Option<u32> {
        match self {
            TrainError::Row { rank, .. } => Some(*rank),
            TrainError::OnRank { rank, source } => source.rank().or(Some(*rank)),
            TrainError::Of { source, .. } => source.rank(),
            TrainError::Peer { failure, .. } => Some(failure.ranks.start),
            TrainError::Job(e) => e.rank(),
            TrainError::Engine(e) => e.rank(),
            _ => None,
        }
    }

    /// The optimizer step that failed, or up to which all is done where the run was asked to stop.
    pub fn step(&self) -> Option<u64> {
        match self {
            TrainError::Stopped { step, .. } | TrainError::Failed { step, .. } => Some(*step),
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.step(),
            TrainError::Job(e) => e.step(),
            TrainError::Engine(e) => e.step(),
            _ => None,
        }
    }

    /// Every fault of the config that it consists of, in the order in which they were found; none where it is no error of a config.
    pub fn faults(&self) -> Vec<ConfigFault> {
        match self {
            TrainError::Job(e) => e.faults(),
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.faults(),
            _ => vec![],
        }
    }

    /// What to do about it, the first remedy of several.
    pub fn fix(&self) -> Option<String> {
        match self {
            TrainError::Job(e) => e.fix(),
            TrainError::Of { source, .. } | TrainError::OnRank { source, .. } => source.fix(),
            e => e.parts().1,
        }
    }
}

impl Placeable for TrainError {
    fn placed(self) -> std::result::Result<ConfigFaults, TrainError> {
        match self {
            TrainError::Job(e) => e.placed().map_err(TrainError::Job),
            e => Err(e),
        }
    }

    fn code(&self) -> ErrorCode {
        TrainError::code(self)
    }
}

/// When a trainer has failed.
fn moment(step: u64) -> String {
    match step {
        0 => "before its first step".to_string(),
        n => format!("in step {n}"),
    }
}

/// Who says `source`, where its words do not begin with that; rank 0 speaks for the job.
fn speaker(rank: u32, source: &TrainError) -> String {
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
    use crossweave_hal::{Code, Error, JobRank};

    #[test]
    fn memory_that_is_not_there_comes_with_the_keys_that_help() {
        let words = "mem_alloc: 9 B: more than the device has left (3 B of 8 B are given out, the budget of cpu.memory_bytes)";
        let oom = TrainError::Hal(Error::new(Code::Oom, "alloc", words)).to_string();
        for part in [
            "of 8 B",
            "cpu.memory_bytes",
            "fix:",
            "train_micro_batch_size_per_gpu",
        ] {
            assert!(oom.contains(part), "{oom}");
        }
        let other = TrainError::Hal(Error::new(Code::Comm, "alloc", "x")).to_string();
        assert!(!other.contains("fix:"), "{other}");
    }

    /// What a program decides by is found through the ranks and processes that stand around a failure.
    #[test]
    fn errors_give_their_code_key_rank_step_and_fix() {
        let failed = crossweave_engine::Error::Run {
            rank: 2,
            step: 9,
            at: "F0.0".into(),
            source: Error::new(Code::Oom, "alloc", "no room").into(),
        };
        let e = TrainError::Of {
            whom: "ranks 2-3".into(),
            source: Box::new(TrainError::on_rank(2, failed.into())),
        };
        assert_eq!(e.code(), ErrorCode::Device);
        assert_eq!((e.rank(), e.step()), (Some(2), Some(9)));
        assert!(
            e.fix().is_some_and(|f| f.starts_with("keep less there")),
            "{e}"
        );
        // Rank 0 met what rank 2 did.
        let at_fault = Error {
            peer: Some(JobRank(2)),
            ..Error::new(Code::Comm, "recv", "not for the same")
        };
        let met = crossweave_engine::Error::Run {
            rank: 0,
            step: 5,
            at: "g2.0<1".into(),
            source: at_fault.into(),
        };
        assert_eq!(TrainError::on_rank(0, met.into()).rank(), Some(2));
        let e = TrainError::on_rank(
            1,
            TrainError::refused("run.steps: 0 of them", "set it to 1"),
        );
        assert_eq!(e.code(), ErrorCode::Refused);
        assert_eq!((e.key().as_deref(), e.rank()), (Some("run.steps"), Some(1)));
        assert_eq!(e.fix().as_deref(), Some("set it to 1"));
        let stopped = TrainError::Stopped {
            step: 4,
            out: "runs".into(),
        };
        assert_eq!(
            (stopped.code(), stopped.step()),
            (ErrorCode::Stopped, Some(4))
        );
        let peer = TrainError::Peer {
            here: 0..2,
            failure: crossweave_mesh::PeerFailure {
                process: 1,
                ranks: 2..4,
                cause: Cause::Died,
            },
            was: None,
        };
        assert_eq!(
            (peer.code(), peer.rank(), peer.step()),
            (ErrorCode::Peer, Some(2), None)
        );
    }
}
