//! Layer norm of each head of the last dim by itself, with a scale of each head's own: of one parameter `[heads, width]` (Cohere), or of one
//! parameter a head (StableLM). One launch of `layer_norm_*` a head, over its columns.

use super::OpNode;
use super::norm::grad_of;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    ws: Vec<Param>,
    heads: u64,
    eps: f64,
    /// `[heads, rows]`.
    mean: Tensor,
    rstd: Tensor,
}

pub(crate) fn forward(cx: &mut Cx<'_>, x: Var, ws: &[Param], heads: u64, eps: f64) -> Result<Var> {
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
        mean: cx.env.run.empty(stats, DType::F32)?,
        rstd: cx.env.run.empty(stats, DType::F32)?,
    };
    let y = n.rerun(cx.env, &xv)?;
    let node = cx.next_node();
    n.out = cx.push_val(y, node, Origin::Own, true);
    cx.save(x);
    let out = n.out;
    let ps: Vec<usize> = ws.iter().map(|w| w.0.into()).collect();
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        c.with_params("head_norm", x, &ps, None);
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
        for h in 0..self.heads {
            let (w, from) = self.place(h, width);
            let dw = grad_of(env, w)?.strided([width], &[1], from);
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
        drop(dres);
        b.give(self.x, dx)
    }
}
