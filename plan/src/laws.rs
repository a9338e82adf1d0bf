//! The laws as a state machine: the state of every unit, every (unit, micro-batch) pair and every micro-batch, and for
//! each operation the transition that is allowed, or the law it breaks.

mod away;
mod fold;
mod peers;
mod slots;

use self::slots::slot_bytes;
use crate::check::Parts;
use crate::error::{Law, PlanError};
use crate::facts::Facts;
use crate::op::{Keep, Lane, MicroBatch, Reduction, StepKind, UnitId};
use crate::plan::{Plan, Storage};

/// Saved activations of one unit for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// No forward yet.
    Before,
    /// The forward left this.
    Kept(Keep),
    /// All are live again after a recompute.
    Rebuilt,
    /// The input gradient is done, the weight gradient owed.
    Owed,
    /// The backward is done.
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Saved {
    act: Act,
    /// Bytes it holds, on the device or spilled.
    bytes: u64,
    spilled: bool,
}

/// The part of a unit's gradient that has left for the host.
#[derive(Clone, Copy, Debug, Default)]
struct Parting {
    /// All of it has.
    out: bool,
    /// Those of micro-batches leave one by one, which the host adds up.
    leave: bool,
    /// That of some micro-batches is reduced and has not left.
    waits: bool,
    /// That of some micro-batches has left.
    left: bool,
}

/// The state of a unit within the step.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    run: bool,
    gathered: bool,
    /// Gathered from all ranks in this step, at some time.
    refreshed: bool,
    zeroed: bool,
    written: bool,
    /// A gradient is being summed: written since the last fold.
    open: bool,
    /// Gradients set aside by folds, and not added to each other yet.
    aside: u32,
    /// The slice holds the sums of earlier micro-batches.
    sliced: bool,
    reduced: Option<Reduction>,
    /// Other stages sum into its gradient too: a `Tie` is owed behind the reduction.
    shared: bool,
    tied: bool,
    updated: bool,
    /// The state is offloaded: the plan moves it in and out.
    offloaded: bool,
    on_device: bool,
    /// The update runs on the host lane.
    hosted: bool,
    parts: Parting,
    params_in: bool,
    /// The parameters rest in host memory: each gather needs its slice copied in.
    shard_away: bool,
    shard_here: bool,
}

/// The state of a plan between two of its steps.
pub(crate) struct State<'a> {
    plan: &'a Plan,
    facts: &'a Facts,
    units: Vec<Standing>,
    saved: Vec<Saved>,
    flow: Vec<Option<UnitId>>,
    flow_grad: Vec<Option<UnitId>>,
    gathered: u32,
    clears: bool,
    has_reduce: bool,
    has_update: bool,
    has_norm: bool,
    has_finite: bool,
    norm_done: bool,
    finite_done: bool,
    update_done: bool,
    sharded: bool,
    /// Bytes live between steps.
    pub(crate) live: Parts,
    /// Workspace of the step being run.
    pub(crate) transient: u64,
    /// Bytes of flow while the step runs, where they exceed those before and after.
    pub(crate) flow_during: u64,
}

/// Returns a unit or micro-batch that a step names and that is not among so many of the model and of a step.
fn beyond(step: &StepKind, (units, micro_batches): (usize, usize)) -> Option<String> {
    let (_, messages) = step.messages();
    let named = step.units().iter().copied();
    let mut named = named.chain(messages.iter().map(|m| m.unit));
    if let Some(u) = named.find(|&u| u as usize >= units) {
        let most = format!("the model has {units} units, counted from 0");
        return Some(format!("unit {u} does not exist; {most}"));
    }
    let own = step.micro_batch().into_iter();
    let mut own = own.chain(messages.iter().map(|m| m.mb));
    let mb = own.find(|&mb| mb as usize >= micro_batches)?;
    let most = format!("a step has {micro_batches}, counted from 0");
    Some(format!("micro-batch {mb} does not exist; {most}"))
}

impl<'a> State<'a> {
    pub(crate) fn new(plan: &'a Plan, facts: &'a Facts) -> Result<State<'a>, PlanError> {
        let (n, m) = (facts.units.len(), facts.micro_batches as usize);
        let mut units = vec![Standing::default(); n];
        for (index, step) in plan.steps.iter().enumerate() {
            let range = |message: String| Err(PlanError::at(plan, index, Law::Range, message));
            if let Some(what) = beyond(&step.op, (n, m)) {
                return range(what);
            }
            if let StepKind::StateIn { unit } | StepKind::StateOut { unit } = step.op {
                units[unit as usize].offloaded = true;
            }
            match step.op {
                StepKind::Update { unit } if step.lane == Lane::Host => {
                    units[unit as usize].hosted = true;
                }
                StepKind::ShardIn { unit } => units[unit as usize].shard_away = true,
                StepKind::GradOut { unit, more: true } => units[unit as usize].parts.leave = true,
                _ => {}
            }
            if let Some(unit) = step.op.reads_params() {
                for u in facts.touched(unit) {
                    match units.get_mut(u as usize) {
                        Some(standing) => standing.run = true,
                        None => {
                            return range(format!("it is tied to unit {u}, which does not exist"));
                        }
                    }
                }
            }
        }
        let run_here = plan.units();
        for reader in 0..n as UnitId {
            for u in facts.touched(reader).map(|u| u as usize) {
                // Its readers are here in part: the rest run on another stage.
                if !run_here.contains(&reader) && units.get(u).is_some_and(|s| s.run) {
                    units[u].shared = true;
                }
            }
        }
        let any = |pick: fn(&StepKind) -> bool| plan.steps.iter().any(|s| pick(&s.op));
        let sharded =
            any(|op| matches!(op, StepKind::ReduceGrad { how, .. } if *how == Reduction::Scatter));
        let mut state = State {
            plan,
            facts,
            units,
            saved: vec![
                Saved {
                    act: Act::Before,
                    bytes: 0,
                    spilled: false
                };
                n * m
            ],
            flow: vec![None; m],
            flow_grad: vec![None; m],
            gathered: 0,
            clears: any(|op| matches!(op, StepKind::ZeroGrad { .. })),
            has_reduce: any(|op| matches!(op, StepKind::ReduceGrad { .. })),
            has_update: any(|op| matches!(op, StepKind::Update { .. })),
            has_norm: any(|op| matches!(op, StepKind::GradNorm)),
            has_finite: any(|op| matches!(op, StepKind::Finite)),
            norm_done: false,
            finite_done: false,
            update_done: false,
            sharded,
            live: Parts::default(),
            transient: 0,
            flow_during: 0,
        };
        if plan.params == Storage::Slots {
            // A slot that holds nothing is memory all the same.
            state.live.params = slot_bytes(plan, facts);
        }
        let has_backward = any(|op| op.writes_grad().is_some());
        for (unit, fact) in facts.units.iter().enumerate() {
            let standing = state.units[unit];
            if !standing.run {
                continue;
            }
            if plan.params == Storage::Resident {
                state.live.params += fact.param_bytes;
            }
            if plan.grads == Storage::Resident && has_backward {
                state.live.grads += fact.grad_bytes;
            }
            if state.has_update && !standing.offloaded {
                state.live.state += state.device_state(unit as UnitId);
            }
        }
        Ok(state)
    }

    fn state_bytes(&self, unit: UnitId, whole: u64) -> u64 {
        if self.sharded {
            self.facts.shard(unit, whole)
        } else {
            whole
        }
    }

    fn fault<T>(&self, index: usize, law: Law, message: impl Into<String>) -> Result<T, PlanError> {
        Err(PlanError::at(self.plan, index, law, message))
    }

    fn pair(&self, unit: UnitId, mb: MicroBatch) -> usize {
        unit as usize * self.facts.micro_batches as usize + mb as usize
    }

    fn last_unit(&self) -> UnitId {
        self.facts.units.len() as UnitId - 1
    }

    fn flow_bytes(&self, unit: Option<UnitId>) -> u64 {
        unit.map_or(0, |u| self.facts.units[u as usize].flow_bytes)
    }

    /// Replace the hidden state of a micro-batch, or its gradient, in the count.
    fn set_flow(&mut self, mb: MicroBatch, unit: Option<UnitId>) {
        let old = std::mem::replace(&mut self.flow[mb as usize], unit);
        self.live.flow = self.live.flow - self.flow_bytes(old) + self.flow_bytes(unit);
    }

    fn set_flow_grad(&mut self, mb: MicroBatch, unit: Option<UnitId>) {
        let old = std::mem::replace(&mut self.flow_grad[mb as usize], unit);
        self.live.flow = self.live.flow - self.flow_bytes(old) + self.flow_bytes(unit);
    }

    /// Run one step's transition.
    pub(crate) fn step(&mut self, index: usize) -> Result<(), PlanError> {
        self.flow_during = 0;
        self.transient = 0;
        let plan = self.plan;
        if let Some(unit) = plan.steps[index].op.reads_params() {
            self.uses(index, unit)?;
        }
        match plan.steps[index].op {
            StepKind::Gather { unit, node } => self.gather(index, unit, node),
            StepKind::Release { unit } => self.release(index, unit),
            StepKind::Forward { unit, mb, keep } => self.forward(index, unit, mb, keep),
            StepKind::Recompute { unit, mb } => self.recompute(index, unit, mb),
            StepKind::Backward { unit, mb } => {
                self.input_grad(index, unit, mb)?;
                self.weight_grad(index, unit, mb)
            }
            StepKind::InputGrad { unit, mb } => self.input_grad(index, unit, mb),
            StepKind::WeightGrad { unit, mb } => self.weight_grad(index, unit, mb),
            StepKind::ReduceGrad {
                ref units,
                how,
                more,
            } => self.reduce(index, units, how, more),
            StepKind::Tie { unit } => self.tie(index, unit),
            StepKind::GradNorm => self.norm(index, false),
            StepKind::Finite => self.norm(index, true),
            StepKind::Update { unit } => self.update(index, unit),
            StepKind::ZeroGrad { unit } => self.zero_grad(index, unit),
            StepKind::Fold { unit, joins } => self.fold(index, unit, joins),
            StepKind::SendAct { .. }
            | StepKind::RecvAct { .. }
            | StepKind::SendGrad { .. }
            | StepKind::RecvGrad { .. }
            | StepKind::Exchange { .. } => self.exchange(index),
            StepKind::Spill { unit, mb } => self.spill(index, unit, mb),
            StepKind::Fetch { unit, mb } => self.fetch(index, unit, mb),
            StepKind::StateIn { unit } => self.state_in(index, unit),
            StepKind::StateOut { unit } => self.state_out(index, unit),
            StepKind::GradOut { unit, more } => self.grad_out(index, unit, more),
            StepKind::ParamIn { unit } => self.param_in(index, unit),
            StepKind::ShardIn { unit } => self.shard_in(index, unit),
        }
    }

    /// A step reads the full parameters of `unit` and of those it is tied to.
    fn uses(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        self.transient = self.facts.units[unit as usize].workspace_bytes;
        for u in self.facts.touched(unit) {
            let standing = self.units[u as usize];
            if standing.updated || standing.params_in {
                return self.fault(index, Law::Stale, format!("the parameters of unit {u} have been updated already in this step; move the update behind this use"));
            }
            if self.plan.params == Storage::Slots && self.facts.has_params(u) && !standing.gathered
            {
                return self.fault(
                    index,
                    Law::Gathered,
                    format!("the parameters of unit {u} are not gathered; put +{u} before it"),
                );
            }
        }
        Ok(())
    }

    fn gather(&mut self, index: usize, unit: UnitId, node: bool) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        if self.plan.params == Storage::Resident {
            return self.fault(
                index,
                Law::GatherOnce,
                "this plan's parameters are resident, there is nothing to gather",
            );
        }
        if standing.gathered {
            return self.fault(
                index,
                Law::GatherOnce,
                format!("unit {unit} is gathered twice; drop this gather or release it first"),
            );
        }
        if standing.updated || standing.params_in {
            return self.fault(
                index,
                Law::Stale,
                format!("unit {unit} has been updated already in this step"),
            );
        }
        if node && !standing.refreshed {
            return self.fault(
                index,
                Law::Stale,
                format!("the copies of unit {unit} in this node are of the step before; gather it from all ranks first"),
            );
        }
        self.units[unit as usize].refreshed = true;
        self.gathered += 1;
        if self.facts.slots.is_some_and(|slots| self.gathered > slots) {
            return self.fault(
                index,
                Law::Slots,
                format!(
                    "no slot is left: {} units are gathered and there are {} slots",
                    self.gathered,
                    self.gathered - 1
                ),
            );
        }
        if standing.shard_away {
            if !standing.shard_here {
                return self.fault(
                    index,
                    Law::Gathered,
                    format!("the slice of unit {unit} is in host memory; put shin{unit} before it"),
                );
            }
            // The slice and the slot are live together while the gather runs.
            let slice = self
                .facts
                .shard(unit, self.facts.units[unit as usize].param_bytes);
            self.units[unit as usize].shard_here = false;
            self.live.params -= slice;
            self.transient += slice;
        }
        self.units[unit as usize].gathered = true;
        Ok(())
    }

    fn release(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        if !self.units[unit as usize].gathered {
            return self.fault(
                index,
                Law::GatherOnce,
                format!("unit {unit} is released but not gathered"),
            );
        }
        self.units[unit as usize].gathered = false;
        self.gathered -= 1;
        Ok(())
    }

    fn forward(
        &mut self,
        index: usize,
        unit: UnitId,
        mb: MicroBatch,
        keep: Keep,
    ) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        if self.saved[pair].act != Act::Before {
            return self.fault(
                index,
                Law::ForwardOnce,
                format!("unit {unit} has run forward on micro-batch {mb} already"),
            );
        }
        let wanted = unit.checked_sub(1);
        let found = self.flow[mb as usize];
        if found != wanted {
            let message = match (wanted, found) {
                (Some(w), None) => format!(
                    "the output of unit {w} for micro-batch {mb} is not there; run or receive it first"
                ),
                (Some(w), Some(f)) => format!(
                    "the hidden state of micro-batch {mb} is the output of unit {f}, and this needs that of unit {w}"
                ),
                (None, _) => {
                    format!("micro-batch {mb} has a hidden state already; unit 0 begins it")
                }
            };
            return self.fault(index, Law::Flow, message);
        }
        self.saved[pair].act = Act::Kept(keep);
        self.saved[pair].bytes = self.facts.units[unit as usize].saved(keep);
        self.live.activations += self.saved[pair].bytes;
        self.set_flow(mb, Some(unit));
        if keep == Keep::Nothing {
            // The input is not handed over to the saved activations, so both ends of the unit are held at once.
            self.flow_during = self.live.flow + self.flow_bytes(wanted);
        }
        Ok(())
    }

    fn recompute(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        self.not_spilled(index, pair)?;
        if self.saved[pair].act != Act::Kept(Keep::Input) {
            return self.fault(index, Law::RecomputeInput, format!("unit {unit} has no kept input of micro-batch {mb} to start from; its forward must keep the input only, and come before"));
        }
        self.saved[pair].act = Act::Rebuilt;
        let all = self.facts.units[unit as usize].saved_all;
        self.live.activations = self.live.activations - self.saved[pair].bytes + all;
        self.saved[pair].bytes = all;
        Ok(())
    }

    /// The part of a backward that turns the gradient of the output into that of the input.
    fn input_grad(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        self.not_spilled(index, pair)?;
        match self.saved[pair].act {
            Act::Rebuilt | Act::Kept(Keep::All) => {}
            Act::Kept(Keep::Selective) => {
                let fact = &self.facts.units[unit as usize];
                self.transient += fact.saved_all.saturating_sub(fact.saved_selective);
            }
            act => {
                let why = match act {
                    Act::Before => "its forward has not run",
                    Act::Kept(Keep::Input) => "only the input was kept; recompute first",
                    Act::Kept(_) => "its forward kept nothing",
                    _ => "its backward has run already",
                };
                return self.fault(
                    index,
                    Law::Activations,
                    format!(
                        "the activations of unit {unit} for micro-batch {mb} are not live: {why}"
                    ),
                );
            }
        }
        if unit == self.last_unit() {
            if self.flow[mb as usize] != Some(unit) {
                return self.fault(
                    index,
                    Law::Flow,
                    format!("the last unit's output for micro-batch {mb} is gone"),
                );
            }
            if self.flow_grad[mb as usize].is_some() {
                return self.fault(
                    index,
                    Law::Flow,
                    format!(
                        "micro-batch {mb} has a gradient here already; the last unit begins it"
                    ),
                );
            }
            self.set_flow(mb, None);
        } else if self.flow_grad[mb as usize] != Some(unit) {
            return self.fault(index, Law::Flow, format!("the gradient of the output of unit {unit} for micro-batch {mb} is not there; run the backward of unit {} or receive it first", unit + 1));
        }
        let held = self.live.flow;
        self.set_flow_grad(mb, unit.checked_sub(1));
        self.flow_during = held + self.flow_bytes(unit.checked_sub(1));
        self.saved[pair].act = Act::Owed;
        let owed = self.facts.units[unit as usize].owed_bytes;
        self.live.activations = self.live.activations - self.saved[pair].bytes + owed;
        self.saved[pair].bytes = owed;
        Ok(())
    }

    /// The part of a backward that sums into the weight gradient, after which the activations are free.
    fn weight_grad(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        self.not_spilled(index, pair)?;
        if self.saved[pair].act != Act::Owed {
            return self.fault(index, Law::Activations, format!("no weight gradient of unit {unit} is owed for micro-batch {mb}; its input gradient comes first, and once"));
        }
        self.saved[pair].act = Act::Done;
        self.live.activations -= self.saved[pair].bytes;
        self.saved[pair].bytes = 0;
        for u in self.facts.touched(unit) {
            if !self.facts.has_grads(u) {
                continue;
            }
            let standing = self.units[u as usize];
            if standing.reduced.is_some() {
                return self.fault(index, Law::ReduceOnce, format!("the gradient of unit {u} has been reduced already; reduce it after its last backward"));
            }
            if self.clears && !standing.zeroed {
                return self.fault(index, Law::ZeroGrad, format!("the gradient of unit {u} was not cleared, though this plan clears others; put zg{u} before its first backward"));
            }
            self.hold_grad(u);
            let standing = &mut self.units[u as usize];
            (standing.written, standing.open) = (true, true);
        }
        Ok(())
    }

    /// A gradient in slots comes into being.
    fn hold_grad(&mut self, unit: UnitId) {
        let standing = self.units[unit as usize];
        let first = !standing.written && !standing.zeroed;
        // What is resident counts from the start; those begun after a fold come on top.
        if (self.plan.grads == Storage::Slots && first) || (standing.aside > 0 && !standing.open) {
            self.live.grads += self.facts.units[unit as usize].grad_bytes;
        }
    }

    fn not_spilled(&self, index: usize, pair: usize) -> Result<(), PlanError> {
        if self.saved[pair].spilled {
            return self.fault(
                index,
                Law::Spill,
                "the activations are spilled; fetch them first",
            );
        }
        Ok(())
    }

    fn zero_grad(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        if standing.written || standing.zeroed {
            return self.fault(
                index,
                Law::ZeroGrad,
                format!("the gradient of unit {unit} is cleared twice, or after it was written"),
            );
        }
        self.hold_grad(unit);
        self.units[unit as usize].zeroed = true;
        Ok(())
    }

    fn reduce(
        &mut self,
        index: usize,
        units: &[UnitId],
        how: Reduction,
        more: bool,
    ) -> Result<(), PlanError> {
        if units.is_empty() {
            return self.fault(index, Law::ReduceOnce, "the bucket is empty");
        }
        let scatters = self.plan.grads == Storage::Slots && how == Reduction::Scatter;
        for &unit in units {
            let standing = self.units[unit as usize];
            if standing.reduced.is_some() {
                return self.fault(
                    index,
                    Law::ReduceOnce,
                    format!("the gradient of unit {unit} is reduced twice"),
                );
            }
            if !standing.written {
                return self.fault(
                    index,
                    Law::ReduceOnce,
                    format!("unit {unit} has no gradient yet; reduce it after its last backward"),
                );
            }
            let in_parts = more || standing.sliced;
            if in_parts && (!scatters || self.clears || standing.aside > 0) {
                return self.fault(
                    index,
                    Law::ReduceOnce,
                    format!("micro-batches of unit {unit} are reduced one by one, which needs gradients in slots, reduce-scatters, and neither zg nor fold steps"),
                );
            }
            if standing.parts.waits {
                return self.fault(index, Law::State, format!("the gradient of unit {unit} for the micro-batches before has not left; put gout{unit}+ before it"));
            }
            self.gather_sums(index, unit)?;
            if scatters {
                let whole = self.facts.units[unit as usize].grad_bytes;
                let slice = self.facts.shard(unit, whole);
                self.live.grads -= whole;
                // A later sum arrives beside the slice that it is added to, where that is on the device.
                match standing.sliced && !standing.parts.leave {
                    true => self.transient += slice,
                    false => self.live.grads += slice,
                }
            }
            let standing = &mut self.units[unit as usize];
            standing.parts.waits = standing.parts.leave && more;
            if more {
                (standing.written, standing.open, standing.sliced) = (false, false, true);
            } else {
                standing.reduced = Some(how);
            }
        }
        Ok(())
    }

    fn norm(&mut self, index: usize, finite: bool) -> Result<(), PlanError> {
        let done = if finite {
            &mut self.finite_done
        } else {
            &mut self.norm_done
        };
        if std::mem::replace(done, true) {
            return self.fault(index, Law::Norm, "it runs twice in one step");
        }
        if self.update_done {
            return self.fault(
                index,
                Law::Norm,
                "an update came before it, with gradients it has not judged",
            );
        }
        let waits = |s: &Standing, k: usize| {
            s.run && s.reduced.is_none() && self.facts.has_grads(k as UnitId)
        };
        if let Some(unit) = self.units.iter().enumerate().position(|(k, s)| waits(s, k)) {
            return self.fault(index, Law::Norm, format!("the gradient of unit {unit} is not reduced yet; reduce every unit before the norm"));
        }
        let lacks = |k: &usize| self.units[*k].run && self.untied(*k);
        if let Some(unit) = (0..self.units.len()).find(lacks) {
            return self.owes_tie(index, unit as UnitId);
        }
        // Of a sum that the host makes, the host has the squares.
        let here = |s: &Standing| s.parts.leave && !s.parts.out;
        if let Some(unit) = self.units.iter().position(here) {
            return self.fault(index, Law::Norm, format!("the host does not have the whole gradient of unit {unit} yet; put gout{unit} before it"));
        }
        Ok(())
    }

    fn update(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        if standing.updated {
            return self.fault(
                index,
                Law::UpdateOnce,
                format!("unit {unit} is updated twice"),
            );
        }
        let Some(how) = standing.reduced else {
            return self.fault(
                index,
                Law::UpdateOnce,
                format!("the gradient of unit {unit} is not reduced yet"),
            );
        };
        if self.untied(unit as usize) {
            return self.owes_tie(index, unit);
        }
        if (self.has_norm && !self.norm_done) || (self.has_finite && !self.finite_done) {
            return self.fault(index, Law::Norm, "it comes before the norm or the finite check, which decide how far and whether to go");
        }
        if standing.offloaded && !standing.on_device {
            return self.fault(index, Law::State, format!("the optimizer state of unit {unit} is not where it is updated; put sin{unit} before it"));
        }
        let host = self.plan.steps[index].lane == Lane::Host;
        if host && !standing.parts.out {
            return self.fault(index, Law::State, format!("the gradient of unit {unit} is on the device and the update on the host; put gout{unit} before it"));
        }
        self.update_done = true;
        self.units[unit as usize].updated = true;
        if !self.wholly_hosted(unit) {
            self.let_grad_go(unit, how);
        }
        Ok(())
    }

    /// Holds the state behind the last step to the laws about the end of a plan.
    pub(crate) fn finish(&self) -> Result<(), PlanError> {
        let fault = |law, message: String| Err(PlanError::whole(law, message));
        let run_here = self.plan.units();
        for &unit in &run_here {
            for mb in 0..self.facts.micro_batches {
                let saved = self.saved[self.pair(unit, mb)];
                match saved.act {
                    Act::Before => {
                        return fault(
                            Law::ForwardOnce,
                            format!("unit {unit} never runs forward on micro-batch {mb}"),
                        );
                    }
                    Act::Done | Act::Kept(Keep::Nothing) => {}
                    _ => {
                        return fault(
                            Law::Consumed,
                            format!(
                                "the saved activations of unit {unit} for micro-batch {mb} are never used: its backward is missing"
                            ),
                        );
                    }
                }
            }
        }
        for (unit, standing) in self.units.iter().enumerate() {
            if standing.gathered {
                return fault(
                    Law::Consumed,
                    format!("unit {unit} is still gathered at the end; release it"),
                );
            }
            if standing.on_device {
                return fault(
                    Law::State,
                    format!(
                        "the optimizer state of unit {unit} is left on the device; put sout{unit} behind its update"
                    ),
                );
            }
            if standing.hosted && !standing.params_in && !standing.shard_away {
                return fault(
                    Law::State,
                    format!(
                        "what the host makes of the parameters of unit {unit} never reaches the device; put pin{unit} behind its update"
                    ),
                );
            }
            if standing.shard_here {
                return fault(
                    Law::Consumed,
                    format!("the slice of unit {unit} was copied in and never gathered"),
                );
            }
            if standing.zeroed && !standing.written {
                return fault(
                    Law::ZeroGrad,
                    format!("the gradient of unit {unit} is cleared and never written"),
                );
            }
            if (standing.written || standing.sliced)
                && standing.reduced.is_none()
                && (self.has_reduce || self.has_update)
            {
                return fault(
                    Law::ReduceOnce,
                    format!("the gradient of unit {unit} is never reduced, though others are"),
                );
            }
            if standing.reduced.is_some() && !standing.updated && self.has_update {
                return fault(
                    Law::UpdateOnce,
                    format!("unit {unit} is never updated, though others are"),
                );
            }
        }
        for (mb, (flow, grad)) in self.flow.iter().zip(&self.flow_grad).enumerate() {
            if let Some(unit) = flow.filter(|&u| u != self.last_unit()) {
                return fault(
                    Law::Consumed,
                    format!(
                        "the output of unit {unit} for micro-batch {mb} is never used; run the next unit or send it"
                    ),
                );
            }
            if let Some(unit) = grad {
                return fault(
                    Law::Consumed,
                    format!(
                        "the gradient of the output of unit {unit} for micro-batch {mb} is never used; run its backward or send it"
                    ),
                );
            }
        }
        Ok(())
    }
}
