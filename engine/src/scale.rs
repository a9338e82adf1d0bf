//! Loss scaling around a step: the scale goes into the backward's seed, comes out of the update's factor, and a step whose gradients are
//! not finite is skipped by the device itself.
//!
//! The update is enqueued before anyone knows whether it will be skipped: `Finite` counts on the device, and the update reads the count.
//! The host learns a step's verdict when it seeds the *next* backward, with that step's forward already enqueued, so the device
//! never runs dry; and it must learn it there, because the scale, the optimizer's step count and the learning rate all depend on it
//! (docs/adr/0014).

use crate::error::{Error, Result};
use crate::trainer::{MicroBatch, Trainer};
use crossweave_hal::Event;
use crossweave_planner::{LossScaler, RankSpec, ScalerState};
use crossweave_program::{Decided, MemId};
use std::collections::{BTreeSet, VecDeque};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// How a step went that the scaler has judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Judged {
    step: u64,
    /// Its update was skipped.
    pub skipped: bool,
    /// Steps skipped up to and with this one.
    pub skipped_steps: u64,
    /// The scale after it.
    pub scale: f64,
}

/// A step's counts of non-finite gradients on their way to the host: in which copy of pinned memory they arrive.
struct Verdict {
    step: u64,
    turn: usize,
    event: Event,
}

/// The moving parts.
pub(crate) struct Scaling {
    scaler: Option<LossScaler>,
    /// Predictions of this step over those of them that count, on all ranks; and of the next step, where the caller has given it.
    share: f64,
    next_share: Option<f64>,
    /// What this step's scalars are made of.
    pub decided: Decided,
    micro_batches: f64,
    weight: f64,
    before: f64,
    after: f64,
    pending: VecDeque<Verdict>,
    judged: VecDeque<Judged>,
    poisoned: BTreeSet<u64>,
    /// Decay rates by the updates made before, where a schedule moves them.
    betas_at: Option<BetasAt>,
}

/// Decay rates as a function of the updates made.
type BetasAt = Box<dyn Fn(u64) -> Option<[f64; 2]>>;

impl Scaling {
    pub fn new(spec: &RankSpec) -> Scaling {
        let [before, after] = spec.divisions();
        Scaling {
            scaler: spec.precision.scaler.clone(),
            share: 1.0,
            next_share: None,
            decided: Decided::default(),
            micro_batches: spec.micro_batches as f64,
            weight: spec.weight,
            before,
            after,
            pending: VecDeque::new(),
            judged: VecDeque::new(),
            poisoned: BTreeSet::new(),
            betas_at: None,
        }
    }

    fn scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, LossScaler::scale)
    }
    /// What a gradient is multiplied by to undo scale and division.
    fn factor(&self) -> f64 {
        self.after / self.scale()
    }
    /// Gradient of the loss: `scale * weight * share / (micro-batches * predivide)`.
    pub fn seed(&self) -> f64 {
        // A share of 1 changes no bit.
        let whole = self.scale() * self.weight / (self.micro_batches * self.before);
        whole * self.share
    }

    /// What the mean over all predictions is multiplied by to be the mean over those that count.
    pub fn share(&self) -> f64 {
        self.share
    }

    fn skipped(&self) -> u64 {
        self.scaler.as_ref().map_or(0, LossScaler::skipped)
    }
}

impl Trainer {
    /// Decay rates of the moments as a function of the updates made before, in place of the optimizer's own where it gives any
    /// (OneCycle).
    pub fn schedule_betas(&mut self, betas: impl Fn(u64) -> Option<[f64; 2]> + 'static) {
        self.scaling.betas_at = Some(Box::new(betas));
    }

    /// The number of this step's update, from 1: skipped steps are no updates.
    fn update_number(&self) -> u64 {
        self.step.saturating_sub(self.scaling.skipped()).max(1)
    }

    /// Says how many predictions of the next step count, of `all` that the ranks make in it together. Where
    /// [`RankSpec::labelled`] is set every rank of the job must say the same before each step: the gradient is
    /// then that of the mean over exactly those, on any number of ranks and micro-batches. A rank alone counts by itself.
    ///
    /// # Errors
    /// Nothing counts, or more than all.
    pub fn count_targets(&mut self, counted: u64, all: u64) -> Result<()> {
        if counted == 0 || counted > all {
            return Err(Error::Invalid(format!(
                "{counted} of {all} predictions of a step count in its loss"
            )));
        }
        self.scaling.next_share = Some(all as f64 / counted as f64);
        Ok(())
    }

    /// Counts the targets of a step of which nothing was said: a rank alone has all of them.
    pub(crate) fn count_own(&mut self, batches: &[MicroBatch<'_>]) -> Result<()> {
        if !self.spec.labelled || self.scaling.next_share.is_some() {
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
    pub(crate) fn seed_backward(&mut self, lr: &dyn Fn(u64) -> f64) -> Result<()> {
        if self.scaling.scaler.is_some() {
            self.judge(self.step - 1)?;
        }
        let share = self.scaling.next_share.take().unwrap_or(1.0);
        self.scaling.share = share;
        let update = self.update_number();
        let decided = Decided {
            rate: lr(update - 1),
            betas: self
                .scaling
                .betas_at
                .as_ref()
                .and_then(|betas| betas(update - 1)),
            update,
            unscale: self.scaling.factor(),
            seed: self.seed(),
        };
        self.scaling.decided = decided;
        self.machine.decide(|g| decided.get(g));
        Ok(())
    }

    /// Takes the verdicts of the steps up to `last` into account, in order; waits for each.
    pub(crate) fn judge(&mut self, last: u64) -> Result<()> {
        while self.scaling.pending.front().is_some_and(|v| v.step <= last) {
            let Some(v) = self.scaling.pending.pop_front() else {
                break;
            };
            let failed = |e: crossweave_hal::Error| Error::Run {
                rank: self.spec.job_rank(),
                step: v.step,
                at: "waiting for the verdict on its gradients".into(),
                source: e.into(),
            };
            v.event.sync(None).map_err(failed)?;
            let (rank, step) = (self.spec.job_rank(), v.step);
            let failed = move |e: crossweave_tensor::Error| Error::Run {
                rank,
                step,
                at: "waiting for the verdict on its gradients".into(),
                source: e,
            };
            let host = self.lowered.memory.counts.map(|(_, host)| host);
            let words = match host {
                Some(host) => self.machine.pinned(host, v.turn).map_err(failed)?,
                None => break,
            };
            let words = words.read().map_err(|e| failed(e.into()))?;
            // The backward runs from the last unit to the first: the last one hit is where it began.
            let hit = words
                .chunks_exact(4)
                .rposition(|w| w.iter().any(|b| *b != 0));
            let Some(scaler) = &mut self.scaling.scaler else {
                break;
            };
            scaler.update(hit.is_some()).map_err(|e| Error::Scale {
                step: v.step,
                unit: self.blocks.units[hit.unwrap_or(0)].name.clone(),
                source: e,
            })?;
            let judged = Judged {
                step: v.step,
                skipped: hit.is_some(),
                skipped_steps: scaler.skipped(),
                scale: scaler.scale(),
            };
            self.scaling.judged.push_back(judged);
        }
        Ok(())
    }

    /// What became of a step whose figures are being read.
    pub(crate) fn judged(&mut self, step: u64) -> Result<Option<Judged>> {
        self.judge(step)?;
        let all = &mut self.scaling.judged;
        while all.front().is_some_and(|j| j.step < step) {
            all.pop_front();
        }
        let this = all.front().is_some_and(|j| j.step == step);
        Ok(this.then(|| all.pop_front()).flatten())
    }

    /// The counts of a step's gradients that are not finite have been sent on their way.
    pub(crate) fn verdict_published(&mut self, host: MemId, event: Event) -> Tensors<()> {
        let turn = self.machine.advance(host);
        if self.scaling.pending.iter().any(|v| v.turn == turn) {
            return crossweave_tensor::shape_error("verdicts of too many steps are unread");
        }
        let step = self.step;
        self.scaling
            .pending
            .push_back(Verdict { step, turn, event });
        Ok(())
    }

    /// The gradient that the backward begins with; an infinite one where this step is to fail on this rank.
    fn seed(&self) -> f64 {
        let mine = self.step % u64::from(self.spec.world) == u64::from(self.spec.rank);
        match self.scaling.poisoned.contains(&self.step) && mine {
            true => f64::INFINITY,
            false => self.scaling.seed(),
        }
    }

    /// What a checkpoint keeps of the loss scaler, once the figures of every step were read; `None` where the loss is not scaled.
    pub fn scaler_state(&self) -> Option<ScalerState> {
        self.scaling.scaler.as_ref().map(LossScaler::state)
    }

    /// Continues a checkpoint's loss scaling; nothing where the loss is not scaled.
    pub fn restore_scaler(&mut self, state: ScalerState) {
        if let Some(s) = &mut self.scaling.scaler {
            s.restore(state);
        }
    }

    /// Fault injection for tests: at optimizer step `step` the backward of one rank begins with an infinite gradient.
    pub fn poison(&mut self, step: u64) {
        self.scaling.poisoned.insert(step);
    }
}
