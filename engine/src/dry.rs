//! The dry run: every block once on the null device. It gives sizes to the planner, and checks sharding types and shapes before any
//! memory is taken; and what is planned from it.

use crate::error::{Error, Result};
use crate::kept::{KEPT_INPUT, KEPT_OVER, kept_by};
use crate::upload::Cuts;
use crossweave_hal::{DType, Device, NoDecompose, Tag};
use crossweave_mesh::{Axis, AxisSet};
use crossweave_plan::{Facts, KeptPart, Moves, Peer, Plan, Said, UnitFacts, UnitTalk};
use crossweave_planner::{Dry, Lowered, RankSpec, Units, numel};
use crossweave_tensor::spmd::AXES;
use crossweave_tensor::{
    Batch, Check, Cx, Env, Flow, GradSink, Group, Keep, KernelCache, Lane, Link, ParamDecl,
    Rehearsed, RngKey, Run, Spmd, Tensor, Ty, TypedParam, UnitDecl,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Over which axes ranks share a unit's parameters, where these are not the data-parallel ones; how many they are the planner says.
fn owners(unit: &UnitDecl) -> Option<(AxisSet, u32)> {
    let axes = unit.params.first()?.held.owners;
    (axes != AxisSet::DATA).then_some((axes, 1))
}

/// Bytes of a unit's whole gradient in f32.
fn grad_bytes(unit: &UnitDecl) -> u64 {
    let (n, base) = numel(unit);
    match unit.params.iter().any(|p| p.group.trains()) {
        true => 4 * (n - base),
        false => 0,
    }
}

/// Images of rows of tokens, where units read some.
fn with_images(
    run: &Run<'_>,
    units: &[UnitDecl],
    data: &mut Batch,
) -> std::result::Result<(), crossweave_tensor::Error> {
    let rows = data.tokens.as_ref().map_or(0, |t| t.shape().dims()[0]);
    if let Some(i) = crate::upload::images(units) {
        data.images = Some(run.empty([rows * i.row, i.patches, i.patch], DType::F32)?);
        data.places = data.tokens.clone();
    }
    Ok(())
}

/// Runs every unit's forward on `null` (a device that computes nothing) with `batch` sequences of `seq` tokens, of which a rank has its own
/// where rows are cut, with the shapes and the
/// groups of the units' place ([`crossweave_tensor::place_on`]).
///
/// # Errors
/// Shapes that do not fit; sharding types by which a sum over ranks is missing or made twice.
pub fn dry_run(
    null: &Device,
    units: &[UnitDecl],
    compute: DType,
    batch: u64,
    seq: u64,
) -> Result<Dry> {
    dry_run_with(null, units, compute, [batch, seq], &|_, check| check)
}

/// The same with what `alter` makes of the check of each unit, for tests of what it finds.
///
/// # Errors
/// The same as of [`dry_run`].
pub fn dry_run_with(
    null: &Device,
    units: &[UnitDecl],
    compute: DType,
    [batch, seq]: [u64; 2],
    alter: &dyn Fn(usize, Check) -> Check,
) -> Result<Dry> {
    let fail = |at: &str, e: crossweave_tensor::Error| Error::Run {
        rank: 0,
        step: 0,
        at: format!("dry run of {at}"),
        source: e,
    };
    let stream = null
        .stream("dry", 0)
        .map_err(|e| fail("set-up", e.into()))?;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &NoDecompose, &cache);
    let cuts = Cuts::of(units);
    let here = cuts.tokens(seq).map_err(|e| fail("set-up", e))?;
    let ids = run
        .empty([batch, here], DType::I32)
        .map_err(|e| fail("set-up", e))?;
    let mut data = Batch {
        tokens: Some(ids.clone()),
        targets: Some(ids),
        ..Batch::default()
    };
    cuts.note(&mut data);
    with_images(&run, units, &mut data).map_err(|e| fail("set-up", e))?;
    let mut params: Vec<Vec<Tensor>> = vec![];
    let mut flow = Flowing::default();
    let (mut facts, mut flows, mut writes) = (vec![], vec![], vec![]);
    let mut writes_apart = [vec![], vec![]];
    for (u, unit) in units.iter().enumerate() {
        let at = |e| fail(&unit.name, e);
        params.push(parameters(&run, unit, compute).map_err(at)?);
        let mut views = params[u].clone();
        views.extend(unit.borrowed.iter().map(|(u, p)| params[*u][*p].clone()));
        let consts = unit.consts.iter();
        let consts: Vec<Tensor> = consts
            .map(|(s, _)| run.empty_for(*s, DType::F32, Tag::Staging))
            .collect::<std::result::Result<_, _>>()
            .map_err(at)?;
        let typed = typed_params(units, u);
        let check = |cut_over: AxisSet| {
            let check = Check::new(typed.clone()).with_batch(cut_over);
            alter(u, check.with_inputs(&flow.types))
        };
        let sink = GradSink::none();
        let groups = Rehearsed::of(unit.place);
        let env = Env {
            run: &run,
            groups: &groups,
            params: &views,
            consts: &consts,
            grads: &sink,
            batch: &data,
            key: RngKey::default(),
            training: true,
        };
        let last = u + 1 == units.len();
        let mut saved = [0u64; 2];
        let mut outs = Flowing::default();
        for (i, keep) in [Keep::All, Keep::Cheap].into_iter().enumerate() {
            let mut cx = Cx::checked(&env, check(data.cut_over));
            let ins = flow.tensors.iter().map(|t| cx.input(t.clone())).collect();
            let out = unit.block.forward(&mut cx, Flow(ins)).map_err(at)?;
            let result = last.then_some(("the loss", Ty::P));
            outs = Flowing::out_of(&mut cx, &out, result).map_err(at)?;
            saved[i] = cx.finish(keep).held_bytes();
        }
        if last {
            logits(&env, check(data.cut_over), unit, &flow).map_err(at)?;
        }
        groups.take_said();
        let written = written(&env, &groups, unit, &flow.tensors).map_err(at)?;
        writes.push(written.either());
        for (all, part) in writes_apart.iter_mut().zip(written.parts) {
            all.push(part);
        }
        let input = size(&flow.tensors);
        facts.push(UnitFacts {
            saved_all: saved[0].max(input),
            saved_selective: saved[1].max(input),
            saved_input: input,
            owed_bytes: written.owed,
            flow_bytes: size(&outs.tensors),
            talk: shared(unit, &flow, written.talk),
            ..facts_at_rest(unit, compute)
        });
        let shapes = outs.tensors.iter().map(|t| (*t.shape(), t.dtype()));
        flows.push(shapes.collect());
        flow = outs;
    }
    let declared = units.iter().flat_map(|u| &u.params);
    let params = declared.map(|p| p.shape.numel()).sum();
    Ok(Dry {
        units: facts,
        params,
        shape: (batch, seq),
        flows,
        writes,
        writes_apart,
    })
}

/// The part that each rank can keep of the hidden state that flows into a unit, beside what else does, and how it is gathered; none where ranks do not
/// have it alike, or do not divide it.
fn kept_part(unit: &UnitDecl, flow: &Flowing) -> Option<KeptPart> {
    let (ranks, hidden) = (kept_by(unit, flow.tensors.first()?)?, &flow.tensors[0]);
    let along = AXES.iter().position(|a| *a == KEPT_OVER);
    let alike = along.is_some_and(|i| flow.types.first().is_some_and(|t| t[i] == Ty::I));
    let all = hidden.dtype().bytes(hidden.numel());
    let gather = as_planned(crossweave_tensor::Said {
        on: Link::new(KEPT_INPUT, KEPT_OVER),
        kind: "all_gather",
        elements: hidden.numel(),
        dtype: hidden.dtype(),
        ranks,
        peers: vec![],
    });
    let bytes = size(&flow.tensors) - all + all / u64::from(ranks);
    alike.then_some(KeptPart { bytes, gather })
}

/// The parameters of a unit in one flat buffer, as the engine lays them out: fused products need their parts end to end.
fn parameters(
    run: &Run<'_>,
    unit: &UnitDecl,
    compute: DType,
) -> std::result::Result<Vec<Tensor>, crossweave_tensor::Error> {
    let flat = run.empty_for([numel(unit).0], compute, Tag::Param)?;
    let mut from = 0;
    let mut one = |p: &ParamDecl| {
        let at = compute.bytes(from);
        from += p.held.part.numel();
        Tensor::dense(flat.buffer().clone(), at, p.local(), compute)
    };
    Ok(unit.params.iter().map(&mut one).collect())
}

/// The facts of a unit that no run is needed for.
fn facts_at_rest(unit: &UnitDecl, compute: DType) -> UnitFacts {
    let (n, base) = numel(unit);
    UnitFacts {
        name: unit.name.clone(),
        params: n,
        param_bytes: compute.bytes(n),
        base,
        grad_bytes: grad_bytes(unit),
        state_bytes: (8 + if compute == DType::F32 { 0 } else { 4 }) * (n - base),
        ties: lenders(unit),
        ..UnitFacts::default()
    }
}

/// The values that flow from one unit to the next, with their sharding types over the mesh.
#[derive(Default)]
struct Flowing {
    tensors: Vec<Tensor>,
    types: Vec<Spmd>,
}

impl Flowing {
    /// The values that a block returns; of the last block also the name of its result, and the type of that over axes that cut tokens.
    fn out_of(
        cx: &mut Cx<'_>,
        out: &Flow,
        result: Option<(&str, Ty)>,
    ) -> std::result::Result<Flowing, crossweave_tensor::Error> {
        if let Some((name, cut)) = result {
            // A loss has others beside it, and figures; logits have answers.
            let held = if cut == Ty::P { out.0.len() } else { 1 };
            for v in out.0.iter().take(held) {
                cx.hold_result(name, *v, cut);
            }
        }
        let faults = cx.notes().map_or(&[][..], Check::faults);
        if !faults.is_empty() {
            return Err(crossweave_tensor::Error::Spmd(faults.to_vec()));
        }
        let types = out.0.iter().map(|v| cx.type_of(*v)).collect();
        let tensors = out.0.iter().map(|v| cx.val(*v).cloned());
        Ok(Flowing {
            tensors: tensors.collect::<std::result::Result<_, _>>()?,
            types,
        })
    }
}

/// Holds the types of the last unit without targets, where it gives logits and not a loss.
fn logits(
    env: &Env<'_>,
    check: Check,
    unit: &UnitDecl,
    flow: &Flowing,
) -> std::result::Result<(), crossweave_tensor::Error> {
    let data = Batch {
        targets: None,
        ..env.batch.clone()
    };
    let env = Env {
        batch: &data,
        training: false,
        ..*env
    };
    let mut cx = Cx::checked(&env, check);
    let ins = flow.tensors.iter().map(|t| cx.input(t.clone())).collect();
    // A block that always wants targets is of no model that is drawn from.
    let Ok(out) = unit.block.forward(&mut cx, Flow(ins)) else {
        return Ok(());
    };
    Flowing::out_of(&mut cx, &out, Some(("the logits", Ty::V))).map(|_| ())
}

/// The parameters of a unit, its own and then those it borrows, with the axes over which the plan sums their gradients.
fn typed_params(units: &[UnitDecl], u: usize) -> Vec<TypedParam> {
    let own = units[u].params.iter().map(|p| (&units[u], p));
    let lent = |(u, p): &(usize, usize)| (&units[*u], &units[*u].params[*p]);
    let all = own.chain(units[u].borrowed.iter().map(lent));
    let owners = |owners: AxisSet| {
        units[u]
            .place
            .among(owners)
            .map_or(AxisSet::NONE, |g| g.axes)
    };
    let sums = |of: &UnitDecl, p: &ParamDecl| {
        // What meets parts of experts is typed as a sum over these, where one rank has all of them too.
        let all = owners(p.held.owners).union(of.summed_over(p));
        all.union(AxisSet::of(&[Axis::Etp][usize::from(!p.along_parts)..]))
    };
    all.map(|(of, p)| p.typed(sums(of, p))).collect()
}

/// The sums over ranks that have other tokens of the same rows, within the reduction of a unit's gradient.
fn sums_of_summands(unit: &UnitDecl) -> Vec<Said> {
    let summed = unit.params.iter().map(|p| (unit.summed_over(p), p));
    let summed: Vec<_> = summed.filter(|(axes, _)| !axes.is_empty()).collect();
    let elements: u64 = summed.iter().map(|(_, p)| p.held.part.numel()).sum();
    let said = summed.first().map(|(axes, _)| Said {
        axes: *axes,
        what: format!("sum of the gradients of {elements} elements"),
        moves: None,
    });
    said.into_iter().collect()
}

/// Elements of a unit that are trained on the rank that has the most of them: the first.
fn most_elements(unit: &UnitDecl) -> u64 {
    let most = |p: &ParamDecl| {
        p.split.iter().fold(p.shape.numel(), |all, s| {
            let ranks = unit.place.length(s.axis).into();
            let size = p.shape.dims().get(usize::from(s.dim)).copied();
            let size = size.unwrap_or(1).max(1);
            all / size * size.div_ceil(ranks)
        })
    };
    let trained = unit.params.iter().filter(|p| p.group != Group::Base);
    trained.map(most).sum()
}

/// The same with who shares the unit, and what can be kept of its input in parts.
fn shared(unit: &UnitDecl, flow: &Flowing, talk: UnitTalk) -> UnitTalk {
    UnitTalk {
        kept: kept_part(unit, flow),
        owners: owners(unit),
        parts: unit.params.iter().any(|p| !p.held.part.is_whole()),
        reduction: sums_of_summands(unit),
        each_reduction: unit.has_uneven_parts(),
        most: unit.has_uneven_parts().then(|| most_elements(unit)),
        ..talk
    }
}

/// The units from which one borrows parameters, each once.
fn lenders(unit: &UnitDecl) -> Vec<u32> {
    let mut all = vec![];
    for (u, _) in &unit.borrowed {
        if !all.contains(&(*u as u32)) {
            all.push(*u as u32);
        }
    }
    all
}

/// The exchanges of a block in the form in which plans hold them.
fn as_planned(said: crossweave_tensor::Said) -> Said {
    let peer = |p: &crossweave_tensor::Peer| Peer {
        ahead: p.ahead,
        elements: p.elements,
        sends: p.sends,
    };
    Said {
        axes: said.on.axis.into(),
        what: match said.on.most {
            0 => format!("{} of {} elements", said.on.op, said.elements),
            most => format!(
                "{} of {} elements, {most} at most",
                said.on.op, said.elements
            ),
        },
        moves: Some(Moves {
            kind: said.kind,
            dtype: said.dtype.name(),
            elements: said.elements,
            beside: said.on.lane == Lane::Beside,
            again: said.on.again,
            within: said.on.within,
            ranks: said.ranks,
            most: said.on.most,
            once: said.on.once,
            peers: said.peers.iter().map(peer).collect(),
        }),
    }
}

/// Bytes of dense tensors.
fn size(t: &[Tensor]) -> u64 {
    t.iter().map(|t| t.dtype().bytes(t.numel())).sum()
}

/// A unit's backward as it was recorded: the gradients that it writes, what it leaves for later, and what it says to other ranks.
struct Written {
    /// For each parameter, whether the first part of the backward writes its gradient, and whether the second does.
    parts: [Vec<bool>; 2],
    /// Bytes that the first leaves for the second.
    owed: u64,
    /// What it says to other ranks, and the forward before it.
    talk: UnitTalk,
}

impl Written {
    /// For each parameter, whether either part writes its gradient.
    fn either(&self) -> Vec<bool> {
        let [a, b] = &self.parts;
        a.iter().zip(b).map(|(a, b)| a | b).collect()
    }
}

/// Runs a unit forward and backward.
fn written(
    env: &Env<'_>,
    groups: &Rehearsed,
    unit: &UnitDecl,
    flow: &[Tensor],
) -> std::result::Result<Written, crossweave_tensor::Error> {
    let grad = |p: &Tensor| env.run.empty_for(*p.shape(), DType::F32, Tag::Grad);
    let grads = env.params.iter().map(grad);
    let grads = grads.collect::<std::result::Result<Vec<_>, _>>()?;
    let flags: Vec<Rc<Cell<bool>>> = grads.iter().map(|_| Rc::default()).collect();
    let sink = GradSink::new(&grads, &flags);
    let env = Env {
        grads: &sink,
        ..*env
    };
    let said = || -> Vec<Said> {
        let all = groups.take_said().into_iter();
        all.map(as_planned).collect()
    };
    let mut cx = Cx::new(&env);
    let ins: Vec<_> = flow.iter().map(|t| cx.input(t.clone())).collect();
    let out = unit.block.forward(&mut cx, Flow(ins.clone()))?;
    let forward = said();
    let mut douts = vec![];
    for v in &out.0 {
        let t = cx.val(*v)?;
        douts.push(Some(env.run.empty(*t.shape(), t.dtype())?));
    }
    let (_, owed) = cx
        .finish(Keep::All)
        .input_grads(&env, &out.0, douts, &ins)?;
    let talk = UnitTalk {
        forward,
        backward: said(),
        ..UnitTalk::default()
    };
    let take = || flags.iter().map(|f| f.take()).collect();
    let first = take();
    let bytes = owed.held_bytes();
    owed.run(&env)?;
    Ok(Written {
        parts: [first, take()],
        owed: bytes,
        talk,
    })
}

/// Bytes of a device that a rank may take, where the device says how many it has. Ranks that share a host's memory (threads of one process)
/// get an equal part each.
fn memory(device: &Device, spec: &RankSpec) -> Result<Option<u64>> {
    let info = device.info().map_err(|e| Error::Run {
        rank: spec.place.job_rank(),
        step: 0,
        at: "asking the device for its memory".into(),
        source: e.into(),
    })?;
    let shared = info.caps & crossweave_hal::abi::CAP_HOST_PROGRESS != 0;
    let ranks = u64::from(spec.place.size(AxisSet::WORLD));
    let part = info.mem_total / if shared { ranks } else { 1 };
    Ok((part > 0).then_some(part))
}

/// Plans a rank's step and holds it against every law, the device's memory included: what does not fit is refused before anything is
/// allocated, with the step of the plan it falls on.
///
/// # Errors
/// A broken law, or more bytes than the device has.
pub fn plan_for(device: &Device, spec: &RankSpec, dry: &Dry) -> Result<(Plan, Facts)> {
    let memory = memory(device, spec)?;
    Ok(crossweave_planner::plan_for(memory, spec, &dry.units)?)
}

/// Prepares a rank for the memory of a device ([`crossweave_planner::prepare`]).
///
/// # Errors
/// What the planner refuses.
pub fn prepare(device: &Device, spec: &RankSpec, units: &Units, dry: &Dry) -> Result<Lowered> {
    let memory = memory(device, spec)?;
    Ok(crossweave_planner::prepare(spec, units, dry, memory)?)
}
