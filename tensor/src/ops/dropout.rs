//! Dropout keyed by counter: the mask is a function of seed, step, unit, op and the element's place in the *global* batch, so recompute and
//! any number of ranks or micro-batches give the same mask, and nothing is stored. Where ranks have pieces of the rows
//! ([`crate::Batch::hidden_over`], [`crate::Batch::cut_over`]) a piece's elements have the places that they have in the whole row.

use super::OpNode;
use super::add::copy;
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

/// Elements that one number of the counter gives.
const BLOCK: u64 = 4;

/// One launch when sequences are here as a whole and are whole blocks, else one for each run of tokens of each sequence.
fn apply(env: &Env<'_>, y: &Tensor, x: &Tensor, p: f64, op_index: u32) -> Result<()> {
    let params = op::DropoutParams {
        p,
        ..Default::default()
    };
    let dims = x.shape().dims();
    let [sequences, tokens] = [0, 1].map(|i| dims.get(i).copied().unwrap_or(1));
    let width: u64 = dims.iter().skip(2).product();
    let (runs, whole) = env.batch.hidden_runs(env.groups, tokens);
    let blocks = (whole * width).div_ceil(BLOCK);
    let mut key = op::PhiloxDyn {
        seed: env.key.seed,
        stream: env.key.stream(op_index),
        offset: env.key.first_sequence * blocks,
        ..Default::default()
    };
    let launch = |y: &Tensor, x: &Tensor, key: &op::PhiloxDyn| {
        let operands = [Some(y), Some(x), None];
        env.run
            .launch(op::DROPOUT, &operands, params.as_bytes(), key.as_bytes())
    };
    if whole == tokens && (tokens * width).is_multiple_of(BLOCK) {
        return launch(y, x, &key);
    }
    for s in 0..sequences {
        for (at, [from, len]) in runs.placed() {
            let first = from * width;
            key.offset = (env.key.first_sequence + s) * blocks + first / BLOCK;
            let own = |t: &Tensor| {
                let sequence = t.narrow(0, s, 1);
                match sequence.shape().rank() {
                    1 => sequence,
                    _ => sequence.narrow(1, at, len),
                }
            };
            let (y, x) = (own(y), own(x));
            match first % BLOCK {
                0 => launch(&y, &x, &key)?,
                // The run begins within a block: what of it comes before is dropped or kept, and not looked at.
                before => {
                    let all = env.run.zeros([before + x.numel()], x.dtype())?;
                    let own = all.narrow(0, before, x.numel()).view(*x.shape());
                    copy(env, &own, &x)?;
                    launch(&all, &all, &key)?;
                    copy(env, &y, &own)?;
                }
            }
        }
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
