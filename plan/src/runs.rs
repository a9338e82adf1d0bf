//! The division of a model over pipeline stages: runs of units, in the model's order, each with the stage that has it. A stage may have
//! several (interleaved 1F1B, Narayanan et al., arXiv 2104.04473; the V of ZB-V, Qi et al., arXiv 2401.10241).

use crate::op::{PipelineStage, UnitId};
use std::ops::Range;

/// Units that follow one another on one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The stage that has them.
    pub stage: PipelineStage,
    /// Its units.
    pub units: Range<UnitId>,
}

/// All runs of a model, in the order of its units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(Vec<Run>);

impl From<Vec<Run>> for Runs {
    fn from(runs: Vec<Run>) -> Runs {
        Runs(runs)
    }
}

impl Runs {
    /// One run for each stage, of these units.
    pub fn one_each(units: impl IntoIterator<Item = Range<UnitId>>) -> Runs {
        let each = units.into_iter().zip(0..);
        Runs(each.map(|(units, stage)| Run { stage, units }).collect())
    }

    /// `units` units over so many stages as evenly as they go, one run each, the longer ones first.
    pub fn even(units: u32, stages: u32) -> Runs {
        let count = stages.max(1);
        let (each, more) = (units / count, units % count);
        let mut start = 0;
        Runs::one_each((0..count).map(|k| {
            let end = start + each + u32::from(k < more);
            std::mem::replace(&mut start, end)..end
        }))
    }

    /// The runs.
    pub fn iter(&self) -> std::slice::Iter<'_, Run> {
        self.0.iter()
    }

    /// Number of runs.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of stages.
    pub fn stages(&self) -> u32 {
        self.iter().map(|r| r.stage + 1).max().unwrap_or(0)
    }

    /// The numbers of the runs that a stage has.
    pub fn of(&self, stage: PipelineStage) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.count()).filter(move |k| self.0[*k].stage == stage)
    }

    /// The units of a run; none where there is no such run.
    pub fn units(&self, run: usize) -> Range<UnitId> {
        self.0.get(run).map_or(0..0, |r| r.units.clone())
    }

    /// The units that a stage has, in order.
    pub fn units_of(&self, stage: PipelineStage) -> impl Iterator<Item = UnitId> + use<'_> {
        self.of(stage).flat_map(|k| self.units(k))
    }

    /// The stage that has a unit.
    pub fn stage_of(&self, unit: UnitId) -> Option<PipelineStage> {
        let has = self.iter().find(|r| r.units.contains(&unit));
        has.map(|r| r.stage)
    }

    /// The stage that makes the loss.
    pub fn last_stage(&self) -> PipelineStage {
        self.0.last().map_or(0, |r| r.stage)
    }

    /// The other stage that a run's input comes from; none where it is the first, or follows on its own stage.
    pub fn before(&self, run: usize) -> Option<PipelineStage> {
        let before = self.0.get(run.checked_sub(1)?)?.stage;
        (before != self.0.get(run)?.stage).then_some(before)
    }

    /// The other stage that a run's output goes to; none where it is the last, or the next follows on its own stage.
    pub fn after(&self, run: usize) -> Option<PipelineStage> {
        let after = self.0.get(run + 1)?.stage;
        (after != self.0[run].stage).then_some(after)
    }

    /// Returns true if every stage has one run, and they are in the order of the stages.
    pub fn is_plain(&self) -> bool {
        self.iter().map(|r| r.stage).eq(0..self.stages())
    }

    /// Refuses runs that are not the `units` units of a model, each once and in order, or leave a stage without any.
    ///
    /// # Errors
    /// One sentence.
    pub fn check(&self, units: usize) -> Result<(), String> {
        let mut next = 0;
        for r in self.iter() {
            if r.units.start != next || r.units.is_empty() {
                return Err(format!(
                    "stage {} of the pipeline has units {:?}, and unit {next} is next; every stage needs one unit at least, of {units} in all; set mesh.pp to {units} or less",
                    r.stage, r.units
                ));
            }
            next = r.units.end;
        }
        let stages = self.stages();
        if let Some(idle) = (0..stages).find(|s| self.of(*s).next().is_none()) {
            return Err(format!(
                "stage {idle} of {stages} pipeline stages has no units"
            ));
        }
        if next as usize != units {
            return Err(format!(
                "{stages} pipeline stages of {next} units: the model has {units} units"
            ));
        }
        Ok(())
    }
}
