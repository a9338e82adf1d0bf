//! Attention with online softmax: O(T) memory, grouped key-value heads, causal and windowed masks. Where documents share the rows of a batch
//! (`Batch::segments`) nobody sees another document.

use super::OpNode;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;

/// How heads lie and what is masked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Query i sees keys up to i (shifted by Tk - Tq).
    pub causal: bool,
    /// Sliding window in positions; 0 = none.
    pub window: u64,
    /// Factor of the scores; 0 = 1/sqrt(D).
    pub scale: f64,
}

impl AttentionSpec {
    fn params(&self) -> op::AttentionParams {
        op::AttentionParams {
            flags: if self.causal { op::FLAG_CAUSAL } else { 0 },
            scale: self.scale,
            window: self.window as i64,
            ..Default::default()
        }
    }
}

pub(crate) struct Node {
    pub q: Var,
    pub k: Var,
    pub v: Var,
    pub out: Var,
    lse: Tensor,
    spec: AttentionSpec,
}

pub(crate) fn forward(cx: &mut Cx<'_>, q: Var, k: Var, v: Var, spec: AttentionSpec) -> Result<Var> {
    let (qv, kv, vv) = (cx.val(q)?, cx.val(k)?, cx.val(v)?);
    let (d, e) = (qv.shape().dims(), kv.shape().dims());
    let fits = d.len() == 3
        && e.len() == 3
        && spec.kv_heads > 0
        && spec.heads.is_multiple_of(spec.kv_heads)
        && d[2].is_multiple_of(spec.heads)
        && d[0] == e[0]
        && e[2] == d[2] / spec.heads * spec.kv_heads
        && vv.shape() == kv.shape();
    if !fits {
        return shape_error(format!(
            "attention: q {qv:?}, k {kv:?}, v {vv:?} with {} heads over {}",
            spec.heads, spec.kv_heads
        ));
    }
    let (run, h, g) = (cx.env.run, spec.heads, spec.kv_heads);
    let o = run.empty([d[0], d[1], d[2]], qv.dtype())?;
    let params = spec.params();
    let lse = run.empty([d[0], h, d[1]], DType::F32)?;
    let (oh, qh) = (o.heads(h), qv.heads(h));
    let (kh, vh) = (kv.heads(g), vv.heads(g));
    let ops = [&oh, &lse, &qh, &kh, &vh].map(Some);
    match cx.env.batch.segments_of(d[0])? {
        Some(_) if d[1] != e[1] => {
            return shape_error(format!(
                "attention: q {qv:?} over k {kv:?} in a batch of packed documents, whose queries and keys are the same positions"
            ));
        }
        cu @ Some(_) => {
            let [o, lse, q, k, v] = ops;
            let ops = [o, lse, q, k, v, cu];
            run.launch(op::ATTENTION_VARLEN_FWD, &ops, params.as_bytes(), &[])?;
        }
        None => run.launch(op::ATTENTION_FWD, &ops, params.as_bytes(), &[])?,
    }
    let node = cx.next_node();
    let out = cx.push_val(o, node, Origin::Own, false);
    for x in [q, k, v, out] {
        cx.save(x);
    }
    cx.typed(out, |c| {
        c.same(
            "attention",
            &[
                c.vals[q.0 as usize],
                c.vals[k.0 as usize],
                c.vals[v.0 as usize],
            ],
            false,
        )
    });
    cx.push_node(OpNode::Attention(Node {
        q,
        k,
        v,
        out,
        lse,
        spec,
    }));
    Ok(out)
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (q, k, v, o) = (
            b.val(self.q, nodes)?,
            b.val(self.k, nodes)?,
            b.val(self.v, nodes)?,
            b.val(self.out, nodes)?,
        );
        let [dq, dk, dv] = b.dests([self.q, self.k, self.v])?;
        let (h, g) = (self.spec.heads, self.spec.kv_heads);
        let (run, params) = (b.env.run, self.spec.params());
        let wide = [&dq, &dy, &o, &q].map(|t| t.heads(h));
        let narrow = [&dk, &dv, &k, &v].map(|t| t.heads(g));
        let ops = [
            &wide[0], &narrow[0], &narrow[1], &wide[1], &wide[2], &wide[3], &narrow[2], &narrow[3],
            &self.lse,
        ]
        .map(Some);
        match &b.env.batch.segments {
            cu @ Some(_) => {
                let [dq, dk, dv, dy, o, q, k, v, lse] = ops;
                let ops = [dq, dk, dv, dy, o, q, k, v, lse, cu.as_ref()];
                run.launch(op::ATTENTION_VARLEN_BWD, &ops, params.as_bytes(), &[])?;
            }
            None => run.launch(op::ATTENTION_BWD, &ops, params.as_bytes(), &[])?,
        }
        b.give(self.q, dq)?;
        b.give(self.k, dk)?;
        b.give(self.v, dv)
    }
}
