//! Models with experts that train: the same bits under every layout that has all experts on each rank, losses of routers that count once
//! however a batch is divided, and experts without a token.

use crate::common;
use common::*;
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    MicroBatch, OffloadDevice, PipelineOrder, PipelineSpec, RankSpec, Recompute, dry_run,
};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use serde_json::json;

/// Two layers of llama, the second of which has five experts, or both.
fn model(experts: &str, over: &str, coefficients: [f64; 2]) -> ModelSpec {
    let moe = json!({"experts": experts, "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": coefficients[0],
        "aux_loss_scope": over, "z_loss_coef": coefficients[1]});
    let mut config = llama(2).hf_config();
    config["crossweave_moe"] = moe;
    ModelSpec::from_hf(&config).unwrap()
}

fn sequence() -> ModelSpec {
    model("5,3", "sequence", [0.1, 0.01])
}

/// Layers of experts beside their MLPs.
fn residual() -> ModelSpec {
    let mut config = sequence().hf_config();
    config["crossweave_moe"]["residual"] = true.into();
    ModelSpec::from_hf(&config).unwrap()
}

/// Qwen3-MoE with one dense layer, whose losses go over all layers.
fn qwen() -> ModelSpec {
    let config = json!({"model_type": "qwen3_moe", "vocab_size": 37, "hidden_size": 20, "intermediate_size": 27,
        "moe_intermediate_size": 6, "num_experts": 5, "num_experts_per_tok": 2, "mlp_only_layers": [0], "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 16,
        "router_aux_loss_coef": 0.1, "initializer_range": 0.1});
    ModelSpec::from_hf(&config).unwrap()
}

/// The figures of the routers of all steps, as bits.
fn routers(o: &Outcome) -> Vec<u64> {
    let of = |m: &crossweave_engine::StepMetrics| {
        let e = m.experts.expect("figures of experts");
        [
            e.aux_loss,
            e.load_min,
            e.load_max,
            e.load_entropy,
            e.z_loss.unwrap_or(0.0),
        ]
    };
    o.metrics.iter().flat_map(of).map(f64::to_bits).collect()
}

/// The same over ZeRO stages 1 to 3, and over the last with activations that are computed again.
pub fn sharded_and_recomputed(s: &RankSpec) -> Vec<(String, RankSpec)> {
    let sharded = (1..=3).map(|stage| (format!("stage {stage}"), staged(s.clone(), stage)));
    let again = [Recompute::Full, Recompute::Selective].map(|recompute| {
        let s = RankSpec {
            recompute,
            ..staged(s.clone(), 3)
        };
        (format!("{recompute:?}"), s)
    });
    sharded.chain(again).collect()
}

#[test]
fn layouts_with_all_experts_on_each_rank_agree_to_the_bit() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    for (model, compute, dp) in [
        (sequence(), DType::F32, 2),
        (residual(), DType::F32, 2),
        (qwen(), DType::F32, 1),
        (qwen(), DType::Bf16, 2),
    ] {
        let base = RankSpec {
            compute,
            ..spec(dp, 3)
        };
        let whole = train(&w, &model, &base, 3);
        let mut others = sharded_and_recomputed(&base);
        let n = units(&model).len() as u32;
        for order in [PipelineOrder::OneFOneB, PipelineOrder::GPipe] {
            let s = RankSpec {
                pipeline: Some(PipelineSpec::even(n, 2, order)),
                recompute: Recompute::Full,
                ..staged(base.clone(), 1)
            };
            others.push((format!("two stages, {order:?}"), s));
        }
        for (what, s) in others {
            let got = train(&w, &model, &s, 3);
            assert!(got.bits() == whole.bits(), "{what}, dp {dp}, {compute:?}");
            assert_eq!(
                routers(&got),
                routers(&whole),
                "{what}, dp {dp}, {compute:?}"
            );
            let late = got.ledgers.iter().map(|l| l.device_allocs_after_step_2);
            assert_eq!(
                late.sum::<u64>(),
                0,
                "{what}: the steady state allocates nothing"
            );
        }
        // An optimizer on the host has the bits of gradients that are reduced micro-batch by micro-batch.
        let mut away = staged(base.clone(), 2);
        away.zero.reduce = crossweave_engine::ReduceGradients::Auto;
        away.offload = Some(offload(dir.path(), OffloadDevice::Host));
        assert!(away.sums_on_the_host());
        let mut each = staged(base.clone(), 2);
        each.zero.reduce = crossweave_engine::ReduceGradients::MicroBatch;
        let (away, each) = (train(&w, &model, &away, 3), train(&w, &model, &each, 3));
        if compute == DType::F32 {
            assert!(away.bits() == each.bits(), "offload, dp {dp}");
        }
        for m in &whole.metrics {
            let e = m.experts.unwrap();
            assert!(e.aux_loss > 0.5, "{e:?}");
            assert!(e.load_min <= 1.0 && e.load_max >= 1.0, "{e:?}");
            assert!(
                e.load_entropy > 0.0 && e.load_entropy <= 1.0 + 1e-6,
                "{e:?}"
            );
            assert!(m.grad_norm > 0.0 && m.loss > 0.0);
        }
        let text = serde_json::to_string(&whole.metrics[0]).unwrap();
        assert!(text.contains("\"aux_loss\""), "{text}");
    }
}

/// The largest difference of any state or figure of two runs.
fn distance(a: &Outcome, b: &Outcome) -> f64 {
    let states = a.state.iter().flat_map(|(k, v)| v.iter().zip(&b.state[k]));
    let far = states.map(|(a, b)| f64::from((a - b).abs()));
    // Not the loads, which are those of a micro-batch.
    let figures = |o: &Outcome| -> Vec<f64> {
        let of = |m: &crossweave_engine::StepMetrics| {
            let e = m.experts.expect("figures of experts");
            [m.loss, m.grad_norm, e.aux_loss, e.z_loss.unwrap_or(0.0)]
        };
        o.metrics.iter().flat_map(of).collect()
    };
    let (x, y) = (figures(a), figures(b));
    let figures = x.iter().zip(&y).map(|(a, b)| (a - b).abs());
    far.chain(figures).fold(0.0, f64::max)
}

/// NVIDIA-NeMo/Megatron-Bridge and Automodel (#3359) have multiplied these losses with the number of micro-batches, or of ranks.
#[test]
fn losses_of_routers_are_the_same_however_a_batch_is_divided() {
    let w = world();
    let base = |ranks, micro_batches| RankSpec {
        clip: 0.0,
        ..spec(ranks, micro_batches)
    };
    let one = train(&w, &sequence(), &base(1, 1), 3);
    for (ranks, micro_batches) in [(1, 4), (2, 1), (2, 3), (4, 2)] {
        let got = train(&w, &sequence(), &base(ranks, micro_batches), 3);
        let far = distance(&one, &got);
        assert!(
            far < 2e-5,
            "{ranks} ranks, {micro_batches} micro-batches: {far}"
        );
    }
}

/// The number of labels that count is a factor of the loss and of its gradient, and of nothing else (NVIDIA/Megatron-LM#3672, #5047).
#[test]
fn labels_that_do_not_count_leave_the_losses_of_routers_alone() {
    let w = world();
    let sgd = Optimizer::Sgd(Sgd {
        momentum: 0.0,
        dampening: 0.0,
        nesterov: false,
    });
    let base = RankSpec {
        clip: 0.0,
        optim: ParamGroups::all(sgd, 0.0),
        ..spec(2, 3)
    };
    // What the losses of routers have moved, of a step that some labels count in.
    let moved = |counts: fn(u64, u64) -> bool| {
        let run = |model: ModelSpec| train_with_counts(&w, &model, &base, 1, counts);
        let [with, without] =
            [[0.5, 0.05], [0.0, 0.0]].map(|c| run(model("5,3", "sequence", c)).state);
        let of = with.iter().flat_map(|(k, v)| {
            let pairs = v.iter().zip(&without[k]);
            pairs.map(|(a, b)| f64::from(a - b)).collect::<Vec<_>>()
        });
        of.collect::<Vec<f64>>()
    };
    let (all, some) = (moved(|_, _| true), moved(|s, i| s % 3 == 0 || i < 2));
    let top = all.iter().fold(0f64, |m, x| m.max(x.abs()));
    let far = all
        .iter()
        .zip(&some)
        .fold(0f64, |m, (a, b)| m.max((a - b).abs()));
    assert!(top > 1e-6 && far < 0.02 * top, "{far} of {top}");
}

/// An expert to which no token goes has a gradient of zero, counts in the norm of all as that, and its weights decay (NVIDIA-NeMo/Automodel#2995).
#[test]
fn experts_without_a_token_take_part() {
    let w = world();
    let config = json!({"model_type": "mixtral", "vocab_size": 37, "hidden_size": 20, "intermediate_size": 6, "num_local_experts": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10,
        "max_position_embeddings": 16, "initializer_range": 0.1, "router_aux_loss_coef": 0.0});
    let model = ModelSpec::from_hf(&config).unwrap();
    let all = units(&model);
    let mut s = RankSpec {
        micro_batches: 1,
        rows: crossweave_engine::Rows::new(2, SEQ),
        clip: 0.0,
        ..spec(1, 1)
    };
    s.optim.decay_all = true;
    let dry = dry_run(&w.null.open(0).unwrap(), &all, DType::F32, 2, SEQ).unwrap();
    let mut t = w
        .rank(&w.cpu.open(0).unwrap(), all, &s, &dry, &Nobody)
        .unwrap();
    t.init().unwrap();
    let (tokens, targets) = ((0..14).collect::<Vec<i32>>(), (1..15).collect::<Vec<i32>>());
    let batch = MicroBatch {
        tokens: &tokens,
        targets: &targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    let (_, grads) = t.loss_and_grads(&batch).unwrap();
    let name = "model.layers.0.mlp.experts.down_proj";
    let stack = grads.iter().find(|(n, _)| n == name).unwrap().1.clone();
    let each = 20 * 6;
    let read = |t: &mut crossweave_engine::Engine| {
        t.read(name, crossweave_engine::StateKind::Value).unwrap()
    };
    let before = read(&mut t);
    t.step(&[batch], 0.5).unwrap();
    let norm = t.metrics().unwrap().unwrap().grad_norm;
    let squares: f64 = grads
        .iter()
        .flat_map(|g| &g.1)
        .map(|x| f64::from(*x).powi(2))
        .sum();
    assert!(
        (norm - squares.sqrt()).abs() < 1e-5 * norm,
        "{norm}, by elements {}",
        squares.sqrt()
    );
    let after = read(&mut t);
    let (mut idle, mut busy) = (0, 0);
    for e in 0..40 {
        let range = e * each..(e + 1) * each;
        if stack[range.clone()].iter().any(|g| *g != 0.0) {
            busy += 1;
            continue;
        }
        idle += 1;
        for i in range {
            // lr 0.5, decay 0.1.
            assert!(
                (after[i] - before[i] * 0.95).abs() < 1e-6,
                "expert {e}: {} {}",
                before[i],
                after[i]
            );
        }
    }
    assert!(idle >= 26 && busy >= 2, "{idle} idle, {busy} busy");
}
