//! Split: pieces of the last dim, or of each head of it, as views. No copy forward; backward the pieces' gradients were written into the whole
//! already.

use super::OpNode;
use crate::Cx;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};

pub(crate) struct Node {
    pub x: Var,
    first: u32,
    sizes: Vec<u64>,
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, sizes: &[u64]) -> Result<Vec<Var>> {
    let xv = cx.val(x)?.clone();
    if xv.shape().rank() == 0 || sizes.iter().sum::<u64>() != xv.shape().last() {
        return shape_error(format!("split: pieces {sizes:?} of {xv:?}"));
    }
    let dim = xv.shape().rank() - 1;
    let node = cx.next_node();
    let mut outs = Vec::with_capacity(sizes.len());
    let mut start = 0;
    for len in sizes {
        let v = cx.push_val(
            xv.narrow(dim, start, *len),
            node,
            Origin::Slice {
                parent: x,
                start,
                len: *len,
            },
            false,
        );
        cx.typed(v, |c| c.vals[x.0 as usize]);
        outs.push(v);
        start += len;
    }
    let first = outs.first().map_or(0, |v| v.0);
    cx.push_node(OpNode::Split(Node {
        x,
        first,
        sizes: sizes.to_vec(),
    }));
    Ok(outs)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let pieces: Vec<Var> = (0..self.sizes.len() as u32)
            .map(|i| Var(self.first + i))
            .collect();
        if pieces.iter().all(|v| !b.has(*v)) {
            return Ok(());
        }
        for v in pieces {
            let piece = b.take(v);
            let home = b.dest(v)?;
            match piece {
                Some(t)
                    if std::ptr::eq(t.buffer().as_ref(), home.buffer().as_ref())
                        && t.offset() == home.offset() => {}
                Some(t) => super::add::copy(b.env, &home, &t)?,
                None => b.clear(&home)?,
            }
        }
        match b.take_parts(self.x) {
            Some(whole) => b.give(self.x, whole),
            None => Ok(()),
        }
    }
}

/// `[B, T, heads W]` into pieces of every head, each `[B, T, heads, size]`: the layout of a product whose rows are q, k and v of one head after
/// another.
pub(crate) fn by_heads(cx: &mut Cx<'_>, x: Var, heads: u64, sizes: &[u64]) -> Result<Vec<Var>> {
    let xv = cx.val(x)?.clone();
    let width: u64 = sizes.iter().sum();
    if xv.shape().rank() != 3 || heads == 0 || width * heads != xv.shape().last() {
        return shape_error(format!(
            "split: {heads} heads of pieces {sizes:?} of {xv:?}"
        ));
    }
    let whole = xv.heads(heads);
    let node = cx.next_node();
    let mut outs = Vec::with_capacity(sizes.len());
    let mut start = 0;
    for len in sizes {
        let origin = Origin::Heads {
            parent: x,
            heads,
            start,
            len: *len,
        };
        let v = cx.push_val(whole.narrow(3, start, *len), node, origin, false);
        cx.typed(v, |c| c.vals[x.0 as usize]);
        outs.push(v);
        start += len;
    }
    let first = outs.first().map_or(0, |v| v.0);
    cx.push_node(OpNode::Split(Node {
        x,
        first,
        sizes: sizes.to_vec(),
    }));
    Ok(outs)
}
