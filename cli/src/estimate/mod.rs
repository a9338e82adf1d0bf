//! `crossweave estimate`: memory, traffic and time of a model by name, by size, of a config or of a Hugging Face folder, from formulas alone.

mod advice;
mod cut;
mod experts;
mod page;
mod presets;
mod subject;

use crate::args::{AccountingName, EstimateArgs, HomeName, KeepName};
use crate::devices;
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::train_error::{Result, TrainError};
use crossweave_mesh::{Axis, AxisSet, Topology};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::*;
use cut::Part;
use subject::{Subject, subject};

/// Where the ranks of a job are.
struct Spread {
    nodes: u64,
    /// Where each rank stands.
    mesh: Topology,
    /// What the fullest rank has of the model, where that is cut.
    part: Option<Part>,
}

/// What is estimated, nothing left open.
struct Job {
    name: String,
    /// As stated, and of each unit of the real model where it is known.
    params: u64,
    units: Vec<u64>,
    /// The same of its teacher, where it has one.
    teacher: Vec<u64>,
    shape: Shape,
    accounting: Accounting,
    accounting_name: &'static str,
    ranks: u64,
    spread: Spread,
    device: Option<Profile>,
    device_label: String,
    /// What was taken in place of a device that is not known.
    note: Option<String>,
    /// Stage and offload that a config asks for, where the command line asks for none.
    asked: (Option<u8>, Option<Offload>),
    device_memory: Option<u64>,
    host: Option<u64>,
    nvme: Option<u64>,
    tokens: Option<f64>,
    batch: u64,
    accumulation: Accumulation,
    keep: ActivationCase,
    keep_name: &'static str,
    sustained: f64,
}

/// Runs the command.
///
/// # Errors
/// A model, device or size nobody knows.
pub fn run(args: &EstimateArgs, around: &Surroundings) -> Result<()> {
    if args.devices {
        match args.json {
            true => say!("{:#}", devices::list()),
            false => say!("{}", devices::table()),
        }
        return Ok(());
    }
    if let Some(v) = args.model.as_deref().and_then(experts::figures) {
        match args.json {
            true => say!("{v:#}"),
            false => say!("{}", experts::text(&v)),
        }
        return Ok(());
    }
    let job = job(args, around)?;
    let figures = page::figures(&job, args);
    if args.json {
        say!("{figures:#}");
    } else {
        say!("{}", page::text(&job, args, &figures));
    }
    Ok(())
}

fn job(args: &EstimateArgs, around: &Surroundings) -> Result<Job> {
    // Unless `--devices` is given, the parser demands it.
    let text = args.model.as_deref().unwrap_or_default();
    let asked_ranks = match (args.ranks, args.nodes, args.ranks_per_node) {
        (None, Some(n), Some(per)) => Some(n * per),
        (r, ..) => r,
    };
    let Subject {
        name,
        params,
        units,
        mut shape,
        tokens,
        job: wanted,
        teacher,
        mesh,
        parts,
    } = subject(text, asked_ranks, around)?;
    let given = [args.layers, args.hidden, args.heads, args.vocab, args.seq];
    let slots = [
        &mut shape.layers,
        &mut shape.hidden,
        &mut shape.heads,
        &mut shape.vocab,
        &mut shape.seq,
    ];
    for (slot, value) in slots.into_iter().zip(given) {
        *slot = value.unwrap_or(*slot);
    }
    let changed = given[..4].iter().any(Option::is_some);
    let units = if changed { vec![] } else { units };
    let chosen = match (&args.device, &wanted) {
        (Some(name), _) => Some(devices::choose(Some(name), "", 1, around)?),
        // A job that states the memory speaks of no device in particular.
        (None, Some(w)) if args.device_memory.is_none() => {
            Some(devices::choose(None, &w.backend, w.ranks, around)?)
        }
        _ => None,
    };
    // A question about nodes without a device is one about the machine the published figures are of.
    let plain = || (args.nodes.is_some() || args.time).then(|| profiles()[0]);
    // Nobody has measured the processor at hand: bytes are known, times are not.
    let unknown = chosen.as_ref().is_some_and(|c| c.is_host);
    let rated = chosen.as_ref().filter(|c| !c.is_host).map(|c| c.profile);
    let device = rated.or_else(|| (!unknown).then(plain).flatten());
    let per_node = args
        .ranks_per_node
        .or(device.map(|d| d.ranks_per_node))
        .unwrap_or(8);
    let ranks = asked_ranks.or(wanted.as_ref().map(|w| w.ranks));
    let shared = chosen.as_ref().is_some_and(|c| c.sharing > 1);
    let (ranks, nodes) = places(args, ranks, per_node, shared)?;
    let mesh = mesh_of(mesh, ranks)?;
    let (accounting, accounting_name) = match (args.accounting, &wanted) {
        (None, Some(w)) => w.accounting,
        (None | Some(AccountingName::Mixed), _) => (Accounting::MIXED, "mixed"),
        (Some(AccountingName::Fp32), _) => (Accounting::FP32, "fp32"),
        (Some(AccountingName::MixedF32Grads), _) => {
            (Accounting::MIXED_F32_GRADS, "mixed-f32-grads")
        }
    };
    let (keep, keep_name) = match (args.keep, &wanted) {
        (None, Some(w)) => w.keep,
        (Some(KeepName::All), _) => (ActivationCase::Full, "all"),
        (Some(KeepName::Selective), _) => (ActivationCase::Selective, "selective"),
        (Some(KeepName::Flash), _) => (ActivationCase::Flash, "flash"),
        (None | Some(KeepName::Inputs), _) => (ActivationCase::Recompute, "inputs"),
    };
    let memory = chosen
        .as_ref()
        .map_or(device.map(|d| d.memory), |c| c.memory);
    let label = chosen.as_ref().map(|c| c.label.clone());
    let batch = args.batch.or(wanted.as_ref().map(|w| w.batch)).unwrap_or(1);
    let mut accumulation = wanted
        .as_ref()
        .map_or(Accumulation::NONE, |w| w.accumulation);
    if let Some(g) = args.micro_batches {
        accumulation.micro_batches = g;
    }
    let home = args.offload_optimizer.map(HomeName::tier);
    accumulation.leaves = home.map_or(accumulation.leaves, |t| t != Tier::Device);
    let mut job = Job {
        spread: Spread {
            nodes,
            mesh,
            part: None,
        },
        name,
        params,
        units,
        teacher,
        shape,
        accounting,
        accounting_name,
        ranks,
        device,
        device_label: label
            .or(device.map(|d| d.name.to_string()))
            .unwrap_or_default(),
        note: chosen.and_then(|c| c.note),
        asked: (
            wanted.as_ref().map(|w| w.stage),
            wanted.as_ref().map(|w| w.offload),
        ),
        device_memory: args.device_memory.or(memory),
        host: args.host,
        nvme: args.nvme,
        tokens: args.tokens.map(|t| t as f64).or(tokens),
        batch,
        accumulation,
        keep,
        keep_name,
        sustained: args
            .tflops
            .map(|t| t * 1e12)
            .or(device.map(|d| d.sustained))
            .unwrap_or(0.0),
    };
    if cut::is_cut(&job.spread.mesh) {
        job.spread.part = job.fullest(parts);
    }
    Ok(job)
}

/// Ranks and nodes, of which `ranks` are asked for and a node has `per_node`; ranks that share a device are on one machine.
fn places(
    args: &EstimateArgs,
    ranks: Option<u64>,
    per_node: u64,
    shared: bool,
) -> Result<(u64, u64)> {
    let (ranks, nodes) = match (ranks, args.nodes) {
        (Some(r), Some(n)) if args.ranks.is_some() || args.ranks_per_node.is_some() => (r, n),
        (_, Some(n)) => (n * per_node, n),
        // Ranks that share a device are on one machine.
        (Some(r), None) if shared => (r, 1),
        (Some(r), None) => (r, r.div_ceil(per_node)),
        (None, None) => (1, 1),
    };
    if nodes > ranks {
        return Err(TrainError::refused(
            format!("--nodes {nodes}: more nodes than the {ranks} ranks"),
            "give more --ranks, or fewer nodes",
        ));
    }
    Ok((ranks, nodes))
}

/// The mesh of the config where it has so many ranks, else one of data-parallel ranks.
fn mesh_of(config: Option<Topology>, ranks: u64) -> Result<Topology> {
    match config {
        Some(mesh) if u64::from(mesh.world_size()) == ranks => Ok(mesh),
        Some(mesh) if cut::is_cut(&mesh) => {
            let world = mesh.world_size();
            let why = format!("{ranks} ranks, and the config's mesh has {world}");
            Err(TrainError::refused(why, "give --ranks instead of --nodes"))
        }
        _ => Topology::new(&[(Axis::Dp, u32::try_from(ranks).unwrap_or(u32::MAX))])
            .map_err(|e| TrainError::refused(format!("{}: {}", e.key, e.what), e.fix)),
    }
}

impl Job {
    /// Whether there is something to fit into.
    fn limited(&self) -> bool {
        self.device_memory.is_some() || self.host.is_some() || self.nvme.is_some()
    }

    /// Ranks that see other tokens, over which ZeRO shards.
    fn data_ranks(&self) -> u64 {
        self.spread.mesh.size(AxisSet::DATA).into()
    }

    /// Units of which a rank has something: those of its stage, cut over `mesh.tp`.
    fn units_here(&self) -> &[u64] {
        self.spread.part.as_ref().map_or(&self.units, |p| &p.units)
    }

    /// Parameters of a rank before ZeRO shards them.
    fn here(&self) -> u64 {
        let part = self.spread.part.as_ref();
        part.map_or(self.params, |p| p.units.iter().sum())
    }

    fn largest_unit(&self) -> u64 {
        let real = self.units_here().iter().chain(&self.teacher).copied().max();
        real.unwrap_or_else(|| self.shape.largest_unit())
    }

    fn activations(&self, shape: &Shape) -> u64 {
        self.activations_of(shape, self.batch, self.keep)
    }

    /// Activations that a rank keeps: of the layers of its stage and the micro-batches in flight there, cut over `mesh.tp`.
    fn activations_of(&self, shape: &Shape, batch: u64, keep: ActivationCase) -> u64 {
        let tp = u64::from(self.spread.mesh.length(Axis::Tp));
        let Some(part) = &self.spread.part else {
            return activation_total(shape, batch, tp, false, keep) as u64;
        };
        let shape = Shape {
            layers: part.layers,
            ..*shape
        };
        let once = activation_total(&shape, batch, tp, false, keep);
        let more = part.in_flight.saturating_sub(1) * part.layers;
        (once + more as f64 * activation_bytes(&shape, batch, tp, false, keep)) as u64
    }

    /// The part with the most bytes at the stage that is asked for, where nothing is off the device.
    fn fullest(&mut self, parts: Vec<Part>) -> Option<Part> {
        let stage = self.asked.0.and_then(|s| ZeroStage::from_number(s.into()));
        let mut bytes = |part: &Part| {
            self.spread.part = Some(part.clone());
            let load = self.load(stage.unwrap_or(ZeroStage::Zero), Offload::NONE);
            ledger(&load).total(Tier::Device)
        };
        parts.into_iter().max_by_key(|p| bytes(p))
    }

    fn load(&self, stage: ZeroStage, offload: Offload) -> Load {
        Load {
            params: self.here(),
            largest_unit: self.largest_unit(),
            ranks: self.data_ranks(),
            stage,
            accumulation: self.accumulation,
            accounting: self.accounting,
            offload,
            slots: 1,
            bucket: (25 << 20) / self.accounting.grad,
            activations: self.activations(&self.shape),
            teacher: self.teacher.iter().sum(),
        }
    }

    /// What one rank may use; what is not stated is not limited.
    fn machine(&self) -> Machine {
        let per_node = self.ranks.div_ceil(self.spread.nodes);
        let part = |bytes: Option<u64>, none| bytes.map_or(none, |b| b / per_node);
        Machine {
            device: self.device_memory.unwrap_or(u64::MAX),
            host: part(self.host, u64::MAX),
            // Storage that nobody named is storage that nobody has; a config that sends states there has some.
            nvme: part(
                self.nvme,
                match self.asked.1 {
                    Some(o) if o.optimizer == Tier::Nvme || o.param == Tier::Nvme => u64::MAX,
                    _ => 0,
                },
            ),
        }
    }

    /// The stage and offload to show: those asked for, else the first that fits, from no sharding to everything on storage.
    fn choose(&self, args: &EstimateArgs) -> (ZeroStage, Offload) {
        let asked = |h: Option<HomeName>, pick: fn(Offload) -> Tier| {
            h.map(HomeName::tier).or(self.asked.1.map(pick))
        };
        let optimizer = asked(args.offload_optimizer, |o| o.optimizer);
        let param = asked(args.offload_param, |o| o.param);
        let wanted = args.stage.or(self.asked.0);
        let wanted = wanted.and_then(|s| ZeroStage::from_number(s.into()));
        let all = [0, 1, 2, 3].into_iter().filter_map(ZeroStage::from_number);
        let stages: Vec<ZeroStage> = all.filter(|s| wanted.is_none_or(|w| w == *s)).collect();
        let machine = self.machine();
        let homes = [
            (Tier::Device, Tier::Device),
            (Tier::Host, Tier::Device),
            (Tier::Host, Tier::Host),
            (Tier::Nvme, Tier::Device),
            (Tier::Nvme, Tier::Host),
            (Tier::Nvme, Tier::Nvme),
        ];
        // Unless the user speaks of host, storage or offload, everything stays on the device.
        let spoken = self.host.is_some() || self.nvme.is_some();
        let mut candidates = Vec::new();
        for (o, p) in homes {
            let o = optimizer.unwrap_or(o);
            let p = param.unwrap_or(p);
            let moves = o != Tier::Device || p != Tier::Device;
            if moves && !spoken && optimizer.is_none() && param.is_none() {
                continue;
            }
            let offload = Offload {
                optimizer: o,
                param: p,
            };
            candidates.extend(stages.iter().map(|s| (*s, offload)));
        }
        let fits = |c: &&(ZeroStage, Offload)| {
            // Parameters rest elsewhere at stage 3 only.
            (c.1.param == Tier::Device || c.0 == ZeroStage::Three)
                && ledger(&self.load(c.0, c.1)).overflow(&machine).is_none()
        };
        let limited = self.limited();
        let first = candidates.first().copied();
        let last = candidates.last().copied();
        let chosen = match limited {
            true => candidates.iter().find(fits).copied().or(last),
            // Nothing to fit into: what was asked, or the plain job.
            false => first,
        };
        chosen.unwrap_or((ZeroStage::Zero, Offload::NONE))
    }
}
