//! The loss of logits of which each rank has those of its rows of a vocabulary, and all logits on every rank.

use super::vocabulary::Vocabulary;
use super::xent::{self, Kept};
use super::{add, custom, distill};
use crate::block::Function;
use crate::env::{Env, IGNORED};
use crate::error::{Result, shape_error};
use crate::spmd::{Check, Spmd, Ty};
use crate::tape::Var;
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

impl Vocabulary {
    /// [`Cx::cross_entropy`] of logits of which each rank has those of its rows.
    ///
    /// # Errors
    /// As [`Vocabulary::embedding`].
    pub fn cross_entropy(&self, cx: &mut Cx<'_>, logits: Var) -> Result<Var> {
        let (env, lv) = (cx.env, cx.val(logits)?.clone());
        let (ids, all) = xent::targets(env, &lv)?;
        let (n, own) = (lv.shape().rows(), lv.shape().last());
        let targets = self.targets(env, &ids, own)?;
        let params = self.params();
        let found = distill::entropy(env, &lv.rows(), &targets.forward, &params)?;
        let axis = self.axis();
        let [ranks, at] = [env.groups.size(axis), env.groups.at(axis)].map(u64::from);
        // The logs of all ranks, row by row, and behind them the targets' logits: each rank fills in its own, and zeros are added.
        let known = env.run.zeros([n * (ranks + 1)], DType::F32)?;
        let logs = known.narrow(0, 0, n * ranks).view([n, ranks]);
        let logit = known.narrow(0, n * ranks, n);
        add::copy(env, &logs.narrow(1, at, 1), &found[1].view([n, 1]))?;
        self.logits(env, &logit, &targets.here, &found)?;
        if ranks > 1 {
            env.groups
                .all_reduce(env.run, "cross_entropy", axis, &known)?;
        }
        // The log of the sum of all exponentials is that of the ranks' sums; their loss against any target is not read.
        let any = env.run.zeros([n], ids.dtype())?;
        let [_, lse] = distill::entropy(env, &logs, &any, &params)?;
        let [each, lse, factor] = self.losses(env, [&lse, &logit], &targets)?;
        let loss = distill::sum(env, &each)?;
        xent::scale(env.run, &loss, 1.0 / all as f64)?;
        let kept = Kept {
            lse,
            targets: targets.backward,
            all,
            params,
            share: Some((self.clone(), factor)),
        };
        let out = xent::noted(cx, logits, loss, kept);
        cx.typed(out, |c| {
            let x = self.summed(c, "cross_entropy", logits);
            c.mean("cross_entropy", x)
        });
        Ok(out)
    }

    /// The logits of all rows, on every rank.
    ///
    /// # Errors
    /// As [`Vocabulary::embedding`].
    pub fn whole(&self, cx: &mut Cx<'_>, logits: Var) -> Result<Var> {
        let all = custom::forward(cx, Box::new(Whole(self.clone())), &[logits])?;
        cx.typed(all, |c| self.summed(c, "logits", logits));
        Ok(all)
    }

    /// Targets of other ranks are ignored.
    pub(super) fn params(&self) -> op::XentParams {
        op::XentParams {
            flags: op::FLAG_HAS_IGNORE,
            ignore: IGNORED,
            ..Default::default()
        }
    }

    /// The type of a value of each rank's rows behind the sum over the ranks.
    pub(super) fn summed(&self, c: &mut Check, op: &'static str, v: Var) -> Spmd {
        let (x, axis) = (c.vals[v.0 as usize], self.axis());
        (0..c.times(op)).fold(x, |x, _| c.step(op, x, axis, Ty::V, Ty::I))
    }
}

struct Whole(Vocabulary);

impl Whole {
    /// This rank's columns of the logits of all.
    fn own(&self, env: &Env<'_>, all: &Tensor, own: u64) -> Result<Tensor> {
        let first = self.0.first(env);
        if first + own > self.0.rows() {
            return shape_error(format!(
                "vocabulary: {own} logits from {first} on, of {}",
                self.0.rows()
            ));
        }
        Ok(all.narrow(all.shape().rank() - 1, first, own))
    }
}

impl Function for Whole {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let shape = ins[0].shape().with_last(self.0.rows());
        let all = env.run.zeros(shape, ins[0].dtype())?;
        add::copy(env, &self.own(env, &all, ins[0].shape().last())?, ins[0])?;
        env.groups
            .all_reduce(env.run, "logits", self.0.axis(), &all)?;
        Ok(all)
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let d = env.run.empty(*ins[0].shape(), dout.dtype())?;
        add::copy(env, &d, &self.own(env, dout, ins[0].shape().last())?)?;
        Ok(vec![Some(d)])
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        Ok(ins[0])
    }
}
