//! A vocabulary whose rows are cut over ranks (`crossweave_tensor::Vocabulary`): gradients, losses and logits are those of one rank, whether
//! its rows are divided evenly or not, and its memory is divided.

use crate::common::*;
use crossweave_engine::{Engine, MicroBatch, PipelineOrder, PipelineSpec, RankSpec, dry_run};
use crossweave_hal::DType;
use crossweave_nn::split::vocabulary;
use crossweave_nn::{Lora, ModelSpec, Targets};
use serde_json::{Value, json};
use std::sync::Mutex;

/// Models of two layers with 12 heads, tied and not, with factors and caps of logits.
fn models() -> [ModelSpec; 4] {
    let heads = [("n_head", 12), ("n_embd", 24), ("n_inner", 48)];
    let family = |name: &str, more: Value| {
        let mut config = json!({"model_type": name, "vocab_size": 37, "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5,
            "initializer_range": 0.1});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelSpec::from_hf(&config).unwrap()
    };
    [
        with(&gpt2(2, 0.0), &heads),
        family("llama", json!({"tie_word_embeddings": false})),
        family("gemma2", json!({"final_logit_softcapping": 3.0})),
        family(
            "granite",
            json!({"head_dim": null, "logits_scaling": 3.0, "embedding_multiplier": 2.0}),
        ),
    ]
}

/// Each gradient by its name, of what a rank holds.
pub type Gradients = Vec<(String, Vec<f32>)>;

/// What every rank makes of a batch in which some predictions do not count: its loss, its gradients, and what it holds.
pub fn gradients(w: &World, model: &impl Declares, s: &RankSpec) -> Vec<(f64, Gradients, Trained)> {
    let n = (s.rows.batch * s.rows.seq_len) as i32;
    let tokens: Vec<i32> = (0..n).map(|i| i * i % 37).collect();
    let counted = |(i, id): (usize, &i32)| if i % 7 == 2 { -100 } else { (id + 5) % 37 };
    let targets: Vec<i32> = tokens.iter().enumerate().map(counted).collect();
    let found = Mutex::new(vec![]);
    let look = |t: &mut Engine| {
        let batch = MicroBatch {
            tokens: &tokens,
            targets: &targets,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        };
        let (loss, all) = t.loss_and_grads(&batch).unwrap();
        let held = t
            .params()
            .into_iter()
            .map(|p| (p.name.clone(), p.held.clone()));
        found.lock().unwrap().push((loss, all, held.collect()));
    };
    let mut s = s.clone();
    s.rows.labelled = true;
    train_with(w, model, &s, 0, look);
    found.into_inner().unwrap()
}

pub type Trained = std::collections::BTreeMap<String, crossweave_mesh::Held>;

/// Rows that are divided evenly (of 36), and not; targets that a rank has and that it has not.
#[test]
fn gradients_are_those_of_the_whole_vocabulary() {
    let w = world();
    for model in models() {
        let s = spec(1, 6);
        let [(whole, all, _)] = &gradients(&w, &model, &s)[..] else {
            panic!("one rank");
        };
        for tp in [2, 3, 4, 6] {
            let ranks = gradients(&w, &Cut(model.clone(), None, tp), &cut_over(s.clone(), tp));
            assert_eq!(ranks.len(), tp as usize);
            for (loss, own, held) in ranks {
                let name = model.family().name;
                assert!(
                    (loss - whole).abs() < 1e-6 * whole,
                    "{name} over {tp}: {loss} and {whole}"
                );
                for ((name, got), (of, want)) in own.iter().zip(all) {
                    assert_eq!(name, of);
                    let want = held[name].part.take(want);
                    let top = want.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
                    assert_eq!(got.len(), want.len());
                    for (g, v) in got.iter().zip(&want) {
                        assert!(
                            (g - v).abs() < 1e-5 * top,
                            "{name} over {tp}: {g} and {v} of {top}"
                        );
                    }
                }
            }
        }
    }
}

/// Predictions that do not count add nothing on any rank.
#[test]
fn labels_that_do_not_count_count_on_no_rank() {
    let w = world();
    let counts = |q: u64, i: u64| !(q + i).is_multiple_of(3);
    for model in models() {
        let alone = train_with_counts(&w, &model, &spec(1, 2), 3, counts);
        for (dp, tp) in [(1, 3), (2, 2)] {
            let s = cut_over(spec(dp, 2), tp);
            let got = train_with_counts(&w, &Cut(model.clone(), None, tp), &s, 3, counts);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "dp {dp}, tp {tp}: {far:e}");
        }
    }
}

/// Logits are drawn from on one rank, which has all of them.
#[test]
fn samples_are_drawn_from_all_logits() {
    let w = world();
    let tokens: Vec<i32> = (0..2 * 5).map(|i| i * 3 % 37).collect();
    for model in models() {
        let drawn = |model: &Cut, s: &RankSpec| -> Vec<f32> {
            let found = Mutex::new(vec![]);
            let draw = |t: &mut Engine| {
                if !t.spec().place.is_first() {
                    return t.serve_reads().unwrap();
                }
                t.lead();
                *found.lock().unwrap() = t.logits(&tokens, 2, 5).unwrap();
                t.done_reading().unwrap();
            };
            train_with(&w, model, s, 0, draw);
            found.into_inner().unwrap()
        };
        let alone = drawn(&Cut(model.clone(), None, 1), &spec(1, 1));
        assert_eq!(alone.len(), 2 * 5 * 37);
        for (tp, pp) in [(2, 1), (3, 2), (6, 1)] {
            let mut s = cut_over(spec(1, 1), tp);
            let stages = PipelineSpec::even(4, pp, PipelineOrder::OneFOneB);
            s.pipeline = (pp > 1).then_some(stages);
            let got = drawn(&Cut(model.clone(), None, tp), &s);
            assert_eq!(got.len(), alone.len());
            for (a, b) in got.iter().zip(&alone) {
                assert!((a - b).abs() < 1e-5, "{tp} ranks: {a} and {b}");
            }
        }
    }
}

/// An adapter of the head has rows of its B where the head has rows.
#[test]
fn an_adapter_of_the_head_follows_it() {
    let w = world();
    let targets = ["lm_head"].map(String::from).to_vec();
    let lora = Lora {
        r: 3,
        alpha: 7.0,
        dropout: 0.0,
        rslora: false,
        targets: Targets::Names(targets),
        parameters: vec![],
    };
    for model in models() {
        let alone = train(&w, &(model.clone(), lora.clone()), &spec(1, 2), 3);
        for tp in [2, 3] {
            let cut = Cut(model.clone(), Some(lora.clone()), tp);
            let got = train(&w, &cut, &cut_over(spec(1, 2), tp), 3);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "tp {tp}: {far:e}");
        }
    }
}

/// Rows of the table, of the head and of the logits are on one rank each, and the last has what is left.
#[test]
fn the_memory_of_a_vocabulary_is_divided() {
    let (w, rows) = (world(), 3001u64);
    for model in models() {
        let model = with(&model, &[("vocab_size", rows)]);
        let alone = train(&w, &model, &spec(1, 1), 2);
        for tp in [2, 4] {
            let s = cut_over(spec(1, 1), tp);
            let cut = Cut(model.clone(), None, tp);
            let mut held = 0;
            for rank in 0..tp {
                let units = placed(cut.declare(), &ranked(&s, rank));
                let table = units[0].params[0].local().dims()[0];
                let each = rows.div_ceil(u64::from(tp));
                assert!(table == each || rank == tp - 1 && table < each);
                let null = w.null.open(0).unwrap();
                let dry = dry_run(&null, &units, DType::F32, s.rows.batch, s.rows.seq_len).unwrap();
                let width = units[0].params[0].local().dims()[1];
                let others = units[0].params[1..].iter().map(|p| p.local().numel());
                assert_eq!(
                    dry.units[0].params,
                    table * width + others.sum::<u64>(),
                    "rank {rank} of {tp}"
                );
                held += table;
            }
            assert_eq!(held, rows);
            let got = train(&w, &cut, &s, 2);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "tp {tp}: {far:e}");
            for l in &got.ledgers {
                for tag in ["param", "grad", "moment", "activation"] {
                    let most = |l: &crossweave_engine::RankLedger| l.memory.tags[tag].peak as f64;
                    let part = most(l) / most(&alone.ledgers[0]);
                    // Most is the vocabulary's: nearly all of it is divided.
                    assert!(
                        part < 1.25 / f64::from(tp),
                        "rank {}, {tag} over {tp}: {part}",
                        l.rank
                    );
                }
            }
        }
    }
}

/// Where a rank would have no rows every rank has them all.
#[test]
fn a_vocabulary_too_small_to_cut_is_whole() {
    let w = world();
    let [model, ..] = models();
    let model = with(&model, &[("vocab_size", 41), ("n_head", 8)]);
    let cut = |tp| vocabulary(model.model(), tp);
    assert!(cut(2) && cut(7) && !cut(1) && !cut(8));
    let alone = train(&w, &model, &spec(1, 1), 3);
    let tp = 8;
    let s = cut_over(spec(1, 1), tp);
    let far = distance(&train(&w, &Cut(model, None, tp), &s, 3), &alone);
    assert!(far < 1e-4, "{far:e}");
}
