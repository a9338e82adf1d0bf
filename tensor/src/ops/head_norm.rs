//! Layer norm of each head of the last dim by itself, with a scale of each head's own: of one parameter `[heads, width]` (Cohere), or of one
//! parameter a head (StableLM). One launch of `layer_norm_*` a head, over its columns.
//!
//! Where ranks have other heads and all of them every head's parameter, the gradients of a rank's own heads are gathered in the backward.

use super::OpNode;
use super::norm::{SUM_OF_SCALE, grad_of};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    ws: Vec<Param>,
    heads: u64,
    eps: f64,
    /// The axis whose ranks have the other heads, and the parameters of all heads.
    over: Option<(Axis, Vec<Param>)>,
    /// `[heads, rows]`.
    mean: Tensor,
    rstd: Tensor,
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, ws: &[Param], heads: u64, eps: f64) -> Result<Var> {
    record(cx, x, (ws, heads), eps, None)
}

/// [`Cx::head_norm`] of the heads that a rank has among those of all ranks along an axis, given a parameter for each of all heads.
///
/// # Errors
/// Shapes that do not fit; the device.
pub fn head_norm_over(
    cx: &mut Cx<'_>,
    x: Var,
    ws: &[Param],
    eps: f64,
    (heads, axis): (u64, Axis),
) -> Result<Var> {
    let [at, ranks] = [cx.env.groups.at(axis), cx.env.groups.size(axis)].map(u64::from);
    if ws.len() as u64 != heads * ranks {
        return shape_error(format!(
            "head_norm: {} parameters for {heads} heads on each of {ranks} ranks",
            ws.len()
        ));
    }
    let own = ws[(at * heads) as usize..][..heads as usize].to_vec();
    record(cx, x, (&own, heads), eps, Some((axis, ws.to_vec())))
}

fn record(
    cx: &mut Cx<'_>,
    x: Var,
    (ws, heads): (&[Param], u64),
    eps: f64,
    over: Option<(Axis, Vec<Param>)>,
) -> Result<Var> {
    let xv = cx.val(x)?.clone();
    let all = xv.shape().last();
    let each = match ws.len() {
        1 => all,
        _ => all / heads.max(1),
    };
    let fits =
        heads > 0 && all.is_multiple_of(heads) && (ws.len() == 1 || ws.len() as u64 == heads);
    for w in ws {
        let wv = cx.param(*w)?;
        if !fits || wv.numel() != each {
            return shape_error(format!(
                "head_norm: input {xv:?} of {heads} heads with weight {wv:?}"
            ));
        }
    }
    let stats = [heads, xv.shape().rows()];
    let mut n = Node {
        x,
        out: x,
        ws: ws.to_vec(),
        heads,
        eps,
        over,
        mean: cx.env.run.empty(stats, DType::F32)?,
        rstd: cx.env.run.empty(stats, DType::F32)?,
    };
    let y = n.rerun(cx.env, &xv)?;
    let node = cx.next_node();
    n.out = cx.push_val(y, node, Origin::Own, true);
    cx.save(x);
    let out = n.out;
    let ps: Vec<usize> = n.all().iter().map(|w| w.0.into()).collect();
    let sum = n.over.as_ref().map(|(axis, _)| (*axis, SUM_OF_SCALE));
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        c.with_params("head_norm", x, &ps, sum);
        c.same("head_norm", &[x], false)
    });
    cx.push_node(OpNode::HeadNorm(n));
    Ok(out)
}

impl Node {
    fn params(&self) -> op::NormParams {
        op::NormParams {
            eps: self.eps,
            ..Default::default()
        }
    }

    /// The parameters of all heads.
    fn all(&self) -> &[Param] {
        self.over.as_ref().map_or(&self.ws, |(_, all)| all)
    }

    /// The columns of a head.
    fn head(&self, t: &Tensor, h: u64) -> Tensor {
        let width = t.shape().last() / self.heads;
        t.rows().narrow(1, h * width, width)
    }

    /// The place of the scale of a head: which parameter, and the first element there.
    fn place(&self, h: u64, width: u64) -> (Param, u64) {
        match self.ws[..] {
            [all] => (all, h * width),
            _ => (self.ws[h as usize], 0),
        }
    }

    /// Mean and deviation of the rows of a head.
    fn stats(&self, h: u64) -> [Tensor; 2] {
        let rows = self.mean.shape().last();
        [&self.mean, &self.rstd].map(|t| t.narrow(0, h, 1).view([rows]))
    }

    /// Output and statistics from the input, the same bits each time.
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let (p, width) = (self.params(), x.shape().last() / self.heads);
        for h in 0..self.heads {
            let (w, from) = self.place(h, width);
            let w = env.params[w.0 as usize].strided([width], &[1], from);
            let [mean, rstd] = self.stats(h);
            let (y, x) = (self.head(&y, h), self.head(x, h));
            let operands = [&y, &mean, &rstd, &x, &w].map(Some);
            let [y, mean, rstd, x, w] = operands;
            env.run.launch(
                op::LAYER_NORM_FWD,
                &[y, mean, rstd, x, w, None],
                p.as_bytes(),
                &[],
            )?;
        }
        Ok(y)
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let x = b.val(self.x, nodes)?;
        let dres = b.take(self.x);
        let dx = match &dres {
            Some(_) => env.run.empty(*x.shape(), x.dtype())?,
            None => b.dest(self.x)?,
        };
        let (p, width) = (self.params(), x.shape().last() / self.heads);
        // Where other ranks have the other heads' gradients: room for those of the heads here.
        let apart = match self.over {
            Some(_) => Some(env.run.zeros([self.heads, width], DType::F32)?),
            None => None,
        };
        for h in 0..self.heads {
            let (w, from) = self.place(h, width);
            let dw = match &apart {
                Some(all) => all.narrow(0, h, 1).view([width]),
                None => grad_of(env, w)?.strided([width], &[1], from),
            };
            let w = env.params[w.0 as usize].strided([width], &[1], from);
            let [mean, rstd] = self.stats(h);
            let [dx, dy, x] = [&dx, &dy, &x].map(|t| self.head(t, h));
            let dres = dres.as_ref().map(|t| self.head(t, h));
            let operands = [
                Some(&dx),
                Some(&dw),
                None,
                Some(&dy),
                Some(&x),
                Some(&w),
                Some(&mean),
                Some(&rstd),
                dres.as_ref(),
            ];
            env.run
                .launch(op::LAYER_NORM_BWD, &operands, p.as_bytes(), &[])?;
        }
        if let Some((own, (axis, all))) = apart.as_ref().zip(self.over.as_ref()) {
            gathered(env, own, *axis, all)?;
        }
        drop(dres);
        b.give(self.x, dx)
    }
}

/// Gives each head's parameter the gradient that the rank of its head has.
fn gathered(env: &Env<'_>, own: &Tensor, axis: Axis, ws: &[Param]) -> Result<()> {
    if ws.iter().all(|w| !env.grads.wants(w.0 as usize)) {
        return Ok(());
    }
    let width = own.shape().last();
    let all = env.run.empty([ws.len() as u64, width], DType::F32)?;
    let (send, recv) = (own, &all);
    let on = Link::new(SUM_OF_SCALE, axis);
    env.groups
        .exchange(env.run, &on, &[Exchange::AllGather { send, recv }])?;
    for (h, w) in ws.iter().enumerate() {
        let one = all.narrow(0, h as u64, 1).view([width]);
        env.grads.take(env.run, w.0 as usize, &one)?;
    }
    Ok(())
}
