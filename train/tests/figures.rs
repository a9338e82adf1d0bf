//! What is known of a job before it runs: checks, plans, routes and estimates of a trainer, as values.

use crate::common::{Rows, config, counting, trainer};
use crossweave::{ErrorCode, Estimation, PeakRates, Planning, Team, Trainer};
use std::path::Path;

#[test]
fn a_sound_config_gives_what_it_amounts_to_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let found = trainer(&out, 5, 2).check().unwrap();
    assert_eq!((found.ranks, found.resolved.batch.micro), (2, 4));
    let sizes = found.sizes.unwrap();
    assert_eq!((sizes.steps, sizes.seq_len), (5, 8));
    assert_eq!(sizes.classes, [vec![0, 1]]);
    let params = trainer(&out, 5, 2).params().unwrap();
    let all: u64 = params
        .iter()
        .map(|(_, shape)| shape.iter().product::<u64>())
        .sum();
    assert_eq!(sizes.params, all);
}

/// Text that fills no sequence, a device that is not there, a folder that is a file, and a key that does not exist without a typing error.
#[test]
fn each_fault_has_its_code_key_line_and_fix() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let taken = dir.path().join("taken");
    std::fs::write(&taken, "a file").unwrap();
    let text = format!(
        r#"{{
  "model": {{"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}},
  "data": {{"train": {:?}}},
  "train_batch_size": 3,
  "run": {{
    "steps": 2,
    "backend": "warp",
    "out": {taken:?}
  }}
}}"#,
        dir.path().join("none-*.txt")
    );
    std::fs::write(&file, text).unwrap();
    let e = Trainer::from_config(file.as_path())
        .ranks(Team::Threads(2))
        .check()
        .unwrap_err();
    assert_eq!(e.code(), ErrorCode::Config, "{e}");
    let faults = e.faults();
    let found: Vec<_> = faults.iter().map(|f| (f.code, f.key(), f.line())).collect();
    for want in [
        (ErrorCode::Config, Some("train_batch_size"), Some(4)),
        (ErrorCode::Refused, Some("run.backend"), Some(7)),
        (ErrorCode::Refused, Some("run.out"), Some(8)),
        (ErrorCode::Data, Some("data.train"), Some(3)),
    ] {
        assert!(found.contains(&want), "{want:?} in {found:?}");
    }
    assert!(faults.iter().all(|f| f.fix().is_some()), "{faults:?}");
    // The message is made of the same faults.
    let lines: Vec<String> = faults.iter().map(|f| f.problem.to_string()).collect();
    assert_eq!(e.to_string(), lines.join("\n"));
}

fn twice(out: &Path) -> Trainer {
    trainer(out, 4, 2).units(|mut units| {
        let mut twin = units[1].clone();
        twin.name = format!("twin.{}", twin.name);
        for p in &mut twin.params {
            p.name = format!("twin.{}", p.name);
        }
        units.insert(2, twin);
        units
    })
}

/// Rows and units of a program count: figures are of the job that would run.
#[test]
fn plans_estimates_and_routes_are_of_the_job_that_would_run() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let (plain, own) = (trainer(&out, 4, 2), twice(&out));
    let planned = plain.plan(&Planning::default()).unwrap();
    assert_eq!((planned.ranks, planned.batch), (2, [1, 4, 8]));
    let deeper = own.plan(&Planning::default()).unwrap();
    assert_eq!(deeper.units.len(), planned.units.len() + 1);
    let block = planned.units[1].1;
    assert_eq!(deeper.params, planned.params + block);
    let held = |p: &crossweave::Planned| p.figures.rank.memory.total.peak;
    assert!(held(&deeper) > held(&planned));

    let what = Estimation::default();
    let [a, b] = [&plain, &own].map(|t| t.estimate(&what).unwrap());
    assert_eq!(a.place.ranks, 2);
    assert_eq!(b.model.params, a.model.params + block);
    assert_eq!(a.model.params, planned.params);

    let peak = PeakRates {
        tflops: Some(1.0),
        gbps: Some(100.0),
    };
    let [a, b] = [&plain, &own].map(|t| t.explain(peak).unwrap().found);
    assert!(b.totals.op_launches > a.totals.op_launches);
    assert!(a.collectives.iter().any(|c| c.kind == "reduce_scatter"));
    // Nothing was begun.
    assert!(!out.exists());
}

#[test]
fn what_is_asked_of_a_wrong_config_is_its_faults() {
    let wrong = || {
        Trainer::from_config(config(Path::new("nowhere"), 4))
            .data(Rows(counting))
            .set("optimizer.params.lr", "fast")
    };
    let none = Planning::default();
    let all = [
        wrong().plan(&none).unwrap_err(),
        wrong().explain(PeakRates::default()).err().unwrap(),
        wrong().estimate(&Estimation::default()).unwrap_err(),
    ];
    for e in all {
        assert_eq!(e.key().as_deref(), Some("optimizer.params.lr"), "{e}");
    }
    let rank = Planning {
        rank: 2,
        ..Planning::default()
    };
    let e = trainer(Path::new("nowhere"), 4, 2).plan(&rank).unwrap_err();
    assert!(e.to_string().contains("ranks 0 to 1"), "{e}");
}

/// What the README shows is the example of the crate, which is compiled.
#[test]
fn the_readme_shows_the_example_of_the_crate() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(tree.join("../README.md")).unwrap();
    let shown = readme
        .split("```rust\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next();
    let head = std::fs::read_to_string(tree.join("src/lib.rs")).unwrap();
    let lines = head.lines().filter_map(|l| l.strip_prefix("//!"));
    let lines: Vec<&str> = lines.map(|l| l.strip_prefix(' ').unwrap_or(l)).collect();
    assert!(lines.join("\n").contains(shown.unwrap().trim_end()));
}
