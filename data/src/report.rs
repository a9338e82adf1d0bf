//! What a built corpus is: how much of it there is, and what a user should know of its text.

use crate::batches::Remark;
use crate::indexed::IndexedDataset;
use crate::source::{Form, SourceFile, inner_extension};
use std::path::{Path, PathBuf};

/// The cost of making a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildReport {
    /// True if text was tokenised; false when the cache or the user already had the tokens.
    pub built: bool,
    /// Documents of the dataset.
    pub documents: u64,
    /// Tokens of the dataset, end-of-document ids included.
    pub tokens: u64,
    /// Bytes of the source files; for a ready-made dataset, of its `.bin`.
    pub bytes: u64,
    /// Source files.
    pub files: u64,
    /// Documents in which bytes that are not UTF-8 were replaced; known only when `built`.
    pub lossy_documents: u64,
    /// Rows of null that were left out; known only when `built`.
    pub null_rows: u64,
    /// Source files that are read as text though their names say that they hold rows, and the first of them.
    pub rows_as_text: Option<(u64, PathBuf)>,
    /// The dataset, without `.bin`/`.idx`.
    pub prefix: PathBuf,
}

impl BuildReport {
    /// The report of a dataset that was made elsewhere.
    pub(crate) fn of_ready_made(set: &IndexedDataset, prefix: &Path) -> BuildReport {
        BuildReport {
            built: false,
            documents: set.documents() as u64,
            tokens: set.tokens(),
            bytes: set.tokens() * set.token_type().size(),
            files: 1,
            lossy_documents: 0,
            null_rows: 0,
            rows_as_text: None,
            prefix: prefix.into(),
        }
    }
    /// Returns the remarks about the text that a user should read.
    pub(crate) fn remarks(&self, key: &str) -> Vec<Remark> {
        let mut said: Vec<Remark> = rows_remark(key, self.rows_as_text.as_ref())
            .into_iter()
            .collect();
        if self.lossy_documents > 0 {
            said.push(Remark::Warning(format!(
                "{key}: {} of {} documents have bytes that are not UTF-8, which are replaced by U+FFFD; fix: save them as UTF-8, or exclude them (data.exclude)",
                self.lossy_documents, self.documents
            )));
        }
        if self.null_rows > 0 {
            said.push(Remark::Note(format!(
                "{key}: {} rows of null are left out (data.on_null)",
                self.null_rows
            )));
        }
        said
    }
}

/// Files of text whose names say that they hold rows: how many, and the first.
pub(crate) fn rows_as_text(files: &[SourceFile]) -> Option<(u64, PathBuf)> {
    let rows = |f: &&SourceFile| f.form == Form::Text && inner_extension(&f.path) == "json";
    let mut found = files.iter().filter(rows);
    let first = found.next()?.path.clone();
    Some((1 + found.count() as u64, first))
}

/// The warning about them.
pub(crate) fn rows_remark(key: &str, found: Option<&(u64, PathBuf)>) -> Option<Remark> {
    let (count, first) = found?;
    let which = match count {
        1 => format!("{} is", first.display()),
        n => format!("{} and {} more are", first.display(), n - 1),
    };
    Some(Remark::Warning(format!(
        "{key}: {which} read as plain text, with all brackets and quotes, since it holds no rows; fix: to train on rows, write an object a line, or a list of objects"
    )))
}
