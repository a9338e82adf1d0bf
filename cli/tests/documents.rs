//! `data.reset_attention_mask` and `data.reset_position_ids` from the command line: the ops they choose, routes without those, ranks, refusals.

use crate::common;
use common::{Scratch, losses, same};
use serde_json::Value;

const MASK: [&str; 2] = ["--set", "data.reset_attention_mask=true"];
const PLACES: [&str; 2] = ["--set", "data.reset_position_ids=true"];
const LACKS: [&str; 2] = ["--layer", "lacks=attention_varlen_fwd+attention_varlen_bwd"];

/// A corpus of documents shorter than a row.
fn scratch() -> Scratch {
    let s = Scratch::new();
    let lines: String = (0..300)
        .map(|i| format!("{{\"text\": \"{} is {}\"}}\n", i % 10, i * 7 % 10))
        .collect();
    s.write("corpus/a.jsonl", lines);
    let config = common::CONFIG.replace("corpus/*.txt", "corpus/*.jsonl");
    s.write("config.json", config);
    s
}

fn train(s: &Scratch, out: &str, more: &[&[&str]]) -> Vec<f64> {
    let base: &[&str] = &["train", "config.json", "--out", out];
    s.ok(&[&[base][..], more].concat().concat());
    losses(&s.path(out))
}

#[test]
fn the_keys_choose_ops_and_every_route_trains_alike() {
    let s = scratch();
    let explain = |more: &[&[&str]]| -> Value {
        let base: &[&str] = &["explain", "config.json", "--json"];
        let text = s.ok(&[&[base][..], more].concat().concat());
        serde_json::from_str(&text).expect("JSON")
    };
    // Two layers, eight micro-batches: `(calls, route)`.
    let row = |v: &Value, op: &str| -> Option<(u64, String)> {
        let all = v["ops"].as_array().expect("rows");
        let hit = all.iter().find(|r| r["op"] == op)?;
        let route = hit["route"].as_str().expect("a route").to_string();
        Some((hit["calls"].as_u64().expect("a number"), route))
    };
    let v = explain(&[&MASK, &PLACES]);
    assert_eq!(row(&v, "attention_varlen_fwd"), Some((16, "native".into())));
    assert_eq!(row(&v, "attention_varlen_bwd"), Some((16, "native".into())));
    assert_eq!(row(&v, "attention_fwd"), None);
    let v = explain(&[&MASK, &LACKS]);
    let (calls, route) = row(&v, "attention_varlen_bwd").expect("a row");
    assert!(calls == 16 && ["mixed", "primitives"].contains(&&*route));
    assert_eq!(row(&explain(&[]), "attention_varlen_fwd"), None);

    let plain = train(&s, "plain", &[]);
    let masked = train(&s, "masked", &[&MASK]);
    let both = train(&s, "both", &[&MASK, &PLACES]);
    assert!(
        plain != masked && masked != both,
        "{plain:?} {masked:?} {both:?}"
    );
    let again = train(&s, "again", &[&MASK, &PLACES]);
    assert_eq!(both, again);
    same(&s.path("both"), &s.path("again"));
    let ranks = train(&s, "ranks", &[&MASK, &PLACES, &["--ranks", "2"]]);
    let composed = train(&s, "composed", &[&MASK, &PLACES, &LACKS]);
    for other in [&ranks, &composed] {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3 * a;
        assert!(both.iter().zip(other).all(near), "{both:?} {other:?}");
    }
}

/// Rope by positions and attention within segments, call by call as the header wants them.
#[test]
fn calls_are_valid_and_ranks_that_hold_parts_agree() {
    let s = scratch();
    let llama = r#"{"family": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}"#;
    let text = std::fs::read(s.path("config.json")).expect("a config");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["model"] = serde_json::from_str(llama).expect("JSON");
    s.write("config.json", config.to_string());
    let plain = train(&s, "plain", &[&MASK, &PLACES]);
    let layer = ["--layer", "validate"];
    assert_eq!(train(&s, "valid", &[&MASK, &PLACES, &layer]), plain);
    same(&s.path("plain"), &s.path("valid"));
    let stage = ["--ranks", "2", "--set", "zero_optimization.stage=3"];
    let pipe = ["--ranks", "2", "--set", "mesh.pp=2"];
    for (name, how) in [("parts", stage), ("stages", pipe)] {
        let got = train(&s, name, &[&MASK, &PLACES, &how]);
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3 * a;
        assert!(
            plain.iter().zip(&got).all(near),
            "{name}: {plain:?} {got:?}"
        );
    }
}

#[test]
fn keys_that_nothing_would_obey_are_refused() {
    let s = scratch();
    let refused = |more: &[&str], parts: &[&str]| {
        let base: &[&str] = &["train", "config.json", "--out", "x"];
        s.refused(&[base, more].concat(), parts, &["x"]);
    };
    let no_end = [MASK[0], MASK[1], "--set", "data.append_eod=false"];
    refused(&no_end, &["data.reset_attention_mask", "data.append_eod"]);
    let no_end = [PLACES[0], PLACES[1], "--set", "data.append_eod=false"];
    refused(
        &no_end,
        &[
            "data.reset_position_ids",
            "fix:",
            "data.reset_attention_mask",
        ],
    );
    let misspelt = ["--set", "data.reset_attention_masks=true"];
    refused(&misspelt, &["reset_attention_mask"]);
}
