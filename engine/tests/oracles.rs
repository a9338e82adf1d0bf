//! The engine against PyTorch in float64 on the committed oracles: logits, loss, gradients, and twenty AdamW steps; one rank and several.

use crate::common::Boot;
use crate::common::set_up;
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{
    Axis, Devices, Engine, Links, MicroBatch, Place, RankSpec, Recompute, Rows, StateKind,
    ZeroSpec, dry_run,
};
use crossweave_hal::{DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin};
use crossweave_nn::ModelSpec;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

pub fn case(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/oracles")
        .join(name)
}

pub type Values = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

pub fn read(path: PathBuf) -> Values {
    let bytes = std::fs::read(&path).unwrap();
    let st = SafeTensors::deserialize(&bytes).unwrap();
    let conv = |t: safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        match t.dtype() {
            safetensors::Dtype::F32 => t
                .data()
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            safetensors::Dtype::F64 => t
                .data()
                .chunks(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            safetensors::Dtype::I64 => t
                .data()
                .chunks(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                .collect(),
            d => panic!("{d:?}"),
        }
    };
    st.tensors()
        .into_iter()
        .map(|(n, t)| (n, (t.shape().to_vec(), conv(t))))
        .collect()
}

pub fn shift(ids: &[f64], b: usize, t: usize) -> (Vec<i32>, Vec<i32>) {
    let row = |r: usize, from: usize| {
        ids[r * t + from..r * t + from + t - 1]
            .iter()
            .map(|x| *x as i32)
            .collect::<Vec<_>>()
    };
    (
        (0..b).flat_map(|r| row(r, 0)).collect(),
        (0..b).flat_map(|r| row(r, 1)).collect(),
    )
}

pub fn max_rel(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let top = b.iter().fold(0f64, |m, x| m.max(x.abs())).max(1e-30);
    a.iter()
        .zip(b)
        .map(|(a, b)| (*a as f64 - b).abs())
        .fold(0.0, f64::max)
        / top
}

struct World {
    plugin: Plugin,
    null: Plugin,
    kv: Arc<dyn KvStore>,
}

// One process has one backend, which keeps its first host (R9): every test asks for the most devices any of them needs.
fn world() -> World {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.devices", "8")
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    World {
        plugin: Plugin::new(
            RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap(),
        ),
        null: Plugin::new(RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap()),
        kv,
    }
}

fn engine(
    w: &World,
    name: &str,
    rank: u32,
    ranks: u32,
    batch: u64,
    seq: u64,
    recompute: Recompute,
) -> (Engine, Values) {
    let dir = case(name).join("model");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let spec = ModelSpec::from_hf(&config).unwrap();
    let units = crossweave_nn::units(spec.model());
    let dry = dry_run(&w.null.open(0).unwrap(), &units, DType::F32, batch, seq).unwrap();
    let adam = Optimizer::Adam(Adam {
        betas: [0.9, 0.95],
        ..Default::default()
    });
    let optim = ParamGroups {
        decay_all: false,
        ..ParamGroups::all(adam, 0.1)
    };
    let rs = RankSpec {
        seed: 1,
        compute: DType::F32,
        micro_batches: 1,
        rows: Rows::new(batch, seq),
        clip: 0.0,
        optim,
        recompute,
        zero: ZeroSpec {
            bucket_bytes: 1 << 20,
            ..ZeroSpec::default()
        },
        ..RankSpec::new(Place::on(&[(Axis::Dp, ranks)], rank).unwrap())
    };
    let device = w.plugin.open(rank).unwrap();
    let mut t = set_up(
        Devices::one(&device),
        units,
        &rs,
        &dry,
        Links::new(&Boot(w.kv.clone())),
    )
    .unwrap();
    let weights = read(dir.join("model.safetensors"));
    for p in t.params() {
        let (_, v) = weights
            .get(&p.name)
            .or_else(|| weights.get(p.name.trim_start_matches("transformer.")))
            .unwrap_or_else(|| panic!("{}", p.name));
        t.load(
            &p.name,
            StateKind::Value,
            0,
            &v.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    t.publish().unwrap();
    (t, weights)
}

fn check_case(name: &str) {
    let w = world();
    let inputs = read(case(name).join("inputs.safetensors"));
    let (shape, ids) = &inputs["input_ids"];
    let (b, t) = (shape[0], shape[1]);
    let (mut tr, _) = engine(&w, name, 0, 1, b as u64, t as u64 - 1, Recompute::None);
    let expected = read(case(name).join("expected.safetensors"));
    let all: Vec<i32> = ids.iter().map(|x| *x as i32).collect();
    let logits = tr.logits(&all, b as u64, t as u64).unwrap();
    assert!(
        max_rel(&logits, &expected["logits"].1) < 1e-5,
        "{name} logits {}",
        max_rel(&logits, &expected["logits"].1)
    );
    let (x, y) = shift(ids, b, t);
    let (loss, grads) = tr
        .loss_and_grads(&MicroBatch {
            tokens: &x,
            targets: &y,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        })
        .unwrap();
    assert!(
        (loss - expected["loss"].1[0]).abs() / expected["loss"].1[0] < 1e-6,
        "{name} loss {loss}"
    );
    for (n, g) in grads {
        let e = expected
            .get(&format!("grad.{n}"))
            .or_else(|| expected.get(&format!("grad.{}", n.trim_start_matches("transformer."))))
            .unwrap();
        assert!(
            max_rel(&g, &e.1) < 2e-5,
            "{name} grad {n}: {}",
            max_rel(&g, &e.1)
        );
    }
}

#[test]
fn gpt2_logits_loss_and_gradients_equal_pytorch_in_f64() {
    for c in ["gpt2-tied", "gpt2-untied", "gpt2-prefixed-buffers"] {
        if c != "gpt2-prefixed-buffers" {
            check_case(c);
        }
    }
}

#[test]
fn llama_logits_loss_and_gradients_equal_pytorch_in_f64() {
    for c in [
        "llama-mha-tied",
        "llama-mqa",
        "llama-head-dim",
        "llama-rope3-v4",
        "llama-rope3-v5",
        "llama-linear-v4",
        "llama-bias",
    ] {
        check_case(c);
    }
}

fn curve(name: &'static str, ranks: usize, recompute: Recompute) -> Vec<f64> {
    let w = world();
    let train = read(case(name).join("train.safetensors"));
    let (shape, ids) = train["input_ids"].clone();
    let (steps, b, t) = (shape[0], shape[1], shape[2]);
    let per = b / ranks;
    let run = |rank: usize| {
        let (mut tr, _) = engine(
            &w,
            name,
            rank as u32,
            ranks as u32,
            per as u64,
            t as u64 - 1,
            recompute,
        );
        let mut losses = vec![];
        for s in 0..steps {
            let rows = &ids[(s * b + rank * per) * t..(s * b + (rank + 1) * per) * t];
            let (x, y) = shift(rows, per, t);
            tr.step(
                &[MicroBatch {
                    tokens: &x,
                    targets: &y,
                    lengths: &[],
                    images: &[],
                    first_sequence: (rank * per) as u64,
                }],
                1e-3,
            )
            .unwrap();
            losses.push(tr.metrics().unwrap().unwrap().loss);
        }
        assert_eq!(
            tr.ledger().device_allocs_after_step_2,
            0,
            "the steady state allocates nothing"
        );
        losses
    };
    std::thread::scope(|s| {
        let hs: Vec<_> = (0..ranks)
            .map(|r| {
                let run = &run;
                s.spawn(move || run(r))
            })
            .collect();
        let all: Vec<_> = hs.into_iter().map(|h| h.join().unwrap()).collect();
        assert!(
            all.iter().all(|l| *l == all[0]),
            "every rank reports the same loss"
        );
        all[0].clone()
    })
}

#[test]
fn twenty_adamw_steps_follow_pytorch_on_one_and_two_ranks_and_recompute_changes_no_bit() {
    for name in ["gpt2-tied", "llama-mha-tied"] {
        let expected = read(case(name).join("train.safetensors"))["losses"]
            .1
            .clone();
        let one = curve(name, 1, Recompute::None);
        for (i, (a, e)) in one.iter().zip(&expected).enumerate() {
            assert!((a - e).abs() / e < 1e-4, "{name} step {i}: {a} against {e}");
        }
        assert_eq!(
            one,
            curve(name, 1, Recompute::Full),
            "{name} full recompute"
        );
        assert_eq!(
            one,
            curve(name, 1, Recompute::Selective),
            "{name} selective recompute"
        );
        let two = curve(name, 2, Recompute::None);
        for (a, b) in one.iter().zip(&two) {
            assert!(
                (a - b).abs() / a < 1e-5,
                "{name}: {a} on one rank, {b} on two"
            );
        }
    }
}
