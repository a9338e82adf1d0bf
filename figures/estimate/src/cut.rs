//! What a mesh cuts of a model, and what a step moves over each of its axes.

use super::job::Job;
use super::parts::Part;
use super::routed::{OfRank, Sent};
use super::sums::OverTp;
use crossweave_axes::{Axis, AxisSet};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{ActivationCase, traffic};
use serde::Serialize;

/// Elements that a rank sends in a step over the ranks of `mesh.tp`: those of its layers, and of the ends that it has ([`super::sums`]).
fn over_tp(job: &Job, part: &Part, over: &OverTp) -> f64 {
    let t = f64::from(job.places.mesh.length(Axis::Tp));
    let sent = over.sent(is_recomputed(job));
    let all = job.model.shape.layers.max(1) as f64;
    let tokens = (job.batch * job.tokens_here()) as f64;
    let hidden = tokens * job.model.shape.hidden as f64;
    let end = |here: bool, times: u64| if here { times as f64 } else { 0.0 };
    let ends = end(part.first, sent.table) + end(part.last, sent.head);
    let layers = part.layers as f64 / all;
    let shared = sent.shared as f64 * layers * tokens;
    let loss = end(part.last, sent.loss) * 2.0 * tokens * (t + 1.0);
    let each = (sent.layers as f64 * layers + ends) * hidden + shared + loss;
    job.accumulation.micro_batches as f64 * each * (t - 1.0) / t
}

/// Does the backward of a layer make its forward once more?
fn is_recomputed(job: &Job) -> bool {
    job.keep.0 == ActivationCase::Recompute
}

/// The formula of the same.
fn formula_over_tp(job: &Job, over: &OverTp) -> String {
    let sent = over.sent(is_recomputed(job));
    let each = sent.layers as f64 / job.model.shape.layers.max(1) as f64;
    let loss = match sent.loss {
        0 => "",
        1 => ", loss 2bs(t+1)(t-1)/t",
        _ => ", loss 4bs(t+1)(t-1)/t",
    };
    let shared = match sent.shared {
        0 => "",
        _ => ", key-value heads that are shared",
    };
    format!("({each}L + ends) g bsh(t-1)/t{loss}{shared}")
}

/// Elements that a rank sends to the stages beside its own: hidden states forward, their gradients back; of those that are cut by tokens
/// its own piece.
fn over_pp(job: &Job, part: &Part) -> f64 {
    let sides = f64::from(u8::from(!part.first)) + f64::from(u8::from(!part.last));
    let hidden = (job.batch * job.tokens_here() * job.model.shape.hidden) as f64;
    let pieces = match job.cuts_tokens {
        true => f64::from(job.places.mesh.length(Axis::Tp)),
        false => 1.0,
    };
    sides * job.accumulation.micro_batches as f64 * hidden / pieces
}

/// Sizes of a model that a mesh cuts, and those of a rank of its fullest stage.
#[derive(Clone, Debug, Serialize)]
pub struct CutMesh {
    /// Ranks that share layers.
    pub tp: u32,
    /// Pipeline stages.
    pub pp: u32,
    /// Ranks that share sequences.
    pub cp: u32,
    /// Data-parallel ranks.
    pub dp: u32,
    /// Parameters of a rank before ZeRO shards them.
    pub params_on_a_rank: u64,
    /// Transformer layers of a rank.
    pub layers_on_a_rank: u64,
    /// Micro-batches whose activations a rank keeps at once.
    pub micro_batches_in_flight: u64,
    /// Experts, where other ranks share these than share the layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<CutExperts>,
}

impl CutMesh {
    /// What else ZeRO shards, in words; empty where there is nothing else.
    pub fn beside(&self) -> String {
        let experts = self.experts.as_ref();
        experts.map_or(String::new(), |e| {
            format!(", experts over edp: {}", e.formula)
        })
    }
}

/// The experts of a rank on a mesh.
#[derive(Clone, Debug, Serialize)]
pub struct CutExperts {
    /// Ranks that have other ones.
    pub ep: u32,
    /// Ranks that have parts of the same.
    pub etp: u32,
    /// Ranks that have the same.
    pub edp: u32,
    /// Their parameters on a rank before ZeRO shards them.
    pub params_on_a_rank: u64,
    /// What P/N is in formulas.
    pub formula: String,
}

/// The mesh of a job, where it cuts the model.
pub fn mesh(job: &Job) -> Option<CutMesh> {
    let part = job.places.part.as_ref()?;
    let length = |a| job.places.mesh.length(a);
    Some(CutMesh {
        tp: length(Axis::Tp),
        pp: length(Axis::Pp),
        cp: length(Axis::Cp),
        dp: length(Axis::Dp),
        params_on_a_rank: job.here(),
        layers_on_a_rank: part.layers,
        micro_batches_in_flight: part.in_flight,
        experts: (!part.experts.is_empty()).then(|| CutExperts {
            ep: length(Axis::Ep),
            etp: length(Axis::Etp),
            edp: length(Axis::Edp),
            params_on_a_rank: part.experts.iter().sum(),
            formula: format!(
                "P/N is {}/{} + {}/{}",
                job.dense_here(),
                job.data_ranks(),
                part.experts.iter().sum::<u64>(),
                job.expert_ranks()
            ),
        }),
    })
}

/// Traffic of a rank in a step over one axis of the mesh.
#[derive(Clone, Debug, Serialize)]
pub struct AxisTraffic {
    /// The axis.
    pub axis: &'static str,
    /// Ranks along it.
    pub ranks: u32,
    /// Elements.
    pub elements: f64,
    /// Bytes.
    pub bytes: f64,
    /// The formula of the elements.
    pub formula: String,
    /// The link that they pass, where the device is known.
    pub link: Option<&'static str>,
    /// Time that takes, where the device's rates are known.
    pub seconds: Option<f64>,
}

/// Traffic of a step by axis at a ZeRO stage: of every axis that has more than one rank.
pub fn by_axis(job: &Job, stage: ZeroStage) -> Vec<AxisTraffic> {
    // Gradients travel in the type of their sum, parameters in that of the weights.
    let a = job.accounting.0;
    let (q, w) = (a.grad as f64, a.param as f64);
    let of_states = |(params, ranks): (u64, u64)| {
        let sent = traffic(stage, params, ranks, job.accumulation);
        let grads = (2 * sent.all_reduce + sent.reduce_scatter) as f64 * q;
        let bytes = grads + sent.all_gather as f64 * w;
        [
            sent.wire(ranks),
            bytes * (ranks as f64 - 1.0) / ranks as f64,
        ]
    };
    let formula = job.accumulation.wire_formula(stage);
    // Gradients are summed over all ranks that see other tokens.
    let data_axes = match job.keys_over_cp {
        Some(_) => "dp.cp",
        None => "dp",
    };
    let groups = [(AxisSet::DATA, data_axes), (AxisSet::EXPERT_DATA, "edp")];
    let states = job.shared().zip(groups);
    let states =
        states.map(|(own, (axes, name))| (axes, name, of_states(own), formula.to_string()));
    let mut rows: Vec<_> = states.collect();
    let both = |elements: f64| [elements, elements * w];
    let of = OfRank {
        batch: job.batch,
        tokens: [job.own_tokens(), job.tokens_here(), job.model.shape.seq],
        width: job.model.shape.hidden,
        recomputed: is_recomputed(job),
    };
    let of_experts = |axis: Axis| {
        let along = (axis, job.places.mesh.length(axis));
        let sent = job.routed.as_ref().map(|r| r.sent(&of, along));
        let Sent { rows, numbers } = sent.unwrap_or_default();
        let times = job.accumulation.micro_batches as f64 * job.routed_here();
        [rows + numbers, rows * w + numbers * 4.0].map(|n| n * times)
    };
    // What is counted of experts goes beside the rest that an axis moves.
    let beside = |[elements, bytes]: [f64; 2], formula: String, axis: Axis| {
        let [more, also] = of_experts(axis);
        let said = if more > 0.0 {
            ", and numbers of experts"
        } else {
            ""
        };
        ([elements + more, bytes + also], format!("{formula}{said}"))
    };
    if let Some(keys) = &job.keys_over_cp {
        let all = job.model.shape.layers.max(1) as f64;
        let here = job.places.part.as_ref().map_or(all, |p| p.layers as f64);
        let tokens = job.batch * job.model.shape.seq * job.accumulation.micro_batches;
        let elements = both(keys.elements * tokens as f64 * here / all);
        let (sent, formula) = beside(elements, keys.formula.to_string(), Axis::Cp);
        rows.push((Axis::Cp.into(), "cp", sent, formula));
    }
    if let Some(part) = &job.places.part {
        if let Some(over) = &job.over_tp {
            let elements = both(over_tp(job, part, over));
            let (sent, formula) = beside(elements, formula_over_tp(job, over), Axis::Tp);
            rows.push((Axis::Tp.into(), "tp", sent, formula));
        }
        let pp = match job.cuts_tokens {
            true => "g bsh/t to each neighbour",
            false => "g bsh to each neighbour",
        };
        rows.push((
            Axis::Pp.into(),
            "pp",
            both(over_pp(job, part)),
            pp.to_string(),
        ));
    }
    for (axis, routed) in [Axis::Ep, Axis::Etp].iter().zip(job.routed.iter().cycle()) {
        let formula = routed.formula(&of, *axis);
        rows.push(((*axis).into(), axis.name(), of_experts(*axis), formula));
    }
    let mesh = &job.places.mesh;
    let row = |(axes, axis, [elements, bytes], formula): (AxisSet, _, [f64; 2], String)| {
        let (ranks, device) = (mesh.size(axes), job.on.rates);
        (ranks > 1).then(|| AxisTraffic {
            axis,
            ranks,
            elements,
            bytes,
            formula,
            link: device.map(|d| match d.within_node(mesh, axes) {
                true => "within a node",
                false => "between nodes",
            }),
            seconds: device.map(|d| bytes / d.rate(mesh, axes)),
        })
    };
    rows.into_iter().filter_map(row).collect()
}
