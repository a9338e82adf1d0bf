//! What holds in one place: the rules, the figures with their ceilings, the rows of tables with their reasons.

use crate::figures::TABLES;
use crate::lines::owner;
use crate::modules::Modules;
use crate::ratchet::{Ceiling, Figure};
use crate::rules::{Place, RULES};
use crate::tables::MAX_LINES;
use crate::tree::{File, Tree};
use std::fmt::Write;

/// How many figures of one kind are shown beside those with a row.
const LARGEST: usize = 3;

/// Whether a path is this file, or lies in this folder.
fn within(path: &str, place: &str) -> bool {
    place.is_empty()
        || path
            .strip_prefix(place)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The text about a file or folder, by its path from the root; empty for everything.
pub fn why(tree: &Tree, place: &str) -> Result<String, String> {
    let files: Vec<&File> = tree
        .files
        .iter()
        .filter(|f| within(&f.path, place))
        .collect();
    if files.is_empty() {
        return Err(format!(
            "tidy: {place} is neither a text file of the checkout nor a folder with one; give a path from its root"
        ));
    }
    let single = files.len() == 1 && files[0].path == place;
    let mut out = String::new();
    let package = owner(tree, &format!("{place}/")).map_or("no crate", |p| p.name.as_str());
    let what = if single {
        "a file".to_string()
    } else {
        format!("{} text files", files.len())
    };
    let shown = if place.is_empty() {
        "the checkout"
    } else {
        place
    };
    let _ = writeln!(out, "{shown}: {what} of {package}\n\nRules that hold here");
    rules(&files, single, &mut out);
    figures(tree, place, &mut out);
    if single {
        imports(tree, place, &mut out);
    }
    Ok(out)
}

fn rules(files: &[&File], single: bool, out: &mut String) {
    let mut free = String::new();
    for rule in RULES {
        let places: Vec<(&File, Place)> =
            files.iter().map(|f| (*f, (rule.place)(&f.path))).collect();
        let held = places.iter().filter(|(_, p)| p.holds()).count();
        if held == 0 {
            let reason = places.iter().find_map(|(_, p)| match p {
                Place::Free(why) if single => Some(why.as_str()),
                _ => None,
            });
            let _ = writeln!(
                free,
                "  {:<24}{}",
                rule.name,
                reason.unwrap_or("no file of its kind")
            );
            continue;
        }
        let count = if single {
            String::new()
        } else {
            format!(" ({held} of {} files)", files.len())
        };
        let _ = writeln!(out, "  {:<24}{}{count}", rule.name, rule.says);
        for (f, p) in &places {
            if let Place::Holds(exceptions) = p {
                for e in exceptions {
                    let _ = writeln!(out, "  {:<24}  {}: {e}", "", f.path);
                }
            }
        }
    }
    if !free.is_empty() {
        let _ = write!(out, "\nRules that do not\n{free}");
    }
}

/// Whether a figure belongs to a place: something in it, the crate around it, a circle or a copy of which a part lies in it.
fn belongs(tree: &Tree, f: &Figure, place: &str) -> bool {
    let around = owner(tree, &format!("{place}/")).is_some_and(|p| p.name == f.place);
    let parts = std::iter::once(&f.path).chain(&f.others);
    // A crate's path is its folder, in which other crates may lie.
    let is_crate = tree.packages.iter().any(|p| p.name == f.place);
    let touches = |p: &String| within(p, place) || (within(place, p) && !is_crate);
    around || parts.into_iter().any(touches)
}

fn figures(tree: &Tree, place: &str, out: &mut String) {
    let _ = writeln!(out, "\nFigures, each with its ceiling");
    let longest = tree
        .rust()
        .filter(|(f, _)| within(&f.path, place))
        .map(|(f, _)| {
            let lines = f.text.lines().count();
            (lines, f.path.as_str())
        });
    if let Some((lines, path)) = longest.max() {
        let _ = writeln!(
            out,
            "  lines of a file\n    {lines:>6} of {MAX_LINES:<6} {path}"
        );
    }
    for t in TABLES {
        let c: &Ceiling = &t.ceiling;
        let mut all = (t.figures)(tree);
        all.retain(|f| f.value > 0 && belongs(tree, f, place));
        all.sort_by(|a, b| b.value.cmp(&a.value).then(a.place.cmp(&b.place)));
        let shown = all
            .iter()
            .enumerate()
            .filter(|(i, f)| *i < LARGEST || c.entry(&f.place).is_some());
        let shown: Vec<&Figure> = shown.map(|(_, f)| f).collect();
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "  {} (at most {}, or a row in {})",
            t.says.trim_end_matches('.'),
            c.limit,
            c.table
        );
        for f in shown {
            let entry = c.entry(&f.place);
            let ceiling = entry.map_or(c.limit, |e| e.ceiling);
            let _ = write!(out, "    {:>6} of {ceiling:<6} {}", f.value, f.place);
            let _ = match entry {
                Some(e) => writeln!(out, ": {}", e.why),
                None => writeln!(out),
            };
            if !f.detail.is_empty() {
                let _ = writeln!(out, "{:>20}{}", "", f.detail);
            }
        }
    }
}

fn imports(tree: &Tree, place: &str, out: &mut String) {
    let path = |i: usize| tree.files[i].path.as_str();
    let edges = Modules::of(tree).edges();
    let to = edges
        .iter()
        .filter(|e| path(e.from) == place)
        .map(|e| (path(e.to), e));
    let from = edges
        .iter()
        .filter(|e| path(e.to) == place)
        .map(|e| (path(e.from), e));
    for (head, list) in [
        ("It names of its crate", to.collect::<Vec<_>>()),
        ("It is named by", from.collect()),
    ] {
        if list.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{head}");
        for (other, e) in list {
            let only = if e.exported { " (re-exports only)" } else { "" };
            let _ = writeln!(out, "  {other}: {} in line {}{only}", e.name, e.line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::of(&[
            ("plan/Cargo.toml", "[package]\n"),
            ("plan/src/lib.rs", "//! x\nmod a;\nmod b;\n"),
            (
                "plan/src/a.rs",
                "//! x\npub struct A { f: u8, g: u8 }\nfn f() {\n    crate::b::g();\n}\n",
            ),
            ("plan/src/b.rs", "//! x\npub fn g() { crate::a::A; }\n"),
            ("hal/src/device.rs", "//! x\n"),
        ])
        .with_package("crossweave-plan", "plan")
        .with_package("crossweave-hal", "hal")
    }

    #[test]
    fn a_file_is_answered_with_its_rules_and_figures() {
        let text = why(&tree(), "plan/src/a.rs").unwrap();
        let (holds, free) = text.split_once("Rules that do not").unwrap();
        assert!(
            holds.starts_with("plan/src/a.rs: a file of crossweave-plan"),
            "{text}"
        );
        assert!(
            holds.contains("pure plan") && holds.contains("function size"),
            "{text}"
        );
        assert!(
            free.contains("open calls              not in OPEN_PLACES"),
            "{text}"
        );
        assert!(free.contains("2 of 15     plan/src/a.rs: A\n"), "{text}");
        assert!(free.contains("3 of 100    plan/src/a.rs: f\n"), "{text}");
        assert!(
            free.contains("crossweave-plan"),
            "the crate around it: {text}"
        );
        assert!(
            free.contains("2 of 1      plan/src/a.rs\n"),
            "its circle: {text}"
        );
        assert!(
            free.contains("It names of its crate\n  plan/src/b.rs: crate::b::g in line 4"),
            "{text}"
        );
        assert!(
            free.contains("It is named by\n  plan/src/b.rs: crate::a::A in line 2"),
            "{text}"
        );
    }

    #[test]
    fn a_folder_counts_its_files_and_an_exception_says_its_reason() {
        let text = why(&tree(), "plan").unwrap();
        assert!(
            text.contains("plan: 4 text files of crossweave-plan"),
            "{text}"
        );
        assert!(text.contains("file heads              opens with `//!` and the one idea of the file (3 of 4 files)"), "{text}");
        let text = why(&tree(), "hal/src/device.rs").unwrap();
        assert!(
            text.contains("hal/src/device.rs: but for `npu`: the same kind, for hosts"),
            "{text}"
        );
        assert!(
            why(&tree(), "")
                .unwrap()
                .starts_with("the checkout: 5 text files")
        );
    }

    #[test]
    fn a_place_that_is_not_there_is_refused() {
        let e = why(&tree(), "plan/src/c.rs").unwrap_err();
        assert!(e.contains("plan/src/c.rs is neither"), "{e}");
        assert!(why(&tree(), "pla").is_err());
    }
}
