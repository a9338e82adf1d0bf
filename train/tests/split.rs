//! `mesh.tp`: whole runs whose layers are cut over ranks, beside data parallelism, ZeRO and stages; they train as one rank,
//! go on over other numbers of ranks, move what `plan` predicted, and refuse what cannot be cut.

use crate::support::oracles::{oracle, read};
use crate::support::{Scratch, cpu_plugin, ledger, losses, open_json};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Gradients that are zero but for rounding must not be blown up to whole steps.
const PLAIN: &str = "optimizer.params.eps=1e-4";

fn train(s: &Scratch, config: &str, ranks: &str, sets: &[&str], out: &str) {
    s.job(config).ranks(ranks).sets(sets).run(out);
}

/// Losses of every step, and the trained model or adapters.
pub fn near(s: &Scratch, a: &str, b: &str, what: &str) {
    let [x, y] = [a, b].map(|run| losses(&s.path(run)));
    assert!(
        x.len() == y.len() && x.len() > 2,
        "{what}: {} and {} steps",
        x.len(),
        y.len()
    );
    for (x, y) in x.iter().zip(&y) {
        assert!((x - y).abs() <= 1e-4 * y.abs(), "{what}: {x} and {y}");
    }
    let [x, y] = [a, b].map(|run| {
        let file = |name: &str| s.path(run).join("model").join(name);
        let [adapters, model] = ["adapter_model.safetensors", "model.safetensors"].map(file);
        read(if adapters.exists() { &adapters } else { &model })
    });
    assert!(x.keys().eq(y.keys()));
    for (name, (.., y)) in &y {
        let top = y.iter().fold(0.05f64, |m, v| m.max(v.abs()));
        let far = x[name].2.iter().zip(y).map(|(a, b)| (a - b).abs());
        let far = far.fold(0.0, f64::max);
        assert!(
            far <= 1e-3 * top,
            "{what}: {name} is {far:e} away, of {top:e}"
        );
    }
}

#[test]
fn runs_over_cut_layers_train_as_one_rank() {
    let s = Scratch::new();
    let drop = "model.attn_pdrop=0.1";
    train(&s, "config.json", "1", &[PLAIN, drop], "whole");
    for (ranks, more) in [
        ("2", vec![]),
        (
            "4",
            vec!["zero_optimization.stage=3", "model.recompute=\"full\""],
        ),
        ("4", vec!["mesh.pp=2", "zero_optimization.stage=1"]),
        (
            "8",
            vec![
                "mesh.pp=2",
                "zero_optimization.stage=2",
                "run.check=\"values\"",
            ],
        ),
        (
            "4",
            vec![
                "mesh.order=\"tp,dp,pp,cp\"",
                "model.recompute=\"selective\"",
            ],
        ),
    ] {
        let out = format!("{ranks}-{}", more.len() + more.concat().len());
        let own = [PLAIN, drop, "mesh.tp=2", "mesh.sequence_parallel=false"];
        let sets = [&own, &more[..]].concat();
        train(&s, "config.json", ranks, &sets, &out);
        near(&s, &out, "whole", &format!("{ranks} ranks, {more:?}"));
        assert_eq!(ledger(&s.path(&out))["tensor_parallel"], 2);
    }
}

/// A checkpoint holds declared tensors, and so has no number of ranks.
#[test]
fn a_run_goes_on_over_another_number_of_ranks() {
    let s = Scratch::new();
    train(&s, "config.json", "1", &[PLAIN], "whole");
    for (name, first, then) in [
        ("cut-first", ["2", "mesh.tp=2"], ["2", "mesh.tp=1"]),
        (
            "cut-later",
            ["2", "zero_optimization.stage=3"],
            ["4", "mesh.tp=2"],
        ),
        ("staged-later", ["2", "mesh.tp=2"], ["2", "mesh.pp=2"]),
    ] {
        let part = format!("{name}-part");
        train(
            &s,
            "config.json",
            first[0],
            &[PLAIN, "run.steps=5", first[1]],
            &part,
        );
        let rest = s.job("config.json").ranks(then[0]);
        rest.sets(&[PLAIN, then[1]]).resume(&part).run(name);
        near(&s, name, "whole", name);
    }
}

/// Encoders, an encoder with its decoder, a language model behind a tower over images, and a student beside its teacher.
#[test]
fn models_of_other_rows_train_as_on_one_rank() {
    let s = Scratch::new();
    let text = |model: Value| {
        json!({
            "model": model,
            "data": {"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache", "seq_len": 32},
            "run": {"steps": 6, "validate_every": 4, "validate_batches": 2, "threads_per_rank": 1},
            "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4}},
        })
    };
    let bert = text(
        json!({"family": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}),
    );
    let mut pairs = bert.clone();
    pairs["data"]["next_sentence"] = json!(true);
    let t5 = text(
        json!({"family": "t5", "d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.1}),
    );
    let mut roberta = bert.clone();
    roberta["model"]["family"] = json!("roberta");
    roberta["model"]["max_position_embeddings"] = json!(34);
    let mut mt5 = t5.clone();
    mt5["model"]["family"] = json!("mt5");
    let given = |model: Value, tokens: PathBuf| {
        json!({
            "model": model, "data": {"tokens": tokens, "key": "input_ids"}, "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-4}},
            "run": {"steps": 6, "threads_per_rank": 1, "generate": {"tokens": 0}},
        })
    };
    let llava = given(
        json!({"hf": oracle("llava-v5/model")}),
        oracle("llava-v5/train.safetensors"),
    );
    let meta = open_json(&oracle("distill/meta.json"));
    let folder = |key: &str| oracle(meta[key].as_str().unwrap().trim_start_matches("../"));
    let mut distill = given(
        json!({"hf": folder("student").join("model")}),
        folder("student").join("train.safetensors"),
    );
    distill["distill"] = json!({"teacher": folder("teacher").join("model")});
    for (name, config) in [
        ("bert", bert),
        ("pairs", pairs),
        ("roberta", roberta),
        ("t5", t5),
        ("mt5", mt5),
        ("llava", llava),
        ("distill", distill),
    ] {
        s.write("c.json", config.to_string());
        let [whole, cut] = ["whole", "cut"].map(|part| format!("{name}-{part}"));
        train(&s, "c.json", "2", &[], &whole);
        let over = ["mesh.tp=2", "zero_optimization.stage=2"];
        let ran = s.job("c.json").ranks(4).sets(&over).run(&cut);
        // Rows of one text are cut by tokens; why others are not is said.
        let off = ran.said.contains("mesh.sequence_parallel is off: ");
        assert_eq!(
            off,
            !["bert", "roberta"].contains(&name),
            "{name}: {}",
            ran.said
        );
        near(&s, &cut, &whole, name);
    }
}

/// Muon gathers what is cut, adapters drop of what they read, and a student hears a teacher over a vocabulary that is cut.
#[test]
fn optimizers_and_adapters_of_cut_layers_train_as_on_one_rank() {
    let s = Scratch::new();
    let muon =
        r#"optimizer={"type": "Muon", "params": {"lr": 0.01, "adam_lr": 0.001, "eps": 1e-4}}"#;
    train(&s, "config.json", "1", &[muon], "muon");
    let stage = "zero_optimization.stage=2";
    let sets = [muon, "mesh.tp=2", stage, "run.check=\"values\""];
    train(&s, "config.json", "4", &sets, "muon-cut");
    near(&s, "muon-cut", "muon", "Muon");
    let model = oracle("llama-mqa/model");
    let config = json!({
        "model": {"hf": model, "lora": {"r": 2, "dropout": 0.2, "target_modules": "all-linear"}, "attn_pdrop": 0.1},
        "data": {"tokens": oracle("llama-mqa/train.safetensors"), "key": "input_ids"}, "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-4}},
        "run": {"steps": 6, "threads_per_rank": 1, "generate": {"tokens": 0}},
    });
    s.write("c.json", config.to_string());
    train(&s, "c.json", "2", &[], "adapted");
    let sets = ["mesh.tp=2", "zero_optimization.stage=1"];
    train(&s, "c.json", "4", &sets, "adapted-cut");
    let [x, y] = ["adapted", "adapted-cut"].map(|run| losses(&s.path(run)));
    assert!(x.len() == 6 && x.len() == y.len());
    for (x, y) in x.iter().zip(&y) {
        assert!((x - y).abs() <= 1e-4 * y.abs(), "{x} and {y}");
    }
}

#[test]
fn what_cannot_be_cut_is_refused_before_it_begins() {
    let s = Scratch::new();
    let other = cpu_plugin().display().to_string();
    let apart = format!("cpu:1,{other}:1");
    for (ranks, sets, parts) in [
        (
            "3",
            vec!["mesh.tp=3"],
            vec!["mesh.tp", "3 does not divide the 2 query heads", "1, 2"],
        ),
        (
            "2",
            vec!["mesh.tp=2", "model.n_inner=33"],
            vec!["mesh.tp", "33 places of the inner width"],
        ),
        (
            "3",
            vec!["mesh.tp=2"],
            vec!["mesh.tp", "3 ranks cannot be divided", "--ranks"],
        ),
        (
            "2",
            vec!["mesh.tp=2", "run.canonical_shards=4"],
            vec!["run.canonical_shards", "mesh.tp"],
        ),
        (
            &apart,
            vec!["mesh.tp=2"],
            vec!["ranks 0 and 1 share layers", "crossweave mesh show"],
        ),
    ] {
        s.job("config.json")
            .ranks(ranks)
            .sets(&sets)
            .refused(&parts);
    }
    // Whole groups on each are one job.
    let both = format!("cpu:2,{other}:2");
    train(&s, "config.json", &both, &["mesh.tp=2", PLAIN], "both");
    train(&s, "config.json", "2", &[PLAIN], "plain");
    near(&s, "both", "plain", "two back ends");
}
