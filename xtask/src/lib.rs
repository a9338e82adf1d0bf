//! The project's own checks: `cargo xtask tidy` (also a test), `budget`, and `ci`, the one gate.
//!
//! A rule is a function from a [`Tree`] to [`Finding`]s; what it allows lies in [`tables`] as data. Each rule is tested by planting
//! what it must find. [`rules::RULES`] lists them, one sentence each.
//!
//! The rules of shape look at more than the length of a file. They read every source with a parser ([`syntax`]) and follow its paths
//! through re-exports to the file that defines the name ([`modules`]).
//!
//! - Modules with folders of their own never import one another in a circle, except those that `FOLDER_CIRCLES` lists. A module and a
//!   module inside it count as one. Files and modules of one folder may, as far as `CIRCLES` says.
//! - A type with more than five fields shows none of them to its crate: its module answers for what they mean.
//! - Fields and methods of a type, lines of a function and code lines of a crate have one general limit each ([`tables::shape`]). What is
//!   above it has a row in [`tables::figures`] with its own ceiling and the reason. Only an edit of that file raises a ceiling. A row that
//!   is higher than it must be is refused too, so that what was won is kept; a small slack keeps ordinary work from editing the tables.
//! - Twelve equal lines in two places are one thing written twice.
//! - A dependency that no code names is refused, in a crate, in the workspace and in the table of crates.
//!
//! After a merge, `cargo xtask tidy --figures` prints the tables with today's figures. Reasons of rows that stay are kept, rows that are not
//! needed go, and a new row has an empty reason, which `tidy` refuses until a person has written it. Print to another file and move it:
//! the shell empties a file before cargo builds from it. `cargo xtask tidy --why PATH` prints what holds in one file or folder.
#![forbid(unsafe_code)]

pub mod budget;
pub mod faults;
pub mod figures;
pub mod finding;
pub mod fuzz;
pub mod gate;
pub mod lines;
pub mod modules;
pub mod ratchet;
pub mod rules;
pub mod source;
pub mod syntax;
pub mod tables;
pub mod tree;
pub mod why;

pub use finding::Finding;
pub use rules::tidy;
pub use tree::Tree;
