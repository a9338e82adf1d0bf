//! Checkpoints of runs that are killed, interrupted, or out of disk. Damaged and exchanged files, and other layouts: `train/tests/checkpoints.rs`.

use crate::common;
use common::{Scratch, losses, model_bytes, same};
use crossweave_tests::system::{Signal, send};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Steps of the complete checkpoints, oldest first.
fn steps(run: &Path) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(run.join("checkpoints")) else {
        return vec![];
    };
    let mut all: Vec<u64> = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_prefix("step-")?.parse().ok())
        .collect();
    all.sort_unstable();
    all
}

/// The step of the last whole line of a run's metrics.
fn reached(run: &Path) -> u64 {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let step = |l: &str| serde_json::from_str::<Value>(l).ok()?["step"].as_u64();
    text.lines().filter_map(step).max().unwrap_or(0)
}

/// Kills a run over and over, during steps and during saves, and resumes it each time. State is sharded and not in turns.
fn killed_and_resumed(kills: u64) {
    let s = Scratch::new();
    let total = (40 + 8 * kills).to_string();
    let base = ["train", "config.json", "--ranks", "2", "--steps", &total];
    // Stages alternate, and have the same bits with one reduction a step.
    let base = [
        &base[..],
        &["--set", "zero_optimization.reduce_gradients=step"],
    ]
    .concat();
    s.ok(&[&base[..], &["--out", "whole"]].concat());
    let mut newest = 0;
    for round in 0..kills {
        // In the background and not, at every step and at every third.
        let (background, every) = (round % 3 != 2, [1, 3][round as usize % 2]);
        let sets = [
            format!("checkpoint.async={background}"),
            format!("run.checkpoint_every={every}"),
            "run.validate_every=0".to_string(),
            format!("zero_optimization.stage={}", round % 4),
        ];
        let mut args: Vec<&str> = base.to_vec();
        args.extend(sets.iter().flat_map(|x| ["--set", x.as_str()]));
        args.extend(match round {
            0 => ["--out", "cut"],
            _ => ["--resume", "cut"],
        });
        let mut child = s
            .command(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It must have come further than where it began; then the kill falls anywhere in a step or a save.
        let (cut, began) = (s.path("cut"), Instant::now());
        while steps(&cut).last().is_none_or(|n| *n <= newest) {
            assert!(
                child.try_wait().unwrap().is_none(),
                "round {round}: the run ended by itself"
            );
            assert!(began.elapsed() < Duration::from_secs(120), "round {round}");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_011));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = *steps(&cut).last().unwrap();
        assert!(now > newest, "round {round}: {now} after {newest}");
        // One save may be under way when the next is due, and a figure is read a step late.
        let lost = reached(&cut).saturating_sub(now);
        assert!(lost <= 2 * every + 1, "round {round}: {lost} steps lost");
        let report = s.ok(&["checkpoint", "verify", "cut"]);
        assert!(report.contains("ok  "), "{report}");
        newest = now;
    }
    s.ok(&[&base[..], &["--resume", "cut"]].concat());
    assert!(model_bytes(&s.path("whole")) == model_bytes(&s.path("cut")));
    assert_eq!(losses(&s.path("whole")), losses(&s.path("cut")));
    let left = std::fs::read_dir(s.path("cut/checkpoints")).unwrap();
    let hidden = left
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0, "what killed writers left is cleared");
}

#[test]
fn ten_kills_lose_no_more_than_the_steps_since_the_last_checkpoint() {
    killed_and_resumed(10);
}

/// `cargo test --release -p crossweave-cli --test suite -- --ignored fifty`
#[test]
#[ignore = "a minute; the short form runs always"]
fn fifty_kills_lose_no_more_than_the_steps_since_the_last_checkpoint() {
    killed_and_resumed(50);
}

/// Runs the binary where no file may grow beyond `blocks` of 512 bytes, as on a full disk or beyond a quota.
#[cfg(unix)]
fn limited(s: &Scratch, blocks: u32, args: &[&str]) -> std::process::Output {
    let template = s.command(&[]);
    let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
    Command::new("sh")
        .current_dir(s.dir.path())
        .args(["-c", &script])
        .arg(template.get_program())
        .args(args)
        .env_remove("CROSSWEAVE_PLUGIN_PATH")
        .env("CROSSWEAVE_CACHE", s.path("cache"))
        .output()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_named_keeps_what_was_there_and_the_run_resumes() {
    let s = Scratch::new();
    let base = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--set",
        "run.checkpoint_every=2",
    ];
    let run = |more: &[&'static str]| [&base[..], more].concat();
    s.ok(&run(&["--steps", "12", "--out", "whole"]));
    for (policy, asynchronous) in [
        ("stop", true),
        ("stop", false),
        ("warn", true),
        ("warn", false),
    ] {
        let out = s.path("full");
        let _ = std::fs::remove_dir_all(&out);
        s.ok(&run(&["--steps", "4", "--out", "full"]));
        assert_eq!(steps(&out), [2, 4]);
        let sets = [
            format!("checkpoint.on_error={policy}"),
            format!("checkpoint.async={asynchronous}"),
        ];
        let mut args = run(&["--steps", "12", "--resume", "full"]);
        args.extend(sets.iter().flat_map(|x| ["--set", x.as_str()]));
        let ended = limited(&s, 80, &args);
        let err = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{policy}: {err}");
        let reported = err.lines().find(|l| l.starts_with("error: ")).unwrap();
        assert!(
            reported.contains(".safetensors") && reported.contains("fix: make room there"),
            "{policy}: {err}"
        );
        let warned = err
            .matches("warning: the checkpoint of step 6 was not written")
            .count();
        assert_eq!(warned, usize::from(policy == "warn"), "{err}");
        // With warnings every step is trained, and the last save is the one that may not fail.
        assert!(policy == "stop" || reached(&out) == 12, "{err}");
        assert_eq!(steps(&out), [2, 4], "{policy}: {err}");
        s.ok(&["checkpoint", "verify", "full"]);
        s.ok(&run(&["--steps", "12", "--resume", "full"]));
        same(&s.path("whole"), &out);
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_ends_with_its_saves_finished_and_shows_their_memory() {
    let s = Scratch::new();
    let base = ["train", "config.json", "--ranks", "2", "--steps", "4000"];
    let sets = [
        "--set",
        "run.checkpoint_every=1",
        "--set",
        "run.validate_every=0",
    ];
    let mut child = s
        .command(&[&base[..], &sets, &["--out", "run"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (run, began) = (s.path("run"), Instant::now());
    while steps(&run).len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(1));
    }
    send(Signal::SIGINT, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // The checkpoint is of the very step it stopped at, and nothing half-made is left.
    assert_eq!(steps(&run).last(), Some(&reached(&run)));
    let names = std::fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .flatten();
    assert!(
        names
            .map(|e| e.file_name())
            .all(|n| !n.to_string_lossy().starts_with('.'))
    );
    s.ok(&["checkpoint", "verify", "run"]);
    let staging = |run: &str| {
        let text = std::fs::read(s.path(run).join("ledger.json")).unwrap();
        let ledger: Value = serde_json::from_slice(&text).unwrap();
        ledger["ranks"][0]["memory"]["host"]["staging"]["peak"]
            .as_u64()
            .unwrap()
    };
    // One copy of the rank's part: value and two moments of half the parameters, f32, and no second one.
    for (out, set) in [
        ("beside", "checkpoint.async=true"),
        ("still", "checkpoint.async=false"),
    ] {
        s.ok(&[
            "train",
            "config.json",
            "--ranks",
            "2",
            "--steps",
            "6",
            "--out",
            out,
            "--set",
            set,
            "--set",
            "run.checkpoint_every=1",
        ]);
    }
    let text = s.ok(&["checkpoint", "inspect", "still", "--json"]);
    let reported: Value = serde_json::from_str(&text).unwrap();
    let tensors = reported["checkpoints"][0]["tensors"].as_object().unwrap();
    let part: u64 = tensors
        .values()
        .flat_map(|t| t["pieces"].as_array().unwrap())
        .filter(|p| p["rank"] == 0)
        .map(|p| 4 * p["len"].as_u64().unwrap())
        .sum();
    let (beside, still) = (staging("beside"), staging("still"));
    assert!(
        (part..=still + part).contains(&beside),
        "{part}: {beside}, {still}"
    );
}

/// Where state rests between its uses.
const RESTS: [(&str, &[&str]); 3] = [
    ("plain", &[]),
    ("host", &["zero_optimization.offload_optimizer.device=cpu"]),
    (
        "nvme",
        &[
            "zero_optimization.offload_optimizer.device=nvme",
            "zero_optimization.offload_optimizer.nvme_path=swap",
        ],
    ),
];

/// Trains to step 8 on a layout: ranks, stage, where the state rests; at stage 3 parameters rest beside it.
fn train_on(s: &Scratch, ranks: u32, stage: u32, rests: &str, more: &[&str]) {
    let (_, sets) = RESTS.iter().find(|r| r.0 == rests).expect("one of them");
    let mut sets: Vec<String> = sets.iter().map(|x| x.to_string()).collect();
    sets.push(format!("zero_optimization.stage={stage}"));
    // All stages have the same bits with one reduction a step.
    sets.push("zero_optimization.reduce_gradients=step".to_string());
    sets.push("train_batch_size=12".to_string());
    if stage == 3 && rests != "plain" {
        let device = if rests == "host" { "cpu" } else { rests };
        sets.push(format!("zero_optimization.offload_param.device={device}"));
    }
    let ranks = ranks.to_string();
    let mut args = vec!["train", "config.json", "--ranks", &ranks];
    args.extend(sets.iter().flat_map(|x| ["--set", x.as_str()]));
    s.ok(&[&args[..], more].concat());
}

#[cfg(unix)]
#[test]
fn a_full_swap_disk_is_named_and_leaves_the_last_checkpoint() {
    let s = Scratch::new();
    train_on(&s, 2, 3, "plain", &["--out", "whole"]);
    train_on(&s, 2, 3, "nvme", &["--steps", "4", "--out", "full"]);
    let out = s.path("full");
    assert_eq!(steps(&out), [3, 4]);
    // The swap's files take their whole room when they are made; a few blocks are not enough for the largest of them.
    let mut args = vec!["train", "config.json", "--ranks", "2", "--resume", "full"];
    let sets = [
        "zero_optimization.stage=3",
        "train_batch_size=12",
        "zero_optimization.offload_optimizer.device=nvme",
        "zero_optimization.offload_optimizer.nvme_path=swap",
        "zero_optimization.offload_param.device=nvme",
    ];
    args.extend(sets.iter().flat_map(|x| ["--set", x]));
    let ended = limited(&s, 16, &args);
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{err}");
    let reported = err.lines().find(|l| l.starts_with("error: ")).unwrap();
    for part in ["swap", "the disk is full", "nvme_path"] {
        assert!(reported.contains(part), "{part}: {err}");
    }
    assert_eq!(std::fs::read_dir(s.path("swap")).unwrap().count(), 0);
    assert_eq!((steps(&out), reached(&out)), (vec![3, 4], 4), "{err}");
    s.ok(&["checkpoint", "verify", "full"]);
    train_on(&s, 2, 3, "nvme", &["--resume", "full"]);
    same(&s.path("whole"), &out);
}
