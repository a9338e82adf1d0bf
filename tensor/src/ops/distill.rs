//! The loss of a student: `(1 - alpha) CE + alpha tau^2 KL(softmax(t / tau) || softmax(z / tau))`, each a mean over all predictions of which one
//! that does not count adds nothing (Hinton et al. 2015, arXiv 1503.02531). The teacher's logits have no gradient.
//!
//! Of a vocabulary that is cut over ranks each has its columns of both logits. The logs of the ranks' sums of exponentials, of the logits and of
//! both over the temperature, and the targets' logits are summed in one message of `3 ranks + 1` numbers a token; the divergence of a rank's
//! columns is then a summand of that of all, one number. The backward needs nothing of other ranks.

use super::vocabulary::Vocabulary;
use super::{add, custom, xent};
use crate::block::Function;
use crate::env::{Env, IGNORED};
use crate::error::{Result, shape_error};
use crate::spmd::{Spmd, shares};
use crate::tape::Var;
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op::{self, ProgramDyn, ProgramParams};
use crossweave_program::Prog;
use std::sync::Arc;

/// How much of a loss is the teacher's, and how soft its answers are taken.
#[derive(Clone)]
pub struct Distillation {
    alpha: f64,
    temperature: f64,
    fwd: Arc<ProgramParams>,
    bwd: Arc<ProgramParams>,
}

/// One loss: what its forward leaves to its backward.
struct Taught {
    how: Distillation,
    /// The vocabulary, where it is cut over ranks.
    over: Option<Vocabulary>,
    kept: Option<Kept>,
}

struct Kept {
    lse: Tensor,
    targets: Tensor,
    rows: Rows,
    /// Where the vocabulary is cut: the factor of each row's loss, as the backward takes it.
    factor: Option<Tensor>,
    /// What the sums are divided by.
    all: u64,
    params: op::XentParams,
}

/// What belongs to each row: the log of the sum of exponentials of both logits over the temperature, and whether the row counts.
struct Rows([Tensor; 3]);

impl Rows {
    /// Each seen as `[n, v]`.
    fn over(&self, n: u64, v: u64) -> [Tensor; 3] {
        self.0.each_ref().map(|t| t.strided([n, v], &[1, 0], 0))
    }
}

impl Distillation {
    /// Weight `alpha` of the teacher's part, and the temperature.
    pub fn new(alpha: f64, temperature: f64) -> Distillation {
        let tau = temperature as f32;
        let fwd = Prog::new(6);
        let [z, t, ls, lt, live] = [1, 2, 3, 4, 5].map(|i| fwd.operand(i));
        let (s, of_t) = (z / tau - ls, t / tau - lt);
        let kl = of_t.exp() * (of_t - s);
        let fwd_out = live.less(live.lit(0.5)).choose(live.lit(0.0), kl);
        let bwd = Prog::new(7);
        let [z, t, ls, lt, live, scale] = [1, 2, 3, 4, 5, 6].map(|i| bwd.operand(i));
        let more = ((z / tau - ls).exp() - (t / tau - lt).exp()) * scale;
        let more = live.less(live.lit(0.5)).choose(live.lit(0.0), more);
        let bwd_out = bwd.operand(0) + more;
        Distillation {
            alpha,
            temperature,
            fwd: Arc::new(fwd.finish(&[fwd_out])),
            bwd: Arc::new(bwd.finish(&[bwd_out])),
        }
    }
}

fn program(env: &Env<'_>, operands: &[&Tensor], p: &ProgramParams) -> Result<()> {
    let operands: Vec<_> = operands.iter().map(|t| Some(*t)).collect();
    let none = ProgramDyn::new(&[]);
    let id = op::ELEMENTWISE_PROGRAM;
    env.run.launch(id, &operands, p.as_bytes(), none.as_bytes())
}

/// `alpha x + beta y` into `y`.
fn axpby(env: &Env<'_>, y: &Tensor, x: &Tensor, [alpha, beta]: [f64; 2]) -> Result<()> {
    let p = op::AxpbyParams {
        alpha,
        beta,
        ..Default::default()
    };
    env.run
        .launch(op::AXPBY, &[Some(y), Some(x)], p.as_bytes(), &[])
}

/// Sum over the last dim, or of all where there is one dim.
pub(super) fn sum(env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
    let rank = x.shape().dims().len();
    let mut dims = x.shape().dims().to_vec();
    dims[rank - 1] = 1;
    let y = env.run.empty(&dims[..], DType::F32)?;
    let p = op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1 << (rank - 1),
        ..Default::default()
    };
    env.run
        .launch(op::REDUCE, &[Some(&y), Some(x)], p.as_bytes(), &[])?;
    Ok(y)
}

/// Losses and logs of sums of exponentials of rows.
pub(super) fn entropy(
    env: &Env<'_>,
    x: &Tensor,
    targets: &Tensor,
    p: &op::XentParams,
) -> Result<[Tensor; 2]> {
    let n = x.shape().dims()[0];
    let (losses, lse) = (
        env.run.empty([n], DType::F32)?,
        env.run.empty([n], DType::F32)?,
    );
    let operands = [Some(&losses), Some(&lse), Some(x), Some(targets)];
    env.run
        .launch(op::CROSS_ENTROPY_FWD, &operands, p.as_bytes(), &[])?;
    Ok([losses, lse])
}

/// 1 for rows that count, else 0.
fn live(env: &Env<'_>, targets: &Tensor) -> Result<Tensor> {
    let (run, n) = (env.run, targets.numel());
    let live = run.empty([n], DType::F32)?;
    let none = op::NoParams::default();
    if !env.batch.ignores {
        run.stream()
            .fill(live.region(), u64::from(1.0f32.to_bits()), 4)?;
        return Ok(live);
    }
    let ignored = run.empty([1], targets.dtype())?;
    let bits = IGNORED as i32 as u32;
    run.stream().fill(ignored.region(), u64::from(bits), 4)?;
    let counts = run.empty([n], DType::U8)?;
    let p = op::KindParams {
        kind: op::compare::NE,
        ..Default::default()
    };
    let operands = [
        Some(&counts),
        Some(targets),
        Some(&ignored.strided([n], &[0], 0)),
    ];
    run.launch(op::COMPARE, &operands, p.as_bytes(), &[])?;
    run.launch(
        op::CAST,
        &[Some(&live), Some(&counts)],
        none.as_bytes(),
        &[],
    )?;
    Ok(live)
}

/// The loss of `logits` beside those of a teacher.
pub(crate) fn forward(cx: &mut Cx<'_>, both: [Var; 2], how: &Distillation) -> Result<Var> {
    recorded(cx, both, how, None)
}

fn recorded(
    cx: &mut Cx<'_>,
    both: [Var; 2],
    how: &Distillation,
    over: Option<Vocabulary>,
) -> Result<Var> {
    let taught = Taught {
        how: how.clone(),
        over,
        kept: None,
    };
    custom::forward(cx, Box::new(taught), &both)
}

impl Vocabulary {
    /// [`Cx::distilled`] of logits of which each rank has those of its rows, and of a teacher's alike.
    ///
    /// # Errors
    /// As [`Vocabulary::embedding`].
    pub fn distilled(&self, cx: &mut Cx<'_>, both: [Var; 2], how: &Distillation) -> Result<Var> {
        let out = recorded(cx, both, how, Some(self.clone()))?;
        cx.typed(out, |c| {
            let logits = self.summed(c, LOGS, both[0]);
            let divergence = self.summed(c, DIVERGENCE, both[0]);
            let x = c.same("distillation", &[logits, divergence], false);
            c.mean("distillation", x)
        });
        Ok(out)
    }
}

/// The sums over ranks in messages.
const LOGS: &str = "distillation";
const DIVERGENCE: &str = "sum of the divergence";

/// What the forward finds of each row before it looks at both logits together.
struct Found {
    /// The losses against the targets, and of each row the log of the sum of exponentials as the backward takes it.
    losses: Tensor,
    lse: Tensor,
    /// Targets as the backward takes them.
    targets: Tensor,
    rows: Rows,
    factor: Option<Tensor>,
}

impl Taught {
    /// The log of the sum of exponentials of each row over the temperature.
    fn softened(
        &self,
        env: &Env<'_>,
        x: &Tensor,
        (targets, params): (&Tensor, &op::XentParams),
    ) -> Result<Tensor> {
        let y = env.run.empty(*x.shape(), x.dtype())?;
        axpby(env, &y, x, [1.0 / self.how.temperature, 0.0])?;
        let [_, lse] = entropy(env, &y, targets, params)?;
        Ok(lse)
    }

    /// The same of logits that are all here.
    fn whole(&self, env: &Env<'_>, [z, t]: [&Tensor; 2], targets: Tensor) -> Result<Found> {
        let params = xent::params(env);
        let [losses, lse] = entropy(env, z, &targets, &params)?;
        let [of_z, of_t] = [z, t].map(|x| self.softened(env, x, (&targets, &params)));
        Ok(Found {
            losses,
            lse,
            rows: Rows([of_z?, of_t?, live(env, &targets)?]),
            targets,
            factor: None,
        })
    }

    /// The same of this rank's columns of them.
    fn parts(
        &self,
        env: &Env<'_>,
        v: &Vocabulary,
        [z, t]: [&Tensor; 2],
        ids: &Tensor,
    ) -> Result<Found> {
        let (n, axis) = (z.shape().rows(), v.axis());
        let targets = v.targets(env, ids, z.shape().last())?;
        let params = v.params();
        let found = entropy(env, z, &targets.forward, &params)?;
        let by = (&targets.forward, &params);
        let [of_z, of_t] = [z, t].map(|x| self.softened(env, x, by));
        let [ranks, at] = [env.groups.size(axis), env.groups.at(axis)].map(u64::from);
        // The logs of all ranks, row by row, three times, and behind them the targets' logits: each rank fills in its own beside zeros.
        let known = env.run.zeros([n * (3 * ranks + 1)], DType::F32)?;
        let logs = |i: u64| known.narrow(0, i * n * ranks, n * ranks).view([n, ranks]);
        let logit = known.narrow(0, 3 * n * ranks, n);
        for (i, own) in (0..).zip([&found[1], &of_z?, &of_t?]) {
            add::copy(env, &logs(i).narrow(1, at, 1), &own.view([n, 1]))?;
        }
        v.logits(env, &logit, &targets.here, &found)?;
        if ranks > 1 {
            env.groups.all_reduce(env.run, LOGS, axis, &known)?;
        }
        // The log of the sum of all exponentials is that of the ranks' sums; their loss against any target is not read.
        let any = env.run.zeros([n], ids.dtype())?;
        let all = |i: u64| -> Result<Tensor> {
            let [_, lse] = entropy(env, &logs(i), &any, &params)?;
            Ok(lse)
        };
        let [losses, lse, factor] = v.losses(env, [&all(0)?, &logit], &targets)?;
        Ok(Found {
            losses,
            lse,
            targets: targets.backward,
            rows: Rows([all(1)?, all(2)?, targets.counts]),
            factor: Some(factor),
        })
    }
}

impl Function for Taught {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let (how, z, t) = (&self.how, ins[0], ins[1]);
        if z.shape() != t.shape() {
            return shape_error(format!(
                "distillation: logits {z:?} of the student, {t:?} of the teacher"
            ));
        }
        let (targets, all) = xent::targets(env, z)?;
        let (z, t) = (z.rows(), t.rows());
        let (n, v) = (z.shape().rows(), z.shape().last());
        let found = match &self.over {
            Some(over) => self.parts(env, over, [&z, &t], &targets)?,
            None => self.whole(env, [&z, &t], targets)?,
        };
        let each = env.run.empty([n, v], DType::F32)?;
        let [ls, lt, counts] = found.rows.over(n, v);
        program(env, &[&each, &z, &t, &ls, &lt, &counts], &how.fwd)?;
        let kl = sum(env, &sum(env, &each)?.view([n]))?;
        if let Some(v) = self.over.as_ref().filter(|v| env.groups.size(v.axis()) > 1) {
            env.groups.all_reduce(env.run, DIVERGENCE, v.axis(), &kl)?;
        }
        let loss = sum(env, &found.losses)?;
        let tau = how.temperature;
        let parts = [how.alpha * tau * tau, 1.0 - how.alpha].map(|x| x / all as f64);
        axpby(env, &loss, &kl, parts)?;
        self.kept = Some(Kept {
            lse: found.lse,
            targets: found.targets,
            rows: found.rows,
            factor: found.factor,
            all,
            params: match &self.over {
                Some(v) => v.params(),
                None => xent::params(env),
            },
        });
        Ok(loss)
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let Some(kept) = &self.kept else {
            return shape_error("distillation: a backward without its forward");
        };
        let (z, t) = (ins[0].rows(), ins[1].rows());
        let (n, v) = (z.shape().rows(), z.shape().last());
        let d = env.run.empty(*ins[0].shape(), z.dtype())?;
        let part = |share: f64| -> Result<Tensor> {
            let g = env.run.empty([1], DType::F32)?;
            axpby(env, &g, dout, [share / kept.all as f64, 0.0])?;
            Ok(g)
        };
        let own = part(1.0 - self.how.alpha)?;
        let own = match self.over.as_ref().zip(kept.factor.as_ref()) {
            Some((v, factor)) => v.gradients(env, factor, &own)?,
            None => own.broadcast_scalar(n),
        };
        let rows = d.rows();
        let operands = [&rows, &z, &kept.lse, &kept.targets, &own].map(Some);
        let params = kept.params.as_bytes();
        env.run
            .launch(op::CROSS_ENTROPY_BWD, &operands, params, &[])?;
        let more = part(self.how.alpha * self.how.temperature)?;
        let more = more.strided([n, v], &[0, 0], 0);
        let [ls, lt, counts] = kept.rows.over(n, v);
        let operands = [&rows, &z, &t, &ls, &lt, &counts, &more];
        program(env, &operands, &self.how.bwd)?;
        Ok(vec![Some(d), None])
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        match ins {
            [z, t] if z == t => Ok(shares(*z)),
            _ => {
                Err("distillation: logits of student and teacher that are split differently".into())
            }
        }
    }
}
