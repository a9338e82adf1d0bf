//! Where optimizer steps go: at once behind each reduction if nothing global must be known first, else behind the norm.

use crossweave_plan::{Facts, Law, Pass, Plan, PlanError, Step, StepKind, UnitId, words};
use std::collections::{BTreeMap, BTreeSet};

/// The pass that places `Update`, and `Finite` and `GradNorm` if they are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Updates {
    /// Gradients are clipped by their global norm, or the norm is reported: `GradNorm` comes before every update.
    pub norm: bool,
    /// Losses are scaled: `Finite` comes before every update, which it may forbid.
    pub finite: bool,
    /// Without norm and finite check, update each unit soon behind its reduction, so that gradients never pile up.
    pub early: bool,
    /// Early updates let one more reduction go first: a unit is reduced while the one before it runs backward, instead of the backward
    /// waiting behind the update for the reduction. One more bucket of reduced gradients is then alive.
    pub lag: bool,
}

impl Pass for Updates {
    fn name(&self) -> String {
        match self.early && !self.norm && !self.finite {
            true if self.lag => "update_early(1)".to_string(),
            true => "update_early".to_string(),
            false => "update".to_string(),
        }
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn provides(&self) -> &'static [&'static str] {
        &[words::UPDATES]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        &[words::UPDATES]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let reduced: BTreeSet<UnitId> = plan
            .steps
            .iter()
            .filter(|s| matches!(s.op, StepKind::ReduceGrad { .. }))
            .flat_map(|s| s.op.units().iter().copied())
            .collect();
        // A stage of a pipeline may hold nothing but frozen parameters: it takes part in the norm of the others.
        if reduced.is_empty() && !plan.steps.iter().any(|s| s.op.is_message()) {
            return Err(PlanError::whole(
                Law::PassOrder,
                "there is no gradient to update from: the schedule has no backward",
            ));
        }
        let mut steps = std::mem::take(&mut plan.steps);
        if self.norm || self.finite || !self.early {
            steps.extend(self.finite.then(|| Step::new(StepKind::Finite)));
            steps.extend(self.norm.then(|| Step::new(StepKind::GradNorm)));
            steps.extend(
                reduced
                    .iter()
                    .map(|&unit| Step::new(StepKind::Update { unit })),
            );
            return Ok(plan.rebuild(steps));
        }
        // A unit is ready when it is reduced and no later step reads its parameters (a tied unit may still be read).
        let mut ready: BTreeMap<UnitId, usize> = BTreeMap::new();
        for (index, step) in steps.iter().enumerate() {
            let used = step
                .op
                .reads_params()
                .into_iter()
                .flat_map(|u| facts.touched(u));
            let reduces = matches!(step.op, StepKind::ReduceGrad { .. } | StepKind::Tie { .. });
            let here = step.op.units().iter().copied().filter(|_| reduces);
            for unit in used.chain(here) {
                if reduced.contains(&unit) {
                    ready.insert(unit, index);
                }
            }
        }
        // In the order in which they are ready, so that none stands behind one that waits longer.
        let mut places: Vec<(usize, usize, UnitId)> =
            ready.into_iter().map(|(unit, at)| (at, at, unit)).collect();
        if self.lag {
            // Behind the next reduction, and what belongs to it; those of the last stay where they are, with nothing left to run beside.
            let is = |k: &usize| matches!(steps[*k].op, StepKind::ReduceGrad { .. });
            let last = (0..steps.len()).rev().find(is).unwrap_or(0);
            for (at, ..) in places.iter_mut().filter(|(at, ..)| *at < last) {
                *at = (*at + 1..=last).find(is).unwrap_or(last);
            }
        }
        places.sort_unstable();
        let mut out = Vec::with_capacity(steps.len() + reduced.len());
        for (index, step) in steps.into_iter().enumerate() {
            out.push(step);
            let now = places.iter().filter(|(at, ..)| *at == index);
            out.extend(now.map(|&(.., unit)| Step::new(StepKind::Update { unit })));
        }
        Ok(plan.rebuild(out))
    }
}
