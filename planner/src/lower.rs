//! From the plan of a rank to its program: each step is given to the algorithm that writes it, in the plan's order.

use crate::assign::recipes;
use crate::dry::Dry;
use crate::error::{Error, Result};
use crate::groups::StepGroups;
use crate::rooms::rooms;
use crate::spec::{FlowShape, RankSpec};
use crossweave_mesh::{Axis, AxisSet, GroupKey};
use crossweave_plan::{Facts, Keep, Lane, PipelineStage, Plan, Step, StepId, StepKind};
use crossweave_program::{
    Builder, Call, GroupId, HostJob, MemId, Move, Part, Program, ProgramError, Room, UnitState,
    Values,
};
use crossweave_tensor::{Group, ParamDecl, Pieces, Split, UnitDecl};
use crossweave_zero::lower::{
    Grads, Groups, Job, Matrices, Memory, Optim, Owners, ParamMemory, Params, Parts, Source,
    Summands, ToHost, Words, unit_state,
};
use crossweave_zero::optim::Recipe;
use crossweave_zero::{Flat, FlatParam, Partition, Placement, Residency, UnitAt, ZeroStage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Returns the placement of a unit's data.
fn placement(
    spec: &RankSpec,
    (at, owners): (UnitAt, AxisSet),
    recipes: &[Option<Recipe>],
) -> Placement {
    let offload = spec.offload.as_ref();
    let host = offload.and_then(|o| o.optimizer).map_or(0.0, |o| o.ratio);
    let away = host > 0.0 && offload.is_some_and(|o| o.params);
    let whole = recipes.iter().flatten().any(|r| r.optimizer.wants_whole());
    Placement {
        owners,
        ranks: spec.place.size(owners),
        rank: spec.place.index(owners),
        partition: match whole {
            true => Partition::WholeParameter,
            false => Partition::Flat,
        },
        shards: spec.canonical,
        compute: spec.compute,
        residency: match away {
            true => Residency::Transient,
            false => spec.zero.residency(at),
        },
        secondary: match owners == AxisSet::DATA {
            true => spec.zero.node.max(1),
            false => 1,
        },
        sliced: spec.zero.stage >= ZeroStage::Two || spec.reduces_each(),
        host,
        away,
    }
}

/// The flat of a unit. What another pipeline stage runs (`elsewhere`) counts in no norm here.
fn flat(
    spec: &RankSpec,
    (u, units): (usize, &[UnitDecl]),
    recipes: &[Option<Recipe>],
    elsewhere: bool,
) -> Flat {
    let unit = &units[u];
    let param = |p: &crossweave_tensor::ParamDecl| FlatParam {
        name: p.name.clone(),
        held: p.held.clone(),
        trains: p.group.trains(),
        base: p.group == Group::Base,
    };
    let params: Vec<FlatParam> = unit.params.iter().map(param).collect();
    let at = UnitAt {
        unit: u,
        units: units.len(),
        elements: params.iter().map(FlatParam::numel).sum(),
    };
    let owners = owners(unit);
    let mut flat = Flat::new(params, placement(spec, (at, owners), recipes), recipes);
    if elsewhere {
        flat.normed.clear();
    }
    flat
}

/// The axes over which a unit's parameters are shared: all over the same.
fn owners(unit: &UnitDecl) -> AxisSet {
    unit.params.first().map_or(AxisSet::DATA, |p| p.held.owners)
}

/// Those of all units. A unit is one flat, so the parameters of experts are a unit of their own, from which others borrow them.
fn owner_sets(spec: &RankSpec, units: &[UnitDecl]) -> Result<BTreeSet<AxisSet>> {
    for u in units {
        let all = owners(u);
        if all != AxisSet::DATA && spec.canonical.is_some() {
            return Err(Error::Invalid(format!(
                "{}: canonical sums over the ranks of experts are not built; leave run.canonical_shards out",
                u.name
            )));
        }
        if let Some(p) = u.params.iter().find(|p| p.held.owners != all) {
            return Err(Error::Invalid(format!(
                "{}: the ranks over {} share it, and those over {all} the other parameters of {}; fix: declare the parameters of \
                 experts in a unit of their own, and borrow them",
                p.name, p.held.owners, u.name
            )));
        }
    }
    Ok(units.iter().map(owners).collect())
}

/// Are matrices cut that an optimizer must see whole? They are gathered for it, where ranks have equal parts of them over the tensor axis.
///
/// # Errors
/// A parameter that is cut otherwise.
fn gathers_matrices(
    spec: &RankSpec,
    units: &[UnitDecl],
    recipes: &[Vec<Option<Recipe>>],
) -> Result<bool> {
    let params = units.iter().flat_map(|u| &u.params);
    let ranks = u64::from(spec.place.length(Axis::Tp));
    let mut some = false;
    for (p, recipe) in params.zip(recipes.iter().flatten()) {
        let whole = recipe.filter(|r| r.optimizer.wants_whole());
        // Of a stack of experts each is a matrix of its own.
        let experts = p.shape.rank() == 3 && p.local().dims()[1..] == p.shape.dims()[1..];
        let Some(r) = whole.filter(|_| !p.held.part.is_whole() && !experts) else {
            continue;
        };
        some = true;
        if !is_cut_evenly(p, ranks) {
            return Err(Error::Invalid(format!(
                "{}: {} updates whole matrices, and ranks of {} hold {:?} of {:?}, which are no equal parts over tp; fix: give it another \
                 optimizer in optimizer.param_groups, or do not cut it",
                p.name,
                r.optimizer.name(),
                spec.place.mesh(),
                p.held.part.dims(),
                p.shape.dims(),
            )));
        }
    }
    Ok(some)
}

/// Is it a matrix of which each of the ranks of tensor parallelism has an equal part of one dim?
fn is_cut_evenly(p: &ParamDecl, ranks: u64) -> bool {
    let [Split { axis, dim, pieces }] = &p.split[..] else {
        return false;
    };
    let sizes = match pieces {
        Pieces::Fused(sizes) => sizes.clone(),
        _ => vec![p.shape.dims()[usize::from(*dim)]],
    };
    *axis == Axis::Tp && p.shape.rank() == 2 && sizes.iter().all(|n| n.is_multiple_of(ranks))
}

/// Calls of a unit outside the step.
#[derive(Clone, Default)]
pub struct Outside {
    /// Makes its parameters whole; those that rest on the host come for it.
    pub gather: Range<usize>,
    /// Frees the memory of the whole.
    pub release: Range<usize>,
    /// Brings what the host holds of them.
    pub param_in: Range<usize>,
}

impl Outside {
    fn of_units(b: &mut Builder, p: &Params<'_>) -> Vec<Outside> {
        let units = 0..p.flats.len();
        units.map(|u| Outside::write(b, p, u)).collect()
    }

    fn write(b: &mut Builder, p: &Params<'_>, u: usize) -> Outside {
        let first = b.calls();
        p.shard_in(b, None, u);
        p.gather(b, None, u, Source::Outside);
        let gathered = b.calls();
        p.release(b, None, u);
        let released = b.calls();
        p.param_in(b, None, u);
        Outside {
            gather: first..gathered,
            release: gathered..released,
            param_in: released..b.calls(),
        }
    }
}

/// A rank's specification, lowered: the program of its step, and the facts that the walk around it needs.
pub struct Lowered {
    /// The rank's specification.
    pub spec: RankSpec,
    /// The plan that the program was lowered from.
    pub plan: Plan,
    /// The facts that the plan was made from.
    pub facts: Facts,
    /// The program: the step, and what of each unit is called outside it.
    pub program: Program,
    /// Its memory beside that of parameters and their state.
    pub memory: Memory,
    words: Words,
    /// The memory of each unit's state.
    pub state: Vec<UnitState>,
    /// The state that the host executor holds, where something rests off the device.
    pub rooms: Vec<Room>,
    /// The calls of each unit outside the step.
    pub outside: Vec<Outside>,
    /// The program's calls of each step of the plan.
    pub by_step: Vec<(Option<StepId>, Range<usize>)>,
    /// For each unit, which of its parameters its backward writes gradients of.
    pub writes: Vec<Vec<bool>>,
    /// The same of the two parts of a backward in two.
    pub writes_apart: [Vec<Vec<bool>>; 2],
    /// The values that flow out of each unit, for one micro-batch.
    pub flows: Vec<FlowShape>,
    /// The groups that the rank joins.
    pub groups: StepGroups,
}

impl Lowered {
    /// Holds the program against its laws: the step, and what of each unit is called outside it.
    fn check(&self) -> std::result::Result<(), ProgramError> {
        crossweave_program::check(&self.program, self.step())?;
        self.outside.iter().try_for_each(|o| {
            crossweave_program::check(&self.program, o.gather.start..o.release.end)?;
            crossweave_program::check(&self.program, o.param_in.clone())
        })
    }

    /// Bytes of the step's words that the host reads.
    pub const WORDS: u64 = Words::READ;

    /// The words of the figures that the last unit gives beside its loss; none where it gives none.
    pub fn figures(&self) -> Range<u64> {
        self.words.figures()
    }

    /// Losses that a backward begins at: one, or two where the last unit gives figures of one beside it.
    pub fn losses(&self) -> u64 {
        1 + u64::from(!self.figures().is_empty())
    }

    /// The word of the figures that the loss of this rank's micro-batch `m` is added to.
    pub fn loss_word(&self, m: usize) -> u64 {
        match self.spec.canonical {
            Some(_) => self.words.losses().start + u64::from(self.spec.own_first()) + m as u64,
            None => Words::LOSS,
        }
    }

    /// The calls of the step.
    pub fn step(&self) -> Range<usize> {
        0..self.by_step.last().map_or(0, |(_, calls)| calls.end)
    }
}

/// The inputs of lowering beside the plan.
struct Given<'a> {
    spec: &'a RankSpec,
    /// The units that the rank holds.
    units: &'a [UnitDecl],
    flats: &'a [Flat],
    /// The update of each parameter of each unit.
    recipes: &'a [Vec<Option<Recipe>>],
    /// The findings of a dry run of the units.
    dry: &'a Dry,
    /// Units that run on other pipeline stages.
    elsewhere: &'a BTreeSet<usize>,
    groups: &'a StepGroups,
    /// True if the plan gathers parameters.
    gathers: bool,
    /// The way in which the plan adds up the micro-batches of each unit.
    parts: Vec<Parts>,
}

impl Given<'_> {
    /// Declares a group of the program, where the rank has others in it.
    fn declare(&self, b: &mut Builder, key: &Option<GroupKey>) -> Result<Option<GroupId>> {
        let Some(key) = key else {
            return Ok(None);
        };
        let group = self.spec.place.group(key);
        let group = group.map_err(|e| Error::Invalid(e.to_string()))?;
        Ok(Some(b.group(group)))
    }

    /// The groups over which the gradients of tied units are added up, by unit, where the rank has others in them.
    fn ties(&self, b: &mut Builder) -> Result<BTreeMap<usize, GroupId>> {
        let mut all = BTreeMap::new();
        for (unit, key) in &self.groups.ties {
            let group = self.declare(b, &Some(key.clone()))?;
            all.extend(group.map(|g| (*unit, g)));
        }
        Ok(all)
    }

    fn job(&self, b: &mut Builder) -> Result<Job> {
        let (s, own) = (self.spec, self.groups);
        let mut owners = vec![];
        for o in &own.owners {
            owners.push(Owners {
                axes: o.axes,
                data: self.declare(b, &o.data)?,
                ..Owners::default()
            });
        }
        let dense = own.owners.first();
        let data = owners.first().and_then(|o| o.data);
        let figures = match own.figures.as_ref() == dense.and_then(|o| o.data.as_ref()) {
            true => data,
            false => self.declare(b, &own.figures)?,
        };
        let stages = self.declare(b, &own.stages)?;
        let mut summed = vec![];
        for key in &own.summands {
            summed.push((key, self.declare(b, &Some(key.clone()))?));
        }
        let known = summed
            .iter()
            .find(|(key, _)| own.matrices.as_ref() == Some(*key));
        let matrices = match known {
            Some((_, group)) => *group,
            None => self.declare(b, &own.matrices)?,
        };
        let [at, among] = [s.place.at(Axis::Tp), s.place.length(Axis::Tp)].map(u64::from);
        // Where one of the two is everyone it is declared already.
        let all = match (figures, stages) {
            (Some(_), Some(_)) => self.declare(b, &own.all)?,
            (one, None) | (None, one) => one,
        };
        for (o, of) in owners.iter_mut().zip(&own.owners) {
            o.gather = self.declare(b, &of.gather)?;
            o.node = self.declare(b, &of.node)?;
        }
        let gathering = match self.gathers {
            true => Lane::Gather,
            false => Lane::Compute,
        };
        Ok(Job {
            ranks: s.data_ranks(),
            rank: s.data_rank(),
            reduce: match s.zero.overlap {
                true => Lane::Reduce,
                false => Lane::Compute,
            },
            gather: match s.zero.overlap {
                true => gathering,
                false => Lane::Compute,
            },
            arrives: gathering,
            quantized: s.quantizes(),
            clip: s.clip,
            scaled: s.precision.scaler.is_some(),
            rescaled: s.rescales(),
            seeded: s.precision.scaler.is_some() || s.rows.labelled,
            figures: self.figures(),
            wire: s.precision.wire,
            accumulate: s.precision.accum,
            parts: self.parts.clone(),
            summands: self.summands(&summed),
            shards: s.canonical,
            micro_batches: s.micro_batches,
            groups: Groups {
                owners,
                figures,
                stages,
                all,
                matrices: matrices
                    .filter(|_| own.matrices.is_some())
                    .map(|group| Matrices {
                        group,
                        at,
                        ranks: among,
                    }),
            },
        })
    }

    /// Returns how many figures the last unit gives behind its loss and the loss beside it.
    fn figures(&self) -> u64 {
        let given = self.dry.flows.last().into_iter().flatten();
        given.skip(2).map(|(shape, _)| shape.numel()).sum()
    }

    /// Returns what of each unit is a summand on each rank of one of these groups.
    fn summands(&self, groups: &[(&GroupKey, Option<GroupId>)]) -> Vec<Summands> {
        let each = self.units.iter().zip(self.flats);
        let of = |(unit, flat): (&UnitDecl, &Flat)| {
            let params = unit.params.iter().enumerate();
            let summed = params.filter(|(_, p)| !unit.summed_over(p).is_empty());
            let axes = unit.params.iter().map(|p| unit.summed_over(p));
            let axes = axes.fold(AxisSet::NONE, AxisSet::union);
            let over = groups.iter().find(|(key, _)| key.axes == axes);
            Summands {
                group: over.and_then(|(_, group)| *group),
                ranges: summed.map(|(i, _)| flat.layout.range(i)).collect(),
                before: unit.has_uneven_parts(),
            }
        };
        each.map(of).collect()
    }

    /// The ways to the host, where the optimizer is offloaded.
    fn to_host(&self, b: &mut Builder, job: &Job) -> Option<ToHost> {
        let how = self.spec.offload.as_ref()?.optimizer?;
        let wire = how.wire(self.spec.compute);
        Some(ToHost::declare(b, job, self.flats, wire))
    }

    /// The units whose gradients the backward of `u`, or a part of it, writes, each with the parameters it does.
    fn writers(&self, u: usize, part: Part) -> Vec<(usize, Vec<bool>)> {
        let own = self.units[u].params.len();
        let writes = match part {
            Part::InputGrad => &self.dry.writes_apart[0],
            Part::WeightGrad => &self.dry.writes_apart[1],
            _ => &self.dry.writes,
        };
        let (mine, lent) = writes[u].split_at(own);
        let mut units = vec![(u, mine.to_vec())];
        for ((o, p), writes) in self.units[u].borrowed.iter().zip(lent) {
            let at = match units.iter().position(|(k, _)| k == o) {
                Some(at) => at,
                None => {
                    units.push((*o, vec![false; self.units[*o].params.len()]));
                    units.len() - 1
                }
            };
            units[at].1[*p] |= writes;
        }
        units
    }

    /// Writes the backward of unit `u`, or a part of it.
    fn backward(
        &self,
        (g, host): (&mut Grads<'_>, &mut Option<ToHost>),
        b: &mut Builder,
        (step, mb): (StepId, u32),
        (u, part): (usize, Part),
    ) {
        let units = self.writers(u, part);
        let rooms = g.rooms(&units);
        if let Some(host) = host {
            let wanted: Vec<MemId> = rooms.iter().map(|r| r.mem).collect();
            host.settle(b, Some(step), Some(&wanted));
        }
        let values = Values::Unit {
            unit: u as u32,
            mb,
            keep: Keep::All,
        };
        let name = match part {
            Part::InputGrad => "input gradient",
            Part::WeightGrad => "weight gradients",
            _ => "backward",
        };
        b.call_of(Some(step), Some(values), name, &rooms, |code| {
            let adds = g.open(code, &units, 0);
            let of = |o: usize| units.iter().position(|(k, _)| *k == o).unwrap_or(0);
            let borrowed = self.units[u].borrowed.iter();
            let lent = borrowed.map(|(o, p)| adds[of(*o)][*p]);
            let own = self.units[u].params.len();
            let all = adds[0][..own].iter().copied().chain(lent).collect();
            code.block(part, all);
        });
        if part == Part::InputGrad {
            // The micro-batch's gradient is complete behind the second part.
            return;
        }
        // What others are tied to is whole behind its own backward, which comes last; on another stage nothing comes.
        // Where runs of a stage take turns, micro-batches do not come one behind the other either.
        let turns = self.spec.pipeline.as_ref().is_some_and(|p| p.takes_turns());
        let borrowed = self.units[u].borrowed.iter().map(|(o, _)| *o);
        let lent = borrowed.filter(|o| turns || self.elsewhere.contains(o));
        let mut whole: Vec<usize> = lent.chain([u]).collect();
        whole.dedup();
        whole
            .into_iter()
            .for_each(|w| g.fold_micro_batch(b, step, w));
    }
}

/// The program of a rank's plan, held against the laws of programs, and the tables of its state. `units` are those that the rank holds, in
/// a job whose pipeline stages share units as `shared` says; a backward writes the gradients that the dry run says.
///
/// # Errors
/// An optimizer that cannot run where it is asked to; a law that is broken.
pub fn lower(
    spec: RankSpec,
    units: &[UnitDecl],
    dry: &Dry,
    shared: &BTreeMap<usize, Vec<PipelineStage>>,
    planned: (Plan, Facts),
) -> Result<Lowered> {
    let recipes = recipes(units, &spec.optim);
    let gathers_matrices = gathers_matrices(&spec, units, &recipes)?;
    let mut elsewhere = BTreeSet::new();
    if let Some(p) = &spec.pipeline {
        let runs_here = |u: &usize| p.runs.stage_of(*u as u32) == Some(spec.stage());
        elsewhere.extend((0..units.len()).filter(|u| !runs_here(u)));
    }
    let gathers = |s: &Step| matches!(s.op, StepKind::Gather { .. });
    let gathers = planned.0.steps.iter().any(gathers);
    let owners = owner_sets(&spec, units)?;
    let mut groups = StepGroups::of(&spec, shared, &owners, gathers, &planned.1);
    if gathers_matrices {
        groups.matrices = StepGroups::beside_blocks(&spec);
    }
    let each = recipes.iter().enumerate();
    let flats = each.map(|(u, r)| flat(&spec, (u, units), r, elsewhere.contains(&u)));
    let flats: Vec<Flat> = flats.collect();
    let parts = parts(&planned.0, &flats);
    let rooms = rooms(&spec, &flats, &parts)?;
    let given = Given {
        spec: &spec,
        units,
        flats: &flats,
        recipes: &recipes,
        dry,
        elsewhere: &elsewhere,
        groups: &groups,
        gathers,
        parts,
    };
    let lowered = write(planned, &given, rooms)?;
    lowered.check().map_err(|source| Error::Program {
        rank: spec.place.job_rank(),
        source,
    })?;
    Ok(lowered)
}

/// The ways to the host, where there are any.
fn offloaded(host: &mut Option<ToHost>) -> Result<&mut ToHost> {
    let none =
        || Error::Invalid("the plan moves state to the host and nothing is offloaded".into());
    host.as_mut().ok_or_else(none)
}

/// Writes a step of the plan that is about values of a micro-batch: it runs a block, or moves what blocks hand on.
fn values(b: &mut Builder, s: &Step) -> Result<()> {
    let of_unit = |unit, mb, keep| Some(Values::Unit { unit, mb, keep });
    let (name, part, values) = match s.op {
        StepKind::Forward { unit, mb, keep } => {
            ("forward", Ok(Part::Forward), of_unit(unit, mb, keep))
        }
        StepKind::Recompute { unit, mb } => (
            "recompute",
            Ok(Part::Recompute),
            of_unit(unit, mb, Keep::All),
        ),
        StepKind::Spill { unit, mb } => ("move", Err(Move::Spill), of_unit(unit, mb, Keep::Input)),
        StepKind::Fetch { unit, mb } => ("move", Err(Move::Fetch), of_unit(unit, mb, Keep::Input)),
        ref op if op.is_message() => {
            let what = match op {
                StepKind::SendAct { .. } => Move::SendAct,
                StepKind::RecvAct { .. } => Move::RecvAct,
                StepKind::SendGrad { .. } => Move::SendGrad,
                StepKind::RecvGrad { .. } => Move::RecvGrad,
                _ => Move::Exchange,
            };
            let (grad, messages) = op.messages();
            ("move", Err(what), Some(Values::Messages { grad, messages }))
        }
        ref other => return Err(Error::Invalid(format!("this engine does not run {other}"))),
    };
    b.call_of(Some(s.id), values, name, &[], |code| match part {
        Ok(part) => code.block(part, vec![]),
        Err(what) => code.values(s.lane, what),
    });
    Ok(())
}

/// For each unit, whether its gradient goes to the host.
fn leaving(plan: &Plan, units: usize) -> Vec<bool> {
    let leaves = |u: usize| {
        let out = StepKind::GradOut {
            unit: u as u32,
            more: false,
        };
        plan.steps.iter().any(|s| s.op == out)
    };
    (0..units).map(leaves).collect()
}

/// Returns the way in which the plan adds up the micro-batches of each unit.
fn parts(plan: &Plan, flats: &[Flat]) -> Vec<Parts> {
    let mut all = vec![Parts::default(); flats.len()];
    for s in &plan.steps {
        match &s.op {
            StepKind::ReduceGrad {
                units, more: true, ..
            } => units.iter().for_each(|u| all[*u as usize].reduced = true),
            StepKind::GradOut { unit, more: true } => {
                let u = *unit as usize;
                all[u].leave = flats[u].host > 0;
            }
            _ => {}
        }
    }
    all
}

/// `GradOut`: what the host has of the gradient of unit `u` leaves, all at once or one of its `parts`.
fn leave(
    b: &mut Builder,
    id: StepId,
    (g, host): (&mut Grads<'_>, &mut ToHost),
    (u, flat, parts): (usize, &Flat, Parts),
    more: bool,
) {
    match (parts.leave, more) {
        (true, _) => host.part_out(b, id, (g, u), !more),
        // None of it is the host's.
        (false, true) => return,
        (false, false) => {}
    }
    if more {
        return;
    }
    // The norm is taken later, of what is summed here: of the sum that the host makes, of the part that the device updates.
    g.squares_of(b, id, u);
    g.count_leaving(b, id, u);
    if !parts.leave {
        host.grad_out(b, id, (g, u));
        if flat.host == flat.owned_len() {
            g.close(b, id, u);
        }
    }
}

/// The part of a backward that a step runs.
fn part_of(step: &StepKind) -> Part {
    match step {
        StepKind::InputGrad { .. } => Part::InputGrad,
        StepKind::WeightGrad { .. } => Part::WeightGrad,
        _ => Part::Backward,
    }
}

fn write((plan, facts): (Plan, Facts), given: &Given<'_>, rooms: Vec<Room>) -> Result<Lowered> {
    let mut b = Builder::default();
    let job = given.job(&mut b)?;
    let ties = given.ties(&mut b)?;
    let flats = given.flats;
    let each = || flats.iter().enumerate();
    let params = |(u, f): (usize, &Flat)| ParamMemory::declare(&mut b, u, f);
    let params: Vec<_> = each().map(params).collect();
    let words = Words::new(&job, flats);
    let memory = Memory::declare(&mut b, &job, flats, &words);
    let optim = |(u, f): (usize, &Flat)| Optim::declare(&mut b, u, f, &given.recipes[u]);
    let optim: Vec<_> = each().map(optim).collect();
    let mut host = given.to_host(&mut b, &job);
    let left = leaving(&plan, flats.len());
    let mut g = Grads::new(&job, flats, &memory, &words);
    let p = Params {
        job: &job,
        flats,
        memory: &params,
    };
    g.begin(&mut b);
    let mut decided = false;
    for s in &plan.steps {
        let id = s.id;
        let begins = matches!(s.op, StepKind::InputGrad { .. }) || s.op.writes_grad().is_some();
        if begins && !std::mem::replace(&mut decided, true) {
            g.decide(&mut b);
        }
        match &s.op {
            StepKind::Backward { unit, mb }
            | StepKind::InputGrad { unit, mb }
            | StepKind::WeightGrad { unit, mb } => {
                let of = (*unit as usize, part_of(&s.op));
                given.backward((&mut g, &mut host), &mut b, (id, *mb), of);
            }
            StepKind::ReduceGrad { units, how, more } => {
                if let Some(host) = &mut host {
                    let own = units.iter().map(|u| memory.own[*u as usize]);
                    host.next_bucket(&mut b, id, &own.collect::<Vec<_>>());
                }
                g.reduce(&mut b, id, (units, *more), *how);
            }
            StepKind::Fold { unit, joins } => g.fold(&mut b, id, *unit as usize, *joins),
            StepKind::Tie { unit } => {
                if let Some(group) = ties.get(&(*unit as usize)) {
                    g.tie(&mut b, id, *unit as usize, *group);
                }
            }
            StepKind::Finite => g.finite(&mut b, id, &left),
            StepKind::GradNorm => g.norm(&mut b, id, &left),
            StepKind::GradOut { unit, more } => {
                let u = *unit as usize;
                let to = (&mut g, offloaded(&mut host)?);
                leave(&mut b, id, to, (u, &flats[u], job.parts[u]), *more);
            }
            StepKind::Update { unit } => {
                let u = *unit as usize;
                match s.lane {
                    Lane::Host => offloaded(&mut host)?.update(&mut b, id, (&g, u)),
                    _ if job.clip <= 0.0 => g.squares_of(&mut b, id, u),
                    _ => {}
                }
                optim[u].update(&mut b, id, (&g, u), &params[u]);
                if s.lane != Lane::Host || flats[u].host < flats[u].owned_len() {
                    g.close(&mut b, id, u);
                }
            }
            StepKind::Gather { unit, node } => {
                let from = if *node { Source::Node } else { Source::All };
                p.gather(&mut b, Some(id), *unit as usize, from);
            }
            StepKind::Release { unit } => p.release(&mut b, Some(id), *unit as usize),
            StepKind::ParamIn { unit } => p.param_in(&mut b, Some(id), *unit as usize),
            StepKind::ShardIn { unit } => p.shard_in(&mut b, Some(id), *unit as usize),
            // Nothing is cleared: the first gradient written in a step overwrites.
            StepKind::ZeroGrad { .. } => {}
            StepKind::StateIn { unit } => {
                offloaded(&mut host)?.job(&mut b, id, (&g, *unit as usize), HostJob::StateIn);
            }
            StepKind::StateOut { unit } => {
                offloaded(&mut host)?.job(&mut b, id, (&g, *unit as usize), HostJob::StateOut);
            }
            _ => values(&mut b, s)?,
        }
    }
    host.iter_mut().for_each(|h| h.settle(&mut b, None, None));
    g.publish(&mut b);
    let end = b.calls();
    let outside = Outside::of_units(&mut b, &p);
    let program = b.finish();
    Ok(Lowered {
        spec: given.spec.clone(),
        plan,
        facts,
        by_step: by_step(&program.calls[..end]),
        program,
        memory,
        words,
        state: tables(flats, &params, &optim, &rooms),
        rooms,
        outside,
        writes: given.dry.writes.clone(),
        writes_apart: given.dry.writes_apart.clone(),
        flows: given.dry.flows.clone(),
        groups: given.groups.clone(),
    })
}

/// Returns the memory of each unit's state.
fn tables(
    flats: &[Flat],
    params: &[ParamMemory],
    optim: &[Optim],
    rooms: &[Room],
) -> Vec<UnitState> {
    let each = flats.iter().enumerate();
    let each = each.map(|(u, f)| {
        let at = (u, flats.len());
        unit_state(at, f, &params[u], &optim[u], rooms.get(u))
    });
    each.collect()
}

/// The calls of each step of the plan, in order: the step, and which calls; without a step those of the start, of what the host
/// decides, and of the end.
fn by_step(calls: &[Call]) -> Vec<(Option<StepId>, Range<usize>)> {
    let mut out: Vec<(Option<StepId>, Range<usize>)> = vec![];
    for (k, c) in calls.iter().enumerate() {
        match out.last_mut() {
            Some((step, calls)) if *step == c.step => calls.end = k + 1,
            _ => out.push((c.step, k..k + 1)),
        }
    }
    out
}
