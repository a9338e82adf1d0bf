//! The loss of a student: `(1 - alpha) CE + alpha tau^2 KL(softmax(t / tau) || softmax(z / tau))`, each a mean over all predictions of which one
//! that does not count adds nothing (Hinton et al. 2015, arXiv 1503.02531). The teacher's logits have no gradient.

use super::{custom, xent};
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
    kept: Option<Kept>,
}

struct Kept {
    lse: Tensor,
    targets: Tensor,
    rows: Rows,
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
    let (how, kept) = (how.clone(), None);
    custom::forward(cx, Box::new(Taught { how, kept }), &both)
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
        let params = xent::params(env);
        let (z, t) = (z.rows(), t.rows());
        let (n, v) = (z.shape().rows(), z.shape().last());
        let [losses, lse] = entropy(env, &z, &targets, &params)?;
        let softened = |x: &Tensor| -> Result<Tensor> {
            let y = env.run.empty([n, v], x.dtype())?;
            axpby(env, &y, x, [1.0 / how.temperature, 0.0])?;
            let [_, lse] = entropy(env, &y, &targets, &params)?;
            Ok(lse)
        };
        let rows = Rows([softened(&z)?, softened(&t)?, live(env, &targets)?]);
        let each = env.run.empty([n, v], DType::F32)?;
        let [ls, lt, counts] = rows.over(n, v);
        program(env, &[&each, &z, &t, &ls, &lt, &counts], &how.fwd)?;
        let kl = sum(env, &sum(env, &each)?.view([n]))?;
        let loss = sum(env, &losses)?;
        let tau = how.temperature;
        let parts = [how.alpha * tau * tau, 1.0 - how.alpha].map(|x| x / all as f64);
        axpby(env, &loss, &kl, parts)?;
        self.kept = Some(Kept {
            lse,
            targets,
            rows,
            all,
            params,
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
        let own = part(1.0 - self.how.alpha)?.broadcast_scalar(n);
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
