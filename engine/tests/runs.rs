//! Stages of several runs of units, and backwards in two parts: the bits of one stage whatever the order, over everything that places, moves
//! and scales; the loss on any stage; units that several stages read.

use crate::common::*;
use crossweave_engine::{
    Engine, LossScaler, OffloadDevice, PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute,
    ReduceGradients, ScaleRule, StateKind,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_tensor::UnitDecl;
use std::collections::BTreeMap;
use std::sync::Mutex;

const STEPS: u64 = 3;

/// `base` over stages whose runs have so many units each, in the model's order.
pub(crate) fn over(base: &RankSpec, order: PipelineOrder, each: &[u32], stages: u32) -> RankSpec {
    RankSpec {
        pipeline: Some(PipelineSpec {
            runs: order.divide(each, stages),
            order,
        }),
        ..base.clone()
    }
}

/// Orders with units of each run, for six units, and stages.
pub(crate) fn layouts() -> [(PipelineOrder, &'static [u32], u32); 6] {
    use PipelineOrder::*;
    [
        (Interleaved, &[2, 1, 2, 1], 2),
        (Interleaved, &[1; 6], 2),
        (ZbH1, &[2, 1, 3], 3),
        (ZbV, &[1, 2, 2, 1], 2),
        (DualPipeV, &[2, 1, 1, 2], 2),
        (ZbV, &[1; 6], 3),
    ]
}

/// Nothing is tied: every figure, value and moment has the bits of one stage. DeepSpeed#8152 (gradients divided by the micro-batches once a
/// stage), Automodel#3530 (gradients lost between micro-batches) and torchtitan#935 (the loss of a V is on the first stage) would each differ.
#[test]
fn runs_have_the_bits_of_one_stage() {
    let (w, model) = (world(), llama(4));
    for (dp, micro) in [(1, 4), (2, 6)] {
        let base = spec(dp, micro);
        let alone = train(&w, &model, &base, STEPS);
        for (k, (order, each, stages)) in layouts().into_iter().enumerate() {
            if order.divide(each, stages).stages() == 2 || micro == 6 {
                let keeps = [Recompute::None, Recompute::Full, Recompute::Selective];
                let s = RankSpec {
                    recompute: keeps[(k + dp as usize) % 3],
                    ..staged(base.clone(), (k as u32 + micro) % 4)
                };
                let got = train(&w, &model, &over(&s, order, each, stages), STEPS);
                let at = format!("{order:?} {each:?}, {dp} ranks, {micro} micro-batches");
                assert_eq!(got.metrics, alone.metrics, "{at}");
                assert!(got.bits() == alone.bits(), "{at}: {}", got.plan);
            }
        }
    }
}

/// Every order at every ZeRO stage. pytorch#144530: zero bubble skips the reduction over data-parallel ranks.
#[test]
fn every_zero_stage_reduces_behind_the_last_weight_gradient() {
    let (w, model) = (world(), llama(4));
    let base = spec(2, 4);
    let alone = train(&w, &model, &base, STEPS);
    for (order, each, stages) in layouts() {
        if stages == 3 && order == PipelineOrder::ZbV {
            continue;
        }
        for stage in 0..4 {
            let s = over(&staged(base.clone(), stage), order, each, stages);
            let got = train(&w, &model, &s, STEPS);
            assert!(got.bits() == alone.bits(), "{order:?}, stage {stage}");
        }
    }
}

/// Each micro-batch's gradients reduced by themselves. Where a backward is in two parts the small gradients of a micro-batch may be summed
/// with the weights' of the one before: near the bits of one stage, and its bits where backwards are whole.
#[test]
fn micro_batches_are_reduced_one_by_one() {
    let (w, model) = (world(), llama(4));
    let mut base = staged(spec(2, 4), 2);
    base.zero.reduce = ReduceGradients::MicroBatch;
    let alone = train(&w, &model, &base, STEPS);
    for (order, each, stages) in layouts() {
        if stages == 3 {
            continue;
        }
        let got = train(&w, &model, &over(&base, order, each, stages), STEPS);
        let far = distance(&got, &alone);
        assert!(far <= 1e-5, "{order:?}: {far:e}");
        if order == PipelineOrder::Interleaved {
            assert!(got.bits() == alone.bits(), "{order:?}");
        }
    }
}

/// States, parameters and kept inputs that rest on the host.
#[test]
fn runs_whose_states_rest_on_the_host_have_the_same_bits() {
    let (w, model) = (world(), llama(4));
    for (stage, activations) in [(1, false), (3, true)] {
        let base = RankSpec {
            recompute: Recompute::Full,
            ..staged(spec(2, 4), stage)
        };
        let plain = train(&w, &model, &base, STEPS);
        for (order, each, stages) in layouts() {
            if stages == 3 {
                continue;
            }
            let mut off = offload(&std::env::temp_dir(), OffloadDevice::Host);
            (off.params, off.activations) = (stage == 3, activations);
            let s = RankSpec {
                offload: Some(off),
                ..over(&base, order, each, stages)
            };
            let got = train(&w, &model, &s, STEPS);
            assert!(got.bits() == plain.bits(), "{order:?}, stage {stage}");
        }
    }
}

/// float16 with a scale so large that steps are skipped: every stage skips the same steps.
#[test]
fn an_overflow_skips_the_step_in_every_order() {
    let (w, model) = (world(), llama(4));
    let rule = ScaleRule::DeepSpeed { consecutive: false };
    let base = RankSpec {
        compute: DType::F16,
        precision: Precision {
            scaler: Some(LossScaler::new(rule, 1024.0, 2, 1, 1.0)),
            ..Precision::default()
        },
        ..spec(1, 4)
    };
    let poison = |t: &mut Engine| t.poison(2);
    let alone = train_with(&w, &model, &base, 5, poison);
    assert!(alone.metrics[1].skipped && !alone.metrics[4].skipped);
    for (order, each, stages) in layouts() {
        if stages == 2 {
            let got = train_with(&w, &model, &over(&base, order, each, stages), 5, poison);
            assert_eq!(got.metrics, alone.metrics, "{order:?}");
            assert!(got.bits() == alone.bits(), "{order:?}");
        }
    }
}

/// Layers that are cut over two ranks: their sums, also those that travel beside products, belong to the first part of a backward.
#[test]
fn cut_layers_have_the_same_bits_in_two_parts() {
    let w = world();
    let model = Cut(even(llama(4)), None, 2);
    for stage in [0, 3] {
        let base = cut_over(staged(spec(1, 4), stage), 2);
        let alone = train(&w, &model, &base, STEPS);
        for (order, each, stages) in layouts() {
            if stages == 2 {
                let got = train(&w, &model, &over(&base, order, each, stages), STEPS);
                assert!(got.bits() == alone.bits(), "{order:?}, stage {stage}");
            }
        }
    }
}

/// State read from any runs goes on in any others, to the bits of a run that was never stopped.
#[test]
fn a_run_goes_on_in_another_order() {
    let (w, model) = (world(), llama(4));
    let base = spec(1, 4);
    let whole = train(&w, &model, &base, 4);
    let all = layouts();
    for (from, to) in [(0, 3), (3, 2), (4, 1)] {
        let of = |k: usize, stage| {
            let (order, each, stages) = all[k];
            over(&staged(base.clone(), stage), order, each, stages)
        };
        let half = train(&w, &model, &of(from, 1), 2);
        let load = |t: &mut Engine| {
            for ((name, state), values) in &half.state {
                let kind = StateKind::ALL.into_iter().find(|k| k.name() == *state);
                t.load(name, kind.unwrap(), 0, values).unwrap();
            }
            t.publish().unwrap();
            t.set_step(2);
        };
        let rest = train_over(&w, &model, &of(to, 3), 2..4, load, |_| {});
        assert_eq!(rest.metrics, whole.metrics[2..], "{from} to {to}");
        assert_eq!(rest.state, whole.state, "{from} to {to}");
    }
}

/// Every element of every state is saved by one rank, whatever runs hold it.
#[test]
fn every_element_is_saved_once() {
    let w = world();
    for model in [gpt2(4, 0.0), llama(4)] {
        for (order, each, stages) in layouts() {
            if stages == 3 {
                continue;
            }
            let s = over(&staged(spec(2, 4), 3), order, each, stages);
            let saved = Mutex::new(BTreeMap::<_, Vec<_>>::new());
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
                let ends = ranges.iter().fold(0, |next, r| {
                    assert_eq!(r.start, next, "{order:?}: {key:?}");
                    r.end
                });
                assert_eq!(ends, values.len() as u64, "{order:?}: {key:?}");
            }
            assert!(saved.is_empty(), "{:?}", saved.keys());
        }
    }
}

/// Rank 0 draws from the model of all runs; the last of a V is its own.
#[test]
fn samples_are_drawn_over_runs() {
    let (w, model) = (world(), llama(4));
    let tokens: Vec<i32> = (0..2 * 5).map(|i| i * 3 % 37).collect();
    let drawn = |s: &RankSpec| -> Vec<f32> {
        let found = Mutex::new(vec![]);
        let draw = |t: &mut Engine| {
            if !t.spec().place.is_first() {
                return t.serve_reads().unwrap();
            }
            t.lead();
            *found.lock().unwrap() = t.logits(&tokens, 2, 5).unwrap();
            t.done_reading().unwrap();
        };
        train_with(&w, &model, s, 1, draw);
        found.into_inner().unwrap()
    };
    let alone = drawn(&spec(1, 4));
    assert_eq!(alone.len(), 2 * 5 * 37);
    for (order, each, stages) in layouts() {
        if stages == 2 {
            let s = over(&spec(1, 4), order, each, stages);
            assert_eq!(drawn(&s), alone, "{order:?}");
        }
    }
}

/// Units that borrow from others: the head the table of the first, as it does, and two layers a parameter each that their blocks do not look at.
struct Borrowing(ModelSpec, Vec<(usize, usize)>);

impl Declares for Borrowing {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = units(&self.0);
        for (reader, of) in &self.1 {
            units[*reader].borrowed.push((*of, 0));
        }
        units
    }
}

/// Units that stages share are near one stage: in the order of a V table and head may be on one stage, and stages may share several units with
/// several others. Megatron-Bridge#5380: a table that a third stage holds too.
#[test]
fn any_runs_may_share_units() {
    let w = world();
    let base = spec(1, 6);
    for ties in [vec![], vec![(2, 0)], vec![(2, 0), (3, 1), (4, 2)]] {
        let model = Borrowing(gpt2(4, 0.0), ties.clone());
        let alone = train(&w, &model, &base, 5);
        for (order, each, stages) in layouts() {
            for stage in [1, 3] {
                let s = over(&staged(base.clone(), stage), order, each, stages);
                let far = distance(&train(&w, &model, &s, 5), &alone);
                assert!(far <= 1e-5, "{order:?}, {ties:?}, stage {stage}: {far:e}");
            }
        }
        // One run a stage: sets of stages that differ.
        let s = over(
            &staged(base.clone(), 2),
            PipelineOrder::OneFOneB,
            &[2, 1, 1, 2],
            4,
        );
        let far = distance(&train(&w, &model, &s, 5), &alone);
        assert!(far <= 1e-5, "{ties:?}: {far:e}");
    }
}

/// Frozen parameters: a part of a backward may have nothing to write.
#[test]
fn frozen_weights_leave_nothing_owed() {
    use crossweave_engine::optimizers::GroupRule;
    let (w, model) = (world(), llama(4));
    let mut base = spec(1, 4);
    base.optim.rules = vec![GroupRule {
        patterns: vec!["*proj*".into(), "*embed*".into()],
        frozen: true,
        ..GroupRule::default()
    }];
    let alone = train(&w, &model, &base, STEPS);
    for (order, each, stages) in layouts() {
        if stages == 2 {
            let got = train(&w, &model, &over(&base, order, each, stages), STEPS);
            assert!(got.bits() == alone.bits(), "{order:?}");
        }
    }
}
