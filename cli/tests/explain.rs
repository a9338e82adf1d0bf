//! `crossweave explain`: its page, and a lock that a worse route breaks. The routes themselves: `train/tests/explain.rs`.

use crate::common::Scratch;
use serde_json::Value;

#[test]
fn the_page_has_each_route_and_nothing_is_left() {
    let s = Scratch::new();
    let page = s.ok(&["explain", "config.json"]);
    for part in [
        "attention_bwd f32",
        "native",
        "host round trips: none",
        "launches a step:",
    ] {
        assert!(page.contains(part), "{part:?} not in\n{page}");
    }
    assert!(!s.path("runs").exists());
}

#[test]
fn a_worse_route_breaks_the_lock() {
    let s = Scratch::new();
    let with = |more: &[&str]| s.run(&[&["explain", "config.json"][..], more].concat());
    s.ok(&[
        "explain",
        "config.json",
        "--layer",
        "lacks=adamw",
        "--write-lock",
        "routes.json",
    ]);
    let lock: Value =
        serde_json::from_slice(&std::fs::read(s.path("routes.json")).expect("the lock"))
            .expect("JSON");
    assert_eq!(lock["schema"], "crossweave.routes/1");
    let held = with(&["--layer", "lacks=adamw", "--lock", "routes.json"]);
    assert!(held.status.success());
    assert!(String::from_utf8_lossy(&held.stderr).contains("every route is as it was"));
    let better = with(&["--lock", "routes.json"]);
    assert!(better.status.success());
    assert!(String::from_utf8_lossy(&better.stdout).contains("+ better: adamw"));
    assert!(String::from_utf8_lossy(&better.stderr).contains("--write-lock routes.json"));
    let worse = with(&[
        "--layer",
        "lacks=adamw+elementwise_program",
        "--lock",
        "routes.json",
    ]);
    assert_eq!(worse.status.code(), Some(1));
    let said = String::from_utf8_lossy(&worse.stdout).into_owned();
    assert!(
        said.contains("- worse: adamw") && said.contains("was elementwise_program"),
        "{said}"
    );
    assert!(
        String::from_utf8_lossy(&worse.stderr).contains("routes are worse than in routes.json")
    );
    // Bad files are named, and nothing is half written.
    for (text, part) in [
        ("{", "no lock of routes"),
        (
            "{\"schema\":\"x\",\"plugin\":\"\",\"config\":\"\",\"routes\":[]}",
            "schema",
        ),
    ] {
        s.write("bad.json", text);
        s.refused(
            &["explain", "config.json", "--lock", "bad.json"],
            &["bad.json", part, "--write-lock"],
            &[],
        );
    }
    s.refused(
        &["explain", "config.json", "--write-lock", "none/routes.json"],
        &["none/routes.json"],
        &["none"],
    );
}
