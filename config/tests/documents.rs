//! What `data.reset_attention_mask`, `data.reset_position_ids` and `data.eod_id` ask of each other.

use crossweave_config::*;

/// A config whose data is `data`, loaded and resolved for one rank: its warnings, or what is wrong.
fn said(data: &str) -> Result<Vec<String>, String> {
    let text = format!(
        r#"{{"model": {{"family": "gpt2", "preset": "tiny"}}, "data": {{{data}}}, "run": {{"steps": 10}}, "train_batch_size": 8}}"#
    );
    let config = Config::load("t.json", &text, &[]).map_err(|e| e.to_string())?;
    let resolved = config.resolve(1).map_err(|e| e.to_string())?;
    Ok(resolved.warnings.iter().map(ToString::to_string).collect())
}

#[test]
fn keys_of_documents_ask_for_each_other() {
    let refused = |data: &str, parts: &[&str]| {
        let e = said(data).expect_err(data);
        assert!(parts.iter().all(|part| e.contains(part)), "{data}: {e}");
    };
    let text = |more: &str| format!(r#""train": "corpus/*.txt", {more}"#);
    let given = |more: &str| format!(r#""tokens": "t.safetensors", "key": "t", {more}"#);
    let alone = text(r#""reset_position_ids": true"#);
    refused(
        &alone,
        &[
            "t.json",
            "data.reset_position_ids",
            "data.reset_attention_mask",
        ],
    );
    let both = r#""reset_position_ids": true, "reset_attention_mask": true"#;
    assert_eq!(said(&text(both)), Ok(vec![]));
    let off = r#""reset_position_ids": false, "reset_attention_mask": false"#;
    assert_eq!(said(&text(off)), Ok(vec![]));
    refused(&given(both), &["data.reset_attention_mask", "data.eod_id"]);
    assert_eq!(said(&given(&format!(r#"{both}, "eod_id": 3"#))), Ok(vec![]));
    refused(&given(r#""eod_id": -1"#), &["data.eod_id"]);
    refused(
        &given(r#""reset_attention_mask": 1"#),
        &["data.reset_attention_mask"],
    );
    refused(&text(r#""eod_id": 3"#), &["eod_id"]);
    let idle = said(&given(r#""eod_id": 3"#)).expect("a warning only");
    assert!(
        idle.iter()
            .any(|w| w.contains("data.eod_id: has no effect")),
        "{idle:?}"
    );
}
