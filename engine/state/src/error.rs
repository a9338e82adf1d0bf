//! What goes wrong with state: a request that does not fit, or a device, a thread or a rank that fails while it is carried out.

use crossweave_tensor as tensor;

/// A failure.
#[derive(Clone, Debug)]
pub enum Error {
    /// A request that does not fit this model or rank.
    Invalid(String),
    /// A device, the host's thread or another rank, while this was done.
    Run {
        /// Rank of the job.
        rank: u32,
        /// Optimizer steps taken.
        step: u64,
        /// What was being done.
        at: String,
        /// The failure.
        source: tensor::Error,
    },
}

/// Result of what is done with state.
pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Invalid(s) => f.write_str(s),
            Error::Run {
                rank,
                step,
                at,
                source,
            } => write!(f, "rank {rank}, step {step}, {at}: {source}"),
        }
    }
}
impl std::error::Error for Error {}
