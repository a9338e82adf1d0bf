//! The dry run: every block once on the null device. It gives sizes to the planner, and checks sharding types and shapes before any
//! memory is taken; and what is planned from it.

use crate::error::{Error, Result};
use crossweave_hal::{DType, Device, NoDecompose, Tag};
use crossweave_mesh::AxisSet;
use crossweave_plan::{Facts, Plan, Said, UnitFacts, UnitTalk};
use crossweave_planner::{Dry, Lowered, RankSpec, Units, numel};
use crossweave_tensor::{
    Batch, Cx, Env, Flow, GradSink, Keep, KernelCache, NoGroups, RngKey, Run, Split, Tensor, Ty,
    UnitDecl, spmd,
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

/// Runs every unit's forward on `null` (a device that computes nothing) with `batch` sequences of `seq` tokens.
pub fn dry_run(
    null: &Device,
    units: &[UnitDecl],
    compute: DType,
    batch: u64,
    seq: u64,
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
    let ids = run
        .empty([batch, seq], DType::I32)
        .map_err(|e| fail("set-up", e))?;
    let mut data = Batch {
        tokens: Some(ids.clone()),
        targets: Some(ids),
        ..Batch::default()
    };
    with_images(&run, units, &mut data).map_err(|e| fail("set-up", e))?;
    let mut params: Vec<Vec<Tensor>> = vec![];
    let mut facts = vec![];
    let mut flow: Vec<Tensor> = vec![];
    let mut flows = vec![];
    let mut writes = vec![];
    for (u, unit) in units.iter().enumerate() {
        let at = |e| fail(&unit.name, e);
        let (n, base) = numel(unit);
        // One flat buffer, as the engine lays it out: fused products need their parts end to end.
        let flat = run.empty_for([n], compute, Tag::Param).map_err(at)?;
        let mut from = 0;
        let mut mine = vec![];
        for p in &unit.params {
            mine.push(Tensor::dense(
                flat.buffer().clone(),
                compute.bytes(from),
                p.local(),
                compute,
            ));
            from += p.held.part.numel();
        }
        params.push(mine);
        let mut views = params[u].clone();
        views.extend(unit.borrowed.iter().map(|(u, p)| params[*u][*p].clone()));
        let consts: Vec<Tensor> = unit
            .consts
            .iter()
            .map(|(s, _)| run.empty_for(*s, DType::F32, Tag::Staging))
            .collect::<std::result::Result<_, _>>()
            .map_err(at)?;
        let decls = unit
            .params
            .iter()
            .chain(unit.borrowed.iter().map(|(u, p)| &units[*u].params[*p]));
        let types = decls.map(|p| param_types(&p.split)).collect();
        let sink = GradSink::none();
        let env = Env {
            run: &run,
            groups: &NoGroups,
            params: &views,
            consts: &consts,
            grads: &sink,
            batch: &data,
            key: RngKey::default(),
            training: true,
        };
        let mut saved = [0u64; 2];
        let mut talk = UnitTalk::default();
        let mut outs = vec![];
        for (i, keep) in [Keep::All, Keep::Cheap].into_iter().enumerate() {
            let mut cx = Cx::checked(&env, spmd::Check::new(Vec::clone(&types)));
            let ins = flow.iter().map(|t| cx.input(t.clone())).collect();
            let out = unit.block.forward(&mut cx, Flow(ins)).map_err(at)?;
            talk = noted(&cx).map_err(at)?;
            outs = out
                .0
                .iter()
                .map(|v| cx.val(*v).cloned())
                .collect::<std::result::Result<Vec<_>, _>>()
                .map_err(at)?;
            saved[i] = cx.finish(keep).held_bytes();
        }
        writes.push(written(&env, unit, &flow).map_err(at)?);
        facts.push(UnitFacts {
            name: unit.name.clone(),
            params: n,
            param_bytes: compute.bytes(n),
            base,
            grad_bytes: grad_bytes(unit),
            state_bytes: (8 + if compute == DType::F32 { 0 } else { 4 }) * (n - base),
            saved_all: saved[0].max(size(&flow)),
            saved_selective: saved[1].max(size(&flow)),
            saved_input: size(&flow),
            flow_bytes: size(&outs),
            ties: lenders(unit),
            talk: shared(unit, talk),
            ..UnitFacts::default()
        });
        flows.push(outs.iter().map(|t| (*t.shape(), t.dtype())).collect());
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
    })
}

/// The same with who shares the unit.
fn shared(unit: &UnitDecl, talk: UnitTalk) -> UnitTalk {
    UnitTalk {
        owners: owners(unit),
        parts: unit.params.iter().any(|p| !p.held.part.is_whole()),
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

/// What a block says, by the steps in which it does.
fn noted(cx: &Cx<'_>) -> std::result::Result<UnitTalk, crossweave_tensor::Error> {
    let Some(notes) = cx.notes() else {
        return Ok(UnitTalk::default());
    };
    if !notes.faults().is_empty() {
        return Err(crossweave_tensor::Error::Spmd(notes.faults().to_vec()));
    }
    let of = |backward: bool| {
        let all = notes.said().iter();
        let own = all.filter(move |s| s.backward == backward);
        own.map(|s| Said {
            axes: s.axis.into(),
            what: format!("{} of {} elements", s.op, s.elements),
        })
    };
    Ok(UnitTalk {
        forward: of(false).collect(),
        backward: of(true).rev().collect(),
        ..UnitTalk::default()
    })
}

/// Bytes of dense tensors.
fn size(t: &[Tensor]) -> u64 {
    t.iter().map(|t| t.dtype().bytes(t.numel())).sum()
}

/// Runs a unit forward and backward, and answers for each parameter whether the backward has written its gradient.
fn written(
    env: &Env<'_>,
    unit: &UnitDecl,
    flow: &[Tensor],
) -> std::result::Result<Vec<bool>, crossweave_tensor::Error> {
    let grad = |p: &Tensor| env.run.empty_for(*p.shape(), DType::F32, Tag::Grad);
    let grads = env.params.iter().map(grad);
    let grads = grads.collect::<std::result::Result<Vec<_>, _>>()?;
    let flags: Vec<Rc<Cell<bool>>> = grads.iter().map(|_| Rc::default()).collect();
    let sink = GradSink::new(&grads, &flags);
    let env = Env {
        grads: &sink,
        ..*env
    };
    let mut cx = Cx::new(&env);
    let ins: Vec<_> = flow.iter().map(|t| cx.input(t.clone())).collect();
    let out = unit.block.forward(&mut cx, Flow(ins.clone()))?;
    let mut douts = vec![];
    for v in &out.0 {
        let t = cx.val(*v)?;
        douts.push(Some(env.run.empty(*t.shape(), t.dtype())?));
    }
    cx.finish(Keep::All).backward(&env, &out.0, douts, &ins)?;
    Ok(flags.iter().map(|f| f.get()).collect())
}

fn param_types(split: &Split) -> [(Ty, u8); 3] {
    let mut t: [(Ty, u8); 3] = Default::default();
    if let Split::Along { axis, dim, .. } = split
        && let Some(i) = spmd::AXES.iter().position(|a| a == axis)
    {
        t[i] = (Ty::V, *dim);
    }
    t
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
