//! Ranks that share layers (`mesh.tp`) compute alike: what all of them have (norms, biases) each updates for itself, to the same bits.

use crate::setup::Run;
use crate::train_error::{Result, TrainError};
use crossweave_mesh::{Axis, Place};

/// Are the ranks of each tensor-parallel group on one back end?
///
/// # Errors
/// Two of them are not.
pub fn check(run: &Run) -> Result<()> {
    if run.job.tensor_ranks() == 1 || run.computes.len() == 1 {
        return Ok(());
    }
    let on = |rank: u32| run.computes.iter().find(|c| c.ranks.contains(&rank));
    for rank in 0..run.job.ranks {
        let share = run.job.place(rank).members(Axis::Tp).unwrap_or_default();
        let first = share.first().map_or(rank, Place::job_rank);
        if let [Some(own), Some(other)] = [rank, first].map(on)
            && own.named != other.named
        {
            let what = format!(
                "mesh.tp: ranks {first} and {rank} share layers, and compute on {} and {}, which round differently",
                other.named, own.named
            );
            let fix = "put the ranks of each tensor-parallel group on one back end; `crossweave mesh show` lists the groups";
            return Err(TrainError::refused(what, fix));
        }
    }
    Ok(())
}
