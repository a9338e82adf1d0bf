//! One unit's forward and backward on one micro-batch: what the tape needs of the engine, and what it leaves behind.

use crate::base::trains;
use crate::figures::Figures;
use crate::trainer::{Act, Trainer};
use crate::walk::{BACKWARD, LOSS};
use crossweave_hal::abi::op;
use crossweave_tensor::{
    Batch, Cx, Decompositions, Env, Flow, GradSink, Keep, KernelCache, RngKey, Run, Tensor,
};
use crossweave_zero::Partition;
use std::cell::RefCell;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Trainer {
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

    /// Whether which weights of a unit lie end to end depends on the number of ranks (each has one owner), and bits may not.
    fn scattered(&self, u: usize) -> bool {
        self.spec.canonical.is_some() && self.state[u].hold.deal == Partition::WholeParameter
    }

    pub(crate) fn forward(
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
        self.wait_units(u)?;
        let run = Run::new(&self.compute, &Decompositions, cache).one_by_one(self.scattered(u));
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

    pub(crate) fn backward(
        &mut self,
        u: usize,
        m: usize,
        data: &Batch,
        first_sequence: u64,
    ) -> Tensors<()> {
        let Some(Act::Saved(tape, ins, outs)) = self.acts[u][m].take() else {
            return crossweave_tensor::shape_error("backward without saved activations");
        };
        let seed = || vec![Some(self.scaling.seed())];
        let douts = self.flow_grad[m].take().unwrap_or_else(seed);
        self.flow[m].clear();
        self.state[u].open_grad(&self.compute)?;
        for (o, _) in self.units[u].borrowed.clone() {
            self.state[o].open_grad(&self.compute)?;
        }
        let cache = self.cache(u, BACKWARD);
        let run = Run::new(&self.compute, &Decompositions, &cache).one_by_one(self.scattered(u));
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
        // Units that are frozen as a whole are never reduced.
        for o in std::iter::once(u).chain(self.units[u].borrowed.iter().map(|(o, _)| *o)) {
            if !trains(&self.state[o]) {
                self.state[o].close_grad();
            }
        }
        self.flow_grad[m] = Some(dins);
        // What others are tied to is whole behind its own backward, which comes last; on another stage nothing comes.
        let elsewhere = |o: &usize| self.pipe.as_ref().is_some_and(|p| p.elsewhere.contains(o));
        let lent = self.units[u]
            .borrowed
            .iter()
            .map(|(o, _)| *o)
            .filter(elsewhere);
        let mut whole: Vec<usize> = lent.chain([u]).collect();
        whole.dedup();
        whole.into_iter().try_for_each(|u| self.fold_grad(u))
    }

    pub(crate) fn add_loss(&mut self, m: usize, outs: &[Tensor], f: &Figures) -> Tensors<()> {
        let [loss] = outs else {
            return crossweave_tensor::shape_error(
                "the last unit must return one scalar, the loss",
            );
        };
        let cache = self.cache(0, LOSS);
        let run = Run::new(&self.compute, &Decompositions, &cache);
        let share = self.spec.weight / (self.spec.micro_batches * self.spec.replicas()) as f64;
        let word = match self.spec.canonical {
            Some(_) => f.losses().start + u64::from(self.spec.own_first()) + m as u64,
            None => 0,
        };
        let p = op::AxpbyParams {
            alpha: share,
            beta: 1.0,
            ..Default::default()
        };
        run.launch(
            op::AXPBY,
            &[Some(&f.word(word)), Some(loss)],
            p.as_bytes(),
            &[],
        )?;
        self.keep_cache(0, LOSS, cache);
        Ok(())
    }
}
