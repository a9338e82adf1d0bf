//! Experts with capacities: who is dropped is the same on every layout where a sequence says so, exchanges over ranks have a size that is known, the host reads
//! nothing, and text that is continued loses no token.

use crate::common;
use crate::experts_over_ranks::{Spread, gradients_apart, over, stages, with_experts};
use crate::mixtures::sharded_and_recomputed;
use common::*;
use crossweave_engine::{
    Documents, Engine, MicroBatch, OffloadDevice, PipelineOrder, PipelineSpec, RankSpec, Recompute,
    ReduceGradients, Rows,
};
use crossweave_hal::{CollectiveLine, DType};
use crossweave_nn::ModelSpec;
use serde_json::{Value, json};

/// Two layers of llama with experts, of which a token has two, and the keys of their capacity.
fn model(experts: &str, keys: Value) -> ModelSpec {
    let mut moe = json!({"experts": experts, "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.01});
    let all = moe.as_object_mut().unwrap();
    all.extend(keys.as_object().unwrap().clone());
    with_experts(&llama(2), moe)
}

/// Seven tokens choose two experts each: each of four has room for four of them, and each of eight for two.
fn by_sequence() -> ModelSpec {
    model("4,8", json!({"capacity_factor": 0.9}))
}

/// All tokens of a micro-batch share rooms, the first ones stay, and the gates that are left are made whole.
fn by_micro_batch() -> ModelSpec {
    let keys = json!({"capacity_factor": 0.7, "min_capacity": 2, "capacity_scope": "micro_batch", "priority": "position",
        "renormalize": true});
    model("8,4", keys)
}

/// The parts of choices that steps dropped.
fn drops(o: &Outcome) -> Vec<f64> {
    let each = o.metrics.iter().map(|m| m.experts.unwrap().drops);
    each.collect()
}

#[test]
fn layouts_with_all_experts_on_each_rank_drop_alike() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (model, compute, dp) in [
        (by_sequence(), DType::F32, 2),
        (by_micro_batch(), DType::F32, 1),
        (by_micro_batch(), DType::Bf16, 2),
    ] {
        let base = RankSpec {
            compute,
            ..spec(dp, 3)
        };
        let whole = train(&w, &model, &base, 3);
        let lost = drops(&whole);
        assert!(lost.iter().all(|d| *d > 0.05 && *d < 0.5), "{lost:?}");
        let mut others = sharded_and_recomputed(&base);
        let n = units(&model).len() as u32;
        let s = RankSpec {
            pipeline: Some(PipelineSpec::even(n, 2, PipelineOrder::OneFOneB)),
            recompute: Recompute::Full,
            ..staged(base.clone(), 1)
        };
        others.push(("two stages".into(), s));
        let mut away = staged(base.clone(), 2);
        away.zero.reduce = ReduceGradients::Step;
        away.offload = Some(offload(dir.path(), OffloadDevice::Host));
        others.push(("an optimizer on the host".into(), away));
        for (what, s) in others {
            let got = train(&w, &model, &s, 3);
            let what = format!("{what}, dp {dp}, {compute:?}");
            assert_eq!(drops(&got), lost, "{what}");
            if s.offload.is_none() || compute == DType::F32 {
                assert!(got.bits() == whole.bits(), "{what}");
            }
            let late = got.ledgers.iter().map(|l| l.device_allocs_after_step_2);
            assert_eq!(late.sum::<u64>(), 0, "{what}");
        }
    }
}

/// A sequence is the same however a batch is divided; a micro-batch is not.
#[test]
fn rooms_of_sequences_do_not_depend_on_how_a_batch_is_divided() {
    let w = world();
    let base = |ranks, micro_batches| RankSpec {
        clip: 0.0,
        ..spec(ranks, micro_batches)
    };
    let models = [by_sequence(), by_micro_batch()];
    let [one, other] = models.each_ref().map(|m| train(&w, m, &base(1, 1), 2));
    for (ranks, micro_batches) in [(1, 4), (2, 3), (4, 2)] {
        let s = base(ranks, micro_batches);
        let what = format!("{ranks} ranks, {micro_batches} micro-batches");
        let got = train(&w, &models[0], &s, 2);
        let far = distance(&one, &got);
        assert!(far < 2e-5, "{what}: {far}");
        for (a, b) in drops(&one).iter().zip(drops(&got)) {
            assert!((a - b).abs() < 1e-6, "{what}: {a} {b}");
        }
        let got = train(&w, &models[1], &s, 2);
        assert!(distance(&other, &got) > 1e-4, "{what}");
    }
}

/// A row does not depend on the others, so that a forward has the same bits wherever its experts are.
#[test]
fn gradients_over_ranks_are_those_of_experts_on_each_rank() {
    let w = world();
    for model in [by_sequence(), by_micro_batch()] {
        for (dp, ep) in [(2, 2), (4, 2), (4, 4)] {
            let s = sgd(spec(dp, 1));
            let whole = train(&w, &model, &s, 1);
            let got = train(&w, &Spread(model.clone(), ep), &over(&s, ep), 1);
            let (a, b) = (&got.metrics[0], &whole.metrics[0]);
            let what = format!("dp {dp}, ep {ep}");
            assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "{what}");
            assert_eq!(drops(&got), drops(&whole), "{what}");
            assert!(drops(&got)[0] > 0.05, "{what}");
            let far = (a.grad_norm - b.grad_norm).abs() / b.grad_norm;
            assert!(far < 1e-6, "{what}: norm {far:e}");
            let far = gradients_apart(&got, &whole);
            assert!(far < 2e-6, "{what}: {far:e}");
        }
    }
}

#[test]
fn capacities_over_ranks_train_as_on_each_rank_in_every_layout() {
    let w = world();
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let mut k = 0;
    for model in [by_sequence(), by_micro_batch()] {
        for (dp, ep, pp) in [(2, 2, 1), (4, 2, 2), (4, 4, 1)] {
            let base = spec(dp, [1, 3, 2][k % 3]);
            let whole = train(&w, &model, &base, 3);
            for stage in [k as u32 % 2, 2 + k as u32 % 2] {
                k += 1;
                let mut s = RankSpec {
                    recompute: recompute[k % 3],
                    ..staged(over(&base, ep), stage)
                };
                let model = Spread(model.clone(), ep);
                if pp > 1 {
                    s.pipeline = Some(stages(&model, PipelineOrder::OneFOneB));
                }
                let got = train(&w, &model, &s, 3);
                let what = format!("dp {dp}, ep {ep}, pp {pp}, stage {stage}");
                let far = distance(&got, &whole);
                assert!(far < 2e-5, "{what}: {far:e}");
                let apart = (got.validation[0] - whole.validation[0]).abs();
                assert!(apart < 2e-5 * whole.validation[0], "{what}: {apart:e}");
            }
        }
    }
}

/// The lines of a rank's ledger about experts over ranks.
fn lines(o: &Outcome, rank: usize) -> Vec<&CollectiveLine> {
    let all = o.ledgers[rank].collectives.iter();
    all.filter(|c| (&*c.group, &*c.tag) == ("ep", "experts"))
        .collect()
}

/// `4 E C h (e - 1) / e` elements leave a rank for each layer, micro-batch and sequence, half as many more where the forward runs again; no counts travel, and the
/// host reads the figures of steps and nothing else.
#[test]
fn ranks_say_what_the_formula_counts_and_the_host_reads_nothing() {
    let w = world();
    let (steps, layers, h, experts, slots) = (2, 2, 20, 8, 2);
    let model = model("8,8", json!({"capacity_factor": 1.0}));
    for ep in [2u64, 4] {
        for (recompute, times) in [(Recompute::None, 4), (Recompute::Full, 6)] {
            let micro_batches = 2;
            let s = RankSpec {
                recompute,
                ..over(&spec(4, micro_batches), ep as u32)
            };
            let read = |o: &Outcome, rank: usize| o.ledgers[rank].memory.to_host["staging"];
            let figures = read(&train(&w, &model, &spec(4, micro_batches), steps), 0);
            let got = train(&w, &Spread(model.clone(), ep as u32), &s, steps);
            let runs = steps * u64::from(micro_batches) * layers;
            let sequences = s.rows.batch;
            for rank in 0..4 {
                let [line] = lines(&got, rank)[..] else {
                    panic!("{:?}", lines(&got, rank));
                };
                assert_eq!(&*line.kind, "all_to_all");
                assert_eq!(line.calls, runs * times);
                let elements = experts * slots * h * (ep - 1) / ep * sequences;
                assert_eq!(line.wire_elements, runs * times * elements, "{line:?}");
                assert_eq!(read(&got, rank), figures);
            }
        }
    }
}

/// A batch of tokens with the next ones as targets.
fn batch<'a>(ids: &'a [i32], targets: &'a [i32]) -> MicroBatch<'a> {
    MicroBatch {
        tokens: ids,
        targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    }
}

/// Validation and probes route as a training step does, and text is continued by all experts that its tokens choose.
#[test]
fn text_that_is_continued_loses_no_token() {
    let w = world();
    let s = RankSpec {
        rows: Rows::new(2, SEQ),
        ..spec(1, 1)
    };
    let limited = model("8,8", json!({"capacity_factor": 0.6}));
    let [mut limited, mut free] = [limited, model("8,8", json!({}))].map(|m| alone(&w, &m, &s));
    let ids: Vec<i32> = (0..14).map(|i| i * 5 % 37).collect();
    let targets: Vec<i32> = ids.iter().map(|i| (i * 3 + 1) % 37).collect();
    let shape = [2, SEQ];
    let all = |t: &mut Engine| {
        let continued = t.logits(&ids, 2, SEQ).unwrap();
        let probed = t.logits_of(&ids, &[], shape).unwrap().remove(0);
        (
            continued,
            probed,
            t.evaluate(&batch(&ids, &targets)).unwrap(),
        )
    };
    let (continued, probed, loss) = all(&mut limited);
    let (plain, also, dense) = all(&mut free);
    assert!(plain == also && continued == plain);
    assert!(probed != plain && (loss - dense).abs() > 1e-5);
    let (trained, _) = limited.loss_and_grads(&batch(&ids, &targets)).unwrap();
    assert!((trained - loss).abs() < 1e-6);
}

/// Rows say which choices stay, whatever labels count in them and however many documents share one.
#[test]
fn labels_and_documents_in_a_row_do_not_say_who_stays() {
    let w = world();
    let s = spec(2, 3);
    let some = train_with_counts(&w, &by_sequence(), &s, 1, |s, i| s % 3 == 0 || i < 2);
    assert_eq!(drops(&some), drops(&train(&w, &by_sequence(), &s, 1)));
    let mut packed = spec(4, 1);
    packed.rows.documents = Some(Documents {
        end: 9,
        attention: true,
        positions: true,
    });
    let whole = train(&w, &by_sequence(), &packed, 2);
    let got = train(&w, &Spread(by_sequence(), 2), &over(&packed, 2), 2);
    assert!(drops(&whole)[0] > 0.05);
    assert_eq!(drops(&got)[0], drops(&whole)[0]);
    let far = distance(&got, &whole);
    assert!(far < 2e-5, "{far:e}");
}
