//! Walking the program of a step, call by call, under the steps of the plan it was made from. Nothing here decides; order and placement
//! are the plan's.

use super::kept::{gathered, in_parts};
use super::{Engine, MicroBatch};
use crate::caches::Work;
use crate::error::{Error, Result};
use crate::in_flight::Pending;
use crate::nonfinite::Watch;
use crate::upload::{Cuts, images, upload};
use crate::values::Act;
use crossweave_hal::{Event, Purpose};
use crossweave_offload::Executor;
use crossweave_plan::{Keep as PlanKeep, Lane, Plan, Step, StepId, StepKind};
use crossweave_program::{Call, Figure, Fragment, Instr, MemId, Part, Program, Values};
use crossweave_tensor::{Batch, Keep, KernelCache};
use std::cell::RefCell;
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// What a step is given.
struct Inputs<'a> {
    batches: &'a [MicroBatch<'a>],
    data: &'a [Batch],
}

impl Engine {
    pub(super) fn walk(
        &mut self,
        batches: &[MicroBatch<'_>],
        lr: &dyn Fn(u64) -> f64,
    ) -> Result<()> {
        let (stream, rows) = (&self.lanes.compute, &self.lowered.spec.rows);
        let images = images(&self.blocks.units);
        let cuts = Cuts::of(&self.blocks.units);
        let rows = (rows, &cuts);
        let data = upload(&mut self.in_flight, stream, rows, images, batches);
        let data = data.map_err(|e| self.error("uploading the batch", e))?;
        let inputs = Inputs {
            batches,
            data: &data,
        };
        if let Some(w) = &mut self.diagnostics.watch {
            w.begin();
        }
        self.diagnostics.set_step(self.step);
        let program = self.machine.program().clone();
        let plan = std::mem::take(&mut self.lowered.plan);
        let by_step = std::mem::take(&mut self.lowered.by_step);
        let done = self.steps(&program, &plan, &by_step, &inputs, lr);
        self.device().at_step(Purpose::default());
        self.lowered.plan = plan;
        self.values.end();
        let done = done.and_then(|()| self.agree_on_nonfinite());
        let end = by_step.last().map(|(_, calls)| calls.clone());
        self.lowered.by_step = by_step;
        if let Err(e) = done {
            // A failed step leaves nothing half-built behind.
            self.values.forget();
            self.forget_step();
            self.whole.all_released();
            return Err(e);
        }
        let open = self.begin_span();
        let published = self.run_calls(&program, end.unwrap_or_default(), &inputs);
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
            let calls = calls.clone();
            let Some(s) = id.and_then(|id| plan.steps.get(id.index())) else {
                if decides(program, &program.calls[calls.clone()]) {
                    self.decide(lr)?;
                }
                self.run_calls(program, calls, inputs)
                    .map_err(|e| self.error("between the steps of the plan", e))?;
                continue;
            };
            let device = self.lanes.compute.device();
            device.at_step(self.diagnostics.purpose(device, s));
            self.note_step(false);
            let open = self.begin_span();
            let ran = self.replaying(s, |t| t.run_calls(program, calls, inputs));
            self.end_span(open, &|| s.op.to_string());
            ran.map_err(|e| Error::Run {
                rank: self.lowered.spec.place.job_rank(),
                step: self.step,
                at: format!("plan step {} {}", s.id.0, s.op),
                source: e,
            })?;
            self.note_step(true);
            self.whole.note(&s.op);
            self.note_nonfinite(s);
        }
        Ok(())
    }

    /// Runs a step of the plan, its calls on the compute stream as a graph where they are those of a step before.
    fn replaying(
        &mut self,
        step: &Step,
        run: impl FnOnce(&mut Engine) -> Tensors<()>,
    ) -> Tensors<()> {
        let repeats = matches!(
            step.op,
            StepKind::Forward { .. }
                | StepKind::Recompute { .. }
                | StepKind::Backward { .. }
                | StepKind::InputGrad { .. }
                | StepKind::WeightGrad { .. }
        );
        let at = step.id.index();
        let followed = match &mut self.blocks.graphs {
            Some(g) if repeats => g.begin(at, &self.lanes.compute)?,
            _ => false,
        };
        let ran = run(self);
        match &mut self.blocks.graphs {
            Some(g) if followed => {
                let ended = g.end(at, &self.lanes.compute, ran.is_ok());
                ran.and(ended.map_err(Into::into))
            }
            _ => ran,
        }
    }

    /// Runs calls of the program outside the step; `about` is what their collectives are for.
    pub(super) fn run_outside(&mut self, calls: Range<usize>, about: String) -> Tensors<()> {
        let nothing = Inputs {
            batches: &[],
            data: &[],
        };
        let program = self.machine.program().clone();
        self.machine.about(about);
        let done = self.run_calls(&program, calls, &nothing);
        self.machine.about(String::new());
        done
    }

    /// Runs calls of the program.
    fn run_calls(
        &mut self,
        program: &Program,
        calls: Range<usize>,
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        for call in &program.calls[calls] {
            let f = &program.fragments[call.fragment.0 as usize];
            self.machine.enter(f);
            f.code
                .iter()
                .try_for_each(|i| self.run_instr((f, call), i, inputs))?;
        }
        Ok(())
    }

    fn run_instr(
        &mut self,
        (f, call): (&Fragment, &Call),
        i: &Instr,
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        let lane = match i {
            Instr::Free { slot } => {
                self.machine.free_slot(f, call, *slot);
                return Ok(());
            }
            Instr::Decide => return Ok(()),
            Instr::Bring { room, what, to } => {
                let dest = self.machine.target(f, call, to)?;
                return required(&mut self.host)?.bring((*room as usize, *what), dest);
            }
            Instr::Await { room } => return required(&mut self.host)?.wait_room(*room as usize),
            Instr::Take { what, slot } => {
                let mem = self.machine.memory_of(f, call, *slot)?;
                let (memory, at) = required(&mut self.host)?.take(*what)?;
                self.machine.take(mem, (*what, memory, at));
                return Ok(());
            }
            Instr::Give { what, slot } => {
                let memory = self.machine.give(self.machine.memory_of(f, call, *slot)?)?;
                return required(&mut self.host)?.give(*what, memory);
            }
            Instr::Host { job, room } => {
                let decided = self.scaling.decided;
                return required(&mut self.host)?.host(*job, *room, decided);
            }
            Instr::Move { what, .. } => return self.run_move(*what, call.values.as_ref()),
            Instr::Block { part, adds } => {
                return self.run_block((f, call), (*part, adds), inputs);
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
            Lane::CopyOut => required(&mut self.host)?.out(),
            lane => self.lanes.get(lane)?,
        };
        if let Instr::Alloc { slot, .. } = i {
            return self.machine.alloc(f, call, *slot, stream);
        }
        let probe = self.diagnostics.watch.as_ref().map(Watch::probe);
        let mesh = Some(self.groups.mesh());
        self.machine.enqueue((f, call), i, stream, mesh, probe)?;
        if let Instr::Publish { figure, to, .. } = i {
            let event = stream.record()?;
            let to = self.machine.memory_of(f, call, *to)?;
            match figure {
                Figure::Step => self.step_published(to, event),
                Figure::Verdict => {
                    let turn = self.machine.advance(to);
                    self.scaling.verdict_published(self.step, turn, event)?;
                }
            }
        }
        Ok(())
    }

    /// The figures of a step have been sent on their way.
    fn step_published(&mut self, host: MemId, event: Event) {
        self.in_flight.figures.push_back(Pending {
            step: self.step,
            turn: self.machine.advance(host),
            event,
            lr: self.scaling.decided.rate,
            share: self.scaling.share(),
        });
        self.machine.advance(self.lowered.memory.words);
    }

    fn run_block(
        &mut self,
        (f, call): (&Fragment, &Call),
        (part, adds): (Part, &[bool]),
        inputs: &Inputs<'_>,
    ) -> Tensors<()> {
        let Inputs { batches, data } = inputs;
        let Some(Values::Unit { unit, mb, keep }) = call.values else {
            return crossweave_tensor::shape_error("a block that is of no micro-batch");
        };
        let (u, m) = (unit as usize, mb as usize);
        let first = batches[m].first_sequence;
        match part {
            Part::Forward => {
                let ins = std::mem::take(&mut self.values.flow[m]);
                let (stream, unit) = (&self.lanes.compute, &self.blocks.units[u]);
                let kept = match keep {
                    PlanKeep::Input if self.lowered.spec.cuts_kept_inputs => {
                        Some(in_parts(stream, &self.groups, unit, ins.clone())?)
                    }
                    PlanKeep::Input => Some(Act::Inputs(ins.clone(), None)),
                    _ => None,
                };
                let keeps = tape_keep(keep);
                let (act, outs) = self.forward(u, part, ins, &data[m], first, keeps, vec![])?;
                self.values.keep_answers(u, m, self.groups.answers());
                let act = match keep {
                    PlanKeep::Input => kept,
                    PlanKeep::Nothing => None,
                    _ => Some(act),
                };
                self.values.keep(u, m, act);
                if u + 1 == self.blocks.units.len() {
                    self.add_loss(m, &outs)?;
                }
                self.values.flow[m] = outs;
            }
            Part::Recompute => {
                let kept = self.values.inputs(u, m)?;
                let ins = gathered(&self.lanes.compute, &self.groups, kept)?;
                let answers = self.values.answers(u, m);
                let (act, _) =
                    self.forward(u, part, ins, &data[m], first, Keep::Everything, answers)?;
                self.values.keep(u, m, Some(act));
            }
            Part::Backward | Part::InputGrad | Part::WeightGrad => {
                let mut wholes = vec![];
                for slot in 0..f.params {
                    let mem = self.machine.memory_of(f, call, slot)?;
                    wholes.extend(self.machine.buffer(mem).cloned());
                }
                let done = self.backward((u, m, part), &data[m], first, (&wholes, adds));
                done.map_err(|e| self.groups.with_rows(e))?;
            }
        }
        Ok(())
    }

    pub(super) fn cache(&mut self, work: Work) -> RefCell<KernelCache> {
        let mut c = std::mem::take(self.blocks.caches.of(work));
        let probe = self.diagnostics.watch.as_ref().map(Watch::probe);
        c.get_mut().watch(probe);
        c
    }
    pub(super) fn keep_cache(&mut self, work: Work, c: RefCell<KernelCache>) {
        *self.blocks.caches.of(work) = c;
    }
}

/// The way to the host's thread, where there is one.
fn required(host: &mut Option<Executor>) -> Tensors<&mut Executor> {
    match host {
        Some(host) => Ok(host),
        None => crossweave_tensor::shape_error(
            "the plan asks for the host's thread and nothing is offloaded",
        ),
    }
}

/// Whether calls have the host decide the step's scalars, which it does before they are run.
fn decides(program: &Program, calls: &[Call]) -> bool {
    let code = |c: &Call| &program.fragments[c.fragment.0 as usize].code;
    let mut all = calls.iter().flat_map(code);
    all.any(|i| *i == Instr::Decide)
}

fn tape_keep(k: PlanKeep) -> Keep {
    if k == PlanKeep::Selective {
        Keep::Cheap
    } else {
        Keep::All
    }
}
