//! What a run's steps were to take of device memory, by rehearsing them on the null device as `crossweave plan` does, for the
//! report to set beside what they took.

use crate::backend::open_linked;
use crate::job::Class;
use crate::prepared::Run;
use crate::ready::rehearsed;
use crate::train_error::Result;
use crossweave_engine::predict;
use serde_json::{Map, Value, json};

/// For each class of ranks their peak bytes by tag and in all. Empty where ranks take different shares of a batch.
pub fn of(run: &Run) -> Vec<Value> {
    if run.layout.division.rows.is_some() || run.local_ranks.has_null() {
        return vec![];
    }
    // What cannot be planned is left out of a report; the run is done.
    let classes = run.layout.classes.iter();
    classes
        .filter_map(|class| planned(run, class).ok())
        .collect()
}

fn planned(run: &Run, class: &Class) -> Result<Value> {
    let plugin = open_linked("null", &run.host)?;
    let mut engine = rehearsed(&plugin, &run.job, &run.layout, class)?;
    let memory = predict(&mut engine)?.steady;
    let tags: Map<String, Value> = memory
        .tags
        .iter()
        .filter(|(_, b)| b.peak > 0)
        .map(|(tag, b)| (tag.clone(), b.peak.into()))
        .collect();
    Ok(json!({"ranks": class.ranks, "tags": tags, "total": memory.total.peak}))
}
