//! Models whose layers are cut over ranks (`crossweave_nn::split`): every family that can be trains as on one rank, in every combination with
//! what else divides a job; and what is said to other ranks is what the papers count.

use crate::common::*;
use crossweave_engine::{
    OffloadDevice, OffloadSpec, PipelineOrder, PipelineSpec, RankSpec, Recompute,
};
use crossweave_hal::DType;
use crossweave_nn::split::check;
use crossweave_nn::{Lora, ModelSpec, Predicts, Targets};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const STEPS: u64 = 3;

/// The models of the committed checkpoints that predict the next token, by their folders.
fn checkpoints() -> BTreeMap<String, ModelSpec> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let folders = std::fs::read_dir(all).unwrap().map(|f| f.unwrap());
    folders
        .filter_map(|f| {
            let name = f.file_name().into_string().unwrap();
            let text = std::fs::read_to_string(f.path().join("model/config.json")).ok()?;
            let config: Value = serde_json::from_str(&text).unwrap();
            let spec = ModelSpec::from_hf(&config).unwrap();
            let next = spec.family().predicts() == Predicts::Next && !spec.family().sees();
            (next && spec.model().vocab >= 37 && spec.model().positions >= SEQ)
                .then_some((name, spec))
        })
        .collect()
}

/// The model with twice the heads, each as wide.
fn doubled(spec: &ModelSpec) -> ModelSpec {
    let (mut config, roles) = (spec.hf_config(), spec.family().roles);
    let mut all = vec![roles.heads, roles.kv_heads];
    if config[roles.head_dim].is_null() {
        all.push(roles.width);
    }
    for key in all {
        if let Some(n) = config[key].as_u64() {
            config[key] = (2 * n).into();
        }
    }
    ModelSpec::from_hf(&config).unwrap_or_else(|_| spec.clone())
}

/// Heads of their own scales, biases by distance, fused and separate projections, parallel and sequential layers, windows and caps: whatever a
/// family has, half of it on each rank computes what all of it does on one. Plain SGD, so that a gradient that is missing a summand shows as it is.
#[test]
fn every_family_that_can_be_cut_trains_as_on_one_rank() {
    let w = world();
    let (mut cut, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for (name, spec) in checkpoints() {
        // Many have one key-value head, which both ranks share, and then two.
        let both = [doubled(&spec), spec];
        // Experts need tokens that are cut: `experts_beside.rs`.
        let routed = |s: &ModelSpec| s.model().routed().next().is_some();
        let able = both
            .into_iter()
            .filter(|s| check(s.model(), 2).is_ok() && !routed(s));
        let able: Vec<ModelSpec> = able.collect();
        if able.is_empty() {
            refused.insert(name);
            continue;
        }
        for spec in able {
            cut.insert(spec.family().name);
            let s = sgd(crate::common::spec(1, 1));
            let alone = train(&w, &spec, &s, STEPS);
            let got = train(&w, &Cut(spec, None, 2), &cut_over(s, 2), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 2e-5, "{name}: {far:e}");
        }
    }
    let kept = [
        "mixtral-stacked",
        "mixtral-v5",
        "qwen3-moe-stacked",
        "qwen3-moe-v5",
    ];
    assert_eq!(refused, kept.map(String::from).into());
    // BERT, T5 and LLaVA read other rows: `train/tests/split.rs`.
    let all = "arcee bloom cohere cohere2 ernie4_5 exaone4 falcon gemma gemma2 gemma3_text glm glm4 gpt2 gpt_neox gptj granite \
               hunyuan_v1_dense llama ministral ministral3 mistral nemotron olmo2 olmo3 opt phi phi3 qwen2 qwen3 seed_oss smollm3 stablelm starcoder2";
    assert_eq!(cut, all.split_whitespace().collect());
}

/// Two layers of which 2 and 3 ranks have equal parts.
fn models(dropout: f64) -> [ModelSpec; 2] {
    let sizes = [("n_head", 6), ("n_embd", 24), ("n_inner", 48)];
    let gated = [
        ("num_attention_heads", 12),
        ("num_key_value_heads", 6),
        ("head_dim", 4),
        ("intermediate_size", 30),
    ];
    [with(&gpt2(2, dropout), &sizes), with(&llama(2), &gated)]
}

/// ZeRO over the ranks that have the same parts, pipelines, micro-batches, recompute and offload, with masks of dropped weights and features.
#[test]
fn cut_models_train_as_whole_ones_in_every_layout() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let mut k = 0;
    for (dropout, model) in [0.0, 0.1]
        .into_iter()
        .flat_map(|p| models(p).map(|m| (p, m)))
    {
        let alone = train(&w, &model, &spec(1, 1), STEPS);
        let other = train(&w, &model, &spec(1, 1), STEPS - 1);
        assert!(
            distance(&other, &alone) > 1e-3,
            "a step that is left out does not show"
        );
        for (dp, tp, pp) in [
            (1, 2, 1),
            (1, 3, 1),
            (2, 2, 1),
            (1, 2, 2),
            (1, 6, 1),
            (2, 2, 2),
        ] {
            for stage in 0..=3 {
                k += 1;
                if !taken(k) {
                    continue;
                }
                let mut s = RankSpec {
                    recompute: recompute[k % 3],
                    ..staged(spec(dp, [1, 2, 3][k % 3]), stage)
                };
                s.zero.overlap = k % 4 != 0;
                if pp > 1 {
                    let units = units(&model).len() as u32;
                    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
                    s.pipeline = Some(PipelineSpec::even(units, pp, orders[k % 2]));
                }
                if k % 5 == 0 {
                    let full = s.recompute == Recompute::Full;
                    s.offload = Some(OffloadSpec {
                        params: stage == 3,
                        activations: full,
                        ..offload(dir.path(), OffloadDevice::Host)
                    });
                }
                let got = train(&w, &Cut(model.clone(), None, tp), &cut_over(s, tp), STEPS);
                let far = distance(&got, &alone);
                let what = format!("dp {dp}, tp {tp}, pp {pp}, stage {stage}, dropout {dropout}");
                assert!(far < 1e-4, "{what}: {far:e}");
                let norms = got.metrics.iter().zip(&alone.metrics);
                for (a, b) in norms.map(|(a, b)| (a.grad_norm, b.grad_norm)) {
                    assert!((a - b).abs() < 1e-4 * b, "{what}: norm {a} against {b}");
                }
            }
        }
    }
}

/// One beside every linear layer.
fn adapters() -> Lora {
    Lora {
        r: 3,
        alpha: 7.0,
        dropout: 0.0,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    }
}

/// Beside a layer that is cut by outputs the adapter's B is, beside one cut by inputs its A.
#[test]
fn adapters_on_a_cut_model_train_as_on_a_whole_one() {
    let w = world();
    for model in models(0.1) {
        let lora = adapters();
        let alone = train(&w, &(model.clone(), lora.clone()), &spec(1, 2), STEPS);
        for (dp, tp, stage) in [(1, 2, 0), (2, 3, 2), (2, 2, 3)] {
            let s = cut_over(staged(spec(dp, 1), stage), tp);
            let got = train(&w, &Cut(model.clone(), Some(lora.clone()), tp), &s, STEPS);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "dp {dp}, tp {tp}, stage {stage}: {far:e}");
        }
    }
}

/// In 16 bits sums over ranks are rounded once more, and no further.
#[test]
fn in_16_bits_a_cut_model_trains_near_the_whole_one() {
    let w = world();
    for model in models(0.0) {
        let s = |dp| RankSpec {
            compute: DType::Bf16,
            ..spec(dp, 2)
        };
        let alone = train(&w, &model, &s(1), STEPS);
        let got = train(&w, &Cut(model, None, 2), &cut_over(s(2), 2), STEPS);
        for (a, b) in got.metrics.iter().zip(&alone.metrics) {
            assert!(
                (a.loss - b.loss).abs() < 4e-3 * b.loss,
                "{} against {}",
                a.loss,
                b.loss
            );
        }
    }
}

/// Megatron-LM's count: a layer sums the hidden state twice forward and twice backward, and once more for each forward that is repeated; the
/// embedding once with each forward and the head once backward, and with each forward the loss sums one number more than ranks a token.
#[test]
fn a_layer_says_two_sums_forward_and_two_backward() {
    let w = world();
    for (recompute, forwards) in [(Recompute::None, 1), (Recompute::Full, 2)] {
        let [gpt2, _] = models(0.0);
        let (layers, width, micro, tp) = (2, 24, 2, 3);
        let s = RankSpec {
            recompute,
            ..spec(2, micro)
        };
        let tokens = s.rows.batch * s.rows.seq_len;
        let got = train(&w, &Cut(gpt2, None, tp), &cut_over(s, tp), STEPS);
        assert_eq!(got.ledgers.len(), 6);
        for l in &got.ledgers {
            let of = l.collectives.iter().filter(|c| of_blocks(c, "tp"));
            let (calls, elements) = of.fold((0, 0), |(c, e), l| (c + l.calls, e + l.elements));
            let times = STEPS * u64::from(micro);
            let hidden = times * (layers * 2 * (forwards + 1) + forwards + 1);
            let losses = times * forwards;
            let of_losses = losses * tokens * (u64::from(tp) + 1);
            assert_eq!(
                (calls, elements),
                (hidden + losses, hidden * tokens * width + of_losses),
                "{recompute:?}"
            );
        }
    }
}

/// Key-value heads that several ranks share: each has all of them, and the gradient of what it takes is summed.
#[test]
fn ranks_share_key_value_heads_where_there_are_fewer() {
    let w = world();
    let [_, llama] = models(0.0);
    for (heads, tp) in [(1, 2), (1, 6), (2, 4), (3, 6)] {
        let keys = [("num_key_value_heads", heads), ("intermediate_size", 24)];
        let model = with(&llama, &keys);
        let lora = adapters();
        for lora in [None, Some(lora)] {
            let s = sgd(spec(1, 2));
            let alone = train(&w, &Cut(model.clone(), lora.clone(), 1), &s, STEPS);
            let got = train(&w, &Cut(model.clone(), lora, tp), &cut_over(s, tp), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 2e-5, "{heads} heads on {tp} ranks: {far:e}");
        }
    }
}

/// What divides no layer evenly is refused with what to do.
#[test]
fn what_cannot_be_cut_is_refused_with_what_can() {
    let [gpt2, llama] = models(0.0);
    let said = |model: &ModelSpec, tp: u64| {
        let e = check(model.model(), tp).unwrap_err();
        format!("{}; {}", e.what, e.fix)
    };
    let text = said(&gpt2, 4);
    for part in ["4 does not divide the 6 query heads", "1, 2, 3, 6"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let text = said(&with(&llama, &[("num_key_value_heads", 2)]), 3);
    for part in ["3 does not divide the 2 key-value heads", ": 1, 2, 6"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let text = said(&with(&llama, &[("intermediate_size", 31)]), 2);
    assert!(
        text.contains("the 31 places of the inner width") && text.ends_with(": 1"),
        "{text}"
    );
    assert_eq!(check(llama.model(), 1), Ok(()));
}
