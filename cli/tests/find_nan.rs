//! `run.find_nan`: where a NaN or an infinity begins, by rank, layer and op, in one sentence; and no alarm where there is none.

use crate::common;
use common::{Scratch, same};
use serde_json::{Value, json};
use std::path::Path;

/// Arguments of a short run with settings.
fn train<'a>(out: &'a str, ranks: &'a str, sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "config.json", "--ranks", ranks, "--steps", "4"];
    args.extend(["--out", out]);
    for s in sets {
        args.extend(["--set", s]);
    }
    args
}

const FIND: &str = "run.find_nan=true";

#[test]
fn a_healthy_run_has_no_alarm_and_the_same_bits() {
    let s = Scratch::new();
    let kinds: &[(&str, &str, &[&str])] = &[
        ("f32", "1", &["model.recompute=full"]),
        (
            "zero3",
            "3",
            &["train_batch_size=6", "zero_optimization.stage=3"],
        ),
        (
            "bf16",
            "2",
            &["bf16.enabled=true", "zero_optimization.stage=2"],
        ),
        // The first scale overflows and is lowered: no alarm.
        (
            "fp16",
            "2",
            &["fp16.enabled=true", "fp16.initial_scale_power=30"],
        ),
    ];
    for (name, ranks, sets) in kinds {
        let found = format!("{name}-found");
        s.ok(&train(name, ranks, sets));
        s.ok(&train(&found, ranks, &[sets, &[FIND][..]].concat()));
        same(&s.path(name), &s.path(&found));
    }
    // As the message of a diverged run says: from its last checkpoint on.
    let more = [
        "--steps",
        "6",
        "--set",
        "model.recompute=full",
        "--set",
        FIND,
    ];
    s.ok(&[&["train", "config.json", "--resume", "f32"][..], &more].concat());
}

#[test]
fn an_infinity_is_told_with_rank_layer_and_op() {
    let s = Scratch::new();
    // A rate no parameter survives: the first update is the first op that is not finite, on every rank; the lowest reports.
    let huge = [
        "optimizer.params.lr=1e39",
        "scheduler.params.warmup_max_lr=1e39",
    ];
    let sets = [&huge[..], &[FIND, "scheduler.params.warmup_num_steps=1"]].concat();
    let said = s.refused(
        &train("huge", "2", &sets),
        &[
            "not finite: step ",
            "rank 0, plan step ",
            "in layer ",
            "op ",
        ],
        &["huge/model"],
    );
    assert!(said.contains("values NaN or infinite"), "{said}");
    // Weights so large that an f16 activation overflows, in the forward, where no loss scale helps.
    let wide = ["fp16.enabled=true", "model.init.std=9000", FIND];
    s.refused(
        &train("wide", "2", &wide),
        &[
            "not finite: step 1, rank 0",
            "forward of micro-batch 0 in layer ",
            "f16 with ",
        ],
        &["wide/model"],
    );
    // Without being asked for, the command that finds it is printed.
    s.refused(
        &train(
            "named",
            "2",
            &[&huge[..], &["scheduler.params.warmup_num_steps=1"]].concat(),
        ),
        &["run.find_nan=true"],
        &["named/model"],
    );
}

/// Some products take several parameters at once. The one that holds the NaN is named, and none beside it.
#[test]
fn the_parameter_that_is_not_finite_is_named_and_no_other() {
    let s = Scratch::new();
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles/llama-mha-tied");
    let bytes = std::fs::read(oracle.join("model/model.safetensors")).unwrap();
    std::fs::create_dir(s.path("model")).unwrap();
    let config = std::fs::read(oracle.join("model/config.json")).unwrap();
    s.write("model/config.json", config);
    s.write(
        "nan.json",
        json!({
            "model": {"hf": "model"}, "data": {"tokens": oracle.join("train.safetensors"), "key": "input_ids"},
            "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
            "run": {"steps": 1, "threads_per_rank": 1, "find_nan": true, "generate": {"tokens": 0}},
        })
        .to_string(),
    );
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..start]).unwrap();
    let all = header.as_object().unwrap().iter();
    let mut seen = 0;
    for (name, info) in all.filter(|(n, _)| n.contains(".layers.1.") || n.contains("norm")) {
        let at = |i: usize| start + info["data_offsets"][i].as_u64().unwrap() as usize;
        let mut bytes = bytes.clone();
        // One value, in the middle.
        let middle = (at(0) + at(1)) / 8 * 4;
        bytes[middle..middle + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        s.write("model/model.safetensors", bytes);
        for more in [&[][..], &["--ranks", "2", "--set", "mesh.tp=2"]] {
            let args = [&["train", "nan.json", "--out", "out"][..], more].concat();
            let said = s.refused(&args, &[&format!("(parameter {name})")], &["out/model"]);
            assert_eq!(said.matches("parameter").count(), 1, "{name}: {said}");
            std::fs::remove_dir_all(s.path("out")).unwrap();
        }
        seen += 1;
    }
    assert!(seen > 9, "{seen}");
}
