//! Rotary positions, in place: the rotation needs no input for its backward (the inverse rotation), so the memory of `x` becomes that of `y`.

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
    x: &Tensor,
    heads: u64,
    cos: &Tensor,
    sin: &Tensor,
    flags: u32,
) -> Result<()> {
    let h = x.heads(heads);
    let p = op::RopeParams {
        flags,
        ..Default::default()
    };
    run.launch(
        op::ROPE,
        &[Some(&h), Some(&h), Some(cos), Some(sin)],
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
    let d = xv.shape().dims();
    if d.len() != 3 || heads == 0 || d[2] % heads != 0 || cos.shape().dims()[0] < d[1] {
        return shape_error(format!("rope: {xv:?} as {heads} heads with tables {cos:?}"));
    }
    if cx.tape.vals[x.0 as usize].saved {
        return shape_error(
            "rope: its input is read by an earlier op's backward and cannot be rotated in place; rotate before using it",
        );
    }
    let (t, half) = (d[1], cos.shape().last());
    let (cos, sin) = (cos.narrow(0, 0, t), sin.narrow(0, 0, t));
    debug_assert!(2 * half * heads <= d[2]);
    rotate(cx.env.run, &xv, heads, &cos, &sin, style(interleaved))?;
    let node = cx.next_node();
    let out = cx.push_val(xv, node, Origin::Alias { of: x }, false);
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
        // The gradient was written for this op alone (`dest` follows the alias), so it is rotated where it lies.
        rotate(
            b.env.run,
            &dy,
            self.heads,
            &self.cos,
            &self.sin,
            style(self.interleaved) | op::FLAG_INVERSE,
        )?;
        b.give(self.x, dy)
    }
}
