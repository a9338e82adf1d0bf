//! What a run's steps were to take of device memory and of time, by rehearsing them on the null device as `crossweave plan` does, for the
//! report to set beside what they took.

use crate::backend::open_linked;
use crate::figures::plan::{Clock, costs_of, played_timeline};
use crate::job::Class;
use crate::prepared::Run;
use crate::ready::rehearsed;
use crate::train_error::Result;
use crossweave_engine::{Engine, predict};
use crossweave_hal::MemoryReport;
use crossweave_mesh::Axis;
use crossweave_report::Watched;
use crossweave_timeline::Timeline;
use serde_json::{Map, Value, json};

/// A class of ranks whose step was rehearsed.
pub struct Planned<'a> {
    class: &'a Class,
    engine: Engine,
    memory: MemoryReport,
}

/// The classes of a run, rehearsed. Empty where ranks take different shares of a batch.
pub fn rehearse(run: &Run) -> Vec<Planned<'_>> {
    if run.layout.division.rows.is_some() || run.local_ranks.has_null() {
        return vec![];
    }
    // What cannot be planned is left out of a report; the run is done.
    let classes = run.layout.classes.iter();
    let planned = classes.filter_map(|class| planned(run, class).ok());
    planned.collect()
}

fn planned<'a>(run: &'a Run, class: &'a Class) -> Result<Planned<'a>> {
    let plugin = open_linked("null", &run.host)?;
    let mut engine = rehearsed(&plugin, &run.job, &run.layout, class)?;
    let memory = predict(&mut engine)?.steady;
    Ok(Planned {
        class,
        engine,
        memory,
    })
}

impl Planned<'_> {
    /// The ranks with their peak bytes by tag and in all.
    pub fn bytes(&self) -> Value {
        let memory = &self.memory;
        let tags: Map<String, Value> = memory
            .tags
            .iter()
            .filter(|(_, b)| b.peak > 0)
            .map(|(tag, b)| (tag.clone(), b.peak.into()))
            .collect();
        json!({"ranks": self.class.ranks, "tags": tags, "total": memory.total.peak})
    }
}

/// The timeline of a step as it was planned, with the times that the run's units were found to take. None where there are no stages, or none was
/// watched.
pub fn timeline<'a>(
    run: &Run,
    planned: &[Planned<'_>],
    watched: impl Iterator<Item = &'a Watched>,
) -> Option<Timeline> {
    let cut = run.layout.division.stages.as_ref()?;
    let units = costs_of(watched.flat_map(|w| w.units.clone()));
    if units.is_empty() {
        return None;
    }
    let of = |stage: u32| {
        let mut all = planned.iter();
        all.find(|p| run.job.place(p.class.first).at(Axis::Pp) == stage)
    };
    let all: Vec<&Planned<'_>> = (0..cut.runs.stages()).map(of).collect::<Option<_>>()?;
    let clock = Clock::measured(units, all.first()?.engine.spec().recompute);
    let plans = all.iter().map(|p| {
        let peak = p.memory.total.peak;
        (p.engine.plan(), p.engine.facts(), peak)
    });
    played_timeline(cut, &plans.collect::<Vec<_>>(), &clock).ok()
}
