//! Offload as the command line shows it, and a run that is killed with its state in files. What else it promises: `train/tests/offload.rs`.

use crate::common;
use common::{Scratch, same};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Arguments of a run at a stage with further settings.
fn train<'a>(out: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec![
        "train",
        "config.json",
        "--ranks",
        "2",
        "--steps",
        "6",
        "--out",
        out,
    ];
    for s in sets {
        args.extend(["--set", s]);
    }
    args
}

const NVME: &str = "zero_optimization.offload_optimizer.device=nvme";
const FOLDER: &str = "zero_optimization.offload_optimizer.nvme_path=swap";

/// The job of the ten billion: 12 L h^2 with 50 layers of 4096, in bf16.
const TEN_BILLION: &str = r#"{
 "model": {"family": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 50,
           "num_attention_heads": 32, "max_position_embeddings": 1024, "recompute": "full"},
 "data": {"train": "corpus/*.txt", "seq_len": 1024}, "run": {"steps": 2}, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
 "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
}"#;

#[test]
fn a_plan_says_where_gradients_of_micro_batches_are_added_up() {
    let s = Scratch::new();
    s.write("big.json", TEN_BILLION);
    let page = |sets: &[&str]| {
        let mut args = vec!["plan", "big.json", "--ranks", "1"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        s.ok(&args)
    };
    let said = page(&["gradient_accumulation_steps=4"]);
    for part in ["are added up there", "of it page-locked", "to the host"] {
        assert!(said.contains(part), "{said}");
    }
    let shards = "run.canonical_shards=4";
    let said = page(&["gradient_accumulation_steps=2", shards]);
    assert!(
        said.contains("stay on the device until the last micro-batch"),
        "{said}"
    );
}

#[test]
fn a_run_killed_with_its_state_in_files_resumes_to_the_same_bits() {
    let s = Scratch::new();
    let long = |out: &'static str| {
        let part = "zero_optimization.offload_optimizer.ratio=0.6";
        let mut args = train(out, &["zero_optimization.stage=2", NVME, FOLDER, part]);
        let steps = args.iter().position(|a| *a == "6").unwrap();
        args[steps] = "60";
        args
    };
    s.ok(&long("whole"));
    let mut child = s
        .command(&long("cut"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let there = || {
        std::fs::read_dir(s.path("cut/checkpoints")).is_ok_and(|d| {
            d.flatten()
                .any(|e| e.file_name().to_string_lossy().starts_with("step-"))
        })
    };
    while !there() && began.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(there());
    let mut again = long("cut");
    let out = again.iter().position(|a| *a == "--out").unwrap();
    again[out] = "--resume";
    s.ok(&again);
    same(&s.path("whole"), &s.path("cut"));
    // What the killed run left was recognised and removed.
    assert_eq!(std::fs::read_dir(s.path("swap")).unwrap().count(), 0);
}
