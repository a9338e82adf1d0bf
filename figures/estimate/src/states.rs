//! Bytes of model states, whole and as each ZeRO stage lays them over the ranks, beside what each stage moves.

use super::job::Job;
use super::{STAGES, number};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{Offload, Tier, closed, ledger, padded, states, traffic};
use serde::Serialize;

/// Model states, and what becomes of them at each stage.
#[derive(Clone, Debug, Serialize)]
pub struct StagesOfStates {
    /// Bytes for each parameter.
    pub accounting: BytesOfParam,
    /// Each kind of state, where nothing is sharded.
    pub components: Vec<Component>,
    /// All of them.
    pub model_states: ModelStates,
    /// At stages 0 to 3.
    pub stages: [StatesOfStage; 4],
}

/// Bytes for each parameter.
#[derive(Clone, Debug, Serialize)]
pub struct BytesOfParam {
    /// The name of the accounting.
    pub name: &'static str,
    /// Weights.
    pub w: u64,
    /// Gradients.
    pub q: u64,
    /// States of the optimizer, with the master copy and the moving average of the weights.
    #[serde(rename = "K")]
    pub k: u64,
    /// All three.
    pub bytes_per_param: u64,
    /// As the sum of the three.
    pub formula: &'static str,
}

/// One kind of state.
#[derive(Clone, Debug, Serialize)]
pub struct Component {
    /// The kind: `param`, `grad`, `master`, `moment1`, `moment2`, and `ema` where a moving average is kept.
    pub what: &'static str,
    /// Bytes of all parameters.
    pub bytes: u64,
    /// Bytes of one.
    pub bytes_per_param: u64,
    /// `4 P`.
    pub formula: String,
}

/// All model states, where nothing is sharded.
#[derive(Clone, Debug, Serialize)]
pub struct ModelStates {
    /// Bytes.
    pub bytes: u64,
    /// The formula of them.
    pub formula: &'static str,
}

/// What a rank holds and sends at a ZeRO stage.
#[derive(Clone, Debug, Serialize)]
pub struct StatesOfStage {
    /// The stage.
    #[serde(serialize_with = "number")]
    pub stage: ZeroStage,
    /// Bytes of states, shards rounded up.
    pub bytes: u64,
    /// The same by the formula, without rounding.
    pub bytes_closed: f64,
    /// The same as the engine lays it out, each unit padded; where units are known.
    pub bytes_of_layout: Option<u64>,
    /// How many times fewer that is than one rank alone would hold.
    pub ratio: f64,
    /// The formula of `bytes_closed`.
    pub formula: &'static str,
    /// Elements sent, over those of plain data parallelism; on several ranks.
    pub volume_vs_ddp: Option<f64>,
    /// Elements that a rank sends in a step.
    pub wire_elements: f64,
    /// The formula of `wire_elements`.
    pub wire_formula: &'static str,
    /// With activations and windows, as the verdict has it; where the memory of a device is known.
    pub fits: Option<bool>,
}

/// What a rank holds at a stage.
fn formula(stage: ZeroStage) -> &'static str {
    match stage {
        ZeroStage::Zero => "(w+q+K)P",
        ZeroStage::One => "(w+q)P + KP/N",
        ZeroStage::Two => "wP + (q+K)P/N",
        ZeroStage::Three => "(w+q+K)P/N",
    }
}

/// The states of a job.
pub fn of_stages(job: &Job) -> StagesOfStates {
    let (a, name) = job.accounting;
    let whole = states(job.model.params, 1, ZeroStage::Zero, a);
    let component = |(what, bytes, each): (&'static str, u64, u64)| Component {
        what,
        bytes,
        bytes_per_param: each,
        formula: format!("{each} P"),
    };
    StagesOfStates {
        accounting: BytesOfParam {
            name,
            w: a.param,
            q: a.grad,
            k: a.optimizer(),
            bytes_per_param: a.total(),
            formula: "w + q + K",
        },
        components: [
            ("param", whole.param, a.param),
            ("grad", whole.grad, a.grad),
            ("master", whole.master, a.master),
            ("moment1", whole.moment1, a.moment1),
            ("moment2", whole.moment2, a.moment2),
            ("ema", whole.ema, a.ema),
        ]
        .into_iter()
        .filter(|(what, bytes, _)| *what != "ema" || *bytes > 0)
        .map(component)
        .collect(),
        model_states: ModelStates {
            bytes: whole.total(),
            formula: formula(ZeroStage::Zero),
        },
        stages: STAGES.map(|s| of_stage(job, s)),
    }
}

/// Elements of gradients and parameters that a rank sends in a step.
pub fn wire(job: &Job, stage: ZeroStage) -> f64 {
    let sent = |(p, n)| traffic(stage, p, n, job.accumulation).wire(n);
    job.shared().map(sent).sum()
}

fn of_stage(job: &Job, stage: ZeroStage) -> StatesOfStage {
    let a = job.accounting.0;
    let each = || job.shared().map(|(p, n)| (p as f64, n as f64));
    let exact: f64 = each().map(|(p, n)| closed(p, n, stage, a)).sum();
    let alone = closed(job.here() as f64, 1.0, ZeroStage::Zero, a);
    // As the engine lays it out: each unit padded to a multiple of the ranks, whole buffers padded too.
    let of_unit = |u: &u64, n: u64| match stage {
        ZeroStage::Zero => states(*u, n, stage, a).total(),
        _ => states(padded(*u, n).full, n, stage, a).total(),
    };
    let dense = job
        .units_here()
        .iter()
        .map(|u| of_unit(u, job.data_ranks()));
    let experts = job.experts_here().iter();
    let experts = experts.map(|u| of_unit(u, job.expert_ranks()));
    let layout: u64 = dense.chain(experts).sum();
    let bytes = job.shared().map(|(p, n)| states(p, n, stage, a).total());
    // Of two groups of ranks none is plain data parallelism.
    let alike = job.data_ranks() > 1 && job.experts_here().is_empty();
    let ddp = || traffic(stage, job.here(), job.data_ranks(), job.accumulation);
    let held = || ledger(&job.load(stage, Offload::NONE)).total(Tier::Device);
    StatesOfStage {
        stage,
        bytes: bytes.sum(),
        bytes_closed: exact,
        bytes_of_layout: (layout > 0).then_some(layout),
        ratio: alone / exact,
        formula: formula(stage),
        volume_vs_ddp: alike.then(|| ddp().volume_vs_ddp(job.here())),
        wire_elements: wire(job, stage),
        wire_formula: job.accumulation.wire_formula(stage),
        fits: job.on.memory.map(|m| held() <= m),
    }
}
