//! Ranks that share layers (`mesh.tp`) compute alike: what all of them have (norms, biases) each updates for itself, to the same bits.

use crate::computes::Computes;
use crate::job::Job;
use crate::train_error::{Result, TrainError};
use crossweave_mesh::{Axis, Place};

/// Are the ranks of each tensor-parallel group on one back end?
///
/// # Errors
/// Two of them are not.
pub fn check(job: &Job, computes: &[Computes]) -> Result<()> {
    if job.tensor_ranks() == 1 || computes.len() == 1 {
        return Ok(());
    }
    let on = |rank: u32| computes.iter().find(|c| c.ranks.contains(&rank));
    for rank in 0..job.ranks {
        let share = job.place(rank).members(Axis::Tp).unwrap_or_default();
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
