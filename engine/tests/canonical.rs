//! Canonical sums on threads: one training, bit for bit, on any number of ranks, at every stage, in every type, with every optimizer; the
//! buffers it takes, to the byte; and what it refuses.

use crate::common;
use common::*;
use crossweave_engine::optimizers::*;
use crossweave_engine::{
    FileSettings, LossScaler, OffloadDevice, OffloadSpec, OptimizerOffload, Precision, RankSpec,
    Recompute, Rows, ScaleRule, StateKind, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_zero::canonical::{roots, shards_of};
use std::sync::Mutex;

const SHARDS: u32 = 8;

/// The job of [`spec`] over logical shards, of `micro` micro-batches each.
fn sharded(world: u32, micro: u32, shards: u32) -> RankSpec {
    RankSpec {
        place: dp_place(world),
        canonical: Some(shards),
        rows: Rows::new(GLOBAL / u64::from((shards * micro).max(1)), SEQ),
        ..spec(1, micro)
    }
}

fn on(base: &RankSpec, world: u32, stage: u32) -> RankSpec {
    RankSpec {
        place: dp_place(world),
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

/// Rank counts and stages; what a mesh leaves out another has.
const MESHES: [(u32, u32); 16] = [
    (1, 1),
    (1, 2),
    (1, 3),
    (2, 0),
    (2, 1),
    (2, 2),
    (2, 3),
    (3, 0),
    (3, 3),
    (4, 1),
    (4, 2),
    (5, 2),
    (5, 3),
    (7, 1),
    (8, 0),
    (8, 3),
];

fn matrix(model: &ModelSpec, base: &RankSpec, steps: u64) {
    let w = world();
    let alone = train(&w, model, base, steps);
    assert!(alone.metrics.iter().all(|m| m.loss.is_finite()));
    for (k, (ranks, stage)) in MESHES.into_iter().enumerate() {
        let recompute = [Recompute::None, Recompute::Full, Recompute::Selective][k % 3];
        let mut s = RankSpec {
            recompute,
            ..on(base, ranks, stage)
        };
        s.zero.overlap = k % 2 == 0;
        s.zero.bucket_bytes = [6000, 0, 1 << 30][(k / 2) % 3];
        let got = train(&w, model, &s, steps);
        let what = format!(
            "{:?}, {} micro-batches, {ranks} ranks, stage {stage}, {recompute:?}",
            base.compute, base.micro_batches
        );
        assert_eq!(got.metrics, alone.metrics, "{what}");
        assert!(got.bits() == alone.bits(), "{what}: {}", got.plan);
    }
}

#[test]
fn any_number_of_ranks_trains_to_the_same_bits_in_f32() {
    matrix(&gpt2(2, 0.1), &sharded(1, 1, SHARDS), 3);
    matrix(&llama(2), &sharded(1, 3, SHARDS), 2);
}

#[test]
fn and_in_bf16_without_clipping() {
    let base = RankSpec {
        compute: DType::Bf16,
        clip: 0.0,
        ..sharded(1, 1, SHARDS)
    };
    matrix(&gpt2(2, 0.1), &base, 3);
}

#[test]
fn and_in_float16_with_a_scaler_that_skips_and_sums_that_are_rounded() {
    let rule = ScaleRule::DeepSpeed { consecutive: false };
    let base = RankSpec {
        compute: DType::F16,
        precision: Precision {
            // Far too large at first: steps are skipped until it has come down.
            scaler: Some(LossScaler::new(rule, 2f64.powi(19), 2, 1, 1.0)),
            predivide: Some(2.0),
            wire: DType::F16,
            ..Precision::default()
        },
        ..sharded(1, 1, SHARDS)
    };
    let seen = train(&world(), &gpt2(2, 0.0), &base, 9).metrics;
    assert!(
        seen.iter().any(|m| m.skipped) && seen.iter().any(|m| !m.skipped),
        "{seen:?}"
    );
    matrix(&gpt2(2, 0.0), &base, 9);
}

/// Shards that are no power of two join from the right; ranks hold them in runs of any length.
#[test]
fn any_number_of_shards_will_do() {
    let w = world();
    for shards in [2, 3, 6] {
        let base = sharded(1, 1, shards);
        let alone = train(&w, &gpt2(1, 0.1), &base, 2);
        for ranks in 2..=shards {
            let got = train(&w, &gpt2(1, 0.1), &on(&base, ranks, ranks % 4), 2);
            assert!(
                got.bits() == alone.bits(),
                "{ranks} ranks of {shards} shards"
            );
        }
    }
}

/// What the mode is for: without it the same job has other bits on other ranks.
#[test]
fn sums_over_ranks_show_the_number_of_ranks() {
    let w = world();
    let model = gpt2(2, 0.0);
    let bits = |ranks| train(&w, &model, &spec(ranks, 8 / ranks), 3).bits();
    assert!(bits(1) != bits(2) && bits(2) != bits(4));
    let canonical = train(&w, &model, &sharded(2, 1, SHARDS), 3);
    let plain = train(&w, &model, &spec(2, 4), 3);
    assert!(distance(&canonical, &plain) <= 1e-5);
}

fn optimizers() -> Vec<(&'static str, ParamGroups)> {
    let adam = Adam {
        eps: 1e-5,
        ..Default::default()
    };
    let lamb = Optimizer::Lamb(Lamb {
        adam,
        max_coeff: 10.0,
        min_coeff: 0.01,
    });
    let adafactor = |beta1| {
        Optimizer::Adafactor(Adafactor {
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1,
            scale_parameter: true,
            relative_step: true,
            warmup_init: false,
        })
    };
    let muon = Optimizer::Muon(Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 5,
        scale: MuonScale::Spectral,
        extra_scale: 0.2,
    });
    let all = |o| ParamGroups::all(o, 0.1);
    let mut with_muon = all(muon);
    with_muon.fallback = Some(Recipe {
        optimizer: lamb,
        lr_scale: 1.0,
        weight_decay: 0.1,
        ema: None,
    });
    vec![
        ("adam8bit", all(Optimizer::Adam8bit(Adam::default()))),
        ("lion", all(Optimizer::Lion { betas: [0.9, 0.99] })),
        ("lamb", all(lamb)),
        ("adafactor", all(adafactor(None))),
        ("adafactor with a moment", all(adafactor(Some(0.9)))),
        ("muon and lamb", with_muon),
    ]
}

#[test]
fn every_optimizer_sums_by_logical_slice() {
    let w = world();
    // Large enough for blocks of 8 bits, which begin where a slice does.
    let large = with(&gpt2(1, 0.0), &[("n_embd", 44), ("n_inner", 126)]);
    for (name, optim) in optimizers() {
        let base = RankSpec {
            optim,
            ..sharded(1, 1, SHARDS)
        };
        // Where matrices have one owner each, it depends on the ranks which of q, k and v lie end to end and could run as one product.
        let whole = name.starts_with("muon");
        for model in [Some(&large), whole.then_some(&llama(1))]
            .into_iter()
            .flatten()
        {
            let alone = train(&w, model, &base, 3);
            for (ranks, stage) in [(2, 2), (3, 1), (4, 0), (8, 3)] {
                let got = train(&w, model, &on(&base, ranks, stage), 3);
                assert_eq!(
                    got.metrics, alone.metrics,
                    "{name}, {ranks} ranks, stage {stage}"
                );
                assert!(
                    got.bits() == alone.bits(),
                    "{name}, {ranks} ranks, stage {stage}"
                );
            }
        }
    }
}

#[test]
fn updates_on_the_host_and_parameters_away_change_nothing() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let base = RankSpec {
        compute: DType::Bf16,
        recompute: Recompute::Full,
        ..sharded(1, 1, SHARDS)
    };
    let alone = train(&w, &gpt2(1, 0.1), &base, 3);
    for (k, (ranks, stage)) in [(1, 0), (2, 3), (3, 2), (5, 3), (8, 1)]
        .into_iter()
        .enumerate()
    {
        let away = stage == 3;
        let mut s = on(&base, ranks, stage);
        s.offload = Some(OffloadSpec {
            optimizer: Some(OptimizerOffload {
                tier: [OffloadDevice::Host, OffloadDevice::Nvme][k % 2],
                ratio: if away { 1.0 } else { 0.6 },
                delayed: false,
                grad_f32: true,
                pin: false,
                group: None,
            }),
            params: away,
            activations: k % 2 == 1,
            folder: dir.path().to_path_buf(),
            files: FileSettings {
                block_size: 4096,
                buffers: 4,
                ..FileSettings::default()
            },
        });
        let got = train(&w, &gpt2(1, 0.1), &s, 3);
        assert!(
            got.bits() == alone.bits(),
            "{ranks} ranks, stage {stage}: {}",
            got.plan
        );
    }
}

/// What is kept of a run on five ranks goes on on two and on eight.
#[test]
fn a_run_goes_on_on_another_number_of_ranks() {
    let w = world();
    let model = gpt2(1, 0.1);
    for (name, optim) in optimizers() {
        let base = RankSpec {
            optim,
            ..sharded(1, 1, SHARDS)
        };
        let whole = train(&w, &model, &base, 4);
        let first = train(&w, &model, &on(&base, 5, 3), 2);
        let kept = Mutex::new(first.state);
        for (ranks, stage) in [(2, 1), (8, 2)] {
            let again = train_over(
                &w,
                &model,
                &on(&base, ranks, stage),
                2..4,
                |t| {
                    for ((name, kind), values) in kept.lock().unwrap().iter() {
                        let kind = StateKind::ALL.into_iter().find(|k| k.name() == *kind);
                        if !values.is_empty() {
                            t.load(name, kind.unwrap(), 0, values).unwrap();
                        }
                    }
                    t.publish().unwrap();
                    t.set_step(2);
                },
                |_| {},
            );
            let what = format!("{name} on {ranks} ranks");
            assert_eq!(again.metrics, whole.metrics[2..], "{what}");
            assert!(again.state == whole.state, "{what}");
        }
    }
}

/// Gradients set aside, what comes from the other ranks beside them, and the traffic of plain data parallelism.
#[test]
fn ledgers_equal_the_formulas() {
    let w = world();
    let steps = 3;
    // One unit reduced at a time.
    for (ranks, stage) in [(1, 0), (2, 0), (2, 1), (4, 2), (8, 3), (3, 0), (3, 2)] {
        let mut s = on(&sharded(1, 1, SHARDS), ranks, stage);
        s.zero.bucket_bytes = 0;
        let o = train(&w, &even(gpt2(1, 0.0)), &s, steps);
        let units: Vec<u64> = units(&even(gpt2(1, 0.0)))
            .iter()
            .map(|u| u.params.iter().map(|p| p.shape.numel()).sum())
            .collect();
        let n = u64::from(ranks);
        let padded = |u: u64| u.div_ceil(8) * 8u64.div_ceil(n) * n;
        let all: u64 = units.iter().map(|u| padded(*u)).sum();
        let what = format!("{ranks} ranks, stage {stage}");
        let moved = |kind: &str, tag: &str| {
            let lines = o.ledgers[0].collectives.iter();
            let hit = lines.filter(|l| l.kind == kind && l.tag == tag);
            hit.map(|l| l.elements).sum::<u64>()
        };
        let sums = (0..ranks).map(|r| roots(shards_of(r, ranks, SHARDS)).len() as u64);
        let sums = sums.max().unwrap();
        let there = if ranks > 1 { 1 } else { 0 };
        assert_eq!(
            moved("all_to_all", "grad"),
            steps * sums * all * there,
            "{what}"
        );
        let back = if stage == 0 { there } else { 0 };
        assert_eq!(moved("all_gather", "grad"), steps * all * back, "{what}");
        assert_eq!(
            moved("all_reduce", "grad") + moved("reduce_scatter", "grad"),
            0
        );
        for ledger in &o.ledgers {
            assert_eq!(ledger.device_allocs_after_step_2, 0, "{what}");
            assert_eq!(ledger.memory.tags["grad"].now, 0, "{what}");
        }
        let tags = &o.ledgers[0].memory.tags;
        if stage == 0 {
            // All but the first unit to be reduced have their last gradient beside those set aside when the last backward runs.
            let levels = |r: u32| {
                let mut most = 0;
                let own = shards_of(r, ranks, SHARDS);
                for k in own.clone() {
                    most = most.max(roots(own.start..k).len() as u64 + 1);
                }
                most
            };
            assert!(tags["grad"].peak <= levels(0) * 4 * all, "{what}");
            assert!(tags["grad"].peak > (levels(0) - 1) * 4 * all, "{what}");
        }
        let largest = units.iter().map(|u| padded(*u)).max().unwrap();
        let slots = if stage == 3 { tags["comm"].now } else { 0 };
        assert_eq!(
            tags["comm"].peak,
            slots + sums * 4 * largest * there,
            "{what}"
        );
    }
}

#[test]
fn what_cannot_be_canonical_is_refused_in_a_sentence() {
    let w = world();
    let few = train_until_error(&w, &gpt2(1, 0.0), &sharded(1, 1, 0), 1);
    assert!(few.contains("0 logical shards for 1 ranks"), "{few}");
    let mut eight = sharded(1, 1, 2);
    (eight.compute, eight.zero.stage, eight.zero.quantized) = (DType::Bf16, ZeroStage::Three, true);
    let eight = train_until_error(&w, &gpt2(1, 0.0), &eight, 1);
    assert!(eight.contains("follow from the number of ranks"), "{eight}");
}
