//! The rules of `tidy`. One file holds one kind; each is a pure function of the tree.

mod deps;
mod docs;
mod places;
mod shape;
mod unsafety;
mod words;

use crate::tree::Tree;
use std::fmt;

/// One violation: where, and in a sentence what and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// From the root.
    pub path: String,
    /// From 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong, and the fix.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            n => write!(f, "{}:{n}: {}", self.path, self.text),
        }
    }
}

/// A rule: its name and how to look.
pub struct Rule {
    /// Short name, for the count that `tidy` prints.
    pub name: &'static str,
    /// Finds every violation.
    pub find: fn(&Tree) -> Vec<Finding>,
}

/// Every rule, in the order of the report.
pub const RULES: &[Rule] = &[
    Rule {
        name: "dependencies",
        find: deps::dependencies,
    },
    Rule {
        name: "lints inherited",
        find: deps::lints,
    },
    Rule {
        name: "vendor words",
        find: places::vendor_words,
    },
    Rule {
        name: "no globals",
        find: places::globals,
    },
    Rule {
        name: "pure plan",
        find: places::purity,
    },
    Rule {
        name: "process calls",
        find: places::process_calls,
    },
    Rule {
        name: "open calls",
        find: places::open_calls,
    },
    Rule {
        name: "machine paths",
        find: places::machine_paths,
    },
    Rule {
        name: "unsafe places",
        find: unsafety::places,
    },
    Rule {
        name: "unsafe is explained",
        find: unsafety::explained,
    },
    Rule {
        name: "file size",
        find: shape::size,
    },
    Rule {
        name: "document size",
        find: shape::documents,
    },
    Rule {
        name: "file heads",
        find: shape::heads,
    },
    Rule {
        name: "unfinished code",
        find: shape::unfinished,
    },
    Rule {
        name: "named tests exist",
        find: docs::named_tests,
    },
    Rule {
        name: "words of the field",
        find: words::stop_list,
    },
    Rule {
        name: "links lead somewhere",
        find: docs::links,
    },
    Rule {
        name: "invariants are kept",
        find: docs::invariants,
    },
];

/// Everything that is wrong with the tree; empty when all is well.
pub fn tidy(tree: &Tree) -> Vec<Finding> {
    RULES.iter().flat_map(|r| (r.find)(tree)).collect()
}

/// A finding at a line.
fn at(path: &str, line: usize, text: impl Into<String>) -> Finding {
    Finding {
        path: path.to_string(),
        line,
        text: text.into(),
    }
}

/// Whether a path lies in one of these folders or is one of these files.
fn within(path: &str, places: &[&str]) -> bool {
    places.iter().any(|p| path.starts_with(p))
}

/// The lines on which a test found something.
#[cfg(test)]
fn lines(found: &[Finding]) -> Vec<(&str, usize)> {
    found.iter().map(|f| (f.path.as_str(), f.line)).collect()
}
