//! Why a rank cannot be planned.

use crossweave_plan::PlanError;
use crossweave_program::ProgramError;

/// The reason for which a rank cannot be planned.
#[derive(Clone, Debug)]
pub enum Error {
    /// The plan breaks a law.
    Plan(PlanError),
    /// The program that the plan was lowered to breaks a law: a fault of this program and of no config.
    Program {
        /// Rank of the job.
        rank: u32,
        /// The law, and where.
        source: ProgramError,
    },
    /// A parameter that the mesh does not cut.
    Place {
        /// Rank of the job.
        rank: u32,
        /// The parameter and what it lacks.
        what: String,
    },
    /// A request that does not fit this model, these ranks or another request.
    Invalid(String),
}

/// Result of planning.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Plan(e) => write!(f, "{e}"),
            Error::Program { rank, source } => write!(
                f,
                "rank {rank}: the program of the step is wrong: {source}; this is a bug, please report it with the config"
            ),
            Error::Place { rank, what } => write!(f, "rank {rank}: placing parameters: {what}"),
            Error::Invalid(s) => f.write_str(s),
        }
    }
}
impl std::error::Error for Error {}

impl Error {
    /// The rank whose plan or program it is, where it is one rank's.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Error::Plan(e) => e.rank,
            Error::Program { rank, .. } | Error::Place { rank, .. } => Some(*rank),
            Error::Invalid(_) => None,
        }
    }
}
impl From<PlanError> for Error {
    fn from(e: PlanError) -> Error {
        Error::Plan(e)
    }
}
