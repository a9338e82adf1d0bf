//! `run.balance`: ranks take uneven shares of the same global batch, and the curve is that of even ones.

use crate::common;
use common::{Scratch, records};
use serde_json::Value;

/// Micro-batches of four sequences, so that there is something to move; with dropout, accumulation and validation.
const BATCH: [&str; 2] = ["train_batch_size=24", "train_micro_batch_size_per_gpu=4"];

fn train(s: &Scratch, out: &str, sets: &[&str]) -> (Vec<Value>, Value) {
    let mut args = vec!["train", "config.json", "--ranks", "3", "--out", out];
    let all = BATCH.iter().chain(sets);
    args.extend(all.flat_map(|set| ["--set", *set]));
    s.ok(&args);
    let text = std::fs::read(s.path(out).join("ledger.json")).expect("a ledger");
    (
        records(&s.path(out)),
        serde_json::from_slice(&text).expect("json"),
    )
}

/// Losses, norms and validation losses of two runs of one curve.
fn close(a: &[Value], b: &[Value], within: f64) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        for key in ["loss", "grad_norm", "val_loss"] {
            let (Some(x), Some(y)) = (x[key].as_f64(), y[key].as_f64()) else {
                assert_eq!(x[key], y[key]);
                continue;
            };
            assert!((x - y).abs() <= within * x.abs(), "{key}: {x} and {y}");
        }
    }
}

#[test]
fn uneven_shares_follow_the_curve_of_even_ones() {
    let s = Scratch::new();
    for (name, sets, within) in [
        ("0", &["gradient_accumulation_steps=2"][..], 1e-5),
        ("3", &["zero_optimization.stage=3"], 1e-5),
        (
            "f16",
            &["fp16.enabled=true", "zero_optimization.stage=1"],
            5e-3,
        ),
    ] {
        let (even, ledger) = train(&s, &format!("even-{name}"), sets);
        assert!(ledger.get("micro_batch").is_none(), "{ledger:#}");
        let weights = "run.balance=\"2.5, 0.5, 1\"";
        let sets = [sets, &[weights][..]].concat();
        let (uneven, ledger) = train(&s, &format!("uneven-{name}"), &sets);
        assert_eq!(ledger["micro_batch"], serde_json::json!([8, 1, 3]));
        close(&even, &uneven, within);
    }
}

#[test]
fn a_measured_division_adds_up_and_can_be_repeated() {
    let s = Scratch::new();
    let args = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--out",
        "run",
        "--set",
        "run.balance=\"speed\"",
    ];
    let wide = [
        "--set",
        "train_batch_size=16",
        "--set",
        "train_micro_batch_size_per_gpu=8",
        "--steps",
        "2",
    ];
    let out = s.run(&[&args[..], &wide[..]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    // How fast each is belongs to the machine; that the division adds up and can be repeated does not.
    let note = said
        .lines()
        .find(|l| l.contains("run.balance: ranks do"))
        .expect("a note");
    let list = note
        .split("run.balance=\"")
        .nth(1)
        .and_then(|l| l.split('"').next());
    let list = list.expect("a division to repeat");
    let shares: Vec<u64> = list
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!(
        (shares.len(), shares.iter().sum::<u64>()),
        (2, 16),
        "{note}"
    );
    let again = format!("run.balance=\"{list}\"");
    let repeat = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--out",
        "again",
        "--set",
        &again,
    ];
    s.ok(&[&repeat[..], &wide[..]].concat());
    close(&records(&s.path("run")), &records(&s.path("again")), 0.0);
}

#[test]
fn a_rank_that_cannot_be_measured_is_named_and_nobody_waits_for_it() {
    let s = Scratch::new();
    let args = |more: &[&'static str]| {
        let all = ["train", "config.json", "--ranks", "2", "--out", "run"];
        let sets = [
            "train_batch_size=16",
            "train_micro_batch_size_per_gpu=8",
            "run.balance=\"speed\"",
        ];
        let mut v = all.to_vec();
        v.extend(sets.iter().flat_map(|x| ["--set", *x]));
        v.extend(more);
        v
    };
    // It fails while the other is being measured.
    let lost = args(&["--layer", "fault=launch:matmul:10:device_lost@1"]);
    let said = ["measuring rank 1", "call 10 of op_launch of matmul"];
    s.refused(&lost, &said, &["run"]);
    // A back end that lacks an op is measured with the host's.
    let host = ["--layer", "lacks=matmul", "--steps", "1"];
    s.ok(&args(
        &[&host[..], &["--set", "run.allow_host_ops=true"]].concat(),
    ));
}

#[test]
fn a_run_goes_on_with_another_division() {
    let s = Scratch::new();
    let args = |weights: &'static str, steps: &'static str| {
        let all = ["train", "config.json", "--ranks", "2", "--out", "run"];
        let sets = ["train_batch_size=16", "train_micro_batch_size_per_gpu=8"];
        let mut v = all.to_vec();
        v.extend(sets.iter().chain([&weights]).flat_map(|x| ["--set", *x]));
        v.extend(["--steps", steps, "--set", "run.checkpoint_every=2"]);
        v
    };
    s.ok(&args("run.balance=\"3,1\"", "2"));
    s.ok(&[&args("run.balance=\"1,3\"", "4")[..], &["--resume", "run"]].concat());
    let last = records(&s.path("run"))
        .iter()
        .filter_map(|r| r["step"].as_u64())
        .max();
    assert_eq!(last, Some(4));
}

#[test]
fn divisions_that_cannot_be_are_refused_by_their_key() {
    let s = Scratch::new();
    let refused = |set: &str, more: &[&str], parts: &[&str]| {
        let args = [
            "train",
            "config.json",
            "--ranks",
            "2",
            "--out",
            "run",
            "--set",
            set,
        ];
        s.refused(&[&args[..], more].concat(), parts, &["run"]);
    };
    refused(
        "run.balance=\"1,2,3\"",
        &[],
        &["run.balance", "3 weights for 2 ranks"],
    );
    refused(
        "run.balance=\"fast\"",
        &[],
        &["run.balance", "\"fast\"", "speed"],
    );
    refused(
        "run.balance=\"1,-2\"",
        &[],
        &["run.balance", "positive number"],
    );
    let shards = ["--set", "run.canonical_shards=4"];
    refused(
        "run.balance=\"speed\"",
        &shards,
        &["run.balance", "canonical"],
    );
    let clocks = [
        "explore",
        "config.json",
        "--ranks",
        "2",
        "--set",
        "run.balance=\"speed\"",
    ];
    s.refused(&clocks, &["run.balance", "by clocks"], &[]);
}
