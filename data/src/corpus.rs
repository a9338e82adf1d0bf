//! The front door: a description and a cache folder in, batches and a tokenizer out.

use crate::batches::{Remark, SequenceSource};
use crate::build::build;
use crate::cache::{Hash, hex};
use crate::error::{DataError, Result};
use crate::example::{ExampleReader, READ};
use crate::examples::{ExampleRows, ExampleSet};
use crate::given::GivenTokens;
use crate::gpt::{GptDataset, Part};
use crate::indexed::{IndexedDataset, pair};
use crate::mixture::{Blend, Mixture, shares};
use crate::objective::{Objective, Task};
use crate::order::Order;
use crate::pairs::Columns;
use crate::progress::Progress;
use crate::report::{BuildReport, rows_as_text, rows_remark};
use crate::rows::{DataSource, ProgramRows};
use crate::source::{
    Form, JsonRows, Row, SourceFile, as_rows, list_cargo, list_files, row_error, table_rows,
    total_bytes,
};
use crate::spec::{DataSpec, Rows, Source, Validation, Weighted};
use crate::split::{View, split};
use crate::tokenizer::Tokenizer;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TRAIN: &str = "data.train";
const VALIDATION: &str = "data.validation";
/// Bytes of a file of examples that are looked at before all of it is read.
const LONGEST_TRIAL: u64 = 1 << 24;

/// A corpus whose tokens are on disk.
pub struct Corpus {
    tokenizer: Option<Arc<Tokenizer>>,
    task: Task,
    train: Side,
    validation: Option<Side>,
    reports: Vec<BuildReport>,
    remarks: Vec<Remark>,
    has_borders: bool,
    cache: PathBuf,
}

/// Training or validation data.
enum Side {
    Documents(Part),
    Examples(ExampleSet),
    Given(Arc<GivenTokens>),
    /// Rows of the program that trains.
    Program(Arc<ProgramRows>),
    /// Sources of one of the kinds above, by weight.
    Mixture {
        parts: Vec<(f64, Side)>,
        key: String,
    },
}

/// One pass over the training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Packed text: tokens, of all sources of a mixture together.
    Tokens(u64),
    /// Examples, or rows of several, each a sample; of all sources of a mixture together.
    Samples(u64),
    /// Given batches, each a step.
    Steps(u64),
}

/// Looks at what [`open`] would read, without turning text into tokens: files are there and regular, the tokenizer loads and fits the
/// model, indexes and headers are sound. What is remarkable about the files comes back.
///
/// # Errors
/// As [`open`], except what only the text itself can show.
pub fn check(spec: &DataSpec) -> Result<Vec<Remark>> {
    let mut said = vec![];
    look(spec, &spec.train, TRAIN, &mut said)?;
    if let Validation::Source(s) = &spec.validation {
        look(spec, s, VALIDATION, &mut said)?;
    }
    let limit = spec.model_vocab.filter(|_| spec.train.is_text());
    let tokenizer = tokenizer(spec, limit)?;
    task(spec, tokenizer.as_ref())?;
    said.extend(no_end(spec, tokenizer.as_ref()));
    Ok(said)
}

/// Opens the tokenizer; `limit` is the vocabulary that it is held to.
fn tokenizer(spec: &DataSpec, limit: Option<usize>) -> Result<Option<Tokenizer>> {
    let Some(t) = &spec.tokenizer else {
        return Ok(None);
    };
    let opened = Tokenizer::open(t, limit)?;
    Ok(Some(match spec.objective {
        Objective::Causal => opened,
        _ => opened.for_running_text(t),
    }))
}

/// Are there texts that the tokenizer begins and ends? A chat template writes both itself.
fn has_borders(spec: &DataSpec) -> bool {
    let validation = match &spec.validation {
        Validation::Source(source) => source.is_text(),
        _ => false,
    };
    let messages = spec.examples.as_ref().map(|e| e.rows) == Some(Rows::Messages);
    (spec.train.is_text() || validation) && !messages
}

/// The warning that texts run together.
fn no_end(spec: &DataSpec, tokenizer: Option<&Tokenizer>) -> Option<Remark> {
    let unsaid = spec.tokenizer.as_ref()?.append_eod.is_none();
    let tokenizer = tokenizer.filter(|t| unsaid && t.has_no_end() && has_borders(spec))?;
    Some(Remark::Warning(format!(
        "data.eod_token: neither {} nor the files beside it name a token that ends a text, so texts run together and a model does not learn to stop; fix: name the token, or set data.append_eod to false",
        tokenizer.name().display()
    )))
}

/// Bytes of the text that [`open`] would turn into tokens.
///
/// # Errors
/// As [`check`] of the files alone.
pub fn text_bytes(spec: &DataSpec) -> Result<u64> {
    let held_back = match &spec.validation {
        Validation::Source(s) => bytes_of(s, VALIDATION)?,
        _ => 0,
    };
    Ok(bytes_of(&spec.train, TRAIN)?.saturating_add(held_back))
}

fn bytes_of(source: &Source, key: &str) -> Result<u64> {
    match source {
        Source::Files(f) => total_bytes(&list_files(f, &files_key(key))?),
        Source::Cargo(c) => total_bytes(&list_cargo(c, key)?),
        Source::Indexed(_) | Source::Given { .. } => Ok(0),
        Source::Mixture(parts) => {
            let mut each = parts.iter().enumerate();
            each.try_fold(0u64, |sum, (i, p)| {
                let bytes = bytes_of(&p.source, &part_key(key, i))?;
                Ok(sum.saturating_add(bytes))
            })
        }
    }
}

/// Returns the objective, with the ids that takes. Given batches come as they are.
fn task(spec: &DataSpec, tokenizer: Option<&Tokenizer>) -> Result<Task> {
    match (&spec.train, &spec.examples) {
        (Source::Given { .. }, _) => Ok(Task::Causal),
        (_, Some(_)) if spec.objective != Objective::Causal => {
            let reason = "examples say themselves which of their tokens are predicted, each from those before it";
            Err(DataError::setting(
                "data.objective",
                reason,
                "train on text, or on a model that predicts next tokens",
            ))
        }
        _ => spec.objective.task(tokenizer, spec.model_vocab),
    }
}

/// The files of one source.
fn look(spec: &DataSpec, source: &Source, key: &str, said: &mut Vec<Remark>) -> Result<()> {
    match source {
        Source::Files(f) => {
            let mut files = list_files(f, &files_key(key))?;
            if let (Some(examples), Some(tokenizer)) = (&spec.examples, &spec.tokenizer) {
                files = as_rows(files)?;
                let reader = ExampleReader::open(examples, tokenizer)?;
                if let Some(first) = files.first() {
                    try_first(first, &reader, &Tokenizer::open(tokenizer, None)?)?;
                }
            }
            said.extend(rows_remark(key, rows_as_text(&files).as_ref()));
            total_bytes(&files).map(drop)
        }
        Source::Cargo(c) => list_cargo(c, key).map(drop),
        Source::Indexed(prefix) => IndexedDataset::open(prefix).map(drop),
        Source::Given { file, key, labels } => {
            let limit = spec.model_vocab;
            GivenTokens::open(file, key, labels.as_deref(), limit, spec.objective).map(drop)
        }
        Source::Mixture(parts) => {
            sound(parts, key)?;
            let mut each = parts.iter().enumerate();
            each.try_for_each(|(i, p)| look(spec, &p.source, &part_key(key, i), said))
        }
    }
}

/// Makes an example of the first row of a file that is one.
fn try_first(file: &SourceFile, reader: &ExampleReader, tokenizer: &Tokenizer) -> Result<()> {
    let (path, packing) = (&file.path, file.packing);
    if matches!(file.form, Form::Parquet | Form::Arrow) {
        return table_rows(file, READ, &mut |row: Row| {
            let example = reader.of_line(&row.bytes, tokenizer, path, row.line)?;
            Ok(example.is_none())
        });
    }
    let mut head = vec![];
    let inside = packing.open(path)?;
    inside
        .take(LONGEST_TRIAL)
        .read_to_end(&mut head)
        .map_err(|e| packing.broken(path, e))?;
    let cut = head.len() as u64 == LONGEST_TRIAL;
    let mut rows = JsonRows::new(&head[..], file.form);
    loop {
        let row = match rows.next() {
            // The rest of a longer row is not here to be judged.
            Ok(None) => return Ok(()),
            Err(_) if cut => return Ok(()),
            Err(e) => return Err(row_error(e, file, "messages")),
            Ok(Some(row)) => row,
        };
        if cut && rows.at_end() {
            return Ok(());
        }
        if reader
            .of_line(&row.bytes, tokenizer, path, row.line)?
            .is_some()
        {
            return Ok(());
        }
    }
}

/// Returns the name that errors give to source `i` of a mixture.
fn part_key(key: &str, i: usize) -> String {
    format!("{key}[{i}]")
}

/// Returns the name that errors give to the globs of a source.
fn files_key(key: &str) -> String {
    match key.ends_with(']') {
        true => format!("{key}.files"),
        false => key.to_string(),
    }
}

/// Refuses weights that are none, and a file that two sources of a mixture list: it would count by both weights.
fn sound(parts: &[Weighted], key: &str) -> Result<()> {
    let weights: Vec<f64> = parts.iter().map(|p| p.weight).collect();
    Blend::new(&weights, 0, key)?;
    let mut seen: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        let key = part_key(key, i);
        let files: Vec<PathBuf> = match &part.source {
            Source::Files(f) => {
                let listed = list_files(f, &files_key(&key))?;
                listed.into_iter().map(|f| f.path).collect()
            }
            Source::Indexed(prefix) => vec![pair(prefix).0],
            Source::Cargo(_) => vec![],
            Source::Given { .. } | Source::Mixture(_) => {
                let reason = "a source of a mixture is files or a tokenised dataset";
                return Err(DataError::setting(&key, reason, "write it so"));
            }
        };
        for file in files {
            // By another name it is the same file still.
            let real = std::fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
            match seen.insert(real, i) {
                Some(before) if before != i => {
                    let reason = format!(
                        "{} is a file of source {before} of the mixture too, and would count by both weights",
                        file.display()
                    );
                    return Err(DataError::setting(
                        &key,
                        reason,
                        "let one of the two globs leave it out, and give it the weight that is meant",
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
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
    let text = spec.train.is_text() || validation_source.is_some_and(Source::is_text);
    // Tokens that are given are held to the model's vocabulary themselves; their tokenizer only has to decode.
    let limit = spec.model_vocab.filter(|_| text);
    let tokenizer = tokenizer(spec, limit)?.map(Arc::new);
    let vocab = spec
        .model_vocab
        .or_else(|| tokenizer.as_ref().filter(|_| text).map(|t| t.vocab_size()));
    let reader = match (&spec.examples, &spec.tokenizer) {
        (Some(examples), Some(t)) => Some(ExampleReader::open(examples, t)?),
        _ => None,
    };
    let task = task(spec, tokenizer.as_deref())?;
    let mut opening = Opening {
        objective: spec.objective,
        tokenizer: tokenizer.as_deref(),
        reader: reader.as_ref(),
        vocab,
        packed: spec.examples.as_ref().is_some_and(|e| e.pack),
        refuse_long: spec.examples.as_ref().is_some_and(|e| e.refuse_long),
        cache,
        progress,
        reports: Vec::new(),
        remarks: Vec::new(),
    };

    let (train, mut validation) = opening.side(&spec.train, TRAIN, &spec.validation)?;
    if let Some(source) = validation_source {
        validation = Some(opening.side(source, VALIDATION, &Validation::None)?.0);
    }
    let (reports, mut remarks) = (opening.reports, opening.remarks);
    remarks.extend(no_end(spec, tokenizer.as_deref()));
    Ok(Corpus {
        has_borders: has_borders(spec),
        tokenizer,
        task,
        train,
        validation,
        reports,
        remarks,
        cache: cache.into(),
    })
}

/// A corpus of the rows that a program hands in; `spec` has the tokenizer for prompts and samples, and the model's vocabulary.
///
/// # Errors
/// A source without rows; a tokenizer that cannot be opened; an objective that hides tokens.
pub fn of_rows(spec: &DataSpec, source: Arc<dyn DataSource>) -> Result<Corpus> {
    let tokenizer = tokenizer(spec, None)?.map(Arc::new);
    Ok(Corpus {
        task: task(spec, tokenizer.as_deref())?,
        train: Side::Program(Arc::new(ProgramRows::open(source, spec.model_vocab)?)),
        validation: None,
        reports: vec![],
        remarks: vec![],
        has_borders: false,
        cache: PathBuf::new(),
        tokenizer,
    })
}

struct Opening<'a> {
    objective: Objective,
    tokenizer: Option<&'a Tokenizer>,
    reader: Option<&'a ExampleReader>,
    vocab: Option<usize>,
    /// Rows hold several examples.
    packed: bool,
    /// An example that is longer than a row is an error.
    refuse_long: bool,
    cache: &'a Path,
    progress: &'a dyn Progress,
    reports: Vec<BuildReport>,
    remarks: Vec<Remark>,
}

impl Opening<'_> {
    /// Opens `source`, and the part of it that `validation` holds back.
    fn side(
        &mut self,
        source: &Source,
        key: &str,
        validation: &Validation,
    ) -> Result<(Side, Option<Side>)> {
        let held_back_key = match validation {
            Validation::Fraction(_) => "data.validation_fraction",
            Validation::Split(_) => "data.split",
            Validation::None | Validation::Source(_) => VALIDATION,
        };
        let built = match (source, self.tokenizer) {
            (Source::Mixture(parts), _) => return self.mixture(parts, key, validation),
            (
                Source::Given {
                    file,
                    key: tensor,
                    labels,
                },
                _,
            ) => {
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
                let labels = labels.as_deref();
                let given = GivenTokens::open(file, tensor, labels, self.vocab, self.objective)?;
                return Ok((Side::Given(Arc::new(given)), None));
            }
            (Source::Indexed(prefix), _) => crate::build::ready_made(prefix)?,
            (_, Some(tokenizer)) => build(
                source,
                &files_key(key),
                tokenizer,
                self.reader,
                self.cache,
                self.progress,
            )?,
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
        self.remarks.extend(built.report.remarks(key));
        self.reports.push(built.report);
        let (set, counts) = (Arc::new(built.set), built.counts.map(Arc::new));
        let filler = self.tokenizer.and_then(Tokenizer::eod).unwrap_or(0);
        let (train, held_back) = split(&set, validation, counts.is_some())?;
        let part = |view: View, key: String| {
            let (set, vocab, view) = (set.clone(), self.vocab, Arc::new(view));
            let part = Part {
                set,
                view,
                hash: built.hash,
                key,
                vocab,
            };
            match &counts {
                Some(counts) => Side::Examples(ExampleSet {
                    part,
                    counts: counts.clone(),
                    filler,
                    packed: self.packed,
                    refuse_long: self.refuse_long,
                }),
                None => Side::Documents(part),
            }
        };
        let held_back_key = match key == TRAIN {
            true => held_back_key.to_string(),
            false => format!("{held_back_key} of {key}"),
        };
        Ok((
            part(train, key.to_string()),
            held_back.map(|view| part(view, held_back_key)),
        ))
    }

    /// Opens every source of a mixture; each holds back its own part, and what is held back is mixed by the same weights.
    fn mixture(
        &mut self,
        parts: &[Weighted],
        key: &str,
        validation: &Validation,
    ) -> Result<(Side, Option<Side>)> {
        sound(parts, key)?;
        let (mut train, mut held_back) = (vec![], vec![]);
        for (i, p) in parts.iter().enumerate() {
            let (own, held) = self.side(&p.source, &part_key(key, i), validation)?;
            train.push((p.weight, own));
            held_back.extend(held.map(|side| (p.weight, side)));
        }
        let mixture = |parts, key: &str| Side::Mixture {
            parts,
            key: key.to_string(),
        };
        let held_back = (!held_back.is_empty()).then(|| mixture(held_back, VALIDATION));
        Ok((mixture(train, key), held_back))
    }
}

impl Corpus {
    /// The tokenizer, to encode prompts and decode samples.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// Number of ids of the tokenizer and of what stands for hidden tokens; the least a model of this corpus must embed.
    pub fn vocab_size(&self) -> Option<usize> {
        let own = self.tokenizer.as_ref().map(|t| t.vocab_size());
        own.map(|own| own.max(self.task.vocab()))
    }

    /// Returns the meaning of the columns of a sample of `seq_len` tokens, where these are not one
    /// text.
    pub fn columns(&self, seq_len: usize) -> Option<Columns> {
        match self.given() {
            Some(given) => given.columns(),
            None => self.task.columns(seq_len),
        }
    }

    /// Images of a row, where rows have images.
    pub fn images_of_a_row(&self) -> Option<u64> {
        self.given().and_then(GivenTokens::images_of_a_row)
    }

    /// Returns the cost of opening, for training and then validation; empty for given batches.
    pub fn reports(&self) -> &[BuildReport] {
        &self.reports
    }

    /// Says in words what begins and what ends a text; `None` where nothing was tokenised here, or
    /// a chat template writes both.
    pub fn borders(&self) -> Option<String> {
        let tokenizer = self.tokenizer.as_ref().filter(|_| self.has_borders)?;
        Some(tokenizer.borders())
    }

    /// Returns the remarks of a run at its start: [`Corpus::remarks`], and which tokens begin and
    /// end its texts.
    pub fn remarks_at_start(&self) -> Vec<Remark> {
        let borders = self.borders();
        let borders = borders.map(|words| Remark::Note(format!("data: {words}")));
        self.remarks.iter().cloned().chain(borders).collect()
    }

    /// Returns the remarks about the files that were read.
    pub fn remarks(&self) -> &[Remark] {
        &self.remarks
    }

    /// Predictions in a row when the data prescribe them: `T - 1` of given batches.
    pub fn sequence_len(&self) -> Option<usize> {
        let given = self.given()?;
        Some(given.row_len() - 1)
    }

    fn given(&self) -> Option<&GivenTokens> {
        match &self.train {
            Side::Given(given) => Some(given),
            Side::Documents(_) | Side::Examples(..) | Side::Program(_) | Side::Mixture { .. } => {
                None
            }
        }
    }

    /// Rows of a step when the data prescribe them: `B` of given batches.
    pub fn fixed_batch(&self) -> Option<u64> {
        self.given()?.fixed_batch()
    }

    /// Steps there are when the data prescribe them.
    pub fn fixed_steps(&self) -> Option<u64> {
        Some(self.given()?.steps())
    }

    /// Name of the tensor of labels of given batches, where there is one.
    pub fn labels(&self) -> Option<&str> {
        self.given()?.labels_key()
    }

    /// One pass over the training data in samples of `seq_len` predictions.
    ///
    /// # Errors
    /// No example has a token that counts; a failed read.
    pub fn pass(&self, seq_len: usize) -> Result<Pass> {
        if let Some(given) = self.given() {
            return Ok(Pass::Steps(given.steps()));
        }
        // Which examples have something to learn follows from where they are cut.
        Ok(match self.train.samples(seq_len)? {
            Some(samples) => Pass::Samples(samples),
            None => Pass::Tokens(self.train.tokens()),
        })
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
        self.train.hash().map(|hash| hex(&hash))
    }

    /// Training rows of `seq_len + 1` tokens, or of what becomes of samples of so many where some are hidden: at least `samples` of them, in the order of `seed`. Given batches come as
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
        let rows = self
            .train
            .rows(Order::Shuffled(seed), seq_len, samples, &self.cache)?;
        self.task.over(rows, seq_len, seed, 0)
    }

    /// Validation rows in the corpus's order, one pass; `None` when nothing is held back.
    ///
    /// # Errors
    /// Fewer tokens than one row; a damaged stored order.
    pub fn validation(&self, seq_len: usize) -> Result<Option<Arc<dyn SequenceSource>>> {
        let Some(side) = &self.validation else {
            return Ok(None);
        };
        let rows = side.rows(Order::Sequential, seq_len, 0, &self.cache)?;
        // The same tokens are hidden whenever it is evaluated, whatever the run's seed.
        Ok(Some(self.task.over(rows, seq_len, 0, 1)?))
    }
}

impl Side {
    fn tokens(&self) -> u64 {
        match self {
            Side::Documents(part) | Side::Examples(ExampleSet { part, .. }) => part.view.tokens,
            Side::Given(given) => given.sequences() * given.row_len() as u64,
            Side::Program(rows) => rows.tokens(),
            Side::Mixture { parts, .. } => parts.iter().map(|(_, p)| p.tokens()).sum(),
        }
    }

    /// Examples that are samples, where they are.
    fn samples(&self, seq_len: usize) -> Result<Option<u64>> {
        Ok(match self {
            Side::Documents(_) | Side::Given(_) => None,
            Side::Program(rows) => Some(rows.sequences()),
            Side::Examples(set) => {
                Some(ExampleRows::open(set, Order::Sequential, seq_len, 0)?.sequences())
            }
            Side::Mixture { parts, .. } => {
                let each = parts.iter().map(|(_, p)| p.samples(seq_len));
                let each: Vec<Option<u64>> = each.collect::<Result<_>>()?;
                each.into_iter().sum()
            }
        })
    }

    fn hash(&self) -> Option<Hash> {
        match self {
            Side::Documents(part) | Side::Examples(ExampleSet { part, .. }) => Some(part.hash),
            Side::Given(_) | Side::Program(_) => None,
            Side::Mixture { parts, .. } => {
                let mut all = Sha256::new();
                all.update("crossweave mixture 1");
                for (weight, part) in parts {
                    all.update(weight.to_le_bytes());
                    all.update(part.hash()?);
                }
                Some(all.finalize().into())
            }
        }
    }

    fn key(&self) -> &str {
        match self {
            Side::Documents(part) | Side::Examples(ExampleSet { part, .. }) => &part.key,
            Side::Mixture { key, .. } => key,
            Side::Given(_) => "data.tokens",
            Side::Program(_) => TRAIN,
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
            Side::Program(rows) => rows.clone(),
            Side::Examples(set) => Arc::new(ExampleRows::open(set, order, seq_len, samples)?),
            Side::Mixture { parts, key } => {
                let weights: Vec<f64> = parts.iter().map(|(w, _)| *w).collect();
                let each = |counts: &[u64]| -> Result<Vec<Arc<dyn SequenceSource>>> {
                    let open = |(i, (_, part)): (usize, &(f64, Side))| {
                        let n = counts.get(i).copied().unwrap_or(0);
                        part.rows(order.of_source(i as u64), seq_len, n, cache)
                    };
                    parts.iter().enumerate().map(open).collect()
                };
                let (blend, rows) = match order {
                    Order::Shuffled(_) => {
                        let blend = Blend::new(&weights, samples, key)?;
                        let rows = each(blend.counts())?;
                        (blend, rows)
                    }
                    Order::Sequential => {
                        let rows = each(&[])?;
                        let all: Vec<u64> = rows.iter().map(|r| r.sequences()).collect();
                        (Blend::once(&weights, &all, key)?, rows)
                    }
                };
                let names = parts.iter().map(|(_, p)| p.key().to_string());
                Arc::new(Mixture {
                    blend,
                    parts: rows,
                    once: order == Order::Sequential,
                    names: names.zip(shares(&weights)).collect(),
                    key: key.clone(),
                })
            }
        })
    }
}
