//! Steps, parameters, saves and resumes.

use crate::common::{Rows, config, counting, losses, trainer};
use crossweave::{Event, Events, StepRecord, Team, Trainer};
use std::path::Path;
use std::sync::{Arc, Mutex};

#[test]
fn losses_fall_and_two_ranks_have_those_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let one = losses(&mut trainer(&dir.path().join("one"), 12, 1));
    let two = losses(&mut trainer(&dir.path().join("two"), 12, 2));
    let value = |bits: &u64| f64::from_bits(*bits);
    assert!(value(&one[11]) < 0.7 * value(&one[0]), "{one:?}");
    for (a, b) in one.iter().zip(&two) {
        assert!((value(a) - value(b)).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn a_text_a_file_and_a_value_are_one_config() {
    let dir = tempfile::tempdir().unwrap();
    let out = |n: u32| dir.path().join(format!("{n}"));
    let file = dir.path().join("config.json");
    std::fs::write(&file, config(&out(0), 3).to_string()).unwrap();
    let all = [
        Trainer::from_config(file.as_path()),
        Trainer::from_config(config(&out(0), 3).to_string())
            .set("run.out", out(1).to_str().unwrap()),
        Trainer::from_config(config(&out(0), 9))
            .set("run.out", out(2).to_str().unwrap())
            .set("run.steps", 3),
    ];
    let each = all.map(|t| losses(&mut t.ranks(Team::Parts("cpu:2".into())).data(Rows(counting))));
    assert_eq!(each[0].len(), 3);
    assert!(each[0] == each[1] && each[1] == each[2], "{each:?}");
}

/// Eight steps at once, or three, a save, and the others by another trainer.
#[test]
fn a_run_that_is_resumed_goes_on_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let mut one = trainer(&whole, 8, 2);
    let want = losses(&mut one);
    one.finish().unwrap();
    let mut first = trainer(&parts, 8, 2);
    let mut got: Vec<u64> = (0..3)
        .map(|_| first.step().unwrap().loss.to_bits())
        .collect();
    let saved = first.save().unwrap();
    assert!(saved.join("manifest.json").is_file() && first.done() == 3);
    drop(first);
    let mut second = trainer(&parts, 8, 2).resume(&parts);
    second.start().unwrap();
    assert_eq!(second.done(), 3);
    got.extend(losses(&mut second));
    assert_eq!(got, want);
    let summary = second.finish().unwrap().unwrap();
    assert_eq!(
        (summary.begun, summary.steps, summary.stopped),
        (3, 8, false)
    );
    let model = |run: &Path| std::fs::read(run.join("model/model.safetensors")).unwrap();
    assert!(model(&whole) == model(&parts), "the models differ");
}

#[test]
fn parameters_are_read_and_written_in_mid_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = trainer(&dir.path().join("run"), 6, 2).set("zero_optimization.stage", 3);
    t.step().unwrap();
    let (name, shape) = t.params().unwrap().swap_remove(0);
    let before = t.read(&name).unwrap();
    assert_eq!(before.len() as u64, shape.iter().product::<u64>());
    t.step().unwrap();
    assert_ne!(t.read(&name).unwrap(), before);
    t.write(&name, &before).unwrap();
    assert_eq!(t.read(&name).unwrap(), before);
    t.step().unwrap();
    let no = t.read("transformer.wte.wieght").unwrap_err();
    assert!(no.to_string().contains("transformer.wte.wieght"), "{no}");
    let short = t.write(&name, &before[1..]).unwrap_err();
    assert!(
        short.fix().is_some() && short.to_string().contains("elements"),
        "{short}"
    );
    // Neither was a failure of the job.
    t.step().unwrap();
}

#[derive(Clone, Debug, Default)]
struct Seen(Arc<Mutex<Vec<StepRecord>>>);

impl Events for Seen {
    fn on(&self, event: Event<'_>) {
        if let Event::Step(record) = event {
            self.0.lock().unwrap().push(*record);
        }
    }
}

#[test]
fn a_run_reports_its_steps_and_holds_back_what_its_config_says() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..300)
        .map(|i| format!("{i} squared is {}\n", i * i))
        .collect();
    std::fs::write(dir.path().join("a.txt"), text).unwrap();
    let mut config = config(&dir.path().join("run"), 5);
    config["model"]["vocab_size"] = 257.into();
    config["data"] = serde_json::json!({"train": dir.path().join("*.txt"), "validation_fraction": 0.2, "seq_len": 8});
    let seen = Seen::default();
    let mut t = Trainer::from_config(config)
        .ranks(Team::Threads(2))
        .events(seen.clone());
    let first = t.step().unwrap();
    let loss = t.evaluate().unwrap();
    assert!(loss.is_finite() && loss > 0.0);
    let summary = t.run().unwrap().unwrap();
    let records = seen.0.lock().unwrap();
    assert_eq!(records[0], first);
    let steps: Vec<u64> = records.iter().map(|r| r.step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5]);
    assert_eq!((summary.steps, summary.last), (5, Some(records[4].loss)));
    assert!(summary.val_loss.is_some());
}

#[test]
fn units_of_the_program_are_the_models() {
    let dir = tempfile::tempdir().unwrap();
    let plain = losses(&mut trainer(&dir.path().join("a"), 2, 2));
    // The same block twice: another model.
    let mut deeper = trainer(&dir.path().join("b"), 2, 2).units(|mut units| {
        let mut twin = units[1].clone();
        twin.name = format!("twin.{}", twin.name);
        for p in &mut twin.params {
            p.name = format!("twin.{}", p.name);
        }
        units.insert(2, twin);
        units
    });
    let names = deeper.params().unwrap();
    assert!(
        names.iter().any(|(n, _)| n.starts_with("twin.")),
        "{names:?}"
    );
    assert_ne!(losses(&mut deeper), plain);
    let cut = trainer(&dir.path().join("c"), 2, 2)
        .set("mesh.tp", 2)
        .units(|units| units)
        .check();
    assert!(cut.unwrap_err().to_string().contains("mesh.tp"));
}
