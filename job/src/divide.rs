//! How the ranks divide the work: the sequences of a micro-batch, and the units over pipeline stages. One answer for `train`, `plan` and
//! `explain`.

use crate::Job;
use crate::costs::Sizes;
use crate::error::{JobError, Result};
use crossweave_config::{Balance, Layers};
use crossweave_data::shares;
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_planner::{PipelineOrder, PipelineSpec};

/// Sequences of each rank, and units of each stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Sequences of the micro-batch of each data-parallel rank; none where all take the same.
    pub rows: Option<Vec<u64>>,
    /// Units of each pipeline stage; none where every rank has the whole model.
    pub stages: Option<PipelineSpec>,
}

/// By what the work is divided.
#[derive(Clone, Copy, Debug)]
pub enum Shares<'a> {
    /// Every rank takes as many sequences. Stages have the layers or the weights of the config, else equal numbers of units.
    Even,
    /// Ranks take sequences by the weights of the config too.
    Given,
    /// By how fast each rank of the job was found to be.
    Measured(&'a [f64]),
}

impl Division {
    /// Divides a job.
    ///
    /// # Errors
    /// More stages than units, or numbers of units that are not the model's; as [`Job::units`].
    pub fn new(job: &Job, sizes: Sizes<'_>, shares: Shares<'_>) -> Result<Division> {
        let stages = stages(job, sizes, shares)?;
        let rows = match &stages {
            Some(_) => None,
            None => rows(job, shares),
        };
        Ok(Division { rows, stages })
    }

    /// Sequences of the micro-batch of the rank at a place.
    pub fn rows_of(&self, job: &Job, place: &Place) -> u64 {
        let own = |rows: &Vec<u64>| rows.get(place.index(AxisSet::DATA) as usize).copied();
        let own = self.rows.as_ref().and_then(own);
        own.unwrap_or(job.resolved.batch.micro)
    }
}

/// Sequences of the micro-batch of each data-parallel rank; none where all take the same.
fn rows(job: &Job, by: Shares<'_>) -> Option<Vec<u64>> {
    let r = &job.resolved;
    let weights = match (by, r.settings.run.balance()) {
        (Shares::Measured(speeds), _) => speeds.to_vec(),
        (Shares::Given, Some(Balance::Weights(w))) => w,
        _ => return None,
    };
    let data = job.data_ranks();
    let each = slowest(job, &weights, data, |p| p.index(AxisSet::DATA));
    let micro = r.batch.micro;
    let rows = shares(micro * u64::from(data), &each);
    Some(rows).filter(|rows| rows.iter().any(|r| *r != micro))
}

/// The weight of each of `n` sets of ranks that take the same sequences, given which set the rank at a place is in and a weight for each rank: a
/// set is as fast as the slowest of its ranks.
fn slowest(job: &Job, weights: &[f64], n: u32, of: impl Fn(&Place) -> u32) -> Vec<f64> {
    let mut each = vec![f64::INFINITY; n as usize];
    for (rank, w) in (0..job.resolved.mesh.world_size()).zip(weights) {
        if let Some(least) = each.get_mut(of(&job.resolved.mesh.place(rank)) as usize) {
            *least = least.min(*w);
        }
    }
    each
}

/// The stages of a job; none where there is one.
fn stages(job: &Job, sizes: Sizes<'_>, by: Shares<'_>) -> Result<Option<PipelineSpec>> {
    let r = &job.resolved;
    let mesh = &r.settings.mesh;
    let stages = mesh.pp.max(1);
    if stages == 1 {
        return Ok(None);
    }
    let units = job.units(&job.place(0))?;
    // What only holds parameters for the unit behind it is counted with that.
    let counted = units.iter().filter(|u| !u.lends).count();
    let n = counted as u64;
    if stages > n {
        return Err(JobError::refused(
            format!(
                "mesh.pp: {stages} pipeline stages, and the model has {n} units; every stage needs one unit at least"
            ),
            format!("set it to {n} or less"),
        ));
    }
    let order = PipelineOrder::from_name(&mesh.pp_schedule).unwrap_or_default();
    let (chunks, runs) = (mesh.chunks(), mesh.runs());
    if runs > n {
        let key = match order {
            PipelineOrder::Interleaved => "mesh.pp_chunks",
            _ => "mesh.pp_schedule",
        };
        return Err(JobError::refused(
            format!(
                "{key}: {stages} pipeline stages of {chunks} runs each, and the model has {n} units; every run needs one unit at least"
            ),
            format!("set mesh.pp to {} or less", n / chunks),
        ));
    }
    if let Some(Layers::Each(each)) = mesh.layers() {
        let spec = given(&each, (n, stages), order)?;
        return Ok(Some(spec.with_lenders(&units)));
    }
    let spec = match stage_weights(job, by) {
        Some(each) => {
            let costs = job.unit_costs(&job.place(0), sizes)?;
            let counted = units.iter().zip(&costs).filter(|(unit, _)| !unit.lends);
            let costs: Vec<f64> = counted.map(|(_, c)| c.whole() as f64).collect();
            PipelineSpec::weighted(&costs, &each, order, chunks as u32)
        }
        None => PipelineSpec::even_runs(n as u32, stages as u32, order, chunks as u32),
    };
    Ok(Some(spec.with_lenders(&units)))
}

/// The speed of each stage of a job, which is that of the slowest of its ranks; none where all count as alike.
pub fn stage_weights(job: &Job, by: Shares<'_>) -> Option<Vec<f64>> {
    let weights = match (by, job.resolved.settings.run.balance()) {
        (Shares::Measured(speeds), _) => speeds.to_vec(),
        (_, Some(Balance::Weights(w))) => w,
        _ => return None,
    };
    let stages = job.resolved.settings.mesh.pp.max(1);
    Some(slowest(job, &weights, stages as u32, |p| p.at(Axis::Pp)))
}

/// Runs of so many units each, of `n` in all over `stages` stages.
fn given(each: &[u64], (n, stages): (u64, u64), order: PipelineOrder) -> Result<PipelineSpec> {
    let sum = each.iter().fold(0u64, |a, b| a.saturating_add(*b));
    if sum != n {
        return Err(JobError::refused(
            format!("mesh.pp_layers: {sum} units over the stages, and the model has {n}"),
            format!("give {n} in all: the embedding is one, each layer is one, the head is one"),
        ));
    }
    let each: Vec<u32> = each.iter().map(|count| *count as u32).collect();
    Ok(PipelineSpec {
        runs: order.divide(&each, stages as u32),
        order,
    })
}
