//! Trading time for memory: which forwards keep less than all, and what that asks of the backward.

use crossweave_plan::{
    Facts, Keep, Law, Pass, Plan, PlanError, Recompute, Step, StepKind, UnitId, words,
};

/// The pass that says what forwards keep, per unit in unit order; units beyond the list keep what its last does. What keeps its input only
/// runs forward again before its backward. Forwards that keep nothing (validation) stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeps(pub Vec<Keep>);

impl From<Recompute> for Keeps {
    /// Every unit alike.
    fn from(recompute: Recompute) -> Keeps {
        Keeps(vec![recompute.keep()])
    }
}

impl Keeps {
    fn of(&self, unit: UnitId) -> Keep {
        let own = self.0.get(unit as usize).or(self.0.last());
        own.copied().unwrap_or(Keep::All)
    }
}

impl Pass for Keeps {
    fn name(&self) -> String {
        let name = match self.0[..] {
            [Keep::Input] => "recompute",
            [Keep::Selective] => "recompute(selective)",
            _ => "recompute(per unit)",
        };
        name.to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::SCHEDULE]
    }

    fn provides(&self) -> &'static [&'static str] {
        &[words::KEEP]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        // A recompute added behind the placing of gathers would find its unit released.
        &[words::KEEP, words::PLACED]
    }

    fn run(&self, mut plan: Plan, _facts: &Facts) -> Result<Plan, PlanError> {
        if let Some(unit) = self.0.iter().position(|k| *k == Keep::Nothing) {
            return Err(PlanError::whole(
                Law::Activations,
                format!(
                    "unit {unit} is asked to keep nothing, and its backward needs at least its input"
                ),
            ));
        }
        let mut out = Vec::with_capacity(plan.steps.len() * 3 / 2);
        for mut step in std::mem::take(&mut plan.steps) {
            match &mut step.op {
                StepKind::Forward { unit, keep, .. } if *keep != Keep::Nothing => {
                    *keep = self.of(*unit);
                }
                &mut StepKind::Backward { unit, mb } | &mut StepKind::InputGrad { unit, mb }
                    if self.of(unit) == Keep::Input =>
                {
                    out.push(Step::new(StepKind::Recompute { unit, mb }));
                }
                _ => {}
            }
            out.push(step);
        }
        Ok(plan.rebuild(out))
    }
}
