//! Small models train on this back end to the CPU's loss curve, and after the first step nothing is compiled.

#[path = "../../../engine/tests/common/mod.rs"]
mod job;

use crate::common::adapter;

use crossweave_engine::{Devices, Documents, Links, MicroBatch, dry_run};
use crossweave_hal::{Bootstrap, Code, Device, Error, HostServices, Plugin, Result};
use crossweave_nn::ModelSpec;
use std::time::Duration;

/// One rank meets nobody.
struct Nobody;
impl Bootstrap for Nobody {
    fn set(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>> {
        Err(Error::new(Code::Invalid, "get", key))
    }
}

fn counter(d: &Device, key: &str) -> u64 {
    let text = d.attr(key).expect("a counter");
    String::from_utf8(text).unwrap().parse().expect("a number")
}

const STEPS: u64 = 50;
const BATCH: u64 = 3;

/// Losses of every step; `first` is called behind the first one, when its work has ended.
fn losses(
    null: &Plugin,
    device: &Device,
    model: &ModelSpec,
    documents: Option<Documents>,
    mut first: impl FnMut(),
) -> Vec<f64> {
    let mut spec = job::spec(1, 1);
    (spec.rows.batch, spec.rows.documents) = (BATCH, documents);
    let units = job::units(model);
    let null = null.open(0).unwrap();
    let dry = dry_run(
        &null,
        &units,
        spec.compute,
        spec.rows.batch,
        spec.rows.seq_len,
    )
    .unwrap();
    let mut t = job::set_up(
        Devices::one(device),
        units,
        &spec,
        &dry,
        Links::new(&Nobody),
    )
    .unwrap();
    t.init().unwrap();
    let mut all = vec![];
    for step in 0..STEPS {
        // A few batches over and over, so that there is something to learn.
        let at = |i: u64| (((step % 4 * 7919 + i * i * 31 + i * 17) >> 2) % 37) as i32;
        let tokens: Vec<i32> = (0..BATCH * job::SEQ).map(at).collect();
        let targets: Vec<i32> = (1..=BATCH * job::SEQ).map(at).collect();
        let batch = MicroBatch {
            tokens: &tokens,
            targets: &targets,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        };
        t.step(&[batch], 3e-3).unwrap();
        all.extend(t.metrics().unwrap().iter().map(|m| m.loss));
        if step == 0 {
            first();
        }
    }
    all
}

#[test]
fn gpt2_and_llama_follow_the_cpu_and_compile_nothing_after_the_first_step() {
    crossweave_tests::in_own_process!();
    let host = HostServices::builder().config("wgpu.devices", "2").build();
    let Some(wgpu) = adapter::plugin(&host) else {
        return;
    };
    let job::World { cpu, null, .. } = job::world();
    // Attention within documents is not this back end's: it comes by the decomposition.
    let documents = Documents {
        end: 9,
        attention: true,
        positions: true,
    };
    for (name, model, documents) in [
        ("gpt2", job::gpt2(2, 0.1), None),
        ("llama", job::llama(2), None),
        ("llama of documents", job::llama(1), Some(documents)),
    ] {
        let device = wgpu.open(0).expect("the adapter opens");
        let want = losses(&null, &cpu.open(0).unwrap(), &model, documents, || {});
        let mut made = 0;
        let got = losses(&null, &device, &model, documents, || {
            made = counter(&device, "wgpu.pipelines");
        });
        assert_eq!(got.len() as u64, STEPS, "{name}");
        for (step, (a, b)) in want.iter().zip(&got).enumerate() {
            let off = (a - b).abs() / a.abs();
            assert!(off <= 1e-4, "{name} step {step}: {b}, on the CPU {a}");
        }
        let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
        let ends = (mean(&got[..4]), mean(&got[got.len() - 4..]));
        assert!(ends.1 < ends.0, "{name}: the loss does not fall: {ends:?}");
        assert!(made > 0, "{name}: the first step compiles");
        let all = counter(&device, "wgpu.pipelines");
        assert_eq!(all, made, "{name}: pipelines compiled after the first step");
    }
}
