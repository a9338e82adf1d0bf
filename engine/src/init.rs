//! Starting values: philox keyed by seed and parameter name, so that they are the same on any mesh, and moments at zero.

use crate::state::UnitState;
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Init, Result, Run, Tensor};

/// FNV-1a, 64 bit: a parameter's philox stream.
fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
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
    unit.optim.clear(run.stream())
}

/// Fills `here` with what this rank owns of parameter `i`.
pub(crate) fn fill_one(
    run: &Run<'_>,
    unit: &UnitState,
    i: usize,
    seed: u64,
    here: &Tensor,
) -> Result<()> {
    if let (Some((part, _)), p) = (unit.pieces(i), &unit.decls[i]) {
        match p.init {
            Init::Normal(std) => {
                let params = op::PhiloxParams {
                    kind: op::philox::NORMAL,
                    lo: 0.0,
                    hi: std as f64,
                    ..Default::default()
                };
                let key = op::PhiloxDyn {
                    seed,
                    offset: 0,
                    stream: stream_of(&p.name),
                    ..Default::default()
                };
                let cut = part.end - part.start < p.shape.numel();
                let all = match cut {
                    true => run.empty([p.shape.numel()], DType::F32)?,
                    false => here.clone(),
                };
                run.launch(op::PHILOX, &[Some(&all)], params.as_bytes(), key.as_bytes())?;
                if cut {
                    let from = all.buffer().region(4 * part.start, here.extent());
                    run.stream().copy(here.region(), from)?;
                }
            }
            Init::Zeros => run.stream().fill(here.region(), 0, 1)?,
            Init::Ones => run
                .stream()
                .fill(here.region(), 1.0f32.to_bits() as u64, 4)?,
        }
    }
    Ok(())
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
