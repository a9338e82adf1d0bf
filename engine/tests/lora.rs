//! Adapters on a frozen base: every layout trains to the bits of one rank's stage 0 at its own number of ranks, the base keeps its bits and
//! costs its own bytes in the compute type and nothing else, and checkpoints hold what is trained.

use crate::common;
use crate::experts_over_ranks::with_experts;
use common::*;
use crossweave_engine::optimizers::{Muon, MuonScale, Optimizer};
use crossweave_engine::{
    FileSettings, OffloadDevice, OffloadSpec, OptimizerOffload, PipelineOrder, PipelineSpec, Place,
    RankSpec, Recompute, Rows, StateKind, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use crossweave_nn::{Lora, ModelSpec, Targets};
use crossweave_tensor::Group;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

fn lora(dropout: f64, targets: Targets) -> Lora {
    Lora {
        r: 3,
        alpha: 7.0,
        dropout,
        rslora: false,
        targets,
        parameters: vec![],
    }
}

fn names(all: &[&str]) -> Targets {
    Targets::Names(all.iter().map(|n| n.to_string()).collect())
}

/// Adapters on the fused and the plain products of both families, on the head of one, and on stacks of experts.
fn cases() -> [(ModelSpec, Lora); 3] {
    let moe = json!({"experts": 4, "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1, "aux_loss_scope": "sequence",
        "z_loss_coef": 0.01});
    let experts = Lora {
        parameters: ["experts.up", "experts.down"].map(String::from).to_vec(),
        ..lora(0.0, names(&["q_proj"]))
    };
    [
        (
            gpt2(2, 0.1),
            lora(0.2, names(&["c_attn", "mlp.c_proj", "lm_head"])),
        ),
        (llama(2), lora(0.1, Targets::AllLinear)),
        (with_experts(&llama(2), moe), experts),
    ]
}

fn staged(base: &RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

fn off(dir: &Path, tier: OffloadDevice, params: bool) -> Option<OffloadSpec> {
    Some(OffloadSpec {
        optimizer: Some(OptimizerOffload {
            tier,
            ratio: 1.0,
            delayed: false,
            grad_f32: true,
            pin: false,
            group: None,
        }),
        params,
        activations: false,
        folder: dir.to_path_buf(),
        files: FileSettings {
            block_size: 4096,
            queue_depth: 4,
            buffers: 3,
            ..FileSettings::default()
        },
    })
}

#[test]
fn every_stage_offload_and_recompute_has_the_same_bits() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (k, model) in cases().iter().enumerate() {
        for compute in [DType::F32, DType::Bf16] {
            let mut one: Option<Outcome> = None;
            for n in [1, 2, 3] {
                let base = RankSpec {
                    compute,
                    ..spec(n, 1 + (n + k as u32) % 2)
                };
                let plain = train(&w, model, &base, 4);
                match &one {
                    Some(one) => {
                        let far = distance(&plain, one);
                        let near = if compute == DType::F32 { 2e-4 } else { 0.1 };
                        assert!(far < near, "case {k}, {compute:?}, {n} ranks: {far:e}");
                    }
                    None => one = Some(train(&w, model, &base, 4)),
                }
                let same = |s: &RankSpec, what: &str| {
                    let got = train(&w, model, s, 4);
                    assert!(
                        got.bits() == plain.bits(),
                        "case {k}, {compute:?}, {n} ranks, {what}: {}",
                        got.plan
                    );
                };
                let full = |s: RankSpec| RankSpec {
                    recompute: Recompute::Full,
                    ..s
                };
                same(&staged(&base, 1), "stage 1");
                same(&full(staged(&base, 2)), "stage 2");
                same(&staged(&base, 3), "stage 3");
                let tiers = [
                    (0, OffloadDevice::Host, false),
                    (2, OffloadDevice::Nvme, false),
                    (3, OffloadDevice::Host, true),
                    (3, OffloadDevice::Nvme, true),
                ];
                let types = usize::from(compute == DType::F32);
                for (i, (stage, tier, params)) in tiers.into_iter().enumerate() {
                    if !turn(i + k + n as usize + types) {
                        continue;
                    }
                    let s = RankSpec {
                        offload: off(dir.path(), tier, params),
                        ..full(staged(&base, stage))
                    };
                    same(&s, &format!("stage {stage}, {tier:?}, params {params}"));
                }
                if n == 2 {
                    let mut s = staged(&base, 3);
                    s.zero.persist_below = 600;
                    same(&s, "small units stay");
                    s.zero.persist_below = 0;
                    s.zero.node = 2;
                    same(&s, "copies of a node");
                }
            }
        }
    }
}

#[test]
fn whole_matrices_and_gathers_in_eight_bits_have_the_same_bits_wherever_the_base_rests() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for model in &cases() {
        // Muon gives each matrix to one owner; the base is dealt evenly all the same.
        let mut base = spec(3, 1);
        base.optim.fallback = Some(base.optim.base);
        base.optim.base.optimizer = Optimizer::Muon(Muon {
            momentum: 0.9,
            nesterov: true,
            ns_steps: 5,
            scale: MuonScale::Spectral,
            extra_scale: 1.0,
        });
        let plain = train(&w, model, &base, 3);
        for stage in 1..=3 {
            let got = train(&w, model, &staged(&base, stage), 3);
            assert!(got.bits() == plain.bits(), "stage {stage}: {}", got.plan);
        }
        // On a wire of 8 bits the base is what its codes say, and it is coded from the same slices.
        let mut narrow = RankSpec {
            compute: DType::Bf16,
            ..staged(&spec(2, 2), 3)
        };
        let exact = train(&w, model, &narrow, 3);
        narrow.zero.quantized = true;
        let plain = train(&w, model, &narrow, 3);
        assert!(plain.bits() != exact.bits());
        assert!(distance(&plain, &exact) < 0.3);
        for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
            let s = RankSpec {
                offload: off(dir.path(), tier, true),
                ..narrow.clone()
            };
            assert!(train(&w, model, &s, 3).bits() == plain.bits(), "{tier:?}");
        }
    }
}

#[test]
fn stages_of_a_pipeline_have_the_bits_of_one() {
    let w = world();
    for (k, model) in cases().iter().enumerate() {
        for (n, stage) in [(1, 0), (2, 3)] {
            let base = staged(&spec(n, 2), stage);
            let plain = train(&w, model, &base, 3);
            let units = units(model).len() as u32;
            for order in [PipelineOrder::OneFOneB, PipelineOrder::GPipe] {
                let s = RankSpec {
                    pipeline: Some(PipelineSpec::even(units, 2, order)),
                    ..base.clone()
                };
                let got = train(&w, model, &s, 3);
                // The tied table is frozen: unlike a trained one it is summed over no stages.
                assert!(got.bits() == plain.bits(), "case {k}, {n} ranks, {order:?}");
            }
        }
    }
}

#[test]
fn logical_shards_train_adapters_to_the_same_bits_on_any_number_of_ranks() {
    let w = world();
    let model = &cases()[1];
    let of = |n: u32, stage: u32| RankSpec {
        canonical: Some(4),
        rows: Rows::new(6, SEQ),
        ..staged(&spec(n, 1), stage)
    };
    let alone = train(&w, model, &of(1, 0), 3);
    for (n, stage) in [(2, 0), (2, 2), (3, 3), (4, 3)] {
        let got = train(&w, model, &of(n, stage), 3);
        assert!(got.bits() == alone.bits(), "{n} ranks, stage {stage}");
    }
}

/// Elements of (trained, base) parameters by unit.
fn sizes(model: &(ModelSpec, Lora)) -> Vec<(u64, u64)> {
    let sum = |u: &crossweave_tensor::UnitDecl, base: bool| {
        let of = u.params.iter().filter(|p| (p.group == Group::Base) == base);
        of.map(|p| p.shape.numel()).sum::<u64>()
    };
    units(model)
        .iter()
        .map(|u| (sum(u, false), sum(u, true)))
        .collect()
}

#[test]
fn the_base_costs_its_bytes_in_the_compute_type_and_no_state() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let model = &cases()[1];
    let all = sizes(model);
    let (trained, base): (Vec<u64>, Vec<u64>) = all.iter().copied().unzip();
    for n in [1u64, 2, 4] {
        let cut = |sizes: &[u64]| sizes.iter().map(|s| s.div_ceil(n)).sum::<u64>();
        let sum = |sizes: &[u64]| sizes.iter().sum::<u64>();
        let padded = |sizes: &[u64]| sizes.iter().map(|s| s.div_ceil(n) * n).sum::<u64>();
        for stage in 0..=3 {
            let s = RankSpec {
                compute: DType::Bf16,
                ..staged(&spec(n as u32, 1), stage)
            };
            let got = train(&w, model, &s, 3);
            for l in &got.ledgers {
                let peak = |tag: &str| l.memory.tags[tag].peak;
                let owned = if stage == 0 {
                    sum(&trained)
                } else {
                    cut(&trained)
                };
                assert_eq!(peak("master"), 4 * owned, "{n} ranks, stage {stage}");
                // Padding, less than a rank's number of elements a unit, has no moments.
                let (most, padding) = (8 * owned, 8 * n * all.len() as u64);
                assert!(
                    peak("moment") <= most && peak("moment") + padding > most,
                    "{n} ranks, stage {stage}: {} bytes of moments",
                    peak("moment")
                );
                // Whole gradients are of what is trained alone, with shards of them beside.
                assert!(
                    peak("grad") <= 8 * padded(&trained),
                    "{n} ranks, stage {stage}: {} bytes of gradients of {trained:?}",
                    peak("grad")
                );
                let params = match stage {
                    0 => 2 * (sum(&trained) + sum(&base)),
                    1 | 2 => 2 * (padded(&trained) + sum(&base)),
                    _ => 2 * cut(&base),
                };
                assert_eq!(peak("param"), params, "{n} ranks, stage {stage}");
            }
        }
        // Away, the base rests on the host and nothing of it stays on the device between gathers.
        for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
            let s = RankSpec {
                compute: DType::Bf16,
                offload: off(dir.path(), tier, true),
                ..staged(&spec(n as u32, 1), 3)
            };
            let got = train(&w, model, &s, 3);
            for l in &got.ledgers {
                assert_eq!(l.memory.tags["param"].now, 0, "{n} ranks, {tier:?}");
                if tier == OffloadDevice::Host {
                    let host = 2 * (cut(&trained) + cut(&base));
                    assert_eq!(l.memory.host["param"].peak, host, "{n} ranks");
                }
            }
        }
    }
}

#[test]
fn the_base_keeps_its_bits_and_checkpoints_hold_adapters_alone() {
    let w = world();
    for (k, model) in cases().iter().enumerate() {
        let names = |base: bool| -> BTreeSet<String> {
            let all = units(model).into_iter().flat_map(|u| u.params);
            let of = all.filter(|p| (p.group == Group::Base) == base);
            of.map(|p| p.name).collect()
        };
        let (adapters, base) = (names(false), names(true));
        for (n, stage, compute) in [(1, 0, DType::F32), (2, 3, DType::F32), (3, 3, DType::Bf16)] {
            let s = RankSpec {
                compute,
                ..staged(&spec(n, 1), stage)
            };
            let before = train(&w, model, &s, 0);
            let seen = Mutex::new(BTreeSet::new());
            let after = train_over(
                &w,
                model,
                &s,
                0..3,
                |_| {},
                |t| {
                    let mut seen = seen.lock().unwrap();
                    for shard in t.shards() {
                        seen.extend(shard.parts.into_iter().map(|p| p.param));
                    }
                    assert!(t.wanted().iter().all(|(_, p)| adapters.contains(&p.param)));
                },
            );
            assert_eq!(*seen.lock().unwrap(), adapters, "case {k}");
            let value = |o: &Outcome, name: &String| {
                o.state[&(name.clone(), StateKind::Value.name())].clone()
            };
            for name in &base {
                assert!(value(&before, name) == value(&after, name), "{name} moved");
                assert!(value(&before, name).iter().any(|v| *v != 0.0) || name.ends_with("bias"));
            }
            for name in &adapters {
                assert!(value(&before, name) != value(&after, name), "{name} stayed");
            }
        }
    }
}

#[test]
fn an_adapter_begins_as_peft_begins_it() {
    let w = world();
    for model in cases() {
        let out = train(&w, &model, &spec(1, 1), 0);
        for p in units(&model).into_iter().flat_map(|u| u.params) {
            let values = &out.state[&(p.name.clone(), StateKind::Value.name())];
            if p.name.ends_with("lora_B.weight") {
                assert!(values.iter().all(|v| *v == 0.0), "{}", p.name);
            }
            if p.name.ends_with("lora_A.weight") {
                // kaiming_uniform_(a = sqrt(5)): within 1 / sqrt(columns), and far out of the middle half.
                let bound = 1.0 / (p.shape.last() as f32).sqrt();
                assert!(values.iter().all(|v| v.abs() <= bound), "{}", p.name);
                let out = values.iter().filter(|v| v.abs() > bound / 2.0).count();
                assert!(out * 4 > values.len(), "{}", p.name);
            }
        }
        // With B at zero the model is the one it sits on.
        let alone = train(&w, &model.0, &spec(1, 1), 0);
        assert_eq!(out.validation, alone.validation);
    }
}

#[test]
fn targets_are_those_of_peft_and_others_are_answered_with_the_names_there_are() {
    let adapted = |model: &ModelSpec, targets: Targets| -> Vec<String> {
        let all = lora(0.0, targets).units(model, &Place::alone()).unwrap();
        let all = all.into_iter().flat_map(|u| u.params);
        all.filter_map(|p| p.name.strip_suffix(".lora_A.weight").map(str::to_string))
            .collect()
    };
    let (g, l) = (gpt2(1, 0.0), llama(1));
    assert_eq!(
        adapted(&g, Targets::Family),
        ["transformer.h.0.attn.c_attn"]
    );
    assert_eq!(
        adapted(&l, Targets::Family),
        [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj"
        ]
    );
    assert_eq!(adapted(&l, Targets::AllLinear).len(), 7);
    assert_eq!(adapted(&g, names(&["c_proj"])).len(), 2);
    assert_eq!(adapted(&g, names(&["attn.c_proj", "lm_head"])).len(), 2);
    let pattern = |p: &str| Targets::Pattern(p.to_string());
    assert_eq!(adapted(&l, pattern(r"(?!.*mlp).*\.[qk]_proj")).len(), 2);
    let refused = |model: &ModelSpec, targets: Targets| {
        lora(0.0, targets)
            .units(model, &Place::alone())
            .err()
            .unwrap()
            .to_string()
    };
    for (targets, words) in [
        (names(&["q_proj", "c_atn"]), "\"q_proj\" matches no module"),
        (
            names(&["wte"]),
            "matches transformer.wte, which is no linear layer",
        ),
        (
            names(&["ln_1", "c_attn"]),
            "transformer.h.0.ln_1, which is no linear",
        ),
        (pattern("c_attn"), "write [\"c_attn\"]"),
        (pattern("nothing.*"), "c_attn, c_proj, c_fc, lm_head"),
        (pattern("(c_attn"), "is no regular expression"),
        (names(&["attn"]), "matches no module"),
    ] {
        let said = refused(&g, targets);
        assert!(said.contains(words), "{said}");
    }
}
