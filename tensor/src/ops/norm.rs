//! Layer norm and RMS norm over the last dim, or over each head of it. The backward takes the residual branch's gradient with it (one pass instead of two).

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;
use crossweave_program::Prog;

/// A norm that is not plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormForm {
    /// The scale of an RMS norm is `1 + w` (Gemma).
    pub unit_offset: bool,
    /// The last dim is so many heads, each normed by itself with one `w` of a head's width.
    pub heads: u64,
    /// Every rank along this axis has other heads and the same `w`: its gradient is the sum of theirs.
    pub over: Option<Axis>,
}

impl Default for NormForm {
    fn default() -> Self {
        NormForm {
            unit_offset: false,
            heads: 1,
            over: None,
        }
    }
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    w: Param,
    b: Option<Param>,
    eps: f64,
    /// RMS norm has no mean.
    mean: Option<Tensor>,
    rstd: Tensor,
    form: NormForm,
}

fn checked<'a>(
    cx: &Cx<'a>,
    op: &str,
    x: Var,
    w: Param,
    b: Option<Param>,
    heads: u64,
) -> Result<(Tensor, &'a Tensor, Option<&'a Tensor>)> {
    let (xv, wv) = (cx.val(x)?.clone(), cx.param(w)?);
    let bv = b.map(|b| cx.param(b)).transpose()?;
    let heads_fit = heads == 1 || heads > 1 && xv.is_dense();
    if !heads_fit
        || wv.numel() * heads != xv.shape().last()
        || bv.is_some_and(|b| b.numel() != wv.numel())
    {
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
    form: NormForm,
) -> Result<Var> {
    let (xv, ..) = checked(cx, "layer_norm", x, w, b, form.heads)?;
    let rows = xv.shape().rows() * form.heads;
    let mean = cx.env.run.empty([rows], DType::F32)?;
    let rstd = cx.env.run.empty([rows], DType::F32)?;
    record(cx, x, xv, w, b, eps, Some(mean), rstd, form, "layer_norm")
}

pub(crate) fn rms_norm(cx: &mut Cx<'_>, x: Var, w: Param, eps: f64, form: NormForm) -> Result<Var> {
    let (xv, ..) = checked(cx, "rms_norm", x, w, None, form.heads)?;
    let rows = xv.shape().rows() * form.heads;
    let rstd = cx.env.run.empty([rows], DType::F32)?;
    record(cx, x, xv, w, None, eps, None, rstd, form, "rms_norm")
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
    form: NormForm,
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
        form,
    };
    let y = n.rerun(cx.env, &xv)?;
    let node = cx.next_node();
    n.out = cx.push_val(y, node, Origin::Own, true);
    cx.save(x);
    let out = n.out;
    let ps: Vec<usize> = [Some(w), b]
        .into_iter()
        .flatten()
        .map(|p| p.0.into())
        .collect();
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        c.with_params(name, x, &ps, form.over.map(|axis| (axis, SUM_OF_SCALE)));
        c.same(name, &[x], false)
    });
    cx.push_node(OpNode::Norm(n));
    Ok(out)
}

impl Node {
    /// What is normed, as rows.
    fn rows(&self, t: &Tensor) -> Tensor {
        match self.form.heads {
            1 => t.rows(),
            h => t.view([t.shape().rows() * h, t.shape().last() / h]),
        }
    }

    /// What the normed rows are multiplied by; `1 + w` is made in f32.
    fn scale(&self, env: &Env<'_>) -> Result<Tensor> {
        let w = &env.params[self.w.0 as usize];
        if !self.form.unit_offset {
            return Ok(w.clone());
        }
        let y = env.run.empty(*w.shape(), DType::F32)?;
        let p = Prog::new(2);
        let params = p.finish(&[p.operand(1) + 1.0]);
        let operands = [Some(&y), Some(w)];
        let dynamic = op::ProgramDyn::new(&[]);
        env.run.launch(
            op::ELEMENTWISE_PROGRAM,
            &operands,
            params.as_bytes(),
            dynamic.as_bytes(),
        )?;
        Ok(y)
    }

    /// Output and statistics from the input (the statistics come out the same, bit for bit).
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let p = op::NormParams {
            eps: self.eps,
            ..Default::default()
        };
        let (y2, x2) = (self.rows(&y), self.rows(x));
        let w = &self.scale(env)?;
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
        let dy = if self.form.heads > 1 && !dy.is_dense() {
            let packed = env.run.empty(*dy.shape(), dy.dtype())?;
            super::add::copy(env, &packed, &dy)?;
            packed
        } else {
            dy
        };
        let x = b.val(self.x, nodes)?;
        // The residual branch has usually brought its gradient already: it is added in the same pass.
        let dres = b.take(self.x);
        let dx = match &dres {
            Some(r) if r.is_unique() && r.is_dense() => r.clone(),
            _ if dy.is_unique() && dy.is_dense() && dres.is_some() => dy.clone(),
            Some(_) => env.run.empty(*x.shape(), x.dtype())?,
            None if self.form.heads > 1 => env.run.empty(*x.shape(), x.dtype())?,
            None => b.dest(self.x)?,
        };
        let p = op::NormParams {
            eps: self.eps,
            ..Default::default()
        };
        let (dx2, dy2, x2, dres2) = (
            self.rows(&dx),
            self.rows(&dy),
            self.rows(&x),
            dres.as_ref().map(|t| self.rows(t)),
        );
        let w = &self.scale(env)?;
        let dw = &self.grad_of(env, self.w)?;
        let db = self.b.map(|b| self.grad_of(env, b)).transpose()?;
        match &self.mean {
            Some(mean) => {
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
        if let Some(axis) = self.form.over {
            for (p, part) in [Some((self.w, dw)), self.b.zip(db.as_ref())]
                .into_iter()
                .flatten()
            {
                summed_into(env, axis, p, part)?;
            }
        }
        drop(dres);
        b.give(self.x, dx)
    }

    /// Where the gradient of a scale or shift is added: its own room, or where ranks have parts of it, room for this rank's.
    fn grad_of(&self, env: &Env<'_>, p: Param) -> Result<Tensor> {
        match self.form.over {
            Some(_) => env.grads.discard(env, p.0 as usize),
            None => grad_of(env, p),
        }
    }
}

/// The sum over ranks of what they have of a scale's gradient, in messages.
pub(crate) const SUM_OF_SCALE: &str = "sum of a scale's gradient";

/// Adds the sum over an axis of what ranks have of a parameter's gradient.
fn summed_into(env: &Env<'_>, axis: Axis, p: Param, part: &Tensor) -> Result<()> {
    let i = p.0 as usize;
    if !env.grads.wants(i) {
        return Ok(());
    }
    env.groups.all_reduce(env.run, SUM_OF_SCALE, axis, part)?;
    env.grads.take(env.run, i, part)
}

/// Where the gradient of a scale or shift is added; the op makes them together with dx, so a frozen one's goes nowhere.
pub(crate) fn grad_of(env: &Env<'_>, p: Param) -> Result<Tensor> {
    let i = p.0 as usize;
    if env.grads.wants(i) {
        env.grads.adding(env.run, i).cloned()
    } else {
        env.grads.discard(env, i)
    }
}
