//! The words of the field: phrases that a PyTorch or MPI engineer would not write are refused in prose that people read.

use super::{Finding, Place, at, within};
use crate::source::{line_of, words};
use crate::tables::{STOP_WORDS, WORD_DEBTS, WORD_PLACES};
use crate::tree::{File, Tree};

/// What may stand between two words of a phrase: the end of a line, and the marks of a comment or of a literal that goes on.
const BETWEEN: &str = " \t\n/!*>\\'`";

/// Whose prose the rule reads.
pub fn prose_of(path: &str) -> Place {
    let read = [".md", ".h", ".rs"].iter().any(|end| path.ends_with(end));
    if !read || within(path, WORD_PLACES.0) {
        return Place::free("holds no prose that the stop list is about");
    }
    let debts = WORD_DEBTS.iter().filter(|d| path.starts_with(d.0));
    let mut kept: Vec<String> = debts
        .map(|(at, phrase, most)| format!("\"{phrase}\" is left {most} times in {at}"))
        .collect();
    if within(path, WORD_PLACES.1) {
        kept.push("only the head of the crate and literals are read".into());
    }
    Place::Holds(kept)
}

/// No document, comment or message says what the stop list refuses; what is left over from before is counted in a table and only shrinks.
pub fn stop_list(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut debts: Vec<usize> = vec![0; WORD_DEBTS.len()];
    let mut owed: Vec<Vec<Finding>> = vec![Vec::new(); WORD_DEBTS.len()];
    for f in &tree.files {
        for (line, phrase, instead) in hits(f) {
            let finding = at(&f.path, line, format!("\"{phrase}\": say {instead}"));
            let debt = WORD_DEBTS
                .iter()
                .position(|d| f.path.starts_with(d.0) && d.1 == phrase);
            match debt {
                Some(d) => {
                    debts[d] += 1;
                    owed[d].push(finding);
                }
                None => found.push(finding),
            }
        }
    }
    for ((debt, n), owed) in WORD_DEBTS.iter().zip(debts).zip(owed) {
        let (path, phrase, most) = *debt;
        if n > most {
            found.extend(owed);
            let text = format!("\"{phrase}\": {n} times, {most} are left over from before");
            found.push(at(path, 0, text));
        } else if n < most {
            let text = format!(
                "\"{phrase}\": {n} times; lower the {most} in WORD_DEBTS, so that it stays so"
            );
            found.push(at(path, 0, text));
        }
    }
    found
}

/// What a doc comment that opens with a genitive ("Of each collective.") is called in the table of debts.
const FRAGMENT: &str = "Of ";

/// Every phrase of the stop list in the prose of a file, and every doc comment without a subject, with its line.
fn hits(f: &File) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    if f.rust.is_some() && !within(&f.path, WORD_PLACES.0) {
        let mut before = "";
        for (i, line) in f.text.lines().map(str::trim_start).enumerate() {
            if line.starts_with("/// Of ") && !before.starts_with("///") {
                found.push((i + 1, FRAGMENT, "what it is, in a sentence with a subject"));
            }
            before = line;
        }
    }
    for text in prose(f) {
        let lower = text.to_lowercase();
        let all: Vec<(usize, &str)> = words(&lower).collect();
        for &(phrase, instead) in STOP_WORDS {
            let wanted: Vec<&str> = words(phrase).map(|w| w.1).collect();
            for start in all.windows(wanted.len().max(1)) {
                let same = start.iter().zip(&wanted).all(|(a, b)| a.1 == *b);
                let joined = start.windows(2).all(|w| {
                    let gap = &lower[w[0].0 + w[0].1.len()..w[1].0];
                    gap.chars().all(|c| BETWEEN.contains(c))
                });
                if same && joined {
                    found.push((line_of(&lower, start[0].0), phrase, instead));
                }
            }
        }
    }
    found
}

/// The parts of a file that people read: all of a document, the comments and literals of a source, the comments of a header. In the folders
/// of `WORD_PLACES` only literals and the head of a crate are read.
fn prose(f: &File) -> Vec<String> {
    if within(&f.path, WORD_PLACES.0) {
        return vec![];
    }
    if f.path.ends_with(".md") || f.path.ends_with(".h") {
        return vec![f.text.clone()];
    }
    let Some(split) = &f.rust else {
        return vec![];
    };
    if !within(&f.path, WORD_PLACES.1) {
        return vec![split.comments.clone(), split.literals.clone()];
    }
    let head: Vec<&str> = f
        .text
        .lines()
        .take_while(|l| l.starts_with("//!"))
        .collect();
    match f.path.ends_with("/lib.rs") {
        true => vec![head.join("\n"), split.literals.clone()],
        false => vec![split.literals.clone()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    /// What the rule finds in these files, apart from the debts of the real tree, which is not there.
    fn planted(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = stop_list(&Tree::of(files));
        let here = lines(&found);
        let here = here.into_iter().filter(|(_, line)| *line > 0);
        here.map(|(path, line)| (path.to_string(), line)).collect()
    }

    #[test]
    fn a_phrase_of_the_stop_list_is_found_in_documents_comments_and_messages() {
        let doc =
            "It is foretold.\nforetelling is no entry\non the device of\nnothing, Whoever reads\n";
        let source = "//! A head.\n/// whoever\n/// on the device\n/// of nothing\nfn told() {\n    let whoever = \"he is told\";\n}\n";
        let found = planted(&[("docs/x.md", doc), ("hal/src/x.rs", source)]);
        let want = [
            ("docs/x.md", 1),
            ("docs/x.md", 3),
            ("docs/x.md", 4),
            ("hal/src/x.rs", 3),
            ("hal/src/x.rs", 2),
            ("hal/src/x.rs", 6),
        ];
        let mut want: Vec<(String, usize)> = want.map(|(p, l)| (p.to_string(), l)).to_vec();
        let mut found = found;
        want.sort();
        found.sort();
        assert_eq!(found, want);
    }

    #[test]
    fn a_doc_comment_without_a_subject_is_found() {
        let source = "//! A head.\n/// Of each.\nfn f() {}\n/// The list\n/// Of Names.\n// Of two, one.\n    /// Of them.\n";
        let found = planted(&[("hal/src/x.rs", source)]);
        let at = |line| ("hal/src/x.rs".to_string(), line);
        assert_eq!(found, [at(2), at(7)]);
    }

    #[test]
    fn of_the_engine_only_messages_and_the_head_are_read() {
        let inner = "//! whoever\nfn f() {\n    // whoever\n    g(\"whoever\");\n}\n";
        let place = WORD_PLACES.1[0];
        let (lib, other) = (
            format!("{place}lib.rs"),
            format!("{place}nothing_is_owed_here.rs"),
        );
        let found = stop_list(&Tree::of(&[(&lib, inner), (&other, inner)]));
        let of = |path: &str| {
            let at = found.iter().filter(|f| f.path == path && f.line > 0);
            at.map(|f| f.line).collect::<Vec<_>>()
        };
        let owed = |path: &str| {
            WORD_DEBTS
                .iter()
                .any(|d| path.starts_with(d.0) && d.1 == "whoever")
        };
        if !owed(&lib) {
            assert_eq!((of(&lib), of(&other)), (vec![1, 4], vec![4]));
        }
    }

    #[test]
    fn a_debt_that_was_paid_must_leave_the_table() {
        // In an empty tree every debt is paid.
        let found = stop_list(&Tree::of(&[]));
        assert_eq!(found.len(), WORD_DEBTS.len());
    }
}
