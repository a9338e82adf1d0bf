//! The command and a program that calls the library continue each other's runs.

use crate::common::{CONFIG, Scratch, same};
use crossweave::{Team, Trainer};
use serde_json::Value;

#[test]
fn the_command_and_a_program_continue_each_other_bit_for_bit() {
    crossweave_tests::in_own_process!();
    let s = Scratch::new();
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    // Of any working directory, since that of a test is the crate's.
    config["data"]["train"] = s.path("corpus/*.txt").to_str().into();
    config["data"]["cache_dir"] = s.path("cache").to_str().into();
    s.write("config.json", config.to_string());
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--out",
        "whole",
        "-q",
    ]);
    let trainer = || Trainer::from_config(s.path("config.json")).ranks(Team::Threads(2));

    let short = [
        "train",
        "config.json",
        "--ranks",
        "2",
        "--out",
        "a",
        "--steps",
        "4",
        "-q",
    ];
    s.ok(&short);
    let summary = trainer().resume(s.path("a")).run().unwrap().unwrap();
    assert_eq!((summary.begun, summary.steps), (4, 8));
    same(&s.path("whole"), &s.path("a"));

    let mut first = trainer()
        .set("run.steps", 4)
        .set("run.out", s.path("b").to_str());
    for step in 1..=4 {
        assert_eq!(first.step().unwrap().step, step);
    }
    first.finish().unwrap();
    s.ok(&[
        "train",
        "config.json",
        "--ranks",
        "2",
        "--resume",
        "b",
        "-q",
    ]);
    same(&s.path("whole"), &s.path("b"));
}
