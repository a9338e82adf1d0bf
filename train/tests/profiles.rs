//! What is conformant trains: the CPU with everything taken away that a profile does not ask for trains both
//! model families on one, two and three ranks at every stage, to the losses of the whole CPU. So the profile
//! can never be less than what the trainer uses.

use crate::support::{Job, Scratch, losses};

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

/// The losses of a job on so many ranks at a stage.
fn train(job: &Job<'_>, out: &str, ranks: usize, stage: usize) -> Vec<f64> {
    let stage = format!("zero_optimization.stage={stage}");
    job.clone().ranks(ranks).set(&stage).run(out);
    losses(&job.scratch.path(out))
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
        let whole = s.job("config.json").sets(precision);
        let want = train(&whole, "whole", 1, 0);
        let less = whole.layer(&format!("only={profile}"));
        for ranks in 1..=3 {
            for stage in 0..=3 {
                let got = train(&less, &format!("{ranks}-{stage}"), ranks, stage);
                let what = format!("{name} in {profile} on {ranks} ranks at stage {stage}");
                near(&what, &got, &want, within);
            }
        }
        let staged = less.set("mesh.pp=2");
        for (ranks, stage) in [(2, 0), (4, 1)] {
            let got = train(&staged, &format!("staged-{ranks}"), ranks, stage);
            let what = format!("{name} in {profile}, {ranks} ranks over two stages");
            near(&what, &got, &want, within);
        }
    }
}

#[test]
fn the_smallest_plugin_of_the_profile_minimal_trains() {
    trains_on("minimal", &[], 2e-4);
}

#[test]
fn the_smallest_plugin_of_the_profile_train_trains_in_bf16() {
    trains_on("train", &["run.dtype=bf16"], 2e-2);
}

/// The same with f16 as its 16-bit float, and a loss scale that the ranks agree on.
#[test]
fn the_smallest_plugin_of_the_profile_train_trains_in_f16() {
    let (_, model) = MODELS[0];
    let s = Scratch::new();
    s.write("config.json", config(model));
    let whole = s.job("config.json").set("fp16.enabled=true");
    let want = train(&whole, "whole", 1, 0);
    let less = whole.layer("only=train:f16");
    for (ranks, stage) in [(1, 0), (2, 2), (3, 3)] {
        let got = train(&less, &format!("{ranks}-{stage}"), ranks, stage);
        near(&format!("{ranks} ranks, {stage}"), &got, &want, 2e-2);
    }
}

/// With `run.allow_host_ops` a device that computes nothing trains, alone and with others.
#[test]
fn a_device_without_ops_trains_on_the_host() {
    let (_, model) = MODELS[1];
    let s = Scratch::new();
    s.write("config.json", config(model));
    for (precision, within) in [("f32", 2e-4), ("bf16", 2e-2)] {
        let dtype = format!("run.dtype={precision}");
        let whole = s.job("config.json").set(&dtype);
        let want = train(&whole, &format!("whole-{precision}"), 1, 0);
        for (ranks, stage, lacks) in [
            (1, 0, "all"),
            (2, 3, "all"),
            (3, 1, "all+all_reduce+reduce_scatter+all_gather"),
        ] {
            let layer = format!("lacks={lacks}");
            let bare = whole.clone().layer(&layer).set("run.allow_host_ops=true");
            let out = format!("{precision}-{ranks}");
            near(&out, &train(&bare, &out, ranks, stage), &want, within);
        }
    }
}
