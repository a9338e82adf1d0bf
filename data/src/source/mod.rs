//! A source is a sorted list of files, each one document or one document a line.

mod cargo;
mod csv;
mod globs;
mod json;
mod jsonl;
mod objects;
mod packed;
mod rows;
mod saved;
mod sniff;
mod tables;

pub(crate) use csv::csv;
pub(crate) use globs::inner_extension;
pub(crate) use json::unread_numbers;
pub(crate) use jsonl::text_of_row;
pub(crate) use objects::table_rows;
pub(crate) use packed::{Packing, Tap};
pub(crate) use rows::{JsonRows, LONGEST_LINE, Row, RowError};
pub(crate) use sniff::{HEAD as STRETCH, unreadable_within};
pub(crate) use tables::{arrow, parquet};

use crate::error::{DataError, Result};
use crate::spec::{CargoSource, FilesSource};
use crossweave_files as files;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The form of a file: the way in which it splits into documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The whole file is one document.
    Text,
    /// Every non-blank line is a JSON object with one document.
    JsonLines,
    /// Every element of a JSON list is one document, and so is every object where objects stand over several lines.
    JsonValues,
    /// Every row of comma- or tab-separated values is one document; the first row names the columns.
    Separated(u8),
    /// Every row of a Parquet table is one document.
    Parquet,
    /// Every row of an Arrow table is one document.
    Arrow,
}

/// The field of a row, or the column of a table, that holds a document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column<'a> {
    /// Its name, or the names of fields within fields with dots between them.
    pub(crate) name: &'a str,
    /// Rows in which it is null are left out; else they are errors.
    pub(crate) skip_null: bool,
}

impl Column<'_> {
    /// The usual one.
    pub(crate) const TEXT: Column<'static> = Column {
        name: "text",
        skip_null: false,
    };
}

impl FilesSource {
    /// The column of its documents.
    pub(crate) fn column(&self) -> Column<'_> {
        Column {
            name: &self.text_key,
            skip_null: self.skip_null,
        }
    }
}

/// A file of the corpus. The list's order is the documents' order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceFile {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its form.
    pub(crate) form: Form,
    /// The packing of its bytes.
    pub(crate) packing: Packing,
}

/// The same files as rows of objects, whatever they are called: JSON, or tables that keep types; comma- and tab-separated values are refused.
pub(crate) fn as_rows(all: Vec<SourceFile>) -> Result<Vec<SourceFile>> {
    let row = |file: SourceFile| match file.form {
        Form::Text | Form::JsonLines => Ok(SourceFile {
            form: Form::JsonLines,
            ..file
        }),
        Form::JsonValues | Form::Parquet | Form::Arrow => Ok(file),
        Form::Separated(_) => Err(DataError::Binary {
            path: file.path,
            what: "a table of texts alone, and examples are read from JSON, Parquet and Arrow"
                .into(),
            fix: "write it as .jsonl, for example by to_json of Hugging Face datasets".into(),
        }),
    };
    all.into_iter().map(row).collect()
}

/// Bytes of these files, as they are packed.
pub(crate) fn total_bytes(all: &[SourceFile]) -> Result<u64> {
    all.iter()
        .map(|f| files::len(&f.path).map_err(DataError::io("read", &f.path)))
        .sum()
}

/// Says why a file gives no next row, with its name and place.
pub(crate) fn row_error(e: RowError, file: &SourceFile, field: &str) -> DataError {
    match e {
        RowError::Read(e) => file.packing.broken(&file.path, e),
        RowError::Layout(line, column, reason) => DataError::Json {
            path: file.path.clone(),
            line,
            column,
            reason,
            field: field.into(),
        },
    }
}

/// Files of a text source, in an order that depends on relative names only.
pub(crate) fn list_files(source: &FilesSource, key: &str) -> Result<Vec<SourceFile>> {
    globs::list(source, key)
}

/// Files of a cargo source, sorted by package name, version and path within the package.
pub(crate) fn list_cargo(source: &CargoSource, key: &str) -> Result<Vec<SourceFile>> {
    cargo::list(source, key)
}

/// Reads a whole file.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    files::read(path, files::BULK).map_err(DataError::io("read", path))
}

/// Feeds a file to `eat` in pieces.
pub(crate) fn stream_file(path: &Path, mut eat: impl FnMut(&[u8])) -> Result<()> {
    let (mut file, _) = files::open(path).map_err(DataError::io("open", path))?;
    let mut piece = vec![0; 1 << 17];
    loop {
        match file.read(&mut piece).map_err(DataError::io("read", path))? {
            0 => return Ok(()),
            n => eat(&piece[..n]),
        }
    }
}
