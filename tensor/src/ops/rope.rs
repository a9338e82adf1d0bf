//! Rotary positions, in place where nobody else reads the input: the rotation needs none for its backward (the inverse rotation), so the
//! memory of `x` becomes that of `y`. Where positions are counted within documents (`Batch::positions`), the angles of each token are gathered
//! first, and all rows are one sequence. Of rows that are cut over ranks each run of tokens is turned by the angles of its places.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    heads: u64,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
}

fn rotate(
    run: &crate::Run<'_>,
    y: &Tensor,
    x: &Tensor,
    heads: u64,
    cos: &Tensor,
    sin: &Tensor,
    flags: u32,
) -> Result<()> {
    let (yh, xh) = (y.heads(heads), x.heads(heads));
    let p = op::RopeParams {
        flags,
        ..Default::default()
    };
    run.launch(
        op::ROPE,
        &[Some(&yh), Some(&xh), Some(cos), Some(sin)],
        p.as_bytes(),
        &[],
    )
}

/// [`rotate`] by the batch's positions, where it has some.
fn turn(
    env: &Env<'_>,
    y: &Tensor,
    x: &Tensor,
    heads: u64,
    [cos, sin]: [&Tensor; 2],
    flags: u32,
) -> Result<()> {
    let d = x.shape().dims();
    let rows = [d[0], d[1]];
    let Some(positions) = env.batch.positions_of("rope", rows)? else {
        let runs = env.batch.runs(env.groups, d[1]);
        for (at, [from, len]) in runs.placed() {
            let [y, x] = [y, x].map(|t| t.narrow(1, at, len));
            let [cos, sin] = [cos, sin].map(|t| t.narrow(0, from, len));
            rotate(env.run, &y, &x, heads, &cos, &sin, flags)?;
        }
        return Ok(());
    };
    let n = positions.numel();
    let at = positions.view([n]);
    let gathered = |table: &Tensor| -> Result<Tensor> {
        let angles = env.run.empty([n, table.shape().last()], table.dtype())?;
        let p = op::IndexParams::default();
        let ops = [Some(&angles), Some(table), Some(&at)];
        env.run.launch(op::GATHER_ROWS, &ops, p.as_bytes(), &[])?;
        Ok(angles)
    };
    let (Some(y), Some(x)) = (y.one_row(), x.one_row()) else {
        return shape_error(format!(
            "rope: the rows of {x:?} do not lie one behind the other, as positions within documents need"
        ));
    };
    rotate(
        env.run,
        &y,
        &x,
        heads,
        &gathered(cos)?,
        &gathered(sin)?,
        flags,
    )
}

fn style(interleaved: bool) -> u32 {
    if interleaved { op::FLAG_INTERLEAVED } else { 0 }
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    x: Var,
    heads: u64,
    cos: &Tensor,
    sin: &Tensor,
    interleaved: bool,
) -> Result<Var> {
    let xv = cx.val(x)?.clone();
    let (d, table) = (xv.shape().dims(), cos.shape().dims());
    let width = match d {
        [_, _, all] if heads > 0 && all % heads == 0 => Some(all / heads),
        [_, _, h, width] if *h == heads => Some(*width),
        _ => None,
    };
    let tokens = match d {
        [_, t, ..] => cx.env.batch.whole(cx.env.groups, *t),
        _ => 0,
    };
    let fits = table.len() == 2
        && sin.shape() == cos.shape()
        && d.len() >= 2
        && table[0] >= tokens
        && width.is_some_and(|w| 2 * table[1] <= w);
    if !fits {
        return shape_error(format!(
            "rope: {xv:?} as {heads} heads with tables {cos:?} and {sin:?}"
        ));
    }
    let (cos, sin) = (cos.narrow(0, 0, tokens), sin.narrow(0, 0, tokens));
    let in_place = cx.spoil(x, "rope");
    let (y, origin) = if in_place {
        (xv.clone(), Origin::Alias { of: x })
    } else {
        (cx.env.run.empty(*xv.shape(), xv.dtype())?, Origin::Own)
    };
    turn(cx.env, &y, &xv, heads, [&cos, &sin], style(interleaved))?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, origin, false);
    cx.typed(out, |c| c.same("rope", &[c.vals[x.0 as usize]], true));
    cx.push_node(OpNode::Rope(Node {
        x,
        out,
        heads,
        cos,
        sin,
        interleaved,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        // `dest` follows the alias, so a gradient that lies in the home of x's was written for this op alone and is rotated where it
        // lies; one that others look at too (both sides of an addition get the same) is rotated into memory of its own.
        let dx = if b.is_home(self.x, &dy) || (dy.is_unique() && dy.is_dense()) {
            dy.clone()
        } else {
            b.env.run.empty(*dy.shape(), dy.dtype())?
        };
        turn(
            b.env,
            &dx,
            &dy,
            self.heads,
            [&self.cos, &self.sin],
            style(self.interleaved) | op::FLAG_INVERSE,
        )?;
        drop(dy);
        b.give(self.x, dx)
    }
}
