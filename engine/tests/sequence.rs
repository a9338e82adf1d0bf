//! Sequence parallelism: hidden states between units cut by tokens over the ranks that share layers. Models train as on one rank, whatever
//! else divides the job; what is said to other ranks is what Korthikanti et al. (arXiv 2205.05198) count, and of what a parameter has a
//! summand on each rank the sum is made once.

use crate::common::*;
use crossweave_engine::{
    OffloadDevice, OffloadSpec, PipelineOrder, PipelineSpec, RankSpec, Recompute, ReduceGradients,
    dry_run,
};
use crossweave_hal::DType;
use crossweave_mesh::Axis;
use crossweave_nn::split::check;
use crossweave_nn::{Lora, ModelSpec, Predicts, Targets};
use crossweave_tensor::UnitDecl;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const STEPS: u64 = 3;

/// The same model with the tokens of its hidden states cut over the ranks that share its layers.
pub struct Tokens(Cut);

impl Declares for Tokens {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = self.0.declare();
        units
            .iter_mut()
            .for_each(|u| u.hidden_over = Axis::Tp.into());
        units
    }
}

pub fn tokens(model: &ModelSpec, lora: Option<&Lora>, tp: u32) -> Tokens {
    Tokens(Cut(model.clone(), lora.cloned(), tp))
}

/// The models of the committed checkpoints that predict the next token, by their folders.
fn checkpoints() -> BTreeMap<String, ModelSpec> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let folders = std::fs::read_dir(all).unwrap().map(|f| f.unwrap());
    let found = folders.filter_map(|f| {
        let name = f.file_name().into_string().unwrap();
        let text = std::fs::read_to_string(f.path().join("model/config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).unwrap();
        let spec = ModelSpec::from_hf(&config).unwrap();
        let next = spec.family().predicts() == Predicts::Next && !spec.family().sees();
        (next && spec.model().vocab >= 37 && check(spec.model(), 2).is_ok()).then_some((name, spec))
    });
    found.collect()
}

/// Learned positions behind a projection, norms before, behind and around, one normed input and two, windows, caps, shared key-value heads.
#[test]
fn every_family_trains_on_pieces_of_its_rows_as_on_one_rank() {
    let w = world();
    let mut cut = BTreeSet::new();
    for (name, spec) in checkpoints() {
        cut.insert(spec.family().name);
        let s = sgd(of_length(crate::common::spec(1, 1), 6));
        let alone = train(&w, &spec, &s, STEPS);
        let got = train(&w, &tokens(&spec, None, 2), &cut_over(s, 2), STEPS);
        let far = distance(&got, &alone);
        assert!(far < 2e-5, "{name}: {far:e}");
        assert!(
            (got.validation[0] - alone.validation[0]).abs() < 1e-5,
            "{name}"
        );
    }
    for family in [
        "bloom", "cohere", "falcon", "gemma2", "gpt2", "gpt_neox", "llama", "opt", "phi", "qwen3",
    ] {
        assert!(cut.contains(family), "{family} is not in {cut:?}");
    }
}

/// Two layers of which 2 and 3 ranks have equal parts, of vocabularies that neither divides.
pub fn models(dropout: f64) -> [ModelSpec; 2] {
    let sizes = [("n_head", 6), ("n_embd", 24), ("n_inner", 48)];
    let gated = [
        ("num_attention_heads", 12),
        ("num_key_value_heads", 6),
        ("head_dim", 4),
        ("intermediate_size", 30),
    ];
    [with(&gpt2(2, dropout), &sizes), with(&llama(2), &gated)]
}

/// ZeRO over the ranks that have the same pieces, reductions by step and by micro-batch, pipelines, recompute and offload, with masks of
/// dropped weights and features.
#[test]
fn pieces_of_rows_train_as_whole_ones_in_every_layout() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let mut k = 0;
    for (dropout, model) in [0.0, 0.1]
        .into_iter()
        .flat_map(|p| models(p).map(|m| (p, m)))
    {
        let alone = train(&w, &model, &of_length(spec(1, 1), 6), STEPS);
        for (dp, tp, pp) in [(1, 2, 1), (2, 3, 1), (2, 2, 1), (1, 2, 2), (2, 2, 2)] {
            for stage in 0..=3 {
                k += 1;
                if !taken(k) {
                    continue;
                }
                let mut s = RankSpec {
                    recompute: recompute[k % 3],
                    ..staged(of_length(spec(dp, [1, 2, 3][k % 3]), 6), stage)
                };
                s.zero.overlap = k % 4 != 0;
                if stage >= 2 && k % 2 == 0 {
                    s.zero.reduce = ReduceGradients::MicroBatch;
                }
                if pp > 1 {
                    let units = units(&model).len() as u32;
                    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
                    s.pipeline = Some(PipelineSpec::even(units, pp, orders[k % 2]));
                }
                if k % 3 == 0 {
                    let full = s.recompute == Recompute::Full;
                    s.offload = Some(OffloadSpec {
                        params: stage == 3,
                        activations: full,
                        ..offload(dir.path(), OffloadDevice::Host)
                    });
                }
                let got = train(&w, &tokens(&model, None, tp), &cut_over(s, tp), STEPS);
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

/// One beside every linear layer: the half that is whole meets the tokens of the hidden state.
#[test]
fn adapters_train_on_pieces_of_rows() {
    let w = world();
    let lora = Lora {
        r: 3,
        alpha: 7.0,
        dropout: 0.0,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    };
    let [gpt2, llama] = models(0.1);
    let shared = with(&llama, &[("num_key_value_heads", 1)]);
    for model in [gpt2, llama, shared] {
        let s = sgd(of_length(spec(1, 2), 6));
        let alone = train(&w, &(model.clone(), lora.clone()), &s, STEPS);
        for (dp, tp, stage) in [(1, 2, 0), (2, 3, 2), (2, 2, 3)] {
            let s = sgd(cut_over(staged(of_length(spec(dp, 1), 6), stage), tp));
            let got = train(&w, &tokens(&model, Some(&lora), tp), &s, STEPS);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "dp {dp}, tp {tp}, stage {stage}: {far:e}");
        }
    }
}

/// Key-value heads that several ranks share are computed of a rank's own tokens and gathered.
#[test]
fn ranks_share_key_value_heads_of_gathered_tokens() {
    let w = world();
    let [_, llama] = models(0.0);
    for (heads, tp) in [(1, 2), (1, 6), (2, 4), (3, 6)] {
        let keys = [("num_key_value_heads", heads), ("intermediate_size", 24)];
        let model = with(&llama, &keys);
        let s = sgd(of_length(spec(1, 2), 12));
        let alone = train(&w, &model, &s, STEPS);
        let got = train(&w, &tokens(&model, None, tp), &cut_over(s, tp), STEPS);
        let far = distance(&got, &alone);
        assert!(far < 2e-5, "{heads} heads on {tp} ranks: {far:e}");
    }
}

/// Predictions that do not count, and 16 bits.
#[test]
fn predictions_that_do_not_count_and_16_bits_are_as_on_one_rank() {
    let w = world();
    for model in models(0.0) {
        let s = of_length(spec(1, 2), 6);
        let counts = |q: u64, i: u64| !(q + i).is_multiple_of(3) && q != 2;
        let alone = train_with_counts(&w, &model, &s, STEPS, counts);
        let cut = tokens(&model, None, 2);
        let got = train_with_counts(&w, &cut, &cut_over(s.clone(), 2), STEPS, counts);
        let far = distance(&got, &alone);
        assert!(far < 1e-4, "{far:e}");
        let bf16 = RankSpec {
            compute: DType::Bf16,
            ..s
        };
        let alone = train(&w, &model, &bf16, STEPS);
        let got = train(&w, &cut, &cut_over(bf16, 2), STEPS);
        for (a, b) in got.metrics.iter().zip(&alone.metrics) {
            let far = (a.loss - b.loss).abs();
            assert!(far < 4e-3 * b.loss, "{} against {}", a.loss, b.loss);
        }
    }
}

/// With w = bsh (t-1)/t elements that a rank sends: a layer 10w, with full recompute 12w, one whose attention and MLP have one input 5w and
/// of two normed inputs 8w, the embedding 2w, the head 3w, and the loss as without.
#[test]
fn layers_say_what_the_paper_counts() {
    let w = world();
    let [gpt2, _] = models(0.0);
    let all = checkpoints();
    // As many key-value heads as ranks, so that none is shared.
    let one = &with(&all["phi-v4"], &[("num_key_value_heads", 2)]);
    let two = &all["gpt-neox-v4"];
    let (micro, tp) = (2, 2);
    for (what, model, recompute, of_layer) in [
        ("gpt2", &gpt2, Recompute::None, 10),
        ("gpt2", &gpt2, Recompute::Full, 12),
        ("phi", one, Recompute::None, 5),
        ("gpt_neox", two, Recompute::None, 8),
    ] {
        let m = model.model();
        let (layers, width) = (m.stack.layers.len() as u64, m.width);
        let s = RankSpec {
            recompute,
            ..of_length(spec(1, micro), 6)
        };
        let rows = s.rows.batch * s.rows.seq_len;
        let got = train(&w, &tokens(model, None, tp), &cut_over(s, tp), STEPS);
        for l in &got.ledgers {
            let of = l.collectives.iter().filter(|c| of_blocks(c, "tp"));
            let sent: u64 = of.map(|c| c.wire_elements).sum();
            let times = STEPS * u64::from(micro);
            let wire = rows * width * u64::from(tp - 1) / u64::from(tp);
            // A forward that is repeated scatters the table's once more, and gathers the head's in the place of the second gather.
            let (forwards, ends) = match recompute {
                Recompute::Full => (2, 3 + 3),
                _ => (1, 2 + 3),
            };
            let loss = forwards * 2 * rows * u64::from(tp + 1) * u64::from(tp - 1) / u64::from(tp);
            let all = times * ((layers * of_layer + ends) * wire + loss);
            assert_eq!(sent, all, "{what}, {recompute:?}: layer {of_layer}");
        }
    }
}

/// Every parameter that meets pieces of rows is summed, and no other: one mark less, or one more, is named with the parameter.
#[test]
fn a_sum_over_tokens_that_is_missing_or_made_twice_is_named() {
    let w = world();
    let null = w.null.open(0).unwrap();
    let [gpt2, llama] = models(0.0);
    let shared = with(&llama, &[("num_key_value_heads", 1)]);
    for model in [gpt2, llama, shared] {
        let s = cut_over(of_length(spec(1, 1), 6), 2);
        let units = placed(tokens(&model, None, 2).declare(), &s);
        let found = |units: &[UnitDecl]| {
            let found = dry_run(&null, units, DType::F32, 2, 6);
            found.map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(found(&units), Ok(()));
        let mut marked = 0;
        for u in 0..units.len() {
            for i in 0..units[u].params.len() {
                let mut wrong = units.clone();
                let p = &mut wrong[u].params[i];
                p.along_tokens = !p.along_tokens;
                marked += usize::from(!p.along_tokens);
                let says = format!("the gradient of {}", p.name);
                let e = found(&wrong).unwrap_err();
                assert!(e.contains("on tp") && e.contains(&says), "{e}");
            }
        }
        assert!(marked > 4, "{marked}");
    }
}

/// A layer keeps (32sbh + 4abs)/t bytes in 16 bits and the statistics of its norms (Korthikanti et al., §4.2: 34sbh/t, with attention that stores no
/// scores), and at the most t ranks hold a t-th of what one does and whole hidden states that are under way in one layer: an input that is gathered, what is
/// scattered, and their packed copies.
#[test]
fn ranks_hold_their_part_of_one_ranks_activations() {
    let w = world();
    let null = w.null.open(0).unwrap();
    let [a, h, s, b] = [6, 96, 66, 4];
    let sizes = [
        ("n_head", a),
        ("n_embd", h),
        ("n_inner", 4 * h),
        ("n_positions", s),
        ("vocab_size", 402),
    ];
    let model = with(&gpt2(3, 0.1), &sizes);
    let job = |recompute| RankSpec {
        compute: DType::Bf16,
        recompute,
        ..of_length(spec(1, (GLOBAL / b) as u32), s)
    };
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let alone = train(&w, &model, &job(recompute), 1);
        let most = |o: &Outcome| {
            o.ledgers
                .iter()
                .map(|l| l.memory.tags["activation"].peak)
                .max()
        };
        let one = most(&alone).unwrap();
        for tp in [2, 3] {
            let cut = tokens(&model, None, tp);
            let spec = cut_over(job(recompute), tp);
            let units = placed(cut.declare(), &spec);
            let dry = dry_run(&null, &units, DType::Bf16, b, s).unwrap();
            let statistics = 2 * 2 * 4 * b * s;
            let formula = (32 * s * b * h + 4 * a * b * s + statistics) / u64::from(tp);
            let kept = dry.units[1].saved_all;
            assert!(kept <= formula, "tp {tp}: {kept} of {formula}");
            let got = train(&w, &cut, &spec, 1);
            let held = most(&got).unwrap();
            let under_way = 5 * 2 * s * b * h;
            assert!(
                held <= one / u64::from(tp) + under_way,
                "tp {tp}, {recompute:?}: {held}, one rank {one}"
            );
        }
    }
}
