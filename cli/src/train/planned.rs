//! What a run's steps were to take of device memory, by rehearsing them on the null device as `crossweave plan` does, for the
//! report to set beside what they took.

use super::offload::with_offload;
use super::setup::Job;
use crate::backend::open_linked;
use crate::rehearse::Nobody;
use crate::train_error::Result;
use crossweave_engine::{RankSpec, Trainer, predict};
use crossweave_hal::CheckerState;
use crossweave_mesh::Axis;
use serde_json::{Map, Value, json};

/// For the ranks of each pipeline stage that hold the same sizes their peak bytes by tag and in all. Empty where ranks take different shares of a batch.
pub fn of(job: &Job) -> Vec<Value> {
    if job.rows.is_some() || job.local_ranks.has_null() {
        return vec![];
    }
    let mut alike: Vec<Vec<u32>> = vec![];
    for rank in 0..job.ranks {
        let with = |r: u32| {
            job.place(r).at(Axis::Pp) == job.place(rank).at(Axis::Pp)
                && std::ptr::eq(job.dry(r), job.dry(rank))
        };
        match alike.iter_mut().find(|all| with(all[0])) {
            Some(all) => all.push(rank),
            None => alike.push(vec![rank]),
        }
    }
    // What cannot be planned is left out of a report; the run is done.
    alike
        .iter()
        .filter_map(|all| planned(job, all).ok())
        .collect()
}

fn planned(job: &Job, ranks: &[u32]) -> Result<Value> {
    let first = ranks.first().copied().unwrap_or(0);
    let plugin = open_linked("null", &job.host)?;
    let null = plugin.with_checker(&CheckerState::default()).open(0)?;
    let spec = RankSpec {
        islands: None,
        ..with_offload(job.rank_spec(first), &job.resolved, &null, true)
    };
    let units = super::units(&job.source, &job.resolved, &job.place(first))?;
    let mut trainer = Trainer::new(&null, units, spec, job.dry(first), &Nobody)?;
    let memory = predict(&mut trainer)?.steady;
    let tags: Map<String, Value> = memory
        .tags
        .iter()
        .filter(|(_, b)| b.peak > 0)
        .map(|(tag, b)| (tag.clone(), b.peak.into()))
        .collect();
    Ok(json!({"ranks": ranks, "tags": tags, "total": memory.total.peak}))
}
