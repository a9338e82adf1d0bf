//! What a mesh cuts of a model, and what a step moves over each of its axes.

use super::job::Job;
use super::parts::Part;
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
    let data = job.data_ranks();
    let dp = traffic(stage, job.here(), data, job.accumulation);
    // Gradients travel in the type of their sum, parameters in that of the weights.
    let a = job.accounting.0;
    let (q, w) = (a.grad as f64, a.param as f64);
    let grads = (2 * dp.all_reduce + dp.reduce_scatter) as f64 * q;
    let bytes = (grads + dp.all_gather as f64 * w) * (data as f64 - 1.0) / data as f64;
    let formula = job.accumulation.wire_formula(stage);
    // Gradients are summed over all ranks that see other tokens.
    let data_axes = match job.keys_over_cp {
        Some(_) => "dp.cp",
        None => "dp",
    };
    let mut rows = vec![(
        AxisSet::DATA,
        data_axes,
        [dp.wire(data), bytes],
        formula.to_string(),
    )];
    let both = |elements: f64| [elements, elements * w];
    if let Some(keys) = &job.keys_over_cp {
        let all = job.model.shape.layers.max(1) as f64;
        let here = job.places.part.as_ref().map_or(all, |p| p.layers as f64);
        let tokens = job.batch * job.model.shape.seq * job.accumulation.micro_batches;
        let elements = both(keys.elements * tokens as f64 * here / all);
        rows.push((Axis::Cp.into(), "cp", elements, keys.formula.to_string()));
    }
    if let Some(part) = &job.places.part {
        if let Some(over) = &job.over_tp {
            let formula = formula_over_tp(job, over);
            rows.push((
                Axis::Tp.into(),
                "tp",
                both(over_tp(job, part, over)),
                formula,
            ));
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
