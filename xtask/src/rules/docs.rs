//! What documents and crate heads name exists: files, functions and tests; and an invariant names a test that checks it.

use super::{Finding, Place, at, within};
use crate::modules::joined;
use crate::tables::{DOCUMENTS, INVARIANTS};
use crate::tree::{File, Tree};

fn is_document(path: &str) -> bool {
    path.ends_with(".md") && within(path, DOCUMENTS)
}

fn is_crate_head(path: &str) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("src/main.rs")
}

/// Where links are followed.
pub fn documents(path: &str) -> Place {
    match is_document(path) {
        true => Place::Holds(Vec::new()),
        false => Place::free("not in DOCUMENTS of xtask/src/tables.rs"),
    }
}

/// Where files, functions and tests that are named must exist.
pub fn documents_and_heads(path: &str) -> Place {
    match is_document(path) || is_crate_head(path) {
        true => Place::Holds(Vec::new()),
        false => Place::free("neither in DOCUMENTS of xtask/src/tables.rs nor the root of a crate"),
    }
}

/// Where every item is an invariant.
pub fn of_invariants(path: &str) -> Place {
    match path == INVARIANTS {
        true => Place::Holds(Vec::new()),
        false => Place::free("not the list of invariants"),
    }
}

/// A reference is a code span `path/to/file.rs: name` or `path/to/file.rs`, from the root. A span with a wildcard is none, and `src/x.rs` is a
/// file of a project that the reader makes.
fn references(line: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    line.split('`').skip(1).step_by(2).filter_map(|span| {
        let (path, name) = match span.split_once(": ") {
            Some((path, name)) => (path, Some(name)),
            None => (span, None),
        };
        let path = path.strip_prefix("../").unwrap_or(path);
        let ours = path.contains('/') && !path.contains('*') && !path.starts_with("src/");
        (path.ends_with(".rs") && ours).then_some((path, name))
    })
}

/// Whether a source defines a function or a type of that name.
fn defines(source: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "const", "type", "mod"];
    kinds.iter().any(|kind| {
        source
            .match_indices(&format!("{kind} {name}"))
            .any(|(i, m)| {
                let after = source[i + m.len()..].chars().next().unwrap_or(' ');
                !(after.is_alphanumeric() || after == '_')
            })
    })
}

/// The lines of a file in which references are looked for, with their numbers: all of a document, the head of a crate.
fn prose(f: &File) -> Vec<(usize, &str)> {
    let lines = f.text.lines().enumerate().map(|(i, l)| (i + 1, l));
    if is_document(&f.path) {
        return lines.collect();
    }
    match is_crate_head(&f.path) {
        true => lines.take_while(|(_, l)| l.starts_with("//!")).collect(),
        false => vec![],
    }
}

/// Every file, function and test that a document or a crate head names is there.
pub fn named_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in &tree.files {
        for (line, text) in prose(f) {
            for (path, name) in references(text) {
                let Some(source) = tree.file(path) else {
                    let text = format!("names `{path}`, which is not in the tree");
                    found.push(at(&f.path, line, text));
                    continue;
                };
                if let Some(n) = name.filter(|n| !defines(&source.text, n)) {
                    let text = format!("names `{n}`, which `{path}` does not define");
                    found.push(at(&f.path, line, text));
                }
            }
        }
    }
    found
}

/// A link of a document to a file of the tree leads somewhere.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in &tree.files {
        if !is_document(&f.path) {
            continue;
        }
        let mut code = false;
        for (i, line) in f.text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            if code || line.starts_with("    ") {
                continue;
            }
            // What stands in a code span is code.
            let prose: String = line.split('`').step_by(2).collect();
            for link in prose
                .split("](")
                .skip(1)
                .filter_map(|l| l.split(')').next())
            {
                let target = link.split(['#', ' ']).next().unwrap_or_default();
                if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let to = beside(&f.path, target);
                let folder = format!("{}/", to.trim_end_matches('/'));
                if !tree
                    .files
                    .iter()
                    .any(|o| o.path == to || o.path.starts_with(&folder))
                {
                    let text = format!("links to `{target}`, which is not in the tree");
                    found.push(at(&f.path, i + 1, text));
                }
            }
        }
    }
    found
}

/// The heads of walks through the tree, and the lines each may have.
const WALK: (&str, usize) = ("### Walk: ", 12);

/// A walk is short, and no file stands in two of its lines.
pub fn walks(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in tree.files.iter().filter(|f| is_document(&f.path)) {
        let mut seen: Option<Vec<&str>> = None;
        let mut lines = 0;
        for (i, line) in f.text.lines().enumerate() {
            if line.starts_with('#') {
                seen = line.starts_with(WALK.0).then(Vec::new);
                lines = 0;
            }
            let step = line.starts_with(|c: char| c.is_ascii_digit());
            let Some(seen) = seen.as_mut().filter(|_| step) else {
                continue;
            };
            let mut here: Vec<&str> = references(line).map(|(path, _)| path).collect();
            here.sort_unstable();
            here.dedup();
            lines += usize::from(!here.is_empty());
            if lines > WALK.1 && !here.is_empty() {
                let text = format!("a walk of more than {} lines", WALK.1);
                found.push(at(&f.path, i + 1, text));
            }
            for path in here {
                if seen.contains(&path) {
                    let text = format!("visits `{path}` twice in one walk");
                    found.push(at(&f.path, i + 1, text));
                }
                seen.push(path);
            }
        }
    }
    found
}

/// A path as it is written in the file `from`, from the root.
fn beside(from: &str, path: &str) -> String {
    joined(from.rsplit_once('/').map_or("", |p| p.0), path)
}

/// Every item of the list of invariants opens in bold and names a test, and the list is there.
pub fn invariants(tree: &Tree) -> Vec<Finding> {
    let Some(f) = tree.file(INVARIANTS) else {
        let text = "the list of invariants is missing";
        return vec![at(INVARIANTS, 0, text)];
    };
    let mut found = Vec::new();
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
            let text = "an invariant that names no test: nothing checks it";
            found.push(at(&f.path, line, text));
        }
    };
    for (i, line) in f.text.lines().enumerate() {
        if line.starts_with('#') {
            close(&mut item);
        } else if line.starts_with("- ") {
            close(&mut item);
            item = Some((i + 1, line.starts_with("- **"), false));
        }
        if let Some((_, _, named)) = &mut item {
            *named |= references(line).any(|r| r.1.is_some());
        }
    }
    close(&mut item);
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    const TEST: (&str, &str) = ("a/tests/t.rs", "#[test]\nfn holds() {}\npub trait Kept {}");

    #[test]
    fn a_walk_that_goes_back_or_does_not_end_is_found() {
        let long: String = (0..13).map(|i| format!("1. `a/src/f{i}.rs`\n")).collect();
        let doc = format!(
            "`a/src/x.rs`\n### Walk: one\n1. `a/src/x.rs`, `a/src/x.rs: f`\n2. `a/src/y.rs`\n3. `a/src/x.rs`\n### Walk: two\n1. `a/src/x.rs`\n`a/src/x.rs`\n## other\n`a/src/x.rs`\n### Walk: long\n{long}"
        );
        let path = "docs/ARCHITECTURE.md";
        let tree = Tree::of(&[(path, &doc)]);
        assert_eq!(lines(&walks(&tree)), [(path, 5), (path, 24)]);
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        let doc = "`a/tests/t.rs: holds` `a/tests/t.rs`\n`a/tests/t.rs: gone`\n`b/c.rs: x`\n`a/tests/t.rs: hold`\n`a/tests/t.rs: Kept`\n";
        let head = "//! `a/tests/t.rs: gone`\nfn f() {} // `a/b.rs`\n";
        let tree = Tree::of(&[
            ("docs/ARCHITECTURE.md", doc),
            ("a/src/lib.rs", head),
            ("a/src/x.rs", head),
            TEST,
        ]);
        let doc = "docs/ARCHITECTURE.md";
        let want = [(doc, 2), (doc, 3), (doc, 4), ("a/src/lib.rs", 1)];
        assert_eq!(lines(&named_tests(&tree)), want);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let doc = "[a](../README.md) [b](adr/) [c](#here) [d](https://x.y/z.md)\n[e](adr/x.md#part)\n[f](adr/0001.md), [g](gone.md)\n```\nf[x](a)\n```\n    f[x](a) `f[x](a)`\n`f[x](a)`\n[`h`](gone)\n";
        let tree = Tree::of(&[
            ("docs/a.md", doc),
            ("docs/adr/0001.md", "[up](../a.md) [wrong](a.md)"),
            ("README.md", "[a](docs/a.md)"),
        ]);
        let want = [
            ("docs/a.md", 2),
            ("docs/a.md", 3),
            ("docs/a.md", 9),
            ("docs/adr/0001.md", 1),
        ];
        assert_eq!(lines(&links(&tree)), want);
    }

    #[test]
    fn an_invariant_without_a_test_is_found() {
        let doc = "# Invariants\n## Code\n- **One.** Kept by\n  `a/tests/t.rs: holds`.\n- **Two.** Trust me.\n- **Three.** `a/tests/t.rs`\n- Four. `a/tests/t.rs: holds`\n## More\n- **Five.**\n";
        let tree = Tree::of(&[(INVARIANTS, doc), TEST]);
        let at = |line| (INVARIANTS, line);
        assert_eq!(lines(&invariants(&tree)), [5, 6, 7, 9].map(at));
    }

    #[test]
    fn a_missing_list_of_invariants_is_found() {
        assert_eq!(lines(&invariants(&Tree::of(&[TEST]))), [(INVARIANTS, 0)]);
    }
}
