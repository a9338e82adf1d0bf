//! What a rank of a mesh has of a model before ZeRO shards it.

use crossweave_axes::{AxisSet, Topology};
use crossweave_job::error::Result;
use crossweave_job::{Division, Job};

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

/// The parts of the stages of a job that is divided so, as the ranks at place 0 of every other axis have them.
///
/// # Errors
/// A mesh that the model cannot be cut over.
pub fn parts(job: &Job, division: &Division) -> Result<Vec<Part>> {
    let units = job.units(&job.place(0))?;
    let each = |u: &crossweave_tensor::UnitDecl| -> u64 {
        u.params.iter().map(|p| p.local().numel()).sum()
    };
    let sizes: Vec<u64> = units.iter().map(each).collect();
    let layers = job.source.spec.model().layers().count() as u64;
    // A program may have put its own units in their place.
    let ends = (sizes.len() as u64).saturating_sub(layers);
    let Some(spec) = &division.stages else {
        return Ok(vec![Part {
            layers: sizes.len() as u64 - ends,
            units: sizes,
            in_flight: 1,
            first: true,
            last: true,
        }]);
    };
    let accumulation = job.resolved.batch.accumulation as u32;
    let part = |stage: u32| {
        let (first, last) = (stage == 0, stage == spec.runs.last_stage());
        let own = spec.runs.units_of(stage).map(|u| sizes[u as usize]);
        let own: Vec<u64> = own.collect();
        // Units that are no layer stand at the two ends of a model.
        let other = u64::from(first) * ends.min(1) + u64::from(last) * ends.saturating_sub(1);
        Part {
            layers: (own.len() as u64).saturating_sub(other),
            units: own,
            in_flight: spec.in_flight(stage, accumulation).into(),
            first,
            last,
        }
    };
    Ok((0..spec.runs.stages()).map(part).collect())
}

/// Whether ranks differ on more than the axes of data.
pub fn is_cut(mesh: &Topology) -> bool {
    mesh.world_size() > mesh.size(AxisSet::DATA)
}
