//! The same command, started again: `--resume auto` continues the run of its folder, and begins it where there is nothing to continue.

use crate::common;
use common::{Scratch, records, same};

const SETS: [&str; 4] = [
    "--set",
    "run.checkpoint_every=2",
    "--set",
    "run.validate_every=100",
];

fn train(s: &Scratch, args: &[&str]) {
    s.ok(&[
        &["train", "config.json", "--resume", "auto"],
        &SETS[..],
        args,
    ]
    .concat());
}

#[test]
fn the_same_command_goes_on_where_its_run_ended() {
    let s = Scratch::new();
    s.ok(&[
        &["train", "config.json", "--out", "whole", "--steps", "6"],
        &SETS[..],
    ]
    .concat());
    // Nobody names a folder: the run has the config's name each time, and no second one.
    for steps in ["3", "6", "6"] {
        train(&s, &["--steps", steps]);
    }
    same(&s.path("runs").join("config"), &s.path("whole"));
    assert_eq!(std::fs::read_dir(s.path("runs")).unwrap().count(), 1);
    // A folder that is named, and one that a job left without a checkpoint: the run begins anew there.
    let left = s.path("left");
    for steps in ["1", "6"] {
        train(&s, &["--out", "left", "--steps", steps]);
        if steps == "1" {
            std::fs::remove_dir_all(left.join("checkpoints")).unwrap();
        }
    }
    same(&left, &s.path("whole"));
    assert_eq!(records(&left).len(), records(&s.path("whole")).len());
    // Another run is not continued.
    let args = [
        "train",
        "config.json",
        "--resume",
        "auto",
        "--out",
        "left",
        "--steps",
        "8",
    ];
    let other = [&args[..], &SETS[..], &["--set", "optimizer.params.lr=1e-9"]].concat();
    s.refused(&other, &["optimizer.params.lr"], &[]);
    // Somebody's own files are not taken for a run.
    std::fs::create_dir(s.path("mine")).unwrap();
    s.write("mine/config.json", "{}");
    let args = ["train", "config.json", "--resume", "auto", "--out", "mine"];
    s.refused(&args, &["holds a config.json and no run"], &[]);
    assert_eq!(std::fs::read(s.path("mine/config.json")).unwrap(), b"{}");
}
