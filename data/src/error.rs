//! Every way reading, building or indexing a corpus can fail, each with the place and the fix in its words.

use std::path::{Path, PathBuf};

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, DataError>;

/// A failure of the data layer. The text names the key or file concerned and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A glob of the configuration selected no file.
    #[error("`{key}`: the glob `{glob}` matches no file (looked under {base}); fix: {fix}")]
    NoMatch {
        /// Configuration key that holds the glob, for example `data.train`.
        key: String,
        /// The glob as written.
        glob: String,
        /// Folder relative globs start from.
        base: PathBuf,
        /// The remedy.
        fix: String,
    },
    /// A value of the configuration cannot be used.
    #[error("`{key}`: {reason}; fix: {fix}")]
    Setting {
        /// Configuration key.
        key: String,
        /// The fault, with the offending value.
        reason: String,
        /// The remedy.
        fix: String,
    },
    /// The operating system refused to read or write a file.
    #[error(
        "cannot {action} {path}: {source}; fix: {}",
        crossweave_files::fix(source)
    )]
    Io {
        /// The action that failed, as a verb ("read", "write").
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A row of a file of JSON is not an object with the wanted text field.
    #[error(
        "{path}:{line}:{column}: {reason}; fix: make every row one JSON object whose \"{field}\" is a string, \
         or name another field with `data.field`"
    )]
    Json {
        /// The file.
        path: PathBuf,
        /// 1-based line.
        line: u64,
        /// 1-based column.
        column: u64,
        /// The fault there.
        reason: String,
        /// The field looked for.
        field: String,
    },
    /// A line of a JSON-lines file is no example.
    #[error("{path}:{line}: {reason}; fix: {fix}")]
    Example {
        /// The `.jsonl` file.
        path: PathBuf,
        /// 1-based line.
        line: u64,
        /// The fault there.
        reason: String,
        /// The remedy.
        fix: String,
    },
    /// A file that is no text, or packed text that cannot be unpacked.
    #[error("{path}: is {what}; fix: {fix}")]
    Binary {
        /// The file.
        path: PathBuf,
        /// The kind of file that it is.
        what: String,
        /// The remedy.
        fix: String,
    },
    /// A table without the column of text.
    #[error(
        "{path}: {reason}; fix: name a column of strings that has a value in every row with `data.field`"
    )]
    Table {
        /// The `.parquet` or `.arrow` file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A tokenizer file cannot be loaded or used.
    #[error("tokenizer {path}: {reason}; fix: {fix}")]
    Tokenizer {
        /// The `tokenizer.json`, or the name of a built-in tokenizer.
        path: PathBuf,
        /// The fault.
        reason: String,
        /// The remedy.
        fix: String,
    },
    /// A binary file breaks its format.
    #[error("{path}: corrupt at byte {offset}: {reason}; fix: {fix}")]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Byte offset of the field that is wrong.
        offset: u64,
        /// The value that was found and the one that was expected.
        reason: String,
        /// The remedy.
        fix: String,
    },
    /// A source file changed between hashing and tokenising.
    #[error(
        "{path}: changed while the corpus was being built; fix: run again once nothing writes to it"
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A locked package is not unpacked in the cargo home.
    #[error(
        "`{key}`: package {package} is not unpacked under {registry}; fix: run `cargo fetch --locked` in the folder of {lock}"
    )]
    PackageMissing {
        /// Configuration key of the source.
        key: String,
        /// `name-version`.
        package: String,
        /// `CARGO_HOME/registry/src`.
        registry: PathBuf,
        /// The lock file.
        lock: PathBuf,
    },
    /// The corpus cannot fill one sequence.
    #[error(
        "`{key}`: {tokens} tokens cannot fill one sequence of {seq_len} (needs {needed}: one more for the last label); \
         fix: add text, shorten the sequence length, or change the train/validation split"
    )]
    TooFewTokens {
        /// Configuration key of the part that is short.
        key: String,
        /// Tokens there are.
        tokens: u64,
        /// Tokens one sequence needs, `seq_len + 1`.
        needed: u64,
        /// Sequence length asked for.
        seq_len: u64,
    },
    /// There are more data-parallel ranks than sequences to hand out.
    #[error(
        "`{key}`: {ranks} ranks but only {sequences} sequences {of_what}; fix: use at most {sequences} ranks, \
         a larger batch or corpus, or shorter sequences"
    )]
    MoreRanksThanSequences {
        /// Configuration key of the short side.
        key: String,
        /// Data-parallel ranks.
        ranks: u64,
        /// Sequences available.
        sequences: u64,
        /// "in the corpus" or "in a global batch".
        of_what: &'static str,
    },
    /// The global batch cannot be divided as asked.
    #[error(
        "global batch {global_batch} does not divide over {ranks} ranks x {accumulation} micro-batches; \
         fix: choose a global batch that is a multiple of {unit}"
    )]
    Uneven {
        /// Sequences in a global batch.
        global_batch: u64,
        /// Data-parallel ranks.
        ranks: u64,
        /// Micro-batches per rank and step.
        accumulation: u64,
        /// `ranks * accumulation`.
        unit: u64,
    },
    /// A row that a program hands in cannot be used.
    #[error(
        "sample {sample} of the data source: {why}; fix: hand in the ids of one row, of the length and vocabulary that the job was begun with"
    )]
    Row {
        /// Its number in the source, from 0.
        sample: u64,
        /// The fault.
        why: String,
    },
    /// More steps are asked for than a file of given batches holds.
    #[error(
        "{path}: step {step} asked for but \"{tensor}\" holds {steps} steps; fix: run at most {steps} steps"
    )]
    PastEnd {
        /// The safetensors file.
        path: PathBuf,
        /// Tensor name.
        tensor: String,
        /// 0-based step asked for.
        step: u64,
        /// Steps in the file.
        steps: u64,
    },
    /// A token id is outside the vocabulary.
    #[error(
        "{path}: token {token} at {place} is outside the vocabulary of {vocab}; fix: raise `model.vocab_size` above it, \
         or tokenise again with the tokenizer of this model"
    )]
    TokenOutOfRange {
        /// The file that holds the token.
        path: PathBuf,
        /// The place in it: "step s, row r, column c" or "document d, token t".
        place: String,
        /// The id; negative ids occur in signed files.
        token: i64,
        /// Size of the vocabulary.
        vocab: u64,
    },
}

impl DataError {
    /// Wraps a system error with the file and the verb.
    pub(crate) fn io(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> DataError {
        let path = path.to_path_buf();
        move |source| DataError::Io {
            action,
            path,
            source,
        }
    }

    /// A setting that cannot be used.
    pub(crate) fn setting(
        key: &str,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> DataError {
        DataError::Setting {
            key: key.into(),
            reason: reason.into(),
            fix: fix.into(),
        }
    }
}
