//! Documents tell the truth about the tests: a named test exists, and an invariant names one.

use super::{Finding, at};
use crate::tables::DOCUMENTS;
use crate::tree::Tree;

/// A reference to a test is a code span `path/to/file.rs: function` or `path/to/file.rs`.
fn references(line: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    line.split('`').skip(1).step_by(2).filter_map(|span| {
        let (path, name) = match span.split_once(": ") {
            Some((path, name)) => (path, Some(name)),
            None => (span, None),
        };
        path.ends_with(".rs").then_some((path, name))
    })
}

/// Every file and function a document names is there.
pub fn named_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in tree
        .files
        .iter()
        .filter(|f| DOCUMENTS.contains(&f.path.as_str()))
    {
        for (i, line) in f.text.lines().enumerate() {
            for (path, name) in references(line) {
                let Some(source) = tree.file(path) else {
                    found.push(at(
                        &f.path,
                        i + 1,
                        format!("names `{path}`, which is not in the tree"),
                    ));
                    continue;
                };
                let defines = |n: &str| source.text.contains(&format!("fn {n}("));
                if let Some(n) = name.filter(|n| !defines(n)) {
                    found.push(at(
                        &f.path,
                        i + 1,
                        format!("names the test `{n}`, which `{path}` does not define"),
                    ));
                }
            }
        }
    }
    found
}

/// In the section "Invariants", every item opens in bold and names a test.
pub fn invariants(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in tree
        .files
        .iter()
        .filter(|f| DOCUMENTS.contains(&f.path.as_str()))
    {
        let mut inside = false;
        let mut item: Option<(usize, bool, bool)> = None;
        let mut close = |item: &mut Option<(usize, bool, bool)>| {
            let Some((line, bold, named)) = item.take() else {
                return;
            };
            if !bold {
                let text = "an invariant that does not open in bold";
                found.push(at(&f.path, line, text));
            }
            if !named {
                let text = "an invariant that names no test: nothing keeps it";
                found.push(at(&f.path, line, text));
            }
        };
        for (i, line) in f.text.lines().enumerate() {
            if line.starts_with('#') {
                close(&mut item);
                inside = line.contains("Invariants");
            } else if inside && line.starts_with("- ") {
                close(&mut item);
                item = Some((i + 1, line.starts_with("- **"), false));
            }
            if let Some((_, _, named)) = &mut item {
                *named |= references(line).any(|r| r.1.is_some());
            }
        }
        close(&mut item);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    const TEST: (&str, &str) = ("a/tests/t.rs", "#[test]\nfn holds() {}");

    #[test]
    fn a_test_that_is_gone_is_found() {
        let doc = "`a/tests/t.rs: holds` `a/tests/t.rs`\n`a/tests/t.rs: gone`\n`b.rs: x`\n";
        let tree = Tree::of(&[("docs/ARCHITECTURE.md", doc), TEST]);
        let doc = "docs/ARCHITECTURE.md";
        assert_eq!(lines(&named_tests(&tree)), [(doc, 2), (doc, 3)]);
    }

    #[test]
    fn an_invariant_without_a_test_is_found() {
        let doc = "# Code\n- plain\n## Invariants\n- **One.** Kept by\n  `a/tests/t.rs: holds`.\n- **Two.** Trust me.\n- **Three.** `a/tests/t.rs`\n- Four. `a/tests/t.rs: holds`\n## After\n- plain\n";
        let tree = Tree::of(&[("docs/ARCHITECTURE.md", doc), TEST]);
        let doc = "docs/ARCHITECTURE.md";
        assert_eq!(lines(&invariants(&tree)), [(doc, 6), (doc, 7), (doc, 8)]);
    }
}
