//! Loss scaling and the labels that count, around a step.

use super::{Engine, MicroBatch};
use crate::error::{Error, Result};
use crossweave_planner::ScalerState;

impl Engine {
    /// Decay rates of the moments as a function of the updates made before, in place of the optimizer's own where it gives any
    /// (OneCycle).
    pub fn schedule_betas(&mut self, betas: impl Fn(u64) -> Option<[f64; 2]> + 'static) {
        self.scaling.schedule_betas(Box::new(betas));
    }

    /// Says how many predictions of the next step count, of `all` that the ranks make in it together. Where
    /// [`Rows::labelled`](crate::Rows::labelled) is set every rank of the job must say the same before each step: the gradient
    /// is then that of the mean over exactly those, on any number of ranks and micro-batches. A rank alone counts by itself.
    ///
    /// # Errors
    /// Nothing counts, or more than all.
    pub fn count_targets(&mut self, counted: u64, all: u64) -> Result<()> {
        self.scaling.count_targets(counted, all)
    }

    /// Counts the targets of a step of which nothing was said: a rank alone has all of them.
    pub(super) fn count_own(&mut self, batches: &[MicroBatch<'_>]) -> Result<()> {
        if !self.lowered.spec.rows.labelled || self.scaling.has_counted() {
            return Ok(());
        }
        if self.is_distributed() {
            return Err(Error::Invalid(
                "some targets do not count, and a rank does not see those of the others: call count_targets before each step".into(),
            ));
        }
        let counts = |t: &&i32| i64::from(**t) != crossweave_tensor::IGNORED;
        let counted = batches
            .iter()
            .flat_map(|b| b.targets)
            .filter(counts)
            .count();
        let all = batches.iter().map(|b| b.targets.len() as u64).sum();
        self.count_targets(counted as u64, all)
    }

    /// Before the first backward of a step: with the verdicts of all steps before it, the scale, the update's number and the learning rate.
    pub(super) fn decide(&mut self, lr: &dyn Fn(u64) -> f64) -> Result<()> {
        self.judge(self.step - 1)?;
        let decided = self.scaling.decide(self.step, lr);
        self.machine.decide(|g| decided.get(g));
        Ok(())
    }

    /// Takes the verdicts of the steps up to `last` into account; waits for each.
    pub(super) fn judge(&mut self, last: u64) -> Result<()> {
        let host = self.lowered.memory.counts.map(|(_, host)| host);
        let arrives = (&mut self.machine, host);
        self.scaling.judge(last, arrives, &self.blocks.units)
    }

    /// What a checkpoint keeps of the loss scaler, once the figures of every step were read; `None` where the loss is not scaled.
    pub fn scaler_state(&self) -> Option<ScalerState> {
        self.scaling.state()
    }

    /// Continues a checkpoint's loss scaling; nothing where the loss is not scaled.
    pub fn restore_scaler(&mut self, state: ScalerState) {
        self.scaling.restore(state);
    }

    /// Fault injection for tests: at optimizer step `step` the backward of one rank begins with an infinite gradient.
    pub fn poison(&mut self, step: u64) {
        self.scaling.poison(step);
    }
}
