//! What `train` looks at before its first step is looked at, all faults are found at once, and nothing is begun or left behind.

use crate::backend;
use crate::computes::Computes;
use crate::folder::{free_folder, may_become, requested};
use crate::found::Found;
use crate::job::open::OpenCorpus;
use crate::job::spec::compute_type;
use crate::job_error::{self, JobError};
use crate::ranks::{LocalRanks, numbered};
use crate::ready::{Ready, keys, ready};
use crate::request::Request;
use crate::setup::{able, local_ranks};
use crate::train_error::{Result, TrainError};
use crate::{hub, resume, shared_layers, source};
use crossweave_config::{Config, Data, Resolved};
use crossweave_data::{Corpus, DataSpec};
use crossweave_hal::Device;
use crossweave_words::Size;
use std::cell::RefCell;
use std::path::PathBuf;
use tempfile::TempDir;

/// Bytes of text that are turned into tokens to see whether they fill a sequence. More text does.
const SHORT: u64 = 16 << 20;

/// A config that can be trained here, and what it amounts to. One that cannot is an error with each of its faults
/// ([`TrainError::faults`]).
#[derive(Clone, Debug)]
pub struct Checked {
    /// The config as it was given, a model of the hub by its revision.
    pub config: Config,
    /// Ranks of the job.
    pub ranks: u64,
    /// The config with everything solved that was left open: batch, types, learning rates; and warnings about keys without effect.
    pub resolved: Resolved,
    /// What is remarkable about the data, a sentence each.
    pub remarks: Vec<String>,
    /// What model and data come to; none where the text is longer than 16 MiB, and so was left unread.
    pub sizes: Option<SizesOfJob>,
}

/// What the model and the data of a job come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizesOfJob {
    /// Parameters of the model.
    pub params: u64,
    /// Tokens of a sequence.
    pub seq_len: u64,
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Ranks that do the same work, by their numbers: each class is planned once.
    pub classes: Vec<Vec<u32>>,
}

impl SizesOfJob {
    fn of(ready: &Ready) -> SizesOfJob {
        let classes = ready.layout.classes.iter();
        SizesOfJob {
            params: ready.layout.dry(0).params,
            seq_len: ready.job.seq_len,
            steps: ready.reads.steps,
            classes: classes.map(|c| c.ranks.clone()).collect(),
        }
    }
}

/// What the config of a request amounts to, and what is remarkable about it.
///
/// # Errors
/// Everything that `train` would refuse, each fault with its code, key, place and fix; back ends that are named beside the config.
pub fn check(request: &Request) -> Result<Checked> {
    let around = &request.around;
    let mut found = Found::default();
    let mut config = request.read()?;
    let ranks = request.ranks_of(&config);
    let pinned = hub::pin(&mut config, &around.caches);
    found.take(&config, "model", pinned);
    let asked = config.clone();
    // Batches of a file bring sizes of their own, which are not known yet.
    if !matches!(config.settings.data, Some(Data::Tokens(_))) {
        found.take(&asked, "run", config.resolve(ranks));
    }
    let run = &asked.settings.run;
    let count = numbered(ranks)?;
    let host = backend::host(&around.plugins, count, run.threads_per_rank, None);
    let devices = local_ranks(request, &asked, None, count, &host)
        .and_then(|local| Ok((first_devices(&local)?, local)));
    // What the command line names is no key of the config.
    let devices = match request.names_backend() {
        true => Some(devices?),
        false => found.take(&asked, "run.backend", devices),
    };
    if request.resume.is_none() {
        found.take(&asked, "run.out", free_folder(&asked));
    }
    found.take(&asked, "checkpoint", keys(&asked));
    let text = Text {
        request,
        asked: &asked,
        scratch: RefCell::new(None),
        remarks: RefCell::new(vec![]),
    };
    if let Some(Data::Text(d)) = &asked.settings.data
        && let Some(dir) = &d.cache_dir
    {
        found.take(&asked, "data", may_become(dir.as_ref()));
    }
    let open = |spec: &DataSpec, data: &Data| text.open(spec, data);
    let own = request.given.units.clone();
    let open = (&open as OpenCorpus<'_>, &around.caches, own);
    let ready = ready(&mut config, ranks, &host, open, &mut found);
    if let (Some((devices, local)), Some(r)) = (devices, &ready) {
        for (name, device, at) in devices {
            let compute = compute_type(r.job.resolved.dtype);
            let of = |e| local.fault_of(&name, &at, e);
            let can = able(&device, &host, &asked.settings.run, compute);
            found.take(&asked, "run.dtype", can.map_err(of));
            let room = r.layout.fits_all(&r.job, &device, &at);
            let key = "train_micro_batch_size_per_gpu";
            found.take(&asked, key, room.map_err(of));
        }
        let computes: Vec<Computes> = local.backends().map(Computes::of).collect();
        let alike = shared_layers::check(&r.job, &computes);
        found.take(&asked, "mesh.tp", alike);
    }
    found.end()?;
    if let Some(r) = &ready {
        let out = requested(request, &asked).unwrap_or_default();
        resume::begin(request, &out, &r.job, &r.reads)?;
    }
    let mut remarks = text.remarks.into_inner();
    for r in ready.iter().flat_map(|r| &r.remarks) {
        let line = r.to_string();
        if !remarks.contains(&line) {
            remarks.push(line);
        }
    }
    Ok(Checked {
        resolved: asked.resolve(ranks)?,
        config: asked,
        ranks,
        remarks,
        sizes: ready.as_ref().map(SizesOfJob::of),
    })
}

/// The text of a config while it is looked at.
struct Text<'a> {
    request: &'a Request,
    asked: &'a Config,
    /// The folder of its tokens, which goes away with this.
    scratch: RefCell<Option<TempDir>>,
    /// What is remarkable about it, a sentence each.
    remarks: RefCell<Vec<String>>,
}

impl Text<'_> {
    /// Opens the corpus; text that is long enough for any job is left unread.
    fn open(&self, spec: &DataSpec, data: &Data) -> job_error::Result<Option<Corpus>> {
        let Text { request, .. } = self;
        if let Some(rows) = &request.given.rows {
            return Ok(Some(crossweave_data::of_rows(spec, rows.clone())?));
        }
        let mut remarks = self.remarks.borrow_mut();
        let said = crossweave_data::check(spec)?;
        remarks.extend(said.iter().map(ToString::to_string));
        let bytes = crossweave_data::text_bytes(spec)?;
        if bytes > SHORT {
            let size = Size(bytes);
            remarks.push(format!(
                "note: {size} of text are not turned into tokens here"
            ));
            return Ok(None);
        }
        let progress = request.events.corpus();
        Ok(Some(source::open(spec, &self.tokens(data)?, &*progress)?))
    }

    /// The folder for its tokens: one of the surroundings' scratch, else the run's own.
    fn tokens(&self, data: &Data) -> job_error::Result<PathBuf> {
        let around = &self.request.around;
        if around.scratch.as_os_str().is_empty() {
            let out = requested(self.request, self.asked).unwrap_or("runs".into());
            return Ok(source::cache_dir(data, &out, &around.caches));
        }
        let mut folder = tempfile::Builder::new();
        let folder = folder
            .prefix("crossweave-check-")
            .tempdir_in(&around.scratch);
        let folder = folder.map_err(JobError::io("make a folder in", &around.scratch))?;
        let path = folder.path().to_path_buf();
        self.scratch.replace(Some(folder));
        Ok(path)
    }
}

/// The first device of each back end, with the name and the ranks of that.
fn first_devices(local: &LocalRanks) -> Result<Vec<(String, Device, Vec<u32>)>> {
    let open = |(name, plugin, at): (&str, &crossweave_hal::Plugin, Vec<u32>)| {
        let device = plugin.open(0).map_err(TrainError::from);
        let device = device.map_err(|e| local.fault_of(name, &at, e))?;
        Ok((name.to_string(), device, at))
    };
    local.backends().map(open).collect()
}
