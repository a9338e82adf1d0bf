//! ZeRO stages 1 to 3 on threads: the same bits as stage 0 on the same mesh whatever is sharded, recomputed, prefetched or bucketed, and
//! nearly the same on any other mesh.

use crate::common;
use common::*;
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups, Sgd};
use crossweave_engine::{RankSpec, Recompute, ZeroSpec, ZeroStage};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_plan::{Law, StepKind, check};

fn staged(base: &RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

/// Every variant of a mesh has the bits of its stage 0; every mesh is near the single rank.
fn matrix(model: &ModelSpec, ranks: &[u32]) {
    let w = world();
    let alone = train(&w, model, &spec(1, 1), 10);
    assert!(
        alone
            .metrics
            .iter()
            .all(|m| m.loss.is_finite() && m.grad_norm > 0.0)
    );
    for &n in ranks {
        for micro in [1, if n == 8 { 3 } else { 2 }] {
            let base = spec(n, micro);
            let zero = train(&w, model, &base, 10);
            let far = distance(&zero, &alone);
            assert!(
                far <= 1e-5,
                "{n} ranks, {micro} micro-batches: {far:e} from one rank"
            );
            for stage in 1..=3 {
                // The last kinds of recompute ride on other stages, so that each appears with each stage over the meshes.
                let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
                let recompute = recompute[((stage + n + micro) % 3) as usize];
                let s = RankSpec {
                    recompute,
                    ..staged(&base, stage)
                };
                let got = train(&w, model, &s, 10);
                let same = got.bits() == zero.bits();
                assert!(
                    same,
                    "stage {stage}, {n} ranks, {micro} micro-batches, {recompute:?}: {}",
                    got.plan
                );
            }
        }
    }
}

#[test]
fn gpt2_has_the_bits_of_stage_0_at_every_stage_and_is_near_one_rank() {
    matrix(&gpt2(2, 0.1), &[1, 2, 3, 4, 8]);
}

#[test]
fn llama_has_the_bits_of_stage_0_at_every_stage_and_is_near_one_rank() {
    matrix(&llama(2), &[1, 2, 3, 4, 8]);
}

/// Ranks round the sums of gradients in other places than one rank alone. A rule that is linear in the gradient passes that on as it
/// is: each tensor is near, measured by its own largest value. AdamW with its usual eps divides gradients by their own size, also those
/// that are nothing but rounding: a key's bias, to which softmax is blind, walks at random in any framework, and elsewhere a few elements
/// are a part of a step apart (docs/determinism.md). The losses are as near, and so are the other parameters as a vector.
#[test]
fn other_meshes_round_gradients_and_no_more() {
    let w = world();
    let linear = Optimizer::Sgd(Sgd {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
    });
    let usual = Optimizer::Adam(Adam::default());
    for model in [gpt2(2, 0.1), llama(2)] {
        for optimizer in [&linear, &usual] {
            let on = |ranks: u32| {
                let mut optim = ParamGroups::all(*optimizer, 0.1);
                // Steps of a size that AdamW's have, for weights to move by.
                optim.base.lr_scale = if optimizer == &linear { 30.0 } else { 1.0 };
                let s = staged(&spec(ranks, 1), ranks % 4);
                train(&w, &model, &RankSpec { optim, ..s }, 10)
            };
            let alone = on(1);
            for ranks in [2, 3, 4, 8] {
                let is_linear = optimizer == &linear;
                let far = apart(&on(ranks), &alone, |name| {
                    is_linear || !name.ends_with("attn.c_attn.bias")
                });
                let parameters = if is_linear { far.tensor } else { far.norm };
                assert!(
                    far.loss <= 1e-5 && parameters <= 1e-5,
                    "{ranks} ranks, {optimizer:?}: {far:?}"
                );
            }
        }
    }
}

#[test]
fn no_choice_of_buckets_prefetch_lanes_or_reuse_changes_a_bit() {
    let w = world();
    let models = [
        (gpt2(3, 0.0), DType::F32),
        (gpt2(3, 0.0), DType::Bf16),
        (llama(3), DType::Bf16),
    ];
    for (k, (model, compute)) in models.into_iter().enumerate() {
        for clip in [0.0, 0.5] {
            let base = RankSpec {
                compute,
                clip,
                ..spec(2, 2)
            };
            let zero = train(&w, &model, &base, 4);
            // Each choice in every second of these places.
            let at = std::cell::Cell::new(k + usize::from(clip > 0.0));
            let three = |change: &dyn Fn(&mut RankSpec)| {
                at.set(at.get() + 1);
                if !turn(at.get()) {
                    return;
                }
                let mut s = staged(&base, 3);
                change(&mut s);
                let got = train(&w, &model, &s, 4);
                assert!(
                    got.bits() == zero.bits(),
                    "{compute:?}, clip {clip}: {}",
                    got.plan
                );
            };
            three(&|s| s.zero.prefetch = 0);
            three(&|s| s.zero.prefetch = 9);
            three(&|s| (s.zero.prefetch, s.zero.max_live) = (9, Some(4000)));
            three(&|s| (s.zero.bucket_bytes, s.zero.overlap) = (0, false));
            three(&|s| (s.zero.bucket_bytes, s.recompute) = (1 << 30, Recompute::Full));
            three(&|s| s.zero.reuse_within = Some(5000));
            three(&|s| (s.zero.reshard, s.recompute) = (false, Recompute::Selective));
            three(&|s| s.zero.persist_below = 100);
            three(&|s| s.zero.persist_below = 1 << 40);
            for stage in [1, 2] {
                let mut s = staged(&base, stage);
                (s.zero.bucket_bytes, s.zero.overlap) = (0, false);
                assert!(
                    train(&w, &model, &s, 4).bits() == zero.bits(),
                    "stage {stage}"
                );
            }
        }
    }
}

/// Calls and elements of one kind of collective under a tag, on one rank.
fn moved(o: &Outcome, rank: usize, kind: &str, tag: &str) -> (u64, u64) {
    let lines = o.ledgers[rank].collectives.iter();
    let hit = lines.filter(|l| l.kind == kind && l.tag == tag && l.group == "dp");
    hit.fold((0, 0), |a, l| (a.0 + l.elements, a.1 + l.wire_elements))
}

/// Elements of every unit, padded to a multiple of `n`.
fn padded(model: &ModelSpec, n: u64) -> Vec<u64> {
    let sizes = units(model);
    let each = sizes
        .iter()
        .map(|u| u.params.iter().map(|p| p.shape.numel()).sum::<u64>());
    each.map(|e| e.div_ceil(n) * n).collect()
}

/// What the whole parameters and the gradients of a plan take at most: (bytes of slots, bytes of gradients).
fn window(o: &Outcome, sizes: &[u64], n: u64, stage: u32, compute: u64) -> (u64, u64) {
    let (mut grads, mut peak) = (0u64, (0u64, 0u64));
    // Slots by size: how many are taken, and how many were at most.
    let mut slots = std::collections::BTreeMap::<u64, (u64, u64)>::new();
    let mut open = vec![false; sizes.len()];
    for step in &o.plan.steps {
        match &step.op {
            StepKind::Gather { unit, .. } if stage == 3 => {
                let taken = slots.entry(sizes[*unit as usize]).or_default();
                taken.0 += 1;
                taken.1 = taken.1.max(taken.0);
            }
            StepKind::Release { unit } if stage == 3 => {
                slots.entry(sizes[*unit as usize]).or_default().0 -= 1;
            }
            StepKind::Backward { unit, .. } => {
                for u in o.facts.touched(*unit) {
                    let first = !std::mem::replace(&mut open[u as usize], true);
                    grads += if first { 4 * sizes[u as usize] } else { 0 };
                }
            }
            StepKind::ReduceGrad { units, .. } if stage >= 2 => {
                let bucket: u64 = units.iter().map(|u| 4 * sizes[*u as usize]).sum();
                // The shards are there before the whole gradients go.
                peak.1 = peak.1.max(grads + bucket / n);
                grads -= bucket - bucket / n;
            }
            _ => {}
        }
        peak.1 = peak.1.max(grads);
    }
    let all = slots.iter().map(|(size, (_, most))| compute * size * most);
    (all.sum(), peak.1)
}

#[test]
fn ledgers_equal_the_formulas_to_the_element_and_the_byte() {
    let w = world();
    let steps = 4;
    let models = [
        even(gpt2(1, 0.0)),
        even(gpt2(3, 0.0)),
        even(llama(1)),
        even(llama(3)),
        gpt2(2, 0.0),
    ];
    for (k, model) in models.iter().enumerate() {
        for n in [2u64, 4].into_iter().filter(|n| k % 2 == 0 || *n == 2) {
            let [p, pp] = [1, n].map(|n| padded(model, n).iter().sum::<u64>());
            // Only the model that is odd on purpose is padded, and that over four ranks.
            assert_eq!(p == pp, k < 4 || n == 2, "{p} and {pp}");
            for compute in [DType::F32, DType::Bf16] {
                let base = RankSpec {
                    compute,
                    ..spec(n as u32, 1)
                };
                let mut ddp = 0;
                for stage in 0..=3 {
                    let o = train(&w, model, &staged(&base, stage), steps);
                    let at = format!("model {k}, {n} ranks, {compute:?}, stage {stage}");
                    let rank = n as usize - 1;
                    // Traffic: P all-reduced; P scattered and P gathered; P scattered and 2 P gathered.
                    let all = moved(&o, rank, "all_reduce", "grad");
                    let scattered = moved(&o, rank, "reduce_scatter", "grad");
                    let gathered = moved(&o, rank, "all_gather", "param");
                    let gathers = [0, 1, 1, 2][stage as usize];
                    let want = if stage == 0 {
                        (steps * p, 0)
                    } else {
                        (0, steps * pp)
                    };
                    assert_eq!(
                        (all.0, scattered.0, gathered.0),
                        (want.0, want.1, steps * gathers * pp),
                        "{at}"
                    );
                    let wire = all.1 + scattered.1 + gathered.1;
                    if stage == 0 {
                        ddp = wire;
                    }
                    let ratio = wire as f64 / ddp as f64;
                    let exact = [1.0, 1.0, 1.0, 1.5][stage as usize];
                    let off = if p == pp {
                        0.0
                    } else {
                        (pp - p) as f64 / p as f64 * 2.0
                    };
                    assert!(
                        (ratio - exact).abs() <= off,
                        "{at}: {ratio} times the traffic"
                    );
                    // States: now, that is between steps; and the window, that is what a step adds.
                    let tags = &o.ledgers[rank].memory.tags;
                    let now = |tag: &str| tags[tag].now;
                    let c = compute.bytes(1);
                    let master = if compute == DType::F32 { 0 } else { 4 };
                    // Moments are those of parameters; the last slice also has the padding, which has none.
                    let trained = |p: u64, slice: u64| p - (slice * rank as u64).min(p);
                    let slices = padded(model, 1).into_iter().zip(padded(model, n));
                    let kept: u64 = slices.map(|(p, pp)| trained(p, pp / n)).sum();
                    let (param, high, moments) = match stage {
                        0 => (c * p, master * p, 8 * p),
                        1 | 2 => (c * pp, master * pp / n, 8 * kept),
                        _ => ((4 - master) * pp / n, master * pp / n, 8 * kept),
                    };
                    assert_eq!(
                        (now("param"), now("master"), now("moment")),
                        (param, high, moments),
                        "{at}"
                    );
                    let sizes = padded(model, if stage == 0 { 1 } else { n });
                    let (slots, grads) = window(&o, &sizes, n, stage, c);
                    assert_eq!(
                        (
                            now("comm"),
                            tags["comm"].peak,
                            now("grad"),
                            tags["grad"].peak
                        ),
                        (slots, slots, 0, grads),
                        "{at}"
                    );
                    let late = o.ledgers.iter().map(|l| l.device_allocs_after_step_2);
                    assert_eq!(
                        late.sum::<u64>(),
                        0,
                        "{at}: device allocations in the steady state"
                    );
                }
            }
        }
    }
}

/// Ten times the layers: the buffers gathers and buckets live in are as large as before.
#[test]
fn communication_buffers_do_not_grow_with_the_model() {
    let w = world();
    for (small, large) in [(gpt2(2, 0.0), gpt2(20, 0.0)), (llama(2), llama(20))] {
        let s = RankSpec {
            clip: 0.0,
            ..staged(&spec(2, 1), 3)
        };
        let peaks = [small, large].map(|model| {
            let o = train(&w, &model, &s, 2);
            let params: u64 = padded(&model, 1).iter().sum();
            (params, o.ledgers[0].memory.tags["comm"].peak)
        });
        assert!(peaks[1].0 > 5 * peaks[0].0, "{peaks:?}");
        assert!(peaks[0].1 > 0 && peaks[0].1 == peaks[1].1, "{peaks:?}");
    }
}

#[test]
fn a_plan_without_one_of_its_steps_is_refused_by_name() {
    let w = world();
    let s = RankSpec {
        recompute: Recompute::Full,
        ..staged(&spec(2, 2), 3)
    };
    let o = train(&w, &gpt2(2, 0.0), &s, 1);
    assert!(check(&o.plan, &o.facts).is_ok());
    for (k, step) in o.plan.steps.iter().enumerate() {
        if matches!(step.op, StepKind::GradNorm) {
            // Without it the plan is that of a job that does not clip.
            continue;
        }
        let mut steps = o.plan.steps.clone();
        steps.remove(k);
        let broken = o.plan.clone().rebuild(steps);
        let refused = check(&broken, &o.facts).unwrap_err();
        let said = refused.to_string();
        match &step.op {
            StepKind::Gather { unit, .. } => {
                let named =
                    said.contains(&format!("unit {unit} ")) || said.contains(&format!("+{unit}"));
                let law = matches!(refused.law, Law::Gathered | Law::GatherOnce);
                assert!(law && named, "without {}: {said}", step.op);
            }
            op => assert!(!said.is_empty(), "without {op}"),
        }
    }
}

/// hpZ: the second gather of a step stays inside the node, and nothing else changes.
#[test]
fn gathers_from_the_copies_of_a_node_leave_the_bits_and_the_outer_traffic() {
    let w = world();
    for compute in [DType::F32, DType::Bf16] {
        let model = gpt2(2, 0.0);
        let base = RankSpec {
            compute,
            recompute: Recompute::Full,
            ..spec(4, 2)
        };
        let zero = train(&w, &model, &base, 4);
        let mut s = staged(&base, 3);
        s.zero.node = 2;
        let o = train(&w, &model, &s, 4);
        assert!(o.bits() == zero.bits(), "{compute:?}: {}", o.plan);
        let pp: u64 = padded(&model, 4).iter().sum();
        // Two micro-batches: four gathers of each unit, of which the first is from all ranks.
        assert_eq!(moved(&o, 3, "all_gather", "param").0, 4 * pp);
        let inner = o.ledgers[3]
            .collectives
            .iter()
            .find(|l| l.group == "dp.node" && l.tag == "param");
        assert_eq!(inner.unwrap().elements, 4 * 3 * pp);
        let tags = &o.ledgers[3].memory.tags;
        let own = if compute == DType::F32 { 4 * pp / 4 } else { 0 };
        assert_eq!(tags["param"].now, own + compute.bytes(pp / 2));
    }
}
