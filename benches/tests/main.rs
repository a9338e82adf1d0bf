//! Every bench is run: `--help` says what it measures, its options and an example, and on its smallest sizes it ends well and prints no
//! negative time. What the figures are is no matter here, because the machine may be busy. `collectives` is asked for its help alone: its
//! windows, whose least it prints, take minutes of a busy machine.

use crossweave_benches::options::stated;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Name, program, and the words of its shortest run; `DIR` is a folder that is removed afterwards.
const BENCHES: [(&str, &str, Option<&str>); 11] = [
    (
        "checker",
        env!("CARGO_BIN_EXE_checker"),
        Some("--kib 0,1 --rounds 8 --window 4"),
    ),
    (
        "checkpoint",
        env!("CARGO_BIN_EXE_checkpoint"),
        Some("--mib 1 --rounds 1 --dir DIR"),
    ),
    ("collectives", env!("CARGO_BIN_EXE_collectives"), None),
    ("launches", env!("CARGO_BIN_EXE_launches"), Some("cpu 100")),
    (
        "offload",
        env!("CARGO_BIN_EXE_offload"),
        Some("--one none --layers 1 --dir DIR"),
    ),
    (
        "ops",
        env!("CARGO_BIN_EXE_ops"),
        Some("--ops softmax --rounds 1"),
    ),
    (
        "planning",
        env!("CARGO_BIN_EXE_planning"),
        Some("--layers 2 --width 128 --micro-batches 2 --ranks 2 --rounds 1"),
    ),
    (
        "schedules",
        env!("CARGO_BIN_EXE_schedules"),
        Some("--stages 2 --layers 6 --ms 0 --rounds 1"),
    ),
    (
        "step",
        env!("CARGO_BIN_EXE_step"),
        Some("--presets tiny --styles gpt2 --shapes 2x1 --steps 2 --rounds 1"),
    ),
    // The measurement itself: as many ranks as cores, of which one ends while the other still counts its time.
    (
        "step",
        env!("CARGO_BIN_EXE_step"),
        Some("--one --preset tiny --shape 2x1 --steps 2 --warmup 1"),
    ),
    ("tape", env!("CARGO_BIN_EXE_tape"), Some("")),
];

fn run(program: &str, words: &[&str]) -> Output {
    let out = Command::new(program).args(words).output();
    out.expect("the bench runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lines with a figure below zero that is no percentage (those compare).
fn negative(said: &str) -> Vec<&str> {
    let apart = |c: char| c.is_whitespace() || "\"():,;|[]{}".contains(c);
    let line = |line: &&str| {
        let words: Vec<&str> = line.split(apart).filter(|w| !w.is_empty()).collect();
        words.iter().enumerate().any(|(i, word)| {
            let digits = word.strip_prefix('-').unwrap_or_default();
            digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && !digits.ends_with('%')
                && words.get(i + 1) != Some(&"%")
        })
    };
    said.lines().filter(line).collect()
}

#[test]
fn every_bench_says_what_it_measures_its_options_and_an_example() {
    for (name, program, _) in BENCHES {
        for flag in ["--help", "-h"] {
            let out = run(program, &[flag]);
            let help = text(&out.stdout);
            assert!(out.status.success(), "{name}: {help}");
            assert_eq!(text(&out.stderr), "", "{name}");
            let first = help.lines().next().unwrap_or_default();
            assert!(first.len() > 30 && first.contains(['.', ':']), "{help}");
            let example = help.lines().find_map(|l| l.strip_prefix("Example: "));
            let example = example.unwrap_or_else(|| panic!("{name} has no example: {help}"));
            let mut words = example.split_whitespace();
            assert_eq!(words.next(), Some(name), "{help}");
            let known = stated(&help);
            for key in words.filter_map(|w| w.strip_prefix("--")) {
                assert!(known.contains(&key), "{name} has no --{key}: {help}");
            }
        }
        let out = run(program, &["--no-such-option", "1"]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{name}: {said}");
        assert!(
            said.contains("unknown option --no-such-option")
                && said.contains("--help shows every option and an example"),
            "{name}: {said}"
        );
    }
    let mut sources: Vec<PathBuf> = std::fs::read_dir(root().join("benches/src/bin"))
        .expect("the folder of the benches")
        .map(|e| e.expect("an entry").path())
        .collect();
    sources.retain(|p| {
        let name = p.file_stem().unwrap_or_default().to_string_lossy();
        !BENCHES.iter().any(|b| b.0 == name)
    });
    assert!(sources.is_empty(), "not run here: {sources:?}");
}

#[test]
fn no_bench_prints_a_negative_time() {
    assert_eq!(
        negative("whole -3 ns\n x (-0.70 %)\n{\"a_ms\":-1.5}").len(),
        2
    );
    assert!(negative("another: 5 ns ( -0.70 %) and -3.00% of 1e-3").is_empty());
    let dir = tempfile::tempdir().expect("a folder");
    let place = dir.path().to_string_lossy();
    for (name, program, words) in BENCHES {
        let Some(words) = words.map(|w| w.replace("DIR", &place)) else {
            continue;
        };
        let words: Vec<&str> = words.split_whitespace().collect();
        let out = run(program, &words);
        let said = text(&out.stdout);
        let errors = text(&out.stderr);
        assert!(out.status.success(), "{name}: {said}\n{errors}");
        assert!(said.lines().count() > 0, "{name} prints nothing: {errors}");
        let below = negative(&said);
        assert!(below.is_empty(), "{name}: {below:?} of {said}");
    }
}

/// The page for contributors names it.
#[test]
fn contributors_read_of_the_help() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    let plain = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = "`cargo run --release -p crossweave-benches --bin step -- --help`";
    assert!(plain.contains(says), "{says}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
