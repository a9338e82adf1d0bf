//! What a rule reports.

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

/// A finding at a line.
pub fn at(path: &str, line: usize, text: impl Into<String>) -> Finding {
    Finding {
        path: path.to_string(),
        line,
        text: text.into(),
    }
}

/// The lines on which a test found something.
#[cfg(test)]
pub fn lines(found: &[Finding]) -> Vec<(&str, usize)> {
    found.iter().map(|f| (f.path.as_str(), f.line)).collect()
}
