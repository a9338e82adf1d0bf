//! `cargo xtask COMMAND`: tidy, budget, ci.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use xtask::{Tree, budget, rules};

const USAGE: &str = "cargo xtask COMMAND

  tidy     layering, vendor words, globals, unsafe, sizes, file heads, documents that name tests
  budget   lines per crate
  ci       the one gate: fmt, clippy, tests, tidy, doc";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["tidy"] => tidy(),
        ["budget"] => read().map(|t| print!("{}", budget::print(&budget::count(&t)))),
        ["ci"] => ci(),
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

fn ci() -> Result<(), String> {
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let steps: [&[&str]; 4] = [
        &["fmt", "--all", "--check"],
        &[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
            // As ci/test says why.
            "-A",
            "clippy::needless_range_loop",
            "-A",
            "clippy::too_many_arguments",
            "-A",
            "clippy::type_complexity",
        ],
        &["test", "--release", "--workspace", "--locked"],
        &["doc", "--release", "--workspace", "--no-deps", "--locked"],
    ];
    for step in steps {
        println!("== cargo {}", step.join(" "));
        let mut run = Command::new(cargo);
        run.args(step).current_dir(root());
        if step[0] == "doc" {
            run.env("RUSTDOCFLAGS", "-D warnings");
        }
        let status = run.status().map_err(|e| format!("{cargo}: {e}"))?;
        if !status.success() {
            return Err(format!("ci: cargo {} failed", step.join(" ")));
        }
    }
    println!("== tidy");
    tidy()
}
