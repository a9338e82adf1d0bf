//! The way of every op and collective of a training step on a back end, before anything is trained.
//!
//! The step is rehearsed on the null device inside the census layer, which counts each op with its types and shapes; then every one
//! of them is prepared on the back end asked for, and the kernel says which way it goes. What is shown is what `train` would launch.

mod collectives;
mod lock;
mod rows;
pub mod text;

use crate::backend::{self, BackendChoice, host, open_linked};
use crate::config_file;
use crate::job::open::Opened;
use crate::job::spec::compute_type;
use crate::job::{Division, Job, Shares, spec};
use crate::surroundings::{Plugins, Surroundings};
use crate::train::with_offload;
use crate::train_error::{Result, TrainError};
use crossweave_config::Config;
use crossweave_engine::{dry_run, rehearsal};
use crossweave_hal::CheckerState;
use crossweave_layers::{Census, Counts, wrap};
pub use lock::{Difference, Lock};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Keeps what a config sends off the device on it, since the ops of a step are counted where it trains; whether anything was away.
fn onto_the_device(config: &mut Config) -> Result<bool> {
    let zero = config.settings.zero_optimization.clone();
    let homes = [
        (
            "offload_optimizer",
            zero.offload_optimizer.map(|o| o.device),
        ),
        ("offload_param", zero.offload_param.map(|o| o.device)),
    ];
    let mut away = false;
    for (key, device) in homes {
        if device.is_some_and(|d| d != "none") {
            config.set(&format!("zero_optimization.{key}.device"), "\"none\"")?;
            away = true;
        }
    }
    Ok(away)
}

/// What is explained.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The file of the config.
    pub config: PathBuf,
    /// Keys that are laid over it: `key.path=value`.
    pub sets: Vec<String>,
    /// Ranks of the job. `None`: `mesh.dp`, else one.
    pub ranks: Option<u32>,
    /// The back end that computes.
    pub backend: BackendChoice,
    /// The device's peak in TFLOP/s and its bandwidth in GB/s, for what the back end gives no estimate of.
    pub tflops: Option<f64>,
    /// See `tflops`.
    pub gbps: Option<f64>,
}

/// The routes of a step on a back end.
pub struct Explained {
    /// Every op, move and collective with its route and its cost, by the schema `crossweave.explain/1`.
    pub page: Value,
    /// The routes alone, which a file can be held against.
    pub routes: Lock,
    /// The refusal of ops that have no route, which names the first and their number.
    missing: Option<TrainError>,
}

impl Explained {
    /// Refuses a step that has ops without a route.
    ///
    /// # Errors
    /// The first of them, and how many there are.
    pub fn all_routed(self) -> Result<Lock> {
        self.missing.map_or(Ok(self.routes), Err)
    }
}

/// Finds the route of every op and collective of a step.
///
/// # Errors
/// A config that is wrong; a back end that cannot be used.
pub fn explain(what: &Explanation, around: &Surroundings) -> Result<Explained> {
    let plugins = &around.plugins;
    let asked = &what.backend;
    let mut config = config_file::load(&what.config, &what.sets, &around.caches)?;
    if let Some(name) = &asked.name {
        config.set("run.backend", &Value::from(name.as_str()).to_string())?;
    }
    let offloads = onto_the_device(&mut config)?;
    let ranks = config.ranks(what.ranks.map(u64::from));
    let job = Opened::sizes(config, ranks, &around.caches)?;
    let counts = count(&job, ranks, &around.plugins)?;

    let services = host(plugins, ranks as u32, Some(1), None);
    let plugin = backend::choose(
        asked,
        &job.resolved.settings.run.backend,
        &services,
        plugins,
    )?;
    let device = backend::open_device(&plugin, 0)?;
    let may = job.resolved.settings.run.allow_host_ops;
    if may {
        backend::allow_host_ops(&device, &services, 0)?;
    }
    let rates = rows::Rates::of(&device, what.tflops, what.gbps);
    let ops = rows::ops(&device, &counts, &rates)?;
    let colls = collectives::rows(&plugin, &services, &counts, ranks as u32)?;
    let mut page = json!({
        "schema": "crossweave.explain/1",
        "config": what.config.display().to_string(),
        "plugin": {
            "name": plugin.name(), "version": plugin.version(), "vendor": plugin.vendor(),
            "path": plugin.path().map(|p| p.display().to_string()), "layers": asked.layers,
        },
        "device": device.info()?.name,
        "ranks": ranks,
        "pipeline_stages": job.resolved.settings.mesh.pp,
        "dtype": job.resolved.dtype,
        "allow_host_ops": may,
        "offloads": offloads,
        "ops": ops.iter().map(rows::Row::json).collect::<Vec<_>>(),
        "moves": rows::moves(&counts),
        "collectives": colls.iter().map(collectives::Row::json).collect::<Vec<_>>(),
        "totals": rows::totals(&ops, &colls, &counts),
    });
    // Where a back end has several kernels of its best tier, it may say which it took.
    if let Some(text) = device
        .attr("kernels.chosen")
        .ok()
        .and_then(|b| String::from_utf8(b).ok())
    {
        page["kernels_chosen"] = text.into();
    }
    let missing: Vec<&rows::Row> = ops.iter().filter(|r| r.how.is_err()).collect();
    let missing = missing.first().map(|first| {
        let why = first.how.as_ref().err().map_or("", String::as_str);
        TrainError::refused(
            format!(
                "{} ops of this step have no route on {}, the first {}: {why}",
                missing.len(),
                plugin.name(),
                first.op
            ),
            "implement the op or the primitives of its decomposition, or set run.allow_host_ops=true",
        )
    });
    Ok(Explained {
        routes: Lock::of(&page, &ops, &colls),
        page,
        missing,
    })
}

/// What one step of rank 0, or of rank 0 of every pipeline stage, launches.
fn count(job: &Job, ranks: u64, plugins: &Plugins) -> Result<Counts> {
    let services = host(plugins, ranks as u32, None, None);
    let bare = open_linked("null", &services)?;
    let mesh = &job.resolved.settings.mesh;
    let stages = mesh.pp.max(1);
    let first = job.place(0);
    let units = job.units(&first)?;
    let (compute, micro) = (compute_type(job.resolved.dtype), job.resolved.batch.micro);
    let dry = dry_run(&bare.open(0)?, &units, compute, micro, job.seq_len)?;
    let division = Division::new(job, (&dry.units, dry.shape), Shares::Even)?;
    let mut all = Counts::default();
    for stage in 0..stages as u32 {
        let census = Census::default();
        let layer = Box::new(census.clone());
        let plugin = bare
            .with_checker(&CheckerState::default())
            .layered(|raw| Ok::<_, TrainError>(wrap(raw, &services, layer)))?;
        let null = plugin.open(0)?;
        let place = first.stage(stage);
        let spec = with_offload(spec(job, &division, place), &job.resolved);
        let mut trainer = rehearsal(&null, job.units(&place)?, &spec, &dry)?;
        // The first step may differ: it gathers what later ones find gathered. The third shows what every later one does.
        let mut before = Counts::default();
        let mut step = Counts::default();
        crossweave_engine::rehearse(&mut trainer, 3, &mut |_| {
            let now = census.counts();
            step = now.since(&before);
            before = now;
        })?;
        all.add(&step);
    }
    Ok(all)
}
