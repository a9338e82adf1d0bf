//! The general limits of shape. What is above one today has a row in `figures.rs` beside this file.

use super::figures;
use crate::ratchet::Ceiling;

/// Folders whose crates have no ceilings: tests, and examples, which are written to be copied.
pub const WITHOUT_SHAPE: &[&str] = &["tests/", "examples/"];

/// Fields up to which a type may show them to its crate.
pub const CLOSED_FIELDS: usize = 5;

/// Equal lines that make a copy.
pub const EQUAL_RUN: usize = 12;

/// Modules with folders of their own, of one folder, that import one another in a circle. A module is one with all below it.
pub const FOLDER_CIRCLES: Ceiling = Ceiling {
    table: "FOLDER_CIRCLES",
    unit: "modules with folders of their own import one another in a circle",
    limit: 1,
    step: 1,
    slack: 0,
    fix: "move what both need below them",
    entries: figures::FOLDER_CIRCLES,
};

/// Files and modules of one folder that import one another in a circle. A module with a folder of its own is one with all below it.
pub const CIRCLES: Ceiling = Ceiling {
    table: "CIRCLES",
    unit: "parts of a folder import one another in a circle",
    limit: 1,
    step: 1,
    slack: 0,
    fix: "move what several of them need into a file that imports none of them",
    entries: figures::CIRCLES,
};

/// Code lines of a crate, without tests, comments and blanks.
pub const CRATE_LINES: Ceiling = Ceiling {
    table: "CRATE_LINES",
    unit: "lines of code",
    limit: 2500,
    step: 250,
    slack: 250,
    fix: "move an idea into a crate of its own",
    entries: figures::CRATE_LINES,
};

/// Fields of a struct.
pub const FIELDS: Ceiling = Ceiling {
    table: "FIELDS",
    unit: "fields",
    limit: 15,
    step: 1,
    slack: 0,
    fix: "put fields that are used together into a type of their own",
    entries: figures::FIELDS,
};

/// Functions of a type in all its inherent `impl` blocks.
pub const METHODS: Ceiling = Ceiling {
    table: "METHODS",
    unit: "methods",
    limit: 25,
    step: 1,
    slack: 2,
    fix: "give a part of its fields a type with its own methods, or make functions of what needs no `self`",
    entries: figures::METHODS,
};

/// Fields that a part of the crate sees, of a struct with more than [`CLOSED_FIELDS`] fields.
pub const OPEN_FIELDS: Ceiling = Ceiling {
    table: "OPEN_FIELDS",
    unit: "`pub(crate)` or `pub(super)` fields on a large type",
    limit: 0,
    step: 1,
    slack: 0,
    fix: "make them private and give the type methods that say what is done",
    entries: figures::OPEN_FIELDS,
};

/// Code lines of a function, its signature included.
pub const FUNCTION_LINES: Ceiling = Ceiling {
    table: "FUNCTION_LINES",
    unit: "lines of code",
    limit: 100,
    step: 1,
    slack: 10,
    fix: "give its steps names",
    entries: figures::FUNCTION_LINES,
};

/// Lines of two files, or of one, that lie in equal runs.
pub const EQUAL_LINES: Ceiling = Ceiling {
    table: "EQUAL_LINES",
    unit: "equal lines in runs of 12 or more",
    limit: 0,
    step: 1,
    slack: 0,
    fix: "write it once",
    entries: figures::EQUAL_LINES,
};
