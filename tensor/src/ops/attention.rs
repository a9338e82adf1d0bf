//! Attention with online softmax: O(T) memory, grouped key-value heads, causal and windowed masks. Where documents share the rows of a batch
//! (`Batch::segments`) nobody sees another document.
//!
//! What not every device has a kernel for goes to `attention_ext_*`, and only where it is asked for: a soft cap of the scores, a bias by
//! distance, sinks, dropout of the weights, and packed rows whose keys are not their queries.

use super::OpNode;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

/// How heads lie and what is masked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
    /// Soft cap: scores become `cap tanh(score / cap)`; 0 = none.
    pub cap: f64,
    /// Fraction of the weights that are zeroed in training; the rest is scaled.
    pub dropout: f64,
    /// These heads are some of a layer's: each rank along this axis has as many.
    pub split: Option<Axis>,
}

/// What is added to the scores.
#[derive(Clone, Debug, Default)]
pub struct AttentionExtras {
    /// Bias by distance, f32 `[H, Tq + Tk - 1]`: query i and key j get `bias[h, j - i + Tq - 1]`.
    pub bias: Option<Var>,
    /// The same where it is a constant and has no gradient.
    pub fixed_bias: Option<Tensor>,
    /// One more score of each head, which has no value: `[H]`.
    pub sinks: Option<Param>,
}

impl AttentionSpec {
    fn flags(&self) -> u32 {
        if self.causal { op::FLAG_CAUSAL } else { 0 }
    }
    fn params(&self) -> op::AttentionParams {
        op::AttentionParams {
            flags: self.flags(),
            scale: self.scale,
            window: self.window as i64,
            ..Default::default()
        }
    }
    /// Dropout acts in training only.
    fn ext_params(&self, env: &Env<'_>) -> op::AttentionExtParams {
        op::AttentionExtParams {
            flags: self.flags(),
            scale: self.scale,
            window: self.window as i64,
            cap: self.cap,
            dropout: if env.training { self.dropout } else { 0.0 },
            ..Default::default()
        }
    }
}

pub(crate) struct Node {
    pub q: Var,
    pub k: Var,
    pub v: Var,
    pub extras: AttentionExtras,
    pub out: Var,
    lse: Tensor,
    spec: AttentionSpec,
    op_index: u32,
    /// By `attention_ext_*`.
    ext: bool,
}

/// The key of the mask of dropped weights, by their places in the global batch: `[sequence, head, query, key]`, each query's keys a whole
/// number of philox blocks.
///
/// The launches that it takes, by the rows of each: one, but where other ranks have the other heads, and so the places between two
/// sequences.
fn keys(
    env: &Env<'_>,
    spec: &AttentionSpec,
    op_index: u32,
    [rows, queries, keys]: [u64; 3],
) -> Vec<([u64; 2], op::PhiloxDyn)> {
    let [ranks, at] = match spec.split.filter(|_| spec.dropout > 0.0 && env.training) {
        Some(axis) => [env.groups.size(axis), env.groups.at(axis)].map(u64::from),
        None => [1, 0],
    };
    let key = |row: u64| op::PhiloxDyn {
        seed: env.key.seed,
        stream: env.key.stream(op_index),
        offset: ((env.key.first_sequence + row) * ranks + at)
            * spec.heads
            * queries
            * keys.div_ceil(4),
        ..Default::default()
    };
    match ranks {
        1 => vec![([0, rows], key(0))],
        _ => (0..rows).map(|row| ([row, 1], key(row))).collect(),
    }
}

/// So many rows of an operand, from one on.
fn of_rows(t: Option<&Tensor>, [from, rows]: [u64; 2]) -> Option<Tensor> {
    t.map(|t| t.narrow(0, from, rows))
}

/// Whether the operands fit.
fn fits(
    spec: &AttentionSpec,
    [qv, kv, vv]: [&Tensor; 3],
    [bias, sinks]: [Option<&Tensor>; 2],
    packed: bool,
) -> Result<()> {
    let (d, e) = (qv.shape().dims(), kv.shape().dims());
    // The width of a head, where the dims are those of so many heads.
    let head = |d: &[u64], heads: u64| match *d {
        [_, _, all] if heads > 0 && all.is_multiple_of(heads) => Some(all / heads),
        [_, _, h, width] if h == heads => Some(width),
        _ => None,
    };
    let fits = spec.kv_heads > 0
        && spec.heads.is_multiple_of(spec.kv_heads)
        && head(d, spec.heads).is_some()
        && head(d, spec.heads) == head(e, spec.kv_heads)
        && d[0] == e[0]
        && vv.shape() == kv.shape();
    if !fits {
        return shape_error(format!(
            "attention: q {qv:?}, k {kv:?}, v {vv:?} with {} heads over {}",
            spec.heads, spec.kv_heads
        ));
    }
    if !(0.0..1.0).contains(&spec.dropout) {
        return shape_error(format!(
            "attention: probability {} is not in [0, 1)",
            spec.dropout
        ));
    }
    let h = spec.heads;
    let distances = [h, (d[1] + e[1]).saturating_sub(1)];
    if bias.is_some_and(|b| *b.shape().dims() != distances || b.dtype() != DType::F32)
        || sinks.is_some_and(|s| *s.shape().dims() != [h])
    {
        return shape_error(format!(
            "attention: bias {bias:?} must be f32 {distances:?} and sinks {sinks:?} [{h}]"
        ));
    }
    if packed && d[1] != e[1] {
        return shape_error(format!(
            "attention: q {qv:?} over k {kv:?} in a batch of packed documents, whose queries and keys are the same positions"
        ));
    }
    Ok(())
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    q: Var,
    k: Var,
    v: Var,
    spec: AttentionSpec,
    extras: AttentionExtras,
) -> Result<Var> {
    let (qv, kv, vv) = (cx.val(q)?, cx.val(k)?, cx.val(v)?);
    let bias = match (extras.bias, &extras.fixed_bias) {
        (Some(b), _) => Some(cx.val(b)?),
        (None, fixed) => fixed.as_ref(),
    };
    let sinks = extras.sinks.map(|s| cx.param(s)).transpose()?;
    let rows = qv.shape().dims().first().copied().unwrap_or(0);
    let cu = cx.env.batch.segments_of(rows)?;
    fits(&spec, [qv, kv, vv], [bias, sinks], cu.is_some())?;
    let (d, e) = (qv.shape().dims(), kv.shape().dims());
    let (run, h, g) = (cx.env.run, spec.heads, spec.kv_heads);
    let o = run.empty([d[0], d[1], d[2..].iter().product()], qv.dtype())?;
    let lse = run.empty([d[0], h, d[1]], DType::F32)?;
    let (oh, qh) = (o.heads(h), qv.heads(h));
    let (kh, vh) = (kv.heads(g), vv.heads(g));
    let ops = [&oh, &lse, &qh, &kh, &vh].map(Some);
    let dropped = spec.dropout > 0.0 && cx.env.training;
    let ext = spec.cap > 0.0 || dropped || bias.is_some() || sinks.is_some();
    let op_index = cx.op_index();
    let [o1, lse1, q1, k1, v1] = ops;
    if ext {
        let params = spec.ext_params(cx.env);
        for (rows, key) in keys(cx.env, &spec, op_index, [d[0], d[1], e[1]]) {
            let [o1, lse1, q1, k1, v1, cu] = [o1, lse1, q1, k1, v1, cu].map(|t| of_rows(t, rows));
            let [o1, lse1, q1, k1, v1, cu] = [&o1, &lse1, &q1, &k1, &v1, &cu].map(Option::as_ref);
            run.launch(
                op::ATTENTION_EXT_FWD,
                &[o1, lse1, q1, k1, v1, bias, sinks, cu, None],
                params.as_bytes(),
                key.as_bytes(),
            )?;
        }
    } else if cu.is_some() {
        let ops = [o1, lse1, q1, k1, v1, cu];
        run.launch(
            op::ATTENTION_VARLEN_FWD,
            &ops,
            spec.params().as_bytes(),
            &[],
        )?;
    } else {
        run.launch(op::ATTENTION_FWD, &ops, spec.params().as_bytes(), &[])?;
    }
    let node = cx.next_node();
    let out = cx.push_val(o, node, Origin::Own, false);
    for x in [Some(q), Some(k), Some(v), Some(out), extras.bias]
        .into_iter()
        .flatten()
    {
        cx.save(x);
    }
    cx.typed(out, |c| {
        let ins = [Some(q), Some(k), Some(v), extras.bias];
        let ins = ins.into_iter().flatten().map(|x| c.vals[x.0 as usize]);
        let ins: Vec<_> = ins.collect();
        c.attention(&ins, spec.split, extras.sinks.map(|s| s.0.into()))
    });
    cx.push_node(OpNode::Attention(Node {
        q,
        k,
        v,
        extras,
        out,
        lse,
        spec,
        op_index,
        ext,
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
        let wide = [&dq, &dy, &o, &q].map(|t| t.heads(h));
        let narrow = [&dk, &dv, &k, &v].map(|t| t.heads(g));
        let ops = [
            &wide[0], &narrow[0], &narrow[1], &wide[1], &wide[2], &wide[3], &narrow[2], &narrow[3],
            &self.lse,
        ]
        .map(Some);
        let cu = b.env.batch.segments.as_ref();
        if self.ext {
            self.ext_backward(b, nodes, &ops, cu)?;
        } else {
            let (run, params) = (b.env.run, self.spec.params());
            match cu {
                Some(_) => {
                    let [dq, dk, dv, dy, o, q, k, v, lse] = ops;
                    let ops = [dq, dk, dv, dy, o, q, k, v, lse, cu];
                    run.launch(op::ATTENTION_VARLEN_BWD, &ops, params.as_bytes(), &[])?;
                }
                None => run.launch(op::ATTENTION_BWD, &ops, params.as_bytes(), &[])?,
            }
        }
        b.give(self.q, dq)?;
        b.give(self.k, dk)?;
        b.give(self.v, dv)
    }

    /// By `attention_ext_bwd`; gives the bias and the sinks their gradients.
    fn ext_backward(
        &self,
        b: &mut Back<'_, '_>,
        nodes: &[OpNode],
        ops: &[Option<&Tensor>; 9],
        cu: Option<&Tensor>,
    ) -> Result<()> {
        let env = b.env;
        let learned = self.extras.bias.map(|v| b.val(v, nodes)).transpose()?;
        let dbias = match &learned {
            Some(t) => Some(env.run.zeros(*t.shape(), DType::F32)?),
            None => None,
        };
        let bias = learned.as_ref().or(self.extras.fixed_bias.as_ref());
        let sinks = self.extras.sinks.map(|p| p.0 as usize);
        let wanted = sinks.filter(|p| env.grads.wants(*p));
        // The op adds in f32; the gradient may be of another type.
        let dsinks = match wanted {
            Some(p) => Some(env.run.zeros(*env.params[p].shape(), DType::F32)?),
            None => None,
        };
        let params = self.spec.ext_params(env);
        let dim = |t: Option<&Tensor>, d: usize| t.map_or(0, |t| t.shape().dims()[d]);
        let sizes = [dim(ops[5], 0), dim(ops[5], 1), dim(ops[6], 1)];
        let sinks = sinks.map(|p| &env.params[p]);
        for (rows, key) in keys(env, &self.spec, self.op_index, sizes) {
            let each = ops.map(|t| of_rows(t, rows));
            let [dq, dk, dv, dy, o, q, k, v, lse] = each.each_ref().map(Option::as_ref);
            let cu = of_rows(cu, rows);
            let (dbias, dsinks, cu) = (dbias.as_ref(), dsinks.as_ref(), cu.as_ref());
            let all = [
                dq, dk, dv, dbias, dsinks, dy, o, q, k, v, lse, bias, sinks, cu, None,
            ];
            env.run.launch(
                op::ATTENTION_EXT_BWD,
                &all,
                params.as_bytes(),
                key.as_bytes(),
            )?;
        }
        if let (Some(p), Some(d)) = (wanted, &dsinks) {
            env.grads.take(env.run, p, d)?;
        }
        match (self.extras.bias, dbias) {
            (Some(v), Some(d)) => b.give(v, d),
            _ => Ok(()),
        }
    }

    /// Values read.
    pub fn inputs(&self) -> Vec<Var> {
        [self.q, self.k, self.v]
            .into_iter()
            .chain(self.extras.bias)
            .collect()
    }
}
