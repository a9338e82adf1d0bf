//! A doc comment says something of its thing: in the crates of a table none begins as a question without its verb.

use super::{Finding, Place, at, within};
use crate::tables::DESCRIBED;
use crate::tree::Tree;

/// Words with which such a comment begins.
const WORDS: [&str; 9] = [
    "Whether", "Who", "Whose", "What", "Which", "Where", "When", "How", "Why",
];

/// Says where the rule looks: at the sources of the crates that are done.
pub fn described(path: &str) -> Place {
    match path.ends_with(".rs") && within(path, DESCRIBED) {
        true => Place::Holds(vec![]),
        false => Place::free("DESCRIBED of xtask/src/tables.rs does not list it yet"),
    }
}

/// Finds the paragraphs of doc comments that begin with one of [`WORDS`].
pub fn fragments(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for f in tree.files.iter().filter(|f| described(&f.path).holds()) {
        let mut before = "";
        for (i, line) in f.text.lines().map(str::trim_start).enumerate() {
            let begins =
                !before.starts_with("///") || before == "///" || before.starts_with("/// #");
            let first = line
                .strip_prefix("/// ")
                .and_then(|t| t.split([' ', '.', ',', ':', ';']).next());
            if let Some(word) = first.filter(|w| begins && WORDS.contains(w)) {
                let text = format!(
                    "a doc comment that begins with \"{word}\" says nothing of its thing: begin with a noun (\"The place of ...\"), or \
                     with a verb (\"Returns true if ...\")"
                );
                found.push(at(&f.path, i + 1, text));
            }
            before = line;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn a_question_without_its_verb_is_found_where_the_crate_is_done() {
        let source = "//! A head.\n/// Whether it is.\nfn f() {}\n/// Reads it, and says\n/// What it is.\n///\n/// Why.\n///\n/// # Errors\n/// What is none.\nfn g() {}\n    // What it does.\n    /// Whatever it is, it stays.\n    /// How: so.\nfn h() {}\n";
        let done = format!("{}x.rs", DESCRIBED[0]);
        let found = fragments(&Tree::of(&[(&done, source), ("hal/src/x.rs", source)]));
        assert_eq!(lines(&found), [2, 7, 10].map(|n| (done.as_str(), n)));
    }
}
