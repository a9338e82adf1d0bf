//! What a run's steps were to take of device memory and of time, by rehearsing them on the null device as `crossweave plan` does, for the
//! report to set beside what they took.

use crate::backend::open_linked;
use crate::figures::plan::{Clock, costs_of, played_timeline};
use crate::job::Class;
use crate::prepared::Run;
use crate::ready::rehearsed;
use crate::train_error::Result;
use crossweave_engine::{Engine, predict};
use crossweave_mesh::Axis;
use crossweave_report::Watched;
use crossweave_timeline::Timeline;
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

/// The timeline of a step as it was planned, with the times that the run's units were found to take. None where there are no stages, or none was
/// watched.
pub fn timeline<'a>(run: &Run, watched: impl Iterator<Item = &'a Watched>) -> Option<Timeline> {
    let cut = run.layout.division.stages.as_ref()?;
    let units = costs_of(watched.flat_map(|w| w.units.clone()));
    if units.is_empty() || run.local_ranks.has_null() {
        return None;
    }
    let plugin = open_linked("null", &run.host).ok()?;
    let of = |stage: u32| -> Option<(Engine, u64)> {
        let mut all = run.layout.classes.iter();
        let class = all.find(|c| run.job.place(c.first).at(Axis::Pp) == stage)?;
        let mut engine = rehearsed(&plugin, &run.job, &run.layout, class).ok()?;
        let peak = predict(&mut engine).ok()?.steady.total.peak;
        Some((engine, peak))
    };
    let all: Vec<_> = (0..cut.runs.stages()).map(of).collect::<Option<_>>()?;
    let recompute = all.first()?.0.spec().recompute;
    let plans = all.iter().map(|(e, peak)| (e.plan(), e.facts(), *peak));
    let clock = Clock::measured(units, recompute);
    played_timeline(cut, &plans.collect::<Vec<_>>(), &clock).ok()
}
