//! Linear: `y = x W^T (+ b)`; several weights that lie one after another in the unit's flat buffer run as one product.
//!
//! Weight gradients accumulate in the product itself, straight into the unit's flat gradient.

use super::OpNode;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    w: Vec<Param>,
    b: Vec<Param>,
    /// `W [in, out]` instead of `[out, in]`.
    conv1d: bool,
}

/// One matrix over parameters that lie end to end (same width), `None` when they do not.
fn fuse(parts: &[&Tensor]) -> Option<Tensor> {
    let first = parts[0];
    let mut at = first.offset();
    let mut rows = 0;
    for p in parts {
        if !std::ptr::eq(p.buffer().as_ref(), first.buffer().as_ref())
            || p.offset() != at
            || p.shape().dims()[1..] != first.shape().dims()[1..]
        {
            return None;
        }
        at += p.dtype().bytes(p.numel());
        rows += p.shape().dims()[0];
    }
    let mut dims = [0; 6];
    let n = first.shape().rank();
    dims[..n].copy_from_slice(first.shape().dims());
    dims[0] = rows;
    Some(Tensor::dense(
        first.buffer().clone(),
        first.offset(),
        &dims[..n],
        first.dtype(),
    ))
}

fn fused(parts: &[&Tensor], what: &str) -> Result<Tensor> {
    match fuse(parts) {
        Some(t) => Ok(t),
        None => shape_error(format!(
            "linear: the {what} of a fused product must be declared one after another with the same input width, got {parts:?}"
        )),
    }
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    x: Var,
    w: &[Param],
    b: &[Param],
    conv1d: bool,
) -> Result<Var> {
    if w.is_empty() || !(b.is_empty() || b.len() == w.len()) {
        return shape_error(format!(
            "linear: {} weights with {} biases",
            w.len(),
            b.len()
        ));
    }
    let weight = fused(
        &w.iter().map(|p| cx.param(*p)).collect::<Result<Vec<_>>>()?,
        "weights",
    )?;
    let bias = if b.is_empty() {
        None
    } else {
        Some(fused(
            &b.iter().map(|p| cx.param(*p)).collect::<Result<Vec<_>>>()?,
            "biases",
        )?)
    };
    let xv = cx.val(x)?;
    let kn = if conv1d { weight.clone() } else { weight.t() };
    let (k, n) = (kn.shape().dims()[0], kn.shape().dims()[1]);
    if xv.shape().last() != k || bias.as_ref().is_some_and(|b| b.numel() != n) {
        return shape_error(format!(
            "linear: input {xv:?} against weight {weight:?}{}",
            bias.map_or(String::new(), |b| format!(" and bias {b:?}"))
        ));
    }
    let y = cx.env.run.empty(xv.shape().with_last(n), xv.dtype())?;
    let p = op::MatmulParams::default();
    cx.env.run.launch(
        op::MATMUL,
        &[Some(&y.rows()), Some(&xv.rows()), Some(&kn), bias.as_ref()],
        p.as_bytes(),
        &[],
    )?;
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.save(x);
    let (w0, out_dim) = (w[0].0 as usize, conv1d as u8);
    cx.typed(out, |c| c.linear(c.vals[x.0 as usize], w0, out_dim));
    cx.push_node(OpNode::Linear(Node {
        x,
        out,
        w: w.to_vec(),
        b: b.to_vec(),
        conv1d,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let x = b.val(self.x, nodes)?;
        let (dy2, x2) = (dy.rows(), x.rows());
        // dW first: it is the last reader of x, and dx may then reuse cache.
        let parts: Vec<(&Tensor, bool)> = self
            .w
            .iter()
            .map(|p| env.grads.slot(p.0 as usize))
            .collect::<Result<_>>()?;
        let accum = parts[0].1;
        let whole = fuse(&parts.iter().map(|p| p.0).collect::<Vec<_>>())
            .filter(|_| parts.iter().all(|p| p.1 == accum));
        let Some(dw) = whole else {
            return shape_error("linear: the gradients of a fused product do not lie end to end");
        };
        let p = op::MatmulParams {
            flags: if accum { op::FLAG_ACCUM } else { 0 },
            ..Default::default()
        };
        let (a, bm) = if self.conv1d {
            (x2.t(), &dy2)
        } else {
            (dy2.t(), &x2)
        };
        env.run.launch(
            op::MATMUL,
            &[Some(&dw), Some(&a), Some(bm), None],
            p.as_bytes(),
            &[],
        )?;
        if !self.b.is_empty() {
            let parts: Vec<(&Tensor, bool)> = self
                .b
                .iter()
                .map(|p| env.grads.slot(p.0 as usize))
                .collect::<Result<_>>()?;
            let db = fused(
                &parts.iter().map(|p| p.0).collect::<Vec<_>>(),
                "bias gradients",
            )?;
            let n = db.numel();
            let p = op::ReduceParams {
                kind: op::reduce::SUM,
                axes: 1,
                flags: if parts[0].1 { op::FLAG_ACCUM } else { 0 },
                ..Default::default()
            };
            env.run.launch(
                op::REDUCE,
                &[Some(&db.view([1, n])), Some(&dy2)],
                p.as_bytes(),
                &[],
            )?;
        }
        let weight = fused(
            &self
                .w
                .iter()
                .map(|p| &env.params[p.0 as usize])
                .collect::<Vec<_>>(),
            "weights",
        )?;
        let nk = if self.conv1d { weight.t() } else { weight };
        // dx adds to a gradient that is already there, unless others look at its bytes.
        let old = b.take(self.x);
        let (dx, add) = match old {
            Some(t) if t.is_unique() && t.shape().rank() > 0 => (t, true),
            Some(t) => {
                b.give(self.x, t)?;
                (env.run.empty(*x.shape(), x.dtype())?, false)
            }
            None => (b.dest(self.x)?, false),
        };
        let p = op::MatmulParams {
            flags: if add { op::FLAG_ACCUM } else { 0 },
            ..Default::default()
        };
        env.run.launch(
            op::MATMUL,
            &[Some(&dx.rows()), Some(&dy2), Some(&nk), None],
            p.as_bytes(),
            &[],
        )?;
        b.give(self.x, dx)
    }
}
