//! From a command line to a job: everything is checked here, before the first rank starts and before anything is written.

use crate::backend;
use crate::balance;
use crate::computes::{Computes, Machine};
use crate::events::{Event, Reported};
use crate::folder::{self, RunFolder};
use crate::found::{self, Found};
use crate::job::open::Reads;
use crate::job::spec::compute_type;
use crate::job::{Feed, Job, Shares, spec};
use crate::layout::Layout;
use crate::processes::Processes;
use crate::ranks::{LocalRanks, Ranks};
use crate::ready::{self, Ready};
use crate::record::Origin;
use crate::request::{Continued, Request};
use crate::resume::{self, Resume};
use crate::session::Session;
use crate::source;
use crate::trace::TraceSpec;
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::step_dir;
use crossweave_claim::Claim;
use crossweave_config::{Balance, Config, Data, Problem, ReduceOrder, Resolved};
use crossweave_data::{DataSpec, Remark};
use crossweave_engine::{Devices, Links, RankSpec};
use crossweave_hal::abi::{
    CAP_GRAPHS_PAY, IFACE_COLLECTIVE, IFACE_GRAPH, Layout as TensorLayout, op,
};
use crossweave_hal::{Bootstrap, Carrier, DType, Device, HostServices, OpRequest};
use crossweave_mesh::{IslandOrder, Islands};
use crossweave_report::listed;
use crossweave_tensor::Decompositions;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A job on the back ends of this process; shared by its ranks by reference.
pub struct Run {
    /// What every rank has in common.
    pub job: Job,
    /// What its steps read.
    pub reads: Reads,
    /// The ranks' shares of the work.
    pub layout: Layout,
    /// The ranks of this process, and their back ends.
    pub local_ranks: LocalRanks,
    /// What carries the collectives between processes, or between the back ends of this one.
    carrier: Option<Carrier>,
    /// Which ranks share a library of collectives, where they do not all.
    pub islands: Option<Islands>,
    /// The back ends, with the ranks that each computes.
    pub computes: Vec<Computes>,
    /// Host services of the back ends.
    pub host: HostServices,
    /// Output folder.
    pub out: PathBuf,
    /// Held by the process that writes there.
    pub claim: Option<Arc<Claim>>,
    /// The checkpoint from which the run continues.
    pub resume: Resume,
    /// The file of its timeline.
    pub trace: Option<TraceSpec>,
    /// Who runs it, for its record.
    pub origin: Origin,
    /// Which steps are reported, and who watches.
    pub reported: Reported,
}

/// What a process says of its ranks: see [`Run::rendezvous`].
#[derive(Deserialize)]
struct Said {
    islands: Vec<u32>,
    computes: Vec<Computes>,
}

/// Prepares the job of a command line. `writes`: its output folder is claimed, by the process of rank 0.
///
/// # Errors
/// Whatever is wrong with config, data, model, back end or output folder.
pub fn prepare(args: &Request, processes: Option<&Processes>, writes: bool) -> Result<Run> {
    // Rank 0 goes first and chooses the folder.
    let folder = match processes.filter(|p| !p.first()) {
        Some(p) => Some(p.folder()?),
        None => None,
    };
    let caches = &args.around.caches;
    let mut config = args.load()?;
    // Before the program fills anything in.
    let origin = Origin::of(&config, processes, &args.around.command);
    let asked = processes.map(|p| p.process_map.world());
    let asked = asked.or(args.ranks.as_ref().map(Ranks::count));
    let count = config.ranks(asked.map(u64::from));
    let ranks = u32::try_from(count).map_err(|_| {
        TrainError::refused(format!("{count} ranks are too many"), "give --ranks N")
    })?;
    // Contradictions are reported before text is turned into tokens; given batches bring sizes of their own, so they come first.
    if !matches!(config.settings.data, Some(Data::Tokens(_))) {
        config.resolve(count)?;
    }
    if config.settings.data.is_none() || config.settings.model.is_none() {
        // This says which of the two is missing.
        config.resolve(count)?;
    }
    let folder = match folder {
        Some(out) => RunFolder::unclaimed(out),
        None if writes => RunFolder::choose(args, &config)?,
        None => RunFolder::unclaimed(folder::requested(args, &config).unwrap_or("runs".into())),
    };
    let host = backend::host(
        &args.around.plugins,
        processes.map_or(ranks, Processes::crowd),
        config.settings.run.threads_per_rank,
        processes.map(|p| p.store.clone()),
    );
    let local_ranks = local_ranks(args, &config, processes, ranks, &host);
    let parts = matches!(args.ranks, Some(Ranks::Parts(_)));
    // What the command line names is no key of the config.
    let named = parts || args.backend.plugin.is_some() || !args.backend.layers.is_empty();
    let local_ranks = match named {
        true => local_ranks?,
        false => found::at(&config, "run.backend", local_ranks)?,
    };
    found::at(&config, "checkpoint", ready::keys(&config))?;

    let cache = |data: &Data| source::cache_dir(data, &folder.path, caches);
    let progress = args.events.corpus();
    let open = |spec: &DataSpec, data: &Data| {
        Ok(Some(match &args.given.rows {
            Some(rows) => crossweave_data::of_rows(spec, rows.clone())?,
            None => source::open(spec, &cache(data), &*progress)?,
        }))
    };
    let mut found = Found::default();
    let ready = ready::ready_with(
        &mut config,
        count,
        &host,
        (&open, caches, args.given.units.clone()),
        &mut found,
    );
    found.end()?;
    // Where there is no fault there is a job, whose text was read.
    let ready =
        ready.ok_or_else(|| TrainError::refused("the config makes no job", "report this"))?;
    let Ready {
        job,
        reads,
        remarks,
        layout,
    } = ready;
    let resolved = &job.resolved;
    let compute = compute_type(resolved.dtype);
    let resume = match &args.resume {
        Some(Continued::Own) if !resume::has_checkpoint(&folder.path)? => Resume::fresh(),
        Some(c) => {
            let dir = c.folder().unwrap_or(&folder.path);
            resume::find(dir, resolved, &reads.corpus, &job.source, reads.steps)?
        }
        None => Resume::fresh(),
    };
    let order = order(resolved);
    // Of several processes they are known when those have agreed.
    let islands = match processes {
        Some(_) => None,
        None => islands_of(local_ranks.islands(), order),
    };
    let carrier = match (processes, &islands) {
        (Some(p), _) => Some(p.carrier.clone()),
        (None, Some(_)) => Some(backend::bridge(&host)?),
        (None, None) => None,
    };
    let speaks = processes.is_none_or(Processes::first);
    let trace = args.trace.as_deref().map(|t| TraceSpec::new(t, speaks));
    let trace = trace.transpose()?;
    announce_carriers(args, &local_ranks, processes);
    if processes.is_none_or(Processes::first) {
        let notes = folder.notes.iter().chain(&resume.notes);
        announce(args, &resolved.warnings, &remarks, notes);
    }
    let reported = Reported {
        every: args.lines.every(resolved.settings.run.log_every),
        events: args.events.clone(),
    };
    let mut run = Run {
        job,
        reads,
        layout,
        origin,
        computes: local_ranks.backends().map(Computes::of).collect(),
        local_ranks,
        carrier,
        islands,
        host,
        out: folder.path,
        claim: folder.claim,
        resume,
        trace,
        reported,
    };
    // Refused here, before the output folder exists, rather than after minutes of filling memory.
    let mut machines = vec![];
    for (name, plugin, at) in run.local_ranks.backends() {
        let first = plugin.open(0).map_err(TrainError::from);
        let able = first.and_then(|first| {
            machines.push(first.info().ok().map(|i| Machine::of(&i)));
            let keys = &run.job.resolved.settings.run;
            if keys.allow_host_ops {
                backend::allow_host_ops(&first, &run.host, 0)?;
            }
            capable(&first, compute)?;
            graphs(&first, &keys.graphs)?;
            run.fits(&first, &at)
        });
        able.map_err(|e| run.of(name, &at, e))?;
    }
    for (c, m) in run.computes.iter_mut().zip(machines) {
        m.into_iter().for_each(|m| c.knows(m));
    }
    Ok(run)
}

/// Reports which back ends of this process leave their own collectives unused, and why.
fn announce_carriers(args: &Request, local_ranks: &LocalRanks, processes: Option<&Processes>) {
    for (name, plugin, at) in local_ranks.backends().filter(|_| processes.is_none()) {
        // Of a back end that has none nothing else could be expected.
        let has = plugin.interfaces().contains(&IFACE_COLLECTIVE);
        if let Some(why) = backend::carried(plugin, at.len() as u32).filter(|_| has) {
            let note = format!("ranks of {name} meet through pinned memory: {why}");
            args.events.on(Event::Note(&note));
        }
    }
}

/// Reports what the user should know of the config, the data, the folder and the checkpoint.
fn announce<'a>(
    args: &Request,
    warnings: &[Problem],
    remarks: &[Remark],
    notes: impl Iterator<Item = &'a String>,
) {
    let events = &args.events;
    for w in warnings {
        events.on(Event::Warning(&w.to_string()));
    }
    remarks.iter().for_each(|r| events.on(Event::Remark(r)));
    notes.for_each(|n| events.on(Event::Note(n)));
}

/// In which order sums over islands add.
fn order(r: &Resolved) -> IslandOrder {
    match r.settings.collectives.order {
        ReduceOrder::Rank => IslandOrder::Rank,
        ReduceOrder::Plan => IslandOrder::Plan,
    }
}

/// The islands of a job, where it has more than one.
fn islands_of(all: Vec<u32>, order: IslandOrder) -> Option<Islands> {
    let several = all.iter().any(|k| *k != all[0]);
    several.then(|| Islands::new(&all, order))
}

impl Run {
    /// Reports what happens to who watches the run.
    pub fn on(&self, event: Event<'_>) {
        self.reported.events.on(event);
    }

    /// Is the output folder still this job's? Asked before each file of it is written or replaced.
    ///
    /// # Errors
    /// Another process has taken it over, or its lock was removed.
    pub fn check_claim(&self) -> Result<()> {
        Ok(self.claim.as_deref().map_or(Ok(()), Claim::check)?)
    }

    /// Gives up what this process has claimed: a rank that was left behind keeps the job.
    pub fn release(&self) {
        if let Some(claim) = &self.claim {
            claim.release();
        }
        if let Some(trace) = &self.trace {
            trace.release();
        }
    }

    /// Learns which ranks of the other processes share a library, and who computes them, once all are prepared. A process of one rank is
    /// alone in its island; where all are, MPI carries everything.
    ///
    /// # Errors
    /// A process that has failed.
    pub fn rendezvous(&mut self, p: &Processes) -> Result<()> {
        let own =
            serde_json::json!({"islands": self.local_ranks.islands(), "computes": self.computes});
        let (mut all, mut computes) = (vec![], vec![]);
        for bytes in p.call("islands", own.to_string().as_bytes())? {
            let said = serde_json::from_slice::<Said>(&bytes).map_err(|e| {
                let what = format!(
                    "a process says what computes its ranks in words of another version: {e}"
                );
                TrainError::refused(what, "run the same build in every process")
            })?;
            let base = all.iter().max().map_or(0, |k| k + 1);
            all.extend(said.islands.iter().map(|k| base + k));
            for c in said.computes {
                c.join(&mut computes);
            }
        }
        self.computes = computes;
        if !p.process_map.is_single() {
            self.islands = islands_of(all, order(&self.job.resolved));
        }
        Ok(())
    }

    /// Divides the work as `run.balance` says, once all ranks of all processes are prepared.
    ///
    /// # Errors
    /// A speed that cannot be measured; a share that does not fit its rank's device.
    pub fn balance(mut self, processes: Option<&Processes>) -> Result<Run> {
        let by = self.job.resolved.settings.run.balance();
        if matches!(by, None | Some(Balance::Even)) {
            return Ok(self);
        }
        let speeds = balance::speeds(&self, processes)?;
        let shares = match &speeds {
            Some(speeds) => Shares::Measured(speeds),
            None => Shares::Given,
        };
        let null = backend::open_linked("null", &self.host)?.open(0)?;
        let before = self.layout.division.clone();
        self.layout = self.layout.divided(&null, &self.job, shares)?;
        let division = &self.layout.division;
        if let Some(speeds) = speeds
            && processes.is_none_or(Processes::first)
        {
            let note = balance::note(&self.job, division, &speeds);
            self.on(Event::Note(&note));
        }
        if *division == before {
            return Ok(self);
        }
        if let Some(rows) = &division.rows {
            self.reads.batches = self.reads.batches.divided(rows)?;
            let held_back = self.reads.validation.take();
            self.reads.validation = held_back.map(|b| b.divided(rows)).transpose()?;
        }
        if processes.is_none_or(Processes::first) {
            // As was done for even shares.
            self.layout.check_world(&self.job, &null)?;
        }
        for (name, plugin, at) in self.local_ranks.backends() {
            let first = plugin.open(0).map_err(TrainError::from);
            let fits = first.and_then(|first| self.fits(&first, &at));
            fits.map_err(|e| self.of(name, &at, e))?;
        }
        Ok(self)
    }

    /// Whether there is room on a device for what each class of the ranks `at` does.
    fn fits(&self, device: &Device, at: &[u32]) -> Result<()> {
        let firsts = self.layout.firsts(at);
        let mut each = firsts.into_iter();
        each.try_for_each(|rank| self.layout.fits(&self.job, device, rank))
    }

    /// An error of some ranks, where there are several back ends.
    fn of(&self, name: &str, ranks: &[u32], e: TrainError) -> TrainError {
        match self.local_ranks.backends().count() {
            1 => e,
            _ => TrainError::Of {
                whom: format!("ranks {} ({name})", listed(ranks)),
                source: Box::new(e),
            },
        }
    }

    /// Opens the device of a rank of this process.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub fn device(&self, rank: u32) -> Result<Device> {
        self.outfit(self.local_ranks.device(rank)?, rank)
    }

    /// The same beside the job: see [`LocalRanks::device_apart`].
    ///
    /// # Errors
    /// As [`Run::device`].
    pub fn device_apart(&self, rank: u32) -> Result<Device> {
        self.outfit(self.local_ranks.device_apart(rank)?, rank)
    }

    fn outfit(&self, device: Device, rank: u32) -> Result<Device> {
        if let Some(carrier) = &self.carrier {
            device.carry(carrier);
        }
        if self.job.resolved.settings.run.allow_host_ops {
            backend::allow_host_ops(&device, &self.host, rank)?;
        }
        Ok(device)
    }

    /// What rank `rank` is to do.
    pub fn rank_spec(&self, rank: u32) -> RankSpec {
        spec(&self.job, &self.layout.division, self.job.place(rank))
    }

    /// How a rank reaches the others, which it meets by `boot`.
    pub fn links<'a>(&self, boot: &'a dyn Bootstrap) -> Links<'a> {
        Links {
            islands: self.islands.clone(),
            // By default long enough for a peer that writes a large checkpoint on a slow disk; a rank that fails aborts the others at once.
            timeout: Some(comm_timeout(self.job.resolved.settings.run.comm_timeout_s)),
            ..Links::new(boot)
        }
    }

    /// The batches of a rank.
    pub fn feed(&self, rank: u32) -> Feed {
        let reads = (&self.reads.batches, self.reads.validation.as_ref());
        Feed::new(
            &self.job,
            reads,
            &self.layout.division,
            self.job.place(rank),
        )
    }

    /// A rank on its devices, to be given its values.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, rank: u32, devices: Devices, links: Links<'_>) -> Result<Session<'_>> {
        let layout = &self.layout;
        let (place, dry) = (self.job.place(rank), layout.dry(rank));
        let feed = self.feed(rank);
        Session::new(
            &self.job,
            (&layout.division, dry),
            place,
            feed,
            devices,
            links,
        )
    }

    /// The folder of the checkpoint behind so many steps.
    pub fn checkpoint(&self, steps: u64) -> PathBuf {
        self.out.join("checkpoints").join(step_dir(steps))
    }

    /// `config.json` of the trained model.
    pub fn hf_config(&self) -> serde_json::Value {
        let tokenizer = self.reads.corpus.tokenizer();
        self.job.source.hf_config(tokenizer.and_then(|t| t.eod()))
    }
}

/// `run.comm_timeout_s`; what is beyond any clock is for ever.
fn comm_timeout(seconds: f64) -> Duration {
    let forever = Duration::from_secs(u32::MAX.into());
    let asked = Duration::try_from_secs_f64(seconds).unwrap_or(forever);
    asked.clamp(Duration::from_millis(1), forever)
}

/// The back ends of the ranks of this process.
fn local_ranks(
    args: &Request,
    config: &Config,
    processes: Option<&Processes>,
    ranks: u32,
    host: &HostServices,
) -> Result<LocalRanks> {
    let plugins = &args.around.plugins;
    let board = processes.map(|p| p.board.clone()).unwrap_or_default();
    if let Some(Ranks::Parts(parts)) = &args.ranks {
        let first = processes.map_or(0, |p| p.here().start);
        let before = |name: &str| processes.map_or(0, |p| p.before(name));
        return LocalRanks::of_parts(
            parts,
            &args.backend,
            (host, plugins),
            (first, &board),
            before,
        );
    }
    let (here, device) = match processes {
        Some(p) => (p.here(), p.device()),
        None => (0..ranks, 0),
    };
    let plugin = backend::choose(&args.backend, &config.settings.run.backend, host, plugins)?;
    backend::count(&plugin)?;
    let plugin = match processes {
        Some(_) => plugin.with_checker(&board),
        None => plugin,
    };
    Ok(LocalRanks::alike((plugin, plugins), here, device))
}

/// Can the device multiply matrices of the compute type? A back end that cannot is refused now, not by its first op.
pub fn capable(device: &Device, compute: DType) -> Result<()> {
    let square = TensorLayout::contiguous(compute, &[2, 2]);
    let operands = [square, square, square, TensorLayout::ABSENT];
    let product = OpRequest::new(
        op::MATMUL,
        &operands,
        op::MatmulParams::default().as_bytes(),
    );
    device.prepare(&product, &Decompositions).map_err(|e| {
        TrainError::refused(
            format!(
                "{} cannot compute in {}: {e}",
                device.plugin().name(),
                compute.name()
            ),
            "choose another run.dtype, or another back end for these ranks",
        )
    })?;
    Ok(())
}

/// Whether steps are replayed on a device, by `run.graphs`.
///
/// # Errors
/// They are to be, and the back end offers no graphs.
pub fn graphs(device: &Device, wanted: &str) -> Result<bool> {
    let offered = device.plugin().interfaces().contains(&IFACE_GRAPH);
    match wanted {
        "on" if !offered => Err(TrainError::refused(
            format!(
                "run.graphs is on, but {} offers no {IFACE_GRAPH} here (layers around a back end hide it)",
                device.plugin().name()
            ),
            "set run.graphs to auto, or leave --layer and --record out",
        )),
        "on" => Ok(true),
        "auto" if offered => Ok(device.info()?.caps & CAP_GRAPHS_PAY != 0),
        _ => Ok(false),
    }
}
