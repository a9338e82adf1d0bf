//! Several ranks, as threads, in each of several processes, under both MPI families: the same run as threads of one process, whatever
//! stands where, and failures that name every rank they are about.

use crate::common;
use common::mpi::{families, launcher, mpirun, ok, played, plugin, text, torch_style};
use common::{Scratch, cpu_plugin, figures, losses, same};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What a process is given beside the config: its ranks, and where its job goes.
type Job<'a> = (&'a [&'a str], &'a [&'a str]);

/// A job of processes of these `--ranks`, one process for each.
fn job(s: &Scratch, family: &str, (ranks, args): Job<'_>) -> Command {
    // Else the launcher may end the survivors of a killed process before they have said who died.
    let own: &[&str] = match family {
        "mpich" => &["-disable-auto-cleanup"],
        _ => &[],
    };
    let mut c = launcher(s, family, 1, own, &["train", "config.json"]);
    for (i, ranks) in ranks.iter().enumerate() {
        if i > 0 {
            c.args([":", "-n", "1", env!("CARGO_BIN_EXE_crossweave")]);
            c.args(["train", "config.json"]);
        }
        c.args(["--ranks", ranks]).args(args);
    }
    c
}

fn threads(s: &Scratch, n: &str, args: &[&str]) {
    s.ok(&[&["train", "config.json", "--ranks", n], args].concat());
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json")
}

#[test]
fn threads_of_processes_train_to_the_bits_of_threads() {
    plugin();
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    let both = format!("cpu:1,{file}:1");
    // Every result is held against the other ranks', bit by bit.
    let check = "run.check=\"values\"";
    for (stage, dtype, layout) in [
        ("3", "f32", ["cpu:2", "cpu:2"]),
        ("0", "bf16", ["cpu:1", "cpu:3"]),
        ("2", "f32", [both.as_str(), both.as_str()]),
    ] {
        let stage_is = format!("zero_optimization.stage={stage}");
        let dtype_is = format!("run.dtype={dtype}");
        let sets = ["--set", &stage_is, "--set", &dtype_is, "--set", check];
        let one = format!("threads-{stage}");
        threads(&s, "4", &[&["--out", &one], &sets[..]].concat());
        for family in families() {
            let out = format!("{family}-{stage}");
            let args = [&["--out", &out], &sets[..]].concat();
            let said = ok(job(&s, family, (&layout, &args)));
            same(&s.path(&one), &s.path(&out));
            // Rank 0 alone speaks.
            assert_eq!(said.matches("step      1/8").count(), 1, "{said}");
            let of = |run: &str| json(&s.path(run).join("ledger.json"));
            let (a, b) = (of(&one), of(&out));
            let ranks = b["ranks"].as_array().expect("ranks");
            assert_eq!(ranks.len(), 4);
            for (r, rank) in ranks.iter().enumerate() {
                assert_eq!(rank["rank"], r);
                // What a rank asked of the mesh does not depend on who carries it.
                assert_eq!(rank["collectives"], a["ranks"][r]["collectives"]);
                assert!(rank.get("bridge").is_some(), "{rank:#}");
            }
            let computes = b["backends"].as_array();
            let ranks: Vec<&Value> = computes
                .into_iter()
                .flatten()
                .map(|c| &c["ranks"])
                .collect();
            match layout[0] == both {
                true => assert_eq!(
                    ranks,
                    [&serde_json::json!([0, 2]), &serde_json::json!([1, 3])]
                ),
                false => assert!(ranks.is_empty(), "{ranks:?}"),
            }
        }
    }
}

#[test]
fn a_run_goes_on_in_any_layout_and_canonical_sums_do_not_know_it() {
    plugin();
    let s = Scratch::new();
    let canonical = ["--set", "run.canonical_shards=8"];
    threads(&s, "1", &[&["--out", "one"], &canonical[..]].concat());
    threads(&s, "4", &["--out", "whole"]);
    for family in families() {
        let out = format!("{family}-canonical");
        let args = [&["--out", &out], &canonical[..]].concat();
        ok(job(&s, family, (&["cpu:3", "cpu:1"], &args)));
        same(&s.path("one"), &s.path(&out));
        let (to, from) = (format!("{family}-to"), format!("{family}-from"));
        threads(&s, "4", &["--steps", "4", "--out", &to]);
        ok(job(&s, family, (&["cpu:2", "cpu:2"], &["--resume", &to])));
        same(&s.path("whole"), &s.path(&to));
        let begun = ["--steps", "4", "--out", &from];
        ok(job(&s, family, (&["cpu:1", "cpu:3"], &begun)));
        threads(&s, "4", &["--resume", &from]);
        same(&s.path("whole"), &s.path(&from));
        // Sums inside islands first are other sums, and the same curve.
        let plan = format!("{family}-plan");
        let args = ["--out", &plan, "--set", "collectives.order=\"plan\""];
        ok(job(&s, family, (&["cpu:2", "cpu:2"], &args)));
        let both = losses(&s.path("whole"))
            .into_iter()
            .zip(losses(&s.path(&plan)));
        for (a, b) in both {
            assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
    }
}

#[test]
fn shares_and_traces_are_those_of_all_ranks() {
    plugin();
    let s = Scratch::new();
    let sets = [
        "--set",
        "train_batch_size=16",
        "--set",
        "train_micro_batch_size_per_gpu=2",
    ];
    let weights = ["--set", "run.balance=\"4,1,2,1\""];
    threads(
        &s,
        "4",
        &[&["--out", "threads"], &sets[..], &weights].concat(),
    );
    for family in families() {
        let args = [
            &["--out", family],
            &sets[..],
            &weights,
            &["--trace", "t.json"],
        ]
        .concat();
        ok(job(&s, family, (&["cpu:3", "cpu:1"], &args)));
        same(&s.path("threads"), &s.path(family));
        let trace = json(&s.path("t.json"));
        assert_eq!(trace["otherData"]["whole"], true);
        let ranks = trace["otherData"]["ranks"].as_array().expect("ranks");
        assert_eq!(ranks.len(), 4);
        assert!(ranks.iter().all(|r| r["ended"] == true), "{ranks:?}");
        let speed = format!("{family}-speed");
        let args = [
            "--out",
            &speed,
            "--steps",
            "2",
            "--set",
            "run.balance=\"speed\"",
        ];
        let args = [&args, &sets[..]].concat();
        ok(job(&s, family, (&["cpu:2", "cpu:2"], &args)));
        assert_eq!(losses(&s.path(&speed)).len(), 2);
    }
}

#[test]
fn processes_that_torchruns_variables_describe_have_several_ranks_too() {
    plugin();
    if !families().contains(&"mpich") {
        return;
    }
    let s = Scratch::new();
    threads(&s, "4", &["--out", "threads"]);
    let args = ["train", "config.json", "--ranks", "cpu:2", "--out", "torch"];
    for child in torch_style(&s, 2, &args) {
        let o = child.wait_with_output().expect("it ends");
        assert!(o.status.success(), "{}", text(&o));
    }
    same(&s.path("threads"), &s.path("torch"));
}

#[test]
fn failures_name_every_rank_they_are_about() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let file = |out: &str, r: u32| s.path(out).join(format!("flight-rank{r}.json"));
        for (kind, parts) in [
            (
                "kill",
                &[
                    "ranks 2 to 3 died without a word",
                    "rank 3: its last call was",
                ][..],
            ),
            (
                "drop",
                &[
                    "rank 3 missed all_reduce",
                    "which ranks 0, 1, 2 call; rank 3 is at all_reduce",
                    "(at zero/src/lower/",
                ],
            ),
            ("error", &["rank 3 fails on purpose", "faults[0] in step 5"]),
        ] {
            let fault = format!("faults=[{{\"rank\": 3, \"kind\": \"{kind}\", \"step\": 5}}]");
            let name = |n: u32| format!("{family}-{kind}-{n}");
            let scene = |n: u32| {
                let out = name(n);
                let args = [
                    "--out",
                    &out,
                    "--set",
                    &fault,
                    "--set",
                    "run.check=\"values\"",
                ];
                let mut c = job(&s, family, (&["cpu:2", "cpu:2"], &args));
                c.output().expect("it starts")
            };
            // Of all ranks, those of the process that died too.
            let left = |n: u32| kind != "kill" || (0..4).all(|r| file(&name(n), r).is_file());
            let (n, o) = played(family, scene, left);
            let said = text(&o);
            assert!(!o.status.success(), "{family} {kind}: {said}");
            for p in parts {
                assert!(said.contains(p), "{family} {kind}: {p:?} not in: {said}");
            }
            assert!(!said.contains("panicked"), "{said}");
            assert!(
                left(n),
                "{family} {kind}: flight records are missing: {said}"
            );
            if kind == "kill" {
                let out = name(n);
                let before = figures(&s.path(&out)).len();
                threads(&s, "4", &["--resume", &out]);
                assert!(before > 0 && losses(&s.path(&out)).len() == 8);
            }
        }
    }
}

#[test]
fn what_does_not_fit_together_is_refused_with_what_to_write() {
    plugin();
    let s = Scratch::new();
    // Before the first message: one family says it as the other does.
    if let Some(family) = families().pop() {
        let refused = |mut c: Command, parts: &[&str]| {
            let o = c.output().expect("it starts");
            let said = text(&o);
            assert!(!o.status.success(), "{said}");
            for p in parts {
                assert!(said.contains(p), "{family}: {p:?} not in: {said}");
            }
            assert!(!s.path("out").join("metrics.jsonl").exists(), "{said}");
        };
        let out = ["--out", "out"];
        let whole = ["train", "config.json", "--ranks", "4", "--out", "out"];
        refused(
            mpirun(&s, family, 2, &whole),
            &["--ranks 4", "has started 2 processes", "--ranks cpu:2"],
        );
        refused(
            job(&s, family, (&["cpu:2", "2"], &out)),
            &["--ranks 2", "they are 3 ranks"],
        );
        let mesh = [&out[..], &["--set", "mesh.dp=3"]].concat();
        refused(
            job(&s, family, (&["cpu:2", "cpu:2"], &mesh)),
            &["mesh.dp", "4"],
        );
        refused(
            job(&s, family, (&["cpu:1", "cpu:1,nosuch:2"], &out)),
            &["ranks 2 to 3 (nosuch)", "no back end named"],
        );
        let batch = [&out[..], &["--set", "train_batch_size=6"]].concat();
        let mut c = job(&s, family, (&["cpu:1", "cpu:2"], &batch));
        c.args(["--set", "run.seed=77"]);
        refused(
            c,
            &[
                "ranks 1-2 run another config than rank 0",
                "run.seed is 77 there",
            ],
        );
    }
}
