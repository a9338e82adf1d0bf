//! Loss scaling around a step: the scale goes into the backward's seed, comes out of the update's factor, and a step whose gradients are
//! not finite is skipped by the device itself.
//!
//! The update is enqueued before anyone knows whether it will be skipped: `Finite` counts on the device, and the update reads the count.
//! The host learns a step's verdict when it seeds the *next* backward, with that step's forward already enqueued, so the device
//! never runs dry; and it must learn it there, because the scale, the optimizer's step count and the learning rate all depend on it
//! (docs/adr/0014).

use crate::error::{Error, Result};
use crossweave_hal::Event;
use crossweave_machine::Machine;
use crossweave_mesh::{Axis, Place};
use crossweave_planner::{LossScaler, RankSpec, ScalerState};
use crossweave_program::{Decided, MemId};
use crossweave_tensor::UnitDecl;
use std::collections::{BTreeSet, VecDeque};

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
    /// This rank of the job, and its place among those of which one is poisoned in turn.
    rank: u32,
    turn: [u64; 2],
    pending: VecDeque<Verdict>,
    judged: VecDeque<Judged>,
    poisoned: BTreeSet<u64>,
    /// Decay rates by the updates made before, where a schedule moves them.
    betas_at: Option<BetasAt>,
}

/// Decay rates as a function of the updates made.
pub(crate) type BetasAt = Box<dyn Fn(u64) -> Option<[f64; 2]>>;

impl Scaling {
    pub fn new(spec: &RankSpec) -> Scaling {
        let [before, after] = spec.divisions();
        Scaling {
            scaler: spec.precision.scaler.clone(),
            share: 1.0,
            next_share: None,
            decided: Decided::default(),
            micro_batches: spec.micro_batches as f64,
            weight: spec.rows.weight,
            before,
            after,
            rank: spec.place.job_rank(),
            turn: [Place::at, Place::length].map(|f| u64::from(f(&spec.place, Axis::Dp))),
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
        self.beside() * self.share
    }
    /// Gradient of a loss beside it, a mean over micro-batches: the same without the share of predictions that count.
    fn beside(&self) -> f64 {
        self.scale() * self.weight / (self.micro_batches * self.before)
    }

    /// What the mean over all predictions is multiplied by to be the mean over those that count.
    pub fn share(&self) -> f64 {
        self.share
    }
    /// Decay rates of the moments as a function of the updates made before.
    pub fn schedule_betas(&mut self, betas: BetasAt) {
        self.betas_at = Some(betas);
    }
    /// At optimizer step `step` the backward of one rank begins with an infinite gradient.
    pub fn poison(&mut self, step: u64) {
        self.poisoned.insert(step);
    }
    /// What a checkpoint keeps; none where the loss is not scaled.
    pub fn state(&self) -> Option<ScalerState> {
        self.scaler.as_ref().map(LossScaler::state)
    }
    /// Continues a checkpoint's; nothing where the loss is not scaled.
    pub fn restore(&mut self, state: ScalerState) {
        if let Some(s) = &mut self.scaler {
            s.restore(state);
        }
    }

    /// Whether it is known how many predictions of the next step count.
    pub fn has_counted(&self) -> bool {
        self.next_share.is_some()
    }
    /// How many predictions of the next step count, of `all` that the ranks make in it together.
    pub fn count_targets(&mut self, counted: u64, all: u64) -> Result<()> {
        if counted == 0 || counted > all {
            return Err(Error::Invalid(format!(
                "{counted} of {all} predictions of a step count in its loss"
            )));
        }
        self.next_share = Some(all as f64 / counted as f64);
        Ok(())
    }

    /// What the scalars of step `step` are made of, before its first backward and behind the verdicts of all steps before it.
    pub fn decide(&mut self, step: u64, lr: &dyn Fn(u64) -> f64) -> Decided {
        self.share = self.next_share.take().unwrap_or(1.0);
        // Skipped steps are no updates.
        let skipped = self.scaler.as_ref().map_or(0, LossScaler::skipped);
        let update = step.saturating_sub(skipped).max(1);
        let [rank, world] = self.turn;
        let fails = self.poisoned.contains(&step) && step % world == rank;
        self.decided = Decided {
            rate: lr(update - 1),
            betas: self.betas_at.as_ref().and_then(|betas| betas(update - 1)),
            update,
            unscale: self.factor(),
            seed: match fails {
                true => f64::INFINITY,
                false => self.seed(),
            },
            beside: self.beside(),
        };
        self.decided
    }

    /// The counts of a step's gradients that are not finite have been sent to copy `turn` of pinned memory.
    pub fn verdict_published(
        &mut self,
        step: u64,
        turn: usize,
        event: Event,
    ) -> crossweave_tensor::Result<()> {
        if self.pending.iter().any(|v| v.turn == turn) {
            return crossweave_tensor::shape_error("verdicts of too many steps are unread");
        }
        self.pending.push_back(Verdict { step, turn, event });
        Ok(())
    }

    /// Takes the verdicts of the steps up to `last` into account, in order, as they arrive in pinned memory; waits for each.
    pub fn judge(
        &mut self,
        last: u64,
        (machine, host): (&mut Machine, Option<MemId>),
        units: &[UnitDecl],
    ) -> Result<()> {
        let (Some(scaler), Some(host)) = (&mut self.scaler, host) else {
            return Ok(());
        };
        while self.pending.front().is_some_and(|v| v.step <= last) {
            let Some(v) = self.pending.pop_front() else {
                break;
            };
            let (rank, step) = (self.rank, v.step);
            let failed = move |e: crossweave_tensor::Error| Error::Run {
                rank,
                step,
                at: "waiting for the verdict on its gradients".into(),
                source: e,
            };
            v.event.sync(None).map_err(|e| failed(e.into()))?;
            let words = machine.pinned(host, v.turn).map_err(failed)?;
            let words = words.read().map_err(|e| failed(e.into()))?;
            // The backward runs from the last unit to the first: the last one hit is where it began.
            let hit = words
                .chunks_exact(4)
                .rposition(|w| w.iter().any(|b| *b != 0));
            scaler.update(hit.is_some()).map_err(|e| Error::Scale {
                step,
                unit: units[hit.unwrap_or(0)].name.clone(),
                source: e,
            })?;
            self.judged.push_back(Judged {
                step,
                skipped: hit.is_some(),
                skipped_steps: scaler.skipped(),
                scale: scaler.scale(),
            });
        }
        Ok(())
    }

    /// What became of a step that has been judged.
    pub fn judged(&mut self, step: u64) -> Option<Judged> {
        while self.judged.front().is_some_and(|j| j.step < step) {
            self.judged.pop_front();
        }
        let this = self.judged.front().is_some_and(|j| j.step == step);
        this.then(|| self.judged.pop_front()).flatten()
    }
}
