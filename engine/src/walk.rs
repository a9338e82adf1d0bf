//! Walking the program of a step, call by call, under the steps of the plan it was made from. Nothing here decides; order and placement
//! are the plan's.

use crate::error::{Error, Result};
use crate::gather::note_whole;
use crate::nonfinite::Watch;
use crate::offload::required;
use crate::state::UnitState;
use crate::trainer::{Act, MicroBatch, Pending, Trainer};
use crossweave_hal::{Event, Purpose};
use crossweave_plan::{Keep as PlanKeep, Lane, Plan, Step, StepId, StepKind};
use crossweave_program::{Call, Figure, Fragment, Instr, MemId, Part, Program};
use crossweave_tensor::{Batch, Keep, KernelCache};
use std::cell::RefCell;
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Kernel caches by what a unit is doing.
pub(crate) const FORWARD: u8 = 0;
pub(crate) const RECOMPUTE: u8 = 1;
pub(crate) const BACKWARD: u8 = 2;
pub(crate) const LOSS: u8 = 6;
pub(crate) const GRAD_OUT: u8 = 11;

/// What a step is given.
struct Inputs<'a> {
    batches: &'a [MicroBatch<'a>],
    data: &'a [Batch],
}

impl Trainer {
    pub(crate) fn walk(
        &mut self,
        batches: &[MicroBatch<'_>],
        lr: &dyn Fn(u64) -> f64,
    ) -> Result<()> {
        let data = self
            .upload(batches)
            .map_err(|e| self.error("uploading the batch", e))?;
        let inputs = Inputs {
            batches,
            data: &data,
        };
        if let Some(w) = &mut self.watch {
            w.begin();
        }
        self.groups.diagnostics.set_step(self.step);
        let (program, plan) = (self.machine.program.clone(), self.take_plan());
        let by_step = std::mem::take(&mut self.lowered.by_step);
        let done = self.steps(&program, &plan, &by_step, &inputs, lr);
        self.device().at_step(Purpose::default());
        self.put_plan(plan);
        self.flow.iter_mut().for_each(Vec::clear);
        self.flow_grad.iter_mut().for_each(|g| *g = None);
        let done = done.and_then(|()| self.agree_on_nonfinite());
        let end = by_step.last().map(|(_, calls)| calls.clone());
        self.lowered.by_step = by_step;
        if let Err(e) = done {
            // A failed step leaves nothing half-built behind.
            self.acts.iter_mut().flatten().for_each(|a| *a = None);
            self.machine.clear();
            self.state.iter_mut().for_each(UnitState::released);
            return Err(e);
        }
        let open = self.begin_span();
        let published = self.run_calls(&program, end.unwrap_or_default(), None, &inputs);
        self.end_span(open, &|| "figures".into());
        published.map_err(|e| self.error("publishing figures", e))
    }

    /// All of a step but its end.
    fn steps(
        &mut self,
        program: &Program,
        plan: &Plan,
        by_step: &[(Option<StepId>, Range<usize>)],
        inputs: &Inputs<'_>,
        lr: &dyn Fn(u64) -> f64,
    ) -> Result<()> {
        let count = by_step.len().saturating_sub(1);
        for (id, calls) in &by_step[..count] {
            let mut calls = calls.clone();
            let first = &program.calls[calls.start];
            let code = &program.fragments[first.fragment.0 as usize].code;
            if code.first() == Some(&Instr::Decide) {
                self.seed_backward(lr)?;
                let decided = calls.start..calls.start + 1;
                calls.start += 1;
                self.run_calls(program, decided, None, inputs)
                    .map_err(|e| self.error("seeding the backward", e))?;
            }
            let Some(s) = id.and_then(|id| plan.steps.get(id.index())) else {
                self.run_calls(program, calls, None, inputs)
                    .map_err(|e| self.error("clearing figures", e))?;
                continue;
            };
            let purpose = self.purpose(s);
            self.device().at_step(purpose);
            self.note_step(false);
            let open = self.begin_span();
            let ran = self.replaying(s, |t| t.run_calls(program, calls, Some(s), inputs));
            self.end_span(open, &|| s.op.to_string());
            ran.map_err(|e| Error::Run {
                rank: self.spec.job_rank(),
                step: self.step,
                at: format!("plan step {} {}", s.id.0, s.op),
                source: e,
            })?;
            self.note_step(true);
            note_whole(&mut self.state, &s.op);
            self.note_nonfinite(s);
        }
        Ok(())
    }

    /// Runs calls of the program outside the step; `about` is what their collectives are for.
    pub(crate) fn run_outside(&mut self, calls: Range<usize>, about: String) -> Tensors<()> {
        let nothing = Inputs {
            batches: &[],
            data: &[],
        };
        let program = self.machine.program.clone();
        self.machine.about = about;
        let done = self.run_calls(&program, calls, None, &nothing);
        self.machine.about.clear();
        done
    }

    /// Runs calls of the program; `step` is the plan's step they belong to.
    fn run_calls(
        &mut self,
        program: &Program,
        calls: Range<usize>,
        step: Option<&Step>,
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        for call in &program.calls[calls] {
            let f = &program.fragments[call.fragment.0 as usize];
            self.machine.enter(f);
            f.code
                .iter()
                .try_for_each(|i| self.run_instr((f, call), i, step, inputs))?;
        }
        Ok(())
    }

    fn run_instr(
        &mut self,
        (f, call): (&Fragment, &Call),
        i: &Instr,
        step: Option<&Step>,
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        let lane = match i {
            Instr::Free { slot } => {
                self.machine.free_slot(f, call, *slot);
                return Ok(());
            }
            Instr::Decide => return Ok(()),
            Instr::Bring { room, to } => {
                let dest = self.machine.target(f, call, to)?;
                return required(&mut self.offload)?.bring(*room as usize, dest);
            }
            Instr::Await { room } => return required(&mut self.offload)?.wait_room(*room as usize),
            Instr::Step => match step {
                Some(s) => return self.run_step(s, inputs),
                None => return crossweave_tensor::shape_error("no step of the plan"),
            },
            Instr::Block { part, adds } => {
                return self.run_block((f, call), (*part, adds), step, inputs);
            }
            Instr::Alloc { lane, .. }
            | Instr::Copy { lane, .. }
            | Instr::Fill { lane, .. }
            | Instr::FillScalar { lane, .. }
            | Instr::Kernel { lane, .. }
            | Instr::Collective { lane, .. }
            | Instr::Publish { lane, .. }
            | Instr::Mark { lane } => *lane,
        };
        let stream = match lane {
            Lane::Compute => &self.compute,
            Lane::Reduce => &self.reduce,
            Lane::Gather => match &self.gather {
                Some(s) => s,
                None => return crossweave_tensor::shape_error("no stream for gathers"),
            },
            _ => return crossweave_tensor::shape_error(format!("no stream for {lane:?}")),
        };
        if let Instr::Alloc { slot, .. } = i {
            return self.machine.alloc(f, call, *slot, stream);
        }
        let probe = self.watch.as_ref().map(Watch::probe);
        let mesh = Some(self.groups.mesh());
        self.machine.enqueue((f, call), i, stream, mesh, probe)?;
        if let Instr::Publish { figure, to, .. } = i {
            let event = stream.record()?;
            let to = self.machine.memory_of(f, call, *to)?;
            match figure {
                Figure::Step => self.step_published(to, event),
                Figure::Verdict => self.verdict_published(to, event)?,
            }
        }
        Ok(())
    }

    /// The figures of a step have been sent on their way.
    fn step_published(&mut self, host: MemId, event: Event) {
        self.pending.push_back(Pending {
            step: self.step,
            turn: self.machine.turn(host),
            event,
            lr: self.scaling.decided.rate,
            share: self.scaling.share(),
        });
        self.machine.advance(host);
        self.machine.advance(self.lowered.memory.words);
    }

    fn run_block(
        &mut self,
        (f, call): (&Fragment, &Call),
        (part, adds): (Part, &[bool]),
        step: Option<&Step>,
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        match (part, step.map(|s| &s.op)) {
            (Part::Backward, Some(StepKind::Backward { unit, mb })) => {
                let (u, m) = (*unit as usize, *mb as usize);
                let mut wholes = vec![];
                for slot in 0..f.params {
                    let mem = self.machine.memory_of(f, call, slot)?;
                    wholes.extend(self.machine.buffer(mem).cloned());
                }
                let first = inputs.batches[m].first_sequence;
                self.backward(u, m, &inputs.data[m], first, (&wholes, adds))
            }
            _ => crossweave_tensor::shape_error("a block that is no step of the plan"),
        }
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

    /// What no instruction says yet.
    fn run_step(&mut self, step: &Step, inputs: &Inputs<'_>) -> Tensors<()> {
        let Inputs { batches, data } = inputs;
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
                    self.add_loss(m, &outs)?;
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
            StepKind::Update { unit } => self.host_update(*unit as usize)?,
            StepKind::GradOut { unit } => self.grad_out(*unit as usize)?,
            StepKind::StateIn { unit } => self.state_moves(*unit as usize, true)?,
            StepKind::StateOut { unit } => self.state_moves(*unit as usize, false)?,
            StepKind::Spill { unit, mb } => self.spill(*unit as usize, *mb as usize)?,
            StepKind::Fetch { unit, mb } => self.fetch(*unit as usize, *mb as usize)?,
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
