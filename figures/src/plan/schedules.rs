//! Every schedule beside the chosen one: how long its step takes with the units of the job, or why there is none; and the timeline of the chosen
//! one's plans.

use super::clock::Clock;
use crate::job::{Job, Shares, stage_weights};
use crossweave_engine::played::{self, Outlook};
use crossweave_engine::{PipelineOrder, PipelineSpec};
use crossweave_plan::{Facts, Plan, Runs, Step};
use crossweave_timeline::{Stage, Timeline, Unit, spans};
use serde::Serialize;
use std::ops::Range;

/// A schedule that a job might take.
#[derive(Clone, Debug, Serialize)]
pub struct Schedule {
    /// Its name.
    pub schedule: &'static str,
    /// It is the job's.
    pub chosen: bool,
    /// Its step; none where the job cannot take it.
    #[serde(flatten)]
    pub played: Option<Played>,
    /// The reason why the job cannot take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A schedule that was played.
#[derive(Clone, Debug, Serialize)]
pub struct Played {
    /// How long its step takes, over that of the chosen schedule.
    pub times_the_chosen: f64,
    /// Seconds of a step without its optimizer, where the rates of the device are known.
    pub seconds: Option<f64>,
    /// The part of the time in which a stage is idle.
    pub idle_fraction: f64,
    /// The most runs of micro-batches in flight, by stage.
    pub runs_in_flight: Vec<u32>,
    /// Units of each run, as `mesh.pp_layers` has them.
    pub units_of_runs: Vec<usize>,
}

/// All schedules for a job of so many micro-batches.
pub fn all(job: &Job, chosen: &PipelineSpec, micro_batches: u32, clock: &Clock) -> Vec<Schedule> {
    let play = |spec: &PipelineSpec| {
        let cost = |run| clock.run(&spec.runs, run);
        Outlook::of(spec.order, &spec.runs, micro_batches, cost)
    };
    let own = play(chosen).ok().map(|o| o.makespan);
    let one = |order: PipelineOrder| {
        let is_own = order == chosen.order;
        let spec = match is_own {
            true => Ok(chosen.clone()),
            false => divided(job, chosen, order, clock),
        };
        let played = spec.and_then(|spec| Ok((play(&spec)?, spec)));
        let refused = played.as_ref().err().cloned();
        let played = played.ok().map(|(o, spec)| Played {
            times_the_chosen: o.makespan as f64 / own.unwrap_or(o.makespan).max(1) as f64,
            seconds: (clock.unit == Unit::Nanoseconds).then_some(o.makespan as f64 / 1e9),
            idle_fraction: o.idle(),
            units_of_runs: spec.runs.iter().map(|r| r.units.len()).collect(),
            runs_in_flight: o.in_flight,
        });
        Schedule {
            schedule: order.name(),
            chosen: is_own,
            played,
            refused,
        }
    };
    PipelineOrder::ALL.into_iter().map(one).collect()
}

/// The units of a job over the runs of another schedule: as in the chosen one where that has as many runs, else as the job would divide them.
fn divided(
    job: &Job,
    chosen: &PipelineSpec,
    order: PipelineOrder,
    clock: &Clock,
) -> Result<PipelineSpec, String> {
    let stages = chosen.runs.stages();
    let units: usize = chosen.runs.iter().map(|r| r.units.len()).sum();
    let chunks = job.resolved.settings.mesh.pp_chunks.unwrap_or(2) as u32;
    let count = (stages * order.runs_of_a_stage(chunks)) as usize;
    if count > units {
        return Err(format!(
            "{count} runs of units, and the model has {units} units"
        ));
    }
    let weights = stage_weights(job, Shares::Even);
    if count == chosen.runs.count() && weights.is_none() {
        let each = chosen.runs.iter().map(|r| r.units.len() as u32);
        return Ok(PipelineSpec {
            runs: order.divide(&each.collect::<Vec<_>>(), stages),
            order,
        });
    }
    Ok(match weights {
        Some(w) => PipelineSpec::weighted(&clock.whole(), &w, order, chunks),
        None => PipelineSpec::even_runs(units as u32, stages, order, chunks),
    })
}

/// The plan of a stage's ranks, what it was made of, and the most bytes that they hold.
pub type StagePlan<'a> = (&'a Plan, &'a Facts, u64);

/// The timeline of the plans of all stages.
///
/// # Errors
/// A stage that waits for ever, in one sentence.
pub fn timeline(
    spec: &PipelineSpec,
    stages: &[StagePlan<'_>],
    clock: &Clock,
) -> Result<Timeline, String> {
    let plans: Vec<&Plan> = stages.iter().map(|s| s.0).collect();
    let cost = |at: u32, step: &Step| clock.step(spec, at, stages[at as usize].1, step);
    let times = played::play(&plans, cost)?;
    let count = spec.runs.stages();
    let of = |(at, (rank, times)): (usize, (&StagePlan<'_>, &Vec<Range<u64>>))| {
        let (plan, facts, peak) = *rank;
        let steps = plan.steps.iter().zip(times);
        let each = steps.clone().map(|(s, t)| (&s.op, (t.start, t.end)));
        let bytes = crossweave_plan::trace(plan, facts).unwrap_or_default();
        // The plan counts bytes step by step; what is computed runs in its order.
        let computed = steps.zip(bytes).filter(|((s, _), _)| s.op.computes());
        let mut memory: Vec<(u64, u64)> = computed.map(|((_, t), b)| (t.start, b)).collect();
        let ends = times.iter().map(|t| t.end).max().unwrap_or(0);
        memory.extend(memory.last().map(|m| (ends, m.1)));
        if let Some(first) = memory.first_mut() {
            first.0 = 0;
        }
        Stage {
            name: match count {
                1 => "rank 0".into(),
                _ => format!("stage {at}"),
            },
            spans: spans(&spec.runs, at as u32, each),
            memory,
            peak: Some(peak),
        }
    };
    let rows = stages.iter().zip(&times).enumerate().map(of).collect();
    let micro_batches = stages.first().map_or(0, |s| s.1.micro_batches);
    let mut t = Timeline {
        title: match count {
            1 => format!("{micro_batches} micro-batches on one stage"),
            _ => format!(
                "{}: {count} stages, {micro_batches} micro-batches",
                spec.order.name()
            ),
        },
        unit: clock.unit,
        stages: rows,
        ..Timeline::default()
    };
    t.note = format!("{}; idle {:.1} % of it", clock.words, 100.0 * t.idle());
    Ok(t)
}

/// The runs of a job without stages: all units on one.
pub fn alone(units: usize) -> PipelineSpec {
    PipelineSpec {
        runs: Runs::even(units as u32, 1),
        order: PipelineOrder::default(),
    }
}
