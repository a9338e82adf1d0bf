//! The way of every op and collective of a training step on a back end, before anything is trained.
//!
//! The step is rehearsed on the null device inside the census layer, which counts each op with its types and shapes; then every one
//! of them is prepared on the back end asked for, and the kernel says which way it goes. What is shown is what `train` would launch.

mod collectives;
mod lock;
mod rows;

use crate::backend::{self, host, open_linked};
use crate::choice::choice;
use crate::job::spec::compute_type;
use crate::job::{Job, spec};
use crate::layout::divided;
use crate::request::Request;
use crate::surroundings::Plugins;
use crate::train_error::{Result, TrainError};
pub use collectives::{BetweenProcesses, CollectiveRow};
use crossweave_config::Config;
use crossweave_engine::rehearsal;
use crossweave_hal::CheckerState;
use crossweave_layers::{Census, Counts, wrap};
pub use lock::{Difference, Lock};
pub use rows::{Moves, OpRow, Totals};
use serde::Serialize;

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

/// What the device can do at most, for estimates of ops of which the back end gives none. `None`: as the device says.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakRates {
    /// Its peak in TFLOP/s.
    pub tflops: Option<f64>,
    /// Its bandwidth in GB/s.
    pub gbps: Option<f64>,
}

/// The routes of a step on a back end. As JSON they are what `crossweave explain --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Routes {
    /// `crossweave.explain/1`.
    pub schema: &'static str,
    /// The name of the config.
    pub config: String,
    /// The back end.
    pub plugin: BackEnd,
    /// What its device calls itself.
    pub device: String,
    /// Ranks of the job.
    pub ranks: u64,
    /// Pipeline stages of the job.
    pub pipeline_stages: u64,
    /// Type of weights and activations.
    pub dtype: &'static str,
    /// Whether what the device has no other route for may be computed on the host.
    pub allow_host_ops: bool,
    /// Whether the config keeps states off the device, which is listed as if it did not.
    pub offloads: bool,
    /// Every op, the worst ways first.
    pub ops: Vec<OpRow>,
    /// Copies and fills that are no part of an op.
    pub moves: Vec<Moves>,
    /// Every collective.
    pub collectives: Vec<CollectiveRow>,
    /// Sums of a step.
    pub totals: Totals,
    /// Which of several kernels of its best tier the back end took, where it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels_chosen: Option<String>,
}

/// A back end.
#[derive(Clone, Debug, Serialize)]
pub struct BackEnd {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Who made it.
    pub vendor: String,
    /// Its file, where it is not linked.
    pub path: Option<String>,
    /// The layers around it.
    pub layers: Vec<String>,
}

/// What is known of a step on a back end.
pub struct Explained {
    /// Every op, move and collective with its route and its cost.
    pub found: Routes,
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

/// Finds the route of every op and collective of a step of a job.
///
/// # Errors
/// A config that is wrong; a back end that cannot be used.
pub fn explain(request: &Request, peak: PeakRates) -> Result<Explained> {
    let plugins = &request.around.plugins;
    let (asked, name) = (&request.backend, request.config.display().to_string());
    let mut config = request.load()?;
    let offloads = onto_the_device(&mut config)?;
    let ranks = request.ranks_of(&config);
    let job = request.sizes(config, ranks)?;
    let counts = count(&job, ranks, plugins)?;

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
    let rates = rows::Rates::of(&device, peak.tflops, peak.gbps);
    let ops = rows::ops(&device, &counts, &rates)?;
    let choice = choice(&job.resolved.settings.communication);
    let colls = collectives::rows(&plugin, &services, &counts, ranks as u32, &choice)?;
    // Where a back end has several kernels of its best tier, it may say which it took.
    let kernels = device.attr("kernels.chosen").ok();
    let found = Routes {
        schema: "crossweave.explain/1",
        config: name.clone(),
        plugin: BackEnd {
            name: plugin.name().to_string(),
            version: plugin.version().to_string(),
            vendor: plugin.vendor().to_string(),
            path: plugin.path().map(|p| p.display().to_string()),
            layers: asked.layers.clone(),
        },
        device: device.info()?.name,
        ranks,
        pipeline_stages: job.resolved.settings.mesh.pp,
        dtype: compute_type(job.resolved.dtype).name(),
        allow_host_ops: may,
        offloads,
        ops: ops.iter().map(rows::Row::values).collect(),
        moves: rows::moves(&counts),
        totals: rows::totals(&ops, &colls, &counts),
        collectives: colls,
        kernels_chosen: kernels.and_then(|b| String::from_utf8(b).ok()),
    };
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
        routes: Lock::of((plugin.name(), &name), &ops, &found.collectives),
        found,
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
    let (dry, division) = divided(&bare.open(0)?, job, &first)?;
    let mut all = Counts::default();
    for stage in 0..stages as u32 {
        let census = Census::default();
        let layer = Box::new(census.clone());
        let plugin = bare
            .with_checker(&CheckerState::default())
            .layered(|raw| Ok::<_, TrainError>(wrap(raw, &services, layer)))?;
        let null = plugin.open(0)?;
        let place = first.stage(stage);
        let spec = spec(job, &division, place);
        let mut engine = rehearsal(&null, job.units(&place)?, &spec, &dry)?;
        // The first step may differ: it gathers what later ones find gathered. The third shows what every later one does.
        let mut before = Counts::default();
        let mut step = Counts::default();
        crossweave_engine::rehearse(&mut engine, 3, &mut |_| {
            let now = census.counts();
            step = now.since(&before);
            before = now;
        })?;
        all.add(&step);
    }
    Ok(all)
}
