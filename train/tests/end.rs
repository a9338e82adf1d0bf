//! How runs end: by their last step, when they are asked to stop, when a trainer is dropped, and whose a folder is.

use crate::common::{config, losses, trainer};
use crossweave::{ErrorCode, Team, Trainer};
use std::time::{Duration, Instant};

#[test]
fn behind_the_last_step_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = trainer(&dir.path().join("run"), 2, 2);
    assert_eq!(losses(&mut t).len(), 2);
    let e = t.step().unwrap_err();
    assert!(e.to_string().contains("all 2 steps"), "{e}");
    let table = t.read("transformer.wte.weight").unwrap();
    assert_eq!(table.len(), 256, "it can still be read");
    assert_eq!(t.finish().unwrap().unwrap().steps, 2);
}

/// A rate that moves no weight: the second validation is no better than the first.
#[test]
fn a_run_whose_loss_does_not_fall_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), "one two three four ".repeat(99)).unwrap();
    let mut config = config(&dir.path().join("run"), 5);
    config["model"]["vocab_size"] = 257.into();
    config["data"] = serde_json::json!({"train": dir.path().join("*.txt"), "validation_fraction": 0.2, "seq_len": 8});
    config["optimizer"]["params"]["lr"] = 1e-30.into();
    config["run"]["validate_every"] = 1.into();
    config["run"]["stop_after"] = 1.into();
    let mut t = Trainer::from_config(config).ranks(Team::Threads(2));
    assert_eq!((t.step().unwrap().step, t.step().unwrap().step), (1, 2));
    let e = t.step().unwrap_err().to_string();
    assert!(e.contains("after step 2 (run.stop_after)"), "{e}");
    let summary = t.finish().unwrap().unwrap();
    assert_eq!((summary.steps, summary.stopped), (2, false));
    assert!(dir.path().join("run/model/model.safetensors").is_file());
}

#[test]
fn a_run_that_is_asked_to_stop_is_saved_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut t = trainer(&out, 1_000_000, 2);
    t.step().unwrap();
    let stop = t.stop_handle().unwrap();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.stop();
    });
    let summary = t.run().unwrap().unwrap();
    asked.join().unwrap();
    assert!(summary.stopped && summary.steps > 1, "{summary:?}");
    let mut again = trainer(&out, summary.steps + 1, 2).resume(&out);
    assert_eq!(losses(&mut again).len(), 1);
}

#[test]
fn two_on_one_folder_are_refused_while_the_first_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut first = trainer(&out, 4, 2);
    first.start().unwrap();
    let e = trainer(&out, 4, 2).start().unwrap_err();
    assert_eq!(e.code(), ErrorCode::Claimed, "{e}");
    drop(first);
    trainer(&out, 4, 2).start().unwrap();
}

#[test]
fn a_trainer_dropped_at_work_ends_its_ranks_within_a_second() {
    let dir = tempfile::tempdir().unwrap();
    // Rank 1 stalls in its first collective, where rank 0 waits for it.
    let fault = serde_json::json!([{"rank": 1, "kind": "stall", "step": 1}]);
    let mut t = trainer(&dir.path().join("run"), 4, 2).set("faults", fault);
    t.start().unwrap();
    let stop = std::thread::spawn(move || {
        let began = Instant::now();
        drop(t);
        began.elapsed()
    });
    assert!(stop.join().unwrap() < Duration::from_secs(1));
}
