//! `run.find_nan`: where a NaN or an infinity begins, by rank, layer and op, in one sentence; and no alarm where there is none.

use crate::common;
use common::{Scratch, same};

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
