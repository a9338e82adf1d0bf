//! Words and calls that may stand in some places only.

use super::{Finding, Place, at, within};
use crate::source::{line_of, words};
use crate::tables::*;
use crate::tree::Tree;

/// Extensions of files in which a vendor's name is looked for.
const TEXTS: &[&str] = &[".rs", ".h", ".toml", ".json", ".md"];

/// Where vendors go unnamed.
pub fn above_back_ends(path: &str) -> Place {
    if !TEXTS.iter().any(|e| path.ends_with(e)) || path == "Cargo.lock" {
        return Place::free("only sources, manifests and documents are looked at");
    }
    if within(path, VENDOR_PLACES) {
        return Place::free("in VENDOR_PLACES of xtask/src/tables.rs");
    }
    let words = VENDOR_EXCEPTIONS.iter().filter(|e| e.0 == path);
    Place::Holds(
        words
            .map(|e| format!("but for `{}`: {}", e.1, e.2))
            .collect(),
    )
}

/// No vendor is named above the back ends, in code or in words.
pub fn vendor_words(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in &tree.files {
        if !above_back_ends(&f.path).holds() {
            continue;
        }
        for (offset, word) in words(&f.text) {
            // `cuda_stream`, `CudaStream` and `CUDA` all name the vendor.
            let Some(vendor) = parts(word).find_map(|p| VENDOR_WORDS.iter().find(|v| **v == p))
            else {
                continue;
            };
            let excepted = |e: &&(&str, &str, &str)| e.0 == f.path && e.1 == *vendor;
            if !VENDOR_EXCEPTIONS.iter().any(|e| excepted(&e)) {
                let line = line_of(&f.text, offset);
                found.push(at(
                    &f.path,
                    line,
                    format!("`{word}` names a vendor; only back ends know one"),
                ));
            }
        }
    }
    found
}

/// The parts of a name, in lower case: at underscores, and where a capital follows a small letter.
fn parts(word: &str) -> impl Iterator<Item = String> + '_ {
    word.split('_').flat_map(|w| {
        let mut cut = vec![0];
        let chars: Vec<(usize, char)> = w.char_indices().collect();
        cut.extend(
            chars
                .windows(2)
                .filter(|p| p[0].1.is_lowercase() && p[1].1.is_uppercase())
                .map(|p| p[1].0),
        );
        cut.push(w.len());
        cut.windows(2)
            .map(|c| w[c[0]..c[1]].to_lowercase())
            .collect::<Vec<_>>()
    })
}

/// Where no value of the whole process may be.
pub fn without_globals(path: &str) -> Place {
    if path == "xtask/src/tables.rs" {
        return Place::free("the list of the words itself");
    }
    match GLOBAL_PLACES.iter().find(|p| path.starts_with(p.0)) {
        Some((_, why)) => Place::free(why),
        None => super::rust(path),
    }
}

/// No value of the whole process, but in the places that say why.
pub fn globals(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        if !without_globals(&f.path).holds() {
            continue;
        }
        let all: Vec<(usize, &str)> = words(&split.code).collect();
        for (i, &(offset, word)) in all.iter().enumerate() {
            let next = all.get(i + 1).map_or("", |w| w.1);
            let lifetime = split.code[..offset].ends_with('\'');
            let hit = GLOBALS.contains(&word) || (word == "static" && next == "mut" && !lifetime);
            if hit {
                let text =
                    "a value of the whole process; pass it, or keep it in the object it belongs to";
                found.push(at(
                    &f.path,
                    line_of(&split.code, offset),
                    format!("`{word}`: {text}"),
                ));
            }
        }
    }
    found
}

/// Where code is pure.
pub fn pure(path: &str) -> Place {
    match within(path, PURE_PLACES) {
        true => super::rust(path),
        false => Place::free("not in PURE_PLACES of xtask/src/tables.rs"),
    }
}

/// Pure crates name no clock, no file, no thread.
pub fn purity(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust().filter(|(f, _)| pure(&f.path).holds()) {
        let all: Vec<(usize, &str)> = words(&split.code).collect();
        for (i, &(offset, word)) in all.iter().enumerate() {
            if word != "std" {
                continue;
            }
            // `std::fs` names one module, `std::{fs, mem}` several up to the brace that closes.
            let rest = &split.code[offset..];
            let end = match rest[3..].trim_start().starts_with("::{") || rest.starts_with("std::{")
            {
                true => offset + rest.find('}').unwrap_or(rest.len()),
                false => all.get(i + 1).map_or(offset, |w| w.0 + w.1.len()),
            };
            for &(o, module) in all[i..].iter().take_while(|w| w.0 < end) {
                if IMPURE.contains(&module) {
                    let text =
                        format!("`std::{module}` in a crate without device, clock and files");
                    found.push(at(&f.path, line_of(&split.code, o), text));
                }
            }
        }
    }
    found
}

/// Where the environment is not read and the process not ended.
pub fn below_programs(path: &str) -> Place {
    // Integration tests, benches and examples of a crate are programs too.
    let program = ["/tests/", "/benches/", "/examples/"]
        .iter()
        .any(|d| path.contains(d));
    match program || within(path, PROCESS_PLACES) {
        true => Place::free("a program, or in PROCESS_PLACES of xtask/src/tables.rs"),
        false => super::rust(path),
    }
}

/// Only a program reads its environment and arguments or ends itself.
pub fn process_calls(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        if !below_programs(&f.path).holds() {
            continue;
        }
        for call in PROCESS_CALLS {
            for (offset, _) in split.code.match_indices(call) {
                let after = split.code[offset + call.len()..]
                    .chars()
                    .next()
                    .unwrap_or(' ');
                if !(after.is_alphanumeric() || after == '_') {
                    let text = format!(
                        "`{call}`: only cli reads the environment and arguments or exits; take the value as an argument"
                    );
                    found.push(at(&f.path, line_of(&split.code, offset), text));
                }
            }
        }
    }
    found
}

/// Where a program without a command line calls in.
pub fn of_libraries(path: &str) -> Place {
    match within(path, LIBRARY_PLACES) {
        true => super::rust(path),
        false => Place::free("not in LIBRARY_PLACES of xtask/src/tables.rs"),
    }
}

/// What a run has to say goes to who watches it; what a signal asks for comes from there. Tests, which stand at the end of a file, print.
pub fn program_words(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust().filter(|(f, _)| of_libraries(&f.path).holds()) {
        let code = split.code.split("#[cfg(test)]").next().unwrap_or_default();
        for (offset, word) in words(code).filter(|w| PROGRAM_WORDS.contains(&w.1)) {
            let after = code[offset + word.len()..].chars().next().unwrap_or(' ');
            let named = word.contains("print") && after != '!';
            if !named {
                let text = format!("`{word}` is for programs; a library reports an event");
                found.push(at(&f.path, line_of(code, offset), text));
            }
        }
    }
    found
}

/// Where files of users are read.
pub fn reads_user_files(path: &str) -> Place {
    if OPEN_EXCEPTIONS.contains(&path) || path.ends_with("/tests.rs") {
        return Place::free("opens folders or its own files only");
    }
    match within(path, OPEN_PLACES) {
        true => super::rust(path),
        false => Place::free("not in OPEN_PLACES of xtask/src/tables.rs"),
    }
}

/// Files of users are opened in one place, which looks at what they are first. Tests, which stand at the end of a file, read their own.
pub fn open_calls(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        if !reads_user_files(&f.path).holds() {
            continue;
        }
        let code = split.code.split("#[cfg(test)]").next().unwrap_or_default();
        for call in OPEN_CALLS {
            for (offset, _) in code.match_indices(&format!("{call}(")) {
                // `SafeFile::open` is another.
                let before = code[..offset].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                    continue;
                }
                let text = format!(
                    "`{call}` opens pipes and devices and reads without end; use `crossweave_files`"
                );
                found.push(at(&f.path, line_of(code, offset), text));
            }
        }
    }
    found
}

/// Where no path of a developer's machine may stand.
pub fn of_any_machine(path: &str) -> Place {
    match within(path, MACHINE_PLACES) {
        true => Place::free("the rule itself"),
        false => Place::Holds(Vec::new()),
    }
}

/// Where sizes are written by the one formatter.
pub fn of_sizes(path: &str) -> Place {
    match within(path, SIZE_PLACES) {
        true => Place::free("the formatter itself, or its rule"),
        false => super::rust(path),
    }
}

/// Bytes are written for people by `crossweave_words::Size` alone. Units of rates (`GB/s`) are another thing.
pub fn sizes(tree: &Tree) -> Vec<Finding> {
    let text = "writes a size by itself; use `crossweave_words::Size`";
    let mut found = Vec::new();
    for (f, split) in tree.rust().filter(|(f, _)| !within(&f.path, SIZE_PLACES)) {
        for (offset, word) in words(&split.code).filter(|w| SIZE_NAMES.contains(&w.1)) {
            let line = line_of(&split.code, offset);
            found.push(at(&f.path, line, format!("`{word}` {text}")));
        }
        for (offset, _) in f.text.match_indices('}') {
            let rest = &f.text[offset + 1..];
            let unit = rest.strip_prefix(' ').unwrap_or(rest);
            let unit: String = unit.chars().take_while(|c| c.is_alphanumeric()).collect();
            let rate = rest.trim_start().strip_prefix(unit.as_str());
            let rate = rate.is_some_and(|r| r.starts_with('/'));
            if SIZE_UNITS.contains(&unit.as_str()) && !rate {
                let line = line_of(&f.text, offset);
                found.push(at(&f.path, line, format!("`}} {unit}` {text}")));
            }
        }
    }
    found
}

/// No path of a developer's machine, in any text.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in tree
        .files
        .iter()
        .filter(|f| of_any_machine(&f.path).holds())
    {
        for start in MACHINE_PATHS {
            for (offset, _) in f.text.match_indices(start) {
                // `docs/root/` is a path of ours; only one from the machine's root counts.
                let before = f.text[..offset].chars().next_back().unwrap_or(' ');
                let inside = before.is_alphanumeric() || "._-}/~*".contains(before);
                if !inside {
                    let text = format!("`{start}…` is a path of one machine");
                    found.push(at(&f.path, line_of(&f.text, offset), text));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn a_vendor_above_the_back_ends_is_found() {
        let tree = Tree::of(&[
            (
                "zero/src/a.rs",
                "//! a\n// on CUDA\nfn f(x: NcclComm, y: hip_stream) {}\nlet ship = chip;",
            ),
            ("backends/cpu/src/a.rs", "// cuda"),
            ("hal/src/device.rs", "/// 3 npu"),
            ("hal/src/other.rs", "/// 3 npu"),
            ("plan/Cargo.toml", "wgpu = \"30\""),
        ]);
        let found = vendor_words(&tree);
        let want = [
            ("zero/src/a.rs", 2),
            ("zero/src/a.rs", 3),
            ("zero/src/a.rs", 3),
            ("hal/src/other.rs", 1),
            ("plan/Cargo.toml", 1),
        ];
        assert_eq!(lines(&found), want);
    }

    #[test]
    fn a_global_is_found_and_a_lifetime_is_not() {
        let tree = Tree::of(&[
            (
                "nn/src/a.rs",
                "static mut N: u8 = 0;\nfn f(x: &'static mut u8) {}\n// OnceLock\nuse std::sync::OnceLock;\nthread_local! {}",
            ),
            ("cli/src/a.rs", "use std::sync::OnceLock;"),
        ]);
        assert_eq!(
            lines(&globals(&tree)),
            [("nn/src/a.rs", 1), ("nn/src/a.rs", 4), ("nn/src/a.rs", 5)]
        );
    }

    #[test]
    fn a_clock_in_plan_is_found() {
        let tree = Tree::of(&[
            (
                "plan/src/a.rs",
                "use std::time::Instant;\nuse std::{mem,\n fs};\nuse std::fmt; // std::env\nlet time = 3;",
            ),
            ("engine/src/a.rs", "use std::time::Instant;"),
        ]);
        assert_eq!(
            lines(&purity(&tree)),
            [("plan/src/a.rs", 1), ("plan/src/a.rs", 3)]
        );
    }

    #[test]
    fn a_read_of_the_environment_below_cli_is_found() {
        let tree = Tree::of(&[
            (
                "data/src/a.rs",
                "let h = std::env::var_os(\"HOME\");\nstd::process::exit(1);\nenv::consts::ARCH",
            ),
            ("data/tests/a.rs", "std::env::var(\"X\")"),
            ("cli/src/a.rs", "std::env::args()"),
        ]);
        assert_eq!(
            lines(&process_calls(&tree)),
            [("data/src/a.rs", 1), ("data/src/a.rs", 2)]
        );
    }

    #[test]
    fn a_library_that_prints_is_found() {
        let tree = Tree::of(&[
            (
                "train/src/a.rs",
                "fn print(x: u8) {}\neprintln!(\"x\");\n// println!\nnix::sys::signal::kill(p);\n#[cfg(test)]\nprintln!()",
            ),
            ("cli/src/a.rs", "println!(\"x\")"),
        ]);
        assert_eq!(
            lines(&program_words(&tree)),
            [("train/src/a.rs", 2), ("train/src/a.rs", 4)]
        );
    }

    #[test]
    fn a_file_that_is_opened_unseen_is_found() {
        let tree = Tree::of(&[
            (
                "data/src/a.rs",
                "let f = File::open(p);\nfiles::read(p, SafeFile::open(p));\nstd::fs::read(p);\n#[cfg(test)]\nfs::read(p)",
            ),
            ("data/src/atomic.rs", "File::open(p)"),
            ("engine/src/a.rs", "fs::read(p)"),
        ]);
        assert_eq!(
            lines(&open_calls(&tree)),
            [("data/src/a.rs", 1), ("data/src/a.rs", 3)]
        );
    }

    #[test]
    fn a_second_formatter_of_sizes_is_found() {
        let tree = Tree::of(&[
            (
                "cli/src/a.rs",
                "format!(\"{:.1} MiB\", x);\nformat!(\"{x:.2} GB/s, {} GB\", 1);\nuse indicatif::HumanBytes;\nformat!(\"{n}kB\");\n// of 3 MiB }\n",
            ),
            ("support/words/src/lib.rs", "format!(\"{} GB\", x)"),
        ]);
        let mut found = sizes(&tree);
        found.sort_by_key(|f| f.line);
        let want = [1, 2, 3, 4].map(|l| ("cli/src/a.rs", l));
        assert_eq!(lines(&found), want);
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        let tree = Tree::of(&[(
            "a.md",
            "see /home/me/x\nand docs/root/x and $OUT/root/y\nor `/root/y`",
        )]);
        let found = machine_paths(&tree);
        assert!(lines(&found).contains(&("a.md", 1)) && lines(&found).contains(&("a.md", 3)));
    }
}
