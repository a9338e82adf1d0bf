//! Every byte of a rank by tier, what offload moves, and the largest models that fit.

use super::job::Job;
use super::{STAGES, name, number};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{
    ActivationCase, Offload, Shape, Tier, activation_bytes, largest, largest_params, ledger,
};
use serde::Serialize;

/// Activations that a rank keeps for the backward.
#[derive(Clone, Debug, Serialize)]
pub struct Activations {
    /// Which are kept.
    pub kept: &'static str,
    /// Sequences of a micro-batch.
    pub batch: u64,
    /// Bytes of one layer.
    pub bytes_per_layer: f64,
    /// Bytes of a rank.
    pub bytes: u64,
    /// The formula of `bytes`.
    pub formula: &'static str,
}

/// The activations of a rank.
pub fn activations(job: &Job) -> Activations {
    let (case, kept) = job.keep;
    Activations {
        kept,
        batch: job.batch,
        bytes_per_layer: activation_bytes(&job.model.shape, job.batch, 1, false, case),
        bytes: job.activations(&job.model.shape),
        formula: match case {
            ActivationCase::Full => "L sbh(34 + 5as/h)",
            ActivationCase::Selective => "34 L sbh",
            ActivationCase::Flash => "L (34 sbh + 4asb)",
            ActivationCase::Recompute => "2 L sbh + sbh(34 + 5as/h) while a layer is recomputed",
        },
    }
}

/// Every byte of a rank at the chosen stage.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerOfRank {
    /// The ZeRO stage.
    #[serde(serialize_with = "number")]
    pub stage: ZeroStage,
    /// Where the optimizer's states rest.
    #[serde(serialize_with = "name")]
    pub offload_optimizer: Tier,
    /// Where parameter shards rest.
    #[serde(serialize_with = "name")]
    pub offload_param: Tier,
    /// Kind by kind, in order of tier.
    pub rows: Vec<LedgerRow>,
    /// Bytes of each tier.
    pub total: TierBytes,
    /// What a rank may use, where that is known.
    pub capacity: Capacity,
    /// Whether every tier holds its part; where a capacity is known.
    pub fits: Option<bool>,
    /// The first tier that does not.
    pub overflow: Option<&'static str>,
}

/// One kind of bytes.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerRow {
    /// Where they lie.
    #[serde(serialize_with = "name")]
    pub tier: Tier,
    /// What they hold.
    pub what: &'static str,
    /// How many they are.
    pub bytes: u64,
    /// Why so many.
    pub formula: &'static str,
}

/// Bytes of each tier.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TierBytes {
    /// Bytes of the device.
    pub device: u64,
    /// Bytes of the host.
    pub host: u64,
    /// Bytes of storage.
    pub nvme: u64,
}

/// Bytes that a rank may use of each tier.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Capacity {
    /// Bytes of the device.
    pub device: Option<u64>,
    /// Bytes of its node's host, in equal parts.
    pub host_per_rank: Option<u64>,
    /// Bytes of its node's storage, in equal parts.
    pub nvme_per_rank: Option<u64>,
}

/// The ledger of a rank, of which `fits` says whether it fits.
pub fn of_rank(job: &Job, stage: ZeroStage, offload: Offload, fits: Option<bool>) -> LedgerOfRank {
    let (held, machine) = (ledger(&job.load(stage, offload)), job.machine());
    LedgerOfRank {
        stage,
        offload_optimizer: offload.optimizer,
        offload_param: offload.param,
        total: TierBytes {
            device: held.total(Tier::Device),
            host: held.total(Tier::Host),
            nvme: held.total(Tier::Nvme),
        },
        capacity: Capacity {
            device: job.on.memory,
            host_per_rank: job.on.host.map(|_| machine.host),
            nvme_per_rank: job.on.nvme.map(|_| machine.nvme),
        },
        fits,
        overflow: fits.and_then(|_| held.overflow(&machine)).map(Tier::name),
        rows: held
            .rows
            .into_iter()
            .map(|r| LedgerRow {
                tier: r.tier,
                what: r.what,
                bytes: r.bytes,
                formula: r.formula,
            })
            .collect(),
    }
}

/// What a rank moves between its device and the tier that its optimizer rests on, in a step.
#[derive(Clone, Debug, Serialize)]
pub struct OffloadTraffic {
    /// Bytes out.
    pub device_to_host: u64,
    /// Bytes back.
    pub host_to_device: u64,
    /// The formula of both.
    pub formula: &'static str,
    /// Time that takes, in seconds; where the device's rates are known.
    pub seconds: Option<f64>,
}

/// What offload moves in a step.
pub fn offload_traffic(job: &Job, stage: ZeroStage, offload: Offload) -> OffloadTraffic {
    let n = job.data_ranks();
    let shard = job.load(stage, offload).shard();
    let away = u64::from(offload.optimizer != Tier::Device);
    let (a, how) = (job.accounting.0, job.accumulation);
    // Where micro-batches leave one by one, each does; else their sum, once.
    let each = how.reduce_each && (n == 1 || !how.keeps_whole(stage));
    let g = match (each, how.micro_batches) {
        (true, g) if g > 1 => g,
        _ => 1,
    };
    let (out, back) = (away * g * a.grad * shard, away * a.param * shard);
    OffloadTraffic {
        device_to_host: out,
        host_to_device: back,
        formula: match g {
            1 => "q P/N out, w P/N back",
            _ => "g q P/N out, w P/N back",
        },
        seconds: job.on.rates.map(|d| (out + back) as f64 / d.host),
    }
}

/// The largest models that fit the devices.
#[derive(Clone, Debug, Serialize)]
pub struct Largest {
    /// At stages 0 to 3.
    pub rows: [LargestOfStage; 4],
    /// The formula of both columns.
    pub formula: &'static str,
    /// Where the optimizer's states rest.
    #[serde(serialize_with = "name")]
    pub offload_optimizer: Tier,
    /// Where parameter shards rest, at stage 3.
    #[serde(serialize_with = "name")]
    pub offload_param: Tier,
}

/// The most parameters that fit at a stage.
#[derive(Clone, Debug, Serialize)]
pub struct LargestOfStage {
    /// The stage.
    #[serde(serialize_with = "number")]
    pub stage: ZeroStage,
    /// Parameters whose states alone fill the device.
    pub states_only: u64,
    /// Parameters of which every row of the ledger fits.
    pub with_activations: u64,
}

/// The largest models that fit at each stage, with what `offload` keeps away.
pub fn largest_models(job: &Job, offload: Offload) -> Largest {
    let machine = job.machine();
    let at = |stage: ZeroStage| {
        let param = match stage {
            ZeroStage::Three => offload.param,
            _ => Tier::Device,
        };
        let load = job.load(stage, Offload { param, ..offload });
        let seq = job.model.shape.seq;
        LargestOfStage {
            stage,
            states_only: largest_params(machine.device, job.places.ranks, stage, job.accounting.0),
            with_activations: largest(&load, &machine, |shape| {
                job.activations(&Shape { seq, ..*shape })
            }),
        }
    };
    Largest {
        rows: STAGES.map(at),
        formula: "the most P whose ledger fits: states_only by states alone on the device, with_activations by every row",
        offload_optimizer: offload.optimizer,
        offload_param: offload.param,
    }
}
