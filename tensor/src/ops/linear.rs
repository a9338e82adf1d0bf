//! Linear: `y = x W^T (+ b)`; several weights that lie one after another in the unit's flat buffer run as one product.
//!
//! Weight gradients accumulate in the product itself, straight into the unit's flat gradient.

use super::OpNode;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Env, Param, Tensor};
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    w: Vec<Param>,
    b: Vec<Param>,
    form: Form,
}

/// Which product it is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Form {
    /// `W [in, out]` instead of `[out, in]`.
    pub conv1d: bool,
    /// Factor of the product; 0 stands for 1, as in the op's own parameters.
    pub alpha: f64,
    /// What it gives is a summand of each rank along this axis: the first of them adds the bias, of which every one has the whole gradient.
    pub summed: Option<Axis>,
}

impl Form {
    fn params(self, add: bool) -> op::MatmulParams {
        op::MatmulParams {
            flags: if add { op::FLAG_ACCUM } else { 0 },
            alpha: self.alpha,
            ..Default::default()
        }
    }
}

/// One matrix over parameters that lie end to end (same width), `None` when they do not. Of more dims (a convolution's weight, over patches that
/// do not overlap) all but the first are one.
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
    dims[1] = dims[1..n.max(2)].iter().product();
    Some(Tensor::dense(
        first.buffer().clone(),
        first.offset(),
        &dims[..n.min(2)],
        first.dtype(),
    ))
}

/// What one product takes: a weight, its bias, and the columns of the output it makes.
struct Part {
    weight: Tensor,
    bias: Option<Tensor>,
    at: u64,
    width: u64,
}

/// One part when all weights (and biases) lie end to end, else one a parameter: some of them frozen, and so kept elsewhere, or dealt whole to
/// different ranks.
fn parts(env: &Env<'_>, w: &[Param], b: &[Param], conv1d: bool) -> Result<Vec<Part>> {
    let params = env.params;
    let find = |p: &Param| match params.get(p.0 as usize) {
        Some(t) => Ok(t),
        None => shape_error(format!(
            "linear: parameter {} of a unit that has {}",
            p.0,
            params.len()
        )),
    };
    let weights: Vec<&Tensor> = w.iter().map(find).collect::<Result<_>>()?;
    let biases: Vec<&Tensor> = b.iter().map(find).collect::<Result<_>>()?;
    let fits = |rank: usize| rank == 2 || rank > 2 && weights.len() == 1 && !conv1d;
    if let Some(bad) = weights.iter().find(|t| !fits(t.shape().rank())) {
        return shape_error(format!(
            "linear: the weights of a fused product are matrices, got {bad:?}"
        ));
    }
    let width = |t: &Tensor| t.shape().dims()[usize::from(conv1d)];
    let bias = match biases.is_empty() {
        true => Some(None),
        false => fuse(&biases).map(Some),
    };
    let whole = fuse(&weights).filter(|_| w.len() == 1 || !env.run.takes_one_by_one());
    if let (Some(weight), Some(bias)) = (whole, bias) {
        return Ok(vec![Part {
            at: 0,
            width: width(&weight),
            weight,
            bias,
        }]);
    }
    let input = |t: &Tensor| t.shape().dims()[usize::from(!conv1d)];
    if weights.iter().any(|t| input(t) != input(weights[0])) {
        return shape_error(format!(
            "linear: the weights of a fused product must have the same input width, got {weights:?}"
        ));
    }
    let mut at = 0;
    let mut out = vec![];
    for (i, t) in weights.into_iter().enumerate() {
        out.push(Part {
            weight: t.clone(),
            bias: biases.get(i).map(|b| (*b).clone()),
            at,
            width: width(t),
        });
        at += width(t);
    }
    Ok(out)
}

/// `y = alpha x W^T`, `W [out, in]`; `alpha` is not 0.
///
/// # Errors
/// Shapes that do not fit; the device.
pub fn linear_scaled(cx: &mut Cx<'_>, x: Var, w: Param, alpha: f64) -> Result<Var> {
    let form = Form {
        alpha,
        ..Form::default()
    };
    forward(cx, x, &[w], &[], form)
}

/// This rank's summand of `y = x W^T + b` (of `y = x W + b` for `conv1d`), where the inputs are cut over an axis.
///
/// # Errors
/// Shapes that do not fit; the device.
pub fn linear_summand(
    cx: &mut Cx<'_>,
    x: Var,
    (w, b): (Param, Option<Param>),
    conv1d: bool,
    axis: Axis,
) -> Result<Var> {
    let form = Form {
        conv1d,
        summed: Some(axis),
        ..Form::default()
    };
    forward(cx, x, &[w], b.as_slice(), form)
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    x: Var,
    w: &[Param],
    b: &[Param],
    form: Form,
) -> Result<Var> {
    let conv1d = form.conv1d;
    if w.is_empty() || !(b.is_empty() || b.len() == w.len()) {
        return shape_error(format!(
            "linear: {} weights with {} biases",
            w.len(),
            b.len()
        ));
    }
    let xv = cx.val(x)?;
    let first = form.summed.is_none_or(|axis| cx.env.groups.at(axis) == 0);
    let parts = parts(cx.env, w, if first { b } else { &[] }, conv1d)?;
    let n = parts.iter().map(|p| p.width).sum();
    let y = cx.env.run.empty(xv.shape().with_last(n), xv.dtype())?;
    let (x2, y2) = (xv.rows(), y.rows());
    for part in &parts {
        let kn = if conv1d {
            part.weight.clone()
        } else {
            part.weight.t()
        };
        let bias = &part.bias;
        if xv.shape().last() != kn.shape().dims()[0]
            || bias.as_ref().is_some_and(|b| b.numel() != part.width)
        {
            return shape_error(format!(
                "linear: input {xv:?} against weight {:?}{}",
                part.weight,
                bias.as_ref()
                    .map_or(String::new(), |b| format!(" and bias {b:?}"))
            ));
        }
        cx.env.run.launch(
            op::MATMUL,
            &[
                Some(&y2.narrow(1, part.at, part.width)),
                Some(&x2),
                Some(&kn),
                bias.as_ref(),
            ],
            form.params(false).as_bytes(),
            &[],
        )?;
    }
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.save(x);
    let places = |ps: &[Param]| -> Vec<usize> { ps.iter().map(|p| p.0.into()).collect() };
    let (ws, bs) = (places(w), places(b));
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        c.linear(x, (&ws, &bs), conv1d.into(), form.summed)
    });
    cx.push_node(OpNode::Linear(Node {
        x,
        out,
        w: w.to_vec(),
        b: b.to_vec(),
        form,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let env = b.env;
        let dy2 = dy.rows();
        // dW first: it is the last reader of x, and dx may then reuse cache. Where dx travels, dW is made meanwhile.
        if !(self.learns(env) && b.puts_off(self.x, &dy, nodes)?) {
            let x = b.val(self.x, nodes)?;
            b.weights(self, &x, &dy)?;
        }
        let (shape, dtype) = b.meta(self.x);
        // dx adds to a gradient that is already there, unless others look at its bytes.
        let old = b.take(self.x);
        let (dx, add) = match old {
            Some(t) if t.is_unique() && t.shape().rank() > 0 => (t, true),
            Some(t) => {
                b.give(self.x, t)?;
                (env.run.empty(shape, dtype)?, false)
            }
            None => (b.dest(self.x)?, false),
        };
        let mut add = add;
        for part in parts(env, &self.w, &[], self.form.conv1d)? {
            let nk = if self.form.conv1d {
                part.weight.t()
            } else {
                part.weight
            };
            let p = self.form.params(add);
            let dy = dy2.narrow(1, part.at, part.width);
            let o = [Some(&dx.rows()), Some(&dy), Some(&nk), None];
            env.run.launch(op::MATMUL, &o, p.as_bytes(), &[])?;
            add = true;
        }
        b.give(self.x, dx)
    }

    /// Has it a weight whose gradient is wanted?
    pub(crate) fn learns(&self, env: &Env<'_>) -> bool {
        self.w.iter().any(|p| env.grads.wants(p.0 as usize))
    }

    /// The gradients of its weights and biases, of its input and the gradient of its output.
    pub(crate) fn weights(&self, env: &Env<'_>, x: &Tensor, dy: &Tensor) -> Result<()> {
        self.apart(env, x, dy).run(env)?;
        self.bias_grads(env, &dy.rows())
    }

    /// What the gradients of its weights are made of, at any later time and without its weights.
    pub(crate) fn apart(&self, env: &Env<'_>, x: &Tensor, dy: &Tensor) -> Apart {
        let width = |p: &Param| {
            let d = env.params[p.0 as usize].shape().dims();
            if self.form.conv1d { d[1] } else { d[0] }
        };
        Apart {
            w: self.w.iter().map(|p| (*p, width(p))).collect(),
            form: self.form,
            x: x.clone(),
            dy: dy.clone(),
        }
    }

    pub(crate) fn bias_grads(&self, env: &Env<'_>, dy2: &Tensor) -> Result<()> {
        let wanted = |p: &Param| env.grads.wants(p.0 as usize);
        if self.b.iter().all(wanted) && !self.b.is_empty() {
            let views: Vec<&Tensor> = self
                .b
                .iter()
                .map(|p| env.grads.view(p.0 as usize))
                .collect::<Result<_>>()?;
            if let Some(db) = fuse(&views) {
                let mut add = false;
                for p in &self.b {
                    add = env.grads.slot(p.0 as usize)?.1;
                }
                return rows_into(env, &db, dy2, add);
            }
        }
        let mut at = 0;
        for p in &self.b {
            let width = env.params[p.0 as usize].numel();
            bias_grad(env, *p, &dy2.narrow(1, at, width))?;
            at += width;
        }
        Ok(())
    }
}

/// The operands of the gradients of a product's weights: its input, and the gradient of its output.
pub(crate) struct Apart {
    /// The weights, each with the columns of the output that it makes.
    w: Vec<(Param, u64)>,
    form: Form,
    pub x: Tensor,
    pub dy: Tensor,
}

impl Apart {
    /// One product when the gradients lie end to end and are written alike, else one a part; frozen parts are left out.
    pub fn run(&self, env: &Env<'_>) -> Result<()> {
        let (x2, dy2) = (&self.x.rows(), &self.dy.rows());
        let wanted = |p: &Param| env.grads.wants(p.0 as usize);
        let product = |dw: &Tensor, dy: &Tensor, add: bool| {
            let p = self.form.params(add);
            let (a, bm) = if self.form.conv1d {
                (x2.t(), dy)
            } else {
                (dy.t(), x2)
            };
            let o = [Some(dw), Some(&a), Some(bm), None];
            env.run.launch(op::MATMUL, &o, p.as_bytes(), &[])
        };
        if self.w.iter().all(|(p, _)| wanted(p)) {
            // Marked written only when written: the parts are asked for one by one otherwise.
            let alike = |i: usize| env.grads.is_written(self.w[i].0.0 as usize);
            let views: Vec<&Tensor> = self
                .w
                .iter()
                .map(|(p, _)| env.grads.view(p.0 as usize))
                .collect::<Result<_>>()?;
            if let Some(dw) =
                fuse(&views).filter(|_| (1..views.len()).all(|i| alike(i) == alike(0)))
            {
                let mut add = false;
                for (p, _) in &self.w {
                    add = env.grads.slot(p.0 as usize)?.1;
                }
                return product(&dw, dy2, add);
            }
        }
        let mut at = 0;
        for (p, width) in &self.w {
            if wanted(p) {
                let (dw, add) = env.grads.slot(p.0 as usize)?;
                product(dw, &dy2.narrow(1, at, *width), add)?;
            }
            at += width;
        }
        Ok(())
    }
}

/// The sum of the rows of `dy`, into a bias's gradient.
fn rows_into(env: &Env<'_>, db: &Tensor, dy: &Tensor, add: bool) -> Result<()> {
    let p = op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1,
        flags: if add { op::FLAG_ACCUM } else { 0 },
        ..Default::default()
    };
    let o = [Some(&db.view([1, db.numel()])), Some(dy)];
    env.run.launch(op::REDUCE, &o, p.as_bytes(), &[])
}

/// A bias's gradient from that of the rows it was added to.
fn bias_grad(env: &Env<'_>, bias: Param, dy: &Tensor) -> Result<()> {
    let p = bias.0 as usize;
    if !env.grads.wants(p) {
        return Ok(());
    }
    let (db, add) = env.grads.slot(p)?;
    rows_into(env, db, dy, add)
}
