//! `crossweave explore`: training holds under every schedule, a seed decides the same every time, and what cannot be explored is refused, and planted stalls need no clock.

use crate::common;
use common::Scratch;

#[test]
fn training_holds_under_seeded_schedules_and_a_seed_decides_alike_every_time() {
    let s = Scratch::new();
    let zero = "zero_optimization.stage=3";
    let args = |more: &[&'static str]| -> Vec<&str> {
        [
            &["explore", "config.json", "--ranks", "4", "--set", zero][..],
            more,
        ]
        .concat()
    };
    let said = s.ok(&args(&["--seeds", "4"]));
    assert!(said.contains("4 seeds held"), "{said}");
    let one = s.ok(&args(&["--seed", "3"]));
    assert!(one.contains("seed 3 (decisions "), "{one}");
    for _ in 0..3 {
        assert_eq!(s.ok(&args(&["--seed", "3"])), one);
    }
    let pct = s.ok(&args(&["--seed", "3", "--schedule", "pct:3"]));
    assert_ne!(pct, one);
    // Only the cache of tokens is left.
    assert!(!s.path("runs").exists());
}

#[test]
fn what_cannot_be_explored_is_refused_with_a_fix() {
    let s = Scratch::new();
    let offload = "zero_optimization.offload_optimizer.device=cpu";
    let args = ["explore", "config.json", "--ranks", "2", "--set", offload];
    s.refused(
        &args,
        &["explore: the config offloads", "offload_optimizer"],
        &["runs"],
    );
    let args = ["explore", "config.json", "--backend", "null"];
    s.refused(&args, &["back end null keeps no schedules"], &["runs"]);
    let speed = "run.balance=\"speed\"";
    let args = ["explore", "config.json", "--ranks", "2", "--set", speed];
    s.refused(&args, &["run.balance", "by clocks"], &[]);
    let args = ["explore", "config.json", "--schedule", "dice"];
    let out = s.run(&args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(err.contains("none of fifo, random and pct:DEPTH"), "{err}");
}

#[test]
fn a_rank_that_stops_or_is_late_under_a_schedule_needs_no_clock() {
    let s = Scratch::new();
    for ranks in ["2", "4"] {
        let faults = r#"faults=[{"rank": 1, "kind": "stall", "step": 2}]"#;
        let o = s.run(&["explore", "config.json", "--ranks", ranks, "--set", faults]);
        let err = String::from_utf8_lossy(&o.stderr).into_owned();
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
