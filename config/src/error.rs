//! One shape for every complaint: where it is, which key, what is wrong, and how to mend it.
//!
//! A config usually has more than one mistake, so the crate collects them: every public
//! function that can fail returns [`Errors`], never the first problem alone.

use std::fmt;

/// The place of a key or a value in the input.
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
    /// The place of the key or value.
    pub at: At,
    /// Dotted path of the key; empty when the whole file is meant.
    pub path: String,
    /// The fault, with the value wanted and the value got.
    pub what: String,
    /// The remedy.
    pub fix: String,
}

/// Characters that a message quotes of anything; a key or a value of megabytes must not become the message.
const MOST: usize = 1000;

fn clip(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(MOST) {
        None => text.into(),
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()).into(),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            At::File { line, col } => write!(f, "{}:{line}:{col}: ", self.file)?,
            At::Set(text) => write!(f, "--set {}: ", clip(text))?,
            At::Whole => write!(f, "{}: ", self.file)?,
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", clip(&self.path))?;
        }
        write!(f, "{}", clip(&self.what))?;
        if !self.fix.is_empty() {
            write!(f, "; fix: {}", clip(&self.fix))?;
        }
        Ok(())
    }
}

/// Problems that are shown at once; further ones are counted.
pub(crate) const SHOWN: usize = 20;

/// All problems found in one go, in the order of the file; never empty when returned as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Problem>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(SHOWN).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n… and {more} more; fix: mend these first"),
        }
    }
}

impl std::error::Error for Errors {}
