//! Pieces of every head, laid together: a strided `[B, T, heads, width]` as a dense `[B, T, heads width]`, by a copy. For pieces that hold
//! several query heads each, which no strided view shows one by one.

use super::OpNode;
use super::add::copy;
use crate::Cx;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    heads: u64,
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    let xv = cx.val(x)?.clone();
    let &[b, t, heads, width] = xv.shape().dims() else {
        return shape_error(format!("pack: {xv:?} is not [B, T, heads, width]"));
    };
    let y = cx.env.run.empty([b, t, heads * width], xv.dtype())?;
    copy(cx.env, &y.heads(heads), &xv)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| c.vals[x.0 as usize]);
    cx.push_node(OpNode::Pack(Node { x, out, heads }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let [dx] = b.dests([self.x])?;
        copy(b.env, &dx, &dy.heads(self.heads))?;
        b.give(self.x, dx)
    }
}
