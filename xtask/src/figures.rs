//! The table of exceptions with today's figures, in the form of the file in which it lies.

use crate::ratchet::{Ceiling, Figure};
use crate::rules::{circles, equal, sizes};
use crate::tables::shape;
use crate::tree::Tree;

/// A table, what it holds in a sentence, and how its figures are taken.
pub struct Table {
    /// The limit and the rows.
    pub ceiling: Ceiling,
    /// What a row stands for.
    pub says: &'static str,
    /// Every figure of the tree, those below the limit too.
    pub figures: fn(&Tree) -> Vec<Figure>,
}

/// Every table, in the order of the file.
pub const TABLES: &[Table] = &[
    Table {
        ceiling: shape::FOLDER_CIRCLES,
        says: "Modules with folders of their own that import one another in a circle, by one of them.",
        figures: circles::of_folders,
    },
    Table {
        ceiling: shape::CIRCLES,
        says: "Files and modules of one folder that import one another in a circle, by one of them.",
        figures: circles::in_folders,
    },
    Table {
        ceiling: shape::CRATE_LINES,
        says: "Code lines of crates.",
        figures: sizes::crate_lines,
    },
    Table {
        ceiling: shape::FIELDS,
        says: "Fields of structs.",
        figures: sizes::fields,
    },
    Table {
        ceiling: shape::METHODS,
        says: "Functions in the inherent `impl` blocks of types.",
        figures: sizes::methods,
    },
    Table {
        ceiling: shape::OPEN_FIELDS,
        says: "Fields of large structs that a part of the crate sees.",
        figures: sizes::open_fields,
    },
    Table {
        ceiling: shape::FUNCTION_LINES,
        says: "Code lines of functions.",
        figures: sizes::functions,
    },
    Table {
        ceiling: shape::EQUAL_LINES,
        says: "Lines of two files, or of one, that lie in equal runs.",
        figures: equal::figures,
    },
];

const HEAD: &str = "//! What is above a general limit of shape, each with its ceiling and the reason. Printed by `cargo xtask tidy --figures`, which keeps the
//! reasons of rows that stay and leaves those of new rows empty, for a person to write.

use crate::ratchet::Entry;
";

/// The whole file.
pub fn print(tree: &Tree) -> String {
    let mut out = HEAD.to_string();
    for t in TABLES {
        out.push_str(&format!("\n/// {}\n#[rustfmt::skip]\n", t.says));
        out.push_str(&t.ceiling.print(&(t.figures)(tree)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_printed_with_what_needs_a_row() {
        let fields: String = (0..=shape::FIELDS.limit)
            .map(|i| format!("f{i}: u8,"))
            .collect();
        let text = format!("pub struct Large {{ {fields} }}\n");
        let tree = Tree::of(&[("p/src/lib.rs", &text)]).with_package("p", "p");
        let out = print(&tree);
        assert!(
            out.starts_with("//! ") && out.contains("use crate::ratchet::Entry;"),
            "{out}"
        );
        for t in TABLES {
            let head = format!("pub const {}: &[Entry] = &[\n", t.ceiling.table);
            assert!(out.contains(&head), "{}", t.ceiling.table);
        }
        let row = "    Entry { place: \"p/src/lib.rs: Large\", ceiling: 16, why: \"\" },\n";
        assert_eq!(out.matches("Entry {").count(), 1, "{out}");
        assert!(out.contains(row), "{out}");
    }
}
