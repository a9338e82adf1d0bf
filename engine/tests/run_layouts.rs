//! Stages of several runs beside everything else: what each holds is what its plan says to the byte, cut rows and losses of routers, state that goes
//! on over any stages; and faults that others have had with pipelines.

use crate::common::*;
use crate::context::{meets, rowwise, ways};
use crate::ledgers::agree;
use crate::runs::{layouts, over as staged_over};
use crate::same_calls::matrix::Job;
use crossweave_engine::{
    Engine, LossScaler, PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute, ScaleRule,
    StateKind, dry_run, plan_for,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_plan::{Plan, StepKind};
use serde_json::json;

const STEPS: u64 = 3;
const KEEPS: [Recompute; 3] = [Recompute::None, Recompute::Full, Recompute::Selective];

/// Every schedule for six units over two stages.
fn schedules() -> [(PipelineOrder, &'static [u32]); 6] {
    use PipelineOrder::*;
    [
        (OneFOneB, &[2, 4]),
        (GPipe, &[3, 3]),
        (Interleaved, &[2, 1, 2, 1]),
        (ZbH1, &[2, 4]),
        (ZbV, &[1, 2, 2, 1]),
        (DualPipeV, &[2, 1, 1, 2]),
    ]
}

/// Every schedule at every ZeRO stage with every choice of recompute, of two ranks a stage; every `n`th of them.
fn hold_what_was_planned(n: usize) {
    let w = world();
    let mut k = 0;
    for (order, each) in schedules() {
        for stage in 0..4 {
            for recompute in KEEPS {
                k += 1;
                if k % n != 0 {
                    continue;
                }
                let s = RankSpec {
                    recompute,
                    ..staged(spec(2, 4), stage)
                };
                let model = llama(4);
                let job = Job {
                    name: format!("{order:?}, stage {stage}, {recompute:?}"),
                    units: Box::new(move || units(&model)),
                    spec: staged_over(&s, order, each, 2),
                    before: |_| {},
                    on_cpu: false,
                    pinned_in_any_order: false,
                };
                agree(&w, &job);
            }
        }
    }
    assert_eq!(k, 72);
}

/// Bytes by tag and in all, now and at most, and what collectives and messages moved.
#[test]
fn every_schedule_holds_what_its_plan_says() {
    hold_what_was_planned(5);
}

#[test]
#[ignore = "a minute; for a change of what stages hold"]
fn every_schedule_holds_what_its_plan_says_with_every_stage_and_recompute() {
    hold_what_was_planned(1);
}

/// Rows cut over two ranks, whose keys are gathered or go around: what blocks say belongs to the first part of a backward.
#[test]
fn cut_rows_have_the_same_bits_in_every_order() {
    let w = world();
    let gated = [
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 4),
        ("max_position_embeddings", 24),
    ];
    let model = with(&llama(4), &gated);
    for (k, rows) in ways(2).into_iter().enumerate() {
        if !meets(&model, rows, [2, 1]) {
            continue;
        }
        let cut = rowwise(&model, None, 1, rows);
        let s = RankSpec {
            recompute: KEEPS[k % 3],
            ..staged(of_length(spec(1, 4), 12), k as u32 % 4)
        };
        let base = over(s, [2, 1]);
        let alone = train(&w, &cut, &base, STEPS);
        for (j, (order, each)) in schedules().into_iter().enumerate() {
            // Each way to meet keys with half of the orders.
            if (k + j) % 2 == 0 {
                let got = train(&w, &cut, &staged_over(&base, order, each, 2), STEPS);
                assert!(got.bits() == alone.bits(), "{order:?}, {rows:?}");
            }
        }
    }
}

/// fp16 with a scale that overflows, over ZeRO stages, recompute, two ranks a stage and cut layers: every stage of every order skips the same steps.
#[test]
fn a_skipped_step_is_skipped_by_all_stages_of_every_order() {
    let w = world();
    let model = Cut(even(llama(4)), None, 2);
    let rule = ScaleRule::DeepSpeed { consecutive: false };
    let poison = |t: &mut Engine| t.poison(2);
    for (stage, recompute) in [(1, Recompute::Full), (3, Recompute::Selective)] {
        let s = RankSpec {
            compute: DType::F16,
            precision: Precision {
                scaler: Some(LossScaler::new(rule, 1024.0, 2, 1, 1.0)),
                ..Precision::default()
            },
            recompute,
            ..staged(spec(1, 4), stage)
        };
        let base = cut_over(s, 2);
        let alone = train_with(&w, &model, &base, 4, poison);
        assert!(alone.metrics[1].skipped && !alone.metrics[3].skipped);
        for (order, each) in schedules() {
            let got = train_with(&w, &model, &staged_over(&base, order, each, 2), 4, poison);
            assert_eq!(got.metrics, alone.metrics, "{order:?}, stage {stage}");
            assert!(got.bits() == alone.bits(), "{order:?}, stage {stage}");
        }
    }
}

/// State from every schedule goes on under every other, on other stages with other units.
#[test]
fn every_order_goes_on_under_every_other() {
    let (w, model) = (world(), llama(4));
    let base = spec(1, 4);
    let whole = train(&w, &model, &base, 4);
    let all: Vec<RankSpec> = schedules()
        .into_iter()
        .map(|(order, each)| staged_over(&base, order, each, 2))
        .chain(layouts().map(|(order, each, stages)| staged_over(&base, order, each, stages)))
        .collect();
    for (k, from) in all.iter().enumerate() {
        let half = train(&w, &model, &staged(from.clone(), k as u32 % 4), 2);
        let load = |t: &mut Engine| {
            for ((name, state), values) in &half.state {
                let kind = StateKind::ALL.into_iter().find(|k| k.name() == *state);
                t.load(name, kind.unwrap(), 0, values).unwrap();
            }
            t.publish().unwrap();
            t.set_step(2);
        };
        // Two others for each, so that every pair of neighbours and every second one is met.
        for step in [1, 5] {
            let to = staged(all[(k + step) % all.len()].clone(), (k as u32 + 2) % 4);
            let rest = train_over(&w, &model, &to, 2..4, load, |_| {});
            let at = format!("{:?} to {:?}", from.pipeline, to.pipeline);
            assert_eq!(rest.metrics, whole.metrics[2..], "{at}");
            assert_eq!(rest.state, whole.state, "{at}");
        }
    }
}

/// A checkpoint of stages of one size read by stages of another, of which some have units that no stage of before had together.
#[test]
fn megatron_bridge_5800_stages_of_other_sizes_read_a_checkpoint() {
    let (w, model) = (world(), llama(4));
    let base = spec(1, 4);
    let whole = train(&w, &model, &base, 4);
    let of = |each: &[u32]| staged_over(&base, PipelineOrder::OneFOneB, each, each.len() as u32);
    let half = train(&w, &model, &of(&[4, 1, 1]), 2);
    let load = |t: &mut Engine| {
        for ((name, state), values) in &half.state {
            let kind = StateKind::ALL.into_iter().find(|k| k.name() == *state);
            t.load(name, kind.unwrap(), 0, values).unwrap();
        }
        t.publish().unwrap();
        t.set_step(2);
    };
    for each in [&[1, 5][..], &[1, 1, 4], &[2, 1, 1, 2], &[1, 1, 1, 1, 1, 1]] {
        let rest = train_over(&w, &model, &of(each), 2..4, load, |_| {});
        assert_eq!(rest.state, whole.state, "{each:?}");
    }
}

/// Llama with experts in every layer, whose routers have a loss of their own.
fn routed(over: &str) -> ModelSpec {
    let mut config = llama(4).hf_config();
    config["crossweave_moe"] = json!({"experts": "5,3,5,3", "top_k": 2, "width": 6, "normalize": true,
        "aux_loss_coef": 0.1, "aux_loss_scope": over, "z_loss_coef": 0.01});
    ModelSpec::from_hf(&config).unwrap()
}

/// Losses of routers count once a micro-batch whatever runs stand between them and the head: on the first stage of a V, and where
/// backwards are in two parts.
#[test]
fn torchtitan_1732_and_2061_losses_of_routers_count_once_in_every_order() {
    let w = world();
    for (turn, scope) in ["sequence", "micro_batch"].into_iter().enumerate() {
        let model = routed(scope);
        let base = spec(2, 4);
        let alone = train(&w, &model, &base, STEPS);
        let figures = |o: &Outcome| -> Vec<u64> {
            let each = o.metrics.iter().map(|m| m.experts.expect("figures"));
            each.flat_map(|e| [e.aux_loss, e.z_loss.unwrap_or(0.0), e.load_max].map(f64::to_bits))
                .collect()
        };
        for (k, (order, each)) in schedules().into_iter().enumerate() {
            if k % 2 != turn {
                continue;
            }
            let s = RankSpec {
                recompute: KEEPS[k % 3],
                ..staged(base.clone(), k as u32 % 4)
            };
            let got = train(&w, &model, &staged_over(&s, order, each, 2), STEPS);
            assert!(got.bits() == alone.bits(), "{order:?}, {scope}");
            assert_eq!(figures(&got), figures(&alone), "{order:?}, {scope}");
        }
    }
}

/// The plans of all stages.
fn plans(w: &World, model: &ModelSpec, s: &RankSpec) -> Vec<Plan> {
    let null = w.null.open(0).unwrap();
    let dry = dry_run(
        &null,
        &units(model),
        s.compute,
        s.rows.batch,
        s.rows.seq_len,
    )
    .unwrap();
    let ranks = 0..job_ranks(s);
    ranks
        .map(|rank| plan_for(&null, &ranked(s, rank), &dry).unwrap().0)
        .collect()
}

/// Two stages that send to each other at one time, each before it receives: as one group on both they pass.
#[test]
fn pytorch_172668_sends_and_receives_that_cross_are_one_group() {
    let (w, model) = (world(), llama(4));
    let base = spec(1, 4);
    let alone = train(&w, &model, &base, STEPS);
    let s = staged_over(&base, PipelineOrder::Interleaved, &[2, 1, 2, 1], 2);
    let crossing = |p: &Plan| {
        let group = |op: &StepKind| {
            let (_, messages) = op.messages();
            messages.iter().any(|m| m.sends) && messages.iter().any(|m| !m.sends)
        };
        p.steps.iter().filter(|s| group(&s.op)).count()
    };
    let crossed: Vec<usize> = plans(&w, &model, &s).iter().map(crossing).collect();
    assert!(crossed.iter().all(|n| *n > 0), "{crossed:?}");
    let got = train(&w, &model, &s, STEPS);
    assert!(got.bits() == alone.bits());
}

/// Embedding and head on stages of their own, and one unit for each run: the smallest stages there are.
#[test]
fn a_run_may_be_one_unit() {
    let (w, model) = (world(), llama(4));
    let base = spec(1, 6);
    let alone = train(&w, &model, &base, STEPS);
    use PipelineOrder::*;
    for (order, stages) in [
        (OneFOneB, 6),
        (ZbH1, 6),
        (ZbV, 3),
        (DualPipeV, 3),
        (Interleaved, 3),
    ] {
        let s = staged_over(&staged(base.clone(), 2), order, &[1; 6], stages);
        let got = train(&w, &model, &s, STEPS);
        assert!(got.bits() == alone.bits(), "{order:?}");
    }
    let even = PipelineSpec::even(6, 6, OneFOneB);
    assert!(even.runs.is_plain());
}
