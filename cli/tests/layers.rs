//! A recorded run replays. What else layers promise around training: `train/tests/layers.rs`.

use crate::common;
use common::{Scratch, cpu_plugin};
use serde_json::Value;

fn train<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [
        &["train", "config.json", "--steps", "3", "--out", out][..],
        more,
    ]
    .concat()
}

const KINDS: [(&str, &[&str]); 4] = [
    ("f32", &["--set", "model.recompute=full"]),
    (
        "zero3",
        &[
            "--ranks",
            "2",
            "--set",
            "zero_optimization.stage=3",
            "--set",
            "bf16.enabled=true",
        ],
    ),
    (
        "fp16",
        &[
            "--ranks",
            "2",
            "--set",
            "fp16.enabled=true",
            "--set",
            "zero_optimization.stage=2",
        ],
    ),
    (
        "offload",
        &[
            "--set",
            "zero_optimization.stage=2",
            "--set",
            "zero_optimization.offload_optimizer.device=cpu",
            "--set",
            "activation_checkpointing.cpu_checkpointing=true",
            "--set",
            "model.recompute=full",
        ],
    ),
];

#[test]
fn a_recorded_run_replays_without_model_or_data() {
    let s = Scratch::new();
    let plugin = cpu_plugin();
    let plugin = plugin.to_str().expect("a path");
    for (name, sets) in &KINDS[..3] {
        let layer = format!("record={name}.calls");
        s.ok(&train(name, &[sets, &["--layer", &layer][..]].concat()));
        std::fs::remove_dir_all(s.path(name)).expect("the run");
        let file = format!("{name}.calls");
        let v: Value = serde_json::from_str(&s.ok(&["replay", &file, "--json"])).expect("JSON");
        assert!(v["compared"].as_u64() >= Some(3), "{v:#}");
        assert_eq!(v["differs"].as_array().map(Vec::len), Some(0), "{v:#}");
        s.ok(&["replay", &file, "--plugin", plugin, "--layer", "validate"]);
    }
    s.refused(
        &["replay", "f32.calls", "--backend", "null"],
        &["are not those recorded", "block 1"],
        &[],
    );
    s.refused(
        &["replay", "f32.calls", "--layer", "lacks=attention_bwd"],
        &["attention_bwd(f32", "call "],
        &[],
    );
    // Damaged, cut and foreign files.
    let whole = std::fs::read(s.path("f32.calls")).expect("the file");
    // One bit anywhere: of a record's contents it is damage, of its length also a file that ends too soon.
    let said: String = (0..4)
        .map(|k| {
            let mut bad = whole.clone();
            bad[whole.len() / 2 + 7 * k] ^= 0x10;
            s.write("bad.calls", &bad);
            s.refused(&["replay", "bad.calls"], &["bad.calls", "fix: "], &[])
        })
        .collect();
    assert!(said.contains("damaged at byte"), "{said}");
    s.write("cut.calls", &whole[..whole.len() / 2]);
    s.refused(
        &["replay", "cut.calls"],
        &["cut.calls", "cut off after", "--partial"],
        &[],
    );
    s.ok(&["replay", "cut.calls", "--partial"]);
    s.refused(&["replay", "config.json"], &["no recording of calls"], &[]);
    s.refused(&["replay", "none.calls"], &["none.calls"], &[]);
    // Offload works on imported memory, which no file can hold.
    let out = s.run(&train(
        "refused",
        &[KINDS[3].1, &["--layer", "record=x.calls"]].concat(),
    ));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        !out.status.success() && said.contains("cannot be recorded"),
        "{said}"
    );
}
