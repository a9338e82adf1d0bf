//! `faults` of the config, through the command line: what goes wrong on purpose is found, named, and ends the run, or only slows it down.

use crate::common;
use common::{Scratch, losses, same};
use std::process::Output;

fn said(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// A run of two ranks with these faults, into `out`.
fn run(s: &Scratch, out: &str, faults: &str, more: &[&str]) -> Output {
    let faults = format!("faults=[{faults}]");
    let base = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--out",
        out,
        "--set",
        &faults,
    ];
    s.run(&[&base[..], more].concat())
}

#[test]
fn delays_and_slow_links_cost_time_and_no_bit() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--ranks", "2", "--out", "plain"]);
    let late = r#"{"rank": 1, "kind": "delay", "ms": 40, "step": 3},
                  {"rank": 0, "kind": "slow", "bytes_per_s": 1e6, "op": "all_reduce", "group": "dp"}"#;
    let o = run(&s, "late", late, &[]);
    assert!(o.status.success(), "{}", said(&o));
    same(&s.path("plain"), &s.path("late"));
}

#[test]
fn errors_and_kills_end_the_run_with_the_rank_and_the_call() {
    let s = Scratch::new();
    for (kind, words) in [
        ("error", "fails on purpose"),
        ("kill", "was killed on purpose"),
    ] {
        let fault = format!(r#"{{"rank": 1, "kind": "{kind}", "step": 5, "op": "all_reduce"}}"#);
        let o = run(&s, kind, &fault, &[]);
        let err = said(&o);
        assert_eq!(o.status.code(), Some(1), "{err}");
        for part in [words, "rank 1", "faults[0] in step 5", "all_reduce on dp"] {
            assert!(err.contains(part), "{kind}: {part:?} not in: {err}");
        }
        assert_eq!(err.matches("error: ").count(), 1, "{err}");
        // What was saved before goes on, without the fault.
        s.ok(&["train", "config.json", "--ranks", "2", "--resume", kind]);
        assert_eq!(losses(&s.path(kind)).len(), 8);
    }
}

#[test]
fn a_flipped_bit_is_found_at_its_collective_when_values_are_checked() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--ranks", "2", "--out", "plain"]);
    let check = ["--set", "run.check=values"];
    let o = run(&s, "checked", "", &check);
    assert!(o.status.success(), "{}", said(&o));
    same(&s.path("plain"), &s.path("checked"));
    // The result of a sum is on both ranks; that of a scatter is this rank's alone, and a gather's is on both again.
    let cases = [
        ("0", "all_reduce", "ranks 0, 1 got different bits"),
        (
            "2",
            "reduce_scatter",
            "rank 1 got other bits the second time",
        ),
        ("3", "all_gather", "ranks 0, 1 got different bits"),
    ];
    for (stage, op, words) in cases {
        let fault = format!(r#"{{"rank": 1, "kind": "corrupt", "step": 4, "op": "{op}"}}"#);
        let stage = format!("zero_optimization.stage={stage}");
        let o = run(&s, op, &fault, &[&check[..], &["--set", &stage]].concat());
        let err = said(&o);
        assert_eq!(o.status.code(), Some(1), "{op}: {err}");
        for part in [words, op, "on dp", "step 4", ".rs:", "corrupted"] {
            assert!(err.contains(part), "{op}: {part:?} not in: {err}");
        }
        // Unchecked it goes through, or ends as what became of the loss; never as if nothing had been.
        let o = run(&s, &format!("{op}-unchecked"), &fault, &["--set", &stage]);
        let unseen = o.status.success()
            && losses(&s.path(&format!("{op}-unchecked"))) != losses(&s.path("plain"));
        assert!(
            unseen || said(&o).contains("diverged"),
            "{op}: {}",
            said(&o)
        );
    }
}

#[test]
fn faults_that_never_strike_are_told() {
    let s = Scratch::new();
    let faults = r#"{"rank": 1, "kind": "drop", "op": "reduce_scatter"}, {"rank": 0, "kind": "kill", "step": 99},
                    {"rank": 1, "kind": "error", "group": "tp", "step": 2}, {"rank": 0, "kind": "stall", "op": "all_reduce", "call": 9000},
                    {"rank": 1, "kind": "delay", "ms": 1, "step": 3}"#;
    let o = run(&s, "idle", faults, &[]);
    let err = said(&o);
    assert!(o.status.success(), "{err}");
    for part in [
        "faults[0] never struck rank 1: no call of it fits; it asked for all_gather on dp, all_reduce on dp",
        "faults[1] never struck rank 0: no call of it in step 99 fits, up to step 8",
        "faults[2] never struck rank 1: no call of it in step 2 fits",
        "faults[3] never struck rank 0: only ",
        "and it is of call 9000",
    ] {
        assert!(err.contains(part), "{part:?} not in: {err}");
    }
    assert!(!err.contains("faults[4]"), "{err}");
}

#[test]
fn a_rank_that_stops_or_is_late_under_a_schedule_needs_no_clock() {
    let s = Scratch::new();
    for ranks in ["2", "4"] {
        let faults = r#"faults=[{"rank": 1, "kind": "stall", "step": 2}]"#;
        let o = s.run(&["explore", "config.json", "--ranks", ranks, "--set", faults]);
        let err = said(&o);
        assert_eq!(o.status.code(), Some(1), "{err}");
        for part in [
            "deadlock",
            "rank 1's host asks",
            "faults[0] is a stall of rank 1",
        ] {
            assert!(err.contains(part), "{part:?} not in: {err}");
        }
        // What would be said of one whose turn is taken after two minutes.
        assert!(!err.contains("held the turn"), "{err}");
    }
    let hour = r#"faults=[{"rank": 1, "kind": "delay", "ms": 3600000}]"#;
    let explore = ["explore", "config.json", "--ranks", "2", "--seeds", "2"];
    let held = s.ok(&[&explore[..], &["--set", hour]].concat());
    assert!(held.contains("2 seeds held"), "{held}");
}

#[test]
fn faults_that_make_no_sense_are_refused_by_their_key() {
    let s = Scratch::new();
    for (fault, parts) in [
        (
            r#"{"rank": 2, "kind": "drop"}"#,
            &["faults[0].rank", "rank 2 of 2"][..],
        ),
        (
            r#"{"rank": 1, "kind": "dorp"}"#,
            &["faults[0].kind", "drop"],
        ),
        (
            r#"{"rank": 1, "kind": "delay"}"#,
            &["faults[0].ms", "needs it"],
        ),
        (
            r#"{"rank": 1, "kind": "drop", "ms": 5}"#,
            &["faults[0].ms", "only kind \"delay\""],
        ),
        (
            r#"{"rank": 1, "kind": "slow"}"#,
            &["faults[0].bytes_per_s", "needs it"],
        ),
        (
            r#"{"rank": 1, "kind": "drop", "stpe": 5}"#,
            &["stpe", "step"],
        ),
        (
            r#"{"rank": 1, "kind": "drop", "op": "allreduce"}"#,
            &["faults[0].op", "all_reduce"],
        ),
        (
            r#"{"rank": 1, "kind": "corrupt", "op": "barrier"}"#,
            &["faults[0].op", "receives nothing"],
        ),
        (r#"{"kind": "drop"}"#, &["faults[0]", "rank"]),
    ] {
        let set = format!("faults=[{fault}]");
        let args = [
            "train",
            "config.json",
            "--ranks",
            "2",
            "--out",
            "x",
            "--set",
            &set,
        ];
        s.refused(&args, parts, &["x"]);
    }
}
