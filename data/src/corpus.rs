//! The front door: a description and a cache folder in, batches and a tokenizer out.

use crate::batches::SequenceSource;
use crate::build::{BuildReport, build, total_bytes};
use crate::cache::{Hash, hex};
use crate::error::{DataError, Result};
use crate::given::GivenTokens;
use crate::gpt::{GptDataset, Part};
use crate::indexed::IndexedDataset;
use crate::order::Order;
use crate::progress::Progress;
use crate::source::{list_cargo, list_files};
use crate::spec::{DataSpec, Source, Validation};
use crate::split::{View, split};
use crate::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TRAIN: &str = "data.train";
const VALIDATION: &str = "data.validation";

/// A corpus whose tokens are on disk.
pub struct Corpus {
    tokenizer: Option<Arc<Tokenizer>>,
    train: Side,
    validation: Option<Side>,
    reports: Vec<BuildReport>,
    cache: PathBuf,
}

/// Training or validation data.
enum Side {
    Documents(Part),
    Given(Arc<GivenTokens>),
}

/// Looks at what [`open`] would read, without turning text into tokens: files are there and regular, the tokenizer loads and fits the
/// model, indexes and headers are sound.
///
/// # Errors
/// As [`open`], except what only the text itself can show.
pub fn check(spec: &DataSpec) -> Result<()> {
    let source = |source: &Source, key: &str| match source {
        Source::Files(f) => list_files(f, key)
            .and_then(|files| total_bytes(&files))
            .map(drop),
        Source::Cargo(c) => list_cargo(c, key).map(drop),
        Source::Indexed(prefix) => IndexedDataset::open(prefix).map(drop),
        Source::Given { file, key } => GivenTokens::open(file, key, spec.model_vocab).map(drop),
    };
    source(&spec.train, TRAIN)?;
    if let Validation::Source(s) = &spec.validation {
        source(s, VALIDATION)?;
    }
    let text = matches!(spec.train, Source::Files(_) | Source::Cargo(_));
    let limit = spec.model_vocab.filter(|_| text);
    let tokenizer = spec.tokenizer.as_ref();
    tokenizer.map_or(Ok(()), |t| Tokenizer::open(t, limit).map(drop))
}

/// Opens the corpus of `spec`, tokenising what `cache` does not hold yet.
///
/// # Errors
/// Any [`DataError`]; nothing half-written is left in `cache`.
pub fn open(spec: &DataSpec, cache: &Path, progress: &dyn Progress) -> Result<Corpus> {
    let validation_source = match &spec.validation {
        Validation::Source(source) => Some(source),
        _ => None,
    };
    let is_text = |source: &Source| matches!(source, Source::Files(_) | Source::Cargo(_));
    let text = is_text(&spec.train) || validation_source.is_some_and(is_text);
    // Tokens that are given are held to the model's vocabulary themselves; their tokenizer only has to decode.
    let limit = spec.model_vocab.filter(|_| text);
    let tokenizer = spec
        .tokenizer
        .as_ref()
        .map(|t| Tokenizer::open(t, limit).map(Arc::new))
        .transpose()?;
    let vocab = spec
        .model_vocab
        .or_else(|| tokenizer.as_ref().filter(|_| text).map(|t| t.vocab_size()));
    let mut opening = Opening {
        tokenizer: tokenizer.as_deref(),
        vocab,
        cache,
        progress,
        reports: Vec::new(),
    };

    let (train, mut validation) = opening.side(&spec.train, TRAIN, &spec.validation)?;
    if let Some(source) = validation_source {
        validation = Some(opening.side(source, VALIDATION, &Validation::None)?.0);
    }
    let reports = opening.reports;
    Ok(Corpus {
        tokenizer,
        train,
        validation,
        reports,
        cache: cache.into(),
    })
}

struct Opening<'a> {
    tokenizer: Option<&'a Tokenizer>,
    vocab: Option<usize>,
    cache: &'a Path,
    progress: &'a dyn Progress,
    reports: Vec<BuildReport>,
}

impl Opening<'_> {
    /// Opens `source`, and the part of it that `validation` holds back.
    fn side(
        &mut self,
        source: &Source,
        key: &'static str,
        validation: &Validation,
    ) -> Result<(Side, Option<Side>)> {
        let built = match (source, self.tokenizer) {
            (Source::Given { file, key: tensor }, _) => {
                let held_back = match validation {
                    Validation::Fraction(f) => *f != 0.0,
                    Validation::Split(_) => true,
                    Validation::None | Validation::Source(_) => false,
                };
                if held_back {
                    let reason = "given batches are used as they are and cannot be split";
                    return Err(DataError::setting(
                        key,
                        reason,
                        "give validation batches as a file of their own",
                    ));
                }
                return Ok((
                    Side::Given(Arc::new(GivenTokens::open(file, tensor, self.vocab)?)),
                    None,
                ));
            }
            (Source::Indexed(prefix), _) => crate::build::ready_made(prefix)?,
            (_, Some(tokenizer)) => build(source, key, tokenizer, self.cache, self.progress)?,
            (_, None) => {
                let fix =
                    "set `data.tokenizer` to \"bytes\", \"gpt2\" or {\"file\": \"tokenizer.json\"}";
                return Err(DataError::setting(
                    "data.tokenizer",
                    "text needs a tokenizer",
                    fix,
                ));
            }
        };
        self.reports.push(built.report);
        let set = Arc::new(built.set);
        let (train, held_back) = split(&set, validation)?;
        let held_back_key = match validation {
            Validation::Fraction(_) => "data.validation_fraction",
            Validation::Split(_) => "data.split",
            Validation::None | Validation::Source(_) => VALIDATION,
        };
        let part = |view: View, key| {
            let (set, vocab, view) = (set.clone(), self.vocab, Arc::new(view));
            Side::Documents(Part {
                set,
                view,
                hash: built.hash,
                key,
                vocab,
            })
        };
        Ok((
            part(train, key),
            held_back.map(|view| part(view, held_back_key)),
        ))
    }
}

impl Corpus {
    /// The tokenizer, to encode prompts and decode samples.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// Number of ids of the tokenizer; the least a model of this corpus must embed.
    pub fn vocab_size(&self) -> Option<usize> {
        self.tokenizer.as_ref().map(|t| t.vocab_size())
    }

    /// What opening took, for training and then validation; empty for given batches.
    pub fn reports(&self) -> &[BuildReport] {
        &self.reports
    }

    /// Predictions in a row when the data prescribe them: `T - 1` of given batches.
    pub fn sequence_len(&self) -> Option<usize> {
        match &self.train {
            Side::Documents(_) => None,
            Side::Given(given) => Some(given.row_len() - 1),
        }
    }

    /// Rows of a step when the data prescribe them: `B` of given batches.
    pub fn fixed_batch(&self) -> Option<u64> {
        match &self.train {
            Side::Documents(_) => None,
            Side::Given(given) => given.fixed_batch(),
        }
    }

    /// Steps there are when the data prescribe them.
    pub fn fixed_steps(&self) -> Option<u64> {
        match &self.train {
            Side::Documents(_) => None,
            Side::Given(given) => Some(given.steps()),
        }
    }

    /// Tokens to train on.
    pub fn train_tokens(&self) -> u64 {
        self.train.tokens()
    }

    /// Tokens held back.
    pub fn validation_tokens(&self) -> u64 {
        self.validation.as_ref().map_or(0, Side::tokens)
    }

    /// A name of the training data, to tell a resumed run that they changed. It follows from tokenizer and text; of a
    /// ready-made dataset it follows from the index only, and given batches have none.
    pub fn fingerprint(&self) -> Option<String> {
        match &self.train {
            Side::Documents(part) => {
                let hash: &Hash = &part.hash;
                Some(hex(hash))
            }
            Side::Given(_) => None,
        }
    }

    /// Training rows of `seq_len + 1` tokens: at least `samples` of them, in the order of `seed`. Given batches come as
    /// they are.
    ///
    /// # Errors
    /// Fewer tokens than one row; a damaged stored order.
    pub fn train(
        &self,
        seq_len: usize,
        samples: u64,
        seed: u64,
    ) -> Result<Arc<dyn SequenceSource>> {
        self.train
            .rows(Order::Shuffled(seed), seq_len, samples, &self.cache)
    }

    /// Validation rows in the corpus's order, one pass; `None` when nothing is held back.
    ///
    /// # Errors
    /// Fewer tokens than one row; a damaged stored order.
    pub fn validation(&self, seq_len: usize) -> Result<Option<Arc<dyn SequenceSource>>> {
        self.validation
            .as_ref()
            .map(|side| side.rows(Order::Sequential, seq_len, 0, &self.cache))
            .transpose()
    }
}

impl Side {
    fn tokens(&self) -> u64 {
        match self {
            Side::Documents(part) => part.view.tokens,
            Side::Given(given) => given.sequences() * given.row_len() as u64,
        }
    }

    fn rows(
        &self,
        order: Order,
        seq_len: usize,
        samples: u64,
        cache: &Path,
    ) -> Result<Arc<dyn SequenceSource>> {
        Ok(match self {
            Side::Documents(part) => {
                Arc::new(GptDataset::open(part, order, seq_len, samples, cache)?)
            }
            Side::Given(given) => given.clone(),
        })
    }
}
