//! `data.reset_attention_mask` and `data.reset_position_ids`: the ops they choose, routes without those, ranks, refusals.

use crate::support::{CONFIG, Job, Scratch, losses, open_json, same};
use serde_json::Value;

const MASK: &str = "data.reset_attention_mask=true";
const PLACES: &str = "data.reset_position_ids=true";
const LACKS: &str = "lacks=attention_varlen_fwd+attention_varlen_bwd";

/// A corpus of documents shorter than a row.
fn scratch() -> Scratch {
    let s = Scratch::new();
    let lines: String = (0..300)
        .map(|i| format!("{{\"text\": \"{} is {}\"}}\n", i % 10, i * 7 % 10))
        .collect();
    s.write("corpus/a.jsonl", lines);
    let config = CONFIG.replace("corpus/*.txt", "corpus/*.jsonl");
    s.write("config.json", config);
    s
}

fn train(job: &Job<'_>, out: &str) -> Vec<f64> {
    job.run(out);
    losses(&job.scratch.path(out))
}

#[test]
fn the_keys_choose_ops_and_every_route_trains_alike() {
    let s = scratch();
    let plain = s.job("config.json");
    let masked = plain.clone().set(MASK);
    let both = masked.clone().set(PLACES);
    // Two layers, eight micro-batches: `(calls, route)`.
    let row = |v: &Value, op: &str| -> Option<(u64, String)> {
        let all = v["ops"].as_array().expect("rows");
        let hit = all.iter().find(|r| r["op"] == op)?;
        let route = hit["route"].as_str().expect("a route").to_string();
        Some((hit["calls"].as_u64().expect("a number"), route))
    };
    let v = both.explain();
    assert_eq!(row(&v, "attention_varlen_fwd"), Some((16, "native".into())));
    assert_eq!(row(&v, "attention_varlen_bwd"), Some((16, "native".into())));
    assert_eq!(row(&v, "attention_fwd"), None);
    let v = masked.clone().layer(LACKS).explain();
    let (calls, route) = row(&v, "attention_varlen_bwd").expect("a row");
    assert!(calls == 16 && ["mixed", "primitives"].contains(&&*route));
    assert_eq!(row(&plain.explain(), "attention_varlen_fwd"), None);

    let ranks = train(&both.clone().ranks(2), "ranks");
    let composed = train(&both.clone().layer(LACKS), "composed");
    train(&both, "again");
    let plain = train(&plain, "plain");
    let masked = train(&masked, "masked");
    let both = train(&both, "both");
    assert!(
        plain != masked && masked != both,
        "{plain:?} {masked:?} {both:?}"
    );
    same(&s.path("both"), &s.path("again"));
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
    let mut config = open_json(&s.path("config.json"));
    config["model"] = serde_json::from_str(llama).expect("JSON");
    let job = s.job_of(config).set(MASK).set(PLACES);
    let plain = train(&job, "plain");
    assert_eq!(train(&job.clone().layer("validate"), "valid"), plain);
    same(&s.path("plain"), &s.path("valid"));
    for (name, how) in [
        ("parts", "zero_optimization.stage=3"),
        ("stages", "mesh.pp=2"),
    ] {
        let got = train(&job.clone().ranks(2).set(how), name);
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
    let refused = |sets: &[&str], parts: &[&str]| {
        s.job("config.json").sets(sets).refused(parts);
    };
    let no_end = [MASK, "data.append_eod=false"];
    refused(&no_end, &["data.reset_attention_mask", "data.append_eod"]);
    let no_end = [PLACES, "data.append_eod=false"];
    refused(
        &no_end,
        &[
            "data.reset_position_ids",
            "fix:",
            "data.reset_attention_mask",
        ],
    );
    let misspelt = ["data.reset_attention_masks=true"];
    refused(&misspelt, &["reset_attention_mask"]);
}
