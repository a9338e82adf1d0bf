//! What the command line says before anything runs: the estimator's published figures, and what a page of a plan names. That predictions
//! equal the ledgers of real runs: `train/tests/predict.rs`.

use crate::common;
use common::Scratch;
use serde_json::Value;

fn json(s: &Scratch, args: &[&str]) -> Value {
    serde_json::from_str(&s.ok(args)).expect("JSON")
}

fn near(got: &Value, want: f64, relative: f64) {
    let got = got.as_f64().expect("a number");
    assert!((got - want).abs() <= relative * want, "{got} is not {want}");
}

#[test]
fn estimates_are_the_published_figures() {
    let s = Scratch::new();
    let page = s.ok(&["estimate", "gpt2-xl"]);
    assert!(
        page.contains("weights 3.00 GB, model states 24.00 GB"),
        "{page}"
    );
    assert!(page.contains("1557611200 parameters"), "{page}");
    let v = json(&s, &["estimate", "1000", "--json"]);
    let five: Vec<_> = v["components"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["bytes"].as_u64().expect("bytes"))
        .collect();
    assert_eq!(five, [2000, 2000, 4000, 4000, 4000]);
    let v = json(&s, &["estimate", "7.5B", "--ranks", "64", "--json"]);
    for (stage, (ratio, volume)) in [(1.0, 1.0), (3.821, 1.0), (7.211, 1.0), (64.0, 1.5)]
        .into_iter()
        .enumerate()
    {
        near(&v["stages"][stage]["ratio"], ratio, 1e-4);
        near(&v["stages"][stage]["volume_vs_ddp"], volume, 0.0);
    }
    for accounting in ["mixed", "fp32"] {
        let args = ["estimate", "gpt3-175b", "--accounting", accounting];
        let page = s.ok(&args);
        assert!(page.contains("model states 2.80 TB"), "{page}");
    }
    let v = json(
        &s,
        &[
            "estimate",
            "gpt3-175b",
            "--time",
            "--tflops",
            "34.5",
            "--json",
        ],
    );
    near(&v["time"]["run"]["device_years"], 288.0, 0.01);
    let v = json(&s, &["estimate", "350M+PR-MoE-32/64+L21", "--json"]);
    near(&v["standard"]["times"], 3.7, 0.01);
    let page = s.ok(&["estimate", "350m+pr-moe-32/64"]);
    assert!(
        page.contains("3.19 times fewer than 350m+moe-128"),
        "{page}"
    );
}

#[test]
fn estimates_answer_what_fits() {
    let s = Scratch::new();
    let fits = |args: &[&str]| {
        let v = json(&s, &[args, &["--json"]].concat());
        let l = &v["ledger"];
        let tier = l["offload_optimizer"].as_str().map(str::to_string);
        (l["fits"].as_bool(), tier)
    };
    let nvme = [
        "estimate", "1T", "--nodes", "1", "--host", "1.5TB", "--nvme", "28TB",
    ];
    assert_eq!(fits(&nvme), (Some(true), Some("nvme".into())));
    let page = s.ok(&nvme);
    assert!(page.contains("fits: yes"), "{page}");
    // The advice is of the same mind.
    assert!(
        page.contains("advice: offload makes stage 3 fit") && !page.contains("no stage fits"),
        "{page}"
    );
    let alone = ["estimate", "1T", "--nodes", "1"];
    assert_eq!(fits(&alone).0, Some(false));
    // 10B in 32 GB needs the host, and has it.
    let ten = ["estimate", "10B", "--device-memory", "32GB"];
    assert_eq!(fits(&ten).0, Some(false));
    let host = [&ten[..], &["--host", "1.5TB"]].concat();
    assert_eq!(fits(&host), (Some(true), Some("host".into())));
    let v = json(
        &s,
        &[
            "estimate",
            "1B",
            "--device-memory",
            "16GB",
            "--ranks",
            "1024",
            "--json",
        ],
    );
    near(&v["largest"]["rows"][0]["states_only"], 1e9, 0.0);
    near(&v["largest"]["rows"][1]["states_only"], 4e9, 0.01);
    near(&v["largest"]["rows"][2]["states_only"], 8e9, 0.01);
    // 64-bit sizes hold a hundred trillion.
    let v = json(&s, &["estimate", "100T", "--ranks", "512", "--json"]);
    near(&v["model_states"]["bytes"], 1.6e15, 0.0);
}

#[test]
fn estimates_refuse_in_a_sentence() {
    let s = Scratch::new();
    s.refused(
        &["estimate", "gpt2-xxl"],
        &["did you mean \"gpt2-xl\"", "7.5B"],
        &[],
    );
    s.refused(
        &["estimate", "1B", "--device", "b999"],
        &["--device b999", "h100"],
        &[],
    );
    s.refused(
        &["estimate", "1B", "--ranks", "2", "--nodes", "4"],
        &["more nodes"],
        &[],
    );
    for bad in ["--device-memory=x", "--ranks=0", "--stage=4", "--tflops=-1"] {
        let out = s.run(&["estimate", "1B", bad]);
        assert_eq!(out.status.code(), Some(2), "{bad}");
    }
}

/// A llama of three layers with two micro-batches a step.
const SMALL: &str = r#"{
 "model": {"family": "llama", "hidden_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
           "max_position_embeddings": 24, "intermediate_size": 61, "recompute": "selective"},
 "data": {"train": "corpus/*.txt", "cache_dir": "cache"}, "run": {"steps": 3, "threads_per_rank": 1, "generate": {"tokens": 0}},
 "zero_optimization": {"stage": 2}, "gradient_clipping": 0.0, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}"#;

#[test]
fn pages_of_plans_name_stages_and_choices() {
    let s = Scratch::new();
    s.write("c.json", SMALL);
    let page = |more: &[&str]| s.ok(&[&["plan", "c.json"][..], more].concat());
    let stages = page(&["--ranks", "6", "--set", "mesh.pp=2", "--print"]);
    for part in ["pipeline stage 1: units", "2 stages of 3 ranks each"] {
        assert!(stages.contains(part), "{stages}");
    }
    // Units that are reduced for themselves: a bucket that holds all gradients holds them whole either way.
    let small = "zero_optimization.reduce_bucket_size=1";
    let (one, all) = (
        page(&["--ranks", "4", "--set", small]),
        page(&["--ranks", "4"]),
    );
    assert!(
        one.contains("gradients are reduced for each micro-batch"),
        "{one}"
    );
    let less = "the other takes less of both";
    assert!(!one.contains(less) && all.contains(less), "{one}\n{all}");
    let end = s.ok(&["train", "c.json", "--ranks", "4", "--out", "run"]);
    assert!(end.contains("reduced for each micro-batch: "), "{end}");
}

#[test]
fn a_page_of_thousands_of_ranks_shows_a_few_of_each() {
    let s = Scratch::new();
    s.write(
        "big.json",
        r#"{"model": {"family": "gpt2", "vocab_size": 50257, "n_positions": 2048, "n_embd": 12288, "n_layer": 96, "n_head": 96},
            "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true},
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}"#,
    );
    let page = s.ok(&["plan", "big.json", "--ranks", "4096"]);
    for part in [
        "big.json on 4096 ranks: ZeRO stage 0, bf16, AdamW",
        "dp (4096 ranks)",
        "1.000x the elements of plain data parallelism",
        "fits: no",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    // Stages of many ranks, more than any job has been: a few of each stand for all.
    let many = [
        "plan",
        "big.json",
        "--ranks",
        "16384",
        "--set",
        "mesh.tp=8",
        "--set",
        "mesh.pp=16",
        "--device",
        "h100",
    ];
    let page = s.ok(&many);
    assert!(page.contains("16 stages of 1024 ranks each"), "{page}");
    let text = s.ok(&["plan", "big.json", "--ranks", "4096", "--text"]);
    for part in [
        "volume against plain data parallelism: 1.000x",
        "all_reduce",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
