//! Numbered lessons: each a short program under `src/bin/`, run by this package's tests. Here is what they share: a training loop.
#![forbid(unsafe_code)]

use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_null::Null;
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{Devices, Engine, Links, MicroBatch, Units, dry_run, prepare};
use crossweave_hal::{Bootstrap, DType, HostServices, Plugin, RawPlugin, Result};
use crossweave_job::spec::alone;
use crossweave_tensor::Builder;
use std::error::Error;
use std::time::Duration;

/// A job of one rank meets nobody.
struct Alone;

impl Bootstrap for Alone {
    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        Ok(vec![])
    }
}

/// Trains a model on one batch of 4 sequences of 32 `tokens` (their successors are `targets`) on the CPU back end that is linked in,
/// with AdamW at learning rate `lr`, and prints the loss every tenth step.
pub fn train(
    model: Builder,
    tokens: &[i32],
    targets: &[i32],
    steps: u64,
    lr: f64,
) -> std::result::Result<(), Box<dyn Error>> {
    let (batch, seq_len) = (4, 32);
    let units = model.finish();
    let host = HostServices::default();
    let cpu = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host)?);
    let null = Plugin::new(RawPlugin::from_static::<Null>(&host)?);

    // Every block once on the null device: shapes, sizes and sharding types are known, or wrong, before memory is taken.
    let dry = dry_run(&null.open(0)?, &units, DType::F32, batch, seq_len)?;
    let mut spec = alone(DType::F32, (batch, seq_len), false);
    (spec.seed, spec.clip) = (1, 1.0);
    let adam = Adam {
        betas: [0.9, 0.99],
        eps: 1e-8,
        ..Default::default()
    };
    spec.optim = ParamGroups::all(Optimizer::Adam(adam), 0.0);
    // What the rank is to do, planned and lowered to a program before anything is allocated; then the devices, and who meets whom.
    let device = cpu.open(0)?;
    let units = Units::new(units, &spec.place, &spec.optim)?;
    let lowered = prepare(&device, &spec, &units, &dry)?;
    let mut engine = Engine::new(Devices::one(&device), lowered, units, Links::new(&Alone))?;
    engine.init()?;
    let micro = MicroBatch {
        tokens,
        targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    for _ in 0..steps {
        engine.step(&[micro], lr)?;
        if let Some(m) = engine.metrics()?
            && m.step.is_multiple_of(10)
        {
            println!("step {:3}  loss {:.4}", m.step, m.loss);
        }
    }
    Ok(())
}
