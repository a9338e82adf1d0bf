//! The stages of a pipeline: which units each holds, and with which others it shares some.

use super::RankSpec;
use crate::error::{Error, Result};
use crossweave_hal::DType;
use crossweave_parallel::schedule::Order;
use crossweave_parallel::timeline::{Cost, Timeline};
use crossweave_parallel::work::in_flight;
use crossweave_plan::{PipelineStage, Run, Runs};
use crossweave_tensor::{Shape, UnitDecl};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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

    /// As many stages as `weights`, which say how fast each is; `costs` say how much work each unit is. The stage that takes longest for its
    /// units takes as little as whole units allow.
    pub fn weighted(costs: &[f64], weights: &[f64], order: Order) -> PipelineSpec {
        if weights.len() > costs.len() {
            // Refused with a sentence when a rank is to run it.
            return PipelineSpec::even(costs.len() as u32, weights.len() as u32, order);
        }
        PipelineSpec {
            runs: Runs::one_each(divide(costs, weights)),
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

/// Runs of units, one for each weight, none empty: of all cuts one whose slowest stage (cost over weight) is fastest; where several are found
/// for a run of stages, the one whose stages differ less.
fn divide(costs: &[f64], weights: &[f64]) -> Vec<Range<u32>> {
    let (n, stages) = (costs.len(), weights.len().max(1));
    let mut before = vec![0.0];
    for c in costs {
        before.push(before[before.len() - 1] + c.max(0.0));
    }
    let time = |s: usize, from: usize, to: usize| {
        let weight = weights.get(s).copied().unwrap_or(1.0);
        (before[to] - before[from]) / weight.max(f64::MIN_POSITIVE)
    };
    // best[s][end]: the slowest of stages 0..=s over units 0..end, the sum of squares, and where stage s begins.
    let none = (f64::INFINITY, f64::INFINITY, 0);
    let mut best = vec![vec![none; n + 1]; stages];
    for end in 1..=n {
        let t = time(0, 0, end);
        best[0][end] = (t, t * t, 0);
    }
    for s in 1..stages {
        for end in s + 1..=n {
            for from in s..end {
                let (worst, squares, _) = best[s - 1][from];
                let t = time(s, from, end);
                let found = (worst.max(t), squares + t * t, from);
                let kept = best[s][end];
                if (found.0, found.1) < (kept.0, kept.1) {
                    best[s][end] = found;
                }
            }
        }
    }
    let mut cuts = vec![];
    let mut end = n;
    for s in (0..stages).rev() {
        let from = best[s][end].2;
        cuts.push(from as u32..end as u32);
        end = from;
    }
    cuts.reverse();
    cuts
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

    fn cuts(costs: &[f64], weights: &[f64]) -> Vec<(u32, u32)> {
        let all = PipelineSpec::weighted(costs, weights, Order::OneFOneB).runs;
        all.iter().map(|r| (r.units.start, r.units.end)).collect()
    }

    #[test]
    fn units_follow_weights_and_every_stage_has_one() {
        assert_eq!(cuts(&[1.0; 6], &[1.0, 1.0]), [(0, 3), (3, 6)]);
        assert_eq!(cuts(&[1.0; 8], &[3.0, 1.0]), [(0, 6), (6, 8)]);
        assert_eq!(cuts(&[1.0; 8], &[1.0, 3.0]), [(0, 2), (2, 8)]);
        // A stage that is hardly there still has a unit, and free units are somebody's.
        assert_eq!(cuts(&[1.0; 4], &[1.0, 1e-9, 1.0]).len(), 3);
        assert_eq!(cuts(&[0.0, 4.0, 4.0, 0.0], &[1.0, 1.0]), [(0, 2), (2, 4)]);
        for stages in 1..5usize {
            let found = cuts(&[2.0, 1.0, 1.0, 5.0, 1.0], &vec![1.0; stages]);
            assert_eq!(found.len(), stages);
            let mut next = 0;
            for (start, end) in found {
                assert!(start == next && end > start);
                next = end;
            }
            assert_eq!(next, 5);
        }
    }

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

    /// Against every cut there is.
    #[test]
    fn the_slowest_stage_is_as_fast_as_any_cut_makes_it() {
        let costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0];
        for weights in [[1.0, 1.0, 1.0], [2.0, 1.0, 3.0], [0.5, 4.0, 1.0]] {
            let slowest = |ends: [usize; 4]| -> f64 {
                let each =
                    (0..3).map(|s| costs[ends[s]..ends[s + 1]].iter().sum::<f64>() / weights[s]);
                each.fold(0.0, f64::max)
            };
            let mut least = f64::INFINITY;
            for a in 1..6 {
                for b in a + 1..7 {
                    least = least.min(slowest([0, a, b, 7]));
                }
            }
            let found = cuts(&costs, &weights);
            let ends = [0, found[1].0 as usize, found[2].0 as usize, 7];
            assert_eq!(slowest(ends), least, "{weights:?}: {found:?}");
        }
    }
}
