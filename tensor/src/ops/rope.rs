//! Rotary positions, in place where nobody else reads the input: the rotation needs none for its backward (the inverse rotation), so the
//! memory of `x` becomes that of `y`.

use super::OpNode;
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
    let fits = d.len() == 3
        && heads > 0
        && d[2] % heads == 0
        && table.len() == 2
        && sin.shape() == cos.shape()
        && table[0] >= d[1]
        && 2 * table[1] <= d[2] / heads;
    if !fits {
        return shape_error(format!(
            "rope: {xv:?} as {heads} heads with tables {cos:?} and {sin:?}"
        ));
    }
    let t = d[1];
    let (cos, sin) = (cos.narrow(0, 0, t), sin.narrow(0, 0, t));
    let in_place = cx.spoil(x, "rope");
    let (y, origin) = if in_place {
        (xv.clone(), Origin::Alias { of: x })
    } else {
        (cx.env.run.empty(*xv.shape(), xv.dtype())?, Origin::Own)
    };
    rotate(cx.env.run, &y, &xv, heads, &cos, &sin, style(interleaved))?;
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
        rotate(
            b.env.run,
            &dx,
            &dy,
            self.heads,
            &self.cos,
            &self.sin,
            style(self.interleaved) | op::FLAG_INVERSE,
        )?;
        drop(dy);
        b.give(self.x, dx)
    }
}
