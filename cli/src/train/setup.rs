//! From a command line to a job: everything is checked here, before the first rank starts and before anything is written.

use super::balance;
use super::documents;
use super::folder::{self, RunFolder};
use super::offload::with_offload;
use super::optimizer;
use super::ready::{self, Layout, Ready};
use super::record::{Machine, Origin};
use super::request::Request;
use super::resume::{self, Resume};
use super::specs::{precision, zero_spec};
use super::trace::TraceSpec;
use super::units::units;
use crate::backend;
use crate::found::{self, Found};
use crate::model::Source;
use crate::processes::Processes;
use crate::ranks::{LocalRanks, Ranks};
use crate::train_error::{Result, TrainError};
use crate::{config_file, objective, source, stages};
use crossweave_claim::Claim;
use crossweave_config::{self as config, Config, Data, Dtype, Epoch, ReduceOrder, Resolved};
use crossweave_data::{Batches, Columns, Corpus, DataSpec, Pass};
use crossweave_engine::{DryRun, PipelineSpec, RankSpec, Recompute, dry_run, plan_for};
use crossweave_hal::abi::{
    CAP_GRAPHS_PAY, IFACE_COLLECTIVE, IFACE_GRAPH, Layout as TensorLayout, op,
};
use crossweave_hal::{Carrier, DType, Device, HostServices, OpRequest, Plugin};
use crossweave_mesh::{Axis, IslandOrder, Islands, Place};
use crossweave_report::listed;
use crossweave_tensor::Decompositions;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Everything the ranks need; shared by reference.
pub struct Job {
    /// The config with nothing left open.
    pub resolved: Resolved,
    /// Ranks.
    pub ranks: u32,
    /// Those that run in this process, and their back ends.
    pub local_ranks: LocalRanks,
    /// Who carries the collectives between processes, or between the back ends of this one.
    carrier: Option<Carrier>,
    /// Which ranks share a library of collectives, where they do not all.
    pub islands: Option<Islands>,
    /// Who computes which ranks.
    pub computes: Vec<Computes>,
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// Predictions in a sequence.
    pub seq_len: u64,
    /// The model.
    pub source: Source,
    /// The data.
    pub corpus: Corpus,
    /// What the corpus was opened with.
    pub data: DataSpec,
    /// Training batches.
    pub batches: Batches,
    /// Validation batches.
    pub validation: Option<Batches>,
    /// Host services of the back ends.
    pub host: HostServices,
    /// Sizes found in the dry runs, by the place on `mesh.tp` and the sequences of a micro-batch: those of rank 0 and even shares first.
    dry: Vec<(u32, DryRun)>,
    /// Sequences of each rank's micro-batch, where they are not the same.
    pub rows: Option<Vec<u64>>,
    /// The pipeline, as its first stage has it; none where every rank has the whole model.
    pub stages: Option<PipelineSpec>,
    /// Output folder.
    pub out: PathBuf,
    /// Held by the process that writes there.
    pub claim: Option<Arc<Claim>>,
    /// Where the run continues.
    pub resume: Resume,
    /// Where its timeline goes.
    pub trace: Option<TraceSpec>,
    /// Who runs it, for its record.
    pub origin: Origin,
    /// Steps between lines of the log; none where nothing but warnings is printed.
    pub lines: Option<u64>,
}

/// A back end and the ranks it computes, as `ledger.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computes {
    /// As `--ranks` names it.
    pub named: String,
    name: String,
    version: String,
    path: Option<PathBuf>,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Its devices: one of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Machine>,
}

impl Computes {
    fn of((named, plugin, ranks): (&str, &Plugin, Vec<u32>)) -> Computes {
        Computes {
            named: named.into(),
            name: plugin.name().into(),
            version: plugin.version().to_string(),
            path: plugin.path().map(Path::to_path_buf),
            ranks,
            machines: vec![],
        }
    }

    /// The back end's own version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Is it the CPU's, linked or loaded?
    pub fn is_cpu(&self) -> bool {
        self.name == "cpu"
    }

    /// Puts it to the others: the same back end in several processes is one.
    fn join(self, all: &mut Vec<Computes>) {
        let same = |c: &&mut Computes| {
            (&c.named, &c.name, &c.version, &c.path)
                == (&self.named, &self.name, &self.version, &self.path)
        };
        match all.iter_mut().find(same) {
            Some(c) => {
                c.ranks.extend(&self.ranks);
                for m in self.machines {
                    c.knows(m);
                }
            }
            None => all.push(self),
        }
    }
}

impl Computes {
    /// One of its devices; alike ones count once.
    fn knows(&mut self, machine: Machine) {
        if !self.machines.contains(&machine) {
            self.machines.push(machine);
        }
    }
}

/// What a process says of its ranks: see [`Job::rendezvous`].
#[derive(Deserialize)]
struct Said {
    islands: Vec<u32>,
    computes: Vec<Computes>,
}

/// Prepares the job of a command line. `writes`: its output folder is claimed, by the process of rank 0.
///
/// # Errors
/// Whatever is wrong with config, data, model, back end or output folder.
pub fn prepare(args: &Request, processes: Option<&Processes>, writes: bool) -> Result<Job> {
    // Rank 0 goes first and chooses the folder.
    let folder = match processes.filter(|p| !p.first()) {
        Some(p) => Some(p.folder()?),
        None => None,
    };
    let caches = &args.around.caches;
    let mut config = config_file::load(&args.config, &args.sets, caches)?;
    if let Some(steps) = args.steps {
        // The command line counts, whichever way the file says how long the run is.
        if config.settings.run.epochs.is_some() {
            config.set("run.epochs", "null")?;
        }
        config.set("run.steps", &steps.to_string())?;
    }
    if let Some(name) = &args.backend.name {
        let text = serde_json::Value::from(name.as_str()).to_string();
        config.set("run.backend", &text)?;
    }
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
        None => RunFolder::unclaimed(folder::asked(args, &config).unwrap_or("runs".into())),
    };
    let resume_from = args.resume.as_deref();
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
    let open = |spec: &DataSpec, data: &Data| Ok(Some(source::open(spec, &cache(data))?));
    let mut found = Found::default();
    let ready = ready::ready(&mut config, count, &host, (&open, caches), &mut found);
    found.end()?;
    // Where there is no fault there is a job, whose text was read.
    let ready =
        ready.ok_or_else(|| TrainError::refused("the config makes no job", "report this"))?;
    let Ready {
        resolved,
        source,
        spec,
        corpus,
        steps,
        seq_len,
        batches,
        validation,
        remarks,
        layout: Layout { dry, stages },
    } = ready;
    let compute = compute_type(resolved.dtype);
    let resume = match resume_from {
        Some(dir) => resume::find(dir, &resolved, &corpus, &source, steps)?,
        None => Resume::fresh(),
    };
    let order = order(&resolved);
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
    for (name, plugin, at) in local_ranks.backends().filter(|_| processes.is_none()) {
        // Of a back end that has none nothing else could be expected.
        let has = plugin.interfaces().contains(&IFACE_COLLECTIVE);
        if let Some(why) = backend::carried(plugin, at.len() as u32).filter(|_| has) {
            eprintln!("note: ranks of {name} meet through pinned memory: {why}");
        }
    }
    if processes.is_none_or(Processes::first) {
        for w in &resolved.warnings {
            eprintln!("warning: {w}");
        }
        remarks.iter().for_each(|r| eprintln!("{r}"));
        let notes = folder.notes.iter().chain(&resume.notes);
        notes.for_each(|n| eprintln!("note: {n}"));
    }
    let lines = args.lines.every(resolved.settings.run.log_every);
    let mut job = Job {
        origin,
        computes: local_ranks.backends().map(Computes::of).collect(),
        local_ranks,
        carrier,
        islands,
        resolved,
        ranks,
        steps,
        seq_len,
        source,
        corpus,
        data: spec,
        batches,
        validation,
        host,
        dry,
        rows: None,
        stages,
        out: folder.path,
        claim: folder.claim,
        resume,
        trace,
        lines,
    };
    // Refused here, before the output folder exists, rather than after minutes of filling memory.
    let mut machines = vec![];
    for (name, plugin, at) in job.local_ranks.backends() {
        let first = plugin.open(0).map_err(TrainError::from);
        let able = first.and_then(|first| {
            machines.push(first.info().ok().map(|i| Machine::of(&i)));
            if job.resolved.settings.run.allow_host_ops {
                backend::allow_host_ops(&first, &job.host, 0)?;
            }
            capable(&first, compute)?;
            graphs(&first, &job.resolved.settings.run.graphs)?;
            at.iter().try_for_each(|r| job.fits_first(&first, *r, &at))
        });
        able.map_err(|e| job.of(name, &at, e))?;
    }
    for (c, m) in job.computes.iter_mut().zip(machines) {
        m.into_iter().for_each(|m| c.knows(m));
    }
    Ok(job)
}

/// The engine's name of a compute type.
pub fn compute_type(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F32 => DType::F32,
        Dtype::Bf16 => DType::Bf16,
        Dtype::F16 => DType::F16,
    }
}

/// Tokens of a sample: the file's, the config's, or the model's longest.
pub(super) fn sequence(corpus: &Corpus, data: &Data, source: &Source) -> Result<u64> {
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
pub(super) fn epoch(corpus: &Corpus, seq_len: u64) -> Result<Epoch> {
    Ok(match corpus.pass(seq_len as usize)? {
        Pass::Tokens(tokens) => Epoch::Tokens {
            tokens,
            sample: seq_len,
        },
        Pass::Samples(samples) => Epoch::Samples(samples),
        Pass::Steps(steps) => Epoch::Steps(steps),
    })
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

impl Job {
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
            self.islands = islands_of(all, order(&self.resolved));
        }
        Ok(())
    }

    /// Divides the batch as `run.balance` says, once all ranks of all processes are prepared.
    ///
    /// # Errors
    /// A speed that cannot be measured; a share that does not fit its rank's device.
    pub fn balance(&mut self, processes: Option<&Processes>) -> Result<()> {
        if self.stages.is_some() {
            return self.balance_stages(processes);
        }
        let Some(rows) = balance::divide(self, processes)? else {
            return Ok(());
        };
        let null = backend::open_linked("null", &self.host)?.open(0)?;
        let units = units(&self.source, &self.resolved, &self.place(0))?;
        for n in &rows {
            if self.dry.iter().all(|(_, d)| d.shape.0 != *n) {
                let compute = compute_type(self.resolved.dtype);
                let dry = dry_run(&null, &units, compute, *n, self.seq_len)?;
                self.dry.push((0, dry));
            }
        }
        self.batches = self.batches.clone().divided(&rows)?;
        if let Some(batches) = &mut self.validation {
            *batches = batches.clone().divided(&rows)?;
        }
        self.rows = Some(rows);
        for (name, plugin, at) in self.local_ranks.backends() {
            // The plan of the largest share takes the most memory.
            let most = at
                .iter()
                .max_by_key(|r| self.batches.micro_batch(u64::from(**r)));
            let Some(most) = most else { continue };
            let first = plugin.open(0).map_err(TrainError::from);
            let fits = first.and_then(|first| self.fits(&first, *most));
            fits.map_err(|e| self.of(name, &[*most], e))?;
        }
        Ok(())
    }

    /// Divides the units over the pipeline's stages by how fast their ranks are found to be, where `run.balance` says so.
    fn balance_stages(&mut self, processes: Option<&Processes>) -> Result<()> {
        let Some(speeds) = balance::of_stages(self, processes)? else {
            return Ok(());
        };
        let units = units(&self.source, &self.resolved, &self.place(0))?;
        let cut = stages::of(&self.resolved, &units, &self.dry[0].1, Some(&speeds))?;
        if let Some(cut) = cut
            .as_ref()
            .filter(|_| processes.is_none_or(Processes::first))
        {
            let each: Vec<String> = speeds.iter().map(|s| format!("{s:.3}")).collect();
            eprintln!(
                "note: run.balance: ranks do {} sequences a second, and the stages run units {}; `--set 'mesh.pp_layers=\"{}\"' --set 'run.balance=\"even\"'` repeats this division",
                each.join(", "),
                stages::in_words(cut),
                stages::as_key(cut),
            );
        }
        self.stages = cut;
        for (name, plugin, at) in self.local_ranks.backends() {
            let first = plugin.open(0).map_err(TrainError::from);
            let fits = first
                .and_then(|first| at.iter().try_for_each(|r| self.fits_first(&first, *r, &at)));
            fits.map_err(|e| self.of(name, &at, e))?;
        }
        Ok(())
    }

    /// Data-parallel ranks: of each stage, where there are stages.
    pub fn data_ranks(&self) -> u32 {
        self.place(0).length(Axis::Dp)
    }
    /// Ranks over which each layer is cut.
    pub fn tensor_ranks(&self) -> u32 {
        self.place(0).length(Axis::Tp)
    }

    /// Where a rank stands.
    pub fn place(&self, rank: u32) -> Place {
        self.resolved.mesh.place(rank)
    }

    /// Sizes of what a rank does.
    pub fn dry(&self, rank: u32) -> &DryRun {
        let place = self.place(rank);
        let rows = self.batches.micro_batch(place.at(Axis::Dp).into());
        let of = |at: u32| {
            self.dry
                .iter()
                .find(|(tp, d)| (*tp, d.shape.0) == (at, rows))
        };
        let own = of(place.at(Axis::Tp)).or_else(|| of(0));
        &own.unwrap_or(&self.dry[0]).1
    }

    /// The same for the first rank of each stage among `at`: the others of a stage do what it does.
    fn fits_first(&self, device: &Device, rank: u32, at: &[u32]) -> Result<()> {
        let stage = |r: u32| self.place(r).at(Axis::Pp);
        let first = at.iter().find(|r| stage(**r) == stage(rank));
        match first {
            Some(first) if *first == rank => self.fits(device, rank),
            _ => Ok(()),
        }
    }

    /// Is there room on a device for what a rank does?
    fn fits(&self, device: &Device, rank: u32) -> Result<()> {
        let spec = with_offload(self.rank_spec(rank), &self.resolved, device, true);
        plan_for(device, &spec, self.dry(rank))?;
        Ok(())
    }

    /// Holds the plans of all pipeline stages against each other before any is run: each collective has its members, each send its receive,
    /// and nobody waits for ever. The ranks of a stage have one plan, so that this is for jobs that have stages.
    ///
    /// # Errors
    /// The first law that is broken, with the rank.
    pub fn check_world(&self) -> Result<()> {
        let mesh = self.resolved.mesh;
        let null = backend::open_linked("null", &self.host)?.open(0)?;
        let plan = |stage: u32| -> Result<_> {
            let rank = mesh.place(0).stage(stage).job_rank();
            let spec = with_offload(self.rank_spec(rank), &self.resolved, &null, true);
            Ok(plan_for(&null, &spec, self.dry(rank))?)
        };
        let plans: Vec<_> = (0..mesh.length(Axis::Pp))
            .map(plan)
            .collect::<Result<_>>()?;
        stages::agree(&mesh, &plans, |rank| self.rank_spec(rank))
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
    /// As [`Job::device`].
    pub fn device_apart(&self, rank: u32) -> Result<Device> {
        self.outfit(self.local_ranks.device_apart(rank)?, rank)
    }

    fn outfit(&self, device: Device, rank: u32) -> Result<Device> {
        if let Some(carrier) = &self.carrier {
            device.carry(carrier);
        }
        if self.resolved.settings.run.allow_host_ops {
            backend::allow_host_ops(&device, &self.host, rank)?;
        }
        Ok(device)
    }

    /// What rank `rank` is to do.
    pub fn rank_spec(&self, rank: u32) -> RankSpec {
        let place = self.place(rank);
        let rows = self.batches.micro_batch(place.at(Axis::Dp).into());
        RankSpec {
            islands: self.islands.clone(),
            batch: rows,
            weight: rows as f64 / self.resolved.batch.micro as f64,
            documents: documents::of(&self.resolved.data, self.corpus.tokenizer().map(|t| &**t)),
            pipeline: self.stages.clone(),
            ..rank_spec(&self.resolved, place, self.seq_len)
        }
    }

    /// `config.json` of the trained model.
    pub fn hf_config(&self) -> serde_json::Value {
        let tokenizer = self.corpus.tokenizer();
        self.source.hf_config(tokenizer.and_then(|t| t.eod()))
    }
}

/// The engine's form of a resolved config, for one rank.
pub fn rank_spec(r: &Resolved, place: Place, seq_len: u64) -> RankSpec {
    let recompute = r.model.recompute();
    RankSpec {
        place,
        seed: r.seed,
        compute: compute_type(r.dtype),
        micro_batches: r.batch.accumulation as u32,
        batch: r.batch.micro,
        weight: 1.0,
        seq_len,
        clip: r.settings.gradient_clipping,
        optim: optimizer::of_resolved(&r.settings),
        recompute: match recompute {
            config::Recompute::None => Recompute::None,
            config::Recompute::Full => Recompute::Full,
            config::Recompute::Selective => Recompute::Selective,
        },
        bucket_bytes: bucket_bytes(&r.settings),
        overlap: r
            .settings
            .zero_optimization
            .overlap_comm
            .unwrap_or(r.settings.run.overlap),
        // By default long enough for a peer that writes a large checkpoint on a slow disk; a rank that fails aborts the others at once.
        timeout: Some(comm_timeout(r.settings.run.comm_timeout_s)),
        zero: zero_spec(&r.settings.zero_optimization),
        precision: precision(r),
        offload: None,
        pipeline: None,
        canonical: r.settings.run.canonical_shards.map(|n| n as u32),
        islands: None,
        graphs: false,
        documents: documents::of(&r.data, None),
        labelled: documents::labelled(&r.data),
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

/// DeepSpeed's own bucket, which its configs write out: half a billion elements, more than most models have.
const DEEPSPEED_BUCKET: u64 = 500_000_000;

/// Bytes of gradients reduced at once: `reduce_bucket_size` where it was chosen, else `run.bucket_mb`.
fn bucket_bytes(s: &config::Settings) -> u64 {
    match s.zero_optimization.reduce_bucket_size {
        DEEPSPEED_BUCKET => (s.run.bucket_mb * (1u64 << 20) as f64) as u64,
        elements => elements.saturating_mul(4),
    }
}
