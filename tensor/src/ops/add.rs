//! Addition: residual connections and sums of gradients.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub a: Var,
    pub b: Var,
    pub out: Var,
}

/// `y = a + b`; dense tensors take the fused op, strided ones the primitive.
pub(crate) fn sum(env: &Env<'_>, y: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    if y.is_dense() && a.is_dense() && b.is_dense() {
        return env.run.launch(
            op::ADD,
            &[Some(y), Some(a), Some(b)],
            op::NoParams::default().as_bytes(),
            &[],
        );
    }
    let p = op::KindParams {
        kind: op::binary::ADD,
        ..Default::default()
    };
    env.run
        .launch(op::BINARY, &[Some(y), Some(a), Some(b)], p.as_bytes(), &[])
}

/// `y = x`, any strides.
pub(crate) fn copy(env: &Env<'_>, y: &Tensor, x: &Tensor) -> Result<()> {
    env.run.launch(
        op::COPY_STRIDED,
        &[Some(y), Some(x)],
        op::NoParams::default().as_bytes(),
        &[],
    )
}

pub(crate) fn forward(cx: &mut Cx<'_>, a: Var, b: Var) -> Result<Var> {
    let av = cx.val(a)?;
    let y = cx.env.run.empty(*av.shape(), av.dtype())?;
    record(cx, a, b, y)
}

/// Over the memory of `b`, unless somebody still reads it.
pub(crate) fn forward_into(cx: &mut Cx<'_>, a: Var, b: Var) -> Result<Var> {
    let bv = cx.val(b)?;
    let free = a != b && !cx.tape.vals[b.0 as usize].saved && bv.is_unique() && bv.is_dense();
    if !free {
        return forward(cx, a, b);
    }
    let y = bv.clone();
    let out = record(cx, a, b, y)?;
    // An op that uses `b` now learns that it is gone instead of reading the sum.
    cx.tape.vals[b.0 as usize].tensor = None;
    Ok(out)
}

fn record(cx: &mut Cx<'_>, a: Var, b: Var, y: Tensor) -> Result<Var> {
    let (av, bv) = (cx.val(a)?, cx.val(b)?);
    if av.shape() != bv.shape() || av.dtype() != bv.dtype() {
        return shape_error(format!("add: {av:?} with {bv:?}"));
    }
    sum(cx.env, &y, av, bv)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| {
        c.same("add", &[c.vals[a.0 as usize], c.vals[b.0 as usize]], true)
    });
    cx.push_node(OpNode::Add(Node { a, b, out }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        b.give(self.a, dy.clone())?;
        b.give(self.b, dy)
    }
}
