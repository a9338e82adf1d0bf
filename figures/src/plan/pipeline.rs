//! What holds for a pipeline: each stage's ranks by themselves, and all of them together.

use super::{RankFigures, Schedule};
use crossweave_engine::{PipelineOrder, PipelineSpec};
use crossweave_plan::Facts;
use serde::Serialize;

/// The stage of a rank: what it runs, and how many micro-batches it has in flight.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineStage {
    /// From 0.
    pub stage_of_pipeline: usize,
    /// The first unit of its first run, and the one behind the last.
    pub units: [u32; 2],
    /// The same of its other runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_units: Vec<[u32; 2]>,
    /// Micro-batches whose activations it keeps at once, or where it has several runs, of how many these are.
    pub micro_batches_in_flight: u32,
    /// All of that in words.
    pub runs: String,
}

impl PipelineStage {
    /// Stage `stage` of a pipeline.
    pub fn of(spec: &PipelineSpec, stage: u32, facts: &Facts) -> PipelineStage {
        let unit = |u: u32| facts.units[u as usize].name.as_str();
        let flying = spec.in_flight(stage, facts.micro_batches);
        let of = |run| {
            let units = spec.runs.units(run);
            let (first, last) = (units.start, units.end - 1);
            format!(
                "units {first} to {last} ({} to {})",
                unit(first),
                unit(last)
            )
        };
        let each: Vec<String> = spec.runs.of(stage).map(of).collect();
        let units = spec.runs.of(stage).map(|run| spec.runs.units(run));
        let mut units = units.map(|u| [u.start, u.end]);
        let what = match each.len() {
            1 => "micro-batches",
            _ => "runs of micro-batches",
        };
        PipelineStage {
            stage_of_pipeline: stage as usize,
            units: units.next().unwrap_or_default(),
            more_units: units.collect(),
            micro_batches_in_flight: flying,
            runs: format!("{}, {flying} {what} in flight", each.join(" and ")),
        }
    }
}

/// A pipeline and the figures of its stages.
#[derive(Clone, Debug, Serialize)]
pub struct Pipeline {
    /// What holds for all stages.
    pub pipeline: OfStages,
    /// The figures of each.
    pub stages: Vec<RankFigures>,
}

/// Figures that are the same for all stages of a pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct OfStages {
    /// How many there are.
    pub stages: u64,
    /// Ranks of each.
    pub data_parallel_ranks: u64,
    /// The order of its micro-batches.
    pub schedule: &'static str,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// The stage whose ranks need the most.
    pub fullest_stage: usize,
    /// The part of the time in which a rank is idle.
    pub bubble_fraction: f64,
    /// The formula of that part.
    pub bubble_formula: &'static str,
    /// The formula of what passes between stages.
    pub traffic_formula: &'static str,
    /// Every schedule with the units of this job.
    pub schedules: Vec<Schedule>,
    /// By what these are timed.
    pub timed_by: String,
}

impl Pipeline {
    /// The pipeline of these stages, on `ranks` ranks in all, beside all schedules.
    pub fn of(
        spec: &PipelineSpec,
        micro_batches: u64,
        ranks: u64,
        (schedules, timed_by): (Vec<Schedule>, String),
        stages: Vec<RankFigures>,
    ) -> Pipeline {
        let p = u64::from(spec.runs.stages());
        let plain = matches!(spec.order, PipelineOrder::OneFOneB | PipelineOrder::GPipe);
        Pipeline {
            pipeline: OfStages {
                stages: p,
                data_parallel_ranks: ranks / p.max(1),
                schedule: spec.order.name(),
                micro_batches,
                fullest_stage: fullest(&stages),
                bubble_fraction: match plain {
                    true => (p - 1) as f64 / (micro_batches + p - 1) as f64,
                    false => spec.bubble(micro_batches as u32),
                },
                bubble_formula: match plain {
                    true => "(P-1)/(m+P-1), with equal stages",
                    false => {
                        "played, with equal runs whose forward and both parts of the backward take as long"
                    }
                },
                traffic_formula: "B T d elements forward and as many backward, per micro-batch and boundary",
                schedules,
                timed_by,
            },
            stages,
        }
    }
}

/// The first of the stages whose ranks need the most.
pub fn fullest(stages: &[RankFigures]) -> usize {
    let bytes = |k: &usize| stages[*k].memory.total.peak;
    (0..stages.len()).rev().max_by_key(bytes).unwrap_or(0)
}
