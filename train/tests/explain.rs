//! Routes of a step before it runs: counts that are those of a real step, routes that follow what the back end has, and training on them.

use crate::support::{Scratch, losses, names, same};
use serde_json::Value;

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
    let job = s.job("config.json");
    let v = job.explain();
    // Two layers, eight micro-batches of one sequence.
    assert_eq!(calls(&v, "attention_fwd"), 16);
    assert_eq!(calls(&v, "attention_bwd"), 16);
    assert_eq!(calls(&v, "layer_norm_fwd"), (2 * 2 + 1) * 8);
    assert!(
        rows(&v).iter().all(|r| r.1 == "native" && r.2 == 1),
        "{v:#}"
    );
    assert_eq!(v["totals"]["host_round_trips"], 0);
    let again = job.clone().set("model.recompute=full").explain();
    assert!(calls(&again, "attention_fwd") > 16);
    // On the null device, and with figures for the roofline.
    let mut null = job;
    null.backend.name = Some("null".into());
    let v = null.routes(Some((1.0, 10.0))).unwrap();
    let first = &v["ops"][0];
    assert_eq!(first["est_from"], "roofline");
    assert!(first["est_ns"].as_u64().is_some_and(|n| n > 0));
}

#[test]
fn routes_follow_what_the_back_end_lacks() {
    let s = Scratch::new();
    let less = |what: &str| s.job("config.json").layer(&format!("lacks={what}"));
    let lacks = |what: &str| less(what).explain();
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
    let v = less("matmul:bf16").set("bf16.enabled=true").explain();
    let wide: Vec<_> = rows(&v).into_iter().filter(|r| r.0 == "matmul").collect();
    assert!(wide.iter().all(|r| r.1 == "wider" && r.2 >= 3), "{wide:?}");
    // Nothing left: no route, said for each, and the host where it is allowed.
    let e = less("matmul").routes(None).unwrap_err();
    names(
        &e,
        &["have no route on cpu", "matmul", "run.allow_host_ops"],
    );
    let host = less("matmul").set("run.allow_host_ops=true");
    let v = host.explain();
    assert_eq!(route(&v, "matmul").1, "host");
    assert_eq!(
        v["totals"]["host_round_trips"].as_u64(),
        Some(calls(&v, "matmul"))
    );
}

#[test]
fn collectives_are_named_with_their_route() {
    let s = Scratch::new();
    let job = s.job("config.json").ranks(2);
    let job = job.set("zero_optimization.stage=3");
    let v = job.explain();
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
    let v = job.layer("lacks=reduce_scatter").explain();
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

/// Ops that the back end lacks are the host's where that is allowed, and a run says so.
#[test]
fn ops_on_the_host_train_to_the_same_bits_and_are_told() {
    let s = Scratch::new();
    let lacks = "lacks=matmul+attention_fwd+adamw+elementwise_program+layer_norm_bwd+binary";
    let native = s.job("config.json").steps(3);
    native.run("native");
    let less = native.layer(lacks);
    let host = less.clone().set("run.allow_host_ops=true").run("host");
    let said = "computed on the host (run.allow_host_ops)";
    assert!(host.said.contains(said), "{}", host.said);
    same(&s.path("native"), &s.path("host"));
    less.refused(&["run.allow_host_ops"]);
}

#[test]
fn bf16_through_f32_follows_bf16() {
    let s = Scratch::new();
    let native = s.job("config.json").steps(6).set("bf16.enabled=true");
    native.run("native");
    let wide = native.layer("lacks=matmul:bf16+attention_fwd:bf16+binary:bf16");
    wide.run("wide");
    let (a, b) = (losses(&s.path("native")), losses(&s.path("wide")));
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(&b) {
        assert!((x - y).abs() <= 5e-3 * x.abs(), "{a:?} {b:?}");
    }
}
