//! One unit's forward and backward on one micro-batch: what the tape needs of the engine, and what it leaves behind.

use super::Engine;
use crate::blocks::as_rehearsed;
use crate::caches::Work;
use crate::groups::Answers;
use crate::values::Act;
use crossweave_hal::abi::op;
use crossweave_hal::{Buffer, DType};
use crossweave_program::Part;
use crossweave_tensor::{
    Batch, Cx, Decompositions, Env, Flow, GradSink, Groups, Keep, KernelCache, RngKey, Run, Tensor,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Engine {
    /// Whether which weights of a unit lie end to end depends on the number of ranks (each has one owner), and bits may not.
    fn scattered(&self, u: usize) -> bool {
        self.lowered.spec.canonical.is_some() && self.state.table(u).by_parameter
    }

    /// Where the random numbers of a unit's block begin.
    pub(super) fn key(&self, u: usize, first_sequence: u64) -> RngKey {
        RngKey {
            seed: self.lowered.spec.seed,
            step: self.step,
            unit: self.blocks.number(u),
            first_sequence,
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward(
        &mut self,
        u: usize,
        part: Part,
        ins: Vec<Tensor>,
        data: &Batch,
        first: u64,
        keep: Keep,
        answers: Answers,
    ) -> Tensors<(Act, Vec<Tensor>)> {
        let work = Work::Block(u, part);
        let cache = self.cache(work);
        let out = self.forward_on(u, ins, data, first, keep, true, answers, &cache);
        self.keep_cache(work, cache);
        out
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward_on(
        &self,
        u: usize,
        ins: Vec<Tensor>,
        data: &Batch,
        first_sequence: u64,
        keep: Keep,
        training: bool,
        answers: Answers,
        cache: &RefCell<KernelCache>,
    ) -> Tensors<(Act, Vec<Tensor>)> {
        self.wait_units(u)?;
        self.groups.serve(u, answers);
        let run =
            Run::new(&self.lanes.compute, &Decompositions, cache).one_by_one(self.scattered(u));
        let params = self.views(u)?;
        let sink = GradSink::none();
        let key = self.key(u, first_sequence);
        let env = Env {
            run: &run,
            groups: &self.groups,
            params: &params,
            consts: &self.blocks.consts[u],
            grads: &sink,
            batch: data,
            key,
            training,
        };
        let mut cx = Cx::new(&env);
        let vars: Vec<_> = ins.into_iter().map(|t| cx.input(t)).collect();
        let out = self.blocks.units[u]
            .block
            .forward(&mut cx, Flow(vars.clone()))
            .map_err(|e| self.groups.with_rows(e))?;
        let outs = out
            .0
            .iter()
            .map(|v| cx.val(*v).cloned())
            .collect::<Tensors<Vec<_>>>()?;
        self.groups.settle(&run)?;
        Ok((Act::Saved(cx.finish(keep), vars, out.0), outs))
    }

    /// The gradients that a backward of unit `u` writes: of its own parameters, then of those it borrows; an empty view says that
    /// there is none. `wholes` are the flat gradients of the units that train, in the order in which `u` names them.
    pub(super) fn grads(&self, u: usize, wholes: &[Arc<Buffer>]) -> Tensors<Vec<Tensor>> {
        let nothing = self.loss_gradient(0)?;
        let mut units: Vec<(usize, Option<&Arc<Buffer>>)> = vec![];
        let mut next = wholes.iter();
        for o in std::iter::once(u).chain(self.blocks.units[u].borrowed.iter().map(|(o, _)| *o)) {
            if units.iter().all(|(k, _)| *k != o) {
                let trains = self.state.table(o).trains();
                units.push((o, trains.then(|| next.next()).flatten()));
            }
        }
        let view = |o: usize, i: usize| {
            let p = &self.state.table(o).params[i];
            let whole = units.iter().find(|(k, _)| *k == o).and_then(|(_, b)| *b);
            match whole.filter(|_| p.trains) {
                Some(b) => {
                    let shape = self.state.params(o)[i].local();
                    Tensor::dense(b.clone(), 4 * p.range.start, shape, DType::F32)
                }
                // No gradient is wanted of what is not trained, and its place is never looked into.
                None => nothing.narrow(0, 0, 0),
            }
        };
        let own = (0..self.state.params(u).len()).map(|i| view(u, i));
        let lent = self.blocks.units[u]
            .borrowed
            .iter()
            .map(|(o, p)| view(*o, *p));
        Ok(own.chain(lent).collect())
    }

    /// The gradients that the backward begins with: of the loss, and where the last unit gives figures of the loss beside it.
    fn loss_gradients(&self) -> Tensors<Vec<Option<Tensor>>> {
        let each = 0..self.lowered.losses();
        each.map(|i| self.loss_gradient(i).map(Some)).collect()
    }

    /// The gradient of the loss (0), or of the loss beside it (1).
    fn loss_gradient(&self, i: u64) -> Tensors<Tensor> {
        let mut place = crossweave_program::Place::from(self.lowered.memory.seed);
        place.at += 4 * i;
        match self.machine.tensor(place, 1, DType::F32) {
            Some(t) => Ok(t),
            None => crossweave_tensor::shape_error("there is no gradient of the loss"),
        }
    }

    pub(super) fn backward(
        &mut self,
        (u, m, part): (usize, usize, Part),
        data: &Batch,
        first_sequence: u64,
        (wholes, adds): (&[Arc<Buffer>], &[bool]),
    ) -> Tensors<()> {
        let work = Work::Block(u, part);
        let cache = self.cache(work);
        let run =
            Run::new(&self.lanes.compute, &Decompositions, &cache).one_by_one(self.scattered(u));
        self.groups.serve(u, vec![]);
        let grads = self.grads(u, wholes)?;
        let written: Vec<Rc<Cell<bool>>> = adds.iter().map(|a| Rc::new(Cell::new(*a))).collect();
        // Gradients of weights are made without the weights, which are nowhere whole by then.
        let params = match part {
            Part::WeightGrad => vec![],
            _ => self.views(u)?,
        };
        let sink = GradSink::new(&grads, &written);
        let key = self.key(u, first_sequence);
        let env = Env {
            run: &run,
            groups: &self.groups,
            params: &params,
            consts: &self.blocks.consts[u],
            grads: &sink,
            batch: data,
            key,
            training: true,
        };
        if part == Part::WeightGrad {
            self.values.owed(u, m)?.run(&env)?;
        } else {
            let (tape, ins, outs) = self.values.saved(u, m)?;
            let douts = match self.values.grads[m].take() {
                Some(d) => d,
                None => self.loss_gradients()?,
            };
            self.values.flow[m].clear();
            self.values.grads[m] = Some(match part {
                Part::InputGrad => {
                    let (dins, owed) = tape.input_grads(&env, &outs, douts, &ins)?;
                    self.values.keep(u, m, Some(Act::Owed(owed)));
                    dins
                }
                _ => tape.backward(&env, &outs, douts, &ins)?,
            });
        }
        self.groups.settle(&run)?;
        let [first, second] = &self.lowered.writes_apart;
        let writes = match part {
            Part::InputGrad => &first[u],
            Part::WeightGrad => &second[u],
            _ => &self.lowered.writes[u],
        };
        as_rehearsed(&self.blocks.units[u], adds, writes, &grads, &written)?;
        self.keep_cache(work, cache);
        Ok(())
    }

    /// Words of the step's figures.
    fn words(&self, i: u64, n: u64) -> Option<Tensor> {
        let mut place = crossweave_program::Place::from(self.lowered.memory.words);
        place.at += 4 * i;
        self.machine.tensor(place, n, DType::F32)
    }

    pub(super) fn add_loss(&mut self, m: usize, outs: &[Tensor]) -> Tensors<()> {
        if !self.counts_loss() {
            return Ok(());
        }
        let (figures, given) = (self.lowered.figures(), outs.len());
        let (Some(loss), true) = (outs.first(), given == 1 || !figures.is_empty()) else {
            return crossweave_tensor::shape_error(
                "the last unit must return one scalar, the loss",
            );
        };
        let cache = self.cache(Work::Loss);
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        let share = self.lowered.spec.rows.weight
            / (self.lowered.spec.micro_batches * self.lowered.spec.replicas()) as f64;
        let word = self.words(self.lowered.loss_word(m), 1);
        let p = op::AxpbyParams {
            alpha: share,
            beta: 1.0,
            ..Default::default()
        };
        run.launch(op::AXPBY, &[word.as_ref(), Some(loss)], p.as_bytes(), &[])?;
        // Behind the loss stands the one beside it, of which the figures say what people want to know.
        let mut at = figures.start;
        for figure in outs.iter().skip(2) {
            let words = self.words(at, figure.numel());
            let operands = [words.as_ref(), Some(figure)];
            run.launch(op::AXPBY, &operands, p.as_bytes(), &[])?;
            at += figure.numel();
        }
        self.keep_cache(Work::Loss, cache);
        Ok(())
    }
}
