//! Examples that share rows train as examples that have rows of their own: the same loss and the same gradients, whatever the layout.
//!
//! Examples, marks, model and layout are drawn by a seed. A sample runs with the suite; `CROSSWEAVE_SEED=N` draws others, and the test
//! that is ignored draws hundreds.

use crate::common::{
    Boot, Cut, World, cut_over, job_ranks, placed, ranked, small_buckets, spec, units, world,
};
use crate::random::{Dice, seed};
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Documents, MicroBatch, PipelineOrder, PipelineSpec, RankSpec, Recompute, Rows, StateKind,
    Units, ZeroSpec, ZeroStage, dry_run, prepare,
};
use crossweave_hal::LocalKv;
use crossweave_nn::ModelSpec;
use serde_json::json;
use std::sync::Arc;

const ROWS: usize = 12;
const VOCAB: u64 = 40;

/// A row of a batch: inputs, targets and cumulative lengths of its examples.
#[derive(Clone, Default)]
struct Row {
    tokens: Vec<i32>,
    targets: Vec<i32>,
    lengths: Vec<i32>,
}

/// A row of `t` inputs that holds these examples, each of tokens and marks. The last token of the row is no input.
fn row(examples: &[(Vec<i32>, Vec<bool>)], t: usize) -> Row {
    let (mut tokens, mut targets, mut lengths) = (vec![], vec![], vec![0]);
    for (ids, marks) in examples {
        let labels = ids.iter().zip(marks).skip(1);
        tokens.extend_from_slice(ids);
        targets.extend(labels.map(|(id, counts)| if *counts { *id } else { -100 }));
        targets.push(-100);
        lengths.push(tokens.len().min(t) as i32);
    }
    tokens.resize(t, 7);
    targets.resize(t, -100);
    lengths.resize(t + 1, *lengths.last().unwrap());
    Row {
        tokens,
        targets,
        lengths,
    }
}

/// Rows of `t` inputs, packed, and the same examples one a row.
fn drawn(d: &mut Dice, t: usize) -> [Vec<Row>; 2] {
    let (mut packed, mut single) = (vec![], vec![]);
    for _ in 0..ROWS {
        let (mut examples, mut room) = (vec![], t + 1);
        while room >= 2 && (examples.is_empty() || !d.once_in(6)) {
            let len = 2 + d.roll(room as u64 - 1).min(d.roll(t as u64)) as usize;
            let ids: Vec<i32> = (0..len).map(|_| d.roll(VOCAB) as i32).collect();
            let mut marks: Vec<bool> = (0..len).map(|_| d.once_in(2)).collect();
            marks[1 + d.roll(len as u64 - 1) as usize] = true;
            room -= len;
            examples.push((ids, marks));
        }
        packed.push(row(&examples, t));
        single.extend(examples.iter().map(|e| row(std::slice::from_ref(e), t)));
    }
    [packed, single]
}

/// Models of which each does something else to positions: it looks them up, turns by them, looks no further than a window, or weighs by distance.
fn model(d: &mut Dice) -> ModelSpec {
    let (layers, positions) = (2 + d.roll(2), 24);
    let heads = json!({"vocab_size": VOCAB, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 16, "head_dim": 8,
        "intermediate_size": 32, "num_hidden_layers": layers, "max_position_embeddings": positions, "initializer_range": 0.1});
    let with = |more: serde_json::Value| {
        let mut config = heads.clone();
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    let config = d.of(&[
        json!({"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": positions, "n_embd": 16, "n_layer": layers, "n_head": 2,
            "n_inner": 64, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.1}),
        with(json!({"model_type": "llama"})),
        with(json!({"model_type": "mistral", "sliding_window": 3})),
        json!({"model_type": "bloom", "vocab_size": VOCAB, "hidden_size": 16, "n_layer": layers, "n_head": 2, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "initializer_range": 0.1, "apply_residual_connection_post_layernorm": false}),
    ]);
    ModelSpec::from_hf(&config).unwrap()
}

/// A step by momentum, whose first moment is then the gradient.
fn job(ranks: u32, micro_batches: u32, batch: usize, t: usize) -> RankSpec {
    let sgd = Sgd {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
    };
    RankSpec {
        rows: Rows {
            labelled: true,
            ..Rows::new(batch as u64, t as u64)
        },
        clip: 0.0,
        optim: ParamGroups::all(Optimizer::Sgd(sgd), 0.0),
        ..spec(ranks, micro_batches)
    }
}

/// Loss of a step on these rows, the validation loss of the same rows, and the gradient of every parameter.
fn step(w: &World, model: &Cut, s: &RankSpec, rows: &[Row]) -> (f64, f64, Vec<(String, Vec<f32>)>) {
    let kv = Arc::new(LocalKv::default());
    let packed = s.rows.documents.is_some();
    let rank = |rank: u32| {
        let s = ranked(s, rank);
        let units = placed(units(model), &s);
        let null = w.null.open(0).unwrap();
        let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
        let device = w.cpu.open(rank).unwrap();
        let mut t = w.rank(&device, units, &s, &dry, &Boot(kv.clone())).unwrap();
        t.init().unwrap();
        let own = s.own_replicas();
        let each = (own.start * s.micro_batches..own.end * s.micro_batches).map(|m| {
            let first = m as usize * s.rows.batch as usize;
            let mut all = Row::default();
            for row in &rows[first..first + s.rows.batch as usize] {
                all.tokens.extend(&row.tokens);
                all.targets.extend(&row.targets);
                all.lengths.extend(row.lengths.iter().filter(|_| packed));
            }
            all
        });
        let each: Vec<Row> = each.collect();
        let batches = each.iter().map(|m| MicroBatch {
            tokens: &m.tokens,
            targets: &m.targets,
            lengths: &m.lengths,
            images: &[],
            first_sequence: 0,
        });
        let batches: Vec<MicroBatch<'_>> = batches.collect();
        let all = rows.iter().flat_map(|r| &r.targets);
        let (counted, all) = (
            all.clone().filter(|y| **y != -100).count() as u64,
            all.count() as u64,
        );
        let sums = batches.iter().map(|b| t.evaluate(b).unwrap());
        let own: f64 = sums.sum::<f64>() / batches.len() as f64;
        let validation = t.mean_over_replicas(&[own]).unwrap() * all as f64 / counted as f64;
        t.count_targets(counted, all).unwrap();
        t.step(&batches, 1e-3).unwrap();
        let loss = t.metrics().unwrap().unwrap().loss;
        let mut grads = vec![];
        match rank {
            0 => {
                for p in t.params() {
                    let grad = t.read(&p.name, StateKind::Moment1).unwrap();
                    grads.push((p.name.to_string(), grad));
                }
                t.done_reading().unwrap();
            }
            _ => t.serve_reads().unwrap(),
        }
        (loss, validation, grads)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let all: Vec<_> = (0..job_ranks(s))
            .map(|r| scope.spawn(move || rank(r)))
            .collect();
        let mut all: Vec<_> = all.into_iter().map(|r| r.join().unwrap()).collect();
        all.swap_remove(0)
    })
}

const PACKED: Documents = Documents {
    end: -1,
    attention: true,
    positions: true,
};

/// Draws job number `seed` and holds it against its examples one a row on one rank.
fn trains_as_unpacked(w: &World, seed: u64) {
    let d = &mut Dice(seed);
    let model = model(d);
    let t = 8 + d.roll(14) as usize;
    let [packed, single] = drawn(d, t);
    let tp = d.of(&[1, 1, 2]);
    let count = units(&model).len() as u32;
    let stages = d.of(&[1, 1, 2, 3]).min(4 / tp);
    let ranks = d.of(&[1, 2, 3, 4]).min(8 / (stages * tp));
    let micro = d.of(&[1, 2, 3]);
    let micro = match (ROWS as u32).is_multiple_of(ranks * micro) {
        true => micro,
        false => 1,
    };
    let order = d.of(&[PipelineOrder::GPipe, PipelineOrder::OneFOneB]);
    let mut s = RankSpec {
        recompute: d.of(&[Recompute::None, Recompute::Full, Recompute::Selective]),
        zero: ZeroSpec {
            stage: ZeroStage::from_number(d.roll(4) as u32).unwrap(),
            ..small_buckets()
        },
        pipeline: (stages > 1).then(|| PipelineSpec::even(count, stages, order)),
        ..job(ranks, micro, ROWS / (ranks * micro) as usize, t)
    };
    s.rows.documents = Some(PACKED);
    let cut = Cut(model.clone(), None, tp);
    let (loss, validation, grads) = step(w, &cut, &cut_over(s.clone(), tp), &packed);
    let whole = Cut(model.clone(), None, 1);
    let alone = job(1, 1, single.len(), t);
    let (want, held, wanted) = step(w, &whole, &alone, &single);
    let what = format!(
        "job {seed}: {}, {} examples in {ROWS} rows of {t}, dp {ranks} tp {tp} stages {stages}, {micro} micro-batches, {:?}, {:?}",
        model.family().name,
        single.len(),
        s.zero.stage,
        s.recompute
    );
    assert!(
        (loss - want).abs() <= 1e-6 * want,
        "{what}: loss {loss}, unpacked {want}"
    );
    assert!(
        (validation - held).abs() <= 1e-6 * held,
        "{what}: validation {validation}, unpacked {held}"
    );
    for ((name, got), (_, want)) in grads.iter().zip(&wanted) {
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!(
                (g - w).abs() <= 1e-6,
                "{what}: {name}[{i}] is {g}, unpacked {w}"
            );
        }
    }
    assert_eq!(grads.len(), wanted.len());
}

fn train_as_unpacked(jobs: u64) {
    let w = world();
    let first = seed() * 1_000_000;
    (first..first + jobs).for_each(|s| trains_as_unpacked(&w, s));
}

#[test]
fn packed_examples_train_as_unpacked_ones() {
    train_as_unpacked(16);
}

#[test]
#[ignore = "minutes; for a change of packing, attention or the division of a batch"]
fn hundreds_of_packed_jobs_train_as_unpacked_ones() {
    train_as_unpacked(400);
}

/// Without the lengths the examples of a row would see each other, so the test above can fail.
#[test]
fn lengths_matter_and_wrong_ones_are_refused() {
    let w = world();
    let d = &mut Dice(3);
    let (model, t) = (model(d), 12);
    let [packed, _] = drawn(d, t);
    let cut = Cut(model.clone(), None, 1);
    let mut s = job(1, 1, ROWS, t);
    s.rows.documents = Some(PACKED);
    let apart = step(&w, &cut, &s, &packed).0;
    let together = step(&w, &cut, &job(1, 1, ROWS, t), &packed).0;
    assert!((apart - together).abs() > 1e-4, "{apart} and {together}");
    let refused = |s: &RankSpec, lengths: &[i32]| {
        let null = w.null.open(0).unwrap();
        let units = units(&model);
        let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
        let units = Units::new(units, &s.place, &s.optim).unwrap();
        let device = w.cpu.open(0).unwrap();
        let lowered = prepare(&device, s, &units, &dry).unwrap();
        let boot = Boot(Arc::new(LocalKv::default()));
        let mut engine =
            crossweave_engine::Engine::new(w.devices(&device), lowered, units, w.links(&boot))
                .unwrap();
        engine.init().unwrap();
        let ids = vec![1; ROWS * t];
        let batch = MicroBatch {
            tokens: &ids,
            targets: &ids,
            lengths,
            images: &[],
            first_sequence: 0,
        };
        engine.count_targets(1, 1).unwrap();
        let step = engine.step(&[batch], 0.1).unwrap_err().to_string();
        assert!(engine.evaluate(&batch).is_err());
        step
    };
    let mut lengths: Vec<i32> = packed.iter().flat_map(|r| r.lengths.clone()).collect();
    assert!(refused(&job(1, 1, ROWS, t), &lengths).contains("lengths of documents"));
    assert!(refused(&s, &lengths[1..]).contains("give 13 ascending ones"));
    lengths[1] = 13;
    assert!(refused(&s, &lengths).contains("12 at most"));
}
