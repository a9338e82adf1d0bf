//! `run.graphs`: steps replayed as graphs train to the same bits and are counted; where there are none, `on` is refused.

use crate::support::{CONFIG, Job, Scratch, ledger, same};
use serde_json::{Value, json};

/// The scratch folder's job with `run.graphs`.
fn job<'a>(s: &'a Scratch, graphs: &str) -> Job<'a> {
    s.job("config.json")
        .set(&format!("run.graphs={}", json!(graphs)))
}

/// What each rank of a run replayed.
fn replayed(s: &Scratch, run: &str) -> Vec<Option<u64>> {
    let ledger = ledger(&s.path(run));
    let ranks = ledger["ranks"].as_array().unwrap().iter();
    ranks.map(|r| r["graphs"]["replayed"].as_u64()).collect()
}

#[test]
fn replayed_runs_have_the_same_bits_and_say_what_was_replayed() {
    let s = Scratch::new();
    for ranks in [1, 2] {
        let (called, again) = (format!("called-{ranks}"), format!("replayed-{ranks}"));
        s.job("config.json").ranks(ranks).run(&called);
        job(&s, "on").ranks(ranks).run(&again);
        same(&s.path(&called), &s.path(&again));
        let all = replayed(&s, &again);
        assert!(all.iter().all(|n| *n > Some(0)), "{all:?}");
        assert_eq!(replayed(&s, &called), vec![None; ranks]);
    }
}

#[test]
fn a_run_goes_on_with_graphs_and_without() {
    let s = Scratch::new();
    s.job("config.json").run("whole");
    for (first, then) in [("off", "on"), ("on", "off")] {
        let out = format!("from-{first}");
        job(&s, first).steps(4).run(&out);
        job(&s, then).resume(&out).goes_on();
        assert_eq!(replayed(&s, &out)[0].is_some(), then == "on");
        same(&s.path(&out), &s.path("whole"));
    }
}

#[test]
fn what_is_not_replayed_although_it_was_asked_for_is_named_once() {
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["run"]["steps"] = 12.into();
    for (dropout, tp) in [(0.1, 1), (0.1, 2), (0.0, 2)] {
        for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
            config["model"][key] = dropout.into();
        }
        config["mesh"] = json!({ "tp": tp });
        s.write("config.json", config.to_string());
        let (off, on) = (format!("off-{dropout}-{tp}"), format!("on-{dropout}-{tp}"));
        job(&s, "off").ranks(tp).run(&off);
        let said = job(&s, "on").ranks(tp).run(&on).said;
        let times = said.matches("run.graphs is on, and not all").count();
        assert_eq!(times, usize::from(dropout > 0.0), "{said}");
        let named = said.contains("with other launch-time parameters");
        assert!(dropout == 0.0 || named, "{said}");
        same(&s.path(&off), &s.path(&on));
    }
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let s = Scratch::new();
    let wanted = [
        "run.graphs is on",
        "crossweave.graph/1",
        "set run.graphs to auto",
    ];
    job(&s, "on").layer("validate").refused(&wanted);
    job(&s, "always").refused(&["run.graphs", "auto", "off"]);
    // `auto` leaves them alone where nobody says that they pay.
    s.job("config.json").layer("validate").run("auto");
    assert_eq!(replayed(&s, "auto"), [None]);
}
