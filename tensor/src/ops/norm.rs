//! Layer norm and RMS norm over the last dim. The backward takes the residual branch's gradient with it (one pass instead of two).

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    w: Param,
    b: Option<Param>,
    eps: f64,
    /// RMS norm has no mean.
    mean: Option<Tensor>,
    rstd: Tensor,
}

fn checked<'a>(
    cx: &Cx<'a>,
    op: &str,
    x: Var,
    w: Param,
    b: Option<Param>,
) -> Result<(Tensor, &'a Tensor, Option<&'a Tensor>)> {
    let (xv, wv) = (cx.val(x)?.clone(), cx.param(w)?);
    let bv = b.map(|b| cx.param(b)).transpose()?;
    if wv.numel() != xv.shape().last() || bv.is_some_and(|b| b.numel() != wv.numel()) {
        return shape_error(format!("{op}: input {xv:?} with weight {wv:?}"));
    }
    Ok((xv, wv, bv))
}

pub(crate) fn layer_norm(
    cx: &mut Cx<'_>,
    x: Var,
    w: Param,
    b: Option<Param>,
    eps: f64,
) -> Result<Var> {
    let (xv, ..) = checked(cx, "layer_norm", x, w, b)?;
    let rows = xv.shape().rows();
    let mean = cx.env.run.empty([rows], DType::F32)?;
    let rstd = cx.env.run.empty([rows], DType::F32)?;
    record(cx, x, xv, w, b, eps, Some(mean), rstd, "layer_norm")
}

pub(crate) fn rms_norm(cx: &mut Cx<'_>, x: Var, w: Param, eps: f64) -> Result<Var> {
    let (xv, ..) = checked(cx, "rms_norm", x, w, None)?;
    let rstd = cx.env.run.empty([xv.shape().rows()], DType::F32)?;
    record(cx, x, xv, w, None, eps, None, rstd, "rms_norm")
}

#[allow(clippy::too_many_arguments)]
fn record(
    cx: &mut Cx<'_>,
    x: Var,
    xv: Tensor,
    w: Param,
    b: Option<Param>,
    eps: f64,
    mean: Option<Tensor>,
    rstd: Tensor,
    name: &str,
) -> Result<Var> {
    let mut n = Node {
        x,
        out: x,
        w,
        b,
        eps,
        mean,
        rstd,
    };
    let y = n.rerun(cx.env, &xv)?;
    let node = cx.next_node();
    n.out = cx.push_val(y, node, Origin::Own, true);
    cx.save(x);
    let out = n.out;
    cx.typed(out, |c| c.same(name, &[c.vals[x.0 as usize]], false));
    cx.push_node(OpNode::Norm(n));
    Ok(out)
}

impl Node {
    /// Output and statistics from the input (the statistics come out the same, bit for bit).
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let p = op::NormParams {
            eps: self.eps,
            ..Default::default()
        };
        let (y2, x2, w) = (y.rows(), x.rows(), &env.params[self.w.0 as usize]);
        match &self.mean {
            Some(mean) => {
                let b = self.b.map(|b| &env.params[b.0 as usize]);
                env.run.launch(
                    op::LAYER_NORM_FWD,
                    &[
                        Some(&y2),
                        Some(mean),
                        Some(&self.rstd),
                        Some(&x2),
                        Some(w),
                        b,
                    ],
                    p.as_bytes(),
                    &[],
                )?;
            }
            None => env.run.launch(
                op::RMS_NORM_FWD,
                &[Some(&y2), Some(&self.rstd), Some(&x2), Some(w)],
                p.as_bytes(),
                &[],
            )?,
        }
        Ok(y)
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let x = b.val(self.x, nodes)?;
        // The residual branch has usually brought its gradient already: it is added in the same pass.
        let dres = b.take(self.x);
        let dx = match &dres {
            Some(r) if r.is_unique() && r.is_dense() => r.clone(),
            _ if dy.is_unique() && dy.is_dense() && dres.is_some() => dy.clone(),
            Some(_) => env.run.empty(*x.shape(), x.dtype())?,
            None => b.dest(self.x)?,
        };
        let p = op::NormParams {
            eps: self.eps,
            ..Default::default()
        };
        let (dx2, dy2, x2, dres2) = (
            dx.rows(),
            dy.rows(),
            x.rows(),
            dres.as_ref().map(Tensor::rows),
        );
        let w = &env.params[self.w.0 as usize];
        let dw = &grad_of(env, self.w)?;
        match &self.mean {
            Some(mean) => {
                let db = self.b.map(|b| grad_of(env, b)).transpose()?;
                let o = [
                    Some(&dx2),
                    Some(dw),
                    db.as_ref(),
                    Some(&dy2),
                    Some(&x2),
                    Some(w),
                    Some(mean),
                    Some(&self.rstd),
                    dres2.as_ref(),
                ];
                env.run.launch(op::LAYER_NORM_BWD, &o, p.as_bytes(), &[])?;
            }
            None => {
                let o = [
                    Some(&dx2),
                    Some(dw),
                    Some(&dy2),
                    Some(&x2),
                    Some(w),
                    Some(&self.rstd),
                    dres2.as_ref(),
                ];
                env.run.launch(op::RMS_NORM_BWD, &o, p.as_bytes(), &[])?;
            }
        }
        drop(dres);
        b.give(self.x, dx)
    }
}

/// Where the gradient of a scale or shift is added; the op makes them together with dx, so a frozen one's goes nowhere.
fn grad_of(env: &Env<'_>, p: Param) -> Result<Tensor> {
    let i = p.0 as usize;
    if env.grads.wants(i) {
        env.grads.adding(env.run, i).cloned()
    } else {
        env.grads.discard(env, i)
    }
}
