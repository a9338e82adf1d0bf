//! `run.canonical_shards`: one run in any types, which goes on on any number of ranks; what it takes is predicted; and what
//! it cannot be combined with is a sentence.

use crate::support::{Job, Scratch, ledger, model_bytes, same};

const SHARDS: &str = "run.canonical_shards=8";

/// The scratch folder's job with canonical sums.
fn job(s: &Scratch, ranks: u32) -> Job<'_> {
    s.job("config.json").ranks(ranks).set(SHARDS)
}

/// Two micro-batches a shard, 16-bit types, dropout, clipping, 16 bits between the ranks.
#[test]
fn accumulation_and_types_do_not_matter() {
    let s = Scratch::new();
    for set in ["bf16.enabled=true", "fp16.enabled=true"] {
        let sets = [set, "train_batch_size=16", "communication_data_type=fp16"];
        let name = &set[..4];
        job(&s, 1).sets(&sets).run(name);
        for (ranks, stage) in [(3, 3), (4, 0)] {
            let out = format!("{name}-{ranks}");
            let stage = format!("zero_optimization.stage={stage}");
            job(&s, ranks).sets(&sets).set(&stage).run(&out);
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
        let whole = format!("{optimizer}-whole");
        job(&s, 1).set(&kind).set(&params).run(&whole);
        let cut = format!("{optimizer}-cut");
        let grown = |ranks: u32, stage: u32, steps: u32| {
            let stage = format!("zero_optimization.stage={stage}");
            let job = job(&s, ranks).set(&kind).set(&params);
            job.set(&stage).steps(steps)
        };
        grown(4, 3, 3).run(&cut);
        grown(3, 2, 6).resume(&cut).goes_on();
        grown(8, 1, 8).resume(&cut).goes_on();
        let model = |run: &str| model_bytes(&s.path(run));
        assert!(model(&whole) == model(&cut), "{optimizer}");
    }
}

#[test]
fn what_it_takes_is_foretold() {
    let s = Scratch::new();
    for (stage, ranks, volume) in [
        (0, 4, 1.0),
        (1, 2, 1.0),
        (2, 4, 1.0),
        (3, 8, 1.5),
        (3, 1, 0.0),
    ] {
        let stage = format!("zero_optimization.stage={stage}");
        let job = job(&s, ranks).set("run.generate.tokens=0").set(&stage);
        let plan = job.plan();
        if volume > 0.0 {
            assert_eq!(plan["volume_vs_ddp"].as_f64(), Some(volume), "{stage}");
        }
        let out = format!("{stage}-{ranks}");
        job.run(&out);
        for rank in ledger(&s.path(&out))["ranks"].as_array().expect("ranks") {
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
    let refused = |ranks: u32, sets: &[&str], parts: &[&str]| {
        s.job("config.json").ranks(ranks).sets(sets).refused(parts);
    };
    refused(
        4,
        &["run.canonical_shards=2"],
        &[
            "run.canonical_shards",
            "2 logical shards on 4 ranks",
            "at most 2 ranks",
        ],
    );
    refused(2, &["run.canonical_shards=0"], &["run.canonical_shards"]);
    refused(
        2,
        &[
            SHARDS,
            "bf16.enabled=true",
            "data_types.grad_accum_dtype=bf16",
        ],
        &["data_types.grad_accum_dtype", "run.canonical_shards"],
    );
    let stages = job(&s, 2).set("mesh.pp=2");
    stages.unplanned(&["run.canonical_shards", "pipeline stages"]);
    refused(
        2,
        &["run.canonical_shards=3"],
        &["train_batch_size 8", "3 logical shards"],
    );
    refused(
        2,
        &[
            SHARDS,
            "bf16.enabled=true",
            "zero_optimization.stage=3",
            "zero_optimization.zero_quantized_weights=true",
        ],
        &["zero_quantized_weights", "run.canonical_shards"],
    );
    job(&s, 2).steps(3).run("begun");
    s.job("config.json")
        .resume("begun")
        .refused(&["run.canonical_shards", "the run was trained with 8"]);
}
