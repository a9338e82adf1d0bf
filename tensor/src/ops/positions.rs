//! Learned positions added to values that are there already (an embedding that was projected): rows of the table by place in the row, or by
//! the batch's positions within documents.

use super::embedding::{Lookup, positions};
use super::{OpNode, add};
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    table: Param,
    form: Lookup,
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, table: Param, form: Lookup) -> Result<Var> {
    let (xv, tv) = (cx.val(x)?.clone(), cx.param(table)?);
    let &[b, t, d] = xv.shape().dims() else {
        return shape_error(format!("positions: {xv:?} is not [B, T, d]"));
    };
    if tv.shape().last() != d || tv.dtype() != xv.dtype() {
        return shape_error(format!("positions: {xv:?} with table {tv:?}"));
    }
    let rows = positions(tv, t, form)?;
    let run = cx.env.run;
    let y = run.empty([b, t, d], xv.dtype())?;
    match cx.env.batch.positions_of("positions", [b, t])? {
        Some(at) => {
            let places = run.empty([b, t, d], rows.dtype())?;
            let operands = [Some(&places), Some(&rows), Some(at), None];
            let p = op::IndexParams::default();
            run.launch(op::EMBEDDING_FWD, &operands, p.as_bytes(), &[])?;
            add::sum(cx.env, &y, &xv, &places)?;
        }
        None => {
            let all = rows.strided([b, t, d], &[0, d as i64, 1], 0);
            add::sum(cx.env, &y, &xv, &all)?;
        }
    }
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| c.vals[x.0 as usize]);
    cx.push_node(OpNode::Positions(Node {
        x,
        out,
        table,
        form,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (env, table) = (b.env, self.table.0 as usize);
        if env.grads.wants(table) {
            let &[n, t, d] = dy.shape().dims() else {
                return shape_error("positions: a gradient of another rank");
            };
            let grad = positions(env.grads.adding(env.run, table)?, t, self.form)?;
            match &env.batch.positions {
                Some(at) => {
                    let operands = [Some(&grad), None, Some(&dy), Some(at)];
                    let p = op::IndexParams::default();
                    env.run
                        .launch(op::EMBEDDING_BWD, &operands, p.as_bytes(), &[])?;
                }
                None => {
                    let p = op::AxpbyParams {
                        alpha: 1.0,
                        beta: 1.0,
                        ..Default::default()
                    };
                    let whole = grad.strided([1, t, d], &[0, d as i64, 1], 0);
                    for row in 0..n {
                        let one = dy.narrow(0, row, 1);
                        let operands = [Some(&whole), Some(&one)];
                        env.run.launch(op::AXPBY, &operands, p.as_bytes(), &[])?;
                    }
                }
            }
        }
        b.give(self.x, dy)
    }
}
