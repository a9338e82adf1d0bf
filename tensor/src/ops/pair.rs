//! Rows of two texts. Such a row of the batch's tokens begins with two words, whether the second text follows the first and how much that counts
//! in the loss, behind which stand a kind for each token and then the tokens; its targets are those of the last columns.

use super::add::copy;
use super::{distill, xent};
use crate::block::Function;
use crate::env::{Env, IGNORED};
use crate::error::{Result, shape_error};
use crate::spmd::{Spmd, shares};
use crate::tape::Var;
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// Words before the kinds.
const WORDS: u64 = 2;

/// Columns of the kinds of a row of `read` tokens, from the first to before the second.
pub fn kinds(read: u64) -> [u64; 2] {
    [WORDS, WORDS + read]
}

/// Columns of the tokens of such a row.
pub fn tokens(read: u64) -> [u64; 2] {
    [WORDS + read, WORDS + 2 * read]
}

/// The first token of each row: `[B, T, d]` to `[B, 1, d]`.
///
/// # Errors
/// A value of another rank; the device.
pub fn first(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    cx.apply(First, &[x])
}

/// Cross-entropy of the two answers, `[B, 1, 2]`: the sum of the rows' losses, each times its weight, over all predictions of the batch, as the
/// loss of its tokens is taken. A row whose answer is [`IGNORED`] does not count.
///
/// # Errors
/// A batch whose rows are not pairs; the device.
pub fn loss(cx: &mut Cx<'_>, answers: Var) -> Result<Var> {
    cx.apply(Loss { kept: None }, &[answers])
}

struct First;

impl Function for First {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let &[b, _, d] = ins[0].shape().dims() else {
            return shape_error(format!("first: {:?} is not [B, T, d]", ins[0]));
        };
        let y = env.run.empty([b, 1, d], ins[0].dtype())?;
        copy(env, &y, &ins[0].narrow(1, 0, 1))?;
        Ok(y)
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let dx = env.run.zeros(*ins[0].shape(), dout.dtype())?;
        copy(env, &dx.narrow(1, 0, 1), dout)?;
        Ok(vec![Some(dx)])
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        Ok(ins[0])
    }
}

/// What its forward leaves to its backward: logs of sums of exponentials, the answers, and the weights.
struct Loss {
    kept: Option<[Tensor; 3]>,
}

/// The words of each row in a column.
fn column(env: &Env<'_>, at: u64) -> Result<Tensor> {
    match env.batch.tokens.as_ref().map(|t| (t, t.shape().dims())) {
        Some((t, &[b, all])) if all > WORDS => {
            let words = env.run.empty([b], t.dtype())?;
            copy(env, &words.view([b, 1]), &t.narrow(1, at, 1))?;
            Ok(words)
        }
        _ => shape_error("pairs: the rows of the batch are not pairs of texts"),
    }
}

/// Predictions of the batch's whole rows.
fn all(env: &Env<'_>) -> f64 {
    let targets = env.batch.targets.as_ref();
    let n = targets.map_or(1, Tensor::numel);
    env.batch.predictions(env.groups, n) as f64
}

fn times(env: &Env<'_>, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let y = env.run.empty(*weights.shape(), DType::F32)?;
    let p = op::KindParams {
        kind: op::binary::MUL,
        ..Default::default()
    };
    let operands = [Some(&y), Some(x), Some(weights)];
    env.run.launch(op::BINARY, &operands, p.as_bytes(), &[])?;
    Ok(y)
}

fn ignoring() -> op::XentParams {
    op::XentParams {
        flags: op::FLAG_HAS_IGNORE,
        ignore: IGNORED,
        ..Default::default()
    }
}

impl Function for Loss {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let (rows, answers, bits) = (ins[0].rows(), column(env, 0)?, column(env, 1)?);
        let n = answers.numel();
        if *rows.shape().dims() != [n, 2] {
            return shape_error(format!("pairs: answers {:?} for {n} rows", ins[0]));
        }
        let weights = Tensor::dense(bits.buffer().clone(), bits.offset(), [n], DType::F32);
        let [losses, lse] = distill::entropy(env, &rows, &answers, &ignoring())?;
        let loss = distill::sum(env, &times(env, &losses, &weights)?)?;
        xent::scale(env.run, &loss, 1.0 / all(env))?;
        self.kept = Some([lse, answers, weights]);
        Ok(loss)
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let Some([lse, answers, weights]) = &self.kept else {
            return shape_error("pairs: a backward without its forward");
        };
        let each = env.run.empty([1], DType::F32)?;
        copy(env, &each, dout)?;
        xent::scale(env.run, &each, 1.0 / all(env))?;
        let each = times(env, &each.broadcast_scalar(weights.numel()), weights)?;
        let d = env.run.empty(*ins[0].shape(), ins[0].dtype())?;
        let (to, from, p) = (d.rows(), ins[0].rows(), ignoring());
        let operands = [&to, &from, lse, answers, &each].map(Some);
        env.run
            .launch(op::CROSS_ENTROPY_BWD, &operands, p.as_bytes(), &[])?;
        drop((to, from));
        Ok(vec![Some(d)])
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        Ok(shares(ins[0]))
    }
}
