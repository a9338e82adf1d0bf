//! What images are to a model: the batch's patches as a value, a learned first row before those of each image (a class token) and the rest again,
//! and features put at the places of the token that stands for them.

use super::OpNode;
use super::add::copy;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// What becomes of the rows.
enum Kind {
    /// `[N, T, d]` with a row of its own before each N: `[N, T + 1, d]`.
    WithFirst(Param),
    /// `[N, T, d]` without the first of each N.
    WithoutFirst,
    /// Rows of `[N, T, d]` by the batch's places: `[B, T', d]`, zeros where there is none.
    Placed,
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    kind: Kind,
}

/// The batch's patches `[B images, patches, values]` in the type of the parameters.
///
/// # Errors
/// A batch without images; the device.
pub fn patches(cx: &mut Cx<'_>) -> Result<Var> {
    let env = cx.env;
    let Some(given) = &env.batch.images else {
        return shape_error("patches: the batch carries no images");
    };
    let t = match env.compute() {
        DType::F32 => given.clone(),
        compute => {
            let t = env.run.empty(*given.shape(), compute)?;
            let none = op::NoParams::default();
            let operands = [Some(&t), Some(given)];
            env.run.launch(op::CAST, &operands, none.as_bytes(), &[])?;
            t
        }
    };
    Ok(cx.input(t))
}

fn dims(op: &str, x: &Tensor) -> Result<[u64; 3]> {
    match *x.shape().dims() {
        [n, t, d] if t > 0 => Ok([n, t, d]),
        _ => shape_error(format!("{op}: {x:?} is not [N, T, d]")),
    }
}

/// `[N, T, d]` with a learned row before each N.
///
/// # Errors
/// Shapes that do not fit; the device.
pub fn with_first(cx: &mut Cx<'_>, x: Var, first: Param) -> Result<Var> {
    let (xv, row) = (cx.val(x)?.clone(), cx.param(first)?);
    let [n, t, d] = dims("with_first", &xv)?;
    if row.numel() != d || row.dtype() != xv.dtype() {
        return shape_error(format!("with_first: {xv:?} with a first row {row:?}"));
    }
    let y = cx.env.run.empty([n, t + 1, d], xv.dtype())?;
    let each = row.strided([n, 1, d], &[0, 0, 1], 0);
    copy(cx.env, &y.narrow(1, 0, 1), &each)?;
    copy(cx.env, &y.narrow(1, 1, t), &xv)?;
    Ok(noted(cx, y, x, Kind::WithFirst(first)))
}

/// `[N, T, d]` without the first row of each N.
///
/// # Errors
/// As [`with_first`].
pub fn without_first(cx: &mut Cx<'_>, x: Var) -> Result<Var> {
    let xv = cx.val(x)?.clone();
    let [n, t, d] = dims("without_first", &xv)?;
    let y = cx.env.run.empty([n, t - 1, d], xv.dtype())?;
    copy(cx.env, &y, &xv.narrow(1, 1, t - 1))?;
    Ok(noted(cx, y, x, Kind::WithoutFirst))
}

/// Features of images `[B images, features, d]` at the places of their token, `[B, T, d]`, and zeros elsewhere. Each has one place.
///
/// # Errors
/// As [`patches`].
pub fn placed(cx: &mut Cx<'_>, features: Var) -> Result<Var> {
    let (xv, env) = (cx.val(features)?.clone(), cx.env);
    let [n, t, d] = dims("placed", &xv)?;
    let places = places(env.batch)?;
    let &[b, tokens] = places.shape().dims() else {
        return shape_error(format!("placed: places {places:?} are not [B, T]"));
    };
    let y = env.run.empty([b, tokens, d], xv.dtype())?;
    let p = op::IndexParams::default();
    let operands = [
        Some(&y.view([b * tokens, d])),
        Some(&xv.view([n * t, d])),
        Some(&places.view([b * tokens])),
    ];
    env.run
        .launch(op::GATHER_ROWS, &operands, p.as_bytes(), &[])?;
    Ok(noted(cx, y, features, Kind::Placed))
}

fn places(batch: &crate::Batch) -> Result<&Tensor> {
    match &batch.places {
        Some(places) => Ok(places),
        None => shape_error("placed: the batch carries no places of features"),
    }
}

fn noted(cx: &mut Cx<'_>, y: Tensor, x: Var, kind: Kind) -> Var {
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        if let Kind::WithFirst(first) = &kind {
            c.added_rows("with_first", x, first.0.into(), None);
        }
        x
    });
    cx.push_node(OpNode::Images(Node { x, out, kind }));
    out
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (env, (shape, dtype)) = (b.env, b.meta(self.x));
        let &[n, t, d] = shape.dims() else {
            return shape_error("images: a value of another rank");
        };
        let p = op::IndexParams::default();
        let dx = match self.kind {
            Kind::WithFirst(first) => {
                if env.grads.wants(first.0 as usize) {
                    let grad = env.grads.adding(env.run, first.0 as usize)?;
                    let firsts = env.run.zeros([n, 1], DType::I32)?;
                    let rows = env.run.empty([n, 1, d], dtype)?;
                    copy(env, &rows, &dy.narrow(1, 0, 1))?;
                    let operands = [Some(&grad.view([1, d])), None, Some(&rows), Some(&firsts)];
                    env.run
                        .launch(op::EMBEDDING_BWD, &operands, p.as_bytes(), &[])?;
                }
                let dx = env.run.empty(shape, dtype)?;
                copy(env, &dx, &dy.narrow(1, 1, t))?;
                dx
            }
            Kind::WithoutFirst => {
                let dx = env.run.zeros(shape, dtype)?;
                copy(env, &dx.narrow(1, 1, t - 1), &dy)?;
                dx
            }
            Kind::Placed => {
                let dx = env.run.zeros(shape, dtype)?;
                let places = places(env.batch)?;
                let rows = places.numel();
                let operands = [
                    Some(&dx.view([n * t, d])),
                    Some(&dy.view([rows, d])),
                    Some(&places.view([rows])),
                ];
                env.run
                    .launch(op::SCATTER_ADD_ROWS, &operands, p.as_bytes(), &[])?;
                dx
            }
        };
        b.give(self.x, dx)
    }
}
