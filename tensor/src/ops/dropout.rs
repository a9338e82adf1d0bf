//! Dropout keyed by counter: the mask is a function of seed, step, unit, op and the element's place in the *global* batch, so recompute and
//! any number of ranks or micro-batches give the same mask, and nothing is stored.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    p: f64,
    op_index: u32,
}

/// One launch when a sequence is whole philox blocks of four, else one per sequence.
fn apply(env: &Env<'_>, y: &Tensor, x: &Tensor, p: f64, op_index: u32) -> Result<()> {
    let params = op::DropoutParams {
        p,
        ..Default::default()
    };
    let sequences = x.shape().dims().first().copied().unwrap_or(1);
    let per_sequence = x.numel().checked_div(sequences).unwrap_or(0);
    let blocks = per_sequence.div_ceil(4);
    let mut key = op::PhiloxDyn {
        seed: env.key.seed,
        stream: env.key.stream(op_index),
        offset: env.key.first_sequence * blocks,
        ..Default::default()
    };
    if per_sequence.is_multiple_of(4) {
        return env.run.launch(
            op::DROPOUT,
            &[Some(y), Some(x), None],
            params.as_bytes(),
            key.as_bytes(),
        );
    }
    for s in 0..sequences {
        key.offset = (env.key.first_sequence + s) * blocks;
        env.run.launch(
            op::DROPOUT,
            &[Some(&y.narrow(0, s, 1)), Some(&x.narrow(0, s, 1)), None],
            params.as_bytes(),
            key.as_bytes(),
        )?;
    }
    Ok(())
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, p: f64) -> Result<Var> {
    if !(0.0..1.0).contains(&p) {
        return shape_error(format!("dropout: probability {p} is not in [0, 1)"));
    }
    if p == 0.0 || !cx.env.training {
        return Ok(x);
    }
    let xv = cx.val(x)?;
    let y = cx.env.run.empty(*xv.shape(), xv.dtype())?;
    let op_index = cx.op_index();
    apply(cx.env, &y, xv, p, op_index)?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| c.same("dropout", &[c.vals[x.0 as usize]], true));
    cx.push_node(OpNode::Dropout(Node {
        x,
        out,
        p,
        op_index,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let dx = if dy.is_unique() && dy.is_dense() {
            dy.clone()
        } else {
            b.env.run.empty(*dy.shape(), dy.dtype())?
        };
        apply(b.env, &dx, &dy, self.p, self.op_index)?;
        drop(dy);
        b.give(self.x, dx)
    }
}
