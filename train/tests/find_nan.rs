//! `run.find_nan`: where a NaN or an infinity begins, by rank, layer and op, in one sentence; and no alarm where there is none.

use crate::support::oracles::oracle;
use crate::support::{Job, Scratch, names, same};
use serde_json::{Value, json};

/// A short run with settings.
fn short<'a>(s: &'a Scratch, ranks: &str, sets: &[&str]) -> Job<'a> {
    s.job("config.json").ranks(ranks).steps(4).sets(sets)
}

/// Trains where a value that is not finite ends it with all of `parts`, before a model is there; the words.
fn diverges(job: &Job<'_>, out: &str, parts: &[&str]) -> String {
    let words = names(&job.fails(out).0, parts);
    assert!(!job.scratch.path(out).join("model").exists());
    words
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
        short(&s, ranks, sets).run(name);
        short(&s, ranks, sets).set(FIND).run(&found);
        same(&s.path(name), &s.path(&found));
    }
    // As the message of a diverged run says: from its last checkpoint on.
    let more = s.job("config.json").set("model.recompute=full").set(FIND);
    more.steps(6).resume("f32").goes_on();
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
    let said = diverges(
        &short(&s, "2", &sets),
        "huge",
        &[
            "not finite: step ",
            "rank 0, plan step ",
            "in layer ",
            "op ",
        ],
    );
    assert!(said.contains("values NaN or infinite"), "{said}");
    // Weights so large that an f16 activation overflows, in the forward, where no loss scale helps.
    let wide = ["fp16.enabled=true", "model.init.std=9000", FIND];
    diverges(
        &short(&s, "2", &wide),
        "wide",
        &[
            "not finite: step 1, rank 0",
            "forward of micro-batch 0 in layer ",
            "f16 with ",
        ],
    );
    // Without being asked for, the command that finds it is printed.
    let unasked = short(&s, "2", &huge).set("scheduler.params.warmup_num_steps=1");
    diverges(&unasked, "named", &["run.find_nan=true"]);
}

/// Some products take several parameters at once. The one that holds the NaN is named, and none beside it.
#[test]
fn the_parameter_that_is_not_finite_is_named_and_no_other() {
    let s = Scratch::new();
    let oracle = oracle("llama-mha-tied");
    let bytes = std::fs::read(oracle.join("model/model.safetensors")).unwrap();
    std::fs::create_dir(s.path("model")).unwrap();
    let config = std::fs::read(oracle.join("model/config.json")).unwrap();
    s.write("model/config.json", config);
    let config = json!({
            "model": {"hf": "model"}, "data": {"tokens": oracle.join("train.safetensors"), "key": "input_ids"},
            "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
            "run": {"steps": 1, "threads_per_rank": 1, "find_nan": true, "generate": {"tokens": 0}},
    });
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
        for tp in [1, 2] {
            let job = s.job_of(config.clone()).ranks(tp);
            let job = job.set(&format!("mesh.tp={tp}"));
            let said = diverges(&job, "out", &[&format!("(parameter {name})")]);
            assert_eq!(said.matches("parameter").count(), 1, "{name}: {said}");
            std::fs::remove_dir_all(s.path("out")).unwrap();
        }
        seen += 1;
    }
    assert!(seen > 9, "{seen}");
}
