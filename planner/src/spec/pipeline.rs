//! The stages of a pipeline: which units each holds, and with which others it shares some.

use super::{RankSpec, balance};
use crate::error::{Error, Result};
use crossweave_hal::DType;
use crossweave_parallel::schedule::Order;
use crossweave_parallel::timeline::{Cost, Timeline};
use crossweave_parallel::work::in_flight;
use crossweave_plan::{PipelineStage, Run, Runs};
use crossweave_tensor::{Shape, UnitDecl};
use std::collections::{BTreeMap, BTreeSet};

/// Shapes and types of what flows from one unit to the next.
pub type FlowShape = Vec<(Shape, DType)>;

/// The division of a model's units over pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSpec {
    /// The runs of units, each with its stage.
    pub runs: Runs,
    /// The order of forwards and backwards.
    pub order: Order,
}

impl PipelineSpec {
    /// `units` units over `stages` stages as evenly as they go, the longer ones first.
    pub fn even(units: u32, stages: u32, order: Order) -> PipelineSpec {
        PipelineSpec {
            runs: Runs::even(units, stages),
            order,
        }
    }

    /// `units` units over the runs of so many stages, of which each has `chunks` where the order leaves a choice, as evenly as they go. What is
    /// left over goes to runs that have neither the first unit nor the last, which are embedding and head.
    pub fn even_runs(units: u32, stages: u32, order: Order, chunks: u32) -> PipelineSpec {
        if matches!(order, Order::OneFOneB | Order::GPipe) {
            return PipelineSpec::even(units, stages, order);
        }
        let count = stages * order.runs_of_a_stage(chunks);
        let (each, more) = (units / count, units % count);
        // The first and the last of them come last.
        let turn = |run: u32| match run {
            0 => count - 1,
            run if run + 1 == count => count.saturating_sub(2),
            run => run - 1,
        };
        let of = |run| each + u32::from(turn(run) < more);
        PipelineSpec {
            runs: order.divide(&(0..count).map(of).collect::<Vec<_>>(), stages),
            order,
        }
    }

    /// As many stages as `weights`, which say how fast each is; `costs` say how much work each unit is. The stage that takes longest for the
    /// units of all its runs takes little: with one run a stage, as little as whole units allow. Each stage has `chunks` runs where the order
    /// leaves a choice.
    pub fn weighted(costs: &[f64], weights: &[f64], order: Order, chunks: u32) -> PipelineSpec {
        let stages = weights.len() as u32;
        let count = stages * order.runs_of_a_stage(chunks);
        if count as usize > costs.len() {
            // Refused with a sentence when a rank is to run it.
            return PipelineSpec::even(costs.len() as u32, stages, order);
        }
        let stage_of = (0..count).map(|run| order.stage_of(run, stages) as usize);
        let each = balance::divide(costs, weights, &stage_of.collect::<Vec<_>>());
        PipelineSpec {
            runs: order.divide(&each, stages),
            order,
        }
    }

    /// The same where units that hold parameters for the next are not counted yet: each goes with that one.
    pub fn with_lenders(self, units: &[UnitDecl]) -> PipelineSpec {
        // The units behind which each of those that are counted ends.
        let counted = units.iter().zip(1u32..).filter(|(unit, _)| !unit.lends);
        let ends: Vec<u32> = [0].into_iter().chain(counted.map(|(_, end)| end)).collect();
        let end = |n: u32| ends.get(n as usize).copied().unwrap_or(n);
        let run = |r: &Run| Run {
            stage: r.stage,
            units: end(r.units.start)..end(r.units.end),
        };
        PipelineSpec {
            runs: self.runs.iter().map(run).collect::<Vec<_>>().into(),
            order: self.order,
        }
    }

    /// Returns true if backwards of one micro-batch, or their parts, may come between those of another.
    pub fn takes_turns(&self) -> bool {
        !matches!(self.order, Order::OneFOneB | Order::GPipe)
    }

    /// The part of the time in which a stage is idle, with messages free and every part of a run as long as every other.
    pub fn bubble(&self, micro_batches: u32) -> f64 {
        let stages = f64::from(self.runs.stages().max(1));
        let work = self.order.work(&self.runs, micro_batches);
        let played = work.and_then(|w| Timeline::play(&self.runs, &w, |_| Cost::UNIT));
        let end = played.map_or(0, |t| t.makespan()) as f64;
        let each = f64::from(3 * micro_batches) * self.runs.count() as f64 / stages;
        if end > 0.0 { 1.0 - each / end } else { 0.0 }
    }

    /// Runs whose activations a stage keeps at once, at most: with one run a stage, micro-batches.
    pub fn in_flight(&self, stage: PipelineStage, micro_batches: u32) -> u32 {
        let work = self.order.work(&self.runs, micro_batches);
        let own = work.ok().and_then(|w| w.into_iter().nth(stage as usize));
        own.map_or(micro_batches, |list| in_flight(&list))
    }

    /// Units whose parameters a stage holds: its own, and those that its own are tied to.
    fn holds(&self, stage: PipelineStage, units: &[UnitDecl]) -> BTreeSet<usize> {
        let own = self.runs.units_of(stage).map(|u| u as usize);
        own.flat_map(|u| units[u].borrowed.iter().map(|(o, _)| *o).chain([u]))
            .collect()
    }
}

impl RankSpec {
    /// A pipeline of one stage of all units is none.
    pub fn of_stages(mut self, units: usize) -> RankSpec {
        let one = |p: &PipelineSpec| p.runs.stages() == 1 && p.runs.check(units).is_ok();
        if self.pipeline.as_ref().is_some_and(one) {
            self.pipeline = None;
        }
        self
    }
}

/// Leaves of `units` what the rank's stage holds. Numbers stay the model's.
///
/// # Errors
/// Stages that do not fit the model, or with canonical sums.
pub(crate) fn keep_stage(spec: &RankSpec, units: &mut [UnitDecl]) -> Result<()> {
    let Some(p) = &spec.pipeline else {
        return Ok(());
    };
    p.runs.check(units.len()).map_err(Error::Invalid)?;
    if spec.canonical.is_some() {
        return Err(Error::Invalid(
            "a pipeline with canonical sums: their tree goes over the ranks of one stage only; leave run.canonical_shards out".into(),
        ));
    }
    let held = p.holds(spec.stage(), units);
    let own: BTreeSet<u32> = p.runs.units_of(spec.stage()).collect();
    for (u, unit) in units.iter_mut().enumerate() {
        if !held.contains(&u) {
            unit.params.clear();
        }
        if !own.contains(&(u as u32)) {
            unit.consts.clear();
            unit.borrowed.clear();
        }
    }
    Ok(())
}

/// The units that several stages hold, each with those stages in the order of the units that read it: the order in which its gradient is
/// added up.
///
/// # Errors
/// Stages that do not fit the model.
pub(crate) fn shared(
    spec: &RankSpec,
    units: &[UnitDecl],
) -> Result<BTreeMap<usize, Vec<PipelineStage>>> {
    let Some(p) = &spec.pipeline else {
        return Ok(BTreeMap::new());
    };
    p.runs.check(units.len()).map_err(Error::Invalid)?;
    let mut readers: BTreeMap<usize, Vec<PipelineStage>> = BTreeMap::new();
    for (u, unit) in units.iter().enumerate() {
        let Some(stage) = p.runs.stage_of(u as u32) else {
            continue;
        };
        for read in unit.borrowed.iter().map(|(o, _)| *o).chain([u]) {
            let stages = readers.entry(read).or_default();
            if !stages.contains(&stage) {
                stages.push(stage);
            }
        }
    }
    readers.retain(|_, stages| stages.len() > 1);
    Ok(readers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No unit is lost, and embedding and head are the last to get another.
    #[test]
    fn what_is_left_over_goes_to_runs_without_ends() {
        let each = |units, stages, order, chunks| -> Vec<usize> {
            let spec = PipelineSpec::even_runs(units, stages, order, chunks);
            spec.runs.check(units as usize).unwrap();
            spec.runs.iter().map(|r| r.units.len()).collect()
        };
        assert_eq!(each(6, 2, Order::Interleaved, 2), [1, 2, 2, 1]);
        assert_eq!(each(7, 2, Order::ZbV, 2), [1, 2, 2, 2]);
        assert_eq!(each(30, 4, Order::ZbV, 2), [3, 4, 4, 4, 4, 4, 4, 3]);
        assert_eq!(each(31, 4, Order::ZbH1, 1), [7, 8, 8, 8]);
        assert_eq!(each(3, 1, Order::Interleaved, 2), [1, 2]);
        assert_eq!(each(6, 4, Order::OneFOneB, 1), [2, 2, 1, 1]);
    }
}
