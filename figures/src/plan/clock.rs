//! How long the steps of a plan take, for its play against the clock: by multiply-adds, by the times of a run, or all parts of a run alike.

use super::facts::JobFacts;
use crate::job::{Job, Shares, Sizes, stage_weights};
use crate::train_error::{Result, TrainError};
use crossweave_engine::{Cost, PipelineSpec, Recompute, played};
use crossweave_mesh::{Axis, AxisSet, Place, Topology};
use crossweave_plan::{Facts, PipelineStage, Reduction, Runs, Step, StepKind};
use crossweave_report::UnitTimes;
use crossweave_timeline::Unit;
use crossweave_zero::estimate::Profile;
use std::path::Path;

/// By what a plan is timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Costs {
    /// By the multiply-adds of each unit, and the device's rates where these are known.
    #[default]
    Work,
    /// Every part of a run takes one unit of time.
    Even,
    /// By what a run has measured: the nanoseconds of each unit.
    Measured(Vec<Cost>),
}

/// The rates of a device, where they are known.
struct Rates {
    profile: Profile,
    mesh: Topology,
}

/// A part of a stage, where all count alike: divided by as many runs as there may be, near enough.
const STAGE: u64 = 5040;

/// The time that each step of a job's plan takes.
pub struct Clock {
    /// The unit of its times.
    pub unit: Unit,
    /// In words.
    pub words: String,
    /// Each unit, for a micro-batch.
    units: Vec<Cost>,
    /// How fast each stage is, where that was given.
    weights: Option<Vec<f64>>,
    recompute: Recompute,
    /// Every part of a run of units counts as one.
    even: bool,
    rates: Option<Rates>,
}

/// The costs of a model's units as a run has measured them; nothing for units that it has not timed.
pub fn costs_of(times: impl IntoIterator<Item = UnitTimes>) -> Vec<Cost> {
    let mut units = vec![];
    for t in times {
        let unit = t.unit as usize;
        if units.len() <= unit {
            units.resize(unit + 1, Cost::default());
        }
        let [input, weights] = t.backward;
        units[unit] = Cost {
            forward: t.forward,
            input,
            weights,
        };
    }
    units
}

/// What the run in a folder has measured.
///
/// # Errors
/// No run; one that has timed no units.
pub fn measured(dir: &Path) -> Result<Costs> {
    let run = crossweave_report::read(dir, None)?;
    let units = costs_of(run.watched.iter().flat_map(|(_, w)| w.units.clone()));
    match units.is_empty() {
        true => Err(TrainError::refused(
            format!("--costs {}: the run has timed no units", dir.display()),
            "let it run over pipeline stages (mesh.pp) to its end, or write work or even",
        )),
        false => Ok(Costs::Measured(units)),
    }
}

impl Clock {
    /// The clock of times that a run has measured.
    pub fn measured(units: Vec<Cost>, recompute: Recompute) -> Clock {
        Clock {
            unit: Unit::Nanoseconds,
            words: "times of each unit as a run has measured them, messages free".into(),
            units,
            // Each stage was measured as fast as it is.
            weights: None,
            recompute,
            even: false,
            rates: None,
        }
    }

    /// The clock of a job whose ranks like the one at a place are known.
    ///
    /// # Errors
    /// As [`Job::units`].
    pub fn of(
        (job, place): (&Job, &Place),
        sizes: Sizes<'_>,
        known: &JobFacts<'_>,
        by: &Costs,
    ) -> Result<Clock> {
        if let Costs::Measured(units) = by {
            return Ok(Clock::measured(units.clone(), known.recompute));
        }
        let mut clock = Clock {
            unit: Unit::Share,
            words: "times by the multiply-adds of each unit, messages free".into(),
            units: job.unit_costs(place, sizes)?,
            weights: stage_weights(job, Shares::Even),
            recompute: known.recompute,
            even: false,
            rates: None,
        };
        if *by == Costs::Even {
            clock.unit = Unit::Part;
            clock.words =
                "forward and both parts of the backward of a run take as long, messages free"
                    .into();
            clock.even = true;
        } else if !known.device.is_host {
            let profile = known.device.profile;
            let tokens = (known.batch * known.seq) as f64 / f64::from(place.length(Axis::Cp));
            clock.scale(2.0 * tokens / profile.sustained * 1e9);
            clock.unit = Unit::Nanoseconds;
            clock.words = format!(
                "times by the multiply-adds of each unit and the rates of {}",
                known.device.label
            );
            clock.rates = Some(Rates {
                profile,
                mesh: known.mesh,
            });
        }
        Ok(clock)
    }

    fn scale(&mut self, by: f64) {
        let scaled = |n: u64| (n as f64 * by).round() as u64;
        for c in &mut self.units {
            *c = Cost {
                forward: scaled(c.forward),
                input: scaled(c.input),
                weights: scaled(c.weights),
            };
        }
    }

    /// The cost of a unit on a stage, of runs cut so.
    fn unit(&self, runs: &Runs, stage: PipelineStage, unit: usize) -> Cost {
        if self.even {
            // The first unit of a run has all of it, and the others follow in no time.
            let first = runs.iter().any(|r| r.units.start as usize == unit);
            return if first { Cost::UNIT } else { Cost::default() };
        }
        let cost = self.units.get(unit).copied().unwrap_or_default();
        let weights = self.weights.as_deref().unwrap_or_default();
        let most = weights.iter().copied().fold(0.0, f64::max);
        let Some(weight) = weights.get(stage as usize) else {
            return cost;
        };
        let slowed = |n: u64| (n as f64 * most / weight).round() as u64;
        Cost {
            forward: slowed(cost.forward),
            input: slowed(cost.input),
            weights: slowed(cost.weights),
        }
    }

    /// The cost of a run, with what it computes once more. Where all runs count alike, those of a stage together are as much in every schedule.
    pub fn run(&self, runs: &Runs, run: usize) -> Cost {
        if self.even {
            let each = STAGE * u64::from(runs.stages()) / runs.count().max(1) as u64;
            return Cost {
                forward: each,
                input: each,
                weights: each,
            };
        }
        let stage = runs.iter().nth(run).map_or(0, |r| r.stage);
        let units = runs.units(run);
        let all = units.map(|u| self.unit(runs, stage, u as usize));
        let mut whole = all.fold(Cost::default(), |a, b| Cost {
            forward: a.forward + b.forward,
            input: a.input + b.input,
            weights: a.weights + b.weights,
        });
        if self.recompute == Recompute::Full {
            whole.input += whole.forward;
        }
        whole
    }

    /// The whole cost of each unit, forward and backward.
    pub fn whole(&self) -> Vec<f64> {
        self.units.iter().map(|c| c.whole() as f64).collect()
    }

    /// The cost of a step of a stage.
    pub fn step(&self, spec: &PipelineSpec, stage: PipelineStage, facts: &Facts, s: &Step) -> u64 {
        if s.op.computes() {
            return played::work(&s.op, |unit| self.unit(&spec.runs, stage, unit));
        }
        let Some(r) = &self.rates else {
            return 0;
        };
        let (bytes, rate) = moved(&s.op, facts, r);
        (bytes as f64 / rate * 1e9).round() as u64
    }
}

/// The bytes that a step moves, and at how many a second.
fn moved(op: &StepKind, facts: &Facts, r: &Rates) -> (u64, f64) {
    let unit = |u: &u32| &facts.units[*u as usize];
    let over = |axes: AxisSet| r.profile.rate(&r.mesh, axes);
    // Of a vector over n ranks each sends all but its own part.
    let part = |bytes: u64, u: u32| bytes - bytes / facts.sharers(u);
    match op {
        StepKind::Gather { unit: u, .. } => (part(unit(u).param_bytes, *u), over(facts.owners(*u))),
        StepKind::ReduceGrad { units, how, .. } => {
            let times = match how {
                Reduction::All => 2,
                Reduction::Scatter => 1,
            };
            let bytes: u64 = units.iter().map(|u| part(unit(u).grad_bytes, *u)).sum();
            let axes = units.first().map_or(AxisSet::DATA, |u| facts.owners(*u));
            (times * bytes, over(axes))
        }
        StepKind::Tie { unit: u } => (unit(u).grad_bytes, over(Axis::Pp.into())),
        op if op.is_message() => {
            let (_, messages) = op.messages();
            // What comes and what goes travels at once.
            let way = |sends: bool| -> u64 {
                let own = messages.iter().filter(|m| m.sends == sends);
                own.map(|m| unit(&m.unit).flow_bytes).sum()
            };
            (way(true).max(way(false)), over(Axis::Pp.into()))
        }
        StepKind::Spill { unit: u, .. } | StepKind::Fetch { unit: u, .. } => {
            (unit(u).saved_input, r.profile.host)
        }
        StepKind::StateIn { unit: u } | StepKind::StateOut { unit: u } => {
            (facts.shard(*u, unit(u).host_state_bytes), r.profile.host)
        }
        StepKind::GradOut { unit: u, .. } => (facts.shard(*u, unit(u).grad_bytes), r.profile.host),
        StepKind::ParamIn { unit: u } | StepKind::ShardIn { unit: u } => {
            (facts.shard(*u, unit(u).param_bytes), r.profile.host)
        }
        // Read and written once.
        StepKind::Update { unit: u } => (
            2 * facts.shard(*u, unit(u).state_bytes),
            r.profile.bandwidth,
        ),
        _ => (0, 1.0),
    }
}
