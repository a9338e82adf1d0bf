//! `run.graphs`: steps replayed as graphs train to the same bits and are counted; where there are none, `on` is refused.

use crate::common;
use common::{Scratch, same};
use serde_json::Value;

fn train<'a>(out: &'a str, ranks: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let first = ["train", "config.json", "--ranks", ranks, "--out", out];
    [&first[..], &["--steps", "8"], more].concat()
}

#[test]
fn replayed_runs_have_the_same_bits_and_say_what_was_replayed() {
    let s = Scratch::new();
    for ranks in ["1", "2"] {
        let (called, replayed) = (format!("called-{ranks}"), format!("replayed-{ranks}"));
        let said = s.ok(&train(&called, ranks, &[]));
        assert!(!said.contains("launches saved"), "{said}");
        let said = s.ok(&train(&replayed, ranks, &["--set", "run.graphs=\"on\""]));
        assert!(
            said.contains("forward and backward steps replayed"),
            "{said}"
        );
        same(&s.path(&called), &s.path(&replayed));
        let ledger = |run: &str| -> Value {
            let text = std::fs::read_to_string(s.path(run).join("ledger.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        for rank in ledger(&replayed)["ranks"].as_array().unwrap() {
            assert!(rank["graphs"]["replayed"].as_u64().unwrap() > 0, "{rank}");
        }
        assert!(ledger(&called)["ranks"][0].get("graphs").is_none());
    }
}

#[test]
fn a_run_goes_on_with_graphs_and_without() {
    let s = Scratch::new();
    s.ok(&train("whole", "1", &[]));
    for (first, then) in [("off", "on"), ("on", "off")] {
        let out = format!("from-{first}");
        let [first, then] = [first, then].map(|w| format!("run.graphs=\"{w}\""));
        let run = ["train", "config.json"];
        let begun = ["--steps", "4", "--out", &out, "--set", &first];
        s.ok(&[&run[..], &begun].concat());
        let said = s.ok(&[&run[..], &["--resume", &out, "--set", &then]].concat());
        assert_eq!(
            said.contains("launches saved"),
            then.contains("on"),
            "{said}"
        );
        same(&s.path(&out), &s.path("whole"));
    }
}

#[test]
fn what_is_not_replayed_although_it_was_asked_for_is_named_once() {
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(common::CONFIG).unwrap();
    config["run"]["steps"] = 12.into();
    for (dropout, tp) in [(0.1, 1), (0.1, 2), (0.0, 2)] {
        for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
            config["model"][key] = dropout.into();
        }
        config["mesh"] = serde_json::json!({ "tp": tp });
        s.write("config.json", config.to_string());
        let run = |out: &str, graphs: &str| {
            let (ranks, set) = (tp.to_string(), format!("run.graphs=\"{graphs}\""));
            let args = ["train", "config.json", "--ranks", &ranks, "--out", out];
            s.run(&[&args[..], &["--set", &set]].concat())
        };
        let (off, on) = (format!("off-{dropout}-{tp}"), format!("on-{dropout}-{tp}"));
        assert!(run(&off, "off").status.success());
        let out = run(&on, "on");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
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
    let on = ["--set", "run.graphs=\"on\"", "--layer", "validate"];
    let wanted = [
        "run.graphs is on",
        "crossweave.graph/1",
        "set run.graphs to auto",
    ];
    s.refused(&train("layered", "1", &on), &wanted, &["layered"]);
    let odd = ["--set", "run.graphs=\"always\""];
    s.refused(
        &train("odd", "1", &odd),
        &["run.graphs", "auto", "off"],
        &["odd"],
    );
    // `auto` leaves them alone where nobody says that they pay.
    let said = s.ok(&train("auto", "1", &["--layer", "validate"]));
    assert!(!said.contains("launches saved"), "{said}");
}
