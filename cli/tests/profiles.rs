//! What is conformant trains: the CPU with everything taken away that a profile does not ask for trains both
//! model families on one, two and three ranks at every stage, to the losses of the whole CPU. So the profile
//! can never be less than what the trainer uses.

use crate::common;
use common::{Scratch, losses};

const MODELS: [(&str, &str); 2] = [
    (
        "gpt2",
        r#"{"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.1}"#,
    ),
    (
        "llama",
        r#"{"family": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 16, "tie_word_embeddings": false}"#,
    ),
];

/// All that a run can have: validation, clipping, dropout, accumulation, a schedule, checkpoints, text.
fn config(model: &str) -> String {
    format!(
        r#"{{
 "model": {model},
 "data": {{"train": "corpus/*.txt", "validation_fraction": 0.2, "cache_dir": "cache"}},
 "run": {{"steps": 4, "checkpoint_every": 3, "validate_every": 2, "validate_batches": 2, "threads_per_rank": 1,
         "generate": {{"prompt": "the ", "tokens": 4}}}},
 "train_batch_size": 12, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
 "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-2, "weight_decay": 0.1}}}},
 "scheduler": {{"type": "WarmupLR", "params": {{"warmup_num_steps": 4, "warmup_max_lr": 1e-2}}}}
}}"#
    )
}

fn train(s: &Scratch, out: &str, ranks: usize, stage: usize, more: &[&str]) -> Vec<f64> {
    let (ranks, stage) = (
        ranks.to_string(),
        format!("zero_optimization.stage={stage}"),
    );
    let mut args = vec!["train", "config.json", "--ranks", &ranks, "--out", out];
    args.extend(["--set", &stage]);
    args.extend(more);
    s.ok(&args);
    losses(&s.path(out))
}

fn near(what: &str, got: &[f64], want: &[f64], within: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (a, b) in got.iter().zip(want) {
        let close = (a - b).abs() <= within * b.abs();
        assert!(close, "{what}: {got:?}, and {want:?} is right");
    }
}

/// `profile` at every stage on 1, 2 and 3 ranks.
fn trains_on(profile: &str, precision: &[&str], within: f64) {
    for (name, model) in MODELS {
        let s = Scratch::new();
        s.write("config.json", config(model));
        let want = train(&s, "whole", 1, 0, precision);
        let only = format!("only={profile}");
        for ranks in 1..=3 {
            for stage in 0..=3 {
                let out = format!("{ranks}-{stage}");
                let more = [precision, &["--layer", &only]].concat();
                let got = train(&s, &out, ranks, stage, &more);
                let what = format!("{name} in {profile} on {ranks} ranks at stage {stage}");
                near(&what, &got, &want, within);
            }
        }
        for (layout, ranks, stage) in [("mesh.pp=2", 2, 0), ("mesh.pp=2", 4, 1)] {
            let out = format!("{ranks}-{stage}-{layout}");
            let more = [precision, &["--layer", &only, "--set", layout]].concat();
            let got = train(&s, &out, ranks, stage, &more);
            near(
                &format!("{name} in {profile}, {layout}"),
                &got,
                &want,
                within,
            );
        }
    }
}

/// The layer takes away what the profile does not ask for: else these tests would compare the CPU with itself.
#[test]
fn the_layer_takes_everything_else_away() {
    let s = Scratch::new();
    let report = |layer: &str| -> Vec<(String, String)> {
        let out = s.path("report.json");
        let mut args = vec!["conform", "cpu", "--ranks", "2", "--quick", "--report"];
        args.extend([out.to_str().expect("a path"), "--layer", layer]);
        for case in [
            "op.adamw.f32*",
            "op.unary.neg.f32",
            "op.unary.neg.bf16",
            "coll.all_reduce.*.r2",
        ] {
            args.extend(["--only", case]);
        }
        s.ok(&args);
        let text = std::fs::read_to_string(&out).expect("a report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let cells = report["cells"].as_array().expect("cells").iter();
        let word = |c: &serde_json::Value, k: &str| c[k].as_str().unwrap_or_default().to_string();
        cells.map(|c| (word(c, "id"), word(c, "result"))).collect()
    };
    for (profile, half, sums) in [("minimal", false, false), ("train", true, true)] {
        let cells = report(&format!("only={profile}"));
        let passes = |what: &dyn Fn(&str) -> bool| {
            let mut of = cells.iter().filter(|(id, _)| what(id)).peekable();
            assert!(of.peek().is_some(), "{cells:?}");
            of.any(|(_, result)| result == "pass")
        };
        assert!(passes(&|id| id == "op.unary.neg.f32"), "{cells:?}");
        assert!(!passes(&|id| id.starts_with("op.adamw")), "{cells:?}");
        assert_eq!(passes(&|id| id == "op.unary.neg.bf16"), half, "{cells:?}");
        assert_eq!(
            passes(&|id| id.starts_with("coll.all_reduce")),
            sums,
            "{cells:?}"
        );
    }
}

#[test]
fn the_smallest_plugin_of_the_profile_minimal_trains() {
    trains_on("minimal", &[], 2e-4);
}

#[test]
fn the_smallest_plugin_of_the_profile_train_trains_in_bf16() {
    trains_on("train", &["--set", "run.dtype=bf16"], 2e-2);
}

/// The same with f16 as its 16-bit float, and a loss scale that the ranks agree on.
#[test]
fn the_smallest_plugin_of_the_profile_train_trains_in_f16() {
    let (_, model) = MODELS[0];
    let s = Scratch::new();
    s.write("config.json", config(model));
    let f16 = ["--set", "fp16.enabled=true"];
    let want = train(&s, "whole", 1, 0, &f16);
    for (ranks, stage) in [(1, 0), (2, 2), (3, 3)] {
        let more = [&f16[..], &["--layer", "only=train:f16"]].concat();
        let got = train(&s, &format!("{ranks}-{stage}"), ranks, stage, &more);
        near(&format!("{ranks} ranks, {stage}"), &got, &want, 2e-2);
    }
}

/// With `run.allow_host_ops` a device that computes nothing trains, alone and with others.
#[test]
fn a_device_without_ops_trains_on_the_host() {
    let (_, model) = MODELS[1];
    let s = Scratch::new();
    s.write("config.json", config(model));
    for precision in ["f32", "bf16"] {
        let dtype = format!("run.dtype={precision}");
        let set = ["--set", dtype.as_str()];
        let want = train(&s, &format!("whole-{precision}"), 1, 0, &set);
        for (ranks, stage, lacks) in [
            (1, 0, "all"),
            (2, 3, "all"),
            (3, 1, "all+all_reduce+reduce_scatter+all_gather"),
        ] {
            let layer = format!("lacks={lacks}");
            let host = ["--set", "run.allow_host_ops=true", "--layer", &layer];
            let out = format!("{precision}-{ranks}");
            let got = train(&s, &out, ranks, stage, &[&set[..], &host].concat());
            near(
                &out,
                &got,
                &want,
                if precision == "f32" { 2e-4 } else { 2e-2 },
            );
        }
    }
}
