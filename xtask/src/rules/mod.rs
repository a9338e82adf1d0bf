//! The rules of `tidy`. One file holds one kind; each is a pure function of the tree.

pub mod circles;
mod clocks;
mod deps;
mod docs;
pub mod equal;
mod folders;
mod fragments;
mod places;
mod ranks;
mod shape;
pub mod sizes;
mod targets;
mod unsafety;
mod unused;
mod words;

pub use crate::finding::Finding;
use crate::finding::at;
#[cfg(test)]
use crate::finding::lines;
use crate::tables::shape::WITHOUT_SHAPE;
use crate::tree::Tree;

/// Whether a rule looks at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It does; what it leaves alone there, with the reason.
    Holds(Vec<String>),
    /// It does not; the reason.
    Free(String),
}

impl Place {
    /// A place that the rule leaves alone.
    fn free(why: &str) -> Place {
        Place::Free(why.to_string())
    }

    /// Whether the rule looks there.
    pub fn holds(&self) -> bool {
        matches!(self, Place::Holds(_))
    }
}

/// A rule: its name and how to look.
pub struct Rule {
    /// Short name, for the count that `tidy` prints.
    pub name: &'static str,
    /// What it demands.
    pub says: &'static str,
    /// Where it looks, by the path of a file from the root.
    pub place: fn(&str) -> Place,
    /// Finds every violation.
    pub find: fn(&Tree) -> Vec<Finding>,
}

/// Rules about Rust sources, tests included.
fn rust(path: &str) -> Place {
    match path.ends_with(".rs") {
        true => Place::Holds(Vec::new()),
        false => Place::free("no Rust source"),
    }
}

/// Rules about the sources of the product: below `src` of a crate that is neither tests nor examples.
fn source(path: &str) -> Place {
    match rust(path) {
        Place::Holds(_) if !path.contains("/src/") || within(path, WITHOUT_SHAPE) => {
            Place::free("tests and examples have no ceilings, nor have benches beside `src`")
        }
        place => place,
    }
}

/// Rules about manifests.
fn manifest(path: &str) -> Place {
    match path.ends_with("Cargo.toml") {
        true => Place::Holds(Vec::new()),
        false => Place::free("no manifest"),
    }
}

/// Every rule, in the order of the report.
pub const RULES: &[Rule] = &[
    Rule {
        name: "dependencies",
        says: "every dependency stands in CRATES of xtask/src/tables.rs and points to a lower floor",
        place: manifest,
        find: deps::dependencies,
    },
    Rule {
        name: "lints inherited",
        says: "every crate inherits the workspace's lints, of which missing_docs is denied",
        place: manifest,
        find: deps::lints,
    },
    Rule {
        name: "workspace dependencies",
        says: "a row of [workspace.dependencies] is named by a crate",
        place: manifest,
        find: unused::of_workspace,
    },
    Rule {
        name: "crate dependencies",
        says: "a dependency of a crate is named in its code, outside of tests unless it is a dev-dependency",
        place: manifest,
        find: unused::of_crates,
    },
    Rule {
        name: "folders of the root",
        says: "by the rows of CRATES, crates of one folder of the root use those of another in one direction, in the order in which ARCHITECTURE lists them",
        place: folders::looked_at,
        find: folders::of_root,
    },
    Rule {
        name: "test harnesses",
        says: "a lib or bin has a test harness, and a lib doctests, if and only if there is something to run",
        place: manifest,
        find: targets::harnesses,
    },
    Rule {
        name: "rows of CRATES",
        says: "CRATES allows a crate no more than its manifest asks for",
        place: manifest,
        find: unused::of_table,
    },
    Rule {
        name: "vendor words",
        says: "no vendor is named, in code or in words",
        place: places::above_back_ends,
        find: places::vendor_words,
    },
    Rule {
        name: "no globals",
        says: "no value of the whole process",
        place: places::without_globals,
        find: places::globals,
    },
    Rule {
        name: "pure plan",
        says: "no device, clock, file, thread",
        place: places::pure,
        find: places::purity,
    },
    Rule {
        name: "process calls",
        says: "no read of the environment or the arguments, and no exit",
        place: places::below_programs,
        find: places::process_calls,
    },
    Rule {
        name: "quiet libraries",
        says: "nothing is printed, no signal is taken and no command line is known",
        place: places::of_libraries,
        find: places::program_words,
    },
    Rule {
        name: "open calls",
        says: "files are opened through crate `files`",
        place: places::reads_user_files,
        find: places::open_calls,
    },
    Rule {
        name: "places, not ranks",
        says: "above the mesh no algorithm reads a rank's number in the job",
        place: ranks::known_by_place,
        find: ranks::job_ranks,
    },
    Rule {
        name: "one way to write sizes",
        says: "bytes are written for people by the crate `words` alone",
        place: places::of_sizes,
        find: places::sizes,
    },
    Rule {
        name: "machine paths",
        says: "no path that exists on one machine only",
        place: places::of_any_machine,
        find: places::machine_paths,
    },
    Rule {
        name: "unsafe places",
        says: "no `unsafe`, and `#![forbid(unsafe_code)]` at the root of the crate",
        place: unsafety::forbidden,
        find: unsafety::places,
    },
    Rule {
        name: "unsafe is explained",
        says: "every `unsafe` block has a `SAFETY:` comment, every `unsafe fn` a `# Safety` section",
        place: rust,
        find: unsafety::explained,
    },
    Rule {
        name: "sources parse",
        says: "a source is read by the parser of the rules of shape",
        place: rust,
        find: sizes::parsed,
    },
    Rule {
        name: "file size",
        says: "at most MAX_LINES lines",
        place: rust,
        find: shape::size,
    },
    Rule {
        name: "document size",
        says: "a document that is read first is short",
        place: shape::limited,
        find: shape::documents,
    },
    Rule {
        name: "file heads",
        says: "opens with `//!` and the one idea of the file",
        place: rust,
        find: shape::heads,
    },
    Rule {
        name: "unfinished code",
        says: "no `todo!`, `unimplemented!`, `dbg!`",
        place: rust,
        find: shape::unfinished,
    },
    Rule {
        name: "verdicts by a clock",
        says: "a limit of time in a test is one that only a hang exceeds",
        place: clocks::place,
        find: clocks::limits,
    },
    Rule {
        name: "circles of folders",
        says: "modules with folders of their own import one another in one direction, a parent and its child being one, unless FOLDER_CIRCLES has a row",
        place: source,
        find: circles::between_folders,
    },
    Rule {
        name: "circles in folders",
        says: "files and modules of one folder that import one another in a circle have a row in CIRCLES, which only shrinks",
        place: source,
        find: circles::inside_folders,
    },
    Rule {
        name: "crate size",
        says: "code lines of a crate, without tests, comments and blanks, are below its ceiling",
        place: source,
        find: sizes::of_crates,
    },
    Rule {
        name: "type size",
        says: "fields of a struct, and functions in all inherent `impl` blocks of a type, are below their ceilings",
        place: source,
        find: sizes::of_types,
    },
    Rule {
        name: "open fields",
        says: "no `pub(crate)` or `pub(super)` field on a type with more than CLOSED_FIELDS fields",
        place: source,
        find: sizes::of_open_fields,
    },
    Rule {
        name: "function size",
        says: "code lines of a function are below its ceiling",
        place: source,
        find: sizes::of_functions,
    },
    Rule {
        name: "equal runs",
        says: "no run of EQUAL_RUN equal lines in two places",
        place: source,
        find: equal::equal,
    },
    Rule {
        name: "named tests exist",
        says: "a file, function or test that is named is in the tree",
        place: docs::documents_and_heads,
        find: docs::named_tests,
    },
    Rule {
        name: "comments say something",
        says: "a doc comment begins with a noun or a verb, not as a question without its verb",
        place: fragments::described,
        find: fragments::fragments,
    },
    Rule {
        name: "words of the field",
        says: "documents, comments and messages use the words of the field; STOP_WORDS of xtask/src/tables.rs lists what is refused",
        place: words::prose_of,
        find: words::stop_list,
    },
    Rule {
        name: "links lead somewhere",
        says: "a link to a file of the tree leads somewhere",
        place: docs::documents,
        find: docs::links,
    },
    Rule {
        name: "walks go on",
        says: "a walk through the tree has at most twelve lines, and no file stands in two of them",
        place: docs::documents,
        find: docs::walks,
    },
    Rule {
        name: "invariants are kept",
        says: "an invariant opens in bold and names a test that checks it",
        place: docs::of_invariants,
        find: docs::invariants,
    },
];

/// Everything that is wrong with the tree; empty when all is well.
pub fn tidy(tree: &Tree) -> Vec<Finding> {
    RULES.iter().flat_map(|r| (r.find)(tree)).collect()
}

/// Whether a path lies in one of these folders or is one of these files.
fn within(path: &str, places: &[&str]) -> bool {
    places.iter().any(|p| path.starts_with(p))
}
