//! Runs that must agree: on any number of ranks, twice, resumed, at every ZeRO stage; and what each leaves.

use crate::support::{
    Job, Scratch, figures, ledger, losses, model_bytes, names, open_json, records, same,
};
use serde_json::{Value, json};

#[test]
fn a_run_leaves_the_files_it_promises() {
    let s = Scratch::new();
    let ran = s.job("config.json").ranks(2).run("run");
    let run = s.path("run");
    let steps: Vec<Value> = records(&run)
        .into_iter()
        .filter(|r| r.get("loss").is_some())
        .collect();
    assert_eq!(steps.len(), 8);
    for (i, r) in steps.iter().enumerate() {
        let keys: Vec<&String> = r.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 7, "{keys:?}");
        for k in [
            "step",
            "loss",
            "lr",
            "grad_norm",
            "tokens",
            "tokens_per_s",
            "step_ms",
        ] {
            assert!(r[k].is_number(), "{k} in {r}");
        }
        assert_eq!(r["step"], i as u64 + 1);
        assert_eq!(r["tokens"], (i as u64 + 1) * 8 * 16);
    }
    assert!(steps[7]["loss"].as_f64() < steps[0]["loss"].as_f64());
    let validated: Vec<u64> = records(&run)
        .iter()
        .filter(|r| r["val_loss"].is_number())
        .filter_map(|r| r["step"].as_u64())
        .collect();
    assert_eq!(validated, [4, 8]);
    let config = open_json(&run.join("config.json"));
    assert_eq!(config["model"]["vocab_size"], 257);
    assert_eq!(config["gradient_accumulation_steps"], 4);
    let ledger = ledger(&run);
    let ranks = ledger["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for r in ranks {
        assert!(
            r["memory"]["tags"]["param"]["peak"].as_u64() > Some(0),
            "{r}"
        );
        assert!(
            r["collectives"].as_array().is_some_and(|c| !c.is_empty()),
            "{r}"
        );
        assert_eq!(r["device_allocs_after_step_2"], 0, "{r}");
    }
    assert_eq!(
        open_json(&run.join("model/config.json"))["model_type"],
        "gpt2"
    );
    // The summary is of the same run.
    let last = steps[7]["loss"].as_f64();
    assert_eq!((ran.summary.steps, ran.summary.last), (8, last));
    let validated = records(&run)
        .iter()
        .rev()
        .find_map(|r| r["val_loss"].as_f64());
    assert!(validated.is_some() && ran.summary.val_loss == validated);
    let sample = ran.summary.sample.expect("a sample");
    // What was trained can be used.
    assert!(sample.starts_with("the "), "{sample}");
    assert!(s.generate("run/model", "the ", 8).is_ok());
    s.verify("run");
    assert_eq!(s.inspect("run")["checkpoints"][1]["step"], 8);
}

#[test]
fn one_two_and_four_ranks_follow_one_curve() {
    let s = Scratch::new();
    for n in ["1", "2", "4"] {
        s.job("config.json").ranks(n).run(n);
    }
    let one = figures(&s.path("1"));
    for n in ["2", "4"] {
        let other = figures(&s.path(n));
        assert_eq!(one.len(), other.len());
        for (a, b) in one.iter().zip(&other) {
            for (x, y) in [(a.1, b.1), (a.3, b.3), (a.4, b.4)] {
                let close = match (x, y) {
                    (Some(x), Some(y)) => (x - y).abs() <= 1e-5 * x.abs(),
                    (x, y) => x == y,
                };
                assert!(close, "{n} ranks: {a:?} and {b:?}");
            }
        }
    }
}

/// Loss, gradient norm, validation and model of each stage, a run of stage 3 that goes on at stage 1 included; and what travelled.
#[test]
fn every_zero_stage_gives_the_bits_of_stage_0_at_its_own_traffic() {
    let s = Scratch::new();
    let job = |stage: u32| -> Job<'_> {
        let stage = format!("zero_optimization.stage={stage}");
        let batch = [
            "gradient_accumulation_steps=1",
            "train_micro_batch_size_per_gpu=4",
        ];
        s.job("config.json").ranks(2).set(&stage).sets(&batch)
    };
    let sample = job(0).run("s0").summary.sample;
    assert!(sample.is_some());
    let wire = |out: &str| -> f64 {
        let ledger = ledger(&s.path(out));
        let lines = ledger["ranks"][1]["collectives"].as_array().unwrap().iter();
        let moved = lines.filter(|l| l["tag"] == "grad" || l["tag"] == "param");
        moved.map(|l| l["wire_elements"].as_f64().unwrap()).sum()
    };
    for stage in 1..=3 {
        let out = format!("s{stage}");
        let ran = job(stage).run(&out);
        assert_eq!(ran.summary.sample, sample, "stage {stage}");
        same(&s.path(&out), &s.path("s0"));
    }
    job(3).steps(4).run("part");
    job(1).steps(8).resume("part").run("more");
    assert!(model_bytes(&s.path("more")) == model_bytes(&s.path("s0")));
    // Exactly: what validation and the export of the model gather is counted apart.
    let ratios = ["s1", "s2", "s3"].map(|out| wire(out) / wire("s0"));
    assert_eq!(ratios, [1.0, 1.0, 1.5]);
}

#[test]
fn the_same_run_twice_is_bitwise_the_same() {
    let s = Scratch::new();
    for out in ["a", "b"] {
        s.job("config.json").ranks(2).run(out);
    }
    same(&s.path("a"), &s.path("b"));
    for out in ["c", "d"] {
        let sets = ["bf16.enabled=true", "model.recompute=full"];
        s.job("config.json").sets(&sets).run(out);
    }
    same(&s.path("c"), &s.path("d"));
    assert_ne!(losses(&s.path("a")), losses(&s.path("c")));
}

#[test]
fn recompute_changes_memory_and_nothing_else() {
    let s = Scratch::new();
    for r in ["none", "full", "selective"] {
        let set = format!("model.recompute={r}");
        s.job("config.json").set(&set).run(r);
    }
    same(&s.path("none"), &s.path("full"));
    same(&s.path("none"), &s.path("selective"));
}

/// Weights of attention drop by their place in the global batch, and a folder's `config.json` says how many.
#[test]
fn attention_dropout_is_the_folders_and_alike_on_every_layout() {
    let s = Scratch::new();
    let p = "model.attn_pdrop=0.3";
    let job = || s.job("config.json").set(p);
    job().run("first");
    job().set("model.recompute=full").run("recomputed");
    same(&s.path("first"), &s.path("recomputed"));
    job().ranks(2).run("plain");
    let third = [
        "zero_optimization.stage=3",
        "zero_optimization.reduce_gradients=step",
    ];
    job().ranks(2).sets(&third).run("third");
    same(&s.path("plain"), &s.path("third"));
    job().ranks(2).set("mesh.pp=2").run("staged");
    let all = losses(&s.path("first"));
    for other in ["plain", "staged"] {
        for (a, b) in all.iter().zip(&losses(&s.path(other))) {
            assert!((a - b).abs() <= 1e-4 * a, "{other}: {a} and {b}");
        }
    }
    // The checkpoint is of step 6: two steps are taken again.
    job().steps(6).run("cut");
    job().resume("cut").goes_on();
    same(&s.path("first"), &s.path("cut"));
    let more = |out: &str, sets: &[&str]| {
        let from = [r#"model={"hf": "first/model"}"#, "data.seq_len=16"];
        let job = s.job("config.json").sets(&from).sets(sets);
        job.steps(2).run(out);
        losses(&s.path(out))
    };
    let (taken, given) = (more("taken", &[]), more("given", &[p]));
    assert_eq!(taken, given, "the folder says 0.3");
    assert_ne!(taken, more("off", &["model.attn_pdrop=0"]));
}

#[test]
fn a_finished_run_can_be_made_longer() {
    let s = Scratch::new();
    s.job("config.json").steps(8).run("whole");
    s.job("config.json").steps(5).run("grown");
    s.job("config.json").steps(8).resume("grown").goes_on();
    same(&s.path("whole"), &s.path("grown"));
    let different = |set: &str, parts: &[&str]| {
        s.job("config.json").set(set).resume("grown").refused(parts);
    };
    different(
        "model.n_embd=32",
        &["model.n_embd", "16", "32", "--set model.n_embd=16"],
    );
    different(
        "optimizer.params.weight_decay=0.2",
        &["optimizer.params.weight_decay"],
    );
    different("run.seed=7", &["seed"]);
    different(
        "scheduler.params.warmup_num_steps=6",
        &["learning rate of step"],
    );
    different("run.steps=3", &["run.steps", "--steps 8"]);
    // A schedule that ends with the run cannot be stretched.
    let cosine = s.job("config.json").set(r#"scheduler={"type": "cosine"}"#);
    cosine.clone().steps(4).run("cosine");
    cosine.steps(8).resume("cosine").refused(&[
        "the schedule depends on run.steps (4 then, 8 now)",
        "--steps 4",
    ]);
}

#[test]
fn the_device_of_nothing_runs_and_leaves_no_model() {
    let s = Scratch::new();
    let null = s.job("config.json").ranks(2).set("run.backend=\"null\"");
    null.run("dry");
    assert!(!s.path("dry/model").exists());
    assert!(s.path("dry/ledger.json").is_file());
}

#[test]
fn a_trained_model_is_a_start_for_another() {
    let s = Scratch::new();
    s.job("config.json").run("first");
    let model = r#"model={"hf": "first/model"}"#;
    s.job("config.json")
        .set(model)
        .set("data.seq_len=16")
        .run("second");
    let (first, second) = (losses(&s.path("first")), losses(&s.path("second")));
    assert!(second[0] < first[0] - 0.1, "{first:?} {second:?}");
    assert_ne!(
        model_bytes(&s.path("first")),
        model_bytes(&s.path("second"))
    );
}

/// float16 from a scale far too large: steps are skipped and the scale comes down; a run resumed in the middle of that goes on with the same
/// bits, scale and schedule; a scale that cannot come down further is one clear error.
#[test]
fn float16_scales_skips_and_resumes() {
    let s = Scratch::new();
    let dynamic = r#"fp16={"enabled": true, "initial_scale_power": 32, "hysteresis": 1, "loss_scale_window": 3}"#;
    let job = || s.job("config.json").ranks(2).steps(24).set(dynamic);
    job().run("whole");
    let seen = records(&s.path("whole"));
    let steps: Vec<_> = seen.iter().filter(|r| r["loss_scale"].is_f64()).collect();
    assert_eq!(steps.len(), 24);
    let (mut scale, mut skipped) = (2f64.powi(32), 0);
    for r in &steps {
        let now = r["loss_scale"].as_f64().unwrap();
        match r["skipped"].as_bool().unwrap() {
            true => {
                assert_eq!(now, scale / 2.0, "{r}");
                assert!(r.get("grad_norm").is_none(), "{r}");
                skipped += 1;
            }
            false => assert!(now == scale || now == 2.0 * scale, "{r}"),
        }
        assert_eq!(r["skipped_steps"], skipped);
        scale = now;
    }
    assert!((4..20).contains(&skipped), "{skipped}");
    // The warm-up of four steps is four updates, not four steps.
    let lr = |r: &Value| r["lr"].as_f64().unwrap();
    let first = steps.iter().position(|r| r["skipped"] == false).unwrap();
    assert!(steps[..=first].iter().all(|r| lr(r) == lr(steps[0])));
    assert!(lr(steps[23]) > lr(steps[0]));
    let (a, b) = (&steps[first]["loss"], &steps[23]["loss"]);
    assert!(b.as_f64() < a.as_f64(), "{a} {b}");

    let keep = ["run.checkpoint_every=5", "run.keep_last=9"];
    job().sets(&keep).run("part");
    let mut saved: Vec<_> = std::fs::read_dir(s.path("part/checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("manifest.json").is_file())
        .collect();
    saved.sort();
    assert_eq!(saved.len(), 5, "{saved:?}");
    for later in &saved[1..] {
        std::fs::remove_dir_all(later).unwrap();
    }
    let notes = job().resume("part").goes_on().said;
    assert!(notes.contains("from step 5"), "{notes}");
    same(&s.path("whole"), &s.path("part"));

    let floor = r#"fp16={"enabled": true, "initial_scale_power": 32, "hysteresis": 1, "min_loss_scale": 4294967296}"#;
    let (e, _) = s.job("config.json").set(floor).fails("floor");
    names(&e, &["step 1", "fp16.min_loss_scale", "in unit"]);
    assert!(!s.path("floor/model").exists());
}

/// DeepSpeed's keys about how gradients travel: half the bytes on a 16-bit wire, and a division that is exact wherever it happens.
#[test]
fn gradients_travel_as_the_config_says() {
    let s = Scratch::new();
    let train = |out: &str, sets: &[&str]| {
        s.job("config.json").ranks(2).sets(sets).run(out);
        let ledger = ledger(&s.path(out));
        let lines = ledger["ranks"][0]["collectives"].as_array().unwrap();
        let grads = lines.iter().filter(|l| l["tag"] == "grad");
        let sum = |key: &str| grads.clone().map(|l| l[key].as_u64().unwrap()).sum::<u64>();
        (sum("elements"), sum("bytes"))
    };
    let (elements, bytes) = train("wide", &[]);
    assert_eq!(bytes, 4 * elements);
    let narrow = [
        "zero_optimization.stage=2",
        "communication_data_type=\"bf16\"",
    ];
    let narrow = train("narrow", &narrow);
    assert_eq!(narrow.1, 2 * narrow.0);
    let (a, b) = (losses(&s.path("wide")), losses(&s.path("narrow")));
    assert!(a != b);
    for (a, b) in a.iter().zip(&b) {
        assert!((a - b).abs() < 1e-2 * a, "{a} {b}");
    }
    for (out, key) in [
        ("before", "prescale_gradients=true"),
        ("after", "gradient_predivide_factor=4"),
    ] {
        train(out, &[key]);
        same(&s.path("wide"), &s.path(out));
    }
}

/// The sum over two ranks is twice the mean, with accumulation too: by SGD half the rate takes the same steps, to the bit.
#[test]
fn summed_gradients_take_the_steps_of_a_larger_rate() {
    let s = Scratch::new();
    let train = |out: &str, stage: u32, lr: f64, op: &str| {
        let sets = [
            format!("optimizer={}", json!({"type": "SGD", "params": {"lr": lr}})),
            "scheduler=null".to_string(),
            "gradient_clipping=0".to_string(),
            format!("zero_optimization.stage={stage}"),
            format!("gradient_allreduce_op={op}"),
        ];
        s.job("config.json").ranks(2).sets(&sets).run(out);
        model_bytes(&s.path(out))
    };
    for stage in [0, 2] {
        let mean = train(&format!("mean{stage}"), stage, 0.5, "mean");
        let sum = train(&format!("sum{stage}"), stage, 0.25, "sum");
        assert!(mean == sum, "stage {stage}");
    }
}

/// Optimizers and parameter groups from the config: every one trains, is killed and goes on to the same bits.
#[test]
fn every_optimizer_trains_and_resumes() {
    let s = Scratch::new();
    for (i, optimizer) in [
        r#"{"type": "Lion", "params": {"lr": 1e-3, "weight_decay": 0.1}}"#,
        r#"{"type": "FusedLamb", "params": {"lr": 1e-2, "bias_correction": false}}"#,
        r#"{"type": "AdamW8bit", "params": {"lr": 1e-2}, "param_groups": [{"match": "*wpe*", "frozen": true}]}"#,
        r#"{"type": "Muon", "params": {"lr": 0.02, "adam_lr": 0.01, "weight_decay": 0.1}}"#,
        r#"{"type": "AdamW", "params": {"lr": 1e-2}, "param_groups": [
            {"match": ["*.bias", "*ln_*"], "weight_decay": 0, "lr_scale": 0.5},
            {"match": "*c_fc.weight", "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}}]}"#,
    ]
    .iter()
    .enumerate()
    {
        let set = format!("optimizer={optimizer}");
        let job = s.job("config.json").ranks(2).set(&set);
        let (whole, cut) = (format!("whole{i}"), format!("cut{i}"));
        job.run(&whole);
        job.clone().steps(3).run(&cut);
        job.resume(&cut).goes_on();
        let weights = |out: &str| model_bytes(&s.path(out));
        assert!(weights(&whole) == weights(&cut), "{optimizer}");
    }
    // Adafactor makes its own rate, so there is no schedule.
    let sets = [r#"optimizer={"type": "Adafactor"}"#, "scheduler=null"];
    let job = s.job("config.json").ranks(2).sets(&sets);
    job.run("ada");
    job.clone().steps(3).run("adacut");
    job.resume("adacut").goes_on();
    assert!(model_bytes(&s.path("ada")) == model_bytes(&s.path("adacut")));
    let cycle = r#"scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 4}}"#;
    s.job("config.json").set(cycle).run("cycle");
    let set = r#"optimizer.param_groups=[{"match": "*.c_atn.*", "frozen": true}]"#;
    s.job("config.json")
        .set(set)
        .refused(&["param_groups[0].match[0]", "c_attn"]);
}
