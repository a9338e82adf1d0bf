//! What is wrong with a template, or went wrong while it was rendered, with its line.

/// An error of a template. Printed as `line 3: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    what: String,
    line: Option<u32>,
}

/// The most characters of an error: a template can raise one of any length.
const MOST: usize = 1000;

/// The result of everything that can fail in a template.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error whose line is not known yet; the innermost statement or expression around it adds its own.
    pub(crate) fn new(what: impl Into<String>) -> Error {
        let mut what = what.into();
        if let Some((at, _)) = what.char_indices().nth(MOST) {
            what.truncate(at);
            what.push('…');
        }
        Error { what, line: None }
    }

    /// The same error at `line`, unless it has a line.
    pub(crate) fn at(mut self, line: u32) -> Error {
        self.line.get_or_insert(line);
        self
    }

    /// The 1-based line of the template.
    pub fn line(&self) -> Option<u32> {
        self.line
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Error {}

/// `Err` with these words.
pub(crate) fn fail<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::new(what))
}
