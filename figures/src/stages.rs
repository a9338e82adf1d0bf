//! Pipeline stages in words, and that the plans of all ranks go together.

use crate::job::{Division, Job, spec};
use crate::train_error::Result;
use crossweave_engine::{PipelineSpec, side_programs};
use crossweave_plan::axes::Representatives;
use crossweave_plan::{Facts, Plan, check_representative_side_programs, check_representatives};
use std::ops::Range;

/// The stages in words: `0 to 2 | 3 to 5`.
pub fn in_words(spec: &PipelineSpec) -> String {
    let one = |r: Range<u32>| match r.end - r.start {
        1 => r.start.to_string(),
        _ => format!("{} to {}", r.start, r.end - 1),
    };
    let of = |stage| {
        let runs = spec.runs.of(stage).map(|k| one(spec.runs.units(k)));
        runs.collect::<Vec<_>>().join(" and ")
    };
    let all: Vec<String> = (0..spec.runs.stages()).map(of).collect();
    all.join(" | ")
}

/// The stages as `mesh.pp_layers` has them.
pub fn as_key(spec: &PipelineSpec) -> String {
    let each = spec.runs.iter().map(|r| r.units.len().to_string());
    let all: Vec<String> = each.collect();
    all.join(",")
}

/// Holds the plans of the ranks against each other, and what each rank does outside the step: each collective has its members,
/// each send its receive, and nobody waits for ever. A few ranks of each stage stand for all.
///
/// # Errors
/// The first law that is broken, with the rank.
pub fn agree<'a>(
    job: &Job,
    division: &Division,
    plan_of: impl Fn(u32) -> (&'a Plan, &'a Facts),
) -> Result<()> {
    let few = Representatives::of(&job.resolved.mesh);
    let planned = few.numbers().iter().map(|rank| plan_of(*rank));
    let ranks: Vec<_> = planned.collect();
    check_representatives(&few, &ranks).map_err(crossweave_engine::Error::from)?;
    let side = ranks.iter().zip(few.numbers());
    let side = side.map(|((plan, facts), rank)| {
        side_programs(&spec(job, division, job.place(*rank)), plan, facts)
    });
    let side: Vec<_> = side.collect();
    let each = side.iter().zip(&ranks);
    let each: Vec<_> = each.map(|(s, (_, facts))| (&s[..], *facts)).collect();
    Ok(check_representative_side_programs(&few, &each).map_err(crossweave_engine::Error::from)?)
}
