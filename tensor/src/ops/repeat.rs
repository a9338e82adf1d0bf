//! Heads that several ranks use, `[B, T, heads width]` as `[B, T, heads copies width]`: each head so often, one copy behind the other, so that
//! an exchange of equal parts takes one to each of its users (fewer key-value heads than ranks). Backward: the sum of the copies, in order.

use super::OpNode;
use super::add::{copy, sum};
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    heads: u64,
    copies: u64,
}

/// `[B, T, heads width]`, or the same by heads, as `[B, T, heads, width]`.
fn by_heads(x: &Tensor, heads: u64) -> Tensor {
    x.heads(heads)
}

/// One copy of every head of a dense `[B, T, heads copies width]`.
fn one_copy(y: &Tensor, [heads, copies]: [u64; 2], at: u64) -> Tensor {
    let [b, t, all] = [0, 1, 2].map(|i| y.shape().dims()[i]);
    let width = all / (heads * copies);
    let stride = [t * all, all, copies * width, 1].map(|n| n as i64);
    y.strided([b, t, heads, width], &stride, at * width)
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, heads: u64, copies: u64) -> Result<Var> {
    let xv = cx.val(x)?.clone();
    let fits = match *xv.shape().dims() {
        [_, _, all] => heads > 0 && all.is_multiple_of(heads),
        [_, _, h, _] => h == heads,
        _ => false,
    };
    if !fits || copies == 0 {
        return shape_error(format!("repeat: {xv:?} as {heads} heads, {copies} times"));
    }
    let from = by_heads(&xv, heads);
    let [b, t, h, width] = [0, 1, 2, 3].map(|i| from.shape().dims()[i]);
    let y = cx.env.run.empty([b, t, h * copies * width], xv.dtype())?;
    for at in 0..copies {
        copy(cx.env, &one_copy(&y, [heads, copies], at), &from)?;
    }
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| c.vals[x.0 as usize]);
    cx.push_node(OpNode::Repeat(Node {
        x,
        out,
        heads,
        copies,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let dy = match dy.is_dense() {
            true => dy,
            false => {
                let dense = b.env.run.empty(*dy.shape(), dy.dtype())?;
                copy(b.env, &dense, &dy)?;
                dense
            }
        };
        let [dx] = b.dests([self.x])?;
        let (to, sizes) = (by_heads(&dx, self.heads), [self.heads, self.copies]);
        let copies = |at: u64| one_copy(&dy, sizes, at);
        match self.copies {
            1 => copy(b.env, &to, &copies(0))?,
            n => {
                // Sums are dense, and where they go may be a slice of the gradient of a fused product.
                let all = b.env.run.empty(*to.shape(), to.dtype())?;
                sum(b.env, &all, &copies(0), &copies(1))?;
                for at in 2..n {
                    sum(b.env, &all, &all, &copies(at))?;
                }
                copy(b.env, &to, &all)?;
            }
        }
        b.give(self.x, dx)
    }
}
