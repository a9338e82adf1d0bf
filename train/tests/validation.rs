//! The validation loss is the mean over the sequences held back, each once, whatever the batch, its division and the layout: those are drawn
//! by seed and compared with means taken one sequence at a time. `CROSSWEAVE_VALIDATION=100` draws so many of each kind of data.

use crate::support::{Scratch, records};
use serde_json::{Value, json};

/// Numbers by a linear congruence.
struct Draw(u64);

impl Draw {
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        from[(self.0 >> 33) as usize % from.len()]
    }
}

fn config(s: &Scratch, model: Value, data: Value) {
    let mut config = json!({
        "model": model, "data": data, "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "run": {"steps": 1, "threads_per_rank": 1, "generate": {"tokens": 0}},
    });
    config["data"]["cache_dir"] = json!("cache");
    s.write("v.json", config.to_string());
}

/// The validation loss of a run with these settings, and what it said.
fn loss(s: &Scratch, ranks: u64, sets: &[String]) -> (f64, String) {
    let said = s.job("v.json").ranks(ranks).sets(sets).run("out").said;
    let all = records(&s.path("out"));
    let loss = all.iter().find_map(|r| r["val_loss"].as_f64());
    std::fs::remove_dir_all(s.path("out")).unwrap();
    (loss.expect("a validation"), said)
}

fn one(s: &Scratch, more: &[String]) -> f64 {
    loss(
        s,
        1,
        &[&["train_batch_size=1".to_string()][..], more].concat(),
    )
    .0
}

/// Ranks and settings of a layout of a model with two layers and two heads.
fn layout(d: &mut Draw) -> (u64, Vec<String>) {
    let (dp, tp, pp) = d.of(&[
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 1),
        (2, 2, 1),
        (1, 2, 1),
        (1, 1, 2),
        (2, 1, 2),
    ]);
    let (micro, accumulation) = (d.of(&[1, 2, 3, 5]), d.of(&[1, 2, 3]));
    let mut sets = vec![
        format!("train_micro_batch_size_per_gpu={micro}"),
        format!("gradient_accumulation_steps={accumulation}"),
        format!("mesh.tp={tp}"),
        format!("mesh.pp={pp}"),
    ];
    if pp == 1 {
        let stage = d.of(&[0, 1, 2, 3]);
        sets.push(format!("zero_optimization.stage={stage}"));
    }
    match (dp, tp, pp) {
        (2, 1, 1) if micro > 1 => sets.push("run.balance=3,1".into()),
        (1 | 2, 1, 1) if (micro * accumulation * dp) % 2 == 0 => {
            let shards = 2 * dp * (micro % 2 + 1);
            if (micro * accumulation * dp) % shards == 0 {
                sets.push(format!("run.canonical_shards={shards}"));
            }
        }
        _ => {}
    }
    (dp * tp * pp, sets)
}

/// Holds drawn layouts to `mean`, which reads `rows` sequences.
fn hold(s: &Scratch, kind: &str, mean: f64, rows: u64, more: &[String]) {
    let cases = std::env::var("CROSSWEAVE_VALIDATION").map_or(3, |n| n.parse().unwrap());
    let mut d = Draw(kind.bytes().fold(36, |a, b| a * 31 + u64::from(b)));
    for _ in 0..cases {
        let (ranks, sets) = layout(&mut d);
        let (found, said) = loss(s, ranks, &[&sets[..], more].concat());
        let off = (found - mean).abs() / mean;
        assert!(off < 2e-6, "{kind}, {sets:?}: {found} for {mean}, {off:e}");
        let told = format!("validation: {rows} of ");
        assert!(said.contains(&told), "{kind}, {sets:?}: {said}");
    }
}

const LLAMA: fn() -> Value = || {
    json!({"family": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
           "intermediate_size": 16, "max_position_embeddings": 64})
};

#[test]
fn of_examples_it_is_the_mean_of_all_answers() {
    let s = Scratch::new();
    let line = |i: u64| {
        let row = json!({"prompt": "q".repeat(1 + i as usize % 5), "completion": "7".repeat(1 + (i * i) as usize % 13)});
        format!("{row}\n")
    };
    s.write("train.jsonl", (0..16).map(line).collect::<String>());
    s.write("held.jsonl", (20..30).map(line).collect::<String>());
    let data = |held: &str| json!({"train": "train.jsonl", "validation": held, "format": "prompt_completion", "seq_len": 32});
    // Each alone: the mean of its own answer, of so many tokens and the end.
    let mut alone = vec![];
    for i in 20..30 {
        s.write("one.jsonl", line(i));
        config(&s, LLAMA(), data("one.jsonl"));
        alone.push((1 + (i * i) % 13 + 1, one(&s, &[])));
    }
    let mean = |of: &[(u64, f64)]| {
        let tokens: u64 = of.iter().map(|(n, _)| n).sum();
        of.iter().map(|(n, l)| *n as f64 * l).sum::<f64>() / tokens as f64
    };
    config(&s, LLAMA(), data("held.jsonl"));
    hold(&s, "examples", mean(&alone), 10, &[]);
    let capped = ["run.validate_sequences=7".to_string()];
    hold(&s, "capped", mean(&alone[..7]), 7, &capped);
    let (batches, said) = loss(
        &s,
        1,
        &["train_batch_size=3", "run.validate_batches=2"].map(String::from),
    );
    assert!((batches - mean(&alone[..6])).abs() < 1e-5, "{batches}");
    assert!(said.contains("note: validation: 6 of 10 sequences are read each time (run.validate_batches 2 x train_batch_size 3)"), "{said}");
    // Where nothing was said, eight batches were read before.
    let (_, said) = loss(&s, 1, &["train_batch_size=1".into()]);
    assert!(
        said.contains("warning: validation: 10 of 10") && said.contains("run.validate_sequences"),
        "{said}"
    );
    s.job("v.json")
        .set("run.validate_sequences=1")
        .set("run.validate_batches=1")
        .refused(&["run.validate_sequences", "run.validate_batches"]);
}

#[test]
fn of_text_it_is_the_mean_of_all_rows_for_every_objective() {
    let s = Scratch::new();
    let held: String = (0..31).map(|i| format!("{} is held. ", i * 77)).collect();
    std::fs::create_dir(s.path("held")).unwrap();
    s.write("held/a.txt", &held);
    let rows = |length: usize| held.len() as u64 / length as u64;
    let bert = json!({"family": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32});
    let t5 = json!({"family": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32});
    let kinds = [
        ("causal", LLAMA(), json!({})),
        ("documents", LLAMA(), json!({"reset_attention_mask": true})),
        ("masked", bert.clone(), json!({})),
        ("pairs", bert, json!({"next_sentence": true})),
        ("spans", t5, json!({})),
    ];
    for (kind, model, more) in kinds {
        let mut data = json!({"train": "corpus/*.txt", "validation": "held/*.txt", "seq_len": 32});
        let more = more.as_object().unwrap().clone();
        data.as_object_mut().unwrap().extend(more);
        config(&s, model, data);
        // One sequence a batch: nothing is filled up.
        hold(&s, kind, one(&s, &[]), rows(32), &[]);
    }
}

#[test]
fn of_a_mixture_it_is_the_mean_of_all_sources() {
    let s = Scratch::new();
    std::fs::create_dir(s.path("held")).unwrap();
    s.write("held/a.txt", "the half of number 5 is 2. ".repeat(4));
    s.write("held/b.txt", "zz QQ xx 81726354 ".repeat(17));
    let data = |held: Value| json!({"train": "corpus/*.txt", "validation": held, "seq_len": 16});
    let source = |file: &str, weight: f64| json!({"files": file, "weight": weight});
    let each = ["held/a.txt", "held/b.txt"].map(|file| {
        config(&s, LLAMA(), data(json!(file)));
        one(&s, &[])
    });
    let (a, b) = (27 * 4 / 16, 18 * 17 / 16);
    let mean = (a as f64 * each[0] + b as f64 * each[1]) / (a + b) as f64;
    let held = json!([source("held/a.txt", 0.7), source("held/b.txt", 0.3)]);
    config(&s, LLAMA(), data(held));
    hold(&s, "mixture", mean, a + b, &[]);
}
