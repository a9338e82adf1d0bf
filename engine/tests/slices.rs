//! Gradients reduced micro-batch by micro-batch (`zero_optimization.reduce_gradients`): stages 2 and 3 agree to the bit however the step
//! is laid out, follow one reduction a step closely, and keep slices instead of whole gradients, to the byte that `plan` predicts.

use crate::common;
use common::*;
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Devices, Links, OffloadDevice, PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute,
    ReduceGradients, ZeroSpec, ZeroStage, dry_run, predict,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_plan::{Facts, Plan, StepKind};
use std::collections::BTreeSet;

/// `stage` with gradients reduced for each micro-batch.
fn each(base: &RankSpec, stage: u32) -> RankSpec {
    let s = RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            reduce: ReduceGradients::MicroBatch,
            ..base.zero
        },
        ..base.clone()
    };
    assert!(s.reduces_each());
    s
}

#[test]
fn layouts_that_reduce_each_micro_batch_agree_to_the_bit() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (model, compute, accum, n, g, clip) in [
        (gpt2(2, 0.1), DType::F32, DType::F32, 2, 3, 0.5),
        (llama(2), DType::F32, DType::F32, 3, 2, 0.0),
        (gpt2(1, 0.0), DType::Bf16, DType::Bf16, 2, 4, 0.0),
        (llama(1), DType::Bf16, DType::F32, 3, 4, 0.5),
    ] {
        let base = RankSpec {
            compute,
            clip,
            precision: Precision {
                accum,
                ..Precision::default()
            },
            ..spec(n, g)
        };
        let first = train(&w, &model, &each(&base, 2), 3);
        let mut others = vec![each(&base, 3)];
        let mut kept = each(&base, 3);
        (kept.zero.reshard, kept.zero.prefetch) = (false, 0);
        others.push(kept);
        for stage in [2, 3] {
            let recompute = [Recompute::Full, Recompute::Selective][stage as usize % 2];
            let mut single = each(&base, stage);
            (single.recompute, single.zero.bucket_bytes) = (recompute, 1);
            let mut whole = each(&base, stage);
            (whole.zero.overlap, whole.zero.bucket_bytes) = (false, 1 << 30);
            others.extend([single, whole]);
            for (tier, ratio) in [(OffloadDevice::Host, 1.0), (OffloadDevice::Nvme, 0.3)] {
                let mut o = offload(dir.path(), tier);
                o.optimizer.as_mut().unwrap().ratio = ratio;
                others.push(RankSpec {
                    offload: Some(o),
                    ..each(&base, stage)
                });
            }
        }
        for s in others {
            let got = train(&w, &model, &s, 3);
            let what = format!(
                "{compute:?}, {accum:?}, {n} ranks, {g} micro-batches, stage {:?}, {:?}, bucket {}, offload {}",
                s.zero.stage,
                s.recompute,
                s.zero.bucket_bytes,
                s.offload.is_some()
            );
            assert!(got.bits() == first.bits(), "{what}: {}", got.plan);
            assert_eq!(got.ledgers[0].device_allocs_after_step_2, 0, "{what}");
        }
    }
}

/// Stages of a pipeline, where it is asked for: untied to the bits of one stage, tied near them.
#[test]
fn pipeline_stages_reduce_each_micro_batch_when_asked() {
    let w = world();
    for (model, tied) in [(llama(2), false), (gpt2(2, 0.0), true)] {
        let base = spec(2, 3);
        let alone = train(&w, &model, &each(&base, 2), 3);
        for (pp, stage, order) in [
            (2, 2, PipelineOrder::OneFOneB),
            (3, 3, PipelineOrder::GPipe),
            (2, 3, PipelineOrder::OneFOneB),
        ] {
            let count = units(&model).len() as u32;
            let s = RankSpec {
                pipeline: Some(PipelineSpec::even(count, pp, order)),
                ..each(&base, stage)
            };
            let got = train(&w, &model, &s, 3);
            let what = format!("{pp} stages, stage {stage}, {order:?}: {}", got.plan);
            match tied {
                false => assert!(got.bits() == alone.bits(), "{what}"),
                true => assert!(distance(&got, &alone) <= 1e-5, "{what}"),
            }
        }
    }
}

/// Sums in another order: SGD, whose updates do not divide rounding by itself.
#[test]
fn one_reduction_a_step_and_one_for_each_micro_batch_give_the_same_losses() {
    let w = world();
    for (model, stage, g) in [(gpt2(2, 0.0), 2, 4), (llama(2), 3, 2)] {
        let sgd = Sgd {
            momentum: 0.9,
            dampening: 0.0,
            nesterov: false,
        };
        let base = RankSpec {
            optim: ParamGroups::all(Optimizer::Sgd(sgd), 0.0),
            ..spec(2, g)
        };
        let s = each(&base, stage);
        let mut once = s.clone();
        once.zero.reduce = ReduceGradients::Step;
        let (a, b) = (train(&w, &model, &s, 20), train(&w, &model, &once, 20));
        for (k, (x, y)) in a.metrics.iter().zip(&b.metrics).enumerate() {
            let off = (x.loss - y.loss).abs() / y.loss;
            assert!(off < 1e-6, "step {k}: {} and {}", x.loss, y.loss);
            let off = (x.grad_norm - y.grad_norm).abs() / y.grad_norm;
            assert!(
                off < 1e-5,
                "step {k}: norm {} and {}",
                x.grad_norm,
                y.grad_norm
            );
        }
        assert!(a.bits() != b.bits(), "both sum in the same order");
    }
}

/// Parameters of each unit.
fn sizes(model: &ModelSpec) -> Vec<u64> {
    let units = units(model).into_iter();
    units
        .map(|u| u.params.iter().map(|p| p.shape.numel()).sum())
        .collect()
}

/// What is promised of gradients: the slices, the whole gradients of two open buckets, the slices that arrive for one, and a tied unit,
/// which is open from its first writer to its last.
fn promised(model: &ModelSpec, s: &RankSpec, tied: bool) -> u64 {
    let sizes = sizes(model);
    let slice = |p: &u64| 4 * p.div_ceil(u64::from(s.data_ranks()));
    let whole = |p: &u64| slice(p) * u64::from(s.data_ranks());
    let largest = sizes.iter().map(whole).max().unwrap();
    let bucket = largest.max(s.zero.bucket_bytes);
    let arrives = bucket.div_ceil(u64::from(s.data_ranks()));
    let tied = if tied { whole(&sizes[0]) } else { 0 };
    sizes.iter().map(slice).sum::<u64>() + 2 * bucket + arrives + tied
}

/// What a rank holds of gradients at most, by the formula: slices of what is reduced and not used yet, whole gradients from their first
/// writer to their reduction, and while a bucket is reduced what arrives for it. And how many buckets are open at once, apart from a
/// tied unit's.
fn held_at_most(plan: &Plan, facts: &Facts, sizes: &[u64], ranks: u32, tied: bool) -> (u64, usize) {
    let slice = |u: u32| 4 * sizes[u as usize].div_ceil(u64::from(ranks));
    let whole = |u: u32| slice(u) * u64::from(ranks);
    let (mut open, mut slices) = (BTreeSet::new(), BTreeSet::new());
    // What leaves micro-batch by micro-batch stays until the next bucket leaves.
    let parts = |op: &StepKind| matches!(op, StepKind::GradOut { more: true, .. });
    let in_parts = plan.steps.iter().any(|s| parts(&s.op));
    let (mut leaving, mut fresh) = (BTreeSet::new(), false);
    let (mut most, mut buckets) = (0, 0);
    for step in &plan.steps {
        let mut arrives = 0;
        match &step.op {
            StepKind::Backward { unit, .. } => open.extend(facts.touched(*unit)),
            StepKind::ReduceGrad { units, .. } => {
                arrives = units.iter().map(|u| slice(*u)).sum();
                // A slice that is made anew is not on its way.
                slices.retain(|u| !(units.contains(u) && leaving.remove(u)));
                fresh = true;
            }
            StepKind::GradOut { unit, .. } if in_parts => {
                if std::mem::take(&mut fresh) {
                    slices.retain(|u| !leaving.remove(u));
                }
                leaving.insert(*unit);
            }
            StepKind::GradOut { unit, .. } => {
                slices.remove(unit);
            }
            StepKind::Update { unit } if !in_parts => {
                slices.remove(unit);
            }
            _ => {}
        }
        let held = open
            .iter()
            .map(|u| whole(*u))
            .chain(slices.iter().map(|u| slice(*u)));
        most = most.max(held.sum::<u64>() + arrives);
        buckets = buckets.max(open.iter().filter(|u| **u > 0 || !tied).count());
        if let StepKind::ReduceGrad { units, .. } = &step.op {
            open.retain(|u| !units.contains(u));
            slices.extend(units);
        }
    }
    (most, buckets)
}

/// For every number of micro-batches, stage, clipping, tie and tier of the optimizer: the ledger of the run and the rehearsal of the plan have the
/// bytes of the formula, which are within what is promised.
#[test]
fn gradients_are_slices_between_micro_batches_as_planned() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let untied = with(&gpt2(6, 0.0), &[("tie_word_embeddings", false)]);
    let tiers = [None, Some(OffloadDevice::Host), Some(OffloadDevice::Nvme)];
    for (model, tied) in [(untied, false), (gpt2(6, 0.0), true)] {
        for (k, (n, g)) in [(4, 1), (4, 2), (2, 4), (3, 8)].into_iter().enumerate() {
            for stage in [2, 3] {
                for (clip, tier) in [0.0, 0.5].into_iter().flat_map(|c| tiers.map(|t| (c, t))) {
                    let mut base = spec(n, g);
                    base.clip = clip;
                    base.zero.bucket_bytes = 1;
                    base.offload = tier.map(|t| offload(dir.path(), t));
                    let s = match g {
                        1 => RankSpec {
                            zero: ZeroSpec {
                                stage: ZeroStage::from_number(stage).unwrap(),
                                ..base.zero
                            },
                            ..base
                        },
                        _ => each(&base, stage),
                    };
                    let what = format!(
                        "stage {stage}, {n} ranks, {g} micro-batches, clip {clip}, {tier:?}, tied {tied}"
                    );
                    let formula = planned_as_promised(&w, &model, &s, tied, &what);
                    // Each of these is met on the CPU, two a model and number of ranks; the rehearsals of all are held to runs in `ledgers.rs`.
                    let runs = [
                        (2, 0.5, None),
                        (3, 0.0, None),
                        (2, 0.0, Some(OffloadDevice::Host)),
                        (3, 0.5, Some(OffloadDevice::Nvme)),
                    ];
                    let at = runs.iter().position(|r| *r == (stage, clip, tier));
                    if at.is_some_and(|i| turn(i + k + usize::from(tied))) {
                        for l in &train(&w, &model, &s, 3).ledgers {
                            let peak = l.memory.tags["grad"].peak;
                            assert_eq!(peak, formula, "{what}: the run, then the formula");
                        }
                    }
                }
            }
        }
    }
}

/// The bytes of the formula, which the plan has and which are within what is promised.
fn planned_as_promised(w: &World, model: &ModelSpec, s: &RankSpec, tied: bool, what: &str) -> u64 {
    // A device of its own, so that nothing else is counted.
    let null = w
        .null
        .with_checker(&crossweave_hal::CheckerState::default());
    let null = null.open(0).unwrap();
    let all = units(model);
    let dry = dry_run(&null, &all, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let null = w
        .null
        .with_checker(&crossweave_hal::CheckerState::default());
    let null = null.open(0).unwrap();
    let devices = Devices::one(&null);
    let mut t = set_up(devices, all, s, &dry, Links::new(&Nobody)).unwrap();
    let (plan, facts) = (t.plan().clone(), t.facts().clone());
    let (sizes, ranks) = (sizes(model), s.data_ranks());
    let (formula, buckets) = held_at_most(&plan, &facts, &sizes, ranks, tied);
    let planned = predict(&mut t).unwrap().steady.tags["grad"].peak;
    assert_eq!(
        planned, formula,
        "{what}: the plan, then the formula: {plan}"
    );
    assert!(buckets <= 2, "{what}: {buckets} open buckets: {plan}");
    let promised = promised(model, s, tied);
    assert!(
        formula <= promised,
        "{what}: {formula}, promised {promised}: {plan}"
    );
    formula
}

#[test]
fn what_has_no_slices_is_refused_and_auto_chooses() {
    let choose = |stage, world, g, reduce| {
        let mut s = spec(world, g);
        s.zero.stage = ZeroStage::from_number(stage).unwrap();
        s.zero.reduce = reduce;
        s
    };
    use ReduceGradients::*;
    for (stage, world, g, reduce, wanted) in [
        (2, 2, 2, Auto, true),
        (3, 2, 2, Auto, true),
        (1, 2, 2, Auto, false),
        (2, 1, 2, Auto, false),
        (2, 2, 1, MicroBatch, false),
        (3, 2, 2, Step, false),
    ] {
        let s = choose(stage, world, g, reduce);
        s.check().unwrap();
        assert_eq!(
            s.reduces_each(),
            wanted,
            "stage {stage}, {world} ranks, {g}, {reduce:?}"
        );
    }
    let mut canonical = choose(2, 2, 2, Auto);
    canonical.canonical = Some(4);
    assert!(!canonical.reduces_each());
    canonical.zero.reduce = MicroBatch;
    for s in [
        canonical,
        choose(1, 2, 2, MicroBatch),
        choose(0, 2, 2, MicroBatch),
    ] {
        let e = s.check().unwrap_err().to_string();
        assert!(e.contains("zero_optimization.reduce_gradients"), "{e}");
    }
}
