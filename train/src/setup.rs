//! From a command line to a job: everything is checked here, before the first rank starts and before anything is written.

use crate::backend;
use crate::balance;
use crate::computes::{Computes, Machine};
use crate::events::{Event, Reported};
use crate::folder::{self, RunFolder};
use crate::found::{self, Found};
use crate::job::Shares;
use crate::job::spec::compute_type;
use crate::origin::Origin;
use crate::prepared::Run;
use crate::processes::Processes;
use crate::ranks::{LocalRanks, Ranks, numbered};
use crate::ready::{self, Ready};
use crate::request::Request;
use crate::resume;
use crate::source;
use crate::trace::TraceSpec;
use crate::train_error::{Result, TrainError};
use crossweave_config::{Balance, Config, Data, Problem, ReduceOrder, Resolved, Run as RunKeys};
use crossweave_data::{DataSpec, Remark};
use crossweave_hal::abi::{
    CAP_GRAPHS_PAY, IFACE_COLLECTIVE, IFACE_GRAPH, Layout as TensorLayout, op,
};
use crossweave_hal::{Carrier, DType, Device, HostServices, OpRequest};
use crossweave_mesh::{IslandOrder, Islands};
use crossweave_tensor::Decompositions;
use serde::Deserialize;

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
    let ranks = numbered(count)?;
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
    // What the command line names is no key of the config.
    let local_ranks = match args.names_backend() {
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
    let ready = ready::ready(
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
    let resume = resume::begin(args, &folder.path, &job, &reads)?;
    let order = order(resolved);
    // Of several processes they are known when those have agreed.
    let islands = match processes {
        Some(_) => None,
        None => islands_of(local_ranks.islands(), order),
    };
    let carrier = carrier(processes, islands.as_ref(), &host)?;
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
            able(&first, &run.host, &run.job.resolved.settings.run, compute)?;
            run.layout.fits_all(&run.job, &first, &at)
        });
        able.map_err(|e| run.local_ranks.fault_of(name, &at, e))?;
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
pub fn order(r: &Resolved) -> IslandOrder {
    match r.settings.collectives.order {
        ReduceOrder::Rank => IslandOrder::Rank,
        ReduceOrder::Plan => IslandOrder::Plan,
    }
}

/// What carries collectives between processes, or between the islands of this one; none where a back end's own reach all ranks.
///
/// # Errors
/// A back end that refuses its configuration.
pub fn carrier(
    processes: Option<&Processes>,
    islands: Option<&Islands>,
    host: &HostServices,
) -> Result<Option<Carrier>> {
    if let Some(p) = processes {
        return Ok(Some(p.carrier.clone()));
    }
    islands.map(|_| backend::bridge(host)).transpose()
}

/// The islands of a job, where it has more than one.
pub fn islands_of(all: Vec<u32>, order: IslandOrder) -> Option<Islands> {
    let several = all.iter().any(|k| *k != all[0]);
    several.then(|| Islands::new(&all, order))
}

/// The back ends of the ranks of all processes, and the islands that they form, where there are several.
///
/// # Errors
/// A process that has failed.
pub fn meet(
    p: &Processes,
    (local_ranks, own): (&LocalRanks, &[Computes]),
    order: IslandOrder,
) -> Result<(Vec<Computes>, Option<Islands>)> {
    let own = serde_json::json!({"islands": local_ranks.islands(), "computes": own});
    let (mut all, mut computes) = (vec![], vec![]);
    for bytes in p.call("islands", own.to_string().as_bytes())? {
        let said = serde_json::from_slice::<Said>(&bytes).map_err(|e| {
            let what =
                format!("a process says what computes its ranks in words of another version: {e}");
            TrainError::refused(what, "run the same build in every process")
        })?;
        let base = all.iter().max().map_or(0, |k| k + 1);
        all.extend(said.islands.iter().map(|k| base + k));
        for c in said.computes {
            c.join(&mut computes);
        }
    }
    let islands = match p.process_map.is_single() {
        true => None,
        false => islands_of(all, order),
    };
    Ok((computes, islands))
}

impl Run {
    /// Learns which ranks of the other processes share a library, and who computes them, once all are prepared. A process of one rank is
    /// alone in its island; where all are, MPI carries everything.
    ///
    /// # Errors
    /// A process that has failed.
    pub fn rendezvous(&mut self, p: &Processes) -> Result<()> {
        let own = (&self.local_ranks, &*self.computes);
        (self.computes, self.islands) = meet(p, own, order(&self.job.resolved))?;
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
            let fits = first.and_then(|first| self.layout.fits_all(&self.job, &first, &at));
            fits.map_err(|e| self.local_ranks.fault_of(name, &at, e))?;
        }
        Ok(self)
    }
}

/// The back ends of the ranks of this process.
///
/// # Errors
/// A back end that is not there, or finds no device.
pub fn local_ranks(
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

/// Whether a device can do what the section `run` of a config asks of it, in the compute type.
///
/// # Errors
/// It cannot.
pub fn able(device: &Device, host: &HostServices, run: &RunKeys, compute: DType) -> Result<()> {
    if run.allow_host_ops {
        backend::allow_host_ops(device, host, 0)?;
    }
    capable(device, compute)?;
    graphs(device, &run.graphs)?;
    Ok(())
}

/// Can the device multiply matrices of the compute type? A back end that cannot is refused now, not by its first op.
fn capable(device: &Device, compute: DType) -> Result<()> {
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
