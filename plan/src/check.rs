//! The laws of one rank's plan, and the bytes live at each of its steps.
//!
//! `check` walks the plan once in step order; the laws themselves are the transitions of `laws.rs`.
//!
//! Bytes are counted by what a lawful engine must hold: state and resident parameters and gradients for the whole step;
//! slots for gathered parameters, idle ones included; a gradient in slots from its first write to its reduction whole, from
//! then to its update as a slice (whole if all-reduced); saved activations from the forward to the backward; the flow
//! between units; and each step's own workspace while it runs.

use crate::depend::check_hazards;
use crate::error::{Law, PlanError};
use crate::facts::Facts;
use crate::laws::State;
use crate::plan::{Plan, StepId, words};
use crossweave_words::Size;
use serde::{Deserialize, Serialize};

/// The fullest moment of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Bytes live on the device.
    pub bytes: u64,
    /// The first step at which they are.
    pub step: StepId,
    /// That step's text.
    pub text: String,
    /// The bytes by kind.
    pub parts: Parts,
}

/// Bytes by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Full parameters, resident or gathered.
    pub params: u64,
    /// Gradients.
    pub grads: u64,
    /// Master copies and moments.
    pub state: u64,
    /// Saved activations.
    pub activations: u64,
    /// Outputs between units, and their gradients.
    pub flow: u64,
    /// The scratch memory of the running step.
    pub workspace: u64,
}

impl Parts {
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.params + self.grads + self.state + self.activations + self.flow + self.workspace
    }
}

/// Hold `plan` against every law, its edges and the budget included; the predicted peak if it keeps them all.
pub fn check(plan: &Plan, facts: &Facts) -> Result<Peak, PlanError> {
    check_edges(plan)?;
    let mut peak = Peak::default();
    walk(plan, facts, |index, parts| {
        if index == 0 || parts.total() > peak.bytes {
            peak.bytes = parts.total();
            peak.parts = *parts;
            peak.step = StepId(index as u32);
        }
    })?;
    if let Some(step) = plan.steps.get(peak.step.index()) {
        peak.text = step.to_string();
    }
    if plan.has(words::ORDERED) {
        check_hazards(plan, facts)?;
    }
    match facts.budget {
        Some(budget) if peak.bytes > budget => {
            let p = &peak.parts;
            let message = format!(
                "{} are live here and the budget is {} (params {}, grads {}, state {}, activations {}, flow {}, workspace {}); recompute more, shard more, use smaller micro-batches or raise the budget",
                Size(peak.bytes),
                Size(budget),
                Size(p.params),
                Size(p.grads),
                Size(p.state),
                Size(p.activations),
                Size(p.flow),
                Size(p.workspace),
            );
            Err(PlanError::at(plan, peak.step.index(), Law::Budget, message))
        }
        _ => Ok(peak),
    }
}

/// The bytes live at each step of a lawful plan. Edges and budget are not looked at, so passes may ask midway.
pub fn trace(plan: &Plan, facts: &Facts) -> Result<Vec<u64>, PlanError> {
    let mut bytes = Vec::with_capacity(plan.steps.len());
    walk(plan, facts, |_, parts| bytes.push(parts.total()))?;
    Ok(bytes)
}

/// Numbers are positions, edges point backward, and a plan that claims no order has no edges to trust.
fn check_edges(plan: &Plan) -> Result<(), PlanError> {
    for (index, step) in plan.steps.iter().enumerate() {
        let fault = |message: String| Err(PlanError::at(plan, index, Law::Edges, message));
        if step.id.index() != index {
            return fault(format!(
                "its number is {}, its position {index}; build plans with Plan::rebuild",
                step.id.0
            ));
        }
        if let Some(later) = step.after.iter().find(|a| a.index() >= index) {
            return fault(format!(
                "waits for step {}, which does not come before it",
                later.0
            ));
        }
    }
    Ok(())
}

/// Run the laws over the plan, telling `seen` the bytes at each step.
fn walk(plan: &Plan, facts: &Facts, mut seen: impl FnMut(usize, &Parts)) -> Result<(), PlanError> {
    let mut state = State::new(plan, facts)?;
    for index in 0..plan.steps.len() {
        let before = state.live;
        state.step(index)?;
        let mut parts = state.live;
        // A step holds both what it found and what it leaves, whichever is more.
        parts.params = parts.params.max(before.params);
        parts.grads = parts.grads.max(before.grads);
        parts.state = parts.state.max(before.state);
        parts.activations = parts.activations.max(before.activations);
        parts.flow = state.flow_during.max(parts.flow).max(before.flow);
        parts.workspace = state.transient;
        seen(index, &parts);
    }
    state.finish()
}
