//! `faults` of the config: what goes wrong on purpose is found, named, and ends the run, or only slows it down.

use crate::support::{Job, Scratch, losses, names, same};

/// A job of two ranks with these faults.
fn job<'a>(s: &'a Scratch, faults: &str) -> Job<'a> {
    let faults = format!("faults=[{faults}]");
    s.job("config.json").ranks(2).set(&faults)
}

#[test]
fn delays_and_slow_links_cost_time_and_no_bit() {
    let s = Scratch::new();
    s.job("config.json").ranks(2).run("plain");
    let late = r#"{"rank": 1, "kind": "delay", "ms": 40, "step": 3},
                  {"rank": 0, "kind": "slow", "bytes_per_s": 1e6, "op": "all_reduce", "group": "dp"}"#;
    job(&s, late).run("late");
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
        let (e, _) = job(&s, &fault).fails(kind);
        let parts = [words, "rank 1", "faults[0] in step 5", "all_reduce on dp"];
        names(&e, &parts);
        assert_eq!(e.rank(), Some(1), "{e}");
        // What was saved before goes on, without the fault.
        s.job("config.json").ranks(2).resume(kind).goes_on();
        assert_eq!(losses(&s.path(kind)).len(), 8);
    }
}

#[test]
fn a_flipped_bit_is_found_at_its_collective_when_values_are_checked() {
    let s = Scratch::new();
    s.job("config.json").ranks(2).run("plain");
    let check = "run.check=values";
    job(&s, "").set(check).run("checked");
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
        let faulty = job(&s, &fault).set(&stage);
        let (e, _) = faulty.clone().set(check).fails(op);
        names(&e, &[words, op, "on dp", "step 4", ".rs:", "corrupted"]);
        // Unchecked it goes through, or ends as what became of the loss; never as if nothing had been.
        let out = format!("{op}-unchecked");
        match faulty.tried(&out) {
            Ok(_) => assert_ne!(losses(&s.path(&out)), losses(&s.path("plain")), "{op}"),
            Err(e) => drop(names(&e, &["diverged"])),
        }
    }
}

#[test]
fn faults_that_never_strike_are_told() {
    let s = Scratch::new();
    let faults = r#"{"rank": 1, "kind": "drop", "op": "reduce_scatter"}, {"rank": 0, "kind": "kill", "step": 99},
                    {"rank": 1, "kind": "error", "group": "tp", "step": 2}, {"rank": 0, "kind": "stall", "op": "all_reduce", "call": 9000},
                    {"rank": 1, "kind": "delay", "ms": 1, "step": 3}"#;
    let err = job(&s, faults).run("idle").said;
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
        job(&s, fault).refused(parts);
    }
}
