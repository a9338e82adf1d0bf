//! Starting values: philox keyed by seed and parameter name, so that they are the same on any mesh, and moments at zero.

use crate::state::{StateKind, UnitState};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_tensor::{Init, Result, Run};

/// FNV-1a, 64 bit: a parameter's philox stream.
fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Fills a unit's values and clears its moments.
pub(crate) fn fill(run: &Run<'_>, unit: &UnitState, seed: u64) -> Result<()> {
    for (p, r) in unit.decls.iter().zip(&unit.ranges) {
        let t = unit.state(StateKind::Value, r);
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
                run.launch(op::PHILOX, &[Some(&t)], params.as_bytes(), key.as_bytes())?;
            }
            Init::Zeros => run.stream().fill(t.region(), 0, 1)?,
            Init::Ones => run.stream().fill(t.region(), 1.0f32.to_bits() as u64, 4)?,
        }
    }
    publish(run, unit)?;
    for m in unit.moments() {
        run.stream().fill(m.all(), 0, 1)?;
    }
    Ok(())
}

/// Casts the master copy into the compute dtype.
pub(crate) fn publish(run: &Run<'_>, unit: &UnitState) -> Result<()> {
    let all = 0..unit.numel;
    match unit.values(&all) {
        Some(v) if unit.has_master && v.dtype() != DType::F32 => {
            let m = unit.state(StateKind::Value, &all);
            run.launch(
                op::CAST,
                &[Some(&v), Some(&m)],
                op::NoParams::default().as_bytes(),
                &[],
            )
        }
        _ => Ok(()),
    }
}
