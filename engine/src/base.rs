//! What adapters sit on ([`Group::Base`]): a unit's second flat, beside that of its trained parameters. It has no gradient, no master, no
//! optimizer state and no part in checkpoints; it is held in the type blocks compute in, and sharded only where whole parameters come and
//! go (stage 3).
//!
//! In the unit's whole buffer it lies behind the trained parameters. A rank's slice of it rests beside the slots, or with the other
//! parameters off the device (`offload_param`), from where it comes for each gather.

use crate::error::{Error, Result};
use crate::offload::Offload;
use crate::state::UnitState;
use crate::trainer::Trainer;
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Decompositions, KernelCache, Run, Tensor};
use crossweave_zero::clip;
use std::cell::RefCell;
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Elements `r` of what a rank holds of the base, in compute type; `None` while they rest on the host.
fn view(s: &UnitState, r: &Range<u64>) -> Option<Tensor> {
    let dtype = s.place.compute;
    let (buffer, at) = s.base.clone()?;
    let first = at + dtype.bytes(r.start);
    Some(Tensor::dense(buffer, first, [r.end - r.start], dtype))
}

/// Starting values of the base parameters of unit `u`, one at a time, so that sharding is not undone by starting.
pub(crate) fn fill(t: &Trainer, u: usize) -> Tensors<()> {
    for i in 0..t.state[u].decls.len() {
        if !t.state[u].flat.params[i].base {
            continue;
        }
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&t.lanes.compute, &Decompositions, &cache);
        let decl = &t.state[u].decls[i];
        let values = run.empty([decl.shape.numel()], DType::F32)?;
        crate::init::draw(&run, decl, t.spec.seed, &values)?;
        keep(t, u, i, 0, &values)?;
    }
    Ok(())
}

/// Sets elements `from..` of a base parameter, as far as they live here; how many did.
pub(crate) fn put(t: &Trainer, (u, i): (usize, usize), from: u64, bytes: &[u8]) -> Result<u64> {
    let cache = RefCell::new(KernelCache::default());
    let go = || -> Tensors<u64> {
        let run = Run::new(&t.lanes.compute, &Decompositions, &cache);
        let values = run.empty([bytes.len() as u64 / 4], DType::F32)?;
        t.lanes.compute.write(values.region(), bytes)?;
        keep(t, u, i, from, &values)
    };
    go().map_err(|e| t.error("loading a parameter", e))
}

/// Brings f32 values of elements `first..` of a base parameter to where this rank keeps it.
fn keep(t: &Trainer, u: usize, i: usize, first: u64, values: &Tensor) -> Tensors<u64> {
    let s = &t.state[u];
    let Some((part, local)) = s.base_pieces(i) else {
        return Ok(0);
    };
    let given = first..first.saturating_add(values.numel());
    let Some(here) = clip(&part, &given) else {
        return Ok(0);
    };
    let n = here.end - here.start;
    let at = local.start + here.start - part.start;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&t.lanes.compute, &Decompositions, &cache);
    let source = values.narrow(0, here.start - first, n);
    let to = match view(s, &(at..at + n)) {
        Some(t) => t,
        None => run.empty([n], s.place.compute)?,
    };
    if s.place.compute == DType::F32 {
        t.lanes.compute.copy(to.region(), source.region())?;
    } else {
        let none = op::NoParams::default();
        let operands = [Some(&to), Some(&source)];
        run.launch(op::CAST, &operands, none.as_bytes(), &[])?;
    }
    if view(s, &(at..at + n)).is_none() {
        let mut bytes = vec![0u8; to.extent() as usize];
        t.lanes.compute.read(to.region(), &mut bytes)?;
        away(t)?.put_base(u, s.place.compute.bytes(at), &bytes)?;
    }
    Ok(n)
}

/// All this rank holds of a unit's base, in f32.
pub(crate) fn local(t: &Trainer, u: usize) -> Tensors<Tensor> {
    let s = &t.state[u];
    let owned = s.base_owned();
    let n = owned.end - owned.start;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&t.lanes.compute, &Decompositions, &cache);
    let held = match view(s, &(0..n)) {
        Some(held) => held,
        None => {
            let bytes = away(t)?.get_base(u, 0..s.place.compute.bytes(n))?;
            let held = run.empty([n], s.place.compute)?;
            t.lanes.compute.write(held.region(), &bytes)?;
            held
        }
    };
    let wide = run.empty([n], DType::F32)?;
    match s.place.compute {
        DType::F32 => t.lanes.compute.copy(wide.region(), held.region())?,
        _ => {
            let none = op::NoParams::default();
            let operands = [Some(&wide), Some(&held)];
            run.launch(op::CAST, &operands, none.as_bytes(), &[])?;
        }
    }
    Ok(wide)
}

/// A base parameter that lies here whole, on the host.
pub(crate) fn host(t: &Trainer, u: usize, i: usize) -> Result<Vec<f32>> {
    let at = |e| t.error("reading a parameter", e);
    let s = &t.state[u];
    let Some((part, here)) = s.base_pieces(i) else {
        return Ok(vec![]);
    };
    if part.end - part.start < s.decls[i].shape.numel() {
        return Err(Error::Invalid(format!(
            "{}: rank {} holds a part of it only",
            s.decls[i].name,
            t.spec.job_rank()
        )));
    }
    let all = local(t, u).map_err(at)?;
    let n = here.end - here.start;
    t.host_f32(&all.narrow(0, here.start, n)).map_err(at)
}

fn away(t: &Trainer) -> Tensors<&Offload> {
    match &t.offload {
        Some(o) => Ok(o),
        None => crossweave_tensor::shape_error("a base on the host, and nothing is offloaded"),
    }
}
