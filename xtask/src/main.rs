//! `cargo xtask COMMAND`: tidy, budget, ci.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use xtask::{Tree, budget, gate, rules};

const USAGE: &str = "cargo xtask COMMAND

  tidy     layering, vendor words, globals, unsafe, sizes, file heads, documents that name tests
  budget   lines per crate
  ci       the gate: fmt, tidy, clippy, system packages, build, tests, documents; words narrow the
           tests (`cargo xtask ci -p crossweave-plan laws`); --keep-going runs what follows a failure
  timed    PROGRAM [ARGS]: a test program with the time of each test, as `ci` runs them";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tidy"] => tidy(),
        ["budget"] => read().map(|t| print!("{}", budget::print(&budget::count(&t)))),
        ["ci", words @ ..] => gate::run(&root(), gate::Ask::parse(words), tidy),
        ["timed", words @ ..] => gate::timed(words),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
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
            "{:<22}{}",
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
