//! Real config files of public repositories, as facts: `tests/deepspeed/real/SOURCES.md` says where each stands and whether
//! DeepSpeed 0.19 accepts it. Of those it accepts at least nine of ten are accepted here as they are, and the rest are
//! refused by a key that cannot be had, never by the grammar.

use crossweave_config::{Config, Errors};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/deepspeed/real")
}

/// What a DeepSpeed file leaves to the training script.
const RUN: [(&str, &str); 3] = [
    (
        "model",
        r#"{"family": "gpt2", "preset": "tiny", "vocab_size": 256}"#,
    ),
    ("data", r#"{"train": "corpus/*.txt"}"#),
    ("run.steps", "100000"),
];

/// Loads the file, and resolves it for the number of ranks that its batch sizes were written for.
fn read(path: &Path, text: &[u8]) -> Result<(), Errors> {
    let sets: Vec<_> = RUN.map(|(k, v)| (k.to_string(), v.to_string())).into();
    let config = Config::load(&path.display().to_string(), text, &sets)?;
    let by_ranks = |ranks| config.resolve(ranks).map(|_| ());
    let first = by_ranks(1);
    let others = (1..=13)
        .map(|k| 1 << k)
        .chain([3, 5, 6, 10, 12, 20, 24, 48, 96]);
    if first.is_err() && others.into_iter().any(|ranks| by_ranks(ranks).is_ok()) {
        return Ok(());
    }
    first
}

/// Rows of a table of the folder: file name and verdict.
fn verdicts(table: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(table).unwrap();
    let rows = text
        .lines()
        .filter(|l| l.starts_with("| ") && !l.starts_with("| file") && !l.starts_with("| ---"));
    let cell = |l: &str, i: usize| {
        l.split('|')
            .nth(i)
            .unwrap_or("")
            .trim()
            .trim_matches('`')
            .to_string()
    };
    rows.map(|l| (cell(l, 1), cell(l, 4))).collect()
}

#[test]
fn nine_of_ten_files_that_deepspeed_accepts_are_accepted() {
    let all = verdicts(&folder().join("SOURCES.md"));
    assert!(all.len() >= 100, "{} files", all.len());
    let (mut accepted, mut refused) = (0, vec![]);
    for (name, verdict) in all.iter().filter(|(_, v)| v.starts_with("accepts")) {
        let path = folder().join(name);
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e} ({verdict})"));
        match read(&path, &text) {
            Ok(()) => accepted += 1,
            Err(e) => refused.push(format!("{name}: {e}")),
        }
    }
    let total = accepted + refused.len();
    println!(
        "{accepted} of {total} accepted; refused:\n{}",
        refused.join("\n")
    );
    assert!(
        total >= 80 && accepted * 10 >= total * 9,
        "{accepted} of {total}:\n{}",
        refused.join("\n")
    );
}

#[test]
fn what_is_refused_is_refused_in_words() {
    for (name, _) in verdicts(&folder().join("SOURCES.md")) {
        let path = folder().join(&name);
        if let Err(errors) = read(&path, &std::fs::read(&path).unwrap()) {
            for problem in errors.0 {
                let said = problem.to_string();
                assert!(said.contains("; fix: ") && said.len() < 1000, "{said}");
            }
        }
    }
}

#[test]
fn files_of_other_programs_are_recognised() {
    let folder = folder().join("foreign");
    let rows = verdicts(&folder.join("SOURCES.md"));
    assert!(rows.len() >= 10);
    let programs = ["Accelerate", "GPT-NeoX", "Megatron-LM", "TrainingArguments"];
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "md") {
            continue;
        }
        let errors = Config::load("x.json", std::fs::read(&path).unwrap(), &[])
            .expect_err(&path.display().to_string());
        let [one] = &errors.0[..] else {
            panic!("{}: {errors}", path.display());
        };
        let said = one.to_string();
        let known = programs.iter().any(|p| said.contains(p));
        assert!(
            known && said.contains("fix: write a Crossweave config"),
            "{}: {said}",
            path.display()
        );
    }
}
