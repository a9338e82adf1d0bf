//! Gradients reduced micro-batch by micro-batch (`zero_optimization.reduce_gradients: "micro_batch"`): between micro-batches a rank
//! holds its slices only. That is what stages 2 and 3 promise (`03-algorithms.md` §4.1); the price is the traffic of as many
//! reductions as there are micro-batches (§4.2), each beside the next backward.

use crossweave_plan::{
    Facts, Law, MicroBatch, Pass, Plan, PlanError, Reduction, Step, StepKind, Storage, UnitId,
    words,
};
use std::collections::{BTreeMap, BTreeSet};

/// The pass that reduces each unit behind its last backward in every micro-batch. It runs when the reductions of the step are placed and
/// before they are merged into buckets, which end with their micro-batch. What one rank owns alone (experts of which no other rank has a
/// copy) has no slices: its gradient is added up where it is, and complete behind the last backward of the step, unless each micro-batch
/// is to be summed by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReduceEach {
    /// What one rank owns alone too: its optimizer is offloaded and the host adds up what leaves, or the rank is the only one and its
    /// sums are to have the same bits.
    pub alone: bool,
}

/// A unit's writers: of each micro-batch the first and the last step.
type Writers = BTreeMap<MicroBatch, (usize, usize)>;

fn writers(plan: &Plan, facts: &Facts, unit: UnitId) -> Writers {
    let mut found = Writers::new();
    for (index, step) in plan.steps.iter().enumerate() {
        let Some(mb) = step.op.micro_batch() else {
            continue;
        };
        let writes = step.op.writes_grad();
        if writes.is_some_and(|w| facts.touched(w).any(|u| u == unit)) {
            found.entry(mb).or_insert((index, index)).1 = index;
        }
    }
    found
}

/// Where a reduction behind step `at` goes: behind the slots that the step gives back, and behind the gradient that leaves for the stage
/// before, which is waited for there.
fn place(plan: &Plan, at: usize) -> usize {
    let behind = || plan.steps.iter().enumerate().skip(at + 1);
    let released = behind().take_while(|(_, s)| matches!(s.op, StepKind::Release { .. }));
    let released = released.last().map_or(at, |(k, _)| k);
    let mut until_next = behind().take_while(|(_, s)| !s.op.computes());
    let sent = until_next.find(|(_, s)| {
        let (grad, messages) = s.op.messages();
        grad && messages.iter().any(|m| m.sends)
    });
    sent.map_or(released, |(k, _)| k)
}

/// The units to whose gradients other pipeline stages add: their sums stay on the device until then.
fn shared(plan: &Plan, facts: &Facts) -> BTreeSet<UnitId> {
    let here = plan.units();
    let elsewhere = (0..facts.units.len() as UnitId).filter(|u| !here.contains(u));
    elsewhere.flat_map(|u| facts.touched(u)).collect()
}

/// The unit of a reduction that is made micro-batch by micro-batch; none for other steps, and where the unit `stays`.
fn in_parts(
    plan: &Plan,
    stays: impl Fn(UnitId) -> bool,
    at: usize,
) -> Result<Option<UnitId>, PlanError> {
    match &plan.steps[at].op {
        StepKind::ReduceGrad { units, .. } => match units[..] {
            [unit] => Ok(Some(unit).filter(|u| !stays(*u))),
            _ => {
                let message =
                    "it is a bucket already: reductions by micro-batch come before buckets";
                Err(PlanError::at(plan, at, Law::PassOrder, message))
            }
        },
        _ => Ok(None),
    }
}

impl Pass for ReduceEach {
    fn name(&self) -> String {
        "reduce_each".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn conflicts(&self) -> &'static [&'static str] {
        &[words::UPDATES, words::BUCKETS]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        // What goes behind each step, in the order of the reductions of the step.
        let mut behind: BTreeMap<usize, Vec<Step>> = BTreeMap::new();
        let mut moved = vec![false; plan.steps.len()];
        let shared = shared(&plan, facts);
        let stays = |u: UnitId| facts.sharers(u) == 1 && (!self.alone || shared.contains(&u));
        for (at, was) in moved.iter_mut().enumerate() {
            let Some(unit) = in_parts(&plan, stays, at)? else {
                continue;
            };
            *was = true;
            let mut in_turn: Vec<_> = writers(&plan, facts, unit).into_values().collect();
            in_turn.sort_unstable();
            if let Some(two) = in_turn.windows(2).find(|w| w[0].1 > w[1].0) {
                let message = format!(
                    "unit {unit} writes the gradients of two micro-batches in turns, and zero_optimization.reduce_gradients \"micro_batch\" reduces each by itself; set it to \"step\""
                );
                return Err(PlanError::at(&plan, two[1].0, Law::PassOrder, message));
            }
            for (k, (_, last)) in in_turn.iter().enumerate() {
                let step = Step::new(StepKind::ReduceGrad {
                    units: vec![unit],
                    how: Reduction::Scatter,
                    more: k + 1 < in_turn.len(),
                });
                behind.entry(place(&plan, *last)).or_default().push(step);
            }
        }
        let mut out = Vec::with_capacity(plan.steps.len() + behind.len());
        for (index, step) in std::mem::take(&mut plan.steps).into_iter().enumerate() {
            if !moved[index] {
                out.push(step);
            }
            out.extend(behind.remove(&index).into_iter().flatten());
        }
        plan.grads = Storage::Slots;
        Ok(plan.rebuild(out))
    }
}
