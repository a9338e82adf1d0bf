//! Transitions of tensor parallelism, forward beside backward: `enter` (I -> R, backward all-reduces) and `reduce` (P -> I, backward identity).

use super::OpNode;
use crate::env::Env;
use crate::error::Result;
use crate::spmd::{Said, Ty};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_mesh::Axis;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    axis: Axis,
}

/// A sum over the axis that leaves the input's bytes alone.
fn summed(env: &Env<'_>, x: &Tensor, axis: Axis) -> Result<Tensor> {
    let y = env.run.empty(*x.shape(), x.dtype())?;
    super::add::copy(env, &y, x)?;
    env.groups.all_reduce(env.run, axis, &y)?;
    Ok(y)
}

/// What the dry run notes of a sum over an axis.
fn collective(axis: Axis, elements: u64) -> impl Fn(&'static str, bool) -> Said {
    move |op, backward| Said {
        op,
        axis,
        backward,
        elements,
    }
}

pub(crate) fn enter(cx: &mut Cx<'_>, x: Var, axis: Axis) -> Result<Var> {
    let t = cx.val(x)?.clone();
    let said = collective(axis, t.numel());
    let node = cx.next_node();
    let out = cx.push_val(t, node, Origin::Own, false);
    cx.typed(out, |c| {
        c.said.push(said("enter", true));
        c.step("enter", c.vals[x.0 as usize], axis, Ty::I, Ty::R)
    });
    cx.push_node(OpNode::Enter(Node { x, out, axis }));
    Ok(out)
}

pub(crate) fn reduce(cx: &mut Cx<'_>, x: Var, axis: Axis) -> Result<Var> {
    let partial = cx.val(x)?.clone();
    // No backward reads the summands, so their memory takes the sum.
    let free = cx.env.groups.size(axis) > 1 && partial.is_dense() && cx.spoil(x, "reduce");
    let y = match (cx.env.groups.size(axis), free) {
        (1, _) => partial,
        (_, true) => {
            cx.env.groups.all_reduce(cx.env.run, axis, &partial)?;
            partial
        }
        (_, false) => summed(cx.env, &partial, axis)?,
    };
    let said = collective(axis, y.numel());
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| {
        c.said.push(said("reduce", false));
        c.step("reduce", c.vals[x.0 as usize], axis, Ty::P, Ty::I)
    });
    cx.push_node(OpNode::Reduce(Node { x, out, axis }));
    Ok(out)
}

impl Node {
    pub fn enter_backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let dx = if b.env.groups.size(self.axis) == 1 {
            dy
        } else if dy.is_unique() && dy.is_dense() {
            b.env.groups.all_reduce(b.env.run, self.axis, &dy)?;
            dy
        } else {
            summed(b.env, &dy, self.axis)?
        };
        b.give(self.x, dx)
    }
    pub fn reduce_backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        b.give(self.x, dy)
    }
}
