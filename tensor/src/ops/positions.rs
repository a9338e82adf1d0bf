//! Rows of a table added to values that are there already: learned positions of an embedding that was projected (by place in the row, or by
//! the batch's positions within documents), and the row that all places share (BERT's kind of token).

use super::embedding::{Lookup, add_to_runs, of_runs, positions};
use super::{OpNode, add};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::rows::Runs;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    table: Param,
    /// How positions are looked up; `None`: the first row everywhere.
    form: Option<Lookup>,
}

/// `x` and the first row of `table`.
pub(crate) fn first_row(cx: &mut Cx<'_>, x: Var, table: Param) -> Result<Var> {
    let (xv, tv) = (cx.val(x)?.clone(), cx.param(table)?);
    let &[b, t, d] = xv.shape().dims() else {
        return shape_error(format!("first_row: {xv:?} is not [B, T, d]"));
    };
    if tv.shape().last() != d || tv.dtype() != xv.dtype() {
        return shape_error(format!("first_row: {xv:?} with table {tv:?}"));
    }
    let y = cx.env.run.empty([b, t, d], xv.dtype())?;
    let everywhere = tv.strided([b, t, d], &[0, 0, 1], 0);
    add::sum(cx.env, &y, &xv, &everywhere)?;
    Ok(noted(cx, y, x, table, None))
}

fn noted(cx: &mut Cx<'_>, y: Tensor, x: Var, table: Param, form: Option<Lookup>) -> Var {
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        c.added_rows("positions", x, table.0.into(), None);
        x
    });
    cx.push_node(OpNode::Positions(Node {
        x,
        out,
        table,
        form,
    }));
    out
}

/// What the tokens that are here, `[b, t]` of each row's pieces, read of a table.
struct Places {
    /// All rows that the whole sequences read.
    all: Tensor,
    /// The runs of tokens that are here.
    runs: Runs,
    /// Which of the rows each token reads, where that is not its place in the row.
    at: Option<Tensor>,
}

impl Places {
    fn of(env: &Env<'_>, table: &Tensor, [b, t]: [u64; 2], form: Lookup) -> Result<Places> {
        let (runs, whole) = env.batch.hidden_runs(env.groups, t);
        let all = positions(table, whole, form)?;
        // The batch has positions of the tokens of its rows that are here, of which hidden states may be a piece.
        let [piece, pieces] = env.batch.hidden_piece(env.groups);
        let at = match env.batch.positions_of("positions", [b, t * pieces])? {
            Some(at) if pieces > 1 => {
                let own = env.run.empty([b, t], at.dtype())?;
                add::copy(env, &own, &at.narrow(1, piece * t, t))?;
                Some(own)
            }
            at => at.cloned(),
        };
        Ok(Places { all, runs, at })
    }
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, table: Param, form: Lookup) -> Result<Var> {
    let (xv, tv) = (cx.val(x)?.clone(), cx.param(table)?);
    let &[b, t, d] = xv.shape().dims() else {
        return shape_error(format!("positions: {xv:?} is not [B, T, d]"));
    };
    if tv.shape().last() != d || tv.dtype() != xv.dtype() {
        return shape_error(format!("positions: {xv:?} with table {tv:?}"));
    }
    let rows = Places::of(cx.env, tv, [b, t], form)?;
    let run = cx.env.run;
    let y = run.empty([b, t, d], xv.dtype())?;
    match &rows.at {
        Some(at) => {
            let places = run.empty([b, t, d], rows.all.dtype())?;
            let operands = [Some(&places), Some(&rows.all), Some(at), None];
            let p = op::IndexParams::default();
            run.launch(op::EMBEDDING_FWD, &operands, p.as_bytes(), &[])?;
            add::sum(cx.env, &y, &xv, &places)?;
        }
        None => {
            let own = of_runs(cx.env, &rows.all, &rows.runs)?;
            let all = own.strided([b, t, d], &[0, d as i64, 1], 0);
            add::sum(cx.env, &y, &xv, &all)?;
        }
    }
    Ok(noted(cx, y, x, table, Some(form)))
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
            let all = env.grads.adding(env.run, table)?;
            let scatter = |grad: &Tensor, at: &Tensor| {
                let operands = [Some(grad), None, Some(&dy), Some(at)];
                let p = op::IndexParams::default();
                env.run
                    .launch(op::EMBEDDING_BWD, &operands, p.as_bytes(), &[])
            };
            let found = self.form.map(|form| Places::of(env, all, [n, t], form));
            match found.transpose()? {
                None => scatter(all, &env.run.zeros([n, t], DType::I32)?)?,
                Some(Places {
                    all, at: Some(at), ..
                }) => scatter(&all, &at)?,
                Some(Places { all, runs, .. }) => {
                    for row in 0..n {
                        let one = dy.narrow(0, row, 1);
                        let one = one.strided([t, d], &one.strides()[1..], 0);
                        add_to_runs(env, &all, &one, &runs)?;
                    }
                }
            }
        }
        b.give(self.x, dy)
    }
}
