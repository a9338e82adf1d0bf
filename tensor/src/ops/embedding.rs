//! Token embedding, with learned positions where the model has them.

use super::OpNode;
use crate::error::{Error, Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub out: Var,
    table: Param,
    pos: Option<Param>,
}

fn tokens(batch: &crate::Batch) -> Result<&Tensor> {
    batch
        .tokens
        .as_ref()
        .ok_or_else(|| Error::Shape("embedding: the batch carries no tokens".into()))
}

/// Rows of the position table a sequence of length `t` reads.
fn positions(table: &Tensor, t: u64) -> Result<Tensor> {
    if t > table.shape().dims()[0] {
        return shape_error(format!(
            "embedding: {t} positions but the table has {}; shorten the sequence",
            table.shape().dims()[0]
        ));
    }
    Ok(table.narrow(0, 0, t))
}

pub(crate) fn forward(cx: &mut Cx<'_>, table: Param, pos: Option<Param>) -> Result<Var> {
    let (tv, ids) = (cx.param(table)?, tokens(cx.env.batch)?);
    let (b, t) = (ids.shape().dims()[0], ids.shape().dims()[1]);
    let rows = pos.map(|p| positions(cx.param(p)?, t)).transpose()?;
    let y = cx.env.run.empty([b, t, tv.shape().last()], tv.dtype())?;
    let p = op::IndexParams::default();
    cx.env.run.launch(
        op::EMBEDDING_FWD,
        &[Some(&y), Some(tv), Some(ids), rows.as_ref()],
        p.as_bytes(),
        &[],
    )?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.push_node(OpNode::Embedding(Node { out, table, pos }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let ids = tokens(env.batch)?;
        let wanted = self.pos.filter(|p| env.grads.wants(p.0 as usize));
        let table = self.table.0 as usize;
        if !env.grads.wants(table) && wanted.is_none() {
            return Ok(());
        }
        // A frozen table beside positions that learn: the op writes both, so the table's goes nowhere.
        let dtable = if env.grads.wants(table) {
            env.grads.adding(env.run, table)?.clone()
        } else {
            env.grads.discard(env, table)?
        };
        let dpos = match wanted {
            Some(p) => Some(positions(
                env.grads.adding(env.run, p.0 as usize)?,
                ids.shape().dims()[1],
            )?),
            None => None,
        };
        env.run.launch(
            op::EMBEDDING_BWD,
            &[Some(&dtable), dpos.as_ref(), Some(&dy), Some(ids)],
            op::IndexParams::default().as_bytes(),
            &[],
        )
    }
}
