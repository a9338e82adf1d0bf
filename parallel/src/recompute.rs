//! Trading time for memory: which forwards keep less than all, and what that asks of the backward.

use crossweave_plan::{Facts, Keep, Law, Pass, Plan, PlanError, Step, StepKind, UnitId, words};

/// Which units are recomputed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Every unit keeps its input only, and runs forward again before its backward.
    Full,
    /// Every unit keeps what is expensive to recompute; the tape re-runs the rest inside the backward.
    Selective,
    /// Per unit, in unit order; units beyond the list keep all.
    PerUnit(Vec<Keep>),
}

impl Pick {
    fn keep(&self, unit: UnitId) -> Keep {
        match self {
            Pick::Full => Keep::Input,
            Pick::Selective => Keep::Selective,
            Pick::PerUnit(keeps) => keeps.get(unit as usize).copied().unwrap_or(Keep::All),
        }
    }
}

/// The pass that applies a [`Pick`]. Forwards that keep nothing (validation) stay as they are.
#[derive(Clone, Debug)]
pub struct Recompute(pub Pick);

impl Pass for Recompute {
    fn name(&self) -> String {
        match &self.0 {
            Pick::Full => "recompute".to_string(),
            Pick::Selective => "recompute(selective)".to_string(),
            Pick::PerUnit(_) => "recompute(per unit)".to_string(),
        }
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
        if let Pick::PerUnit(keeps) = &self.0
            && let Some(unit) = keeps.iter().position(|k| *k == Keep::Nothing)
        {
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
                    *keep = self.0.keep(*unit);
                }
                &mut StepKind::Backward { unit, mb } | &mut StepKind::InputGrad { unit, mb }
                    if self.0.keep(unit) == Keep::Input =>
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
