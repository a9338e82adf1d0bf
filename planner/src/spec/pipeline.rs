//! The stages of a pipeline: which units each holds, and with which others it shares some.

use super::RankSpec;
use crate::error::{Error, Result};
use crossweave_hal::DType;
use crossweave_parallel::schedule::{Order, Stages};
use crossweave_tensor::{Shape, UnitDecl};
use std::collections::BTreeSet;
use std::ops::Range;

/// Shapes and types of what flows from one unit to the next.
pub type FlowShape = Vec<(Shape, DType)>;

/// The division of a model's units over pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSpec {
    /// Units of every stage, in run order.
    pub stages: Vec<Range<u32>>,
    /// The order of forwards and backwards.
    pub order: Order,
}

impl PipelineSpec {
    /// `units` units over `stages` stages as evenly as they go, the longer ones first.
    pub fn even(units: u32, stages: u32, order: Order) -> PipelineSpec {
        PipelineSpec {
            stages: Stages::even(units, stages).stages,
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
            stages: divide(costs, weights),
            order,
        }
    }

    /// The stages as a schedule is given them.
    pub(crate) fn schedule(&self) -> Stages {
        Stages {
            stages: self.stages.clone(),
        }
    }

    /// Units whose parameters a stage holds: its own, and those that its own are tied to.
    fn holds(&self, stage: usize, units: &[UnitDecl]) -> BTreeSet<usize> {
        let own = self.stages[stage].clone().map(|u| u as usize);
        own.flat_map(|u| units[u].borrowed.iter().map(|(o, _)| *o).chain([u]))
            .collect()
    }

    fn check(&self, units: usize) -> std::result::Result<(), String> {
        let mut next = 0;
        for (s, r) in self.stages.iter().enumerate() {
            if r.start != next || r.is_empty() {
                return Err(format!(
                    "stage {s} of the pipeline has units {r:?}, and unit {next} is next; every stage needs one unit at least, of {units} in all; set mesh.pp to {units} or less"
                ));
            }
            next = r.end;
        }
        if next as usize != units {
            return Err(format!(
                "{} pipeline stages of {next} units: the model has {units} units",
                self.stages.len()
            ));
        }
        Ok(())
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
        let one = |p: &PipelineSpec| p.stages.len() == 1 && p.check(units).is_ok();
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
    p.check(units.len()).map_err(Error::Invalid)?;
    if spec.canonical.is_some() {
        return Err(Error::Invalid(
            "a pipeline with canonical sums: their tree goes over the ranks of one stage only; leave run.canonical_shards out".into(),
        ));
    }
    let stage = spec.stage() as usize;
    let held = p.holds(stage, units);
    for (u, unit) in units.iter_mut().enumerate() {
        if !held.contains(&u) {
            unit.params.clear();
        }
        if !p.stages[stage].contains(&(u as u32)) {
            unit.consts.clear();
            unit.borrowed.clear();
        }
    }
    Ok(())
}

/// The sets of stages that share a unit: one at most, since one group is made for it.
///
/// # Errors
/// Several.
pub(crate) fn shared(spec: &RankSpec, units: &[UnitDecl]) -> Result<Vec<BTreeSet<usize>>> {
    let Some(p) = &spec.pipeline else {
        return Ok(vec![]);
    };
    p.check(units.len()).map_err(Error::Invalid)?;
    let held: Vec<BTreeSet<usize>> = (0..p.stages.len()).map(|s| p.holds(s, units)).collect();
    let by = |u: usize| -> BTreeSet<usize> {
        (0..held.len()).filter(|s| held[*s].contains(&u)).collect()
    };
    let mut sets: Vec<BTreeSet<usize>> = (0..units.len()).map(by).filter(|s| s.len() > 1).collect();
    sets.dedup();
    match sets.len() {
        0 | 1 => Ok(sets),
        _ => Err(Error::Invalid(
            "units are tied across different sets of pipeline stages; use fewer stages, so that they fall on the same ones".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(costs: &[f64], weights: &[f64]) -> Vec<(u32, u32)> {
        let all = PipelineSpec::weighted(costs, weights, Order::OneFOneB).stages;
        all.iter().map(|r| (r.start, r.end)).collect()
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
