//! A config completed by its model and its data, and the files it names opened: one way for `train`, `config check`, `plan`, `explain` and
//! `estimate`.

use crate::caches::Caches;
use crate::error::{JobError, Placeable, Result};
use crate::found::Found;
use crate::model::{self, Source};
use crate::{Job, documents, validation};
use crate::{data_spec, objective, teacher};
use crossweave_config::{Config, Data, Epoch, Given, Model, Resolved};
use crossweave_data::{
    BatchShape, Batches, Columns, Corpus, DataSpec, GivenTokens, Ids, Pass, Remark, SequenceSource,
    Tokenizer,
};

/// Opens the corpus; nothing where its text is to be left unread.
pub type OpenCorpus<'a> = &'a dyn Fn(&DataSpec, &Data) -> Result<Option<Corpus>>;

/// How far the data are opened.
#[derive(Clone, Copy)]
pub enum Reading<'a> {
    /// Sizes alone are wanted: headers and the tokenizer are read, and no text.
    Sizes,
    /// The data are read by steps.
    Data(OpenCorpus<'a>),
}

/// A job as far as its config and the files in it go.
pub struct Opened {
    /// What every rank has in common.
    pub job: Job,
    /// What its steps read; none where sizes alone were wanted, the text was left unread, or the data have faults.
    pub reads: Option<Reads>,
    /// What is remarkable about the data.
    pub remarks: Vec<Remark>,
}

/// What the steps of a job read.
pub struct Reads {
    /// The data.
    pub corpus: Corpus,
    /// What the corpus was opened with.
    pub spec: DataSpec,
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// Training batches.
    pub batches: Batches,
    /// Validation batches.
    pub validation: Option<Batches>,
}

/// A collector of the faults of a config.
pub trait Faults {
    /// The value, or nothing where it is a fault; one that names no key of its own is that of `key`.
    fn take<T, E: Placeable + Into<JobError>>(
        &mut self,
        config: &Config,
        key: &str,
        result: std::result::Result<T, E>,
    ) -> Option<T>;
}

/// All of them, each with its place.
impl Faults for Found {
    fn take<T, E: Placeable + Into<JobError>>(
        &mut self,
        config: &Config,
        key: &str,
        result: std::result::Result<T, E>,
    ) -> Option<T> {
        Found::take(self, config, key, result)
    }
}

/// The first of them, as it is.
impl Faults for Option<JobError> {
    fn take<T, E: Placeable + Into<JobError>>(
        &mut self,
        _: &Config,
        _: &str,
        result: std::result::Result<T, E>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.get_or_insert(e.into());
                None
            }
        }
    }
}

impl Opened {
    /// Opens a config on `ranks` ranks, and lays over it what model and data have shown. Faults that do not depend on one another are found
    /// together; nothing comes back where there is one before the model and its sizes are known.
    pub fn open(
        config: &mut Config,
        ranks: u64,
        caches: &Caches,
        reading: Reading<'_>,
        found: &mut impl Faults,
    ) -> Option<Opened> {
        let s = &config.settings;
        let (Some(data), Some(model)) = (s.data.clone(), s.model.clone()) else {
            // One of the two is missing, and this says which.
            found.take(config, "model", config.resolve(ranks))?;
            return None;
        };
        let opened = match &model {
            Model::Hf(_) => {
                Some(found.take(config, "model", model::of_config(&model, None, caches))?)
            }
            Model::New(_) => None,
        };
        let spec = describe(&data, &model, opened.as_ref(), caches);
        let spec = found.take(config, "data", spec)?;
        let corpus = match reading {
            Reading::Sizes => None,
            Reading::Data(open) => match found.take(config, "data", open(&spec, &data)) {
                Some(corpus) => corpus,
                None if matches!(data, Data::Tokens(_)) => return None,
                // Sizes do without the text. What else is wrong with data that cannot be opened follows from that.
                None => {
                    let mut follows: Option<JobError> = None;
                    let sizes = Reading::Sizes;
                    return Opened::open(&mut config.clone(), ranks, caches, sizes, &mut follows);
                }
            },
        };
        let shown = match corpus {
            Some(corpus) => Shown::Corpus(corpus),
            None => found.take(config, "data", Shown::sizes(&spec, &data))?,
        };
        let completed = complete(config, &spec, &shown, &model);
        found.take(config, "data", completed)?;
        let given = Given {
            width: opened.as_ref().map(Source::width),
            ..shown.given()
        };
        let resolved = config.resolve_given(ranks, given);
        let resolved = found.take(config, "run", resolved)?;
        let begun = begin(config, ranks, (resolved, opened), &shown, (given, caches));
        let (resolved, source, sample) = found.take(config, "data", begun)?;
        let columns = shown.columns(sample as usize);
        let seq_len = columns.map_or(sample, |c| c.all() as u64);
        let Shown::Corpus(corpus) = shown else {
            return Some(Opened {
                job: Job::new(resolved, source, seq_len, None),
                reads: None,
                remarks: vec![],
            });
        };
        let epochs = config.settings.run.epochs;
        let training = training((&resolved, epochs), (&corpus, &source), sample);
        let training = found.take(config, "data", training);
        let held_back = validation::open(&corpus, &resolved, sample, shape(&resolved));
        let held_back = found.take(config, "data.validation", held_back);
        let seq_len = training.as_ref().map_or(seq_len, |t| t.seq_len);
        let tokenizer = corpus.tokenizer().map(|t| &**t);
        let job = Job::new(resolved, source, seq_len, tokenizer);
        let (mut reads, mut remarks) = (None, vec![]);
        if let (Some(training), Some(held_back)) = (training, held_back) {
            let (held_back, said) = held_back.unzip();
            remarks = training.remarks;
            remarks.extend(said);
            reads = Some(Reads {
                corpus,
                spec,
                steps: training.steps,
                batches: training.batches,
                validation: held_back,
            });
        }
        remarks.extend(job.why_tokens_are_whole().map(Remark::Note));
        remarks.extend(job.why_inputs_are_cut_already().map(Remark::Note));
        Some(Opened {
            job,
            reads,
            remarks,
        })
    }

    /// The job of a config on `ranks` ranks, as far as its steps depend on it.
    ///
    /// # Errors
    /// A config that is wrong, or has no model or no data; the first fault of its files.
    pub fn sizes(mut config: Config, ranks: u64, caches: &Caches) -> Result<Job> {
        let mut first = None;
        let opened = Opened::open(&mut config, ranks, caches, Reading::Sizes, &mut first);
        match (opened, first) {
            (Some(opened), None) => Ok(opened.job),
            (_, Some(e)) => Err(e),
            (None, None) => Err(JobError::refused(
                "the config has no model or no data",
                "add it",
            )),
        }
    }
}

/// The data as far as they were opened.
enum Shown {
    /// All of them.
    Corpus(Corpus),
    /// The header of given batches.
    Given(Box<GivenTokens>),
    /// The tokenizer of text that was not read, and the ids that its objective asks for.
    Unread(Option<Tokenizer>, Ids),
}

impl Shown {
    /// The data without their text.
    fn sizes(spec: &DataSpec, data: &Data) -> Result<Shown> {
        Ok(match data {
            Data::Tokens(d) => {
                let (path, labels) = (d.tokens.as_ref(), d.labels.as_deref());
                let file = GivenTokens::open(path, &d.key, labels, None, spec.objective)?;
                Shown::Given(Box::new(file))
            }
            Data::Text(_) => {
                let open = |t| Tokenizer::open(t, spec.model_vocab);
                let tokenizer = spec.tokenizer.as_ref().map(open).transpose()?;
                let ids = spec.objective.ids(tokenizer.as_ref(), spec.model_vocab)?;
                Shown::Unread(tokenizer, ids)
            }
        })
    }

    /// Ids of the tokenizer and of what stands for hidden tokens.
    fn vocab(&self) -> Option<u64> {
        let ids = match self {
            Shown::Corpus(corpus) => corpus.vocab_size(),
            Shown::Given(_) => None,
            Shown::Unread(tokenizer, ids) => {
                tokenizer.as_ref().map(|t| t.vocab_size().max(ids.vocab()))
            }
        };
        ids.map(|n| n as u64)
    }

    /// Name of the tensor of labels of given batches, where there is one.
    fn labels(&self) -> Option<&str> {
        match self {
            Shown::Corpus(corpus) => corpus.labels(),
            Shown::Given(file) => file.labels_key(),
            Shown::Unread(..) => None,
        }
    }

    /// Sizes that given batches prescribe.
    fn given(&self) -> Given {
        let (batch, steps) = match self {
            Shown::Corpus(corpus) => (corpus.fixed_batch(), corpus.fixed_steps()),
            Shown::Given(file) => (Some(file.batch()), Some(file.steps())),
            Shown::Unread(..) => (None, None),
        };
        Given {
            batch,
            steps,
            ..Given::default()
        }
    }

    /// Predictions of a row of given batches.
    fn row(&self) -> Option<usize> {
        match self {
            Shown::Corpus(corpus) => corpus.sequence_len(),
            Shown::Given(file) => Some(file.row_len() - 1),
            Shown::Unread(..) => None,
        }
    }

    /// What the columns of a sample of `len` tokens are, where these are not one text.
    fn columns(&self, len: usize) -> Option<Columns> {
        match self {
            Shown::Corpus(corpus) => corpus.columns(len),
            Shown::Given(file) => file.columns(),
            Shown::Unread(_, ids) => ids.columns(len),
        }
    }

    /// Images of a row, where rows have images.
    fn images(&self) -> Option<u64> {
        match self {
            Shown::Corpus(corpus) => corpus.images_of_a_row(),
            Shown::Given(file) => file.images_of_a_row(),
            Shown::Unread(..) => None,
        }
    }
}

/// What the data layer is asked for.
fn describe(
    data: &Data,
    model: &Model,
    opened: Option<&Source>,
    caches: &Caches,
) -> Result<DataSpec> {
    let mut spec = data_spec::spec(data, Some(model), caches)?;
    if let Some(s) = opened {
        spec.model_vocab = Some(s.spec.model().vocab as usize);
        spec.objective = objective::of(data, Some(model), Some(&s.spec))?;
    }
    Ok(spec)
}

/// Lays over the config what the data have shown.
fn complete(config: &mut Config, spec: &DataSpec, shown: &Shown, model: &Model) -> Result<()> {
    objective::complete(config, spec.objective)?;
    let new = matches!(model, Model::New(_));
    if let (None, true, Some(vocab)) = (spec.model_vocab, new, shown.vocab()) {
        config.set("model.vocab_size", &vocab.to_string())?;
    }
    if let Some(labels) = shown.labels() {
        config.set("data.labels", &serde_json::Value::from(labels).to_string())?;
    }
    Ok(())
}

/// The model over its data, and the tokens of a sample.
fn begin(
    config: &Config,
    ranks: u64,
    (resolved, opened): (Resolved, Option<Source>),
    shown: &Shown,
    (given, caches): (Given, &Caches),
) -> Result<(Resolved, Source, u64)> {
    let mut resolved = resolved;
    let mut source = match opened {
        Some(s) => s,
        None => model::of_config(&resolved.model, shown.vocab(), caches)?,
    };
    source.spec = source.spec.with_room(resolved.settings.mesh.ep_room);
    if let Shown::Corpus(corpus) = shown {
        let tokenizer = corpus.tokenizer().map(|t| &**t);
        documents::check(&resolved.data, tokenizer, source.spec.model().vocab)?;
    }
    let sample = sequence(shown, &resolved.data, &source)?;
    let columns = shown.columns(sample as usize);
    source.reads(columns)?;
    source.sees(shown.images(), &resolved)?;
    teacher::hear(&mut source, &resolved, sample, columns, caches)?;
    if let (Some(_), Shown::Corpus(corpus)) = (resolved.settings.run.epochs, shown) {
        let epoch = Some(epoch(corpus, sample)?);
        resolved = config.resolve_given(ranks, Given { epoch, ..given })?;
    }
    Ok((resolved, source, sample))
}

/// Tokens of a sample: the file's, the config's, or the model's longest.
fn sequence(shown: &Shown, data: &Data, source: &Source) -> Result<u64> {
    let longest = source.spec.model().positions;
    // Encoder and decoder read a part each, and rows of two texts have more than tokens.
    let columns = shown.row().and_then(|_| shown.columns(0));
    let given = columns.map(Columns::longest).or(shown.row());
    let (seq, key) = match (given, data) {
        (Some(n), _) => (n as u64, "data.tokens"),
        (None, Data::Text(d)) => (
            d.seq_len.unwrap_or(longest.min(objective::sample(data))),
            "data.seq_len",
        ),
        (None, Data::Tokens(_)) => (longest, "data.tokens"),
    };
    if seq > longest {
        return Err(JobError::refused(
            format!("{key}: sequences of {seq} tokens do not fit a model of {longest} positions"),
            "shorten the sequences, or raise n_positions / max_position_embeddings",
        ));
    }
    Ok(seq)
}

/// One pass over the training data, for `run.epochs`.
fn epoch(corpus: &Corpus, seq_len: u64) -> Result<Epoch> {
    Ok(match corpus.pass(seq_len as usize)? {
        Pass::Tokens(tokens) => Epoch::Tokens {
            tokens,
            sample: seq_len,
        },
        Pass::Samples(samples) => Epoch::Samples(samples),
        Pass::Steps(steps) => Epoch::Steps(steps),
    })
}

/// The run's steps and their training batches.
struct Training {
    steps: u64,
    seq_len: u64,
    batches: Batches,
    remarks: Vec<Remark>,
}

fn shape(r: &Resolved) -> BatchShape {
    BatchShape {
        global_batch: r.batch.global,
        ranks: r.batch.ranks,
        accumulation: r.batch.accumulation,
    }
}

/// `epochs`: what the config said before its steps were known.
fn training(
    (r, epochs): (&Resolved, Option<f64>),
    (corpus, source): (&Corpus, &Source),
    sample: u64,
) -> Result<Training> {
    let steps = r.settings.run.steps.ok_or_else(|| {
        JobError::refused(
            "run.steps: not given",
            "add \"run\": {\"steps\": 200} or {\"epochs\": 1}, or --steps",
        )
    })?;
    let key = match &r.data {
        Data::Text(_) => "data.train",
        Data::Tokens(_) => "data.tokens",
    };
    let shuffle = match &r.data {
        Data::Text(d) => d.seed.unwrap_or(r.seed),
        Data::Tokens(_) => r.seed,
    };
    let samples = steps.saturating_mul(r.batch.global);
    let rows = corpus.train(sample as usize, samples, shuffle)?;
    let seq_len = rows.row_len() as u64 - 1;
    let mut batches = Batches::training(rows, shape(r), key)?;
    if epochs.is_some() && matches!(r.data, Data::Tokens(_)) {
        batches = batches.repeating();
    }
    let mut remarks = [corpus.remarks_at_start(), source.remarks()].concat();
    remarks.extend(batches.remarks());
    if let Some(epochs) = epochs {
        remarks.push(Remark::Note(format!(
            "run.epochs {epochs}: {steps} steps of {} samples",
            r.batch.global
        )));
    }
    Ok(Training {
        steps,
        seq_len,
        batches,
        remarks,
    })
}
