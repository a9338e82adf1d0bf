//! Steps replayed as graphs: the same bits as call by call, whatever the plan, and replayed is what repeats and nothing else.
#![forbid(unsafe_code)]

use crate::common;
use common::*;
use crossweave_engine::{
    Engine, FileSettings, GraphCounts, LossScaler, OffloadDevice, OffloadSpec, OptimizerOffload,
    Precision, RankSpec, Recompute, Rows, ScaleRule, ZeroSpec, ZeroStage,
};
use crossweave_hal::{DType, trace::Tracer};
use crossweave_nn::ModelSpec;
use std::sync::Arc;
use std::time::Instant;

/// Enough for every list of calls to be met, recorded and replayed: operands of steps in flight take turns.
const STEPS: u64 = 10;

fn counts(o: &Outcome) -> Vec<GraphCounts> {
    let each = o.ledgers.iter().map(|l| l.graphs.clone());
    each.map(|g| g.expect("graphs are on")).collect()
}

/// Trains with and without, and answers what was replayed.
fn both(w: &World, model: &impl Declares, spec: &RankSpec, at: &str) -> Vec<GraphCounts> {
    let plain = train(w, model, spec, STEPS);
    let w = &World {
        graphs: true,
        ..world()
    };
    assert!(plain.ledgers.iter().all(|l| l.graphs.is_none()), "{at}");
    // Where a run is timed, events lie around each step and each collective; half of the layouts are.
    let timed = |t: &mut Engine| {
        let tracer = Tracer::new(t.device(), Instant::now()).unwrap();
        t.timeline(tracer);
    };
    let got = match at.contains("timed") {
        true => train_with(w, model, spec, STEPS, timed),
        false => train(w, model, spec, STEPS),
    };
    assert!(got.bits() == plain.bits(), "{at}: {:?}", counts(&got));
    let late = |o: &Outcome| -> Vec<u64> {
        let each = o.ledgers.iter().map(|l| l.device_allocs_after_step_2);
        each.collect()
    };
    if spec.offload.is_none() {
        assert_eq!(late(&got), late(&plain), "{at}");
    }
    counts(&got)
}

#[test]
fn replayed_steps_have_the_bits_of_called_ones() {
    let w = world();
    let mut turn = 0;
    for model in [gpt2(1, 0.0), llama(1)] {
        for stage in 0..=3 {
            for ranks in [1, 2] {
                turn += 1;
                let recompute = [Recompute::None, Recompute::Full, Recompute::Selective][turn % 3];
                let compute = [DType::F32, DType::Bf16][turn / 2 % 2];
                let spec = RankSpec {
                    compute,
                    recompute,
                    clip: [0.0, 0.5][turn / 3 % 2],
                    zero: ZeroSpec {
                        stage: ZeroStage::from_number(stage).unwrap(),
                        ..small_buckets()
                    },
                    ..spec(ranks, 1 + turn as u32 % 2)
                };
                let at = format!(
                    "stage {stage}, {ranks} ranks, {recompute:?}, {compute:?}, turn {turn}"
                );
                for c in both(&w, &model, &spec, &at) {
                    assert!(c.replayed > 0, "{at}: {c:?}");
                    assert!(c.launches_saved >= c.replayed, "{at}: {c:?}");
                }
            }
        }
    }
}

/// Layouts that `number` draws: stage, data-parallel ranks, micro-batches, recompute, dropout, what is offloaded, precision.
fn drawn(number: u64, dir: &std::path::Path) -> (ModelSpec, RankSpec, String) {
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut pick = |n: usize| {
        state ^= state >> 29;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 32;
        (state % n as u64) as usize
    };
    let stage = (number % 4) as u32;
    let (ranks, mb) = ([1, 2][pick(2)], [1, 2, 3][pick(3)]);
    let dropout = [0.0, 0.0, 0.1][pick(3)];
    let model = match pick(2) {
        0 => even(gpt2(1, dropout)),
        _ => even(llama(1)),
    };
    let away = (stage > 0 && pick(3) == 0).then(|| OffloadSpec {
        params: stage == 3,
        activations: pick(2) == 0,
        ..offload(dir, OffloadDevice::Host)
    });
    let spec = RankSpec {
        compute: [DType::F32, DType::Bf16][pick(2)],
        recompute: [Recompute::None, Recompute::Full, Recompute::Selective][pick(3)],
        clip: [0.0, 0.5][pick(2)],
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..small_buckets()
        },
        offload: away,
        ..spec(ranks, mb)
    };
    let at = format!(
        "layout {number}: stage {stage}, {ranks} ranks, {mb} micro-batches, {:?}, {:?}, dropout {dropout}, {}, offload {:?}",
        spec.recompute,
        spec.compute,
        model.hf_config()["model_type"],
        spec.offload.as_ref().map(|o| (o.params, o.activations)),
    );
    (model, spec, at)
}

#[test]
fn collectives_inside_blocks_leave_as_many_steps_replayed() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    // CROSSWEAVE_MATRIX=all: every layout of a larger draw.
    let all = std::env::var("CROSSWEAVE_MATRIX").is_ok_and(|v| v == "all");
    for number in 0..if all { 160 } else { 12 } {
        let (model, spec, at) = drawn(number, dir.path());
        let of = |tp| {
            let timed = if number / 4 % 2 == 1 { ", timed" } else { "" };
            let at = format!("{at}, tp {tp}{timed}");
            both(
                &w,
                &Cut(model.clone(), None, tp),
                &cut_over(spec.clone(), tp),
                &at,
            )
        };
        let (whole, cut) = (of(1), of(2));
        let steps = |c: &GraphCounts| c.replayed + c.partly + c.called;
        for c in &cut {
            assert_eq!(steps(c), steps(&whole[0]), "{at}: {c:?}");
            assert!(
                c.replayed >= whole[0].replayed,
                "{at}: {c:?} against {whole:?}"
            );
        }
        // Where nothing differs from step to step, every step is replayed once its lists are known.
        let draws = at.contains("dropout 0.1") && at.contains("gpt2");
        for c in whole.iter().chain(&cut) {
            assert_eq!(c.refused.is_empty(), !draws, "{at}: {c:?}");
            let names_it = |(why, _): &(String, u64)| why.contains("other launch-time parameters");
            assert!(c.refused.iter().all(names_it), "{at}: {c:?}");
        }
    }
}

#[test]
fn what_moves_under_a_step_is_never_replayed_stale() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    // Dropout draws by step: where it is, no two steps are alike.
    let spec_of = |ranks, mb| RankSpec {
        recompute: Recompute::Full,
        ..spec(ranks, mb)
    };
    for c in both(&w, &gpt2(1, 0.1), &spec_of(2, 2), "dropout") {
        assert!(c.called > c.replayed, "{c:?}");
    }
    // A scale that overflows at first and then moves: steps are skipped, and the seed of the backward changes.
    let rule = ScaleRule::DeepSpeed { consecutive: false };
    let scaled = RankSpec {
        compute: DType::F16,
        precision: Precision {
            scaler: Some(LossScaler::new(rule, 2f64.powi(32), 2, 1, 1.0)),
            ..Default::default()
        },
        ..spec(2, 1)
    };
    both(&w, &llama(1), &scaled, "loss scaling");
    // Logical shards, summed in one tree.
    let canonical = RankSpec {
        canonical: Some(4),
        rows: Rows::new(GLOBAL / 4, SEQ),
        ..spec(1, 1)
    };
    for world in [1, 2] {
        let s = RankSpec {
            place: dp_place(world),
            ..canonical.clone()
        };
        both(&w, &gpt2(1, 0.0), &s, "canonical");
    }
    // State, gradients, parameters and kept inputs come and go through pinned memory, by threads of their own.
    for (stage, params) in [(1, false), (3, true)] {
        let away = RankSpec {
            zero: ZeroSpec {
                stage: ZeroStage::from_number(stage).unwrap(),
                ..small_buckets()
            },
            offload: Some(OffloadSpec {
                optimizer: Some(OptimizerOffload {
                    tier: OffloadDevice::Host,
                    ratio: 1.0,
                    delayed: false,
                    grad_f32: true,
                    pin: false,
                    group: None,
                }),
                params,
                activations: true,
                folder: dir.path().to_path_buf(),
                files: FileSettings::default(),
            }),
            ..spec_of(2, 2)
        };
        both(&w, &llama(1), &away, &format!("offload at stage {stage}"));
    }
}

#[test]
fn a_device_without_graphs_is_told_at_once() {
    let w = World {
        graphs: true,
        ..world()
    };
    let on = spec(1, 1);
    let null = w.null.open(0).unwrap();
    let units = units(&llama(1));
    let dry = crossweave_engine::dry_run(&null, &units, on.compute, on.rows.batch, on.rows.seq_len)
        .unwrap();
    let alone = crossweave_hal::LocalKv::default();
    let e = w
        .rank(&null, units, &on, &dry, &Boot(Arc::new(alone)))
        .err();
    let said = e.expect("the null device has no graphs").to_string();
    assert!(
        said.contains("plugin null offers no crossweave.graph/1"),
        "{said}"
    );
}
