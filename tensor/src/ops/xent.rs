//! Mean next-token cross-entropy, over all predictions: one that does not count adds nothing to the sum, and who knows how many count on all
//! ranks scales the mean (`crossweave_engine::Engine::count_targets`). The backward overwrites the logits with their gradient where nobody else reads them: one buffer
//! of `[n, V]`, not three.

use super::vocabulary::Vocabulary;
use super::{OpNode, add};
use crate::env::{Env, IGNORED};
use crate::error::{Error, Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub logits: Var,
    pub out: Var,
    kept: Kept,
}

/// What the forward leaves to the backward.
pub(super) struct Kept {
    pub(super) lse: Tensor,
    pub(super) targets: Tensor,
    /// What the sum is divided by.
    pub(super) all: u64,
    pub(super) params: op::XentParams,
    /// Where the vocabulary is cut over ranks: it, and the factor of each row's loss.
    pub(super) share: Option<(Vocabulary, Tensor)>,
}

/// The targets of logits, one a row, and how many predictions the batch's whole rows have: of fewer logits than targets they are those of
/// the last columns.
pub(super) fn targets(env: &Env<'_>, logits: &Tensor) -> Result<(Tensor, u64)> {
    let Some(targets) = &env.batch.targets else {
        return Err(Error::Shape(
            "cross_entropy: the batch carries no targets".into(),
        ));
    };
    let (n, all) = (logits.shape().rows(), targets.numel());
    let whole = env.batch.predictions(env.groups, all);
    match (logits.shape().dims(), targets.shape().dims()) {
        _ if all == n && n > 0 => Ok((targets.view([n]), whole)),
        (&[b, t, _], &[same, longer]) if b == same && t > 0 && t < longer => {
            let last = env.run.empty([b, t], targets.dtype())?;
            add::copy(env, &last, &targets.narrow(1, longer - t, t))?;
            Ok((last.view([n]), whole))
        }
        _ => shape_error(format!(
            "cross_entropy: logits {logits:?} with targets {targets:?}"
        )),
    }
}

/// Whether targets may be ignored.
pub(super) fn params(env: &Env<'_>) -> op::XentParams {
    match env.batch.ignores {
        true => op::XentParams {
            flags: op::FLAG_HAS_IGNORE,
            ignore: IGNORED,
            ..Default::default()
        },
        false => op::XentParams::default(),
    }
}

pub(crate) fn forward(cx: &mut Cx<'_>, logits: Var) -> Result<Var> {
    let (lv, run) = (cx.val(logits)?, cx.env.run);
    let (targets, all) = targets(cx.env, lv)?;
    let n = lv.shape().rows();
    let losses = run.empty([n], DType::F32)?;
    let lse = run.empty([n], DType::F32)?;
    let params = params(cx.env);
    run.launch(
        op::CROSS_ENTROPY_FWD,
        &[Some(&losses), Some(&lse), Some(&lv.rows()), Some(&targets)],
        params.as_bytes(),
        &[],
    )?;
    let loss = run.empty([1], DType::F32)?;
    let p = op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1,
        ..Default::default()
    };
    run.launch(op::REDUCE, &[Some(&loss), Some(&losses)], p.as_bytes(), &[])?;
    scale(run, &loss, 1.0 / all as f64)?;
    let kept = Kept {
        lse,
        targets,
        all,
        params,
        share: None,
    };
    let out = noted(cx, logits, loss, kept);
    cx.typed(out, |c| c.mean("cross_entropy", c.vals[logits.0 as usize]));
    Ok(out)
}

/// Records the loss.
pub(super) fn noted(cx: &mut Cx<'_>, logits: Var, loss: Tensor, kept: Kept) -> Var {
    let node = cx.next_node();
    let out = cx.push_val(loss, node, Origin::Own, false);
    cx.save(logits);
    cx.push_node(OpNode::Xent(Node { logits, out, kept }));
    out
}

pub(super) fn scale(run: &crate::Run<'_>, t: &Tensor, by: f64) -> Result<()> {
    let d = op::ScaleDyn {
        scale: by,
        ..Default::default()
    };
    run.launch(
        op::MULTI_SCALE,
        &[None, Some(t)],
        op::NoParams::default().as_bytes(),
        d.as_bytes(),
    )
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let in_place = b.may_spoil(self.logits, nodes);
        let logits = b.val(self.logits, nodes)?;
        let dlogits = if in_place && !b.has(self.logits) {
            logits.clone()
        } else {
            b.env.run.empty(*logits.shape(), logits.dtype())?
        };
        let n = logits.shape().rows();
        let run = b.env.run;
        let dloss = run.empty([1], DType::F32)?;
        add::copy(b.env, &dloss, &dy)?;
        scale(run, &dloss, 1.0 / self.kept.all as f64)?;
        let each = match &self.kept.share {
            Some((vocabulary, factor)) => vocabulary.gradients(b.env, factor, &dloss)?,
            None => dloss.broadcast_scalar(n),
        };
        let (l2, d2) = (logits.rows(), dlogits.rows());
        let ops = [
            Some(&d2),
            Some(&l2),
            Some(&self.kept.lse),
            Some(&self.kept.targets),
            Some(&each),
        ];
        run.launch(
            op::CROSS_ENTROPY_BWD,
            &ops,
            self.kept.params.as_bytes(),
            &[],
        )?;
        drop((l2, d2, logits));
        b.give(self.logits, dlogits)
    }
}
