//! A bias by distance that is learned: rows of a table `[buckets, H]` by the bucket of each distance, as one f32 line a head (T5).

use super::OpNode;
use super::add::copy;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

pub(crate) struct Node {
    pub out: Var,
    table: Param,
    /// Buckets of the distances, i32 `[1, L]`.
    index: Tensor,
}

/// `[H, L]` from the buckets (whole numbers in f32) of `L` distances.
pub(crate) fn forward(cx: &mut Cx<'_>, table: Param, buckets: &Tensor) -> Result<Var> {
    let tv = cx.param(table)?;
    let (&[_, h], &[n]) = (tv.shape().dims(), buckets.shape().dims()) else {
        return shape_error(format!(
            "distance_bias: buckets {buckets:?} of table {tv:?}"
        ));
    };
    let run = cx.env.run;
    let none = op::NoParams::default();
    let index = run.empty([1, n], DType::I32)?;
    let cast =
        |y: &Tensor, x: &Tensor| run.launch(op::CAST, &[Some(y), Some(x)], none.as_bytes(), &[]);
    cast(
        &index,
        &buckets.strided([1, n], &[n as i64, buckets.strides()[0]], 0),
    )?;
    let rows = run.empty([1, n, h], tv.dtype())?;
    let p = op::IndexParams::default();
    let operands = [Some(&rows), Some(tv), Some(&index), None];
    run.launch(op::EMBEDDING_FWD, &operands, p.as_bytes(), &[])?;
    let y = run.empty([h, n], DType::F32)?;
    let turned = rows.view([n, h]).t();
    match tv.dtype() {
        DType::F32 => copy(cx.env, &y, &turned)?,
        _ => cast(&y, &turned)?,
    }
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    cx.typed(out, |c| {
        c.table("distance_bias", Default::default(), table.0.into(), None)
    });
    cx.push_node(OpNode::DistanceBias(Node { out, table, index }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (env, table) = (b.env, self.table.0 as usize);
        if !env.grads.wants(table) {
            return Ok(());
        }
        let d = dy.shape().dims();
        let rows = env.run.empty([1, d[1], d[0]], DType::F32)?;
        copy(env, &rows.view([d[1], d[0]]), &dy.t())?;
        let grad = env.grads.adding(env.run, table)?;
        let p = op::IndexParams::default();
        let operands = [Some(grad), None, Some(&rows), Some(&self.index)];
        env.run
            .launch(op::EMBEDDING_BWD, &operands, p.as_bytes(), &[])
    }
}
