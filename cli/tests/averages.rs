//! The moving average of the weights on the command line: what `estimate` and `plan` say of it, and what `checkpoint export --ema` writes.

use crate::common::Scratch;
use serde_json::{Value, json};

const CONFIG: &str = r#"{"model": {"family": "gpt2", "vocab_size": 50304, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "data": {"train": "corpus/*.txt"}, "run": {"steps": 10}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2}"#;

/// The moving average of the weights is 4 bytes a parameter, sharded and offloaded as the optimizer's states: in the states of an estimate,
/// in its ledger, and in a plan, whose formula is what the rehearsal holds.
#[test]
fn an_average_of_the_weights_is_four_bytes_a_parameter() {
    let s = Scratch::new();
    let read = |name: &str, command: &str, more: &[&str]| -> Value {
        let args = [&[command, name, "--ranks", "4", "--json"], more].concat();
        serde_json::from_str(&s.ok(&args)).expect("JSON")
    };
    for (stage, offload) in [(0, false), (1, false), (2, true), (3, false)] {
        let mut config: Value = serde_json::from_str(CONFIG).expect("JSON");
        config["zero_optimization"] = json!({"stage": stage});
        if offload {
            config["zero_optimization"]["offload_optimizer"] = json!({"device": "cpu"});
        }
        s.write("plain.json", config.to_string());
        config["run"]["ema_decay"] = json!(0.999);
        s.write("ema.json", config.to_string());
        let [plain, ema] = ["plain.json", "ema.json"].map(|name| read(name, "estimate", &[]));
        let params = plain["model"]["params"].as_u64().expect("a number");
        let of = |v: &Value| v["components"].as_array().expect("a list").clone();
        assert_eq!((of(&plain).len(), of(&ema).len()), (5, 6));
        let last = &of(&ema)[5];
        assert_eq!(
            (&last["what"], &last["bytes"]),
            (&json!("ema"), &json!(4 * params))
        );
        let bytes = |v: &Value| v["stages"][stage]["bytes"].as_u64().expect("bytes");
        let here = params.div_ceil(if stage > 0 { 4 } else { 1 });
        assert_eq!(bytes(&ema) - bytes(&plain), 4 * here, "stage {stage}");
        let rows = ema["ledger"]["rows"].as_array().expect("rows");
        let row = rows.iter().find(|r| r["what"] == "ema").expect("a row");
        let tier = if offload { "host" } else { "device" };
        assert_eq!(
            (&row["tier"], &row["bytes"]),
            (&json!(tier), &json!(4 * here))
        );
        // A plan holds it as a moment.
        let device = ["--device", "h100"];
        let [plain, ema] = ["plain.json", "ema.json"].map(|name| read(name, "plan", &device));
        let held = |v: &Value| v["memory"]["moment"]["bytes"].as_u64().expect("bytes");
        let (what, given) = match offload {
            true => continue,
            false => (held(&ema), &ema["states_formula"]["moment"]),
        };
        assert!(stage == 0 || json!(what) == given["bytes"], "stage {stage}");
        assert!(
            given["formula"]
                .as_str()
                .is_some_and(|f| f.starts_with("(4 + 4 + 4) ")),
            "{given}"
        );
        assert_eq!(held(&plain) / 2, what / 3, "stage {stage}");
    }
    let page = s.ok(&["estimate", "ema.json", "--ranks", "4"]);
    assert!(
        page.contains("\n  ema ") && page.contains("22 B/param"),
        "{page}"
    );
}

/// The average of adapters is one of theirs, and merges into the model too.
#[test]
fn the_average_of_adapters_is_exported_and_merged() {
    let s = Scratch::new();
    let decay = [
        "--set",
        "run.ema_decay=0.9",
        "--set",
        "optimizer.params.lr=0.1",
    ];
    let lora = ["--set", "model.lora={\"r\": 2}"];
    s.ok(&["train", "config.json", "--out", "base"]);
    s.ok(&[
        &[
            "train",
            "config.json",
            "--out",
            "e",
            "--set",
            "model={\"hf\": \"base/model\"}",
        ],
        &lora[..],
        &decay[..],
    ]
    .concat());
    s.ok(&["checkpoint", "export", "e", "--out", "one", "--ema"]);
    let adapter = |dir: &str| {
        std::fs::read(s.path(dir).join("adapter_model.safetensors")).expect("an adapter")
    };
    assert!(adapter("one") == adapter("e/model-ema") && adapter("one") != adapter("e/model"));
    let model = |dir: &str, more: &[&str]| {
        s.ok(&[
            &["checkpoint", "export", "e", "--out", dir, "--merge"],
            more,
        ]
        .concat());
        std::fs::read(s.path(dir).join("model.safetensors")).expect("a model")
    };
    assert!(model("merged", &[]) != model("merged-ema", &["--ema"]));
    s.refused(
        &["checkpoint", "export", "base", "--out", "x", "--ema"],
        &["--ema"],
        &["x"],
    );
}

/// Any checkpoint of a run gives its average, in the type that is asked for; one that holds none is named.
#[test]
fn the_average_of_a_checkpoint_is_exported() {
    let s = Scratch::new();
    s.ok(&["train", "config.json", "--out", "plain"]);
    s.ok(&[
        "train",
        "config.json",
        "--out",
        "one",
        "--set",
        "run.ema_decay=0.8",
    ]);
    s.ok(&["checkpoint", "export", "one", "--out", "average", "--ema"]);
    let read = |file: &str| std::fs::read(s.path(file)).expect("a file");
    for file in ["model.safetensors", "config.json"] {
        let [a, b] = ["average", "one/model-ema"].map(|dir| read(&format!("{dir}/{file}")));
        assert!(a == b, "{file}");
    }
    let rounded = [
        "checkpoint",
        "export",
        "one",
        "--out",
        "rounded",
        "--ema",
        "--dtype",
        "bf16",
    ];
    s.ok(&rounded);
    assert!(s.ok(&["checkpoint", "inspect", "rounded"]).contains("BF16"));
    let words = [
        "--ema: ",
        "holds no moving average of its weights",
        "run.ema_decay",
    ];
    s.refused(
        &["checkpoint", "export", "plain", "--out", "x", "--ema"],
        &words,
        &["x"],
    );
}
