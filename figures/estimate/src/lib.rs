//! Memory, traffic and time of a model by name, by size, of a Hugging Face folder or of a job, from formulas alone: no plan is made, no
//! device opened, and nothing runs.
//!
//! A [`Subject`] is what the figures are of: a model that is named ([`named`]), or a job that a config has made ([`of_job`]). [`estimate`]
//! lays what is asked ([`Estimation`]) over it, on the device that is meant ([`Chosen`]), and makes an [`Estimate`] of both.
#![forbid(unsafe_code)]

mod advice;
mod cut;
mod device;
mod experts;
mod job;
mod keys;
mod ledger;
mod parts;
mod presets;
mod routed;
mod states;
mod subject;
mod sums;
mod time;

pub use advice::{Advice, CommOverCompute};
use crossweave_job::error::Result;
use crossweave_words::scaled;
use crossweave_zero::ZeroStage;
pub use crossweave_zero::estimate::Shape;
use crossweave_zero::estimate::{Accounting, ActivationCase, Tier, ledger as held};
pub use cut::{AxisTraffic, CutExperts, CutMesh};
pub use device::{Chosen, Profile, device_named, profiles};
pub use experts::{ModelWithExperts, OfExperts, Standard, Whole, with_experts};
use job::Job;
pub use ledger::{
    Activations, Capacity, Largest, LargestOfStage, LedgerOfRank, LedgerRow, OffloadTraffic,
    TierBytes,
};
pub use parts::{Part, parts};
use serde::{Serialize, Serializer};
pub use states::{BytesOfParam, Component, ModelStates, StagesOfStates, StatesOfStage};
pub use subject::{Named, Subject, named, of_job};
pub use time::{RunTime, Scaling, ScalingRow, StepTime, TimeOfRun, Times};

/// A count of parameters or tokens as people write it: `124M`, `7.5B`, `1T`, `1000`, `175e9`.
///
/// # Errors
/// Not such a count.
pub fn count(text: &str) -> std::result::Result<u64, String> {
    scaled(text, &[("K", 1e3), ("M", 1e6), ("B", 1e9), ("T", 1e12)])
}

/// What is asked of a model in place of what a config or a default says.
#[derive(Clone, Debug, Default)]
pub struct Estimation {
    /// Where ranks are.
    pub ranks: Ranks,
    /// What they run on.
    pub machine: Hardware,
    /// How they train.
    pub training: Training,
    /// Dimensions in place of the model's.
    pub dims: Dims,
    /// Whether the time of a step and of a run are asked for, and how throughput scales.
    pub time: bool,
    /// Tokens of the run.
    pub tokens: Option<u64>,
}

/// Ranks of a job, and the nodes they are on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranks {
    /// Ranks; `None`: those of the nodes, else the config's, else one.
    pub ranks: Option<u64>,
    /// Nodes.
    pub nodes: Option<u64>,
    /// Ranks of a node; `None`: those of the device's profile.
    pub of_node: Option<u64>,
}

impl Ranks {
    /// Ranks of the job, where they are asked for.
    pub fn count(&self) -> Option<u64> {
        match (self.ranks, self.nodes, self.of_node) {
            (None, Some(nodes), Some(each)) => Some(nodes * each),
            (ranks, ..) => ranks,
        }
    }
}

/// Devices and nodes; sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// A device by name; `None`: the one that the config's back end has here.
    pub device: Option<String>,
    /// Memory of a device.
    pub device_memory: Option<u64>,
    /// Memory of a node's host.
    pub host: Option<u64>,
    /// Storage of a node.
    pub nvme: Option<u64>,
    /// Sustained TFLOP/s of a device, in place of the profile's.
    pub tflops: Option<f64>,
}

/// How a model is trained; what is `None` is the config's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Training {
    /// ZeRO stage; without a config the first that fits.
    pub stage: Option<u8>,
    /// Bytes for each parameter; without a config 16-bit weights and gradients.
    pub accounting: Option<BytesPerParam>,
    /// Where the optimizer's states rest; without a config the nearest tier that fits.
    pub offload_optimizer: Option<Home>,
    /// Where parameter shards rest at stage 3; without a config the nearest tier that fits.
    pub offload_param: Option<Home>,
    /// Activations kept for the backward; without a config the inputs of layers.
    pub keep: Option<Keep>,
    /// Sequences of a micro-batch on a rank; without a config one.
    pub batch: Option<u64>,
    /// Micro-batches of a step on a rank; without a config one.
    pub micro_batches: Option<u64>,
}

/// Dimensions of a decoder, of which some are given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dims {
    /// Layers.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub hidden: Option<u64>,
    /// Attention heads.
    pub heads: Option<u64>,
    /// Rows of the embedding.
    pub vocab: Option<u64>,
    /// Tokens of a sequence.
    pub seq: Option<u64>,
}

impl Dims {
    /// Lays what is given over `shape`; whether more than the length of sequences has changed.
    fn lay_over(&self, shape: &mut Shape) -> bool {
        let given = [self.layers, self.hidden, self.heads, self.vocab, self.seq];
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
        given[..4].iter().any(Option::is_some)
    }
}

/// Bytes for each parameter: weights, gradients, master copy and two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesPerParam {
    /// 2 + 2 + 4 + 4 + 4.
    Mixed,
    /// 4 + 4 + 0 + 4 + 4.
    Fp32,
    /// 2 + 4 + 4 + 4 + 4.
    MixedF32Grads,
}

impl BytesPerParam {
    fn accounting(self) -> (Accounting, &'static str) {
        match self {
            BytesPerParam::Mixed => (Accounting::MIXED, "mixed"),
            BytesPerParam::Fp32 => (Accounting::FP32, "fp32"),
            BytesPerParam::MixedF32Grads => (Accounting::MIXED_F32_GRADS, "mixed-f32-grads"),
        }
    }
}

/// Where states rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// On the device.
    Device,
    /// In the host's memory.
    Host,
    /// In files on fast storage.
    Nvme,
}

impl Home {
    fn tier(self) -> Tier {
        match self {
            Home::Device => Tier::Device,
            Home::Host => Tier::Host,
            Home::Nvme => Tier::Nvme,
        }
    }
}

/// Activations kept for the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// All but the attention core.
    Selective,
    /// All, with an attention that stores no scores.
    Flash,
    /// The input of each layer, which is recomputed.
    Inputs,
}

impl Keep {
    fn case(self) -> (ActivationCase, &'static str) {
        match self {
            Keep::All => (ActivationCase::Full, "all"),
            Keep::Selective => (ActivationCase::Selective, "selective"),
            Keep::Flash => (ActivationCase::Flash, "flash"),
            Keep::Inputs => (ActivationCase::Recompute, "inputs"),
        }
    }
}

/// What a job needs by the formulas, each figure beside its own. As JSON it is what `crossweave estimate --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// The model.
    pub model: Model,
    /// Its teacher, where it has one.
    pub teacher: Option<Teacher>,
    /// Ranks and devices.
    #[serde(flatten)]
    pub place: PlaceOfRanks,
    /// Bytes of model states, and what each ZeRO stage makes of them.
    #[serde(flatten)]
    pub states: StagesOfStates,
    /// Activations of a rank.
    pub activations: Activations,
    /// Every byte of a rank.
    pub ledger: LedgerOfRank,
    /// What offload moves in a step.
    pub offload_traffic: OffloadTraffic,
    /// What to change; `None` where no limit and no rate is known.
    pub advice: Option<Advice>,
    /// What a rank sends in a step over each axis of a mesh that cuts the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Vec<AxisTraffic>>,
    /// The largest models that fit, where the memory of a device is known and no mesh cuts the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<Largest>,
    /// Times, where they are asked for.
    #[serde(flatten)]
    pub times: Option<Times>,
}

/// A model in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Model {
    /// As it was named.
    pub name: String,
    /// Parameters, as its authors state them or as they are asked for.
    pub params: u64,
    /// Parameters counted from the declarations of the model, where it is known.
    pub params_of_shape: Option<u64>,
    /// Units of it.
    pub units: usize,
    /// Dimensions.
    #[serde(serialize_with = "shape")]
    pub shape: Shape,
}

/// A model that is distilled from.
#[derive(Clone, Debug, Serialize)]
pub struct Teacher {
    /// Its parameters.
    pub params: u64,
    /// What of it is in the figures.
    pub note: &'static str,
}

/// Where the ranks of a job are.
#[derive(Clone, Debug, Serialize)]
pub struct PlaceOfRanks {
    /// All ranks.
    pub ranks: u64,
    /// Ranks that see other tokens, over which ZeRO shards.
    #[serde(skip)]
    pub data_ranks: u64,
    /// The mesh, where it cuts the model.
    pub mesh: Option<CutMesh>,
    /// Nodes the ranks are on.
    pub nodes: u64,
    /// Micro-batches of a step on a rank.
    pub micro_batches: u64,
    /// The device, where one is meant.
    pub device: Option<String>,
    /// What was taken in place of a device that is not known.
    pub note: Option<String>,
}

/// What an estimate says of a teacher.
const TEACHER: &str = "its weights are among the bytes of a rank; its forward and, at stage 3, its gathers are not in traffic and time";

const STAGES: [ZeroStage; 4] = [
    ZeroStage::Zero,
    ZeroStage::One,
    ZeroStage::Two,
    ZeroStage::Three,
];

/// Estimates what a subject needs; `device`: what it is meant to run on, where something is.
///
/// # Errors
/// Ranks, nodes and a mesh that do not go together.
pub fn estimate(subject: Subject, what: &Estimation, device: Option<Chosen>) -> Result<Estimate> {
    let job = Job::of(subject, what, device)?;
    let (stage, offload) = job.choose(&what.training);
    let fits = job.limited().then(|| {
        let rows = held(&job.load(stage, offload));
        rows.overflow(&job.machine()).is_none()
    });
    let model = &job.model;
    let exact: u64 = model.units.iter().sum();
    let offload_traffic = ledger::offload_traffic(&job, stage, offload);
    // A mesh that cuts the model is of this model.
    let any = job.places.part.is_none() && job.on.memory.is_some();
    Ok(Estimate {
        model: Model {
            name: model.name.clone(),
            params: model.params,
            params_of_shape: (exact > 0).then_some(exact),
            units: model.units.len(),
            shape: model.shape,
        },
        teacher: (!model.teacher.is_empty()).then(|| Teacher {
            params: model.teacher.iter().sum(),
            note: TEACHER,
        }),
        place: PlaceOfRanks {
            ranks: job.places.ranks,
            data_ranks: job.data_ranks(),
            mesh: cut::mesh(&job),
            nodes: job.places.nodes,
            micro_batches: job.accumulation.micro_batches,
            device: (!job.on.label.is_empty()).then(|| job.on.label.clone()),
            note: job.on.note.clone(),
        },
        states: states::of_stages(&job),
        activations: ledger::activations(&job),
        ledger: ledger::of_rank(&job, stage, offload, fits),
        advice: advice::advice(&job, stage, offload, fits),
        traffic: parts::is_cut(&job.places.mesh).then(|| cut::by_axis(&job, stage)),
        largest: any.then(|| ledger::largest_models(&job, offload)),
        times: what
            .time
            .then(|| time::times(&job, offload_traffic.seconds)),
        offload_traffic,
    })
}

/// A stage as its number.
fn number<S: Serializer>(stage: &ZeroStage, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_u8(*stage as u8)
}

/// A tier as its name.
fn name<S: Serializer>(tier: &Tier, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.serialize_str(tier.name())
}

fn shape<S: Serializer>(shape: &Shape, s: S) -> std::result::Result<S::Ok, S::Error> {
    let all = [
        ("layers", shape.layers),
        ("hidden", shape.hidden),
        ("heads", shape.heads),
        ("vocab", shape.vocab),
        ("seq", shape.seq),
    ];
    s.collect_map(all)
}
