//! One shape for every complaint: where it is, which key, what is wrong, and how to mend it.
//!
//! A config usually has more than one mistake, so the crate collects them: every public
//! function that can fail returns [`Errors`], never the first problem alone.

use std::fmt;

/// Where in the input a key or a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// A place in the config file; both numbers count from 1, columns in characters.
    File {
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        col: u32,
    },
    /// A `--set key=value` given on the command line; holds its text.
    Set(String),
    /// Nowhere in the input: the problem is that something is missing, or lies between keys.
    Whole,
}

/// One problem of a config, printed as `file:line:col: path.to.key: what; fix: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the config file, as the caller gave it.
    pub file: String,
    /// Where the key or value stands.
    pub at: At,
    /// Dotted path of the key; empty when the whole file is meant.
    pub path: String,
    /// What is wrong, with the value wanted and the value got.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            At::File { line, col } => write!(f, "{}:{line}:{col}: ", self.file)?,
            At::Set(text) => write!(f, "--set {text}: ")?,
            At::Whole => write!(f, "{}: ", self.file)?,
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.what)?;
        if !self.fix.is_empty() {
            write!(f, "; fix: {}", self.fix)?;
        }
        Ok(())
    }
}

/// All problems found in one go, in the order of the file; never empty when returned as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Problem>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}
