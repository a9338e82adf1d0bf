//! Walking the plan: one `match` per step. Nothing here decides; order and placement are the plan's.

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::gather;
use crate::nonfinite::Watch;
use crate::trainer::{Act, MicroBatch, Trainer};
use crossweave_hal::Purpose;
use crossweave_plan::{Keep as PlanKeep, Lane, Step, StepKind};
use crossweave_tensor::{Batch, Keep, KernelCache};
use std::cell::RefCell;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Kernel caches by what a unit is doing.
pub(crate) const FORWARD: u8 = 0;
pub(crate) const RECOMPUTE: u8 = 1;
pub(crate) const BACKWARD: u8 = 2;
pub(crate) const UPDATE: u8 = 3;
pub(crate) const SQUARES: u8 = 4;
pub(crate) const NORM: u8 = 5;
pub(crate) const LOSS: u8 = 6;
pub(crate) const FINITE: u8 = 7;
pub(crate) const GATHER: u8 = 8;
pub(crate) const TOTAL: u8 = 9;
pub(crate) const WIRE: u8 = 10;
pub(crate) const GRAD_OUT: u8 = 11;
pub(crate) const FINITE_UNIT: u8 = 12;
pub(crate) const EIGHT: u8 = 13;
pub(crate) const FOLD: u8 = 14;
pub(crate) const FOLD_FIRST: u8 = 20;
pub(crate) const FOLD_MORE: u8 = 21;
pub(crate) const WIDEN: u8 = 22;

impl Trainer {
    pub(crate) fn walk(
        &mut self,
        batches: &[MicroBatch<'_>],
        lr: &dyn Fn(u64) -> f64,
    ) -> Result<()> {
        let data = self
            .upload(batches)
            .map_err(|e| self.error("uploading the batch", e))?;
        let Some(mut figures) = self.figures.pop_front() else {
            return Err(Error::Invalid("no room for another step in flight".into()));
        };
        if let Some(w) = &mut self.watch {
            w.begin();
        }
        self.groups.diagnostics.set_step(self.step);
        let plan = self.take_plan();
        let mut done = self
            .compute
            .fill(figures.words.all(), 0, 4)
            .map_err(|e| self.error("clearing figures", e.into()));
        let mut seeded = false;
        for s in plan.walk() {
            if !seeded && s.op.writes_grad().is_some() {
                seeded = true;
                done = done.and_then(|()| self.seed_backward(lr));
            }
            if done.is_err() {
                break;
            }
            let purpose = self.purpose(s);
            self.device().at_step(purpose);
            self.note_step(false);
            let open = self.begin_span();
            let ran = self.replaying(s, |t| t.run_step(s, batches, &data, &figures));
            self.end_span(open, &|| s.op.to_string());
            done = ran.map_err(|e| Error::Run {
                rank: self.spec.job_rank(),
                step: self.step,
                at: format!("plan step {} {}", s.id.0, s.op),
                source: e,
            });
            self.note_step(true);
            self.note_nonfinite(s);
        }
        self.device().at_step(Purpose::default());
        self.put_plan(plan);
        self.flow.iter_mut().for_each(Vec::clear);
        self.flow_grad.iter_mut().for_each(|g| *g = None);
        let done = done.and_then(|()| self.agree_on_nonfinite());
        if let Err(e) = done {
            // A failed step leaves nothing half-built behind.
            self.acts.iter_mut().flatten().for_each(|a| *a = None);
            for s in &mut self.state {
                s.close_grad();
                s.close_slot(&mut self.slots);
                s.close_shard();
            }
            self.figures.push_back(figures);
            return Err(e);
        }
        let open = self.begin_span();
        let published = self.publish_figures(&figures);
        self.end_span(open, &|| "figures".into());
        let event = published.map_err(|e| self.error("publishing figures", e))?;
        figures.lr = self.lr;
        figures.share = self.scaling.share();
        self.pending.push_back((self.step, figures, event));
        Ok(())
    }

    /// What the collective checker calls a step: its number and text in the plan, told once. Its collectives meet those of the same text on
    /// other ranks, whatever its number there; of a transfer both ends are called alike.
    fn purpose(&mut self, s: &Step) -> Purpose {
        let at = s.id.0 as usize;
        if let Some(Some(known)) = self.purposes.get(at) {
            return *known;
        }
        let text = s.op.to_string();
        let meets = text.split(['<', '>']).next().unwrap_or(&text);
        let purpose = self.device().plan_step(&format!("{at} {text}"), meets);
        let len = self.purposes.len().max(at + 1);
        self.purposes.resize(len, None);
        self.purposes[at] = Some(purpose);
        purpose
    }

    fn run_step(
        &mut self,
        step: &Step,
        batches: &[MicroBatch<'_>],
        data: &[Batch],
        f: &Figures,
    ) -> Tensors<()> {
        match &step.op {
            StepKind::Forward { unit, mb, keep } => {
                let (u, m) = (*unit as usize, *mb as usize);
                let ins = std::mem::take(&mut self.flow[m]);
                let kept = (*keep == PlanKeep::Input).then(|| ins.clone());
                let (act, outs) = self.forward(
                    u,
                    FORWARD,
                    ins,
                    &data[m],
                    batches[m].first_sequence,
                    tape_keep(*keep),
                )?;
                self.acts[u][m] = match keep {
                    PlanKeep::Input => kept.map(Act::Inputs),
                    PlanKeep::Nothing => None,
                    _ => Some(act),
                };
                if u + 1 == self.units.len() {
                    self.add_loss(m, &outs, f)?;
                }
                self.flow[m] = outs;
            }
            StepKind::Recompute { unit, mb } => {
                let (u, m) = (*unit as usize, *mb as usize);
                let Some(Act::Inputs(ins)) = self.acts[u][m].take() else {
                    return crossweave_tensor::shape_error("recompute without a kept input");
                };
                let (act, _) = self.forward(
                    u,
                    RECOMPUTE,
                    ins,
                    &data[m],
                    batches[m].first_sequence,
                    Keep::All,
                )?;
                self.acts[u][m] = Some(act);
            }
            StepKind::Backward { unit, mb } => self.backward(
                *unit as usize,
                *mb as usize,
                &data[*mb as usize],
                batches[*mb as usize].first_sequence,
            )?,
            StepKind::ReduceGrad { units, how } => self.reduce_grads(units, *how)?,
            StepKind::Finite => self.finite(f)?,
            StepKind::GradNorm => {
                // Where a gradient has gone to the host, its squares were summed before.
                for u in 0..self.units.len() {
                    if !self.grads_leave[u] {
                        self.sum_squares(u, f)?;
                    }
                }
                self.total_squares(f)?;
                self.clip(f)?;
            }
            StepKind::Update { unit } if step.lane == Lane::Host => {
                self.host_update(*unit as usize, f)?
            }
            StepKind::Update { unit } => self.update(*unit as usize, f)?,
            StepKind::GradOut { unit } => self.grad_out(*unit as usize, f)?,
            StepKind::ParamIn { unit } => self.param_in(*unit as usize)?,
            StepKind::ShardIn { unit } => self.shard_in(*unit as usize)?,
            StepKind::StateIn { unit } => self.state_moves(*unit as usize, true)?,
            StepKind::StateOut { unit } => self.state_moves(*unit as usize, false)?,
            StepKind::Spill { unit, mb } => self.spill(*unit as usize, *mb as usize)?,
            StepKind::Fetch { unit, mb } => self.fetch(*unit as usize, *mb as usize)?,
            // Nothing is cleared: the first gradient written in a step overwrites (`GradSink`).
            StepKind::ZeroGrad { .. } => {}
            StepKind::Fold { unit, joins } => self.fold(*unit as usize, *joins)?,
            StepKind::Gather { unit } => {
                self.gather_unit(*unit as usize, step.near, gather::STEP)?
            }
            StepKind::Release { unit } => self.release_unit(*unit as usize),
            StepKind::SendAct { mb, to, .. } => self.send_act(*mb as usize, *to)?,
            StepKind::RecvAct { unit, mb, from } => {
                self.recv_act(*unit as usize, *mb as usize, *from)?
            }
            StepKind::SendGrad { unit, mb, to } => {
                self.send_flow_grad(*unit as usize, *mb as usize, *to)?
            }
            StepKind::RecvGrad { unit, mb, from } => {
                self.recv_flow_grad(*unit as usize, *mb as usize, *from)?
            }
            StepKind::Tie { unit } => self.tie(*unit as usize)?,
            other => {
                return crossweave_tensor::shape_error(format!(
                    "this engine does not run {}",
                    other
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn cache(&mut self, unit: usize, phase: u8) -> RefCell<KernelCache> {
        let mut c: RefCell<KernelCache> = self
            .caches
            .remove(&(unit as u32, phase))
            .unwrap_or_default();
        c.get_mut().watch(self.watch.as_ref().map(Watch::probe));
        c
    }
    pub(crate) fn keep_cache(&mut self, unit: usize, phase: u8, c: RefCell<KernelCache>) {
        self.caches.insert((unit as u32, phase), c);
    }
}

fn tape_keep(k: PlanKeep) -> Keep {
    if k == PlanKeep::Selective {
        Keep::Cheap
    } else {
        Keep::All
    }
}
