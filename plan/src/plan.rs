//! A training step as a list of steps, with what passes have said about it.

use crate::facts::Facts;
use crate::op::{Lane, StepKind, UnitId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A step's number: its position in the plan.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct StepId(pub u32);

impl StepId {
    /// As an index into [`Plan::steps`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Position in the plan.
    pub id: StepId,
    /// The operation.
    pub op: StepKind,
    /// The in-order queue it is done on.
    pub lane: Lane,
    /// Steps of other lanes that must be done first. The order within a lane needs no edge.
    #[serde(default)]
    pub after: Vec<StepId>,
}

impl Step {
    /// A step on its operation's own lane, not yet numbered: [`Plan::rebuild`] numbers it.
    pub fn new(op: StepKind) -> Step {
        let lane = op.lane();
        Step {
            id: StepId(0),
            op,
            lane,
            after: Vec::new(),
        }
    }
}

/// The place of a kind of data between its uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// Allocated whole, once, for the whole run.
    #[default]
    Resident,
    /// Whole only for a time, in a slot; otherwise each rank holds its slice.
    Slots,
}

/// Words by which passes say what they have done; `Pass::needs` names them.
pub mod words {
    /// The forwards and backwards are there.
    pub const SCHEDULE: &str = "schedule";
    /// The activations that forwards keep have been chosen.
    pub const KEEP: &str = "keep";
    /// Gathers, releases and reductions are placed.
    pub const PLACED: &str = "placed";
    /// Reductions are merged into buckets.
    pub const BUCKETS: &str = "buckets";
    /// Optimizer steps are placed.
    pub const UPDATES: &str = "updates";
    /// `after` edges are in place; every rewriting of the steps takes this word back.
    pub const ORDERED: &str = "ordered";
}

/// One optimizer step of one rank, as data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The steps, in an order in which one queue could run them.
    pub steps: Vec<Step>,
    /// The place of the parameters. `Slots`: every use must find its unit gathered.
    #[serde(default)]
    pub params: Storage,
    /// The place of the full gradients. `Slots`: whole from the first write to the reduction, a slice from then to the update.
    #[serde(default)]
    pub grads: Storage,
    /// The properties that passes have given the plan so far, as [`words`].
    #[serde(default)]
    pub provides: BTreeSet<String>,
}

impl Plan {
    /// A plan of these operations on their own lanes, all data resident, with the word `schedule` if it computes anything.
    pub fn from_ops(ops: impl IntoIterator<Item = StepKind>) -> Plan {
        let plan = Plan::default().rebuild(ops.into_iter().map(Step::new).collect());
        let computes = plan.steps.iter().any(|s| s.op.computes());
        if computes {
            plan.provide(words::SCHEDULE)
        } else {
            plan
        }
    }

    /// The same plan with other steps: renumbered, and without `after` edges, since those spoke of the old numbers.
    pub fn rebuild(mut self, steps: Vec<Step>) -> Plan {
        self.steps = steps;
        for (index, step) in self.steps.iter_mut().enumerate() {
            step.id = StepId(index as u32);
            step.after.clear();
        }
        self.provides.remove(words::ORDERED);
        self
    }

    /// Record that a pass has provided `word`.
    pub fn provide(mut self, word: &str) -> Plan {
        self.provides.insert(word.to_string());
        self
    }

    /// Returns true if some pass has provided `word`.
    pub fn has(&self, word: &str) -> bool {
        self.provides.contains(word)
    }

    /// The units this rank runs.
    pub fn units(&self) -> BTreeSet<UnitId> {
        self.steps
            .iter()
            .filter_map(|s| s.op.reads_params())
            .collect()
    }

    /// The steps in order: what an engine walks. No allocation.
    pub fn walk(&self) -> std::slice::Iter<'_, Step> {
        self.steps.iter()
    }

    /// The steps of one lane in order.
    pub fn lane(&self, lane: Lane) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |s| s.lane == lane)
    }

    /// The lanes this plan uses, in column order.
    pub fn lanes(&self) -> Vec<Lane> {
        Lane::ALL
            .into_iter()
            .filter(|&l| self.lane(l).next().is_some())
            .collect()
    }

    /// For each step, the units whose gradients it is the first of the plan to write. Where the plan clears no gradients
    /// (`ZeroGrad`), an engine overwrites there and accumulates everywhere else.
    pub fn first_grads(&self, facts: &Facts) -> Vec<Vec<UnitId>> {
        let mut seen = BTreeSet::new();
        self.steps
            .iter()
            .map(|step| match step.op.writes_grad() {
                Some(unit) => facts.touched(unit).filter(|&u| seen.insert(u)).collect(),
                None => Vec::new(),
            })
            .collect()
    }
}
