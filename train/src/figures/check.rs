//! `crossweave config check`: what `train` looks at before its first step is looked at, all faults are reported at once, and nothing is begun
//! or left behind.

use crate::backend::{self, BackendChoice};
use crate::found::Found;
use crate::surroundings::{Plugins, Surroundings};
use crate::train_error::{Result, TrainError};
use crate::{capable, fits, free_folder, graphs, keys, may_become, ready};
use crate::{hub, job_error, source};
use crossweave_config::{Config, Data};
use crossweave_data::{Corpus, DataSpec, Progress};
use crossweave_hal::{Device, HostServices};
use crossweave_words::Size;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Bytes of text that are turned into tokens to see whether they fill a sequence. More text does.
const SHORT: u64 = 16 << 20;

/// What the config amounts to on `ranks` ranks of the back end that `choice` or the config names, and what is remarkable about it.
///
/// # Errors
/// Everything that `train` would refuse, each fault with its place.
pub fn check(
    mut config: Config,
    ranks: u64,
    choice: &BackendChoice,
    around: &Surroundings,
    progress: &dyn Progress,
) -> Result<String> {
    let mut found = Found::default();
    let pinned = hub::pin(&mut config, &around.caches);
    found.take(&config, "model", pinned);
    let asked = config.clone();
    // Batches of a file bring sizes of their own, which are not known yet.
    if !matches!(config.settings.data, Some(Data::Tokens(_))) {
        found.take(&asked, "run", config.resolve(ranks));
    }
    let run = &asked.settings.run;
    let count = u32::try_from(ranks).map_err(|_| {
        TrainError::refused(format!("{ranks} ranks are too many"), "give --ranks N")
    })?;
    let host = backend::host(&around.plugins, count, run.threads_per_rank, None);
    let device = device(choice, &run.backend, &host, &around.plugins);
    // What the command line names is no key of the config.
    let device = match choice.plugin.is_some() || !choice.layers.is_empty() {
        true => Some(device?),
        false => found.take(&asked, "run.backend", device),
    };
    found.take(&asked, "run.out", free_folder(&asked));
    found.take(&asked, "checkpoint", keys(&asked));
    let scratch = Scratch::new(&around.scratch);
    let notes = RefCell::new(vec![]);
    if let Some(Data::Text(d)) = &asked.settings.data
        && let Some(dir) = &d.cache_dir
    {
        found.take(&asked, "data", may_become(dir.as_ref()));
    }
    let open = |spec: &DataSpec, _: &Data| -> job_error::Result<Option<Corpus>> {
        let remarks = crossweave_data::check(spec)?;
        notes
            .borrow_mut()
            .extend(remarks.iter().map(ToString::to_string));
        let bytes = crossweave_data::text_bytes(spec)?;
        if bytes > SHORT {
            notes.borrow_mut().push(format!(
                "note: {} of text are not turned into tokens here",
                Size(bytes)
            ));
            return Ok(None);
        }
        Ok(Some(source::open(spec, &scratch.0, progress)?))
    };
    let ready = ready(
        &mut config,
        ranks,
        &host,
        (&open, &around.caches),
        &mut found,
    );
    if let (Some(device), Some(r)) = (device, &ready) {
        let compute = crate::job::spec::compute_type(r.job.resolved.dtype);
        found.take(&asked, "run.dtype", able(&asked, &host, &device, compute));
        let room = fits(&device, &r.job, &r.layout);
        found.take(&asked, "train_micro_batch_size_per_gpu", room);
    }
    found.end()?;
    let mut text = asked.check(ranks)?;
    let mut notes = notes.into_inner();
    for r in ready.iter().flat_map(|r| &r.remarks) {
        let line = r.to_string();
        if !notes.contains(&line) {
            notes.push(line);
        }
    }
    text.extend(notes.iter().map(|n| format!("{n}\n")));
    Ok(text)
}

/// The first device of the back end.
fn device(
    choice: &BackendChoice,
    name: &str,
    host: &HostServices,
    plugins: &Plugins,
) -> Result<Device> {
    let plugin = backend::choose(choice, name, host, plugins)?;
    backend::count(&plugin)?;
    Ok(plugin.open(0)?)
}

/// Whether the device can do what the config asks of it.
fn able(
    config: &Config,
    host: &HostServices,
    device: &Device,
    compute: crossweave_hal::DType,
) -> Result<()> {
    let run = &config.settings.run;
    if run.allow_host_ops {
        backend::allow_host_ops(device, host, 0)?;
    }
    capable(device, compute)?;
    graphs(device, &run.graphs)?;
    Ok(())
}

/// A folder for tokens that goes away with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: &Path) -> Scratch {
        let name = format!("crossweave-check-{}", std::process::id());
        Scratch(folder.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Where no text was read there is none.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
