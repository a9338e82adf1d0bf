//! `after` edges from what steps touch. Each operation reads and writes symbolic resources; two steps of different lanes
//! that touch the same resource, one of them writing, are ordered by an edge unless other edges order them already.

use crate::error::{Law, PlanError};
use crate::facts::Facts;
use crate::op::{Keep, Lane, MicroBatch, StepKind, UnitId};
use crate::pass::Pass;
use crate::plan::{Plan, StepId, Storage, words};
use std::collections::HashMap;

/// A piece of data that steps touch, named and not addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The hidden state of a micro-batch between two units.
    Flow(MicroBatch),
    /// The gradient of the hidden state of a micro-batch.
    FlowGrad(MicroBatch),
    /// The saved activations of a unit for a micro-batch.
    Act(UnitId, MicroBatch),
    /// The full parameters of a unit.
    Params(UnitId),
    /// A slot for gathered parameters.
    Slot(u32),
    /// The gradient of a unit.
    Grad(UnitId),
    /// The optimizer state of a unit, on the device.
    State(UnitId),
    /// The clipping coefficient and the finite flag.
    Norm,
}

/// One touch of a resource by a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The data touched.
    pub resource: Resource,
    /// True for a write, false for a read.
    pub write: bool,
}

/// Returns the accesses of each step of `plan`. Gathers take slots as [`slots`] says; `facts` add the units a unit is tied to.
pub fn accesses(plan: &Plan, facts: &Facts) -> Vec<Vec<Access>> {
    let slots = slots(plan, facts);
    let with_grads: Vec<UnitId> = (0..facts.units.len() as UnitId)
        .filter(|&u| facts.has_grads(u))
        .collect();
    plan.steps
        .iter()
        .zip(slots)
        .map(|(step, slot)| {
            let mut out = touches(&step.op, plan, facts, &with_grads);
            out.extend(slot.map(|k| writes(Resource::Slot(k))));
            out
        })
        .collect()
}

/// The slot each `Gather` takes and each `Release` returns: the first of its size that is free, slots being numbered as they are first
/// needed. An engine that hands out slots by the same rule reuses memory only where the plan has an edge.
pub fn slots(plan: &Plan, facts: &Facts) -> Vec<Option<u32>> {
    // Of each slot its size, and who has it.
    let mut taken: Vec<(u64, Option<UnitId>)> = Vec::new();
    plan.steps
        .iter()
        .map(|step| match step.op {
            StepKind::Gather { unit, .. } => {
                let bytes = facts.slot_bytes(unit);
                let free = taken.iter().position(|s| *s == (bytes, None));
                let free = free.unwrap_or_else(|| {
                    taken.push((bytes, None));
                    taken.len() - 1
                });
                taken[free].1 = Some(unit);
                Some(free as u32)
            }
            StepKind::Release { unit } => {
                let held = taken.iter().position(|&(_, u)| u == Some(unit))?;
                taken[held].1 = None;
                Some(held as u32)
            }
            _ => None,
        })
        .collect()
}

fn reads(resource: Resource) -> Access {
    Access {
        resource,
        write: false,
    }
}

fn writes(resource: Resource) -> Access {
    Access {
        resource,
        write: true,
    }
}

fn touches(op: &StepKind, plan: &Plan, facts: &Facts, with_grads: &[UnitId]) -> Vec<Access> {
    let mut out = Vec::new();
    let params = |out: &mut Vec<Access>, unit| {
        out.extend(facts.touched(unit).map(|u| reads(Resource::Params(u))));
    };
    let grads = |out: &mut Vec<Access>, unit| {
        out.extend(facts.touched(unit).map(|u| writes(Resource::Grad(u))));
    };
    match *op {
        StepKind::Gather { unit, .. } => {
            out.extend([reads(Resource::State(unit)), writes(Resource::Params(unit))])
        }
        StepKind::Release { unit } => out.push(writes(Resource::Params(unit))),
        StepKind::Forward { unit, mb, keep } => {
            params(&mut out, unit);
            out.push(writes(Resource::Flow(mb)));
            if keep != Keep::Nothing {
                out.push(writes(Resource::Act(unit, mb)));
            }
        }
        StepKind::Recompute { unit, mb } => {
            params(&mut out, unit);
            out.push(writes(Resource::Act(unit, mb)));
        }
        StepKind::Backward { unit, mb } => {
            params(&mut out, unit);
            grads(&mut out, unit);
            out.extend([
                reads(Resource::Flow(mb)),
                writes(Resource::Act(unit, mb)),
                writes(Resource::FlowGrad(mb)),
            ]);
        }
        StepKind::InputGrad { unit, mb } => {
            params(&mut out, unit);
            // Those of norms, biases and tables.
            grads(&mut out, unit);
            out.extend([
                reads(Resource::Flow(mb)),
                writes(Resource::Act(unit, mb)),
                writes(Resource::FlowGrad(mb)),
            ]);
        }
        StepKind::WeightGrad { unit, mb } => {
            grads(&mut out, unit);
            out.push(writes(Resource::Act(unit, mb)));
        }
        StepKind::ReduceGrad { ref units, .. } => {
            out.extend(units.iter().map(|&u| writes(Resource::Grad(u))));
        }
        StepKind::Tie { unit } => out.push(writes(Resource::Grad(unit))),
        StepKind::GradNorm | StepKind::Finite => {
            out.extend(with_grads.iter().map(|&u| reads(Resource::Grad(u))));
            out.push(writes(Resource::Norm));
        }
        StepKind::Update { unit } => {
            out.extend([
                writes(Resource::Grad(unit)),
                reads(Resource::Norm),
                writes(Resource::State(unit)),
            ]);
            if plan.params == Storage::Resident {
                out.push(writes(Resource::Params(unit)));
            }
        }
        StepKind::ZeroGrad { unit } | StepKind::Fold { unit, .. } => {
            out.push(writes(Resource::Grad(unit)))
        }
        StepKind::SendAct { .. }
        | StepKind::RecvAct { .. }
        | StepKind::SendGrad { .. }
        | StepKind::RecvGrad { .. }
        | StepKind::Exchange { .. } => {
            let (grad, messages) = op.messages();
            for m in messages {
                let resource = match grad {
                    false => Resource::Flow(m.mb),
                    true => Resource::FlowGrad(m.mb),
                };
                let write = !m.sends;
                out.push(Access { resource, write });
            }
        }
        StepKind::Spill { unit, mb } | StepKind::Fetch { unit, mb } => {
            out.push(writes(Resource::Act(unit, mb)));
        }
        StepKind::StateIn { unit } | StepKind::StateOut { unit } => {
            out.push(writes(Resource::State(unit)))
        }
        StepKind::GradOut { unit, .. } => out.push(writes(Resource::Grad(unit))),
        // A gather reads the slice that arrives here.
        StepKind::ShardIn { unit } => out.push(writes(Resource::State(unit))),
        StepKind::ParamIn { unit } => {
            out.push(writes(Resource::State(unit)));
            if plan.params == Storage::Resident {
                out.push(writes(Resource::Params(unit)));
            }
        }
    }
    out
}

/// The steps known to be done when a step starts: for each lane, the number of the plan's steps from its start on, counted by position (0:
/// none). This is a vector clock over lanes.
type Clock = [u32; Lane::ALL.len()];

/// The order that lanes and edges impose: whether one step is done before another starts.
#[derive(Clone, Debug)]
pub struct Order {
    lanes: Vec<usize>,
    done: Vec<Clock>,
}

impl Order {
    /// The order of a plan whose edges point backward; edges that do not are ignored.
    pub fn new(plan: &Plan) -> Order {
        let mut order = Order {
            lanes: Vec::with_capacity(plan.steps.len()),
            done: Vec::with_capacity(plan.steps.len()),
        };
        let mut last = [None; Lane::ALL.len()];
        for step in &plan.steps {
            order.push(step.lane, &step.after, &mut last);
        }
        order
    }

    fn push(&mut self, lane: Lane, after: &[StepId], last: &mut [Option<usize>; Lane::ALL.len()]) {
        let here = self.done.len();
        let mut clock = last[lane.index()].map_or([0; Lane::ALL.len()], |p| self.through(p));
        for id in after.iter().filter(|id| id.index() < here) {
            join(&mut clock, &self.through(id.index()));
        }
        self.done.push(clock);
        self.lanes.push(lane.index());
        last[lane.index()] = Some(here);
    }

    /// Returns the steps known to be done once step `p` itself is.
    fn through(&self, p: usize) -> Clock {
        let mut clock = self.done[p];
        clock[self.lanes[p]] = clock[self.lanes[p]].max(p as u32 + 1);
        clock
    }

    /// Returns true if `first` is done, by lane order and edges, before `second` starts.
    pub fn before(&self, first: StepId, second: StepId) -> bool {
        match (self.lanes.get(first.index()), self.done.get(second.index())) {
            (Some(&lane), Some(clock)) => clock[lane] > first.0,
            _ => false,
        }
    }
}

fn join(into: &mut Clock, from: &Clock) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

/// The last steps that touched a resource.
#[derive(Clone, Default)]
struct Last {
    write: Option<usize>,
    /// The last reader of each lane since the write.
    reads: [Option<usize>; Lane::ALL.len()],
}

/// The steps each step must follow because they touch the same data: read after write, write after read, write after
/// write. Calls `found(step, earlier step)` for each pair, in step order; only the latest reader of a lane is named.
fn hazards(plan: &Plan, facts: &Facts, mut found: impl FnMut(usize, usize, Resource)) {
    let mut touched: HashMap<Resource, Last> = HashMap::new();
    for (here, list) in accesses(plan, facts).iter().enumerate() {
        for access in list {
            let Some(last) = touched.get(&access.resource) else {
                continue;
            };
            let readers = last.reads.iter().flatten().filter(|_| access.write);
            for &earlier in last.write.iter().chain(readers) {
                found(here, earlier, access.resource);
            }
        }
        for access in list {
            let last = touched.entry(access.resource).or_default();
            if access.write {
                *last = Last {
                    write: Some(here),
                    ..Last::default()
                };
            } else {
                last.reads[plan.steps[here].lane.index()] = Some(here);
            }
        }
    }
}

/// Holds the plan to the law that every hazard is ordered.
pub(crate) fn check_hazards(plan: &Plan, facts: &Facts) -> Result<(), PlanError> {
    let order = Order::new(plan);
    let mut fault = None;
    hazards(plan, facts, |here, earlier, resource| {
        let ordered = order.before(StepId(earlier as u32), StepId(here as u32));
        if fault.is_none() && !ordered {
            let message = format!(
                "touches {resource:?} like step {earlier} ({}) on lane {}, and no edge orders the two; run the depend pass last",
                plan.steps[earlier],
                plan.steps[earlier].lane.name(),
            );
            fault = Some(PlanError::at(plan, here, Law::Hazard, message));
        }
    });
    fault.map_or(Ok(()), Err)
}

/// The pass that writes the `after` edges: as few as order every hazard. It runs last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Depend;

impl Pass for Depend {
    fn name(&self) -> String {
        "depend".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::SCHEDULE]
    }

    fn provides(&self) -> &'static [&'static str] {
        &[words::ORDERED]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); plan.steps.len()];
        hazards(&plan, facts, |here, earlier, _| wanted[here].push(earlier));
        let mut order = Order {
            lanes: Vec::new(),
            done: Vec::new(),
        };
        let mut last = [None; Lane::ALL.len()];
        for (step, mut earlier) in plan.steps.iter_mut().zip(wanted) {
            // The latest first: what it already waited for needs no edge of its own.
            earlier.sort_unstable_by(|a, b| b.cmp(a));
            let mut known =
                last[step.lane.index()].map_or([0; Lane::ALL.len()], |p| order.through(p));
            step.after.clear();
            for e in earlier {
                if known[order.lanes[e]] as usize > e {
                    continue;
                }
                join(&mut known, &order.through(e));
                step.after.push(StepId(e as u32));
            }
            step.after.sort_unstable();
            order.push(step.lane, &step.after, &mut last);
        }
        Ok(plan.provide(words::ORDERED))
    }
}
