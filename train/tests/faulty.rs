//! What cannot be trained: each is one error that names what is wrong, and nothing hangs or is left half written.

use crate::common::{Row, Rows, config, counting, trainer};
use crossweave::{DataSource, ErrorCode, Team, TrainError, Trainer};
use std::path::Path;

#[test]
fn a_wrong_config_gives_all_its_faults_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut t = trainer(&out, 4, 2)
        .set("optimizer.params.lr", "fast")
        .set("run.stepps", 3)
        .set("zero_optimization.stage", 7);
    let e = t.check().unwrap_err();
    assert_eq!(e.code(), ErrorCode::Config);
    for part in ["optimizer.params.lr", "stepps", "zero_optimization.stage"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    assert!(e.key().is_some() && e.rank().is_none());
    assert!(t.step().is_err() && !out.exists());
    let ranks = Trainer::from_config(config(&out, 4))
        .ranks(Team::Parts("cpu:two".into()))
        .check();
    assert!(ranks.unwrap_err().to_string().contains("two"));
}

/// Rows of which one is none: rank 1 reads it in the second step.
fn faulty(out: &Path, row: impl Fn() -> Row + Send + Sync + 'static) -> TrainError {
    let rows = Rows(move |n| if n == 13 { row() } else { counting(n) });
    let mut t = Trainer::from_config(config(out, 9))
        .ranks(Team::Threads(2))
        .data(rows);
    t.step().unwrap();
    let e = t.step().unwrap_err();
    let (again, read) = (
        t.step().unwrap_err(),
        t.read("transformer.wte.weight").unwrap_err(),
    );
    for later in [&again, &read] {
        assert_eq!(
            (later.code(), later.step()),
            (ErrorCode::Failed, Some(2)),
            "{later}"
        );
        assert!(later.to_string().contains(&e.to_string()), "{later}");
    }
    e
}

#[test]
fn rows_that_are_none_are_named_by_rank_and_sample() {
    let dir = tempfile::tempdir().unwrap();
    let out = |n: &str| dir.path().join(n);
    let all: [(&str, Box<dyn Fn() -> Row + Send + Sync>); 5] = [
        ("panicked", Box::new(|| -> Row { panic!("planted") })),
        ("has ended", Box::new(|| -> Row { Ok(vec![]) })),
        (
            "has 3 ids, not 9",
            Box::new(|| -> Row { Ok(vec![1, 2, 3]) }),
        ),
        ("id 16 at 8", Box::new(|| -> Row { Ok((8..=16).collect()) })),
        (
            "the disk is gone",
            Box::new(|| -> Row { Err("the disk is gone".into()) }),
        ),
    ];
    for (n, (words, row)) in all.into_iter().enumerate() {
        let e = faulty(&out(&n.to_string()), row);
        let text = e.to_string();
        assert_eq!((e.code(), e.rank()), (ErrorCode::Data, Some(1)), "{text}");
        for part in ["rank 1, sample 13", words, "fix:"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

struct Empty;

impl DataSource for Empty {
    fn seq_len(&self) -> usize {
        8
    }
    fn rows(&self) -> u64 {
        0
    }
    fn row(&self, _: u64) -> Row {
        Ok(vec![])
    }
}

#[test]
fn a_source_without_rows_is_refused_before_anything_begins() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut t = Trainer::from_config(config(&out, 4)).data(Empty);
    let e = t.start().unwrap_err();
    assert!(e.to_string().contains("0 rows"), "{e}");
    assert!(!out.join("config.json").exists());
}

#[test]
fn the_first_failure_of_a_rank_is_the_one_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let fault = serde_json::json!([{"rank": 1, "kind": "error", "step": 2}]);
    let mut t = trainer(&dir.path().join("run"), 4, 2).set("faults", fault);
    t.step().unwrap();
    let e = t.step().unwrap_err();
    assert!(e.to_string().contains("on purpose"), "{e}");
    assert_eq!(e.rank(), Some(1), "{e}");
    let later = t.step().unwrap_err();
    assert!(later.to_string().contains("in step 2"), "{later}");
}
