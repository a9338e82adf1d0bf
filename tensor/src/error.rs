//! What can go wrong above the HAL and below the engine.

use crossweave_hal as hal;

/// A failed op, block or dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// The HAL refused or failed.
    Hal(hal::Error),
    /// Shapes, dtypes or parameters do not fit: op and sentence.
    Shape(String),
    /// The sharding types of a block are wrong (found in the dry run): one sentence each.
    Spmd(Vec<String>),
    /// Files that hold offloaded state cannot be made, read or written: the key that names their folder, the file, the fix.
    Storage(String),
}

/// Result of tensor work.
pub type Result<T> = std::result::Result<T, Error>;

impl From<hal::Error> for Error {
    fn from(e: hal::Error) -> Error {
        Error::Hal(e)
    }
}
impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Hal(e) => write!(f, "{e}"),
            Error::Shape(s) | Error::Storage(s) => f.write_str(s),
            Error::Spmd(v) => write!(f, "sharding types: {}", v.join("; ")),
        }
    }
}
impl std::error::Error for Error {}

/// `Err(Shape)` from a sentence.
pub fn shape_error<T>(s: impl Into<String>) -> Result<T> {
    Err(Error::Shape(s.into()))
}
