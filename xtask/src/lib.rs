//! The project's own checks: `cargo xtask tidy` (also a test), `budget`, and `ci`, the one gate.
//!
//! A rule is a function from a [`Tree`] to [`Finding`]s; what it allows lies in [`tables`] as data. Each rule is tested by planting
//! what it must find.
#![forbid(unsafe_code)]

pub mod budget;
pub mod gate;
pub mod rules;
pub mod source;
pub mod tables;
pub mod tree;

pub use rules::{Finding, tidy};
pub use tree::Tree;
