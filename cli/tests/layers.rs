//! Layers around training: none changes a bit or raises an alarm, faults end a run with their words, and a recorded run replays.

use crate::common;
use common::{Scratch, cpu_plugin, same};
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
fn validated_training_has_no_alarm_and_the_same_bits() {
    let s = Scratch::new();
    for (name, sets) in KINDS {
        let held = format!("{name}-held");
        s.ok(&train(name, sets));
        let layers = ["--layer", "validate", "--layer", "trace=calls.json"];
        s.ok(&train(&held, &[sets, &layers[..]].concat()));
        same(&s.path(name), &s.path(&held));
        let trace: Value =
            serde_json::from_slice(&std::fs::read(s.path("calls.json")).expect("a trace"))
                .expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        assert!(
            events
                .iter()
                .any(|e| e["name"] == "attention_bwd" && e["cat"] == "op_launch"),
            "{name}"
        );
    }
}

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

#[test]
fn faults_end_a_run_with_their_words() {
    let s = Scratch::new();
    for (fault, parts) in [
        (
            "launch:matmul:10:device_lost",
            &[
                "device lost",
                "call 10 of op_launch of matmul fails on purpose",
            ][..],
        ),
        ("alloc:3+:oom", &["out of memory"][..]),
        (
            "collective:all_reduce:2:comm@1",
            &["call 2 of launch of all_reduce fails on purpose"][..],
        ),
        (
            "prepare:attention_bwd:1:internal",
            &["op_prepare of attention_bwd fails on purpose"][..],
        ),
        // From the second on: a single one may be the wait before free memory is joined, which skips
        // the joining where the wait fails and leaves an error that lasts to the next caller.
        ("sync:2+:internal", &["fails on purpose"][..]),
    ] {
        let layer = format!("fault={fault}");
        let out = s.run(&train("broken", &["--ranks", "2", "--layer", &layer]));
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{fault}: {said}");
        for p in parts {
            assert!(said.contains(p), "{fault}: {p:?} not in: {said}");
        }
        let _ = std::fs::remove_dir_all(s.path("broken"));
    }
    // Slower, and the same.
    s.ok(&train("plain", &[]));
    s.ok(&train(
        "slow",
        &[
            "--layer",
            "throttle=copy:1MB/s:1ms+launch:attention_bwd:100us",
        ],
    ));
    same(&s.path("plain"), &s.path("slow"));
}

#[test]
fn words_that_are_none_are_refused_before_anything_runs() {
    let s = Scratch::new();
    for (layer, part) in [
        ("valid", "no layer is called \"valid\"; there are validate"),
        ("validate=all", "takes no words"),
        ("trace", "trace=FILE"),
        ("trace=none/x.json", "none/x.json"),
        ("fault=alloc:0:oom", "from 1"),
        ("throttle=copy", "by how much"),
        ("lacks=matmull", "did you mean matmul"),
        ("./none.so", "none.so"),
    ] {
        s.refused(&train("out", &["--layer", layer]), &[part], &["out"]);
    }
}
