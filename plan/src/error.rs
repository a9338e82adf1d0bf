//! What is wrong with a plan, in a sentence that names the step.

use crate::plan::{Plan, StepId};
use std::fmt;

/// The law a plan breaks. Tests hold one broken plan against each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// The text is not a plan.
    Text,
    /// Units and micro-batches are those of the facts.
    Range,
    /// A pass runs only on plans that are ready for it.
    PassOrder,
    /// Step numbers are positions, and `after` edges point backward.
    Edges,
    /// Two steps that touch the same data on different lanes are ordered by edges.
    Hazard,
    /// A forward finds its input, a backward the gradient of its output.
    Flow,
    /// Each unit runs forward once for every micro-batch.
    ForwardOnce,
    /// A backward finds its activations live, and runs once.
    Activations,
    /// A recompute follows a forward that kept its input only.
    RecomputeInput,
    /// All that a step makes is used by the end of the plan: saved activations by their backward, an output by the next unit or a send,
    /// gathered parameters until they are released.
    Consumed,
    /// Parameters are gathered when used.
    Gathered,
    /// A unit is not gathered twice, nor released when not gathered.
    GatherOnce,
    /// No more units are gathered at once than there are slots.
    Slots,
    /// A gradient is cleared only before the first write of the step, and then all are.
    ZeroGrad,
    /// A shard's gradient is set aside when it is written, and sums are made of what was set aside.
    Fold,
    /// A gradient is reduced once, after its last backward.
    ReduceOnce,
    /// A gradient that pipeline stages share is summed over them once, behind its reduction and before its use.
    Tie,
    /// The norm and the finite check see every reduced gradient, once, before any update.
    Norm,
    /// A unit is updated once, after its reduction and the norm, if there is one.
    UpdateOnce,
    /// No step reads parameters that this step's update has changed already.
    Stale,
    /// Spilled activations are fetched before their backward; only live ones are spilled.
    Spill,
    /// Optimizer state is on the device when updated, and goes back.
    State,
    /// The bytes live at every step fit the budget.
    Budget,
    /// Every rank of a group issues the same collectives in the same order.
    CollectiveOrder,
    /// Every send meets its receive, in order.
    Peer,
    /// All ranks come to their end.
    Deadlock,
}

/// A broken law, with the step that breaks it. `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The law.
    pub law: Law,
    /// The rank whose plan it is, when several were checked together.
    pub rank: Option<u32>,
    /// The step at fault, and its text; none when the fault is an absence.
    pub step: Option<(StepId, String)>,
    /// The fault, and the way out.
    pub message: String,
}

impl PlanError {
    /// A fault of step `step` of `plan`.
    pub fn at(plan: &Plan, step: usize, law: Law, message: impl Into<String>) -> PlanError {
        let text = plan
            .steps
            .get(step)
            .map(|s| (StepId(step as u32), s.to_string()));
        PlanError {
            law,
            rank: None,
            step: text,
            message: message.into(),
        }
    }

    /// A fault of the plan as a whole.
    pub fn whole(law: Law, message: impl Into<String>) -> PlanError {
        PlanError {
            law,
            rank: None,
            step: None,
            message: message.into(),
        }
    }

    /// A word that is not an operation.
    pub(crate) fn text(word: &str) -> PlanError {
        PlanError::whole(
            Law::Text,
            format!(
                "'{word}' is not an operation of a plan; write for instance +0, F0.0', B0.0, rs0 or opt0"
            ),
        )
    }

    /// The same fault, attributed to `rank`'s plan.
    pub fn of_rank(mut self, rank: u32) -> PlanError {
        self.rank = Some(rank);
        self
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plan")?;
        if let Some(rank) = self.rank {
            write!(f, " of rank {rank}")?;
        }
        if let Some((id, text)) = &self.step {
            write!(f, ", step {} ({text})", id.0)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for PlanError {}
