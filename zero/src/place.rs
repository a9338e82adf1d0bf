//! ZeRO is the placement of three steps: where units are gathered, where they are released, where their gradients are
//! reduced.

use crossweave_plan::{
    Facts, Law, Pass, Plan, PlanError, Reduction, Step, StepKind, Storage, UnitFacts, UnitId, words,
};
use std::collections::BTreeSet;

/// How much is sharded over the data-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing: parameters, gradients and state are whole on every rank, gradients are all-reduced.
    Zero,
    /// Optimizer state: units are gathered once at the start, gradients reduce-scattered at the end.
    One,
    /// Also gradients: each is reduce-scattered at its unit's last backward.
    Two,
    /// Also parameters: units are gathered before, and released after, each use.
    Three,
}

impl ZeroStage {
    /// The stage of that number, as configurations write it.
    pub fn from_number(stage: u32) -> Option<ZeroStage> {
        let all = [
            ZeroStage::Zero,
            ZeroStage::One,
            ZeroStage::Two,
            ZeroStage::Three,
        ];
        all.get(stage as usize).copied()
    }
}

/// The pass that places gathers, releases and reductions. It runs after whatever chooses what is kept, so that a
/// recompute and its backward find one gather by construction.
#[derive(Clone, Copy, Debug)]
pub struct Place(pub ZeroStage);

impl Pass for Place {
    fn name(&self) -> String {
        format!("zero{}", self.0 as u8)
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::SCHEDULE]
    }

    fn provides(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        &[words::PLACED, words::UPDATES]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let stage = self.0;
        let Some(end) = plan.steps.iter().rposition(|s| s.op.computes()) else {
            return Err(PlanError::whole(
                Law::PassOrder,
                "there is nothing to place gathers around: the schedule is empty",
            ));
        };
        let touched: BTreeSet<UnitId> = plan
            .units()
            .into_iter()
            .flat_map(|u| facts.touched(u))
            .collect();
        let gathered: Vec<UnitId> = touched
            .into_iter()
            .filter(|&u| facts.has_params(u))
            .collect();
        let last = last_grads(&plan, facts);
        let how = match stage {
            ZeroStage::Zero => Reduction::All,
            _ => Reduction::Scatter,
        };
        let reduce = |unit| {
            Step::new(StepKind::ReduceGrad {
                units: vec![unit],
                how,
                more: false,
            })
        };

        let mut out = Vec::with_capacity(plan.steps.len() * 2);
        if matches!(stage, ZeroStage::One | ZeroStage::Two) {
            out.extend(
                gathered
                    .iter()
                    .map(|&unit| Step::new(StepKind::gather(unit))),
            );
        }
        for (index, step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
            let used: Vec<UnitId> = match step.op.reads_params() {
                Some(unit) if stage == ZeroStage::Three => facts
                    .touched(unit)
                    .filter(|&u| facts.has_params(u))
                    .collect(),
                _ => Vec::new(),
            };
            out.extend(used.iter().map(|&unit| Step::new(StepKind::gather(unit))));
            out.push(step);
            out.extend(
                used.iter()
                    .map(|&unit| Step::new(StepKind::Release { unit })),
            );
            if stage != ZeroStage::One {
                out.extend(
                    last.iter()
                        .filter(|&&(_, at)| at == index)
                        .map(|&(u, _)| reduce(u)),
                );
            }
            if index == end {
                if stage == ZeroStage::One {
                    out.extend(last.iter().map(|&(u, _)| reduce(u)));
                }
                if matches!(stage, ZeroStage::One | ZeroStage::Two) {
                    out.extend(
                        gathered
                            .iter()
                            .map(|&unit| Step::new(StepKind::Release { unit })),
                    );
                }
            }
        }
        plan.params = if stage == ZeroStage::Zero {
            Storage::Resident
        } else {
            Storage::Slots
        };
        plan.grads = if stage >= ZeroStage::Two {
            Storage::Slots
        } else {
            Storage::Resident
        };
        Ok(plan.rebuild(out))
    }
}

/// Each unit with a gradient, and the step that writes it last, in unit order.
fn last_grads(plan: &Plan, facts: &Facts) -> Vec<(UnitId, usize)> {
    let mut last = vec![None; facts.units.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        for unit in step
            .op
            .writes_grad()
            .into_iter()
            .flat_map(|u| facts.touched(u))
        {
            if facts.has_grads(unit) {
                last[unit as usize] = Some(index);
            }
        }
    }
    let found = last.into_iter().enumerate();
    found
        .filter_map(|(u, at)| Some((u as UnitId, at?)))
        .collect()
}

/// The pass for units that pipeline stages share (tied embeddings): the sum of each one's gradient with the other stages' part. It comes
/// behind all that the stages send each other, since a stage that waits for it early keeps from the others what they need to get there.
/// Where one stage has all readers of its units there is nothing to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ties;

impl Pass for Ties {
    fn name(&self) -> String {
        "ties".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        &[words::UPDATES]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let here = plan.units();
        let elsewhere = (0..facts.units.len() as UnitId).filter(|u| !here.contains(u));
        let shared: BTreeSet<UnitId> = elsewhere.flat_map(|u| facts.touched(u)).collect();
        let mut steps = std::mem::take(&mut plan.steps);
        let reductions = steps
            .iter()
            .filter(|s| matches!(s.op, StepKind::ReduceGrad { .. }));
        let reduced: BTreeSet<UnitId> = reductions.flat_map(|s| s.op.units().to_vec()).collect();
        let ties = reduced.intersection(&shared);
        steps.extend(ties.map(|&unit| Step::new(StepKind::Tie { unit })));
        Ok(plan.rebuild(steps))
    }
}

/// The pass that merges gradient reductions that follow each other into buckets of at most so many bytes, at the place
/// of the last one merged. A unit that is larger by itself is a bucket of its own.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Most bytes of gradient in one reduction.
    pub bytes: u64,
}

impl Pass for Bucket {
    fn name(&self) -> String {
        format!("bucket({})", self.bytes)
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn provides(&self) -> &'static [&'static str] {
        &[words::BUCKETS]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        // An update between two reductions would have to wait for the bucket: buckets are made first.
        &[words::UPDATES, words::BUCKETS]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let mut steps = std::mem::take(&mut plan.steps);
        let mut dropped = vec![false; steps.len()];
        let mut open: Option<(usize, u64)> = None;
        // Where micro-batches are reduced one by one, a bucket ends with its micro-batch.
        let each = |s: &Step| matches!(s.op, StepKind::ReduceGrad { more: true, .. });
        let each = steps.iter().any(each);
        let mut mb = None;
        for index in 0..steps.len() {
            if each && steps[index].op.writes_grad().is_some() {
                let now = steps[index].op.micro_batch();
                if std::mem::replace(&mut mb, now) != now {
                    open = None;
                }
            }
            let StepKind::ReduceGrad { units, how, more } = &steps[index].op else {
                continue;
            };
            // Ranks that have other tokens sum within a bucket, and must have the same ones.
            let sized = |f: &UnitFacts| match f.talk.most {
                Some(n) => f.grad_bytes / (f.params - f.base).max(1) * n,
                None => f.grad_bytes,
            };
            let bytes = |&u: &UnitId| facts.units.get(u as usize).map_or(0, sized);
            let here: u64 = units.iter().map(bytes).sum();
            // The units of a bucket are shared by the same ranks.
            let owners = |units: &[UnitId]| units.first().map(|u| facts.owners(*u));
            let (mine, how, more) = (units.clone(), *how, *more);
            let mut total = here;
            if let Some((before, held)) = open
                && held.saturating_add(here) <= self.bytes
                && let StepKind::ReduceGrad {
                    units, how: same, ..
                } = &steps[before].op
                && *same == how
                && owners(units) == owners(&mine)
            {
                let merged = units.iter().copied().chain(mine).collect();
                steps[index].op = StepKind::ReduceGrad {
                    units: merged,
                    how,
                    more,
                };
                dropped[before] = true;
                total = held + here;
            }
            open = Some((index, total));
        }
        let kept = steps
            .into_iter()
            .zip(dropped)
            .filter(|(_, d)| !d)
            .map(|(s, _)| s);
        let kept = kept.collect();
        Ok(plan.rebuild(kept))
    }
}
