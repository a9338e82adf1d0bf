//! What one rank of a planned step holds and moves: bytes by tag, collectives by kind, and traffic against plain data parallelism.

use super::facts::JobFacts;
use crate::model::Source;
use crossweave_config::Settings;
use crossweave_engine::{Engine, Prediction};
use crossweave_hal::CollectiveLine;
use crossweave_mesh::Axis;
use crossweave_plan::{Facts, Peak, Plan, StepKind};
use crossweave_tensor::UnitDecl;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{States, Traffic, held, padded};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::Add;

/// What a rank trains.
#[derive(Clone, Debug, Serialize)]
pub struct OfJob {
    /// Ranks of the data-parallel group; for a whole pipeline all ranks.
    pub ranks: u64,
    /// ZeRO stage.
    pub stage: u8,
    /// Type of weights and activations.
    pub dtype: &'static str,
    /// Name of the optimizer, as configs write it.
    pub optimizer: String,
    /// Parameters that are trained.
    pub params: u64,
    /// Parameters under adapters.
    pub base: Base,
    /// How parameters are laid over the ranks.
    pub layout: Layout,
}

/// What adapters sit on, which is not trained.
#[derive(Clone, Debug, Serialize)]
pub struct Base {
    /// All of its parameters.
    pub params: u64,
    /// Those that a rank holds.
    pub on_a_rank: u64,
}

/// Parameters as ranks share them.
#[derive(Clone, Debug, Serialize)]
pub struct Layout {
    /// Units of the plan.
    pub units: usize,
    /// Parameters with padding.
    pub params_padded: u64,
    /// Parameters of a rank's slice.
    pub shard: u64,
    /// How units are padded.
    pub formula: &'static str,
}

/// Bytes of a rank, by what they hold.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// By tag.
    #[serde(flatten)]
    pub tags: BTreeMap<String, Held>,
    /// On the host.
    pub host: HostMemory,
    /// In files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvme: Option<HeldApart>,
    /// On the device.
    pub total: Held,
}

/// Bytes of a device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Held {
    /// Between steps.
    pub bytes: u64,
    /// At their most.
    pub peak: u64,
    /// When the device has the most of all tags.
    pub at_peak: u64,
}

/// Bytes off the device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeldApart {
    /// Between steps.
    pub bytes: u64,
    /// At their most.
    pub peak: u64,
}

/// Bytes on the host.
#[derive(Clone, Debug, Serialize)]
pub struct HostMemory {
    /// Between steps.
    pub bytes: u64,
    /// At their most.
    pub peak: u64,
    /// Page-locked ones among those at their most.
    pub pinned: u64,
    /// By tag.
    pub tags: BTreeMap<String, HeldApart>,
}

/// Formulas of what lives between steps.
#[derive(Clone, Debug, Serialize)]
pub struct StatesFormula {
    /// Weights.
    pub param: Formula,
    /// The master copy.
    pub master: Formula,
    /// Both moments.
    pub moment: Formula,
    /// What the letters stand for.
    pub note: &'static str,
}

impl StatesFormula {
    /// The formula of a tag, where it has one.
    pub fn of(&self, tag: &str) -> Option<&Formula> {
        match tag {
            "param" => Some(&self.param),
            "master" => Some(&self.master),
            "moment" => Some(&self.moment),
            _ => None,
        }
    }
}

/// Bytes with their formula.
#[derive(Clone, Debug, Serialize)]
pub struct Formula {
    /// The bytes.
    pub bytes: u64,
    /// Their formula.
    pub formula: String,
}

/// What a step moves between ranks, and between device and host.
#[derive(Clone, Debug, Serialize)]
pub struct Moved {
    /// Collectives of every step.
    pub collectives: Vec<CollectiveLine>,
    /// Those of the first, where they are others: it gathers what later ones find gathered.
    pub collectives_of_first_step: Option<Vec<CollectiveLine>>,
    /// Bytes between device and host.
    pub transfers: Transfers,
    /// Elements of gradients and parameters that a rank sends.
    pub wire_elements: u64,
    /// Those over what plain data parallelism sends; without a base, on several ranks.
    pub volume_vs_ddp: Option<f64>,
    /// The formula of that quotient.
    pub volume_formula: &'static str,
    /// By axis of the mesh.
    pub traffic: Vec<AxisCalls>,
}

/// Bytes between device and host in a step, by tag.
#[derive(Clone, Debug, Serialize)]
pub struct Transfers {
    /// Out.
    pub to_host: BTreeMap<String, u64>,
    /// Back.
    pub from_host: BTreeMap<String, u64>,
}

/// What a step moves over an axis of the mesh.
#[derive(Clone, Debug, Serialize)]
pub struct AxisCalls {
    /// The axis; `tie` of stages that share a unit.
    pub axis: String,
    /// Ranks along it.
    pub ranks: u32,
    /// Launches.
    pub calls: u64,
    /// Elements that a rank sends, by the ring formulas.
    pub elements: u64,
    /// The same in bytes.
    pub bytes: u64,
    /// The same by what is moved.
    pub parts: Vec<Part>,
}

/// What a step moves over an axis for one purpose.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// The purpose.
    pub what: &'static str,
    /// Launches.
    pub calls: u64,
    /// Elements that a rank sends.
    pub elements: u64,
    /// The same in bytes.
    pub bytes: u64,
}

/// Tags of the ledger with what is moved under them: within blocks, and between stages.
const PURPOSES: [(&str, [&str; 2]); 13] = [
    ("activation", ["layers", "hidden states"]),
    ("activation_grad", ["layers", "gradients of hidden states"]),
    ("experts", ["rows of experts", "rows of experts"]),
    ("table", ["table", "table"]),
    ("head", ["head", "head"]),
    ("loss", ["loss", "loss"]),
    ("grad", ["gradients", "gradients"]),
    (
        "tie",
        ["gradients of tied units", "gradients of tied units"],
    ),
    ("param", ["parameters", "parameters"]),
    (
        "param.scale",
        ["scales of parameters", "scales of parameters"],
    ),
    ("scalar", ["figures", "figures"]),
    (
        "optimizer",
        ["figures of the optimizer", "figures of the optimizer"],
    ),
    ("eval", ["outside of the step", "outside of the step"]),
];

/// The fullest moment of a plan, and what happens then.
#[derive(Clone, Debug, Serialize)]
pub struct PeakOfPlan {
    /// The first step at which the device has the most, and what that is.
    #[serde(flatten)]
    pub at: Peak,
    /// What the step does, in words.
    pub what: String,
    /// Steps of the plan.
    pub steps: usize,
}

/// Rows of a vocabulary that is shared over ranks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VocabularyRows {
    /// All of them.
    pub rows: u64,
    /// Those of this rank.
    pub here: u64,
}

/// Where a config keeps states off the device, and what rests there.
#[derive(Clone, Debug, Serialize)]
pub struct Offloaded {
    /// Where the optimizer's states are.
    pub optimizer: String,
    /// Which part of them.
    pub ratio: f64,
    /// Where parameter shards are.
    pub param: String,
    /// What rests there between steps.
    pub rows: Vec<Resting>,
    /// Bytes of files in a step.
    pub files_a_step: Option<FilesOfStep>,
}

/// Bytes that rest off the device.
#[derive(Clone, Debug, Serialize)]
pub struct Resting {
    /// Where.
    pub tier: &'static str,
    /// What they hold.
    pub what: String,
    /// How many they are.
    pub bytes: u64,
}

/// Bytes of files in a step.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FilesOfStep {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// Units of a rank that the same number of ranks share.
pub struct Shared {
    /// These ranks.
    pub ranks: u64,
    /// Elements of each unit that are trained.
    pub units: Vec<u64>,
    /// Those of a base that stays as it is.
    pub bases: Vec<u64>,
}

impl Shared {
    /// Parameters with padding. Slices of a rank are made of whole logical slices, where there are any.
    fn full(&self, job: &JobFacts<'_>) -> u64 {
        let full = |u: &u64| match job.shards {
            Some(s) => u.div_ceil(s) * s.div_ceil(self.ranks) * self.ranks,
            None => padded(*u, self.ranks).full,
        };
        self.units.iter().map(full).sum()
    }

    /// What adapters sit on: whole on every rank, or cut where whole weights come and go.
    fn base(&self, job: &JobFacts<'_>) -> u64 {
        match job.stage {
            ZeroStage::Three => self.bases.iter().map(|b| b.div_ceil(self.ranks)).sum(),
            _ => self.bases.iter().sum(),
        }
    }
}

/// The units of a rank, those of dense parameters first: experts have fewer ranks that share them, where others have other ones.
pub fn shared(job: &JobFacts<'_>, engine: &Engine) -> Vec<Shared> {
    let none = |ranks: u64| Shared {
        ranks,
        units: vec![],
        bases: vec![],
    };
    let mut all = vec![none(job.ranks.max(1))];
    for ((unit, base), u) in engine.unit_sizes().into_iter().zip(0..) {
        let ranks = engine.facts().sharers(u);
        let at = all.iter().position(|s| s.ranks == ranks);
        let at = at.unwrap_or_else(|| {
            all.push(none(ranks));
            all.len() - 1
        });
        all[at].units.push(unit);
        all[at].bases.push(base);
    }
    all
}

/// What a rank trains, and how it is laid over the ranks of its group.
pub fn of_job(job: &JobFacts<'_>, engine: &Engine) -> OfJob {
    let (units, bases): (Vec<u64>, Vec<u64>) = engine.unit_sizes().into_iter().unzip();
    let shared = shared(job, engine);
    OfJob {
        ranks: job.ranks,
        stage: job.stage as u8,
        dtype: job.compute.name(),
        optimizer: job.optimizer.to_string(),
        params: units.iter().sum(),
        base: Base {
            params: bases.iter().sum(),
            on_a_rank: shared.iter().map(|s| s.base(job)).sum(),
        },
        layout: Layout {
            units: engine.plan().units().len(),
            params_padded: shared.iter().map(|s| s.full(job)).sum(),
            shard: shared.iter().map(|s| s.full(job) / s.ranks).sum(),
            formula: match job.shards {
                None if shared.len() > 1 => {
                    "each unit padded to a multiple of the ranks that share it, of experts those over edp"
                }
                Some(_) => {
                    "each unit padded to a multiple of the logical shards, and those to a multiple of the ranks"
                }
                None => "each unit padded to a multiple of the ranks",
            },
        },
    }
}

/// What a step moves.
pub fn moved(job: &JobFacts<'_>, engine: &Engine, p: &Prediction) -> Moved {
    let (units, bases): (Vec<u64>, Vec<u64>) = engine.unit_sizes().into_iter().unzip();
    // Of ranks that see other tokens: what those that share layers sum besides is a part of no gradient of theirs.
    let lines = || p.each_step.iter().filter(|l| l.group != Axis::Tp.name());
    let of_states = |l: &&CollectiveLine| l.tag == "grad" || l.tag == "param";
    let sent = lines().filter(of_states);
    let elements = |tag: &str, kind: &str| -> u64 {
        let hit = lines().filter(|l| l.tag == tag && l.kind == kind);
        hit.map(|l| l.elements).sum()
    };
    let volume = Traffic {
        all_reduce: elements("grad", "all_reduce"),
        // To send each slice to its owner is what a reduce-scatter sends.
        reduce_scatter: elements("grad", "reduce_scatter") + elements("grad", "all_to_all"),
        all_gather: elements("param", "all_gather") + elements("grad", "all_gather"),
    };
    // Nothing is padded where nothing is sharded.
    let laid_out = match job.stage {
        ZeroStage::Zero if job.shards.is_none() => units.iter().sum(),
        _ => shared(job, engine).iter().map(|s| s.full(job)).sum(),
    };
    // Plain data parallelism moves gradients of what is trained, and a base is none of it.
    let alike = shared(job, engine).len() == 1;
    let compares = job.ranks > 1 && alike && bases.iter().sum::<u64>() == 0;
    Moved {
        collectives: p.each_step.clone(),
        collectives_of_first_step: (p.first_step != p.each_step).then(|| p.first_step.clone()),
        transfers: Transfers {
            to_host: p.to_host.clone(),
            from_host: p.from_host.clone(),
        },
        wire_elements: sent.map(|l| l.wire_elements).sum(),
        volume_vs_ddp: compares.then(|| volume.volume_vs_ddp(laid_out)),
        volume_formula: "wire elements of gradients and parameters over 2P(N-1)/N, P padded where it is sharded",
        traffic: by_axis(&p.each_step),
    }
}

/// Launches of a step, and what a rank sends by the ring formulas, by mesh axis and within it by purpose.
fn by_axis(lines: &[CollectiveLine]) -> Vec<AxisCalls> {
    let mut axes: Vec<AxisCalls> = vec![];
    for l in lines {
        let each = l.bytes as f64 / l.elements.max(1) as f64;
        // What a rank receives of another stage, that stage sends.
        let (between, elements) = match &*l.kind {
            "recv" => (l.group == Axis::Pp.name(), 0),
            kind => (
                kind == "send" && l.group == Axis::Pp.name(),
                l.wire_elements,
            ),
        };
        let bytes = (elements as f64 * each).round() as u64;
        let named = PURPOSES.iter().find(|(tag, _)| *tag == l.tag);
        let what = named.map_or("other", |(_, what)| what[usize::from(between)]);
        let part = Part {
            what,
            calls: l.calls,
            elements,
            bytes,
        };
        match axes
            .iter_mut()
            .find(|a| (&a.axis, a.ranks) == (&l.group, l.ranks))
        {
            Some(a) => a.add(part),
            None => axes.push(AxisCalls {
                axis: l.group.clone(),
                ranks: l.ranks,
                calls: part.calls,
                elements,
                bytes,
                parts: vec![part],
            }),
        }
    }
    for a in &mut axes {
        let order = |p: &Part| PURPOSES.iter().position(|(_, what)| what.contains(&p.what));
        a.parts.sort_by_key(order);
    }
    axes
}

impl AxisCalls {
    fn add(&mut self, part: Part) {
        self.calls += part.calls;
        self.elements += part.elements;
        self.bytes += part.bytes;
        match self.parts.iter_mut().find(|p| p.what == part.what) {
            Some(p) => {
                p.calls += part.calls;
                p.elements += part.elements;
                p.bytes += part.bytes;
            }
            None => self.parts.push(part),
        }
    }
}

/// Bytes that live for the whole run, and the most that are live at once, by tag.
pub fn memory(p: &Prediction) -> Memory {
    let (steady, total) = (&p.steady, &p.steady.total);
    let tags = steady.tags.iter().map(|(tag, b)| {
        let held = Held {
            bytes: b.now,
            peak: b.peak,
            at_peak: steady.at_peak.get(tag).copied().unwrap_or(0),
        };
        (tag.clone(), held)
    });
    let host = steady.host.iter().map(|(tag, b)| {
        let (bytes, peak) = (b.now, b.peak);
        (tag.clone(), HeldApart { bytes, peak })
    });
    let host: BTreeMap<_, _> = host.collect();
    Memory {
        tags: tags.collect(),
        nvme: p.files.map(|[bytes, ..]| HeldApart { bytes, peak: bytes }),
        total: Held {
            bytes: total.now,
            peak: total.peak,
            at_peak: total.peak,
        },
        host: HostMemory {
            bytes: host.values().map(|b| b.bytes).sum(),
            peak: host.values().map(|b| b.peak).sum(),
            pinned: steady.pinned.values().map(|b| b.peak).sum(),
            tags: host,
        },
    }
}

/// The formulas of what lives between steps.
pub fn formulas(job: &JobFacts<'_>, engine: &Engine) -> Option<StatesFormula> {
    let two_moments = [
        "Adam",
        "AdamW",
        "FusedAdam",
        "DeepSpeedCPUAdam",
        "Lamb",
        "FusedLamb",
    ];
    if !two_moments.contains(&job.optimizer) || job.shards.is_some() {
        return None;
    }
    let shared = shared(job, engine);
    let base: u64 = shared.iter().map(|s| s.base(job)).sum();
    let w = job.compute.bytes(1);
    let ema = if job.ema { 4 } else { 0 };
    let each = shared.iter();
    let each = each.map(|s| held(&s.units, s.ranks, job.stage, w, [8, ema]));
    let s = each.fold(States::default(), Add::add);
    let (param, owned) = match job.stage {
        ZeroStage::Zero => ("w P", "P"),
        ZeroStage::One | ZeroStage::Two => ("w P", "P/N"),
        ZeroStage::Three if w < 4 => ("0: a gather casts the master shards", "P/N"),
        ZeroStage::Three => ("4 P/N", "P/N"),
    };
    Some(StatesFormula {
        param: Formula {
            bytes: s.param + w * base,
            formula: match base {
                0 => param.to_string(),
                _ => format!("{param} + w B, B the elements of the base on a rank"),
            },
        },
        master: Formula {
            bytes: s.master,
            formula: match w < 4 {
                true => format!("4 {owned}"),
                false => "0: weights are f32".into(),
            },
        },
        moment: Formula {
            bytes: s.moment1 + s.moment2 + s.ema,
            formula: match job.ema {
                true => format!("(4 + 4 + 4) {owned}"),
                false => format!("(4 + 4) {owned}"),
            },
        },
        note: match shared.len() {
            1 => "P and P/N with each unit padded",
            _ => "P and P/N with each unit padded, N of experts the ranks over edp",
        },
    })
}

/// The fullest moment of a plan.
pub fn peak(plan: &Plan, facts: &Facts, peak: &Peak) -> PeakOfPlan {
    let step = plan.steps.get(peak.step.index());
    PeakOfPlan {
        at: peak.clone(),
        what: step.map_or(String::new(), |s| moment(&s.op, facts)),
        steps: plan.steps.len(),
    }
}

/// What a step of the plan does, in words.
fn moment(op: &StepKind, facts: &Facts) -> String {
    let unit = |u: &u32| match facts.units.get(*u as usize) {
        Some(f) => format!("unit {u} ({})", f.name),
        None => format!("unit {u}"),
    };
    match op {
        StepKind::Forward { unit: u, mb, .. } => {
            format!("the forward of {}, micro-batch {mb}", unit(u))
        }
        StepKind::Recompute { unit: u, mb } => {
            format!("{} recomputed for micro-batch {mb}", unit(u))
        }
        StepKind::Backward { unit: u, mb } | StepKind::InputGrad { unit: u, mb } => {
            format!("the backward of {}, micro-batch {mb}", unit(u))
        }
        StepKind::WeightGrad { unit: u, mb } => {
            format!("the weight gradient of {}, micro-batch {mb}", unit(u))
        }
        StepKind::Gather { unit: u, .. } => format!("gathering {}", unit(u)),
        StepKind::Update { unit: u } => format!("the update of {}", unit(u)),
        StepKind::ReduceGrad { units, .. } => match units.first() {
            Some(u) => format!("the reduction of gradients from {} on", unit(u)),
            None => "a reduction of gradients".into(),
        },
        other => format!("step {other}"),
    }
}

/// Rows of the vocabulary that a rank with these units has, where `tp` ranks share layers.
pub fn vocabulary(source: &Source, units: &[UnitDecl], tp: u32) -> Option<VocabularyRows> {
    let table = source.spec.model().table();
    let mut all = units.iter().flat_map(|u| &u.params);
    let found = all.find(|p| tp > 1 && p.name == table)?;
    Some(VocabularyRows {
        rows: found.shape.dims()[0],
        here: found.local().dims()[0],
    })
}

/// Where the config keeps states off the device, and what rests there between steps.
pub fn offload(settings: &Settings, p: &Prediction) -> Option<Offloaded> {
    let zero = &settings.zero_optimization;
    let device = |o: Option<&String>| o.map_or("none", String::as_str).to_string();
    let optimizer = device(zero.offload_optimizer.as_ref().map(|o| &o.device));
    let param = device(zero.offload_param.as_ref().map(|o| &o.device));
    if (&*optimizer, &*param) == ("none", "none") {
        return None;
    }
    let row = |tier, what: &str, bytes| Resting {
        tier,
        what: what.to_string(),
        bytes,
    };
    let host = p.steady.host.iter();
    let mut rows: Vec<Resting> = host.map(|(tag, b)| row("host", tag, b.now)).collect();
    rows.extend(p.files.map(|[bytes, ..]| row("nvme", "files", bytes)));
    Some(Offloaded {
        optimizer,
        ratio: zero.offload_optimizer.as_ref().map_or(1.0, |o| o.ratio),
        param,
        rows,
        files_a_step: p
            .files
            .map(|[_, read, written]| FilesOfStep { read, written }),
    })
}
