//! Where optimizer steps go: at once behind each reduction if nothing global must be known first, else behind the norm.

use crossweave_plan::{Facts, Law, Op, Pass, Plan, PlanError, Step, UnitId, words};
use std::collections::{BTreeMap, BTreeSet};

/// The pass that places `Update`, and `Finite` and `GradNorm` if they are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Updates {
    /// Gradients are clipped by their global norm, or the norm is reported: `GradNorm` comes before every update.
    pub norm: bool,
    /// Losses are scaled: `Finite` comes before every update, which it may forbid.
    pub finite: bool,
    /// Without norm and finite check, update each unit right behind its reduction, so that gradients never pile up.
    pub early: bool,
}

impl Pass for Updates {
    fn name(&self) -> String {
        let early = self.early && !self.norm && !self.finite;
        if early { "update_early" } else { "update" }.to_string()
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
            .filter(|s| matches!(s.op, Op::ReduceGrad { .. }))
            .flat_map(|s| s.op.units().iter().copied())
            .collect();
        if reduced.is_empty() {
            return Err(PlanError::whole(
                Law::PassOrder,
                "there is no gradient to update from: the schedule has no backward",
            ));
        }
        let mut steps = std::mem::take(&mut plan.steps);
        if self.norm || self.finite || !self.early {
            steps.extend(self.finite.then(|| Step::new(Op::Finite)));
            steps.extend(self.norm.then(|| Step::new(Op::GradNorm)));
            steps.extend(reduced.iter().map(|&unit| Step::new(Op::Update { unit })));
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
            let reduces = matches!(step.op, Op::ReduceGrad { .. });
            let here = step.op.units().iter().copied().filter(|_| reduces);
            for unit in used.chain(here) {
                if reduced.contains(&unit) {
                    ready.insert(unit, index);
                }
            }
        }
        let mut out = Vec::with_capacity(steps.len() + reduced.len());
        for (index, step) in steps.into_iter().enumerate() {
            out.push(step);
            let now = ready.iter().filter(|&(_, &at)| at == index);
            out.extend(now.map(|(&unit, _)| Step::new(Op::Update { unit })));
        }
        Ok(plan.rebuild(out))
    }
}
