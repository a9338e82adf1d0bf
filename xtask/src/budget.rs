//! Lines per crate, of code and of tests, so that growth is seen.

use crate::lines::{kinds, owner, product};
use crate::modules::Modules;
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
    let empty = |name: &str| Lines {
        name: name.to_string(),
        code: 0,
        tests: 0,
        longest: 0,
    };
    let mut lines: Vec<Lines> = tree.packages.iter().map(|p| empty(&p.name)).collect();
    let modules = Modules::of(tree);
    let of_product: Vec<usize> = product(tree, &modules).map(|(i, _)| i).collect();
    for (i, file) in tree
        .files
        .iter()
        .enumerate()
        .filter(|(_, f)| f.rust.is_some())
    {
        let Some(package) = owner(tree, &file.path) else {
            continue;
        };
        let Some(row) = lines.iter_mut().find(|l| l.name == package.name) else {
            continue;
        };
        let is_product = of_product.binary_search(&i).is_ok();
        for (_, test) in kinds(file).iter().filter(|k| k.0) {
            match is_product && !test {
                true => row.code += 1,
                false => row.tests += 1,
            }
        }
        row.longest = row.longest.max(file.text.lines().count());
    }
    lines.sort_by_key(|l| std::cmp::Reverse(l.code));
    lines
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

    #[test]
    fn lines_go_to_the_innermost_crate_and_tests_are_apart() {
        let tree = Tree::of(&[
            (
                "hal/src/lib.rs",
                "//! x\n#[cfg(test)]\nmod all_tests;\n#[cfg(test)]\nmod tests {}\nfn a() {}\n",
            ),
            ("hal/src/all_tests.rs", "fn e() {}\n"),
            ("hal/abi/src/lib.rs", "fn b() {}\nfn c() {}\n"),
            ("hal/tests/t.rs", "fn d() {}\n"),
        ])
        .with_package("hal", "hal")
        .with_package("hal/abi", "hal/abi");
        let lines = count(&tree);
        let row = |name: &str| {
            let l = lines.iter().find(|l| l.name == name).unwrap();
            (l.code, l.tests)
        };
        assert_eq!(row("hal/abi"), (2, 0));
        // The two lines that declare a file of tests are code.
        assert_eq!(row("hal"), (3, 4));
        assert!(lines[0].code >= lines[1].code);
        assert!(print(&lines).contains("all"));
    }
}
