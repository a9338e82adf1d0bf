//! Runs of the binary that must agree: on any number of ranks, twice, interrupted and resumed, linked and loaded.

use crate::common;
use common::{Scratch, cpu_plugin, figures, losses, model_bytes, records, same};
use crossweave_tests::system::{Signal, send};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn lines_and_saved_types_follow_deepspeeds_keys() {
    let s = Scratch::new();
    let run = |out: &str, traced: bool, more: &[&str]| -> String {
        let base = ["train", "config.json", "--ranks", "2", "--out", out];
        let keys = [
            "steps_per_print=3",
            "wall_clock_breakdown=true",
            "bf16.enabled=true",
        ];
        let sets = keys.iter().chain(more).flat_map(|k| ["--set", *k]);
        let trace = ["--trace", "t.json"];
        let trace = trace.into_iter().filter(|_| traced);
        s.ok(&base
            .into_iter()
            .chain(sets)
            .chain(trace)
            .collect::<Vec<_>>())
    };
    let narrow = "zero_optimization.stage3_gather_16bit_weights_on_model_save=true";
    for (out, traced, more, dtype) in [
        ("narrow", false, &[narrow][..], "\"BF16\""),
        ("chosen", true, &[narrow, "model.save_dtype=f16"], "\"F16\""),
        ("wide", false, &[], "\"F32\""),
    ] {
        let said = run(out, traced, more);
        let lines = |begin: &str| -> Vec<String> {
            let lines = said.lines().filter(|l| l.starts_with(begin));
            lines.map(str::to_string).collect()
        };
        let steps = lines("step ");
        let steps = steps.iter().filter(|l| l.contains("  lr "));
        let steps: Vec<_> = steps.filter_map(|l| l.split_whitespace().nth(1)).collect();
        assert_eq!(steps, ["1/8", "3/8", "6/8", "8/8"], "{said}");
        let times = lines("  time of a step");
        // A trace reports the first step behind its line.
        assert_eq!(times.len(), if traced { 3 } else { 4 }, "{said}");
        for part in ["forward ", "backward ", "| whole "] {
            assert!(times.iter().all(|l| l.contains(part)), "{times:?}");
        }
        assert!(
            times.last().is_some_and(|l| l.contains("optimizer ")),
            "{times:?}"
        );
        let model = std::fs::read(s.path(out).join("model/model.safetensors")).unwrap();
        let head = String::from_utf8_lossy(&model[8..2000]).into_owned();
        assert!(head.contains(dtype), "{out}: {head}");
    }
}

#[test]
fn a_run_leaves_the_files_it_promises() {
    let s = Scratch::new();
    let out = s.ok(&["train", "config.json", "--ranks", "2", "--out", "run"]);
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
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(run.join(name)).unwrap()).unwrap()
    };
    let config = read("config.json");
    assert_eq!(config["model"]["vocab_size"], 257);
    assert_eq!(config["gradient_accumulation_steps"], 4);
    let ledger = read("ledger.json");
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
    assert_eq!(read("model/config.json")["model_type"], "gpt2");
    assert!(out.contains("sample:\nthe "), "{out}");
    assert!(
        out.contains("validation loss") && out.contains("tokens/s"),
        "{out}"
    );
    // What was trained can be used: sampled, probed, reported, verified.
    let again = s.ok(&[
        "generate",
        "--model",
        "run/model",
        "--prompt",
        "the ",
        "--tokens",
        "8",
    ]);
    assert!(again.starts_with("the "), "{again}");
    assert!(s.ok(&["checkpoint", "verify", "run"]).contains("ok"));
    assert!(s.ok(&["checkpoint", "inspect", "run"]).contains("step 8"));
    s.ok(&["report", "run", "--tensorboard"]);
    assert!(run.join("report.html").is_file() && run.join("tensorboard").is_dir());
}

#[test]
fn one_two_and_four_ranks_follow_one_curve() {
    let s = Scratch::new();
    for n in ["1", "2", "4"] {
        s.ok(&["train", "config.json", "--ranks", n, "--out", n]);
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
    let train = |stage: u32, steps: &str, out: &str, more: &[&str]| {
        let stage = format!("zero_optimization.stage={stage}");
        let mut args = vec!["train", "config.json", "--ranks", "2", "--set", &stage];
        args.extend(["--set", "gradient_accumulation_steps=1", "--steps", steps]);
        args.extend(["--set", "train_micro_batch_size_per_gpu=4", "--out", out]);
        args.extend(more);
        s.ok(&args)
    };
    let text = train(0, "8", "s0", &[]);
    assert!(text.contains("sample:\nthe "), "{text}");
    let wire = |out: &str| -> f64 {
        let bytes = std::fs::read(s.path(out).join("ledger.json")).unwrap();
        let ledger: Value = serde_json::from_slice(&bytes).unwrap();
        let lines = ledger["ranks"][1]["collectives"].as_array().unwrap().iter();
        let moved = lines.filter(|l| l["tag"] == "grad" || l["tag"] == "param");
        moved.map(|l| l["wire_elements"].as_f64().unwrap()).sum()
    };
    for stage in 1..=3 {
        let out = format!("s{stage}");
        let said = train(stage, "8", &out, &[]);
        let sample = |t: &str| t.split("sample:").nth(1).map(str::to_string);
        assert_eq!(sample(&said), sample(&text), "stage {stage}");
        assert_eq!(
            losses(&s.path(&out)),
            losses(&s.path("s0")),
            "stage {stage}"
        );
        assert!(
            model_bytes(&s.path(&out)) == model_bytes(&s.path("s0")),
            "stage {stage}"
        );
    }
    train(3, "4", "part", &[]);
    train(1, "8", "more", &["--resume", "part"]);
    assert!(model_bytes(&s.path("more")) == model_bytes(&s.path("s0")));
    // Exactly: what validation and the export of the model gather is counted apart.
    let ratios = ["s1", "s2", "s3"].map(|out| wire(out) / wire("s0"));
    assert_eq!(ratios, [1.0, 1.0, 1.5]);
}

#[test]
fn the_same_run_twice_is_bitwise_the_same() {
    let s = Scratch::new();
    for out in ["a", "b"] {
        s.ok(&["train", "config.json", "--ranks", "2", "--out", out]);
    }
    same(&s.path("a"), &s.path("b"));
    let sets = [
        "--set",
        "bf16.enabled=true",
        "--set",
        "model.recompute=full",
    ];
    for out in ["c", "d"] {
        s.ok(&[&["train", "config.json", "--out", out][..], &sets].concat());
    }
    same(&s.path("c"), &s.path("d"));
    assert_ne!(losses(&s.path("a")), losses(&s.path("c")));
}

#[test]
fn recompute_changes_memory_and_nothing_else() {
    let s = Scratch::new();
    for r in ["none", "full", "selective"] {
        let set = format!("model.recompute={r}");
        s.ok(&["train", "config.json", "--set", &set, "--out", r]);
    }
    same(&s.path("none"), &s.path("full"));
    same(&s.path("none"), &s.path("selective"));
}

/// Weights of attention drop by their place in the global batch, and a folder's `config.json` says how many.
#[test]
fn attention_dropout_is_the_folders_and_alike_on_every_layout() {
    let s = Scratch::new();
    let train = |out: &str, more: &[&str]| {
        s.ok(&[&["train", "config.json", "--out", out][..], more].concat());
    };
    let p = "model.attn_pdrop=0.3";
    train("first", &["--set", p]);
    train("recomputed", &["--set", p, "--set", "model.recompute=full"]);
    same(&s.path("first"), &s.path("recomputed"));
    let sharded = ["--set", p, "--ranks", "2"];
    train("plain", &sharded);
    train(
        "third",
        &[
            &sharded[..],
            &["--set", "zero_optimization.stage=3"],
            &["--set", "zero_optimization.reduce_gradients=step"],
        ]
        .concat(),
    );
    same(&s.path("plain"), &s.path("third"));
    let stages = [&sharded[..], &["--set", "mesh.pp=2"]].concat();
    train("staged", &stages);
    let all = losses(&s.path("first"));
    for other in ["plain", "staged"] {
        for (a, b) in all.iter().zip(&losses(&s.path(other))) {
            assert!((a - b).abs() <= 1e-4 * a, "{other}: {a} and {b}");
        }
    }
    // The checkpoint is of step 6: two steps are taken again.
    train("cut", &["--set", p, "--steps", "6"]);
    s.ok(&["train", "config.json", "--set", p, "--resume", "cut"]);
    same(&s.path("first"), &s.path("cut"));
    let model = r#"model={"hf": "first/model"}"#;
    let more = |out: &str, set: &str| {
        let seq = ["--set", "data.seq_len=16", "--set", "run.steps=2"];
        let set = match set {
            "" => vec!["--set", model],
            set => vec!["--set", model, "--set", set],
        };
        train(out, &[&set[..], &seq].concat());
        losses(&s.path(out))
    };
    let (taken, given) = (more("taken", ""), more("given", p));
    assert_eq!(taken, given, "the folder says 0.3");
    assert_ne!(taken, more("off", "model.attn_pdrop=0"));
}

#[test]
fn a_killed_run_resumes_to_the_same_bits() {
    let s = Scratch::new();
    let long = ["train", "config.json", "--steps", "60", "--ranks", "2"];
    let with = |more: &[&'static str]| [&long[..], more].concat();
    s.ok(&with(&["--out", "whole"]));
    let mut child = s
        .command(&with(&["--out", "cut"]))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Killed as soon as there is a checkpoint, wherever it then is.
    let began = Instant::now();
    let checkpoints = s.path("cut/checkpoints");
    let there = || {
        std::fs::read_dir(&checkpoints).is_ok_and(|d| {
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
    s.ok(&with(&["--resume", "cut"]));
    same(&s.path("whole"), &s.path("cut"));
    // Before the first checkpoint there is nothing to continue from, so the run starts again, to the same end.
    for name in ["checkpoints", "model"] {
        std::fs::remove_dir_all(s.path("cut").join(name)).unwrap();
    }
    s.ok(&with(&["--resume", "cut"]));
    same(&s.path("whole"), &s.path("cut"));
}

#[test]
fn a_finished_run_can_be_made_longer() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--steps", "8", "--out", "whole"]);
    s.ok(&["train", "config.json", "--steps", "5", "--out", "grown"]);
    s.ok(&["train", "config.json", "--steps", "8", "--resume", "grown"]);
    same(&s.path("whole"), &s.path("grown"));
    let different = |set: &str, parts: &[&str]| {
        s.refused(
            &["train", "config.json", "--resume", "grown", "--set", set],
            parts,
            &[],
        );
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
    let cosine = ["--set", r#"scheduler={"type": "cosine"}"#];
    s.ok(&[
        &["train", "config.json", "--steps", "4", "--out", "cosine"][..],
        &cosine,
    ]
    .concat());
    let args = [
        &["train", "config.json", "--steps", "8", "--resume", "cosine"][..],
        &cosine,
    ]
    .concat();
    s.refused(
        &args,
        &[
            "the schedule depends on run.steps (4 then, 8 now)",
            "--steps 4",
        ],
        &[],
    );
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_saves_and_continues() {
    let s = Scratch::new();
    let args = ["train", "config.json", "--steps", "4000", "--out", "run"];
    let set = [
        "--set",
        "run.checkpoint_every=0",
        "--set",
        "run.validate_every=0",
    ];
    let child = s
        .command(&[&args[..], &set].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let metrics = s.path("run/metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) < 300 {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(1));
    }
    send(Signal::SIGTERM, child.id());
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(130), "{err}");
    assert!(err.contains("--resume run"), "{err}");
    assert!(!s.path("run/model").exists());
    let last = records(&s.path("run")).last().unwrap()["step"]
        .as_u64()
        .unwrap();
    let more = (last + 2).to_string();
    s.ok(&[
        "train",
        "config.json",
        "--steps",
        &more,
        "--resume",
        "run",
        set[0],
        set[1],
    ]);
    let steps: Vec<u64> = records(&s.path("run"))
        .iter()
        .filter(|r| r.get("loss").is_some())
        .filter_map(|r| r["step"].as_u64())
        .collect();
    assert_eq!(steps, (1..=last + 2).collect::<Vec<_>>());
}

#[test]
fn the_cpu_back_end_loaded_is_the_one_linked() {
    let s = Scratch::new();
    let path = cpu_plugin();
    let file = path.display().to_string();
    s.ok(&["train", "config.json", "--ranks", "2", "--out", "linked"]);
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--plugin",
        &file,
        "--out",
        "loaded",
    ]);
    same(&s.path("linked"), &s.path("loaded"));
    // What one back end has saved another continues.
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--steps",
        "4",
        "--out",
        "half",
    ]);
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--plugin",
        &file,
        "--resume",
        "half",
    ]);
    same(&s.path("linked"), &s.path("half"));
    // By name, from the plugin path, under another name than a linked back end has.
    std::fs::create_dir(s.path("plugins")).unwrap();
    let other = path
        .file_name()
        .unwrap()
        .to_string_lossy()
        .replace("_cpu", "_mine");
    std::fs::copy(&path, s.path("plugins").join(other)).unwrap();
    let args = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--backend",
        "mine",
        "--out",
        "named",
    ];
    let run = s
        .command(&args)
        .env("CROSSWEAVE_PLUGIN_PATH", s.path("plugins"))
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    same(&s.path("linked"), &s.path("named"));
    let list = s
        .command(&["backends", "--json"])
        .env("CROSSWEAVE_PLUGIN_PATH", s.path("plugins"))
        .output()
        .unwrap();
    let list: Value = serde_json::from_slice(&list.stdout).unwrap();
    let found = list["backends"].as_array().unwrap();
    let linked = |n: &str| found.iter().any(|b| b["name"] == n && b["linked"] == true);
    assert!(linked("cpu") && linked("null"), "{list:#}");
    assert!(
        found
            .iter()
            .any(|b| b["path"].as_str().is_some_and(|p| p.contains("_mine"))),
        "{list:#}"
    );
    s.refused(
        &[
            "train",
            "config.json",
            "--plugin",
            &file,
            "--backend",
            "acme",
            "--out",
            "x",
        ],
        &["is the back end \"cpu\"", "acme"],
        &["x"],
    );
}

#[test]
fn the_device_of_nothing_runs_and_leaves_no_model() {
    let s = Scratch::new();
    s.ok(&[
        "train",
        "config.json",
        "--backend",
        "null",
        "--ranks",
        "2",
        "--out",
        "dry",
    ]);
    assert!(!s.path("dry/model").exists());
    assert!(s.path("dry/ledger.json").is_file());
    let plan = s.ok(&["plan", "config.json", "--print", "--ranks", "2"]);
    assert!(
        plan.contains("F0.0") && plan.contains("ar") && plan.contains("opt"),
        "{plan}"
    );
    let sharded = ["plan", "config.json", "--set", "zero_optimization.stage=3"];
    let of_rank = |r| [&sharded[..], &["--ranks", "2", "--program", "--rank", r]].concat();
    let program = s.ok(&of_rank("1"));
    for words in [
        "group dp/gather: rank 1 of 2",
        "on dp/gather, param: all-gather",
        "on dp, grad: reduce-scatter",
        "decide",
        "publish Step",
    ] {
        assert!(program.contains(words), "{words} is not in\n{program}");
    }
    s.refused(&of_rank("2"), &["--rank 2", "ranks 0 to 1"], &[]);
    let json: Value =
        serde_json::from_str(&s.ok(&["plan", "config.json", "--print", "--json"])).unwrap();
    assert!(json["plan"].is_object() && json["peak_bytes"].as_u64() > Some(0));
}

#[test]
fn a_trained_model_is_a_start_for_another() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--out", "first"]);
    let model = r#"model={"hf": "first/model"}"#;
    s.ok(&[
        "train",
        "config.json",
        "--set",
        model,
        "--set",
        "data.seq_len=16",
        "--out",
        "second",
    ]);
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
    let train = |steps: &str, out: &str, more: &[&str]| {
        let base = ["train", "config.json", "--steps", steps, "--ranks", "2"];
        s.ok(&[&base[..], &["--out", out, "--set", dynamic], more].concat())
    };
    train("24", "whole", &[]);
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
    train("24", "part", &["--set", keep[0], "--set", keep[1]]);
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
    let again = s.run(&[
        "train",
        "config.json",
        "--steps",
        "24",
        "--ranks",
        "2",
        "--set",
        dynamic,
        "--resume",
        "part",
    ]);
    let notes = String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.success() && notes.contains("from step 5"),
        "{notes}"
    );
    same(&s.path("whole"), &s.path("part"));

    let floor = r#"fp16={"enabled": true, "initial_scale_power": 32, "hysteresis": 1, "min_loss_scale": 4294967296}"#;
    s.refused(
        &["train", "config.json", "--out", "floor", "--set", floor],
        &["step 1", "fp16.min_loss_scale", "in unit"],
        &["floor/model"],
    );
}

/// DeepSpeed's keys about how gradients travel: half the bytes on a 16-bit wire, and a division that is exact wherever it happens.
#[test]
fn gradients_travel_as_the_config_says() {
    let s = Scratch::new();
    let train = |out: &str, more: &[&str]| {
        let base = ["train", "config.json", "--ranks", "2", "--out", out];
        s.ok(&[&base[..], more].concat());
        let text = std::fs::read_to_string(s.path(out).join("ledger.json")).unwrap();
        let ledger: Value = serde_json::from_str(&text).unwrap();
        let lines = ledger["ranks"][0]["collectives"].as_array().unwrap();
        let grads = lines.iter().filter(|l| l["tag"] == "grad");
        let sum = |key: &str| grads.clone().map(|l| l[key].as_u64().unwrap()).sum::<u64>();
        (sum("elements"), sum("bytes"))
    };
    let (elements, bytes) = train("wide", &[]);
    assert_eq!(bytes, 4 * elements);
    let stage = ["--set", "zero_optimization.stage=2"];
    let wire = ["--set", "communication_data_type=\"bf16\""];
    let narrow = train("narrow", &[&stage[..], &wire].concat());
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
        train(out, &["--set", key]);
        same(&s.path("wide"), &s.path(out));
    }
}

/// The sum over two ranks is twice the mean, with accumulation too: by SGD half the rate takes the same steps, to the bit.
#[test]
fn summed_gradients_take_the_steps_of_a_larger_rate() {
    let s = Scratch::new();
    let train = |out: &str, stage: &str, lr: &str, op: &str| {
        let set = |key: &str, value: &str| ["--set".to_string(), format!("{key}={value}")];
        let optimizer = format!(r#"{{"type": "SGD", "params": {{"lr": {lr}}}}}"#);
        let sets = [
            set("optimizer", &optimizer),
            set("scheduler", "null"),
            set("gradient_clipping", "0"),
            set("zero_optimization.stage", stage),
            set("gradient_allreduce_op", op),
        ];
        let sets = sets.concat();
        let mut args = vec!["train", "config.json", "--ranks", "2", "--out", out];
        args.extend(sets.iter().map(String::as_str));
        s.ok(&args);
        model_bytes(&s.path(out))
    };
    for stage in ["0", "2"] {
        let mean = train(&format!("mean{stage}"), stage, "0.5", "mean");
        let sum = train(&format!("sum{stage}"), stage, "0.25", "sum");
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
        let train = |out: &str, more: &[&str]| {
            let mut args = vec!["train", "config.json", "--ranks", "2", "--set", &set];
            args.extend(["--out", out]);
            args.extend(more);
            s.ok(&args);
        };
        let (whole, cut) = (format!("whole{i}"), format!("cut{i}"));
        train(&whole, &[]);
        train(&cut, &["--steps", "3"]);
        train(&cut, &["--resume", &cut]);
        let weights = |out: &str| model_bytes(&s.path(out));
        assert!(weights(&whole) == weights(&cut), "{optimizer}");
    }
    // Adafactor makes its own rate, so there is no schedule.
    let set = r#"optimizer={"type": "Adafactor"}"#;
    let train = |more: &[&str]| {
        let base = ["train", "config.json", "--ranks", "2", "--set", set];
        s.ok(&[&base[..], &["--set", "scheduler=null"], more].concat());
    };
    train(&["--out", "ada"]);
    train(&["--steps", "3", "--out", "adacut"]);
    train(&["--resume", "adacut"]);
    assert!(model_bytes(&s.path("ada")) == model_bytes(&s.path("adacut")));
    let cycle = r#"scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 4}}"#;
    s.ok(&["train", "config.json", "--set", cycle, "--out", "cycle"]);
    let set = r#"optimizer.param_groups=[{"match": "*.c_atn.*", "frozen": true}]"#;
    s.refused(
        &["train", "config.json", "--set", set, "--out", "none"],
        &["param_groups[0].match[0]", "c_attn"],
        &["none"],
    );
}
