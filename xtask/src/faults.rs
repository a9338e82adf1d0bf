//! `cargo xtask fuzz-layouts --faults`: the faults of [`tables::faults`](crate::tables::faults) in a copy of the sources, and after how many
//! layouts each is caught, written as `tests/layout_faults.md`.
//!
//! The copy has all of them at once, each behind a variable that the test's process is started with, so that it is built once. The sources
//! themselves know nothing of it.

use crate::tables::faults::{Edit, FAULTS, Fault};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The variable that names the fault.
const FAULT: &str = "CROSSWEAVE_FAULT";
/// Layouts within which each is to be caught.
const MOST: u64 = 200;
/// The layouts whose sums are canonical.
const CANONICAL: &str = "shards 4";

/// The condition under which a fault is there.
fn condition(name: &str) -> String {
    format!("std::env::var_os(\"{FAULT}\").is_some_and(|f| f == \"{name}\")")
}

/// The text of a file with an edit.
///
/// # Errors
/// The text to be replaced is not there, or not once.
fn edited(text: &str, edit: &Edit, name: &str) -> Result<String, String> {
    match text.matches(edit.old).count() {
        1 => Ok(text.replace(edit.old, &edit.new.replace("SEEDED", &condition(name)))),
        n => Err(format!(
            "{}: the text that the fault {name} replaces is there {n} times; write it anew in xtask/src/tables/faults.rs",
            edit.file
        )),
    }
}

/// A file of the checkout with all faults that are in it.
///
/// # Errors
/// Edits that do not apply any more.
fn with_faults(path: &str, text: &str) -> Result<String, String> {
    let all = FAULTS
        .iter()
        .flat_map(|f| f.edits.iter().map(move |e| (e, f)));
    let mut here = all.filter(|(e, _)| e.file == path);
    here.try_fold(text.to_string(), |text, (edit, fault)| {
        edited(&text, edit, fault.name)
    })
}

/// Copies a folder with the faults; a file that is as it was keeps its time.
fn copy(root: &Path, from: &str, to: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", to.join(from).display());
    std::fs::create_dir_all(to.join(from)).map_err(failed)?;
    for entry in std::fs::read_dir(root.join(from)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = match from {
            "" => name.clone(),
            _ => format!("{from}/{name}"),
        };
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && !["target", ".git"].contains(&name.as_str()) {
            copy(root, &path, to)?;
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).map_err(failed)?;
            let bytes = match String::from_utf8(bytes) {
                Ok(text) => with_faults(&path, &text)?.into_bytes(),
                Err(other) => other.into_bytes(),
            };
            let to = to.join(&path);
            if std::fs::read(&to).ok().as_ref() != Some(&bytes) {
                std::fs::write(&to, bytes).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// The layout that caught a fault.
#[derive(Debug, PartialEq, Eq)]
struct Caught {
    /// Layouts until then.
    layouts: u64,
    words: String,
    /// The difference, or the error.
    what: String,
}

/// Reads it from what the test says; none: it was not caught.
fn read(said: &str) -> Result<Option<Caught>, String> {
    let fields = |l: &str| l.split('\t').map(String::from).collect::<Vec<_>>();
    let of = |word: &str| {
        said.lines()
            .map(fields)
            .find(|f| f.first().is_some_and(|w| w.ends_with(word)))
    };
    match (of("caught").as_deref(), of("missed")) {
        (Some([_, n, _, words, what]), _) => Ok(Some(Caught {
            layouts: n.parse().map_err(|_| format!("{n} layouts"))?,
            words: words.clone(),
            what: what.clone(),
        })),
        (None, Some(_)) => Ok(None),
        _ => Err(format!(
            "fuzz-layouts --faults: the test says neither: {said}"
        )),
    }
}

/// Draws layouts in the copy until a fault is caught.
fn draw(copy: &Path, name: &str, only: &str, seed: &str) -> Result<Option<Caught>, String> {
    let mut run = crate::fuzz::sweep(copy);
    run.env(FAULT, name).env("CROSSWEAVE_ONLY", only);
    run.env("CROSSWEAVE_LAYOUTS", MOST.to_string());
    run.env("CROSSWEAVE_SEED", seed);
    printed(run).and_then(|text| read(&text))
}

/// The standard output of a command.
fn printed(mut run: Command) -> Result<String, String> {
    let out = run.stderr(std::process::Stdio::inherit()).output();
    let out = out.map_err(|e| format!("cargo: {e}"))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// A row of the page.
fn row(f: &Fault, caught: &Option<Caught>, canonical: Option<&Option<Caught>>) -> String {
    let short = |c: &Option<Caught>| match c {
        Some(c) => {
            let what: String = c.what.chars().take(120).collect();
            (c.layouts.to_string(), format!("{what} (`{}`)", c.words))
        }
        None => (format!("not within {MOST}"), String::new()),
    };
    let (after, by) = short(caught);
    let canonical = match canonical {
        Some(c) => {
            let (after, by) = short(c);
            format!("{after}: {by}")
        }
        None => "-".into(),
    };
    format!(
        "| `{}` | {} | {after} | {by} | {canonical} |\n",
        f.name, f.what
    )
    .replace('\n', " ")
}

/// Seeds each fault and draws layouts until it is caught; writes what became of them.
///
/// # Errors
/// A fault that is not caught; layouts that fail without one; a copy that does not build.
pub fn catch(root: &Path, seed: &str) -> Result<(), String> {
    let to = root.join("target/faults");
    copy(root, "", &to)?;
    if let Some(c) = draw(&to, "none", "", seed)? {
        return Err(format!(
            "without a fault layout {} fails: {}: {}",
            c.layouts, c.words, c.what
        ));
    }
    let mut page = format!(
        "# Faults that layouts catch\n\n    cargo xtask fuzz-layouts --faults --seed {seed}\n\n\
         seeded each of {} faults (`xtask/src/tables/faults.rs`) into a copy of the sources and drew layouts until one failed, at most {MOST}, and of faults that canonical sums \
         have too once more layouts with `{CANONICAL}`. Without a fault the {MOST} hold. A record is a step, the first is 0. The command writes this page.\n\n\
         | fault | what it is | caught after layouts | by | with canonical sums |\n|---|---|---|---|---|\n",
        FAULTS.len()
    );
    let mut missed = vec![];
    for f in FAULTS {
        let caught = draw(&to, f.name, "", seed)?;
        let canonical = f
            .canonical
            .then(|| draw(&to, f.name, CANONICAL, seed))
            .transpose()?;
        if caught.is_none() || canonical.as_ref().is_some_and(Option::is_none) {
            missed.push(f.name);
        }
        let row = row(f, &caught, canonical.as_ref());
        println!("{row}");
        let _ = writeln!(page, "{row}");
    }
    let path = root.join("tests/layout_faults.md");
    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))?;
    match missed.is_empty() {
        true => Ok(()),
        false => Err(format!("not caught: {}", missed.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each text that a fault replaces is in the sources once, and what becomes of a file is Rust.
    #[test]
    fn every_fault_still_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for file in FAULTS.iter().flat_map(|f| f.edits).map(|e| e.file) {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let faulty = with_faults(file, &text).unwrap();
            assert_ne!(text, faulty);
            syn::parse_file(&faulty).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        let gone = Edit {
            file: "a.rs",
            old: "b",
            new: "c",
        };
        let e = edited("abba", &gone, "d").unwrap_err();
        assert!(e.contains("a.rs") && e.contains("2 times"), "{e}");
    }

    #[test]
    fn what_the_test_says_is_read() {
        let said =
            "running 1 test\ntest layouts::sweep ... caught\t7\tFar\ttp 2\tFar, a loss\nok\n";
        let caught = Caught {
            layouts: 7,
            words: "tp 2".into(),
            what: "Far, a loss".into(),
        };
        assert_eq!(read(said), Ok(Some(caught)));
        assert_eq!(read("missed\t200\n"), Ok(None));
        assert!(read("error: could not compile").is_err());
    }
}
