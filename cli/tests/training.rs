//! Runs of the binary: what is printed of steps, killed and interrupted runs, and back ends by the flags. What else runs promise:
//! `train/tests/training.rs`.

use crate::common;
use common::{Scratch, cpu_plugin, records, same};
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
fn a_trained_run_can_be_sampled_verified_and_reported() {
    let s = Scratch::new();
    let out = s.ok(&["train", "config.json", "--ranks", "2", "--out", "run"]);
    for part in ["sample:\nthe ", "validation loss", "tokens/s"] {
        assert!(out.contains(part), "{out}");
    }
    let model = ["--model", "run/model", "--prompt", "the ", "--tokens", "8"];
    let again = s.ok(&[&["generate"], &model[..]].concat());
    assert!(again.starts_with("the "), "{again}");
    assert!(s.ok(&["checkpoint", "verify", "run"]).contains("ok"));
    assert!(s.ok(&["checkpoint", "inspect", "run"]).contains("step 8"));
    s.ok(&["report", "run", "--tensorboard"]);
    let run = s.path("run");
    assert!(run.join("report.html").is_file() && run.join("tensorboard").is_dir());
}

#[test]
fn plans_are_printed_as_steps_programs_and_json() {
    let s = Scratch::new();
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
