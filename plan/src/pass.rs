//! Algorithms as passes over a plan, and the pipeline that verifies their order before any of them runs.

use crate::error::{Law, PlanError};
use crate::facts::Facts;
use crate::plan::Plan;

/// A rewriting of a plan. A pass is pure: the same plan and facts give the same plan.
pub trait Pass {
    /// The pass's name, with its settings if it has any (`prefetch(1,2)`).
    fn name(&self) -> String;

    /// Words that must have been provided before this pass runs (see [`crate::words`]).
    fn needs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Words this pass provides.
    fn provides(&self) -> &'static [&'static str] {
        &[]
    }

    /// Words that must not have been provided yet: work that this pass would undo or miss.
    fn conflicts(&self) -> &'static [&'static str] {
        &[]
    }

    /// The rewritten plan.
    fn run(&self, plan: Plan, facts: &Facts) -> Result<Plan, PlanError>;
}

/// The plan behind a pass, as the compact line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The pass's name; `schedule` for what the pipeline was given.
    pub pass: String,
    /// The plan after it, as compact text.
    pub text: String,
}

/// Passes in the order in which they run.
#[derive(Default)]
pub struct PassManager {
    passes: Vec<Box<dyn Pass>>,
}

impl PassManager {
    /// A pipeline of no passes.
    pub fn new() -> PassManager {
        PassManager::default()
    }

    /// This pipeline with one more pass at its end.
    pub fn with(mut self, pass: impl Pass + 'static) -> PassManager {
        self.passes.push(Box::new(pass));
        self
    }

    /// The names of the passes, in order.
    pub fn names(&self) -> Vec<String> {
        self.passes.iter().map(|p| p.name()).collect()
    }

    /// Holds the order of the passes to what each needs for a start from `plan`, without running any.
    pub fn verify(&self, plan: &Plan) -> Result<(), PlanError> {
        let mut words = plan.provides.clone();
        for pass in &self.passes {
            let fault = |what: String| Err(PlanError::whole(Law::PassOrder, what));
            if let Some(word) = pass.needs().iter().find(|w| !words.contains(**w)) {
                return fault(format!(
                    "pass '{}' needs '{word}', which no earlier pass provides; put the pass that does before it",
                    pass.name()
                ));
            }
            if let Some(word) = pass.conflicts().iter().find(|w| words.contains(**w)) {
                return fault(format!(
                    "pass '{}' must run before '{word}' is provided; move it forward",
                    pass.name()
                ));
            }
            words.extend(pass.provides().iter().map(|w| w.to_string()));
        }
        Ok(())
    }

    /// Verify the order, then run every pass.
    pub fn run(&self, plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        self.run_with(plan, facts, |_, _| ())
    }

    /// Like [`PassManager::run`], and the text of the plan before the first and after every pass.
    pub fn stages(&self, plan: Plan, facts: &Facts) -> Result<(Plan, Vec<Stage>), PlanError> {
        let mut stages = vec![Stage {
            pass: "schedule".to_string(),
            text: plan.to_string(),
        }];
        let plan = self.run_with(plan, facts, |pass, plan| {
            stages.push(Stage {
                pass: pass.name(),
                text: plan.to_string(),
            });
        })?;
        Ok((plan, stages))
    }

    fn run_with(
        &self,
        mut plan: Plan,
        facts: &Facts,
        mut seen: impl FnMut(&dyn Pass, &Plan),
    ) -> Result<Plan, PlanError> {
        self.verify(&plan)?;
        for pass in &self.passes {
            plan = pass.run(plan, facts)?;
            for word in pass.provides() {
                plan = plan.provide(word);
            }
            seen(pass.as_ref(), &plan);
        }
        Ok(plan)
    }
}

/// The stages as text, one line each, the names in a column.
pub fn print_stages(stages: &[Stage]) -> String {
    let width = stages.iter().map(|s| s.pass.len()).max().unwrap_or(0);
    stages
        .iter()
        .map(|s| format!("{:<width$}  {}\n", s.pass, s.text))
        .collect()
}
