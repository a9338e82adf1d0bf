//! The job that is estimated, nothing left open: what is asked, laid over what a config says, over defaults.

use super::keys::KeysOverCp;
use super::parts::{Part, is_cut};
use super::routed::Routed;
use super::subject::{Model, Subject, Wanted};
use super::sums::OverTp;
use super::{BytesPerParam, Estimation, Home, Keep, Ranks, STAGES, Training};
use crate::device::Chosen;
use crossweave_axes::{Axis, AxisSet, Topology};
use crossweave_job::error::{JobError, Result};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{
    Accounting, Accumulation, ActivationCase, Apart, Load, Machine, Offload, Profile, Shape, Tier,
    activation_bytes, activation_total, ledger, profiles,
};

/// Where the ranks of a job are.
pub struct Places {
    /// All ranks.
    pub ranks: u64,
    /// Nodes they are on.
    pub nodes: u64,
    /// Where each rank stands.
    pub mesh: Topology,
    /// What the fullest rank has of the model, where that is cut.
    pub part: Option<Part>,
}

/// What the ranks run on.
pub struct On {
    /// The rates of the device, where they are known.
    pub rates: Option<Profile>,
    /// Its name for people; empty where none is meant.
    pub label: String,
    /// What was taken in place of a device that is not known.
    pub note: Option<String>,
    /// Bytes of a device.
    pub memory: Option<u64>,
    /// Bytes of a node's host.
    pub host: Option<u64>,
    /// Bytes of a node's storage.
    pub nvme: Option<u64>,
    /// Operations a second that a device sustains; 0 where that is not known.
    pub sustained: f64,
}

/// What is estimated.
pub struct Job {
    /// The model.
    pub model: Model,
    /// Its ranks.
    pub places: Places,
    /// Their devices.
    pub on: On,
    /// Bytes per parameter, and their name.
    pub accounting: (Accounting, &'static str),
    /// Sequences of a micro-batch on a rank.
    pub batch: u64,
    /// Micro-batches of a step, and how their gradients are reduced.
    pub accumulation: Accumulation,
    /// Activations kept for the backward, and their name.
    pub keep: (ActivationCase, &'static str),
    /// Hidden states are cut by tokens over `mesh.tp`.
    pub cuts_tokens: bool,
    /// What ranks that share layers gather and sum of hidden states.
    pub over_tp: Option<OverTp>,
    /// Elements of keys and values that a rank sends over `mesh.cp` in the layers of the model, for each token of its micro-batch's rows.
    pub keys_over_cp: Option<KeysOverCp>,
    /// The layers with experts.
    pub routed: Option<Routed>,
    /// The stage and offload of a config.
    pub configured: Option<(u8, Offload)>,
}

impl Job {
    /// The job of an estimation.
    ///
    /// # Errors
    /// Ranks, nodes and a mesh that do not go together.
    pub fn of(subject: Subject, what: &Estimation, chosen: Option<Chosen>) -> Result<Job> {
        let (asked, hardware) = (&what.training, &what.machine);
        let ranks = what.ranks.count();
        let Subject {
            mut model,
            wanted,
            mesh,
            parts,
        } = subject;
        if what.dims.lay_over(&mut model.shape) {
            model.units.clear();
        }
        model.tokens = what.tokens.map(|t| t as f64).or(model.tokens);
        let rates = rates(what, chosen.as_ref());
        let of_node = what.ranks.of_node.or(rates.map(|d| d.ranks_per_node));
        let ranks = ranks.or(wanted.as_ref().map(|w| w.ranks));
        let shared = chosen.as_ref().is_some_and(|c| c.sharing > 1);
        let (ranks, nodes) = places(&what.ranks, ranks, of_node.unwrap_or(8), shared)?;
        let memory = match &chosen {
            Some(c) => c.memory,
            None => rates.map(|d| d.memory),
        };
        let label = chosen.as_ref().map(|c| c.label.clone());
        let on = On {
            rates,
            label: label
                .or(rates.map(|d| d.name.to_string()))
                .unwrap_or_default(),
            note: chosen.and_then(|c| c.note),
            memory: hardware.device_memory.or(memory),
            host: hardware.host,
            nvme: hardware.nvme,
            sustained: match (hardware.tflops, rates) {
                (Some(t), _) => t * 1e12,
                (None, Some(d)) => d.sustained,
                (None, None) => 0.0,
            },
        };
        let mut job = Job {
            model,
            places: Places {
                ranks,
                nodes,
                mesh: mesh_of(mesh, ranks)?,
                part: None,
            },
            on,
            accounting: match (asked.accounting, &wanted) {
                (None, Some(w)) => w.accounting,
                (of, _) => of.unwrap_or(BytesPerParam::Mixed).accounting(),
            },
            batch: asked
                .batch
                .or(wanted.as_ref().map(|w| w.batch))
                .unwrap_or(1),
            accumulation: accumulation(asked, wanted.as_ref()),
            keep: match (asked.keep, &wanted) {
                (None, Some(w)) => w.keep,
                (of, _) => of.unwrap_or(Keep::Inputs).case(),
            },
            cuts_tokens: wanted.as_ref().is_some_and(|w| w.cuts_tokens),
            over_tp: wanted.as_ref().and_then(|w| w.over_tp),
            keys_over_cp: wanted.as_ref().and_then(|w| w.keys_over_cp),
            routed: wanted.as_ref().and_then(|w| w.routed.clone()),
            configured: wanted.map(|w| (w.stage, w.offload)),
        };
        if is_cut(&job.places.mesh) {
            job.places.part = job.fullest(parts);
        }
        Ok(job)
    }

    /// Whether there is something to fit into.
    pub fn limited(&self) -> bool {
        self.on.memory.is_some() || self.on.host.is_some() || self.on.nvme.is_some()
    }

    /// Ranks that see other tokens, over which ZeRO shards.
    pub fn data_ranks(&self) -> u64 {
        self.places.mesh.size(AxisSet::DATA).into()
    }

    /// Tokens of a row that a rank has.
    pub fn tokens_here(&self) -> u64 {
        self.model.shape.seq / u64::from(self.places.mesh.length(Axis::Cp))
    }

    /// The same of hidden states between layers.
    pub fn own_tokens(&self) -> u64 {
        let pieces = match self.cuts_tokens {
            true => self.places.mesh.length(Axis::Tp),
            false => 1,
        };
        self.tokens_here() / u64::from(pieces)
    }

    /// Units of which a rank has something, but for experts that are apart: those of its stage, cut over `mesh.tp`.
    pub fn units_here(&self) -> &[u64] {
        let part = self.places.part.as_ref();
        part.map_or(&self.model.units, |p| &p.units)
    }

    /// Units of experts of a rank, where other ranks share these than share the layers.
    pub fn experts_here(&self) -> &[u64] {
        let part = self.places.part.as_ref();
        part.map_or(&[], |p| &p.experts)
    }

    /// Ranks that have the same experts, over which ZeRO shards these.
    pub fn expert_ranks(&self) -> u64 {
        self.places.mesh.length(Axis::Edp).into()
    }

    /// Parameters of a rank before ZeRO shards them, but for experts that are apart.
    pub fn dense_here(&self) -> u64 {
        let part = self.places.part.as_ref();
        part.map_or(self.model.params, |p| p.units.iter().sum())
    }

    /// Parameters of a rank before ZeRO shards them.
    pub fn here(&self) -> u64 {
        self.dense_here() + self.experts_here().iter().sum::<u64>()
    }

    /// What is shared by the same ranks: parameters and these ranks, of experts that are apart behind the rest.
    pub fn shared(&self) -> impl Iterator<Item = (u64, u64)> {
        let experts = self.experts_here();
        let apart = (experts.iter().sum(), self.expert_ranks());
        let apart = (!experts.is_empty()).then_some(apart);
        let dense = (self.dense_here(), self.data_ranks());
        std::iter::once(dense).chain(apart)
    }

    /// The part of the layers with experts that a rank has.
    pub fn routed_here(&self) -> f64 {
        let all = self.routed.as_ref().map_or(0, Routed::count).max(1);
        match &self.places.part {
            None => 1.0,
            Some(p) if p.experts.is_empty() => {
                p.layers as f64 / self.model.shape.layers.max(1) as f64
            }
            Some(p) => p.experts.len() as f64 / all as f64,
        }
    }

    /// Parameters of what a rank has that its tokens go through. As many rows come to its experts as it sends to all, of each rank that has parts of them.
    pub fn active_here(&self) -> u64 {
        let [ep, etp] = [Axis::Ep, Axis::Etp].map(|a| u64::from(self.places.mesh.length(a)));
        let experts = ep * etp * self.experts_here().iter().sum::<u64>();
        let layers = self.places.part.as_ref().map(|p| p.layers);
        let all = self.model.shape.layers.max(1);
        let idle = self.model.idle * layers.unwrap_or(all) / all;
        (self.dense_here() + experts).saturating_sub(idle)
    }

    fn largest_unit(&self) -> u64 {
        let real = self.units_here().iter().chain(&self.model.teacher);
        real.copied()
            .max()
            .unwrap_or_else(|| self.model.shape.largest_unit())
    }

    /// Bytes of activations that a rank keeps of a model of this shape.
    pub fn activations(&self, shape: &Shape) -> u64 {
        self.activations_of(shape, self.batch, self.keep.0)
    }

    /// Activations that a rank keeps: of the layers of its stage and the micro-batches in flight there, of its own tokens, cut over `mesh.tp`.
    pub fn activations_of(&self, shape: &Shape, batch: u64, keep: ActivationCase) -> u64 {
        let [cp, tp] = [Axis::Cp, Axis::Tp].map(|a| u64::from(self.places.mesh.length(a)));
        let shape = &Shape {
            seq: shape.seq / cp,
            ..*shape
        };
        let Some(part) = &self.places.part else {
            return activation_total(shape, batch, tp, self.cuts_tokens, keep) as u64;
        };
        let shape = Shape {
            layers: part.layers,
            ..*shape
        };
        let cut = self.cuts_tokens;
        let once = activation_total(&shape, batch, tp, cut, keep);
        let more = part.in_flight.saturating_sub(1) * part.layers;
        let [whole, piece] = [cut, true].map(|cut| activation_bytes(&shape, batch, tp, cut, keep));
        // Inputs that are kept in parts are as small as those of tokens that are cut; what is run again has all of them.
        let in_parts = self.over_tp.as_ref().is_some_and(OverTp::is_in_parts);
        let (each, saved) = match in_parts && keep == ActivationCase::Recompute {
            true => (piece, (whole - piece) * part.layers as f64),
            false => (whole, 0.0),
        };
        (once - saved + more as f64 * each) as u64
    }

    /// The part with the most bytes at the stage of the config, where nothing is off the device.
    fn fullest(&mut self, parts: Vec<Part>) -> Option<Part> {
        let stage = self.configured.map(|(stage, _)| stage);
        let stage = stage.and_then(|s| ZeroStage::from_number(s.into()));
        let mut bytes = |part: &Part| {
            self.places.part = Some(part.clone());
            let load = self.load(stage.unwrap_or(ZeroStage::Zero), Offload::NONE);
            ledger(&load).total(Tier::Device)
        };
        parts.into_iter().max_by_key(|p| bytes(p))
    }

    /// What a rank holds at a stage.
    pub fn load(&self, stage: ZeroStage, offload: Offload) -> Load {
        Load {
            params: self.dense_here(),
            largest_unit: self.largest_unit(),
            ranks: self.data_ranks(),
            experts: Apart {
                params: self.experts_here().iter().sum(),
                largest_unit: self.experts_here().iter().copied().max().unwrap_or(0),
                ranks: self.expert_ranks(),
            },
            stage,
            accumulation: self.accumulation,
            accounting: self.accounting.0,
            offload,
            slots: 1,
            bucket: (25 << 20) / self.accounting.0.grad,
            activations: self.activations(&self.model.shape),
            teacher: self.model.teacher.iter().sum(),
        }
    }

    /// Ranks of a node.
    pub fn ranks_of_node(&self) -> u64 {
        self.places.ranks.div_ceil(self.places.nodes)
    }

    /// What one rank may use; what is not stated is not limited.
    pub fn machine(&self) -> Machine {
        let part = |bytes: Option<u64>, none| bytes.map_or(none, |b| b / self.ranks_of_node());
        // Storage that nobody named is storage that nobody has; a config that sends states there has some.
        let files = |o: Offload| o.optimizer == Tier::Nvme || o.param == Tier::Nvme;
        let storage = match self.configured {
            Some((_, o)) if files(o) => u64::MAX,
            _ => 0,
        };
        Machine {
            device: self.on.memory.unwrap_or(u64::MAX),
            host: part(self.on.host, u64::MAX),
            nvme: part(self.on.nvme, storage),
        }
    }

    /// The stage and offload to show: those asked for, else the first that fits, from no sharding to everything on storage.
    pub fn choose(&self, asked: &Training) -> (ZeroStage, Offload) {
        let configured = self.configured;
        let home = |h: Option<Home>, pick: fn(Offload) -> Tier| {
            h.map(Home::tier).or(configured.map(|(_, o)| pick(o)))
        };
        let optimizer = home(asked.offload_optimizer, |o| o.optimizer);
        let param = home(asked.offload_param, |o| o.param);
        let wanted = asked.stage.or(configured.map(|(stage, _)| stage));
        let wanted = wanted.and_then(|s| ZeroStage::from_number(s.into()));
        let stages = STAGES.iter().filter(|s| wanted.is_none_or(|w| w == **s));
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
        let spoken = self.on.host.is_some() || self.on.nvme.is_some();
        let free = spoken || optimizer.is_some() || param.is_some();
        let mut candidates = Vec::new();
        for (o, p) in homes {
            let offload = Offload {
                optimizer: optimizer.unwrap_or(o),
                param: param.unwrap_or(p),
            };
            if offload == Offload::NONE || free {
                candidates.extend(stages.clone().map(|s| (*s, offload)));
            }
        }
        let fits = |c: &&(ZeroStage, Offload)| {
            // Parameters rest elsewhere at stage 3 only.
            (c.1.param == Tier::Device || c.0 == ZeroStage::Three)
                && ledger(&self.load(c.0, c.1)).overflow(&machine).is_none()
        };
        let chosen = match self.limited() {
            true => candidates.iter().find(fits).or(candidates.last()),
            // Nothing to fit into: what was asked, or the plain job.
            false => candidates.first(),
        };
        chosen.copied().unwrap_or((ZeroStage::Zero, Offload::NONE))
    }
}

/// The rates of the device. A question about nodes without a device is one about the machine the published figures are of; of the
/// processor at hand nobody has measured any: bytes are known, times are not.
fn rates(what: &Estimation, chosen: Option<&Chosen>) -> Option<Profile> {
    match chosen {
        Some(c) => (!c.is_host).then_some(c.profile),
        None => (what.ranks.nodes.is_some() || what.time).then(|| profiles()[0]),
    }
}

/// How micro-batches are reduced, as the config says, and as many of them as are asked for.
fn accumulation(asked: &Training, wanted: Option<&Wanted>) -> Accumulation {
    let of_config = wanted.map_or(Accumulation::NONE, |w| w.accumulation);
    let home = asked.offload_optimizer.map(Home::tier);
    Accumulation {
        micro_batches: asked.micro_batches.unwrap_or(of_config.micro_batches),
        leaves: home.map_or(of_config.leaves, |t| t != Tier::Device),
        ..of_config
    }
}

/// Ranks and nodes, of which `ranks` are asked for and a node has `of_node`; ranks that share a device are on one machine.
fn places(asked: &Ranks, ranks: Option<u64>, of_node: u64, shared: bool) -> Result<(u64, u64)> {
    let (ranks, nodes) = match (ranks, asked.nodes) {
        (Some(r), Some(n)) if asked.ranks.is_some() || asked.of_node.is_some() => (r, n),
        (_, Some(n)) => (n * of_node, n),
        // Ranks that share a device are on one machine.
        (Some(r), None) if shared => (r, 1),
        (Some(r), None) => (r, r.div_ceil(of_node)),
        (None, None) => (1, 1),
    };
    if nodes > ranks {
        return Err(JobError::refused(
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
        Some(mesh) if is_cut(&mesh) => {
            let world = mesh.world_size();
            let why = format!("{ranks} ranks, and the config's mesh has {world}");
            Err(JobError::refused(why, "give --ranks instead of --nodes"))
        }
        _ => Topology::new(&[(Axis::Dp, u32::try_from(ranks).unwrap_or(u32::MAX))])
            .map_err(|e| JobError::refused(format!("{}: {}", e.key, e.what), e.fix)),
    }
}
