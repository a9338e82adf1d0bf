//! A vocabulary that is cut over the ranks of an axis (vocabulary-parallel embedding and cross-entropy, Shoeybi et al. 2019, arXiv 1909.08053, §3):
//! each rank has as many rows of the table, in their order, and the last what is left.
//!
//! Tokens of other ranks' rows look up zeros, and the ranks add what they found. The loss takes each rank's log of its sum of exponentials and the
//! logit of the target, from the rank that has it: one sum of `ranks + 1` numbers a token, whatever the size of the vocabulary.

use super::add;
use crate::env::{Env, IGNORED};
use crate::error::{Result, shape_error};
use crate::param::Pieces;
use crate::{Param, Tensor, Unit};
use crossweave_hal::DType;
use crossweave_hal::abi::op::{self, ProgramDyn, ProgramParams};
use crossweave_mesh::Axis;
use crossweave_program::Prog;
use std::sync::Arc;

/// Rows that a vocabulary may have: ids are shifted as f32, which has every whole number up to here.
pub const MOST: u64 = 1 << 24;

/// The backward's kernel takes one from the gradient at a target, and a row whose target another rank has must lose nothing. So it is given a loss
/// that is smaller by e to this power, under exponentials that are as much larger: its products are the same, and the one that is taken counts nothing.
const FAINT: f32 = 32.0;

/// Rows of a vocabulary that the ranks of an axis have.
#[derive(Clone)]
pub struct Vocabulary {
    axis: Axis,
    ranks: u64,
    rows: u64,
    programs: Arc<Programs>,
}

/// Targets as a rank takes them: among its own rows, those of other ranks being ignored in the forward and any column in the backward; 1 for
/// each that is here, and for each that counts.
pub(super) struct Targets {
    pub(super) forward: Tensor,
    pub(super) backward: Tensor,
    pub(super) here: Tensor,
    pub(super) counts: Tensor,
}

/// What is computed of each token, written once. Scalars: the rank's first row, and how many it has.
struct Programs {
    local: ProgramParams,
    targets: ProgramParams,
    logit: ProgramParams,
    losses: ProgramParams,
    gradient: ProgramParams,
}

impl Programs {
    fn new() -> Programs {
        // Ids among the rank's own rows; of other rows they are outside of these.
        let local = Prog::new(2);
        let one = local.operand(1);
        let local = local.finish(&[one - one.scalar(0)]);
        // See [`Targets`].
        let targets = Prog::new(5);
        let t = targets.operand(4);
        let (zero, one, ignored) = (t.lit(0.0), t.lit(1.0), t.lit(IGNORED as f32));
        let (at, counts) = (t - t.scalar(0), t.less(zero).choose(zero, one));
        let here = at.less(zero).choose(zero, at.less(t.scalar(1))) * counts;
        let elsewhere = counts.choose(zero, ignored);
        let both = [
            here.choose(at, ignored),
            here.choose(at, elsewhere),
            here,
            counts,
        ];
        let targets = targets.finish(&both);
        let logit = Prog::new(4);
        let [here, lse, loss] = [1, 2, 3].map(|i| logit.operand(i));
        let logit = logit.finish(&[here.choose(lse - loss, here.lit(0.0))]);
        // The loss of each token, and the log of the sum that the backward takes.
        let losses = Prog::new(7);
        let [lse, logit_of, here, counts] = [3, 4, 5, 6].map(|i| losses.operand(i));
        let each = counts.choose(lse - logit_of, counts.lit(0.0));
        // What the log loses by rounding is known to the bit, and is made up for in the loss.
        let less = lse - FAINT;
        let lost = (less + FAINT) - lse;
        let factor = (lost + 1.0) * (-FAINT).exp();
        let both = [here.choose(lse, less), here.choose(here.lit(1.0), factor)];
        let losses = losses.finish(&[each, both[0], both[1]]);
        let gradient = Prog::new(3);
        let [factor, loss] = [1, 2].map(|i| gradient.operand(i));
        let gradient = gradient.finish(&[loss * factor]);
        Programs {
            local,
            targets,
            logit,
            losses,
            gradient,
        }
    }
}

fn run(env: &Env<'_>, p: &ProgramParams, operands: &[&Tensor], scalars: &[f32]) -> Result<()> {
    let operands: Vec<_> = operands.iter().map(|t| Some(*t)).collect();
    let scalars = ProgramDyn::new(scalars);
    let id = op::ELEMENTWISE_PROGRAM;
    env.run
        .launch(id, &operands, p.as_bytes(), scalars.as_bytes())
}

fn cast(env: &Env<'_>, x: &Tensor, dtype: DType) -> Result<Tensor> {
    let y = env.run.empty(*x.shape(), dtype)?;
    let none = op::NoParams::default();
    let operands = [Some(&y), Some(x)];
    env.run.launch(op::CAST, &operands, none.as_bytes(), &[])?;
    Ok(y)
}

impl Vocabulary {
    /// `rows` rows over `ranks` ranks.
    pub fn new(axis: Axis, rows: u64, ranks: u64) -> Vocabulary {
        Vocabulary {
            axis,
            ranks,
            rows,
            programs: Arc::new(Programs::new()),
        }
    }

    /// States that the first dim of a parameter is the vocabulary.
    pub fn split(&self, u: &mut Unit<'_>, p: Param) -> Param {
        u.split(p, self.axis, 0, Pieces::One)
    }

    /// The axis.
    pub(super) fn axis(&self) -> Axis {
        self.axis
    }
    /// Rows of all ranks.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// The first row that this rank has.
    pub(super) fn first(&self, env: &Env<'_>) -> u64 {
        let each = self.rows.div_ceil(self.ranks.max(1));
        u64::from(env.groups.at(self.axis)) * each
    }

    /// Does what all ranks have alike go in here, into a sum over them?
    pub(super) fn leads(&self, env: &Env<'_>) -> bool {
        env.groups.at(self.axis) == 0
    }

    /// Ids among this rank's rows, and the first of these.
    pub(super) fn local(&self, env: &Env<'_>, ids: &Tensor) -> Result<(Tensor, i64)> {
        let first = self.first(env);
        let all = self.floats(env, ids)?;
        let own = env.run.empty(*ids.shape(), DType::F32)?;
        run(env, &self.programs.local, &[&own, &all], &[first as f32])?;
        Ok((cast(env, &own, ids.dtype())?, first as i64))
    }

    /// The same of targets, `own` being the rows that this rank has.
    pub(super) fn targets(&self, env: &Env<'_>, ids: &Tensor, own: u64) -> Result<Targets> {
        let all = self.floats(env, ids)?;
        let number = || env.run.empty(*ids.shape(), DType::F32);
        let (forward, backward, here, counts) = (number()?, number()?, number()?, number()?);
        let operands = [&forward, &backward, &here, &counts, &all];
        let scalars = [self.first(env) as f32, own as f32];
        run(env, &self.programs.targets, &operands, &scalars)?;
        Ok(Targets {
            forward: cast(env, &forward, ids.dtype())?,
            backward: cast(env, &backward, ids.dtype())?,
            here,
            counts,
        })
    }

    /// Writes the logit of each target that is here, and 0 of the others, given what the forward made of this rank's logits.
    pub(super) fn logits(
        &self,
        env: &Env<'_>,
        to: &Tensor,
        here: &Tensor,
        [loss, lse]: &[Tensor; 2],
    ) -> Result<()> {
        run(env, &self.programs.logit, &[to, here, lse, loss], &[])
    }

    /// The loss of each row, the log of its sum of exponentials as the backward takes it, and the factor of the loss beside that, given the log and
    /// the target's logit.
    pub(super) fn losses(
        &self,
        env: &Env<'_>,
        [lse, logit]: [&Tensor; 2],
        t: &Targets,
    ) -> Result<[Tensor; 3]> {
        let number = || env.run.empty(*lse.shape(), DType::F32);
        let (each, less, factor) = (number()?, number()?, number()?);
        let operands = [&each, &less, &factor, lse, logit, &t.here, &t.counts];
        run(env, &self.programs.losses, &operands, &[])?;
        Ok([each, less, factor])
    }

    /// The gradient of each row's loss, as the backward takes it.
    pub(super) fn gradients(
        &self,
        env: &Env<'_>,
        factor: &Tensor,
        loss: &Tensor,
    ) -> Result<Tensor> {
        let each = env.run.empty(*factor.shape(), DType::F32)?;
        let loss = loss.broadcast_scalar(factor.numel());
        run(env, &self.programs.gradient, &[&each, factor, &loss], &[])?;
        Ok(each)
    }

    fn floats(&self, env: &Env<'_>, ids: &Tensor) -> Result<Tensor> {
        if self.rows > MOST {
            return shape_error(format!(
                "a vocabulary of {} is cut over ranks; {MOST} is the most that can be",
                self.rows
            ));
        }
        match ids.is_dense() {
            true => cast(env, ids, DType::F32),
            false => {
                let dense = env.run.empty(*ids.shape(), ids.dtype())?;
                add::copy(env, &dense, ids)?;
                cast(env, &dense, DType::F32)
            }
        }
    }
}
