//! The plans of all stages played against the clock: when each of their steps begins and ends where a lane does its steps in order, a step waits
//! for those that its edges name, and a message waits for both of its ends, as it does in a run. [`crate::timeline`] plays lists of work, whose
//! messages wait for nothing; here a message that stands behind another one waits for it.

use crate::schedule::{Order, pipeline};
use crate::timeline::Cost;
use crate::work::in_flight;
use crossweave_plan::{
    Depend, Facts, Lane, MicroBatch, Pass, PipelineStage, Plan, Run, Runs, Step, StepKind,
    UnitFacts, UnitId,
};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A message by what it carries and its two ends: whether it is a gradient, unit and micro-batch, from which stage and to which.
type Parcel = (bool, UnitId, MicroBatch, PipelineStage, PipelineStage);

/// The parcels of a step of a stage.
fn parcels(stage: PipelineStage, step: &Step) -> impl Iterator<Item = Parcel> + use<> {
    let (grad, messages) = step.op.messages();
    messages.into_iter().map(move |m| match m.sends {
        true => (grad, m.unit, m.mb, stage, m.stage),
        false => (grad, m.unit, m.mb, m.stage, stage),
    })
}

/// A stage while its plan is played.
struct Playing<'a> {
    plan: &'a Plan,
    /// The steps of each lane that are not over.
    lanes: [VecDeque<usize>; Lane::ALL.len()],
    /// When the last step of each lane was over.
    free: [u64; Lane::ALL.len()],
    /// When each step that is over began and ended.
    done: Vec<Option<Range<u64>>>,
}

impl Playing<'_> {
    fn new(plan: &Plan) -> Playing<'_> {
        let mut lanes: [VecDeque<usize>; Lane::ALL.len()] = Default::default();
        for (k, step) in plan.steps.iter().enumerate() {
            lanes[step.lane.index()].push_back(k);
        }
        Playing {
            plan,
            lanes,
            free: [0; Lane::ALL.len()],
            done: vec![None; plan.steps.len()],
        }
    }

    /// The moment at which the next step of a lane may begin; none while it waits for a step of this stage, or there is no step.
    fn ready(&self, lane: usize) -> Option<(usize, u64)> {
        let step = *self.lanes[lane].front()?;
        let ends = self.plan.steps[step].after.iter();
        let ends = ends.map(|a| self.done[a.index()].as_ref().map(|t| t.end));
        let ends = ends.collect::<Option<Vec<u64>>>()?;
        Some((step, ends.into_iter().fold(self.free[lane], u64::max)))
    }
}

/// Plays the plans of all stages, in order. `cost` is that of a step of a stage; of a message, the time from when both ends are there.
///
/// # Errors
/// The first stage that waits for ever, with its step, in one sentence.
pub fn play(
    plans: &[&Plan],
    cost: impl Fn(PipelineStage, &Step) -> u64,
) -> Result<Vec<Vec<Range<u64>>>, String> {
    let mut stages: Vec<Playing<'_>> = plans.iter().map(|p| Playing::new(p)).collect();
    // When each end of a message came to it: that which sends, and that which receives.
    let mut came: HashMap<Parcel, [Option<u64>; 2]> = HashMap::new();
    loop {
        let mut moved = false;
        for (at, s) in stages.iter_mut().enumerate() {
            let at = at as PipelineStage;
            for lane in 0..Lane::ALL.len() {
                while let Some((k, ready)) = s.ready(lane) {
                    let step = &s.plan.steps[k];
                    let mut begin = ready;
                    let mut waits = false;
                    for parcel in parcels(at, step) {
                        let ends = came.entry(parcel).or_default();
                        let own = &mut ends[usize::from(parcel.4 == at)];
                        moved |= own.is_none();
                        *own = Some(ready);
                        waits |= ends.contains(&None);
                        begin = ends.iter().flatten().copied().fold(begin, u64::max);
                    }
                    if waits {
                        break;
                    }
                    let end = begin + cost(at, step);
                    (s.free[lane], s.done[k]) = (end, Some(begin..end));
                    s.lanes[lane].pop_front();
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    let stands = |s: &Playing<'_>| s.lanes.iter().filter_map(|l| l.front().copied()).min();
    if let Some((at, s)) = stages.iter().enumerate().find(|(_, s)| stands(s).is_some()) {
        let step = stands(s).unwrap_or_default();
        let text = &s.plan.steps[step];
        return Err(format!("stage {at} waits for ever at step {step}: {text}"));
    }
    let times = |s: Playing<'_>| s.done.into_iter().flatten().collect();
    Ok(stages.into_iter().map(times).collect())
}

/// What becomes of a schedule: how long a step takes, and what its stages do in that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// From the first forward to the end of the last piece of work.
    pub makespan: u64,
    /// The time in which each stage works.
    pub busy: Vec<u64>,
    /// The most runs that each stage has the activations of at once.
    pub in_flight: Vec<u32>,
}

impl Outlook {
    /// The outlook of a schedule whose runs cost so much, with messages that take no time.
    ///
    /// # Errors
    /// Runs, or micro-batches, of which there is no such order, in one sentence.
    pub fn of(
        order: Order,
        runs: &Runs,
        micro_batches: u32,
        cost: impl Fn(usize) -> Cost,
    ) -> Result<Outlook, String> {
        // A run is one unit here: what its units do follows one upon the other.
        let whole = |(r, k): (&Run, u32)| Run {
            stage: r.stage,
            units: k..k + 1,
        };
        let runs = Runs::from(runs.iter().zip(0..).map(whole).collect::<Vec<_>>());
        let unit = UnitFacts::default();
        let facts = Facts::uniform(runs.count() as u32, micro_batches, 1, unit);
        let plan = |stage| -> Result<Plan, String> {
            let plan = pipeline(&runs, stage, micro_batches, order)?;
            Depend.run(plan, &facts).map_err(|e| e.to_string())
        };
        let plans: Vec<Plan> = (0..runs.stages()).map(plan).collect::<Result<_, _>>()?;
        let all: Vec<&Plan> = plans.iter().collect();
        let played = play(&all, |_, step| work(&step.op, &cost))?;
        let length = |t: &Range<u64>| t.end - t.start;
        let lists = order.work(&runs, micro_batches)?;
        Ok(Outlook {
            makespan: played.iter().flatten().map(|t| t.end).max().unwrap_or(0),
            busy: played.iter().map(|s| s.iter().map(length).sum()).collect(),
            in_flight: lists.iter().map(in_flight).collect(),
        })
    }

    /// The part of the time in which a stage is idle, of all stages together.
    pub fn idle(&self) -> f64 {
        let all = self.makespan as f64 * self.busy.len() as f64;
        let busy: u64 = self.busy.iter().sum();
        if all > 0.0 {
            1.0 - busy as f64 / all
        } else {
            0.0
        }
    }
}

/// The cost of a step, by that of its unit; nothing where nothing is computed.
pub fn work(op: &StepKind, cost: impl Fn(usize) -> Cost) -> u64 {
    match *op {
        StepKind::Forward { unit, .. } | StepKind::Recompute { unit, .. } => {
            cost(unit as usize).forward
        }
        StepKind::Backward { unit, .. } => {
            let cost = cost(unit as usize);
            cost.input + cost.weights
        }
        StepKind::InputGrad { unit, .. } => cost(unit as usize).input,
        StepKind::WeightGrad { unit, .. } => cost(unit as usize).weights,
        _ => 0,
    }
}
