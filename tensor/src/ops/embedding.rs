//! Token embedding, with learned positions where the model has them: by place in the row, or by the batch's positions within documents.

use super::vocabulary::Vocabulary;
use super::{OpNode, add};
use crate::env::Env;
use crate::error::{Error, Result, shape_error};
use crate::rows::Runs;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::abi::op;

/// How tables are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Tokens of this id add nothing to the table's gradient, as `padding_idx` of `torch.nn.Embedding`.
    pub padding: Option<u64>,
    /// Row of the position table that the first token reads.
    pub first_position: u64,
    /// Columns of the batch's tokens that are looked up, from the first to before the second; 0: to the last.
    pub columns: [u64; 2],
}

impl Lookup {
    /// The tokens that are looked up.
    fn tokens(self, batch: &crate::Batch) -> Result<Tensor> {
        let ids = tokens(batch)?;
        let [from, to] = self.columns;
        let last = ids.shape().last();
        match if to == 0 { last } else { to } {
            to if (from, to) == (0, last) => Ok(ids.clone()),
            to if from < to && to <= last => Ok(ids.narrow(1, from, to - from)),
            to => shape_error(format!(
                "embedding: columns {from} to {to} of tokens {ids:?}"
            )),
        }
    }
}

pub(crate) struct Node {
    pub out: Var,
    table: Param,
    pos: Option<Param>,
    form: Lookup,
    /// Where the table is cut over ranks: ids among the rows that are here, and the first of these.
    local: Option<(Tensor, i64)>,
}

fn tokens(batch: &crate::Batch) -> Result<&Tensor> {
    batch
        .tokens
        .as_ref()
        .ok_or_else(|| Error::Shape("embedding: the batch carries no tokens".into()))
}

/// Rows of the position table that sequences of length `t` read.
pub(super) fn positions(table: &Tensor, t: u64, form: Lookup) -> Result<Tensor> {
    let (first, rows) = (form.first_position, table.shape().dims()[0]);
    if t + first > rows {
        return shape_error(format!(
            "embedding: {t} positions but the table has {}; shorten the sequence",
            rows.saturating_sub(first)
        ));
    }
    Ok(table.narrow(0, first, t))
}

/// Those of the tokens that are here, one behind the other: a view, or where they are two runs of their rows a copy.
pub(super) fn of_runs(env: &Env<'_>, rows: &Tensor, runs: &Runs) -> Result<Tensor> {
    if let Some([from, len]) = runs.one() {
        return Ok(rows.narrow(0, from, len));
    }
    let tokens = runs.iter().map(|[_, len]| len).sum();
    let all = env.run.empty([tokens, rows.shape().last()], rows.dtype())?;
    for (at, [from, len]) in runs.placed() {
        add::copy(env, &all.narrow(0, at, len), &rows.narrow(0, from, len))?;
    }
    Ok(all)
}

/// The rows of the position table for the `t` tokens of each row that are here: all of them, where the batch has positions within documents.
fn own_positions(env: &Env<'_>, table: &Tensor, t: u64, form: Lookup) -> Result<Tensor> {
    let rows = positions(table, env.batch.whole(env.groups, t), form)?;
    match env.batch.positions {
        Some(_) => Ok(rows),
        None => of_runs(env, &rows, &env.batch.runs(env.groups, t)),
    }
}

/// Adds what was summed for the rows of [`of_runs`] to those of the table's gradient.
pub(super) fn add_to_runs(env: &Env<'_>, grad: &Tensor, own: &Tensor, runs: &Runs) -> Result<()> {
    let p = op::AxpbyParams {
        alpha: 1.0,
        beta: 1.0,
        ..Default::default()
    };
    for (at, [from, len]) in runs.placed() {
        let (to, part) = (grad.narrow(0, from, len), own.narrow(0, at, len));
        let operands = [Some(&to), Some(&part)];
        env.run.launch(op::AXPBY, &operands, p.as_bytes(), &[])?;
    }
    Ok(())
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    table: Param,
    pos: Option<Param>,
    form: Lookup,
    over: Option<&Vocabulary>,
) -> Result<Var> {
    let (tv, all) = (cx.param(table)?, form.tokens(cx.env.batch)?);
    let local = over.map(|v| v.local(cx.env, &all)).transpose()?;
    let ids = local.as_ref().map_or(&all, |(ids, _)| ids);
    let (b, t) = (ids.shape().dims()[0], ids.shape().dims()[1]);
    let rows = pos.map(|p| own_positions(cx.env, cx.param(p)?, t, form));
    let rows = rows.transpose()?;
    // Of ranks whose lookups are added one adds the positions; each has their whole gradient.
    let rows = rows.filter(|_| over.is_none_or(|v| v.leads(cx.env)));
    let (run, shape) = (cx.env.run, [b, t, tv.shape().last()]);
    let y = run.empty(shape, tv.dtype())?;
    let p = op::IndexParams::default();
    let look_up = |y: &Tensor, table: &Tensor, ids: &Tensor, rows: Option<&Tensor>| {
        let ops = [Some(y), Some(table), Some(ids), rows];
        run.launch(op::EMBEDDING_FWD, &ops, p.as_bytes(), &[])
    };
    match (&rows, cx.env.batch.positions_of("embedding", [b, t])?) {
        (Some(rows), Some(at)) => {
            let places = run.empty(shape, rows.dtype())?;
            look_up(&y, tv, ids, None)?;
            look_up(&places, rows, at, None)?;
            add::sum(cx.env, &y, &y, &places)?;
        }
        _ => look_up(&y, tv, ids, rows.as_ref())?,
    }
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    let axis = over.map(Vocabulary::axis);
    cx.typed(out, |c| {
        let y = c.table("embedding", c.batch, table.0.into(), axis);
        pos.iter()
            .for_each(|p| c.added_rows("embedding", y, p.0.into(), axis));
        y
    });
    cx.push_node(OpNode::Embedding(Node {
        out,
        table,
        pos,
        form,
        local,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let (ids, first) = match &self.local {
            Some((ids, first)) => (ids.clone(), *first),
            None => (self.form.tokens(env.batch)?, 0),
        };
        let ids = &ids;
        let wanted = self.pos.filter(|p| env.grads.wants(p.0 as usize));
        let table = self.table.0 as usize;
        if !env.grads.wants(table) && wanted.is_none() {
            return Ok(());
        }
        let all = op::IndexParams::default();
        let p = match self.form.padding {
            Some(id) => op::IndexParams {
                flags: op::FLAG_HAS_IGNORE,
                ignore: id as i64 - first,
                ..all
            },
            None => all,
        };
        if let (Some(pos), Some(at)) = (self.pos, &env.batch.positions) {
            let t = ids.shape().dims()[1];
            let sums = |p: Param| env.grads.adding(env.run, p.0 as usize);
            let scatter = |dtable: &Tensor, at: &Tensor, p: op::IndexParams| {
                let ops = [Some(dtable), None, Some(&dy), Some(at)];
                env.run.launch(op::EMBEDDING_BWD, &ops, p.as_bytes(), &[])
            };
            if env.grads.wants(table) {
                scatter(sums(self.table)?, ids, p)?;
            }
            if wanted.is_some() {
                let t = env.batch.whole(env.groups, t);
                scatter(&positions(sums(pos)?, t, self.form)?, at, all)?;
            }
            return Ok(());
        }
        // A frozen table beside positions that learn: the op writes both, so the table's goes nowhere.
        let dtable = if env.grads.wants(table) {
            env.grads.adding(env.run, table)?.clone()
        } else {
            env.grads.discard(env, table)?
        };
        // The whole gradient, and of it the rows of the tokens that are here: a view, or where these are two runs memory to be added to it.
        let t = ids.shape().dims()[1];
        let runs = env.batch.runs(env.groups, t);
        let dpos = match wanted {
            Some(p) => {
                let all = env.grads.adding(env.run, p.0 as usize)?;
                let all = positions(all, env.batch.whole(env.groups, t), self.form)?;
                let own = match runs.one() {
                    Some([from, len]) => all.narrow(0, from, len),
                    None => env.run.zeros([t, all.shape().last()], all.dtype())?,
                };
                Some((all, own))
            }
            None => None,
        };
        let own = dpos.as_ref().map(|(_, own)| own);
        env.run.launch(
            op::EMBEDDING_BWD,
            &[Some(&dtable), own, Some(&dy), Some(ids)],
            p.as_bytes(),
            &[],
        )?;
        match dpos {
            Some((all, own)) if runs.one().is_none() => add_to_runs(env, &all, &own, &runs),
            _ => Ok(()),
        }
    }
}

impl Vocabulary {
    /// What the tokens of the batch look up ([`Cx::embedding_as`]): on every rank, or of tokens that are cut over the ranks each its own.
    ///
    /// # Errors
    /// Shapes that do not fit; the ranks; the device.
    pub fn embedding(
        &self,
        cx: &mut Cx<'_>,
        table: Param,
        pos: Option<Param>,
        form: Lookup,
    ) -> Result<Var> {
        let found = forward(cx, table, pos, form, Some(self))?;
        match cx.env.batch.hidden_over.contains(self.axis()) {
            true => cx.scatter(found, self.axis(), 1),
            false => cx.reduce(found, self.axis()),
        }
    }
}
