//! Which ranks a trainer's job has, and where they run.

use crate::ranks::Ranks;
use crate::request::Request;
use crate::train_error::{Result, TrainError};
use std::collections::BTreeMap;

/// The ranks of a job. Without one a job has those of `mesh` in its config, else one rank, all as threads of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Team {
    /// So many, each a thread of this process, on devices of `run.backend`.
    Threads(u32),
    /// Threads of this process by back end, in the order of the ranks: `cpu:2,./libother.so:1`.
    Parts(String),
    /// One rank in each process that a launcher has started, which are to do the same calls. The variables are those by which the launcher
    /// names the place of this one: `std::env::vars().collect()`. The plugin that connects the processes is looked for in the folders of
    /// [`Surroundings`](crate::surroundings::Surroundings).
    Processes(BTreeMap<String, String>),
}

impl Team {
    /// Lays the team over a request.
    ///
    /// # Errors
    /// Numbers or names of ranks that are none.
    pub(crate) fn lay(&self, request: &mut Request) -> Result<()> {
        let read = |text: &str| {
            Ranks::parse(text).map_err(|e| {
                TrainError::refused(
                    format!("ranks: {e}"),
                    "ask for a number of ranks, or for e.g. cpu:2,./libother.so:1",
                )
            })
        };
        match self {
            Team::Threads(n) => request.ranks = Some(read(&n.to_string())?),
            Team::Parts(parts) => request.ranks = Some(read(parts)?),
            Team::Processes(launcher) => request.around.launcher = launcher.clone(),
        }
        Ok(())
    }
}
