//! What a rank of a mesh has of a model before ZeRO shards it, and what a step moves over each axis.

use super::Job;
use crate::job::spec::compute_type;
use crate::job::{self, Division, Shares};
use crate::surroundings::Plugins;
use crate::{backend, train_error::Result};
use crossweave_engine::dry_run;
use crossweave_mesh::{Axis, AxisSet, Topology};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::{ActivationCase, traffic};
use serde_json::{Value, json};

/// The part of a model that the ranks of one pipeline stage have, tensor-parallel ranks each their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Elements of each unit on a rank.
    pub units: Vec<u64>,
    /// Transformer layers.
    pub layers: u64,
    /// Micro-batches whose activations are kept at once.
    pub in_flight: u64,
    /// Whether the embedding is in it.
    pub first: bool,
    /// Whether the head is in it.
    pub last: bool,
}

/// The parts of a job's stages, as the ranks at place 0 of every other axis have them.
///
/// # Errors
/// A mesh that the model cannot be cut over.
pub fn parts(job: &job::Job, plugins: &Plugins) -> Result<Vec<Part>> {
    let place = job.place(0);
    let units = job.units(&place)?;
    let null = backend::open_linked("null", &backend::host(plugins, 1, None, None))?.open(0)?;
    let (compute, batch) = (compute_type(job.resolved.dtype), &job.resolved.batch);
    let dry = dry_run(&null, &units, compute, batch.micro, job.seq_len)?;
    let division = Division::new(job, (&dry.units, dry.shape), Shares::Even)?;
    let each = |u: &crossweave_tensor::UnitDecl| -> u64 {
        u.params.iter().map(|p| p.local().numel()).sum()
    };
    let sizes: Vec<u64> = units.iter().map(each).collect();
    let ends = sizes.len() as u64 - job.source.spec.model().layers().count() as u64;
    let Some(spec) = division.stages else {
        return Ok(vec![Part {
            layers: sizes.len() as u64 - ends,
            units: sizes,
            in_flight: 1,
            first: true,
            last: true,
        }]);
    };
    let count = spec.stages.len();
    let part = |(k, range): (usize, &std::ops::Range<u32>)| {
        let (first, last) = (k == 0, k + 1 == count);
        let own = sizes[range.start as usize..range.end as usize].to_vec();
        // Units that are no layer stand at the two ends of a model.
        let other = u64::from(first) * ends.min(1) + u64::from(last) * ends.saturating_sub(1);
        Part {
            layers: (own.len() as u64).saturating_sub(other),
            units: own,
            in_flight: spec
                .order
                .in_flight(count, k, batch.accumulation as u32)
                .into(),
            first,
            last,
        }
    };
    Ok(spec.stages.iter().enumerate().map(part).collect())
}

/// Whether ranks differ on more than the data axis.
pub fn is_cut(mesh: &Topology) -> bool {
    mesh.world_size() > mesh.length(Axis::Dp)
}

/// Elements that a rank sends in a step over the ranks of `mesh.tp`: a ring's `2(t-1)/t` of each sum. Attention and MLP of a layer are summed
/// in the forward and in the backward (Shoeybi et al., arXiv 1909.08053, §3), and once more each where the layer is recomputed; the
/// embedding, the gradient of the head's input, and `t + 1` numbers a token of the loss.
fn over_tp(job: &Job, part: &Part) -> f64 {
    let t = f64::from(job.spread.mesh.length(Axis::Tp));
    let sums = match job.keep {
        ActivationCase::Recompute => 6.0,
        _ => 4.0,
    };
    let tokens = (job.batch * job.shape.seq) as f64;
    let hidden = tokens * job.shape.hidden as f64;
    let ends = f64::from(u8::from(part.first)) + f64::from(u8::from(part.last));
    let loss = if part.last { tokens * (t + 1.0) } else { 0.0 };
    let each = (sums * part.layers as f64 + ends) * hidden + loss;
    job.accumulation.micro_batches as f64 * each * 2.0 * (t - 1.0) / t
}

/// Elements that a rank sends to the stages beside its own: hidden states forward, their gradients back.
fn over_pp(job: &Job, part: &Part) -> f64 {
    let sides = f64::from(u8::from(!part.first)) + f64::from(u8::from(!part.last));
    let hidden = (job.batch * job.shape.seq * job.shape.hidden) as f64;
    sides * job.accumulation.micro_batches as f64 * hidden
}

/// Traffic of a step by axis at a ZeRO stage: elements and bytes that a rank sends, and seconds where the device's rates are known.
pub fn by_axis(job: &Job, stage: ZeroStage) -> Vec<Value> {
    let data = job.data_ranks();
    let dp = traffic(stage, job.here(), data, job.accumulation);
    // Gradients travel in the type of their sum, parameters in that of the weights.
    let (q, w) = (job.accounting.grad as f64, job.accounting.param as f64);
    let grads = (2 * dp.all_reduce + dp.reduce_scatter) as f64 * q;
    let bytes = (grads + dp.all_gather as f64 * w) * (data as f64 - 1.0) / data as f64;
    let formula = job.accumulation.wire_formula(stage);
    let mut rows = vec![(AxisSet::DATA, "dp", [dp.wire(data), bytes], formula)];
    if let Some(part) = &job.spread.part {
        let both = |elements: f64| [elements, elements * w];
        let tp = match job.keep {
            ActivationCase::Recompute => "(6L + ends) g 2bsh(t-1)/t, loss 2bs(t+1)(t-1)/t",
            _ => "(4L + ends) g 2bsh(t-1)/t, loss 2bs(t+1)(t-1)/t",
        };
        rows.push((Axis::Tp.into(), "tp", both(over_tp(job, part)), tp));
        let pp = "g bsh to each neighbour";
        rows.push((Axis::Pp.into(), "pp", both(over_pp(job, part)), pp));
    }
    let row = |(axes, name, [elements, bytes], formula): (AxisSet, &str, [f64; 2], &str)| {
        let ranks = job.spread.mesh.size(axes);
        let device = job.device.filter(|_| ranks > 1);
        let node = device.map(|d| d.within_node(&job.spread.mesh, axes));
        (ranks > 1).then(|| {
            json!({
                "axis": name, "ranks": ranks, "elements": elements, "bytes": bytes, "formula": formula,
                "link": node.map(|n| if n { "within a node" } else { "between nodes" }),
                "seconds": device.map(|d| bytes / d.rate(&job.spread.mesh, axes)),
            })
        })
    };
    rows.into_iter().filter_map(row).collect()
}
