//! Whether a planned step fits its device, and what to change or why all is well. Both are made of the figures of the rehearsal, so that
//! they cannot contradict each other, and what is advised has been planned too ([`super::remedies`]). On a processor, what is pinned for
//! offload counts too: it is the same memory.

use super::RankFigures;
use super::facts::JobFacts;
use super::rank::{AxisCalls, Memory, Shared};
use super::remedies::{Flags, Remedy};
use crate::devices::Chosen;
use crossweave_engine::Recompute;
use crossweave_mesh::{Axis, AxisSet};
use crossweave_words::Size;
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{Accounting, Speeds, advise, seconds_on, states, traffic};
use serde::Serialize;

/// Whether a rank fits its device.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The device.
    pub device: String,
    /// Bytes that the rank needs of it.
    pub needed: u64,
    /// Bytes that it has for the rank, where that is known.
    pub capacity: Option<u64>,
    /// Whether that is enough, where it is known.
    pub fits: Option<bool>,
    /// Bytes that are pinned on the host, where that is the same memory.
    pub pinned_of_the_same_memory: u64,
    /// Ranks that share the device.
    pub ranks_on_the_device: u64,
    /// What was taken in place of a device that is not known.
    pub note: Option<String>,
}

impl Verdict {
    /// The verdict on a rank that holds so much.
    pub fn on(device: &Chosen, memory: &Memory) -> Verdict {
        let pinned = match device.is_host {
            true => memory.host.peak,
            false => 0,
        };
        let needed = memory.total.peak + pinned;
        Verdict {
            device: device.label.clone(),
            needed,
            capacity: device.memory,
            fits: device.memory.map(|m| needed <= m),
            pinned_of_the_same_memory: pinned,
            ranks_on_the_device: device.sharing,
            note: device.note.clone(),
        }
    }
}

/// Advice on a job: a change that would make it fit, or the reason why none is needed.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The device that it is for.
    pub device: String,
    /// Floating-point operations of a rank in a step.
    pub model_flops_per_step: f64,
    /// Seconds of computation in a step, where the device's rates are known.
    pub compute_seconds: Option<f64>,
    /// Seconds of communication in a step, where the device's rates are known.
    pub comm_seconds: Option<f64>,
    /// The one over the other.
    pub comm_over_compute: Option<f64>,
    /// The ZeRO stage that is advised.
    pub stage: u8,
    /// In a sentence.
    pub why: String,
    /// Changes of which each alone makes the job fit, in words.
    pub remedies: Vec<String>,
    /// The same as a command line has them.
    pub changes: Vec<Flags>,
}

/// A rank that is judged.
pub struct Rank<'a> {
    /// The job that it is a rank of.
    pub job: &'a JobFacts<'a>,
    /// Its units, by the ranks that share them.
    pub units: Vec<Shared>,
    /// Bytes that it would need if nothing were kept off the device.
    pub alone: u64,
}

const STAGES: [ZeroStage; 4] = [
    ZeroStage::Zero,
    ZeroStage::One,
    ZeroStage::Two,
    ZeroStage::Three,
];

/// The axes of a row of traffic, by its name in the ledger; those of stages that sum a tied unit are `pp`.
fn axes_of(name: &str) -> AxisSet {
    if name == "tie" {
        return Axis::Pp.into();
    }
    let axes: Vec<Axis> = name.split('.').filter_map(|a| a.parse().ok()).collect();
    AxisSet::of(&axes)
}

/// Seconds of a step's traffic as the rehearsal counted it: over data-parallel ranks, and over all other groups.
fn seconds_by_axis(traffic: &[AxisCalls], job: &JobFacts<'_>) -> (f64, f64) {
    let (mut data, mut rest) = (0.0, 0.0);
    for row in traffic {
        let axes = axes_of(&row.axis);
        let seconds = row.bytes as f64 / job.device.profile.rate(&job.mesh, axes);
        match axes == job.mesh.long(AxisSet::DATA) {
            true => data += seconds,
            false => rest += seconds,
        }
    }
    (data, rest)
}

/// Floating-point operations of a rank in a step: tensor-parallel ranks have a part of each layer's products, context-parallel ones of the tokens.
fn flops(job: &JobFacts<'_>) -> f64 {
    let tokens = (job.batch * job.accumulation.micro_batches * job.seq) as f64;
    job.model.flops_per_token(job.seq) * tokens
        / f64::from(job.mesh.length(Axis::Tp) * job.mesh.length(Axis::Cp))
}

/// Seconds of a step at each stage, for a rank of `params` trained elements and a `base` that stays as it is. A stage of a pipeline
/// computes a part of the step only, and the rates of a processor are not known: then there are none.
fn speeds(
    counted: &[AxisCalls],
    job: &JobFacts<'_>,
    (params, base): (u64, u64),
    flops: f64,
) -> Option<Speeds> {
    let w = job.compute.bytes(1);
    // Stage 3 gathers for each micro-batch; gathers are in the type of the weights, reductions in f32.
    let sent = STAGES.map(|s| {
        let t = traffic(s, params, job.ranks, job.accumulation);
        let n = job.ranks as f64;
        let grads = (2 * t.all_reduce + t.reduce_scatter) as f64 * 4.0;
        // Stage 3 gathers the base as often as what is trained.
        let gathered = match s {
            ZeroStage::Three if params > 0 => {
                t.all_gather as f64 * (params + base) as f64 / params as f64
            }
            _ => t.all_gather as f64,
        };
        (grads + gathered * w as f64) * (n - 1.0) / n
    });
    let (data, rest) = seconds_by_axis(counted, job);
    // The stage at hand as it was counted; another by what its formula differs from this one's.
    let now = sent[job.stage as usize];
    let comm = sent.map(|b| rest + if now > 0.0 { data * b / now } else { data });
    let again = match job.recompute {
        Recompute::Full => 4.0 / 3.0,
        _ => 1.0,
    };
    let compute = seconds_on(flops * again, 1.0, job.device.profile.sustained);
    let known = job.mesh.length(Axis::Pp) == 1 && !job.device.is_host;
    known.then_some(Speeds { comm, compute })
}

/// The advice for a rank of which `figures` are known. `remedies` are changes of which each alone makes the job fit.
pub fn advice(
    figures: &RankFigures,
    rank: &Rank<'_>,
    remedies: impl FnOnce() -> Vec<Remedy>,
) -> Advice {
    let (job, alone) = (rank.job, rank.alone);
    let (needed, fits) = (figures.verdict.needed, figures.verdict.fits);
    let w = job.compute.bytes(1);
    let a = match w < 4 {
        true => Accounting::MIXED_F32_GRADS,
        false => Accounting::FP32,
    };
    let each = || {
        let sum = |all: &[u64]| all.iter().sum::<u64>();
        let sizes = |s: &Shared| (sum(&s.units), sum(&s.bases), s.ranks);
        rank.units.iter().map(sizes).collect::<Vec<_>>()
    };
    // A base has weights only, which stage 3 shards.
    let of = |s: ZeroStage| -> u64 {
        let of = |(params, base, ranks): (u64, u64, u64)| {
            let under = match s {
                ZeroStage::Three => base.div_ceil(ranks.max(1)),
                _ => base,
            };
            states(params, ranks, s, a).total() + w * under
        };
        each().into_iter().map(of).sum()
    };
    // What the stage at hand needs, by the rehearsal; of the others by what their states differ from its.
    let at = |s: ZeroStage| needed.saturating_sub(of(job.stage)) + of(s);
    let elements = STAGES.map(|s| -> f64 {
        let sent = |(params, _, ranks)| traffic(s, params, ranks, job.accumulation).wire(ranks);
        each().into_iter().map(sent).sum()
    });
    // Of experts the traffic is taken as it was counted, whatever the stage.
    let (params, base, _) = each()[0];
    let flops = flops(job);
    let speeds = speeds(&figures.moved.traffic, job, (params, base), flops);
    let mut best = job.stage;
    let mut ways = vec![];
    let why = match fits {
        Some(false) => {
            ways = remedies();
            match ways.is_empty() {
                true => {
                    format!(
                        "no single change makes room: it is {} of",
                        largest(&figures.memory)
                    ) + " the peak that has to shrink first; take shorter sequences, more ranks and a higher ZeRO stage together"
                }
                false => {
                    let words: Vec<&str> = ways.iter().map(|w| &*w.words).collect();
                    words.join("; or ")
                }
            }
        }
        _ if job.mesh.world_size() == 1 && alone == needed => {
            "it fits, and one rank has nothing to shard".into()
        }
        _ if job.mesh.length(Axis::Pp) > 1 => {
            "the fullest pipeline stage decides; mesh.pp_layers moves units between stages".into()
        }
        _ if alone > needed => {
            let would = match job.device.memory.is_some_and(|m| alone <= m) {
                true => "which fits too, and saves the transfers",
                false => "which does not fit",
            };
            format!(
                "offload keeps {} off the device; without it a rank would need {}, {would}",
                Size(alone - needed),
                Size(alone)
            )
        }
        _ if job.ranks == 1 => "it fits, and one data-parallel rank has no states to shard".into(),
        _ => {
            let advice = advise(
                job.stage,
                STAGES.map(at),
                job.device.memory,
                elements,
                speeds,
            );
            best = advice.stage;
            advice.why
        }
    };
    let stage = job.stage as usize;
    Advice {
        device: job.device.label.clone(),
        model_flops_per_step: flops,
        compute_seconds: speeds.map(|s| s.compute),
        comm_seconds: speeds.map(|s| s.comm[stage]),
        comm_over_compute: speeds.filter(|s| s.compute > 0.0).map(|s| s.ratio(stage)),
        stage: best as u8,
        why,
        remedies: ways.iter().map(|w| w.words.clone()).collect(),
        changes: ways.into_iter().map(|w| w.flags).collect(),
    }
}

/// The tag that has the most at the peak, with its bytes.
fn largest(memory: &Memory) -> String {
    let most = memory.tags.iter().map(|(tag, b)| (b.at_peak, tag)).max();
    most.map_or(String::new(), |(n, tag)| format!("{} ({tag})", Size(n)))
}
