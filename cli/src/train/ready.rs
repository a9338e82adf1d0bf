//! Everything that `train` opens and works out before it claims a folder or starts a rank. `config check` runs the same and begins
//! nothing, so that what the one refuses the other does.

use super::folder::may_become;
use super::layout::Layout;
use super::offload::with_offload;
use crate::backend::open_linked;
use crate::found::Found;
use crate::job::spec::compute_type;
use crate::job::{Class, Job, documents, spec, validation};
use crate::model::{self, Source};
use crate::rehearse;
use crate::surroundings::Caches;
use crate::train_error::{Result, TrainError};
use crate::{objective, source, teacher};
use crossweave_checkpoint::{PublicKey, SecretKey};
use crossweave_config::{Config, Data, Epoch, Given, Model, Resolved};
use crossweave_data::{BatchShape, Batches, Columns, Corpus, DataSpec, Pass, Remark};
use crossweave_engine::{Trainer, dry_run, rehearsal};
use crossweave_hal::{CheckerState, Device, HostServices, Plugin};

/// Opens the corpus; nothing where its text is left unread.
pub type OpenCorpus<'a> = &'a dyn Fn(&DataSpec, &Data) -> Result<Option<Corpus>>;

/// A job as far as its config and the files in it go.
pub struct Ready {
    /// What every rank has in common.
    pub job: Job,
    /// What its steps read.
    pub reads: Reads,
    /// What is remarkable about the data.
    pub remarks: Vec<Remark>,
    /// The ranks' shares of the work.
    pub layout: Layout,
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

/// Opens and works out everything. Faults that do not depend on one another are found together; where there is one, or where the text was
/// left unread, there is nothing to begin with.
pub fn ready(
    config: &mut Config,
    ranks: u64,
    host: &HostServices,
    (open, caches): (OpenCorpus<'_>, &Caches),
    found: &mut Found,
) -> Option<Ready> {
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
    let spec = found.take(
        config,
        "data",
        describe(&data, &model, opened.as_ref(), caches),
    )?;
    let corpus = found.take(config, "data", open(&spec, &data));
    let unread = matches!(corpus, Some(None));
    let Some(corpus) = corpus.flatten() else {
        if matches!(data, Data::Tokens(_)) {
            return None;
        }
        // Sizes do without the text. What else is wrong with data that cannot be opened follows from that.
        let sizes = rehearse::job(config.clone(), ranks, caches);
        let job = match unread {
            true => found.take(config, "data", sizes)?,
            false => sizes.ok()?,
        };
        layout(config, &job, host, found)?;
        return None;
    };
    let told = tell(config, &spec, &corpus, &model);
    found.take(config, "data", told)?;
    let given = Given {
        batch: corpus.fixed_batch(),
        steps: corpus.fixed_steps(),
        width: opened.as_ref().map(Source::width),
        epoch: None,
    };
    let resolved = config.resolve_given(ranks, given).map_err(TrainError::from);
    let resolved = found.take(config, "run", resolved)?;
    let begun = begin(config, ranks, (resolved, opened), &corpus, (given, caches));
    let (resolved, source, sample) = found.take(config, "data", begun)?;
    let epochs = config.settings.run.epochs;
    let batches = batches((&resolved, epochs), (&corpus, &source), sample);
    let batches = found.take(config, "data", batches);
    let held_back = validation::open(&corpus, &resolved, sample, shape(&resolved));
    let held_back = found.take(config, "data.validation", held_back);
    let columns = corpus.columns(sample as usize);
    let seq_len = columns.map_or(sample, |c| c.all() as u64);
    let seq_len = batches.as_ref().map_or(seq_len, |b| b.seq_len);
    let tokenizer = corpus.tokenizer().map(|t| &**t);
    let job = Job::new(resolved, source, seq_len, tokenizer);
    let layout = layout(config, &job, host, found);
    let (batches, layout) = (batches?, layout?);
    let (held_back, said) = held_back?.unzip();
    let mut remarks = batches.remarks;
    remarks.extend(said);
    Some(Ready {
        job,
        reads: Reads {
            corpus,
            spec,
            steps: batches.steps,
            batches: batches.batches,
            validation: held_back,
        },
        remarks,
        layout,
    })
}

/// What the data layer is asked for.
fn describe(
    data: &Data,
    model: &Model,
    opened: Option<&Source>,
    caches: &Caches,
) -> Result<DataSpec> {
    let mut spec = source::spec(data, Some(model), caches)?;
    if let Some(s) = opened {
        spec.model_vocab = Some(s.spec.model().vocab as usize);
        spec.objective = objective::of(data, Some(model), Some(&s.spec))?;
    }
    Ok(spec)
}

/// Lays over the config what the data have shown.
fn tell(config: &mut Config, spec: &DataSpec, corpus: &Corpus, model: &Model) -> Result<()> {
    objective::tell(config, spec.objective)?;
    let new = matches!(model, Model::New(_));
    if let (None, true, Some(vocab)) = (spec.model_vocab, new, corpus.vocab_size()) {
        config.set("model.vocab_size", &vocab.to_string())?;
    }
    if let Some(labels) = corpus.labels() {
        config.set("data.labels", &serde_json::Value::from(labels).to_string())?;
    }
    Ok(())
}

/// The model over its data, and the tokens of a sample.
fn begin(
    config: &Config,
    ranks: u64,
    (resolved, opened): (Resolved, Option<Source>),
    corpus: &Corpus,
    (given, caches): (Given, &Caches),
) -> Result<(Resolved, Source, u64)> {
    let mut resolved = resolved;
    let mut source = match opened {
        Some(s) => s,
        None => model::of_config(
            &resolved.model,
            corpus.vocab_size().map(|v| v as u64),
            caches,
        )?,
    };
    let vocab = source.spec.model().vocab;
    documents::check(&resolved.data, corpus.tokenizer().map(|t| &**t), vocab)?;
    let sample = sequence(corpus, &resolved.data, &source)?;
    let columns = corpus.columns(sample as usize);
    source.reads(columns)?;
    source.sees(corpus.images_of_a_row(), &resolved)?;
    teacher::hear(&mut source, &resolved, sample, columns, caches)?;
    if resolved.settings.run.epochs.is_some() {
        let epoch = Some(epoch(corpus, sample)?);
        resolved = config.resolve_given(ranks, Given { epoch, ..given })?;
    }
    Ok((resolved, source, sample))
}

/// Tokens of a sample: the file's, the config's, or the model's longest.
fn sequence(corpus: &Corpus, data: &Data, source: &Source) -> Result<u64> {
    let longest = source.spec.model().positions;
    // Encoder and decoder read a part each, and rows of two texts have more than tokens.
    let columns = corpus.sequence_len().and_then(|_| corpus.columns(0));
    let given = columns.map(Columns::longest).or(corpus.sequence_len());
    let (seq, key) = match (given, data) {
        (Some(n), _) => (n as u64, "data.tokens"),
        (None, Data::Text(d)) => (
            d.seq_len.unwrap_or(longest.min(objective::sample(data))),
            "data.seq_len",
        ),
        (None, Data::Tokens(_)) => (longest, "data.tokens"),
    };
    if seq > longest {
        return Err(TrainError::refused(
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
fn batches(
    (r, epochs): (&Resolved, Option<f64>),
    (corpus, source): (&Corpus, &Source),
    sample: u64,
) -> Result<Training> {
    let steps = r.settings.run.steps.ok_or_else(|| {
        TrainError::refused(
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

/// Lays the model over the ranks and plans the step of each class of ranks on the null device.
pub fn layout(
    config: &Config,
    job: &Job,
    host: &HostServices,
    found: &mut Found,
) -> Option<Layout> {
    let resolved = &job.resolved;
    let own = job.units(&job.place(0));
    let own = found.take(config, "optimizer.param_groups", own)?;
    let plugin = found.take(config, "run.backend", open_linked("null", host))?;
    let null = plugin.open(0).map_err(TrainError::from);
    let null = found.take(config, "run.backend", null)?;
    let (compute, micro) = (compute_type(resolved.dtype), resolved.batch.micro);
    let dry = dry_run(&null, &own, compute, micro, job.seq_len).map_err(TrainError::from);
    let dry = found.take(config, "model", dry)?;
    let layout = found.take(config, "mesh.pp", Layout::even(&null, job, dry))?;
    let offload = &resolved.settings.zero_optimization.offload_optimizer;
    let key = match offload {
        Some(_) => "zero_optimization.offload_optimizer",
        None => "zero_optimization",
    };
    let disk = offload.as_ref().filter(|o| o.device == "nvme");
    if let Some(path) = disk.and_then(|o| o.nvme_path.as_ref()) {
        found.take(
            config,
            &format!("{key}.nvme_path"),
            may_become(path.as_ref()),
        )?;
    }
    let mut plans = vec![];
    for class in &layout.classes {
        let trainer = found.take(config, key, rehearsed(&plugin, job, &layout, class))?;
        plans.push((trainer.plan().clone(), trainer.facts().clone()));
    }
    if job.ranks > 1 {
        let agree = layout.agree(job, &plans);
        found.take(config, "mesh.pp", agree)?;
    }
    Some(layout)
}

/// The trainer of a class of ranks on a null device.
///
/// # Errors
/// A step that cannot be planned.
pub fn rehearsed(plugin: &Plugin, job: &Job, layout: &Layout, class: &Class) -> Result<Trainer> {
    // A board of its own, so that no class is missed by another.
    let device = plugin.with_checker(&CheckerState::default()).open(0)?;
    let place = job.place(class.first);
    let spec = spec(job, &layout.division, place);
    let spec = with_offload(spec, &job.resolved);
    let units = job.units(&place)?;
    let dry = layout.dry_of(class);
    Ok(rehearsal(&device, units, &spec, dry)?)
}

/// Whether a device has room for what each class of ranks does.
///
/// # Errors
/// It has not, by the plan.
pub fn fits(device: &Device, job: &Job, layout: &Layout) -> Result<()> {
    let mut all = layout.classes.iter();
    all.try_for_each(|class| layout.fits(job, device, class.first))
}

/// Reads the keys by which checkpoints are signed and trusted.
///
/// # Errors
/// A file that is none.
pub fn keys(config: &Config) -> Result<()> {
    let s = &config.settings.checkpoint;
    if let Some(key) = &s.sign_key {
        SecretKey::read(key.as_ref())?;
    }
    if let Some(key) = &s.trust_key {
        PublicKey::read(key.as_ref())?;
    }
    Ok(())
}
