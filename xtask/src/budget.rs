//! Lines per crate, of code and of tests, so that growth is seen.

use crate::tree::Tree;
use std::fmt::Write;

/// Lines of one crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    /// Package name.
    pub name: String,
    /// Lines that hold code, outside tests.
    pub code: usize,
    /// Lines that hold code, of tests, benches and examples.
    pub tests: usize,
    /// The longest source.
    pub longest: usize,
}

/// Counts every crate, largest first.
pub fn count(tree: &Tree) -> Vec<Lines> {
    let mut lines: Vec<Lines> = tree
        .packages
        .iter()
        .map(|p| Lines {
            name: p.name.clone(),
            code: 0,
            tests: 0,
            longest: 0,
        })
        .collect();
    for (file, split) in tree.rust() {
        let Some(i) = owner(tree, &file.path) else {
            continue;
        };
        let beside = file.path[tree.packages[i].folder.len()..].to_string();
        let test_file = !beside.starts_with("/src/") || beside.ends_with("tests.rs");
        let mut in_tests = test_file || tree.packages[i].folder == "tests";
        for line in split.code.lines() {
            // By custom a file's tests are its last part.
            in_tests |= line.trim() == "#[cfg(test)]";
            let n = usize::from(!line.trim().is_empty());
            match in_tests {
                true => lines[i].tests += n,
                false => lines[i].code += n,
            }
        }
        lines[i].longest = lines[i].longest.max(file.text.lines().count());
    }
    lines.sort_by_key(|l| std::cmp::Reverse(l.code));
    lines
}

/// The package a file belongs to: the one with the longest folder above it.
fn owner(tree: &Tree, path: &str) -> Option<usize> {
    let above = |folder: &str| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    (0..tree.packages.len())
        .filter(|&i| above(&tree.packages[i].folder))
        .max_by_key(|&i| tree.packages[i].folder.len())
}

/// The table as text.
pub fn print(lines: &[Lines]) -> String {
    let mut out = format!(
        "{:<28}{:>8}{:>8}{:>9}\n",
        "crate", "code", "tests", "longest"
    );
    for l in lines {
        let _ = writeln!(
            out,
            "{:<28}{:>8}{:>8}{:>9}",
            l.name, l.code, l.tests, l.longest
        );
    }
    let sum = |f: fn(&Lines) -> usize| lines.iter().map(f).sum::<usize>();
    let _ = writeln!(
        out,
        "{:<28}{:>8}{:>8}",
        "all",
        sum(|l| l.code),
        sum(|l| l.tests)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Package;

    #[test]
    fn lines_go_to_the_innermost_crate_and_tests_are_apart() {
        let mut tree = Tree::of(&[
            (
                "hal/src/lib.rs",
                "//! x\nfn a() {}\n\n#[cfg(test)]\nmod tests {}\n",
            ),
            ("hal/abi/src/lib.rs", "fn b() {}\nfn c() {}\n"),
            ("hal/tests/t.rs", "fn d() {}\n"),
        ]);
        for folder in ["hal", "hal/abi"] {
            tree.packages.push(Package {
                name: folder.into(),
                folder: folder.into(),
                dependencies: vec![],
            });
        }
        let lines = count(&tree);
        assert_eq!(
            (lines[0].name.as_str(), lines[0].code, lines[0].tests),
            ("hal/abi", 2, 0)
        );
        assert_eq!(
            (lines[1].name.as_str(), lines[1].code, lines[1].tests),
            ("hal", 1, 3)
        );
        assert!(print(&lines).contains("all"));
    }
}
