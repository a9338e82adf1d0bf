//! `cargo xtask COMMAND`: tidy, budget, ci, bare, fuzz-layouts.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::{Tree, budget, faults, figures, fuzz, gate, rules, why};

const USAGE: &str = "cargo xtask COMMAND

  tidy     every rule of the tree: layering, words, unsafe, documents, and shape: circles of imports, sizes of crates,
           types and functions, fields seen by a whole crate, copies, unused dependencies
           --why PATH   the rules of a file or folder, its figures and ceilings, the reasons of its exceptions
           --figures    xtask/src/tables/figures.rs with today's figures, to standard output: reasons of rows that
                        stay are kept, new rows have none yet, and tidy refuses a row without one
  budget   lines per crate
  ci       the gate: fmt, tidy, clippy, system packages, build, tests, documents; words narrow the
           tests (`cargo xtask ci -p crossweave-plan laws`); --keep-going runs what follows a failure
  bare     both commands of the README in a fresh root of Debian 12, as root (ci/bare; --help says more)
  fuzz-layouts
           layouts of whole jobs over every axis, drawn and held against one rank (train/tests/layouts): --minutes N for so
           long, --layouts N so many, and tests/layouts.md is written, --layout 'tp 2, zero 3' one; --seed S draws others,
           --only 'shards 4' those that have it, --log FILE goes on behind those of a run before; --faults seeds faults into a copy
           of the sources, which layouts must catch, and writes tests/layout_faults.md
  timed    PROGRAM [ARGS]: a test program with the time of each test, as `ci` runs them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["bare", words @ ..] => gate::bare(&root(), words),
        ["help" | "--help" | "-h"] | [_, "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        ["tidy"] => tidy(),
        ["tidy", "--figures"] => read().map(|t| print!("{}", figures::print(&t))),
        ["tidy", "--why", place] => tidy_why(place),
        ["budget"] => read().map(|t| print!("{}", budget::print(&budget::count(&t)))),
        ["fuzz-layouts", "--faults"] => faults::catch(&root(), "1"),
        ["fuzz-layouts", "--faults", "--seed", seed] => faults::catch(&root(), seed),
        ["fuzz-layouts", words @ ..] => fuzz::layouts(&root(), words),
        ["ci", words @ ..] => gate::run(&root(), gate::Ask::parse(words), tidy),
        ["timed", words @ ..] => gate::timed(words),
        _ => Err(USAGE.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout this binary was built from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn read() -> Result<Tree, String> {
    Tree::read(&root()).map_err(|e| e.to_string())
}

fn tidy() -> Result<(), String> {
    let tree = read()?;
    let mut all = 0;
    for rule in rules::RULES {
        let found = (rule.find)(&tree);
        println!(
            "{:<24}{}",
            rule.name,
            if found.is_empty() {
                "ok".into()
            } else {
                format!("{} found", found.len())
            }
        );
        for f in &found {
            println!("  {f}");
        }
        all += found.len();
    }
    match all {
        0 => Ok(()),
        n => Err(format!("tidy: {n} found")),
    }
}

/// Answers for a path from the root, from the current folder, or absolute.
fn tidy_why(place: &str) -> Result<(), String> {
    let root = root();
    let real = |p: PathBuf| p.canonicalize().ok();
    let here = std::env::current_dir().map_err(|e| format!("the current folder: {e}"))?;
    let found = [root.join(place), here.join(place)]
        .into_iter()
        .find_map(real);
    let from_root = match (&found, real(root)) {
        (Some(p), Some(root)) => p.strip_prefix(&root).ok(),
        _ => None,
    };
    let from_root = from_root
        .unwrap_or(Path::new(place))
        .to_string_lossy()
        .replace('\\', "/");
    print!("{}", why::why(&read()?, &from_root)?);
    Ok(())
}
