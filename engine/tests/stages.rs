//! Pipelines that train: the bits of one stage wherever sums are the same, near it where stages share a unit; reading, sampling, saving and
//! going on over stages.

use crate::common;
use common::*;
use crossweave_engine::optimizers::GroupRule;
use crossweave_engine::{
    Engine, LossScaler, OffloadDevice, OffloadSpec, OptimizerOffload, PipelineOrder, PipelineSpec,
    Precision, RankSpec, Recompute, ScaleRule, StateKind, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

const STEPS: u64 = 3;

fn staged(base: &RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base.clone()
    }
}

/// `base` over stages of so many units each.
fn over(base: &RankSpec, each: &[u32], order: PipelineOrder) -> RankSpec {
    RankSpec {
        pipeline: Some(PipelineSpec {
            runs: order.divide(each, each.len() as u32),
            order,
        }),
        ..base.clone()
    }
}

/// Units over `pp` stages as evenly as they go.
fn even_over(base: &RankSpec, model: &ModelSpec, pp: u32, order: PipelineOrder) -> RankSpec {
    RankSpec {
        pipeline: Some(PipelineSpec::even(units(model).len() as u32, pp, order)),
        ..base.clone()
    }
}

const ORDERS: [PipelineOrder; 2] = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];

/// Nothing is tied: every figure, value and moment has the bits of one stage, at every ZeRO stage.
#[test]
fn untied_models_have_the_bits_of_one_stage() {
    let (w, model) = (world(), llama(2));
    for dp in [1, 2] {
        for micro in [1, 3] {
            let base = spec(dp, micro);
            let alone = train(&w, &model, &base, STEPS);
            for pp in [2, 3, 4] {
                for stage in 0..=3 {
                    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
                    let mut s = RankSpec {
                        recompute: recompute[((stage + pp + micro) % 3) as usize],
                        ..staged(&base, stage)
                    };
                    s.zero.overlap = !(stage + pp).is_multiple_of(3);
                    let order = ORDERS[((stage + pp) % 2) as usize];
                    let got = train(&w, &model, &even_over(&s, &model, pp, order), STEPS);
                    let at = format!(
                        "{pp} stages of {dp} ranks, stage {stage}, {micro} micro-batches, {order:?}"
                    );
                    assert_eq!(got.metrics, alone.metrics, "{at}");
                    assert!(got.bits() == alone.bits(), "{at}: {}", got.plan);
                }
            }
        }
    }
}

/// The head reads the embedding of the first stage: each stage sums its part of the gradient, which one stage adds micro-batch by micro-batch.
#[test]
fn tied_embeddings_are_near_one_stage() {
    let (w, model) = (world(), gpt2(2, 0.1));
    for dp in [1, 2] {
        for micro in [1, 4] {
            let base = spec(dp, micro);
            let alone = train(&w, &model, &base, 10);
            for (pp, stage) in [(2, 0), (2, 1), (3, 2), (4, 3)] {
                let s = even_over(&staged(&base, stage), &model, pp, ORDERS[(dp % 2) as usize]);
                let far = distance(&train(&w, &model, &s, 10), &alone);
                assert!(
                    far <= 1e-5,
                    "{pp} stages of {dp} ranks, stage {stage}, {micro} micro-batches: {far:e} from one stage"
                );
            }
        }
    }
}

/// Stages of any numbers of units, more micro-batches than stages and fewer, and updates that wait for no norm.
#[test]
fn uneven_stages_and_updates_without_a_norm_have_the_same_bits() {
    let (w, model) = (world(), llama(3));
    for (clip, micro) in [(0.0, 6), (0.5, 2), (0.0, 1)] {
        let base = RankSpec {
            clip,
            ..spec(1, micro)
        };
        let alone = train(&w, &model, &base, STEPS);
        for each in [&[1, 4][..], &[4, 1], &[1, 3, 1], &[2, 1, 1, 1]] {
            for order in ORDERS {
                let got = train(&w, &model, &over(&base, each, order), STEPS);
                assert!(
                    got.bits() == alone.bits(),
                    "units {each:?}, {micro} micro-batches, {order:?}"
                );
            }
        }
    }
}

/// Rules whose parameters all lie on one stage, which may then have nothing to update: the other stages do not miss them.
#[test]
fn rules_for_parameters_of_one_stage_hold() {
    let (w, model) = (world(), llama(2));
    let rule = |pattern: &str| GroupRule {
        patterns: vec![pattern.into()],
        ..GroupRule::default()
    };
    let frozen = |pattern| GroupRule {
        frozen: true,
        ..rule(pattern)
    };
    let slower = GroupRule {
        lr_scale: Some(0.5),
        ..rule("*layers.1.mlp*")
    };
    for rules in [
        vec![frozen("*embed_tokens*"), slower],
        vec![frozen("*layers.0.*"), frozen("*embed_tokens*")],
        vec![frozen("*lm_head*"), frozen("model.norm*")],
    ] {
        let mut base = spec(2, 2);
        base.optim.rules = rules.clone();
        let alone = train(&w, &model, &base, STEPS);
        for (pp, stage) in [(2, 0), (4, 1), (4, 3)] {
            let s = even_over(&staged(&base, stage), &model, pp, PipelineOrder::OneFOneB);
            let got = train(&w, &model, &s, STEPS);
            assert!(
                got.bits() == alone.bits(),
                "{pp} stages, stage {stage}, {rules:?}"
            );
        }
    }
}

/// float16 with a scale so large that steps are skipped: every stage skips the same steps, and nobody's gradient is let through.
#[test]
fn an_overflow_anywhere_skips_the_step_on_every_stage() {
    let (w, model) = (world(), llama(2));
    let rule = ScaleRule::DeepSpeed { consecutive: false };
    let base = RankSpec {
        compute: DType::F16,
        precision: Precision {
            scaler: Some(LossScaler::new(rule, 1024.0, 2, 1, 1.0)),
            ..Precision::default()
        },
        ..spec(2, 2)
    };
    let poison = |t: &mut Engine| t.poison(2);
    let alone = train_with(&w, &model, &base, 5, poison);
    let skipped: Vec<bool> = alone.metrics.iter().map(|m| m.skipped).collect();
    assert!(skipped[1] && !skipped[4], "{skipped:?}");
    for (pp, stage) in [(2, 1), (3, 3)] {
        let s = even_over(&staged(&base, stage), &model, pp, PipelineOrder::OneFOneB);
        let got = train_with(&w, &model, &s, 5, poison);
        assert_eq!(got.metrics, alone.metrics, "{pp} stages");
        assert!(got.bits() == alone.bits(), "{pp} stages");
    }
}

/// States, parameters and kept inputs that rest on the host.
#[test]
fn stages_whose_states_rest_on_the_host_have_the_same_bits() {
    let (w, model) = (world(), llama(2));
    for (stage, activations) in [(1, false), (3, true)] {
        let base = RankSpec {
            recompute: Recompute::Full,
            ..staged(&spec(2, 2), stage)
        };
        let plain = train(&w, &model, &base, STEPS);
        let offload = OffloadSpec {
            optimizer: Some(OptimizerOffload {
                tier: OffloadDevice::Host,
                ratio: 1.0,
                delayed: false,
                grad_f32: true,
                pin: false,
                group: None,
            }),
            params: stage == 3,
            activations,
            folder: Default::default(),
            files: Default::default(),
        };
        let s = RankSpec {
            offload: Some(offload),
            ..even_over(&base, &model, 2, PipelineOrder::OneFOneB)
        };
        let got = train(&w, &model, &s, STEPS);
        assert!(got.bits() == plain.bits(), "stage {stage}");
    }
}

fn kind(name: &str) -> StateKind {
    let named = |k: &StateKind| k.name() == name;
    StateKind::ALL.into_iter().find(named).unwrap()
}

/// State read from any stages goes on in any others, to the bits of a run that was never stopped.
#[test]
fn a_run_goes_on_over_other_stages() {
    let (w, model) = (world(), llama(2));
    let base = spec(1, 3);
    let whole = train(&w, &model, &base, 4);
    let shapes = |pp: u32, stage: u32| match pp {
        1 => staged(&base, stage),
        _ => even_over(&staged(&base, stage), &model, pp, PipelineOrder::OneFOneB),
    };
    for (before, after) in [((1, 0), (3, 1)), ((4, 3), (2, 0)), ((2, 2), (1, 3))] {
        let half = train(&w, &model, &shapes(before.0, before.1), 2);
        let load = |t: &mut Engine| {
            for ((name, state), values) in &half.state {
                t.load(name, kind(state), 0, values).unwrap();
            }
            t.publish().unwrap();
            t.set_step(2);
        };
        let rest = train_over(&w, &model, &shapes(after.0, after.1), 2..4, load, |_| {});
        assert_eq!(rest.metrics, whole.metrics[2..], "{before:?} to {after:?}");
        assert_eq!(rest.state, whole.state, "{before:?} to {after:?}");
    }
}

/// Elements of a state that somebody saves, by name and kind.
type Saved = BTreeMap<(String, &'static str), Vec<Range<u64>>>;

/// Every element of every state is saved by one rank, whatever stages hold it.
#[test]
fn every_element_is_saved_once() {
    let w = world();
    for model in [gpt2(2, 0.0), llama(2)] {
        for (pp, dp, stage) in [(2, 2, 0), (3, 1, 1), (2, 2, 3), (4, 2, 2)] {
            let s = even_over(&staged(&spec(dp, 1), stage), &model, pp, ORDERS[0]);
            let saved = Mutex::new(Saved::new());
            let note = |t: &Engine| {
                let mut all = saved.lock().unwrap();
                for shard in t.shards() {
                    for part in shard.parts {
                        let key = (part.param, shard.kind.name());
                        all.entry(key).or_default().push(part.of_param);
                    }
                }
            };
            let got = train_over(&w, &model, &s, 0..1, |_| {}, note);
            let mut saved = saved.into_inner().unwrap();
            for (key, values) in got.state.iter().filter(|(_, v)| !v.is_empty()) {
                let mut ranges = saved.remove(key).unwrap_or_default();
                ranges.sort_by_key(|r| r.start);
                let mut next = 0;
                for r in ranges {
                    assert_eq!(r.start, next, "{pp} x {dp}, stage {stage}: {key:?}");
                    next = r.end;
                }
                assert_eq!(
                    next,
                    values.len() as u64,
                    "{pp} x {dp}, stage {stage}: {key:?}"
                );
            }
            assert!(saved.is_empty(), "{:?}", saved.keys());
        }
    }
}

/// Rank 0 draws from the model of all stages, between lead and done_reading; otherwise it learns how.
#[test]
fn samples_are_drawn_over_stages() {
    let w = world();
    for model in [gpt2(2, 0.0), llama(2)] {
        let tokens: Vec<i32> = (0..2 * 5).map(|i| i * 3 % 37).collect();
        let drawn = |s: &RankSpec| -> Vec<f32> {
            let found = Mutex::new(vec![]);
            let draw = |t: &mut Engine| {
                let first = t.spec().place.is_first();
                if t.spec().pipeline.is_some() {
                    let e = t.logits(&tokens, 2, 5).unwrap_err().to_string();
                    assert!(e.contains("between lead and done_reading"), "{e}");
                }
                if !first {
                    if t.spec().pipeline.is_some() {
                        let name = t.params()[0].name.to_string();
                        let e = t.read(&name, StateKind::Value).unwrap_err().to_string();
                        assert!(e.contains("rank 0 reads while the others serve"), "{e}");
                    }
                    return t.serve_reads().unwrap();
                }
                t.lead();
                let one = t.logits(&tokens, 2, 5).unwrap();
                // A second one behind it, of another length, and a read between them.
                let name = t.params().last().unwrap().name.to_string();
                assert!(!t.read(&name, StateKind::Value).unwrap().is_empty());
                t.logits(&tokens[..3], 1, 3).unwrap();
                t.done_reading().unwrap();
                *found.lock().unwrap() = one;
            };
            train_with(&w, &model, s, 1, draw);
            found.into_inner().unwrap()
        };
        let alone = drawn(&spec(1, 1));
        assert_eq!(alone.len(), 2 * 5 * 37);
        for (pp, dp, stage) in [(2, 1, 0), (3, 2, 3), (4, 1, 1)] {
            let s = even_over(&staged(&spec(dp, 1), stage), &model, pp, ORDERS[0]);
            assert_eq!(drawn(&s), alone, "{pp} stages of {dp} ranks, stage {stage}");
        }
    }
}

/// What is not finite is reported by all ranks in the message of the one where it began.
#[test]
fn a_value_that_is_not_finite_is_named_by_every_stage() {
    let (w, model) = (world(), llama(2));
    let s = even_over(&spec(1, 2), &model, 2, PipelineOrder::OneFOneB);
    let name = units(&model)[1].params[0].name.to_string();
    let said = Mutex::new(vec![]);
    let spoil = |t: &mut Engine| {
        t.find_nonfinite();
        let param = t.params().into_iter().find(|p| p.name == name).unwrap();
        let values = vec![f32::NAN; param.shape.numel() as usize];
        t.load(&name, StateKind::Value, 0, &values).unwrap();
        t.publish().unwrap();
        let batch = t.spec().rows.batch * t.spec().rows.seq_len;
        let ids = vec![1; batch as usize];
        let mb = crossweave_engine::MicroBatch {
            tokens: &ids,
            targets: &ids,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        };
        let e = t.step(&[mb, mb], 0.0).unwrap_err().to_string();
        said.lock().unwrap().push(e);
        // The rest of the job goes on with values that are.
        t.init().unwrap();
        t.set_step(0);
    };
    let got = train_with(&w, &model, &s, 1, spoil);
    assert!(got.metrics[0].loss.is_finite());
    let said = said.into_inner().unwrap();
    assert_eq!(said.len(), 2);
    assert_eq!(said[0], said[1]);
    let layer = units(&model)[1].name.to_string();
    assert!(
        said[0].contains("rank 0") && said[0].contains(&layer),
        "{}",
        said[0]
    );
}
