//! Starting values: philox keyed by seed and parameter name, so that they are the same on any mesh, and moments at zero.

use crate::state::UnitState;
use crate::trainer::Trainer;
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Decompositions, Init, KernelCache, ParamDecl, Result, Run, Tensor};
use std::cell::RefCell;

/// FNV-1a, 64 bit: a parameter's philox stream.
fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Starting values of all but the base that adapters sit on; moments at zero.
///
/// # Errors
/// The device.
pub fn init_trained(trainer: &mut Trainer) -> crate::Result<()> {
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&trainer.lanes.compute, &Decompositions, &cache);
    trainer
        .state
        .iter()
        .filter(|u| u.host == 0)
        .try_for_each(|u| fill(&run, u, trainer.spec.seed))
        .map_err(|e| trainer.error("starting values", e))?;
    (0..trainer.state.len())
        .filter(|u| trainer.state[*u].host > 0)
        .collect::<Vec<_>>()
        .into_iter()
        .try_for_each(|u| trainer.fill_hosted(u))
        .map_err(|e| trainer.error("starting values", e))?;
    trainer.publish()
}

/// Fills what this rank owns of a unit's values and clears its moments. A parameter that is cut is made whole first, so that every
/// element has the value it has on one rank; one parameter at a time, so that sharding is not undone by starting.
pub(crate) fn fill(run: &Run<'_>, unit: &UnitState, seed: u64) -> Result<()> {
    for i in 0..unit.decls.len() {
        let Some((_, local)) = unit.pieces(i) else {
            continue;
        };
        let here = unit.value(&local);
        fill_one(run, unit, i, seed, &here)?;
    }
    publish(run, unit)?;
    unit.clear_moments(run.stream())
}

/// Fills `here` with what this rank owns of parameter `i`.
pub(crate) fn fill_one(
    run: &Run<'_>,
    unit: &UnitState,
    i: usize,
    seed: u64,
    here: &Tensor,
) -> Result<()> {
    let (Some((part, _)), p) = (unit.pieces(i), &unit.decls[i]) else {
        return Ok(());
    };
    let drawn = matches!(p.init, Init::Normal(_) | Init::Uniform(_));
    if part.end - part.start == p.shape.numel() || !drawn {
        return draw(run, p, seed, here);
    }
    let all = run.empty([p.shape.numel()], DType::F32)?;
    draw(run, p, seed, &all)?;
    let from = all.buffer().region(4 * part.start, here.extent());
    Ok(run.stream().copy(here.region(), from)?)
}

/// Fills `all`, flat f32, with the starting values of a parameter: of the whole one where they are drawn.
pub(crate) fn draw(run: &Run<'_>, p: &ParamDecl, seed: u64, all: &Tensor) -> Result<()> {
    let (kind, lo, hi) = match p.init {
        Init::Zeros => return Ok(run.stream().fill(all.region(), 0, 1)?),
        Init::Ones => {
            let one = 1.0f32.to_bits() as u64;
            return Ok(run.stream().fill(all.region(), one, 4)?);
        }
        Init::Normal(std) => (op::philox::NORMAL, 0.0, std as f64),
        Init::Uniform(bound) => (op::philox::UNIFORM, -(bound as f64), bound as f64),
    };
    let params = op::PhiloxParams {
        kind,
        lo,
        hi,
        ..Default::default()
    };
    let key = op::PhiloxDyn {
        seed,
        offset: 0,
        stream: stream_of(&p.name),
        ..Default::default()
    };
    run.launch(op::PHILOX, &[Some(all)], params.as_bytes(), key.as_bytes())
}

/// Casts the values into the resident 16-bit copy, where there is one.
pub(crate) fn publish(run: &Run<'_>, unit: &UnitState) -> Result<()> {
    let rest = unit.rest();
    let Some(copy) = unit.copy(&rest).filter(|_| rest.end > rest.start) else {
        return Ok(());
    };
    let value = unit.value(&rest);
    let p = op::NoParams::default();
    run.launch(op::CAST, &[Some(&copy), Some(&value)], p.as_bytes(), &[])
}
