//! Loss scaling around a step: the scale goes into the backward's seed, comes out of the update's factor, and a step whose gradients are
//! not finite is skipped by the device itself.
//!
//! The update is enqueued before anyone knows whether it will be skipped: `Finite` counts on the device, and the update reads the count.
//! The host learns a step's verdict when it seeds the *next* backward, with that step's forward already enqueued, so the device
//! never runs dry; and it must learn it there, because the scale, the optimizer's step count and the learning rate all depend on it
//! (docs/adr/0014).

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::pipeline::everyone;
use crate::scaler::{LossScaler, ScalerState};
use crate::trainer::{MicroBatch, Trainer};
use crate::walk::{FINITE, FINITE_UNIT};
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, DType, Device, Event, HostBuffer, Reduce, Stream, Tag};
use crossweave_tensor::{Decompositions, Run, Tensor};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// In what types and at what scale gradients are computed, summed and sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Precision {
    /// Loss scaling, for float16.
    pub scaler: Option<LossScaler>,
    /// Gradients are divided by this before they are summed over the ranks, and by the rest of the rank count after; `None` = by the
    /// rank count before.
    pub predivide: Option<f64>,
    /// Type of gradients between the ranks; the collective adds in f32 and rounds once.
    pub wire: DType,
    /// Type in which gradients of micro-batches are added up: f32, or the 16-bit type of the parameters, rounded behind each micro-batch.
    pub accum: DType,
}

impl Default for Precision {
    /// No scaling, everything in f32.
    fn default() -> Precision {
        Precision {
            scaler: None,
            predivide: None,
            wire: DType::F32,
            accum: DType::F32,
        }
    }
}

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

/// A step's counts of non-finite gradients on their way to the host.
struct Verdict {
    step: u64,
    counts: HostBuffer,
    event: Event,
}

/// The moving parts.
pub(crate) struct Scaling {
    scaler: Option<LossScaler>,
    /// Gradient of the loss: `scale * weight * share / (micro-batches * predivide)`.
    seed: Tensor,
    /// What the seed was last filled with.
    filled: Cell<u32>,
    /// Predictions of this step over those of them that count, on all ranks; and of the next step, where the caller has given it.
    share: f64,
    next_share: Option<f64>,
    /// What a gradient is multiplied by to undo scale and division.
    pub unscale: f64,
    micro_batches: f64,
    weight: f64,
    before: f64,
    after: f64,
    units: usize,
    /// Per unit the number of non-finite gradients as u32, then the same as f32.
    counts: Option<Arc<Buffer>>,
    pending: VecDeque<Verdict>,
    free: VecDeque<HostBuffer>,
    judged: VecDeque<Judged>,
    poisoned: BTreeSet<u64>,
    /// The step whose counts were begun last.
    counted: u64,
}

impl Scaling {
    /// `in_flight` steps may wait for their figures.
    pub fn new(
        device: &Device,
        stream: &Stream,
        spec: &crate::RankSpec,
        units: usize,
        in_flight: usize,
    ) -> Tensors<Scaling> {
        let p = &spec.precision;
        let before = p.predivide.unwrap_or(spec.replicas() as f64);
        let seed = Arc::new(device.alloc_state(4, Tag::Staging)?);
        let (mut counts, mut free) = (None, VecDeque::new());
        if p.scaler.is_some() {
            counts = Some(Arc::new(
                device.alloc_state(8 * units as u64, Tag::Staging)?,
            ));
            for _ in 0..in_flight + 1 {
                free.push_back(device.alloc_host(4 * units as u64, Tag::Staging)?);
            }
        }
        let s = Scaling {
            scaler: p.scaler.clone(),
            seed: Tensor::dense(seed, 0, [1], DType::F32),
            filled: Cell::new(0),
            share: 1.0,
            next_share: None,
            unscale: 1.0,
            micro_batches: spec.micro_batches as f64,
            weight: spec.weight,
            before,
            after: before / spec.replicas() as f64,
            units,
            counts,
            pending: VecDeque::new(),
            free,
            judged: VecDeque::new(),
            poisoned: BTreeSet::new(),
            counted: 0,
        };
        s.fill_seed(stream)?;
        Ok(Scaling {
            unscale: s.factor(),
            ..s
        })
    }

    fn scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, LossScaler::scale)
    }
    fn factor(&self) -> f64 {
        self.after / self.scale()
    }
    fn fill_seed(&self, stream: &Stream) -> Tensors<()> {
        // A share of 1 changes no bit.
        let whole = self.scale() * self.weight / (self.micro_batches * self.before);
        let bits = ((whole * self.share) as f32).to_bits();
        self.filled.set(bits);
        Ok(stream.fill(self.seed.region(), u64::from(bits), 4)?)
    }

    /// What the mean over all predictions is multiplied by to be the mean over those that count.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The gradient the backward starts from.
    pub fn seed(&self) -> Tensor {
        self.seed.clone()
    }
    fn skipped(&self) -> u64 {
        self.scaler.as_ref().map_or(0, LossScaler::skipped)
    }
    /// Count `i` as u32.
    fn count(&self, i: usize) -> Option<Tensor> {
        let b = self.counts.clone()?;
        Some(Tensor::dense(b, 4 * i as u64, [1], DType::U32))
    }
}

impl Figures {
    /// Not zero where the step is to be skipped. A positive f32 and a positive integer are both words that are not zero, and zero is zero
    /// in both, so the largest count as f32 serves as the flag the update reads as an integer.
    pub(crate) fn skip(&self) -> Tensor {
        Tensor::dense(self.words.clone(), 16, [1], DType::U32)
    }
}

impl Trainer {
    /// The number of this step's update, from 1: skipped steps are no updates.
    pub(crate) fn update_number(&self) -> u64 {
        self.step.saturating_sub(self.scaling.skipped()).max(1)
    }

    /// The word that forbids the update, in runs whose loss is scaled.
    pub(crate) fn skip_word(&self, f: &Figures) -> Option<Tensor> {
        self.scaling.scaler.is_some().then(|| f.skip())
    }

    /// This rank's slice of a unit's gradient, summed over the ranks, without padding and what is frozen.
    fn own_grad(&self, u: usize) -> impl Iterator<Item = Tensor> + '_ {
        let s = &self.state[u];
        s.normed.iter().filter_map(|r| s.grad(r))
    }

    /// What the update multiplies gradients by, before clipping.
    pub(crate) fn unscale(&self) -> f64 {
        self.scaling.unscale
    }

    /// Says how many predictions of the next step count, of `all` that the ranks make in it together. Where
    /// [`RankSpec::labelled`](crate::RankSpec::labelled) is set every rank of the job must say the same before each step: the gradient is
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
        let moved = share != std::mem::replace(&mut self.scaling.share, share);
        if moved || self.scaling.scaler.is_some() {
            self.scaling
                .fill_seed(&self.compute)
                .map_err(|e| self.error("seeding the backward", e))?;
            self.scaling.unscale = self.scaling.factor();
        }
        let updates = self.update_number() - 1;
        self.lr = lr(updates);
        self.betas = self.betas_at.as_ref().and_then(|betas| betas(updates));
        Ok(())
    }

    /// Takes the verdicts of the steps up to `last` into account, in order; waits for each.
    pub(crate) fn judge(&mut self, last: u64) -> Result<()> {
        while self.scaling.pending.front().is_some_and(|v| v.step <= last) {
            let Some(mut v) = self.scaling.pending.pop_front() else {
                break;
            };
            let failed = |e: crossweave_hal::Error| Error::Run {
                rank: self.spec.job_rank(),
                step: v.step,
                at: "waiting for the verdict on its gradients".into(),
                source: e.into(),
            };
            v.event.sync(None).map_err(failed)?;
            let words = v.counts.read().map_err(failed)?;
            // The backward runs from the last unit to the first: the last one hit is where it began.
            let hit = words
                .chunks_exact(4)
                .rposition(|w| w.iter().any(|b| *b != 0));
            self.scaling.free.push_back(v.counts);
            let Some(scaler) = &mut self.scaling.scaler else {
                break;
            };
            scaler.update(hit.is_some()).map_err(|e| Error::Scale {
                step: v.step,
                unit: self.units[hit.unwrap_or(0)].name.clone(),
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

    /// Once a step, before the first count: a gradient that is to be spoilt (in tests) is, and counts are zero.
    fn begin_counts(&mut self, counts: &Buffer) -> Tensors<()> {
        if std::mem::replace(&mut self.scaling.counted, self.step) == self.step {
            return Ok(());
        }
        if self.scaling.poisoned.contains(&self.step)
            && self.step % self.spec.world as u64 == self.spec.rank as u64
            && self.makes_loss()
        {
            let all = (0..self.units.len()).rev();
            if let Some(g) = all.flat_map(|u| self.own_grad(u)).next() {
                let first = g.buffer().region(g.offset(), 4);
                self.compute
                    .fill(first, f32::INFINITY.to_bits() as u64, 4)?;
            }
        }
        let n = self.scaling.units as u64;
        Ok(self.compute.fill(counts.region(0, 4 * n), 0, 4)?)
    }

    /// A unit's gradient leaves the device before the finite check: it is counted while it is there.
    pub(crate) fn count_leaving(&mut self, u: usize) -> Tensors<()> {
        match self.scaling.counts.clone() {
            Some(counts) => {
                self.begin_counts(&counts)?;
                self.count_nonfinite(u)
            }
            None => Ok(()),
        }
    }

    fn count_nonfinite(&mut self, u: usize) -> Tensors<()> {
        let cache = self.cache(u, FINITE_UNIT);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let none = op::NoParams::default();
        for g in self.own_grad(u) {
            let count = self.scaling.count(u);
            let operands = [count.as_ref(), Some(&g)];
            run.launch(op::NONFINITE_COUNT, &operands, none.as_bytes(), &[])?;
        }
        self.keep_cache(u, FINITE_UNIT, cache);
        Ok(())
    }

    /// Counts this rank's non-finite gradients by unit and joins all ranks' counts; from here on the device knows whether it skips.
    pub(crate) fn finite(&mut self, f: &Figures) -> Tensors<()> {
        let n = self.scaling.units as u64;
        let Some(counts) = self.scaling.counts.clone() else {
            return crossweave_tensor::shape_error("a finite check without a loss scaler");
        };
        self.begin_counts(&counts)?;
        for u in 0..self.units.len() {
            if !self.grads_leave[u] {
                self.count_nonfinite(u)?;
            }
        }
        let cache = self.cache(0, FINITE);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let none = op::NoParams::default();
        if self.is_distributed() {
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(everyone(&self.spec))?.all_reduce(
                self.reduce_stream(),
                counts.region(0, 4 * n),
                DType::U32,
                Reduce::Max,
                "scalar",
            )?;
        }
        let whole = Tensor::dense(counts.clone(), 0, [n], DType::U32);
        let floats = Tensor::dense(counts.clone(), 4 * n, [n], DType::F32);
        run.launch(
            op::CAST,
            &[Some(&floats), Some(&whole)],
            none.as_bytes(),
            &[],
        )?;
        let largest = op::ReduceParams {
            kind: op::reduce::MAX,
            axes: 1,
            ..Default::default()
        };
        run.launch(
            op::REDUCE,
            &[Some(&f.word(4)), Some(&floats)],
            largest.as_bytes(),
            &[],
        )?;
        self.keep_cache(0, FINITE, cache);
        let Some(host) = self.scaling.free.pop_front() else {
            return crossweave_tensor::shape_error("verdicts of too many steps are unread");
        };
        self.compute
            .copy(host.buffer().all(), counts.region(0, 4 * n))?;
        let event = self.compute.record()?;
        self.scaling.pending.push_back(Verdict {
            step: self.step,
            counts: host,
            event,
        });
        Ok(())
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

    /// Fault injection for tests: at optimizer step `step` one gradient of one rank becomes infinite before it is checked.
    pub fn poison(&mut self, step: u64) {
        self.scaling.poisoned.insert(step);
    }
}
