//! `run.canonical_shards` through the command line: one run on any number of ranks, goes on on any other; what it takes is predicted; and what
//! it cannot be combined with is a sentence.

use crate::common;
use common::{Scratch, figures, same};
use serde_json::Value;

const SHARDS: &str = "run.canonical_shards=8";

/// `train config.json` with canonical sums.
fn train(s: &Scratch, ranks: &str, more: &[&str]) {
    let base = ["train", "config.json", "--ranks", ranks, "--set", SHARDS];
    s.ok(&[&base[..], more].concat());
}

#[test]
fn metrics_and_model_are_those_of_one_rank() {
    let s = Scratch::new();
    train(&s, "1", &["--out", "one"]);
    for (ranks, stage) in [
        ("2", "3"),
        ("3", "0"),
        ("4", "2"),
        ("5", "3"),
        ("8", "0"),
        ("8", "1"),
    ] {
        let out = format!("r{ranks}-{stage}");
        // Threads of a rank do not show either.
        let threads = if ranks == "2" { "3" } else { "2" };
        let threads = format!("run.threads_per_rank={threads}");
        let stage = format!("zero_optimization.stage={stage}");
        let sets = ["--set", &stage, "--set", &threads, "--out", &out];
        train(&s, ranks, &sets);
        same(&s.path("one"), &s.path(&out));
    }
    // The same batch without it is another sum on every number of ranks.
    for ranks in ["1", "2"] {
        s.ok(&[
            "train",
            "config.json",
            "--ranks",
            ranks,
            "--out",
            &format!("plain-{ranks}"),
        ]);
    }
    assert_ne!(figures(&s.path("plain-1")), figures(&s.path("plain-2")));
}

/// Two micro-batches a shard, 16-bit types, dropout, clipping, 16 bits between the ranks.
#[test]
fn accumulation_and_types_do_not_matter() {
    let s = Scratch::new();
    for set in ["bf16.enabled=true", "fp16.enabled=true"] {
        let sets = [
            "--set",
            set,
            "--set",
            "train_batch_size=16",
            "--set",
            "communication_data_type=fp16",
        ];
        let name = &set[..4];
        train(&s, "1", &[&sets[..], &["--out", name]].concat());
        for (ranks, stage) in [("3", "3"), ("4", "0")] {
            let out = format!("{name}-{ranks}");
            let stage = format!("zero_optimization.stage={stage}");
            train(
                &s,
                ranks,
                &[&sets[..], &["--set", &stage, "--out", &out]].concat(),
            );
            same(&s.path(name), &s.path(&out));
        }
    }
}

#[test]
fn a_run_goes_on_on_another_number_of_ranks() {
    let s = Scratch::new();
    for (optimizer, params) in [
        ("AdamW", ""),
        ("Lamb", ""),
        ("Adafactor", r#", "relative_step": false"#),
        ("AdamW8bit", ""),
    ] {
        let kind = format!("optimizer.type={optimizer}");
        let params = format!(r#"optimizer.params={{"lr": 0.01{params}}}"#);
        let set = ["--set", kind.as_str(), "--set", params.as_str()];
        let whole = format!("{optimizer}-whole");
        train(&s, "1", &[&set[..], &["--out", &whole]].concat());
        let cut = format!("{optimizer}-cut");
        let grow = |ranks: &str, stage: &str, steps: &str, place: [&str; 2]| {
            let stage = format!("zero_optimization.stage={stage}");
            let more = ["--set", &stage, "--steps", steps];
            train(&s, ranks, &[&set[..], &more, &place].concat());
        };
        grow("4", "3", "3", ["--out", &cut]);
        grow("3", "2", "6", ["--resume", &cut]);
        grow("8", "1", "8", ["--resume", &cut]);
        assert!(model(&s, &whole) == model(&s, &cut), "{optimizer}");
    }
}

fn model(s: &Scratch, run: &str) -> Vec<u8> {
    common::model_bytes(&s.path(run))
}

#[test]
fn what_it_takes_is_foretold() {
    let s = Scratch::new();
    let set = ["--set", SHARDS, "--set", "run.generate.tokens=0"];
    for (stage, ranks, volume) in [
        (0, "4", 1.0),
        (1, "2", 1.0),
        (2, "4", 1.0),
        (3, "8", 1.5),
        (3, "1", 0.0),
    ] {
        let stage = format!("zero_optimization.stage={stage}");
        let more = [&set[..], &["--set", &stage, "--ranks", ranks]].concat();
        let plan = s.ok(&[&["plan", "config.json", "--json"], &more[..]].concat());
        let plan: Value = serde_json::from_str(&plan).expect("JSON");
        if volume > 0.0 {
            assert_eq!(plan["volume_vs_ddp"].as_f64(), Some(volume), "{stage}");
        }
        let out = format!("{stage}-{ranks}");
        s.ok(&[&["train", "config.json", "--out", &out], &more[..]].concat());
        let ledger = std::fs::read_to_string(s.path(&out).join("ledger.json")).expect("a ledger");
        let ledger: Value = serde_json::from_str(&ledger).expect("JSON");
        for rank in ledger["ranks"].as_array().expect("ranks") {
            for tag in ["grad", "param"] {
                let (got, want) = (&rank["memory"]["tags"][tag], &plan["memory"][tag]);
                assert_eq!(got["now"], want["bytes"], "{out}: {tag}");
                assert_eq!(got["peak"], want["peak"], "{out}: {tag} at its peak");
            }
            assert_eq!(rank["device_allocs_after_step_2"], 0, "{out}");
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let s = Scratch::new();
    let refused = |ranks: &str, sets: &[&str], parts: &[&str]| {
        let mut args = vec!["train", "config.json", "--ranks", ranks, "--out", "no"];
        args.extend(sets.iter().flat_map(|x| ["--set", x]));
        s.refused(&args, parts, &["no"]);
    };
    refused(
        "4",
        &["run.canonical_shards=2"],
        &[
            "run.canonical_shards",
            "2 logical shards on 4 ranks",
            "at most 2 ranks",
        ],
    );
    refused("2", &["run.canonical_shards=0"], &["run.canonical_shards"]);
    refused(
        "2",
        &[
            SHARDS,
            "bf16.enabled=true",
            "data_types.grad_accum_dtype=bf16",
        ],
        &["data_types.grad_accum_dtype", "run.canonical_shards"],
    );
    let said = s.ok(&[
        "config",
        "check",
        "config.json",
        "--ranks",
        "3",
        "--set",
        SHARDS,
    ]);
    assert!(
        said.contains("8 sequences = 1 x 1 accumulated x 8 logical shards"),
        "{said}"
    );
    let stages = [
        "plan",
        "config.json",
        "--ranks",
        "2",
        "--set",
        SHARDS,
        "--set",
        "mesh.pp=2",
    ];
    s.refused(&stages, &["run.canonical_shards", "pipeline stages"], &[]);
    refused(
        "2",
        &["run.canonical_shards=3"],
        &["train_batch_size 8", "3 logical shards"],
    );
    refused(
        "2",
        &[
            SHARDS,
            "bf16.enabled=true",
            "zero_optimization.stage=3",
            "zero_optimization.zero_quantized_weights=true",
        ],
        &["zero_quantized_weights", "run.canonical_shards"],
    );
    train(&s, "2", &["--steps", "3", "--out", "begun"]);
    s.refused(
        &["train", "config.json", "--resume", "begun"],
        &["run.canonical_shards", "the run was trained with 8"],
        &[],
    );
}
