//! One document or example on its way from its file to tokens.

use crate::cache::Hash;
use crate::error::{DataError, Result};
use crate::example::ExampleReader;
use crate::index_file::TokenType;
use crate::progress::Progress;
use crate::source::{
    Column, LONGEST_LINE, Packing, Row, read_file, text_of_row, unreadable_within,
};
use crate::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The way from a row of a file to samples.
#[derive(Clone, Copy)]
pub(crate) enum Recipe<'a> {
    /// A document, the text under this field.
    Field(Column<'a>),
    /// An example.
    Examples(&'a ExampleReader),
}

impl<'a> Recipe<'a> {
    /// The column of text of a table.
    pub(crate) fn column(self) -> Column<'a> {
        match self {
            Recipe::Field(column) => column,
            Recipe::Examples(_) => Column::TEXT,
        }
    }
    /// The field of text, for errors.
    pub(crate) fn field(self) -> &'a str {
        match self {
            Recipe::Field(column) => column.name,
            Recipe::Examples(_) => "messages",
        }
    }
}

/// A document on its way to tokens.
pub(crate) enum Task {
    /// A whole file, read when its turn comes so that reading is parallel too.
    File {
        path: PathBuf,
        hash: Hash,
        packing: Packing,
    },
    /// A part of a file that is tokenised in parts.
    Part {
        path: PathBuf,
        /// The byte of the text at which it begins.
        at: u64,
        bytes: Vec<u8>,
        last: bool,
    },
    /// The text of a row of a table.
    Cell { path: PathBuf, text: String },
    /// A row of JSON.
    Row { path: PathBuf, row: Row },
}

/// The kinds of odd documents that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Bytes that are not UTF-8 were replaced.
    Lossy,
    /// A row of null, which is left out.
    Null,
}

/// A document as it goes into the `.bin`.
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    /// One byte a token, of examples.
    pub(crate) counted: Vec<u8>,
    pub(crate) tokens: u32,
    pub(crate) odd: Option<Odd>,
    /// True if the next one goes on with it.
    pub(crate) goes_on: bool,
}

impl Task {
    pub(crate) fn run(
        self,
        recipe: Recipe<'_>,
        tokenizer: &Tokenizer,
        token_type: TokenType,
        progress: &dyn Progress,
    ) -> Result<Document> {
        let (mut first, mut last) = (true, true);
        let (path, text, size) = match self {
            Task::File {
                path,
                hash,
                packing,
            } => {
                let bytes = read_file(&path)?;
                let mut hasher = Sha256::new();
                hasher.update(&bytes);
                check_unchanged(&path, hasher, &hash)?;
                let size = bytes.len() as u64;
                let text = match packing {
                    Packing::Plain => bytes,
                    _ => unpacked(bytes, packing, &path)?,
                };
                if let Some(what) = unreadable_within(&text, 0) {
                    let fix = "save it as UTF-8 text, or exclude it (data.exclude)".into();
                    return Err(DataError::Binary { path, what, fix });
                }
                // A byte order mark belongs to the encoding, not to the text.
                let text = match text.strip_prefix(b"\xef\xbb\xbf") {
                    Some(text) => text.to_vec(),
                    None => text,
                };
                (path, text, size)
            }
            Task::Part {
                path,
                at,
                bytes,
                last: ends,
            } => {
                (first, last) = (at == 0, ends);
                if let Some(what) = unreadable_within(&bytes, at) {
                    let fix = "save it as UTF-8 text, or exclude it (data.exclude)".into();
                    return Err(DataError::Binary { path, what, fix });
                }
                let mark = bytes.starts_with(b"\xef\xbb\xbf") && first;
                let text = bytes[3 * usize::from(mark)..].to_vec();
                // Its bytes were counted as they were read.
                (path, text, 0)
            }
            Task::Cell { path, text } => {
                let size = text.len() as u64;
                (path, text.into_bytes(), size)
            }
            Task::Row { path, row } => {
                let size = row.bytes.len() as u64;
                let column = match recipe {
                    Recipe::Field(column) => column,
                    Recipe::Examples(reader) => {
                        let example = reader.of_line(&row.bytes, tokenizer, &path, row.line)?;
                        let null = example.is_none() && !row.is_blank();
                        let (ids, counted) =
                            example.map_or((vec![], vec![]), |e| (e.tokens, e.counted));
                        let marks = counted.into_iter().map(u8::from).collect();
                        progress.advance(size);
                        return Ok(Document {
                            odd: null.then_some(Odd::Null),
                            ..document(ids, marks, token_type, &path)?
                        });
                    }
                };
                let Some(text) = text_of_row(&row, column, &path)? else {
                    progress.advance(size);
                    return Ok(Document {
                        odd: (!row.is_blank()).then_some(Odd::Null),
                        ..document(vec![], vec![], token_type, &path)?
                    });
                };
                (path, text.into_bytes(), size)
            }
        };
        let encoded = tokenizer.encode(&text)?;
        let mut ids = encoded.tokens;
        // A document of nothing would train the model to end at once.
        if !ids.is_empty() {
            ids = tokenizer.bordered(ids, first, last);
        }
        progress.advance(size);
        Ok(Document {
            odd: encoded.lossy.then_some(Odd::Lossy),
            goes_on: !last,
            ..document(ids, vec![], token_type, &path)?
        })
    }
}

/// The tokens as they lie on disk.
fn document(
    ids: Vec<u32>,
    counted: Vec<u8>,
    token_type: TokenType,
    path: &Path,
) -> Result<Document> {
    let tokens = u32::try_from(ids.len())
        .ok()
        .filter(|&n| n <= i32::MAX as u32)
        .ok_or_else(|| {
            let reason = format!(
                "{} holds a document of {} tokens, more than the format can",
                path.display(),
                ids.len()
            );
            DataError::setting(
                "data.train",
                reason,
                "split the document into files below 2 GiB",
            )
        })?;
    let mut bytes = Vec::with_capacity(ids.len() * token_type.size() as usize);
    for id in ids {
        match token_type {
            TokenType::U16 => bytes.extend_from_slice(&(id as u16).to_le_bytes()),
            _ => bytes.extend_from_slice(&id.to_le_bytes()),
        }
    }
    Ok(Document {
        bytes,
        counted,
        tokens,
        odd: None,
        goes_on: false,
    })
}

/// The document inside packed bytes; a few of these may hold more than any memory.
fn unpacked(bytes: Vec<u8>, packing: Packing, path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let inside = packing.unpack(std::io::Cursor::new(bytes));
    inside
        .and_then(|from| from.take(LONGEST_LINE + 1).read_to_end(&mut text))
        .map_err(|e| packing.broken(path, e))?;
    if text.len() as u64 > LONGEST_LINE {
        return Err(too_long(path));
    }
    Ok(text)
}

/// The error of a packed file with one document beyond what is read.
pub(crate) fn too_long(path: &Path) -> DataError {
    let reason = format!(
        "{} holds one document of more than {LONGEST_LINE} bytes",
        path.display()
    );
    let fix = "split it into documents, a line of .jsonl each";
    DataError::setting("data.train", reason, fix)
}

/// The error of a text with so many bytes that belong to one part.
pub(crate) fn uncut(path: &Path, most: usize) -> DataError {
    let reason = format!(
        "{} holds {most} bytes and more without a line that begins with a letter or digit, or a space between letters",
        path.display()
    );
    let fix = "break it into lines, or use data.tokenizer \"bytes\"";
    DataError::setting("data.train", reason, fix)
}

pub(crate) fn check_unchanged(path: &Path, hasher: Sha256, hash: &Hash) -> Result<()> {
    let now: Hash = hasher.finalize().into();
    if now == *hash {
        Ok(())
    } else {
        Err(DataError::Changed { path: path.into() })
    }
}
