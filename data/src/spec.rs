//! What a user can ask of the data layer, as plain values; the configuration crate owns the JSON form.

use std::path::PathBuf;

/// A corpus: where its tokens come from, how they are made, and which of them are held back for validation.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    /// Training text or tokens (`data.train`, `data.tokens`).
    pub train: Source,
    /// The data that are held back.
    pub validation: Validation,
    /// The form of the rows of files, where they are examples and not documents.
    pub examples: Option<Examples>,
    /// The objective.
    pub objective: Objective,
    /// The tokenizer. Sources that already are tokens need none; one that is given decodes their
    /// samples.
    pub tokenizer: Option<TokenizerSpec>,
    /// `model.vocab_size` when the user fixed it; token ids are held to it, and the end-of-document id of the bytes
    /// tokenizer is left out by default when it would not fit.
    pub model_vocab: Option<usize>,
}

/// Examples of fine-tuning: each a sample of its own, of which some tokens count in the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Examples {
    /// The form of a line.
    pub rows: Rows,
    /// Every token counts, and not only those of the completion or the assistant.
    pub all: bool,
    /// The Jinja template for messages; unset: the one in the tokenizer's folder.
    pub template: Option<PathBuf>,
    /// Rows in which what they are read from is null are left out and counted; else they are errors.
    pub skip_null: bool,
    /// A row holds several examples, as many as fit, which do not see each other.
    pub pack: bool,
    /// An example that is longer than a row is an error; else it is cut and counted.
    pub refuse_long: bool,
}

/// The forms of a line of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// `prompt` and `completion`.
    PromptCompletion,
    /// `messages`, each with `role` and `content`.
    Messages,
    /// `conversations`, each with `from` and `value`.
    ShareGpt,
    /// `instruction`, `input` and `output`.
    Alpaca,
    /// `input_ids`, and `labels` where not all of them count.
    Tokens,
}

/// The source of documents or tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Text and JSON-lines files picked by globs.
    Files(FilesSource),
    /// The Rust sources of locked packages as cargo unpacked them.
    Cargo(CargoSource),
    /// A ready-made Megatron dataset: the path without `.bin`/`.idx`.
    Indexed(PathBuf),
    /// Batches given as they are: a `[steps, B, T]` integer tensor in a safetensors file.
    Given {
        /// The safetensors file.
        file: PathBuf,
        /// Name of the tensor.
        key: String,
        /// Name of the tensor of labels; unset: `labels` where the file has one.
        labels: Option<String>,
    },
    /// Several sources of documents, each with its share of the samples.
    Mixture(Vec<Weighted>),
}

/// A source of a mixture: neither given batches nor a mixture itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighted {
    /// Its documents.
    pub source: Source,
    /// Its share of the samples, over the sum of all weights; above 0.
    pub weight: f64,
}

impl Source {
    /// Returns true if text must be turned into tokens.
    pub(crate) fn is_text(&self) -> bool {
        match self {
            Source::Files(_) | Source::Cargo(_) => true,
            Source::Indexed(_) | Source::Given { .. } => false,
            Source::Mixture(parts) => parts.iter().any(|p| p.source.is_text()),
        }
    }
}

/// Files picked by globs. Rows (lines or a list of JSON objects, tables) are a document each; any other file is one document.
#[derive(Clone, Debug, PartialEq)]
pub struct FilesSource {
    /// Globs (`*`, `**`, `?`, `[..]`); each must match at least one file.
    pub globs: Vec<String>,
    /// Files matching one of these are left out.
    pub exclude: Vec<String>,
    /// Field of a JSON-lines object that holds the text, usually `text`; with dots, a field within fields.
    pub text_key: String,
    /// Rows in which it is null are left out and counted; else they are errors.
    pub skip_null: bool,
    /// Folder that relative globs start from.
    pub base: PathBuf,
}

impl FilesSource {
    /// Globs relative to `base`, the field named `text`, nothing excluded.
    pub fn new(
        base: impl Into<PathBuf>,
        globs: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            globs: globs.into_iter().map(Into::into).collect(),
            exclude: Vec::new(),
            text_key: "text".into(),
            skip_null: false,
            base: base.into(),
        }
    }
}

/// The sources of packages named in a `Cargo.lock`, read from cargo's registry folder.
#[derive(Clone, Debug, PartialEq)]
pub struct CargoSource {
    /// The lock file.
    pub lock: PathBuf,
    /// Cargo's home folder (`CARGO_HOME`, usually `~/.cargo`), resolved by the caller.
    pub cargo_home: PathBuf,
    /// `name` or `name@version` of the packages to take; all registry packages of the lock when empty. Cargo unpacks
    /// only what a platform builds, so a corpus that shall be the same everywhere names its packages.
    pub packages: Vec<String>,
    /// File name extensions to take, usually `rs`.
    pub extensions: Vec<String>,
}

/// The part that is held back from training.
#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    /// Nothing.
    None,
    /// A source of its own.
    Source(Source),
    /// This share of the tokens, `0 < f < 1`: whole documents chosen at random by a fixed seed, the last one cut so that
    /// the share is exact.
    Fraction(f64),
    /// Megatron's `split`, for example `969,30,1`: contiguous ranges of documents for train, validation and test.
    Split(String),
}

/// A tokenizer and what it puts between documents.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerSpec {
    /// The kind of tokenizer.
    pub kind: TokenizerKind,
    /// Says if each document ends in the end-of-document id. Unset means: when the tokenizer has
    /// one and it fits the model's vocabulary, so that a model of 256 ids trains on plain bytes; a
    /// default that the user did not write belongs here as unset.
    pub append_eod: Option<bool>,
    /// The end-of-document token of a `tokenizer.json`, when it is not the `eos_token` of its folder.
    pub eod_token: Option<String>,
    /// Says if texts begin with what the tokenizer begins one with. Unset means: as its own file
    /// does.
    pub add_bos: Option<bool>,
}

impl TokenizerSpec {
    /// A tokenizer with the defaults for everything else.
    pub fn new(kind: TokenizerKind) -> Self {
        Self {
            kind,
            append_eod: None,
            eod_token: None,
            add_bos: None,
        }
    }
}

/// The kinds of tokenizers.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerKind {
    /// One token a byte; id 256 ends a document.
    Bytes,
    /// GPT-2's byte-pair encoding with its vocabulary built in; id 50256 ends a document.
    Gpt2,
    /// A Hugging Face `tokenizer.json`.
    HfFile(PathBuf),
}

/// The objectives: the tokens that are predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Objective {
    /// The next token.
    #[default]
    Causal,
    /// Tokens that are hidden: of those chosen 80 % are replaced by the mask, 10 % by another token, and 10 % stay.
    MaskedLm(Masking),
    /// Spans that are cut out: an encoder reads the rest, a decoder writes the spans.
    SpanCorruption(Spans),
    /// The next token of a text in which images stand.
    Captions(Images),
}

/// Images of given batches, and how they stand in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// The token that stands for a feature of an image.
    pub token: u32,
    /// Features of an image: places of the token that it takes.
    pub features: u64,
    /// Colours, and pixels of a side and of a patch's side.
    pub size: [u64; 3],
}

/// The choice of the tokens that are hidden.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Masking {
    /// Share of the tokens.
    pub share: f64,
    /// The token that stands for a hidden one; unset: the tokenizer's, else the first id behind its vocabulary.
    pub mask: Option<u32>,
    /// Samples are pairs of texts, and whether the second follows the first is predicted too.
    pub pairs: Option<Pairs>,
}

/// The places of two texts in a sample. Ids that are unset are the tokenizer's, else those behind
/// that of the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// The token before the first.
    pub first: Option<u32>,
    /// The token behind each.
    pub end: Option<u32>,
}

/// The choice of the spans that are cut out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spans {
    /// Share of the tokens.
    pub share: f64,
    /// Mean length of a span.
    pub mean: f64,
    /// The token that stands for the first span; those of the others descend from it. Unset: the tokenizer's `<extra_id_0>`, else the last of
    /// 100 ids behind its vocabulary.
    pub first: Option<u32>,
    /// The token that a decoder begins with.
    pub start: u32,
    /// The token that it reads in place of a label that does not count.
    pub fill: u32,
}
