//! The shape of a source: how long it is, how it opens, that it is finished.

use super::{Finding, Place, at};
use crate::source::{line_of, words};
use crate::tables::{BANNED_MACROS, DOCUMENT_LINES, LONG_FILES, MAX_LINES};
use crate::tree::Tree;

/// No source is longer than the budget.
pub fn size(tree: &Tree) -> Vec<Finding> {
    let long = |path: &str| LONG_FILES.iter().any(|l| l.0 == path);
    tree.rust()
        .map(|(f, _)| (f, f.text.lines().count()))
        .filter(|(f, n)| *n > MAX_LINES && !long(&f.path))
        .map(|(f, n)| {
            at(
                &f.path,
                0,
                format!("{n} lines of at most {MAX_LINES}; split it by its ideas"),
            )
        })
        .collect()
}

/// Which documents have a length.
pub fn limited(path: &str) -> Place {
    match DOCUMENT_LINES.iter().find(|d| d.0 == path) {
        Some((_, most)) => Place::Holds(vec![format!("at most {most} lines")]),
        None => Place::free("not in DOCUMENT_LINES of xtask/src/tables.rs"),
    }
}

/// A document that a newcomer reads from top to bottom exists and stays short.
pub fn documents(tree: &Tree) -> Vec<Finding> {
    DOCUMENT_LINES
        .iter()
        .filter_map(|(path, most)| {
            let text = match tree.file(path).map(|f| f.text.lines().count()) {
                None => "is missing".to_string(),
                Some(n) if n > *most => {
                    format!(
                        "{n} lines of at most {most}; move what is reference to a page of its own"
                    )
                }
                Some(_) => return None,
            };
            Some(at(path, 0, text))
        })
        .collect()
}

/// Every source opens with the one idea it holds.
pub fn heads(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|(f, _)| !f.text.starts_with("//! "))
        .map(|(f, _)| {
            at(
                &f.path,
                1,
                "does not open with `//!` and the one idea of the file",
            )
        })
        .collect()
}

/// Nothing is left to do, and nothing prints for its author only.
pub fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (f, split) in tree.rust() {
        for (offset, word) in words(&split.code).filter(|w| BANNED_MACROS.contains(&w.1)) {
            if split.code[offset + word.len()..].starts_with('!') {
                found.push(at(
                    &f.path,
                    line_of(&split.code, offset),
                    format!("`{word}!` is not for a commit"),
                ));
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
    fn a_long_file_is_found() {
        let text = "//! x\n".repeat(MAX_LINES);
        let tree = Tree::of(&[("a.rs", &text), ("b.rs", &(text.clone() + "\n"))]);
        assert_eq!(lines(&size(&tree)), [("b.rs", 0)]);
    }

    #[test]
    fn a_long_or_missing_document_is_found() {
        let [(first, most), (second, _)] = [DOCUMENT_LINES[0], DOCUMENT_LINES[1]];
        let long = "x\n".repeat(most + 1);
        let right: Vec<(&str, &str)> = DOCUMENT_LINES.iter().map(|d| (d.0, "x\n")).collect();
        assert!(documents(&Tree::of(&right)).is_empty());
        let mut wrong = right.clone();
        wrong[0].1 = &long;
        wrong.remove(1);
        assert_eq!(
            lines(&documents(&Tree::of(&wrong))),
            [(first, 0), (second, 0)]
        );
    }

    #[test]
    fn a_file_without_its_idea_is_found() {
        let tree = Tree::of(&[
            ("a.rs", "//! An idea.\n"),
            ("b.rs", "use a;\n"),
            ("c.rs", "//!\n"),
        ]);
        assert_eq!(lines(&heads(&tree)), [("b.rs", 1), ("c.rs", 1)]);
    }

    #[test]
    fn unfinished_code_is_found() {
        let tree = Tree::of(&[("a.rs", "fn f() {\n todo!()\n}\n// dbg!\nlet todo = 1;")]);
        assert_eq!(lines(&unfinished(&tree)), [("a.rs", 2)]);
    }
}
