//! Adapters against PyTorch and PEFT in float64, on adapters that PEFT wrote: logits, gradients, and twenty AdamW steps on one rank and
//! several.

use crate::common::{Boot, World, world};
use crate::oracles::{Values, case, max_rel, read, shift};
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{
    Axis, Engine, MicroBatch, Place, RankSpec, Recompute, Rows, StateKind, ZeroSpec, ZeroStage,
    dry_run,
};
use crossweave_hal::{DType, KvStore, LocalKv};
use crossweave_nn::{Lora, ModelSpec, Targets};
use serde_json::Value;
use std::sync::Arc;

const CASES: [&str; 3] = ["gpt2", "llama", "llama-pattern"];
const PREFIX: &str = "base_model.model.";

struct Case {
    model: ModelSpec,
    lora: Lora,
    /// Norms of the model and of the adapter, by the engine's names.
    weights: Values,
    folder: std::path::PathBuf,
    batches: Values,
    inputs: Values,
}

fn json(path: std::path::PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn open(name: &str) -> Case {
    let folder = case("adapters").join(name);
    let config = json(folder.join("adapter/adapter_config.json"));
    let base = case(json(folder.join("meta.json"))["model"].as_str().unwrap());
    let targets = &config["target_modules"];
    let lora = Lora {
        r: config["r"].as_u64().unwrap(),
        alpha: config["lora_alpha"].as_f64().unwrap(),
        dropout: 0.0,
        rslora: config["use_rslora"].as_bool().unwrap(),
        targets: match targets.as_str() {
            Some(pattern) => Targets::Pattern(pattern.into()),
            None => Targets::Names(serde_json::from_value(targets.clone()).unwrap()),
        },
        parameters: vec![],
    };
    let mut weights = Values::new();
    for file in std::fs::read_dir(base.join("model")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            weights.extend(read(path));
        }
    }
    for (name, v) in read(folder.join("adapter/adapter_model.safetensors")) {
        weights.insert(name.strip_prefix(PREFIX).unwrap().to_string(), v);
    }
    Case {
        model: ModelSpec::from_hf(&json(base.join("model/config.json"))).unwrap(),
        lora,
        weights,
        batches: read(base.join("train.safetensors")),
        inputs: read(base.join("inputs.safetensors")),
        folder,
    }
}

fn engine(w: &World, c: &Case, spec: RankSpec, kv: &Arc<dyn KvStore>) -> Engine {
    let units = c.lora.units(&c.model, &Place::alone()).unwrap();
    let null = w.null.open(0).unwrap();
    let dry = dry_run(
        &null,
        &units,
        spec.compute,
        spec.rows.batch,
        spec.rows.seq_len,
    )
    .unwrap();
    let device = w.cpu.open(spec.place.job_rank()).unwrap();
    let mut t = w
        .rank(&device, units, &spec, &dry, &Boot(kv.clone()))
        .unwrap();
    for p in t.params() {
        let (_, v) = &c.weights[&p.name];
        let v: Vec<f32> = v.iter().map(|x| *x as f32).collect();
        t.load(&p.name, StateKind::Value, 0, &v).unwrap();
    }
    t.publish().unwrap();
    t
}

fn spec(rank: u32, world: u32, batch: usize, seq: usize) -> RankSpec {
    let adam = Optimizer::Adam(Adam {
        betas: [0.9, 0.95],
        ..Default::default()
    });
    RankSpec {
        seed: 1,
        rows: Rows::new(batch as u64, seq as u64),
        optim: ParamGroups::all(adam, 0.1),
        ..RankSpec::new(Place::on(&[(Axis::Dp, world)], rank).unwrap())
    }
}

#[test]
fn logits_and_gradients_of_adapters_equal_peft_in_f64() {
    let w = world();
    for name in CASES {
        let c = open(name);
        let (shape, ids) = &c.inputs["input_ids"];
        let (b, t) = (shape[0], shape[1]);
        let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
        let mut tr = engine(&w, &c, spec(0, 1, b, t - 1), &kv);
        let expected = read(c.folder.join("expected.safetensors"));
        let all: Vec<i32> = ids.iter().map(|x| *x as i32).collect();
        let logits = tr.logits(&all, b as u64, t as u64).unwrap();
        let far = max_rel(&logits, &expected["logits"].1);
        assert!(far < 1e-5, "{name}: logits {far:e}");
        let (x, y) = shift(ids, b, t);
        let batch = MicroBatch {
            tokens: &x,
            targets: &y,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        };
        let (loss, grads) = tr.loss_and_grads(&batch).unwrap();
        let wanted = expected["loss"].1[0];
        assert!((loss - wanted).abs() / wanted < 1e-6, "{name}: loss {loss}");
        assert_eq!(grads.len(), expected.len() - 2, "{name}");
        for (p, g) in grads {
            let far = max_rel(&g, &expected[&format!("grad.{PREFIX}{p}")].1);
            assert!(far < 2e-5, "{name}: gradient of {p} {far:e}");
        }
    }
}

/// Losses of the steps, and the largest error of a norm behind them.
fn curve(name: &str, ranks: usize, stage: u32, recompute: Recompute) -> (Vec<f64>, f64) {
    let (w, c) = (world(), open(name));
    let (shape, ids) = &c.batches["input_ids"];
    let (steps, b, t) = (shape[0], shape[1], shape[2]);
    let per = b / ranks;
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let norms = read(c.folder.join("train.safetensors"));
    let run = |rank: usize| {
        let zero = ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..Default::default()
        };
        let spec = RankSpec {
            zero,
            recompute,
            compute: DType::F32,
            ..spec(rank as u32, ranks as u32, per, t - 1)
        };
        let mut tr = engine(&w, &c, spec, &kv);
        let mut losses = vec![];
        for s in 0..steps {
            let rows = &ids[(s * b + rank * per) * t..(s * b + (rank + 1) * per) * t];
            let (x, y) = shift(rows, per, t);
            let batch = MicroBatch {
                tokens: &x,
                targets: &y,
                lengths: &[],
                images: &[],
                first_sequence: (rank * per) as u64,
            };
            tr.step(&[batch], 1e-3).unwrap();
            losses.push(tr.metrics().unwrap().unwrap().loss);
        }
        let late = tr.ledger().device_allocs_after_step_2;
        assert_eq!(late, 0, "the steady state allocates nothing");
        let mut worst = 0f64;
        if rank == 0 {
            for p in tr.params() {
                let key = format!("norm.{PREFIX}{}", p.name);
                if let Some((_, wanted)) = norms.get(&key) {
                    let v = tr.read(&p.name, StateKind::Value).unwrap();
                    let norm = v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                    worst = worst.max((norm - wanted[0]).abs() / wanted[0]);
                }
            }
            tr.done_reading().unwrap();
        } else {
            tr.serve_reads().unwrap();
        }
        (losses, worst)
    };
    std::thread::scope(|s| {
        let run = &run;
        let all: Vec<_> = (0..ranks).map(|r| s.spawn(move || run(r))).collect();
        let mut all: Vec<_> = all.into_iter().map(|h| h.join().unwrap()).collect();
        all.swap_remove(0)
    })
}

#[test]
fn twenty_steps_of_adapters_follow_peft_on_one_and_two_ranks() {
    for name in CASES {
        let wanted = read(case("adapters").join(name).join("train.safetensors"));
        let wanted = &wanted["losses"].1;
        assert_eq!(wanted.len(), 20);
        for (ranks, stage, recompute) in [
            (1, 0, Recompute::None),
            (1, 3, Recompute::Full),
            (2, 0, Recompute::Selective),
            (2, 3, Recompute::None),
        ] {
            let (losses, norms) = curve(name, ranks, stage, recompute);
            let far = losses.iter().zip(wanted).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f64::max);
            assert!(far <= 1e-4, "{name}, {ranks} ranks, stage {stage}: {far:e}");
            assert!(norms < 1e-4, "{name}, {ranks} ranks: norms {norms:e}");
        }
    }
}
