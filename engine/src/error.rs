//! A failure names its rank, its optimizer step and the plan step it fell on.

use crossweave_hal as hal;
use crossweave_plan::PlanError;
use crossweave_planner::AtFloor;
use crossweave_tensor as tensor;

/// What failed.
#[derive(Clone, Debug)]
pub enum Error {
    /// A block, an op or the device under it.
    Run {
        /// Rank of the mesh.
        rank: u32,
        /// Optimizer step, from 1.
        step: u64,
        /// The plan step, as printed by `plan --print`, or what was being done.
        at: String,
        /// The failure.
        source: tensor::Error,
    },
    /// The rank cannot be planned.
    Planning(crossweave_planner::Error),
    /// Gradients overflow at the smallest loss scale.
    Scale {
        /// Optimizer step, from 1.
        step: u64,
        /// The unit where the backward first met a gradient that is not finite.
        unit: String,
        /// What the scaler says.
        source: AtFloor,
    },
    /// A value became NaN or infinite: where, in one sentence that is the same on every rank.
    NotFinite(String),
    /// A request that does not fit this model or batch.
    Invalid(String),
}

/// Result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Run {
                rank,
                step: 0,
                at,
                source,
            } => write!(f, "rank {rank}: {at}: {source}"),
            Error::Run {
                rank,
                step,
                at,
                source,
            } => write!(f, "rank {rank}, step {step}, {at}: {source}"),
            Error::Scale { step, unit, source } => {
                write!(f, "step {step}: {source} (first in unit {unit})")
            }
            Error::Planning(e) => write!(f, "{e}"),
            Error::NotFinite(s) => write!(f, "not finite: {s}"),
            Error::Invalid(s) => f.write_str(s),
        }
    }
}
impl std::error::Error for Error {}
impl From<crossweave_planner::Error> for Error {
    fn from(e: crossweave_planner::Error) -> Error {
        match e {
            crossweave_planner::Error::Invalid(s) => Error::Invalid(s),
            e => Error::Planning(e),
        }
    }
}
impl From<crossweave_state::Error> for Error {
    fn from(e: crossweave_state::Error) -> Error {
        match e {
            crossweave_state::Error::Invalid(s) => Error::Invalid(s),
            crossweave_state::Error::Run {
                rank,
                step,
                at,
                source,
            } => Error::Run {
                rank,
                step,
                at,
                source,
            },
        }
    }
}
impl From<PlanError> for Error {
    fn from(e: PlanError) -> Error {
        Error::Planning(e.into())
    }
}

impl Error {
    /// The law of plans that is broken, where that is it.
    pub fn plan(&self) -> Option<&PlanError> {
        match self {
            Error::Planning(crossweave_planner::Error::Plan(e)) => Some(e),
            _ => None,
        }
    }

    /// The rank of the job that failed: the one at fault where the communication or its checker names it, else the one
    /// that met the failure. Which of two ranks meets a mismatch first is a matter of time.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Error::Run { rank, .. } => {
                let at_fault = self.hal().and_then(|e| e.peer).map(|peer| peer.0);
                at_fault.or(Some(*rank))
            }
            Error::Planning(e) => e.rank(),
            Error::Scale { .. } | Error::NotFinite(_) | Error::Invalid(_) => None,
        }
    }

    /// The optimizer step that failed, from 1; none where none had begun.
    pub fn step(&self) -> Option<u64> {
        match self {
            Error::Run { step, .. } | Error::Scale { step, .. } => Some(*step).filter(|s| *s > 0),
            Error::Planning(_) | Error::NotFinite(_) | Error::Invalid(_) => None,
        }
    }

    /// The HAL's error below, where it is one.
    pub fn hal(&self) -> Option<&hal::Error> {
        match self {
            Error::Run {
                source: tensor::Error::Hal(e),
                ..
            } => Some(e),
            _ => None,
        }
    }

    /// Did another rank's failure (or an abort) cause this one? The first cause is the one to show.
    pub fn is_secondary(&self) -> bool {
        self.hal().is_some_and(|e| e.code == hal::Code::Aborted)
    }
}
