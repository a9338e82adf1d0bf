//! `crossweave explain`: counts that are those of a real step, routes that follow what the back end has, and a lock that a worse route breaks.

use crate::common;
use common::{Scratch, figures, losses, same};
use serde_json::Value;

fn explain(s: &Scratch, more: &[&str]) -> Value {
    let args = [&["explain", "config.json", "--json"][..], more].concat();
    serde_json::from_str(&s.ok(&args)).expect("JSON")
}

/// `(op, route, launches a call, calls)` of each row.
fn rows(v: &Value) -> Vec<(String, String, u64, u64)> {
    let text = |r: &Value, k: &str| r[k].as_str().expect("text").to_string();
    let number = |r: &Value, k: &str| r[k].as_u64().expect("a number");
    let all = v["ops"].as_array().expect("rows");
    let one = |r: &Value| {
        (
            text(r, "op"),
            text(r, "route"),
            number(r, "launches_per_call"),
            number(r, "calls"),
        )
    };
    all.iter().map(one).collect()
}

fn calls(v: &Value, op: &str) -> u64 {
    rows(v).iter().filter(|r| r.0 == op).map(|r| r.3).sum()
}

#[test]
fn a_step_is_known_call_by_call_without_training() {
    let s = Scratch::new();
    let v = explain(&s, &[]);
    // Two layers, eight micro-batches of one sequence.
    assert_eq!(calls(&v, "attention_fwd"), 16);
    assert_eq!(calls(&v, "attention_bwd"), 16);
    assert_eq!(calls(&v, "layer_norm_fwd"), (2 * 2 + 1) * 8);
    assert!(
        rows(&v).iter().all(|r| r.1 == "native" && r.2 == 1),
        "{v:#}"
    );
    assert_eq!(v["totals"]["host_round_trips"], 0);
    let again = explain(&s, &["--set", "model.recompute=full"]);
    assert!(calls(&again, "attention_fwd") > 16);
    let page = s.ok(&["explain", "config.json"]);
    for part in [
        "attention_bwd f32",
        "native",
        "host round trips: none",
        "launches a step:",
    ] {
        assert!(page.contains(part), "{part:?} not in\n{page}");
    }
    // On the null device, and with figures for the roofline.
    let v = explain(&s, &["--backend", "null", "--tflops", "1", "--gbps", "10"]);
    let first = &v["ops"][0];
    assert_eq!(first["est_from"], "roofline");
    assert!(first["est_ns"].as_u64().is_some_and(|n| n > 0));
    assert!(!s.path("runs").exists());
}

#[test]
fn routes_follow_what_the_back_end_lacks() {
    let s = Scratch::new();
    let lacks = |what: &str| explain(&s, &["--layer", &format!("lacks={what}")]);
    let route = |v: &Value, op: &str| {
        let hit = rows(v).into_iter().find(|r| r.0 == op);
        hit.unwrap_or_else(|| panic!("no {op}"))
    };
    let v = lacks("attention_bwd+adamw");
    assert!(
        ["mixed", "primitives"].contains(&&*route(&v, "attention_bwd").1),
        "{v:#}"
    );
    assert_eq!(route(&v, "adamw").1, "elementwise_program");
    assert_eq!(route(&v, "attention_fwd").1, "native");
    let better = v["ops"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|r| r["op"] == "attention_bwd");
    assert!(better.is_some_and(|r| {
        r["better_if"]
            .as_str()
            .is_some_and(|b| b.contains("native attention_bwd"))
    }));
    // With nothing fused but programs, everything pointwise is one launch.
    let v = lacks("fused");
    for op in ["adamw", "activation_fwd"] {
        assert_eq!(route(&v, op).1, "elementwise_program", "{op}");
    }
    let v = lacks("fused+elementwise_program");
    assert_eq!(route(&v, "adamw").1, "primitives");
    // A type less: through f32.
    let v = explain(
        &s,
        &["--layer", "lacks=matmul:bf16", "--set", "bf16.enabled=true"],
    );
    let wide: Vec<_> = rows(&v).into_iter().filter(|r| r.0 == "matmul").collect();
    assert!(wide.iter().all(|r| r.1 == "wider" && r.2 >= 3), "{wide:?}");
    // Nothing left: no route, said for each, and the host where it is allowed.
    let args = ["explain", "config.json", "--layer", "lacks=matmul"];
    s.refused(
        &args,
        &["have no route on cpu", "matmul", "run.allow_host_ops"],
        &[],
    );
    let v = explain(
        &s,
        &[
            "--layer",
            "lacks=matmul",
            "--set",
            "run.allow_host_ops=true",
        ],
    );
    assert_eq!(route(&v, "matmul").1, "host");
    assert_eq!(
        v["totals"]["host_round_trips"].as_u64(),
        Some(calls(&v, "matmul"))
    );
}

#[test]
fn collectives_are_named_with_their_route() {
    let s = Scratch::new();
    let v = explain(
        &s,
        &[
            "--ranks",
            "2",
            "--set",
            "zero_optimization.stage=3",
            "--set",
            "train_batch_size=8",
        ],
    );
    let all = v["collectives"].as_array().expect("a list");
    let kinds: Vec<&str> = all.iter().filter_map(|c| c["kind"].as_str()).collect();
    assert!(
        kinds.contains(&"reduce_scatter") && kinds.contains(&"all_gather"),
        "{kinds:?}"
    );
    assert!(
        all.iter()
            .all(|c| c["native"] == true && c["launches_per_call"] == 1),
        "{all:?}"
    );
    // What is composed is carried out once, and its parts are counted.
    let stage = ["--ranks", "2", "--set", "zero_optimization.stage=3"];
    let v = explain(
        &s,
        &[&stage[..], &["--layer", "lacks=reduce_scatter"]].concat(),
    );
    let all = v["collectives"].as_array().expect("a list");
    let composed: Vec<_> = all.iter().filter(|c| c["native"] == false).collect();
    assert!(!composed.is_empty());
    for c in composed {
        assert_eq!(c["kind"], "reduce_scatter");
        assert!(c["launches_per_call"].as_u64() > Some(1), "{c}");
        assert!(
            c["route"].as_str().is_some_and(|r| !r.starts_with("none")),
            "{c}"
        );
    }
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

#[test]
fn ops_on_the_host_train_to_the_same_bits_and_are_told() {
    let s = Scratch::new();
    let train = |out: &str, more: &[&str]| {
        s.run(
            &[
                &["train", "config.json", "--steps", "3", "--out", out][..],
                more,
            ]
            .concat(),
        )
    };
    assert!(train("native", &[]).status.success());
    let lacks = [
        "--layer",
        "lacks=matmul+attention_fwd+adamw+elementwise_program+layer_norm_bwd+binary",
    ];
    let out = train(
        "host",
        &[&lacks[..], &["--set", "run.allow_host_ops=true"]].concat(),
    );
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(
        said.contains("computed on the host (run.allow_host_ops)"),
        "{said}"
    );
    same(&s.path("native"), &s.path("host"));
    let out = train("refused", &lacks);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        !out.status.success() && said.contains("run.allow_host_ops"),
        "{said}"
    );
}

#[test]
fn bf16_through_f32_follows_bf16() {
    let s = Scratch::new();
    let train = |out: &str, more: &[&str]| {
        let args = [
            "train",
            "config.json",
            "--steps",
            "6",
            "--out",
            out,
            "--set",
            "bf16.enabled=true",
        ];
        s.ok(&[&args[..], more].concat());
    };
    train("native", &[]);
    train(
        "wide",
        &[
            "--layer",
            "lacks=matmul:bf16+attention_fwd:bf16+binary:bf16",
        ],
    );
    let (a, b) = (losses(&s.path("native")), losses(&s.path("wide")));
    assert_eq!(a.len(), b.len());
    assert_eq!(
        figures(&s.path("native")).len(),
        figures(&s.path("wide")).len()
    );
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() <= 5e-3 * x.abs(), "{a:?} {b:?}");
    }
}
