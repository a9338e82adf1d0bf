//! Walking the plan: one `match` per step. Nothing here decides; order and placement are the plan's.

use crate::error::{Error, Result};
use crate::state::StateKind;
use crate::trainer::{Act, Figures, MicroBatch, Trainer};
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, Collective, DType, Reduce, Stream, Tag};
use crossweave_mesh::Axis;
use crossweave_plan::{Keep as PlanKeep, Op};
use crossweave_tensor::{
    Batch, Cx, Decompositions, Env, Flow, GradSink, Keep, KernelCache, RngKey, Run, Tensor,
};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Kernel caches by what a unit is doing.
const FORWARD: u8 = 0;
const RECOMPUTE: u8 = 1;
const BACKWARD: u8 = 2;
const UPDATE: u8 = 3;
const SQUARES: u8 = 4;
const NORM: u8 = 5;
const LOSS: u8 = 6;

impl Trainer {
    pub(crate) fn walk(&mut self, batches: &[MicroBatch<'_>]) -> Result<()> {
        let data = self
            .upload(batches)
            .map_err(|e| self.error("uploading the batch", e))?;
        let Some(figures) = self.figures.pop_front() else {
            return Err(Error::Invalid("no room for another step in flight".into()));
        };
        let plan = self.take_plan();
        let mut done = self
            .compute
            .fill(figures.words.all(), 0, 4)
            .map_err(|e| self.error("clearing figures", e.into()));
        for s in plan.walk() {
            if done.is_err() {
                break;
            }
            done = self
                .run_step(&s.op, batches, &data, &figures)
                .map_err(|e| Error::Run {
                    rank: self.spec.rank,
                    step: self.step,
                    at: format!("plan step {} {}", s.id.0, s.op),
                    source: e,
                });
        }
        self.put_plan(plan);
        self.flow.iter_mut().for_each(Vec::clear);
        self.flow_grad.iter_mut().for_each(|g| *g = None);
        if let Err(e) = done {
            // A failed step leaves no half-built activations behind.
            self.acts.iter_mut().flatten().for_each(|a| *a = None);
            self.figures.push_back(figures);
            return Err(e);
        }
        let event = self
            .publish_figures(&figures)
            .map_err(|e| self.error("publishing figures", e))?;
        self.pending.push_back((self.step, figures, event));
        Ok(())
    }

    fn run_step(
        &mut self,
        op: &Op,
        batches: &[MicroBatch<'_>],
        data: &[Batch],
        f: &Figures,
    ) -> Tensors<()> {
        match op {
            Op::Forward { unit, mb, keep } => {
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
                    self.add_loss(&outs, f)?;
                }
                self.flow[m] = outs;
            }
            Op::Recompute { unit, mb } => {
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
            Op::Backward { unit, mb } => self.backward(
                *unit as usize,
                *mb as usize,
                &data[*mb as usize],
                batches[*mb as usize].first_sequence,
            )?,
            Op::ReduceGrad { units, .. } => self.reduce_grads(units)?,
            Op::GradNorm => {
                self.sum_squares(0..self.units.len(), f)?;
                self.clip(f)?;
            }
            Op::Update { unit } => self.update(*unit as usize, f)?,
            // Nothing is cleared: the first gradient written in a step overwrites (`GradSink`).
            Op::ZeroGrad { .. } => {}
            // Parameters are resident at stage 0.
            Op::Gather { .. } | Op::Release { .. } => {}
            other => {
                return crossweave_tensor::shape_error(format!(
                    "this engine does not run {}",
                    other
                ));
            }
        }
        Ok(())
    }

    fn cache(&mut self, unit: usize, phase: u8) -> RefCell<KernelCache> {
        self.caches
            .remove(&(unit as u32, phase))
            .unwrap_or_default()
    }
    fn keep_cache(&mut self, unit: usize, phase: u8, c: RefCell<KernelCache>) {
        self.caches.insert((unit as u32, phase), c);
    }

    /// Parameters a unit sees: its own, then borrowed ones.
    pub(crate) fn views(&self, unit: usize) -> Vec<Tensor> {
        let mut v = self.state[unit].params.clone();
        v.extend(
            self.units[unit]
                .borrowed
                .iter()
                .map(|(u, p)| self.state[*u].params[*p].clone()),
        );
        v
    }

    fn forward(
        &mut self,
        u: usize,
        phase: u8,
        ins: Vec<Tensor>,
        data: &Batch,
        first: u64,
        keep: Keep,
    ) -> Tensors<(Act, Vec<Tensor>)> {
        let cache = self.cache(u, phase);
        let out = self.forward_on(u, ins, data, first, keep, true, &cache);
        self.keep_cache(u, phase, cache);
        out
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward_on(
        &self,
        u: usize,
        ins: Vec<Tensor>,
        data: &Batch,
        first_sequence: u64,
        keep: Keep,
        training: bool,
        cache: &RefCell<KernelCache>,
    ) -> Tensors<(Act, Vec<Tensor>)> {
        let run = Run::new(&self.compute, &Decompositions, cache);
        let params = self.views(u);
        let sink = GradSink::none();
        let key = RngKey {
            seed: self.spec.seed,
            step: self.step,
            unit: u as u32,
            first_sequence,
        };
        let env = Env {
            run: &run,
            groups: &self.groups,
            params: &params,
            consts: &self.consts[u],
            grads: &sink,
            batch: data,
            key,
            training,
        };
        let mut cx = Cx::new(&env);
        let vars: Vec<_> = ins.into_iter().map(|t| cx.input(t)).collect();
        let out = self.units[u].block.forward(&mut cx, Flow(vars.clone()))?;
        let outs = out
            .0
            .iter()
            .map(|v| cx.val(*v).cloned())
            .collect::<Tensors<Vec<_>>>()?;
        Ok((Act::Saved(cx.finish(keep), vars, out.0), outs))
    }

    fn backward(&mut self, u: usize, m: usize, data: &Batch, first_sequence: u64) -> Tensors<()> {
        let Some(Act::Saved(tape, ins, outs)) = self.acts[u][m].take() else {
            return crossweave_tensor::shape_error("backward without saved activations");
        };
        let seed = || vec![Some(self.seed.clone())];
        let douts = self.flow_grad[m].take().unwrap_or_else(seed);
        self.flow[m].clear();
        self.state[u].open_grad(&self.compute)?;
        for (o, _) in self.units[u].borrowed.clone() {
            self.state[o].open_grad(&self.compute)?;
        }
        let cache = self.cache(u, BACKWARD);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let (mut grads, mut written) = (
            self.state[u].grad_views.clone(),
            self.state[u].written.clone(),
        );
        for (o, p) in &self.units[u].borrowed {
            grads.push(self.state[*o].grad_views[*p].clone());
            written.push(self.state[*o].written[*p].clone());
        }
        let params = self.views(u);
        let sink = GradSink::new(&grads, &written);
        let key = RngKey {
            seed: self.spec.seed,
            step: self.step,
            unit: u as u32,
            first_sequence,
        };
        let env = Env {
            run: &run,
            groups: &self.groups,
            params: &params,
            consts: &self.consts[u],
            grads: &sink,
            batch: data,
            key,
            training: true,
        };
        let dins = tape.backward(&env, &outs, douts, &ins)?;
        self.keep_cache(u, BACKWARD, cache);
        self.flow_grad[m] = Some(dins);
        Ok(())
    }

    fn add_loss(&mut self, outs: &[Tensor], f: &Figures) -> Tensors<()> {
        let [loss] = outs else {
            return crossweave_tensor::shape_error(
                "the last unit must return one scalar, the loss",
            );
        };
        let cache = self.cache(0, LOSS);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let share = 1.0 / (self.spec.micro_batches * self.spec.world) as f64;
        let p = op::AxpbyParams {
            alpha: share,
            beta: 1.0,
            ..Default::default()
        };
        run.launch(
            op::AXPBY,
            &[Some(&f.word(0)), Some(loss)],
            p.as_bytes(),
            &[],
        )?;
        self.keep_cache(0, LOSS, cache);
        Ok(())
    }

    fn reduce_grads(&mut self, units: &[u32]) -> Tensors<()> {
        for u in units {
            self.state[*u as usize].complete_grad(&self.compute)?;
        }
        if self.spec.world == 1 {
            return Ok(());
        }
        let stream = if self.spec.overlap {
            &self.reduce
        } else {
            &self.compute
        };
        let buffers: Vec<&Arc<Buffer>> = units
            .iter()
            .filter_map(|u| self.state[*u as usize].grad_buffer())
            .collect();
        let members: Vec<_> = buffers
            .iter()
            .map(|b| Collective::AllReduce {
                buf: b.all(),
                dtype: DType::F32,
                op: Reduce::Sum,
            })
            .collect();
        let mut mesh = self.groups.mesh().borrow_mut();
        Ok(mesh.group(&[Axis::Dp])?.group(stream, &members, "grad")?)
    }

    fn sum_squares(&mut self, units: Range<usize>, f: &Figures) -> Tensors<()> {
        let cache = self.cache(units.start, SQUARES);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        for u in units.clone() {
            if let Some(g) = self.state[u].grad(&(0..self.state[u].numel)) {
                run.launch(
                    op::MULTI_SUMSQ,
                    &[Some(&f.word(1)), Some(&g)],
                    op::NoParams::default().as_bytes(),
                    &[],
                )?;
            }
        }
        self.keep_cache(units.start, SQUARES, cache);
        Ok(())
    }

    /// Norm and coefficient from the sum of squares, on the device: `coef = min(1, clip / (norm + 1e-6))` (03 §4.6).
    fn clip(&mut self, f: &Figures) -> Tensors<()> {
        let cache = self.cache(0, NORM);
        norm(
            &Run::new(&self.compute, &Decompositions, &cache),
            f,
            Some(self.spec.clip),
        )?;
        self.keep_cache(0, NORM, cache);
        Ok(())
    }

    fn update(&mut self, u: usize, f: &Figures) -> Tensors<()> {
        let clip = self.spec.clip > 0.0;
        if !clip {
            self.sum_squares(u..u + 1, f)?;
        }
        let cache = self.cache(u, UPDATE);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let (a, s) = (&self.spec.adamw, &self.state[u]);
        let coef = clip.then(|| f.word(3));
        let dynamic = op::AdamwDyn {
            lr: self.lr,
            grad_scale: 1.0,
            step: self.step,
            ..Default::default()
        };
        for decays in [true, false] {
            let mut tensors = vec![];
            for (_, r) in s.runs.iter().filter(|(d, _)| *d == decays) {
                let (Some(p), Some(g)) = (s.values(r), s.grad(r)) else {
                    continue;
                };
                tensors.extend([
                    p,
                    g,
                    s.state(StateKind::Moment1, r),
                    s.state(StateKind::Moment2, r),
                ]);
                if s.has_master {
                    tensors.push(s.state(StateKind::Value, r));
                }
            }
            if tensors.is_empty() {
                continue;
            }
            let p = op::AdamwParams {
                flags: if s.has_master { op::FLAG_MASTER } else { 0 },
                mode: a.l2 as u32,
                beta1: a.betas[0],
                beta2: a.betas[1],
                eps: a.eps,
                weight_decay: if decays { a.weight_decay } else { 0.0 },
                ..Default::default()
            };
            let operands: Vec<Option<&Tensor>> = [coef.as_ref(), None]
                .into_iter()
                .chain(tensors.iter().map(Some))
                .collect();
            run.launch(op::ADAMW, &operands, p.as_bytes(), dynamic.as_bytes())?;
        }
        self.keep_cache(u, UPDATE, cache);
        self.state[u].close_grad();
        Ok(())
    }

    /// All micro-batches in one pinned buffer, one copy each for tokens and targets.
    fn upload(&mut self, batches: &[MicroBatch<'_>]) -> Tensors<Vec<Batch>> {
        let (b, t) = (self.spec.batch, self.spec.seq_len);
        let n = (b * t) as usize;
        if let Some(bad) = batches
            .iter()
            .find(|m| m.tokens.len() != n || m.targets.len() != n)
        {
            return crossweave_tensor::shape_error(format!(
                "a micro-batch of {} tokens and {} targets, expected {b} x {t}",
                bad.tokens.len(),
                bad.targets.len()
            ));
        }
        let Some(mut staging) = self.inputs.pop_front() else {
            return crossweave_tensor::shape_error("no input buffer is free");
        };
        let out = upload_through(&self.compute, &mut staging, batches, b, t);
        self.inputs.push_back(staging);
        out
    }

    fn publish_figures(&mut self, f: &Figures) -> Tensors<crossweave_hal::Event> {
        if self.spec.clip <= 0.0 {
            let cache = self.cache(0, NORM);
            norm(&Run::new(&self.compute, &Decompositions, &cache), f, None)?;
            self.keep_cache(0, NORM, cache);
        }
        let stream: &Stream = &self.reduce;
        if self.spec.world > 1 {
            let mut mesh = self.groups.mesh().borrow_mut();
            mesh.group(&[Axis::Dp])?.all_reduce(
                stream,
                f.words.region(0, 4),
                DType::F32,
                Reduce::Sum,
                "scalar",
            )?;
        }
        stream.copy(f.host.buffer().all(), f.words.all())?;
        Ok(stream.record()?)
    }
}

/// `norm = sqrt(sum of squares)`, and with a limit the clipping coefficient.
fn norm(run: &Run<'_>, f: &Figures, limit: Option<f64>) -> Tensors<()> {
    use op::inst;
    let mut p = op::ProgramParams {
        writes: 0b110,
        ..Default::default()
    };
    let i = |op, dst, a, b, imm| op::ProgramInst {
        op,
        dst,
        a,
        b,
        imm,
        ..Default::default()
    };
    // Registers: 0 sum of squares, 1 norm, 2 coefficient, 3.. temporaries.
    let program = [
        i(inst::SQRT, 1, 0, 0, 0.0),
        i(inst::CONST, 3, 0, 0, 1e-6),
        i(inst::ADD, 3, 1, 3, 0.0),
        i(inst::CONST, 4, 0, 0, limit.map_or(f32::MAX, |l| l as f32)),
        i(inst::DIV, 3, 4, 3, 0.0),
        i(inst::CONST, 4, 0, 0, 1.0),
        i(inst::MIN, 2, 3, 4, 0.0),
    ];
    p.n_insts = program.len() as u32;
    p.insts[..program.len()].copy_from_slice(&program);
    run.launch(
        op::ELEMENTWISE_PROGRAM,
        &[Some(&f.word(1)), Some(&f.word(2)), Some(&f.word(3))],
        p.as_bytes(),
        &[],
    )
}

fn upload_through(
    stream: &Stream,
    staging: &mut crossweave_hal::HostBuffer,
    batches: &[MicroBatch<'_>],
    b: u64,
    t: u64,
) -> Tensors<Vec<Batch>> {
    let bytes = 4 * (b * t) as usize;
    let host = staging.write()?;
    for (i, m) in batches.iter().enumerate() {
        for (j, ids) in [m.tokens, m.targets].into_iter().enumerate() {
            let at = (2 * i + j) * bytes;
            for (dst, id) in host[at..at + bytes].chunks_exact_mut(4).zip(ids) {
                dst.copy_from_slice(&id.to_le_bytes());
            }
        }
    }
    let mut out = vec![];
    for i in 0..batches.len() {
        let ids = |j: usize| -> Tensors<Tensor> {
            let dst = stream
                .device()
                .alloc(stream, bytes as u64, Tag::Activation)?;
            stream.copy(
                dst.all(),
                staging
                    .buffer()
                    .region(((2 * i + j) * bytes) as u64, bytes as u64),
            )?;
            Ok(Tensor::dense(Arc::new(dst), 0, [b, t], DType::I32))
        };
        out.push(Batch {
            tokens: Some(ids(0)?),
            targets: Some(ids(1)?),
        });
    }
    Ok(out)
}

fn tape_keep(k: PlanKeep) -> Keep {
    if k == PlanKeep::Selective {
        Keep::Cheap
    } else {
        Keep::All
    }
}
