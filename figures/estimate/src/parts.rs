//! What a rank of a mesh has of a model before ZeRO shards it.

use crossweave_axes::{Axis, AxisSet, Topology};
use crossweave_job::error::Result;
use crossweave_job::{Division, Job};
use crossweave_tensor::UnitDecl;

/// The part of a model that the ranks of one pipeline stage have, tensor-parallel ranks each their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Elements of each unit on a rank, but for those of experts that are apart.
    pub units: Vec<u64>,
    /// Elements of each unit of experts on a rank, where other ranks share these than share the layers.
    pub experts: Vec<u64>,
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
    let layers = job.source.spec.model().layers().count() as u64;
    // A program may have put its own units in their place.
    let ends = counted(units.iter()).saturating_sub(layers);
    let Some(spec) = &division.stages else {
        let part = Part {
            layers: counted(units.iter()) - ends,
            in_flight: 1,
            first: true,
            last: true,
            ..Part::default()
        };
        return Ok(vec![part.of(units.iter())]);
    };
    let accumulation = job.resolved.batch.accumulation as u32;
    let part = |stage: u32| {
        let (first, last) = (stage == 0, stage == spec.runs.last_stage());
        let own = || spec.runs.units_of(stage).map(|u| &units[u as usize]);
        // Units that are no layer stand at the two ends of a model.
        let other = u64::from(first) * ends.min(1) + u64::from(last) * ends.saturating_sub(1);
        let part = Part {
            layers: counted(own()).saturating_sub(other),
            in_flight: spec.in_flight(stage, accumulation).into(),
            first,
            last,
            ..Part::default()
        };
        part.of(own())
    };
    Ok((0..spec.runs.stages()).map(part).collect())
}

/// The units that are not counted with the one behind them.
fn counted<'u>(units: impl Iterator<Item = &'u UnitDecl>) -> u64 {
    units.filter(|u| !u.lends).count() as u64
}

impl Part {
    /// The same with the elements of these units.
    fn of<'u>(mut self, units: impl Iterator<Item = &'u UnitDecl>) -> Part {
        for u in units {
            let elements = u.params.iter().map(|p| p.local().numel()).sum();
            let mut owners = u.params.iter().map(|p| p.held.owners);
            match owners.any(|axes| axes == AxisSet::EXPERT_DATA) {
                true => self.experts.push(elements),
                false => self.units.push(elements),
            }
        }
        self
    }
}

/// Whether ranks differ on more than the axes of data.
pub fn is_cut(mesh: &Topology) -> bool {
    let experts = [Axis::Ep, Axis::Etp].map(|a| mesh.length(a));
    mesh.world_size() > mesh.size(AxisSet::DATA) || experts != [1; 2]
}
