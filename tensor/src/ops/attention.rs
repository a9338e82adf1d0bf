//! Attention with online softmax: O(T) memory, grouped key-value heads, causal and windowed masks. Where documents share the rows of a batch
//! (`Batch::segments`) nobody sees another document.
//!
//! Where rows are cut over ranks and the keys of all are here (context parallelism, [`crate::Meeting::Gather`]), each run of consecutive
//! queries is one attention over the keys up to its end, or over all where the mask is not causal: a query then meets the keys, biases and random words that it
//! meets on one rank. Where keys go around the ranks ([`crate::Meeting::Ring`]) it is another op, [`super::ring`].
//!
//! What not every device has a kernel for goes to `attention_ext_*`, and only where it is asked for: a soft cap of the scores, a bias by
//! distance, sinks, dropout of the weights, and packed rows whose keys are not their queries.

use super::OpNode;
use super::add::{copy, sum};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::spmd::AXES;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::{Axis, AxisSet};

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
    /// These heads are some of a layer's: each rank along these axes has as many.
    pub split: AxisSet,
}

/// What is added to the scores.
#[derive(Clone, Debug, Default)]
pub struct AttentionExtras {
    /// Bias by distance, f32 `[H, 2 T - 1]` of rows of T tokens: query i and key j get `bias[h, j - i + T - 1]`. Of queries that are not
    /// the keys' positions `[H, Tq + Tk - 1]`, and `bias[h, j - i + Tq - 1]`.
    pub bias: Option<Var>,
    /// The same where it is a constant and has no gradient.
    pub fixed_bias: Option<Tensor>,
    /// One more score of each head, which has no value: `[H]`.
    pub sinks: Option<Param>,
}

impl AttentionSpec {
    /// The place of these heads among equal parts of a layer's, and how many parts there are: those over tp, and each of them cut over the ranks
    /// of cp that exchange heads.
    pub fn place_of_heads(&self, env: &Env<'_>) -> [u64; 2] {
        let over = AXES.iter().filter(|axis| self.split.contains(**axis));
        over.fold([0, 1], |[at, all], axis| {
            let [place, n] = [env.groups.at(*axis), env.groups.size(*axis)].map(u64::from);
            let n = match axis {
                Axis::Cp => env.batch.rows.meeting.exchange(n),
                _ => n,
            };
            [at * n + place % n, all * n]
        })
    }
    pub(super) fn flags(&self) -> u32 {
        if self.causal { op::FLAG_CAUSAL } else { 0 }
    }
    pub(super) fn params(&self) -> op::AttentionParams {
        op::AttentionParams {
            flags: self.flags(),
            scale: self.scale,
            window: self.window as i64,
            ..Default::default()
        }
    }
    /// Dropout acts in training only, and of a part of the queries and keys by their places among `whole`.
    fn ext_params(&self, env: &Env<'_>, part: &Part, whole: [u64; 2]) -> op::AttentionExtParams {
        let is_whole = [part.queries[2], part.keys] == whole;
        let [queries, keys] = if is_whole { [0; 2] } else { whole };
        op::AttentionExtParams {
            queries: queries as i64,
            keys: keys as i64,
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
    /// A part for each run of queries.
    parts: Vec<Part>,
    /// Queries and keys of whole rows.
    whole: [u64; 2],
    spec: AttentionSpec,
    op_index: u32,
    /// By `attention_ext_*`.
    ext: bool,
}

/// Queries that are consecutive tokens of a row, and the keys that they are held against.
struct Part {
    /// The first among the queries that are here, the first in the row, and how many.
    queries: [u64; 3],
    /// How many keys from the first on.
    keys: u64,
    /// Where documents share rows: where their queries end in this run and where their keys end, the same where queries and keys are the
    /// same positions.
    segments: Option<[Tensor; 2]>,
    /// The log of the sum of the exponentials of each query's scores, f32 `[B, H, queries]`.
    lse: Tensor,
}

/// The parts of attention of `tq` queries over `tk` keys a row.
fn parts(cx: &Cx<'_>, spec: &AttentionSpec, [rows, tq, tk]: [u64; 3]) -> Result<Vec<Part>> {
    let (env, batch) = (cx.env, &cx.env.batch);
    let lse = |n: u64| env.run.empty([rows, spec.heads, n], DType::F32);
    let cu = batch.segments_of(rows)?;
    // Queries of every token of the row, or of rows that are not cut.
    if tq == tk || batch.cut_over == AxisSet::NONE {
        return Ok(vec![Part {
            queries: [0, 0, tq],
            keys: tk,
            segments: cu.map(|cu| [cu.clone(), cu.clone()]),
            lse: lse(tq)?,
        }]);
    }
    if batch.whole(env.groups, tq) != tk || spec.window > 0 && !spec.causal {
        return shape_error(format!(
            "attention: {tq} queries of cut rows over {tk} keys, window {} without a causal mask: give the keys of whole rows",
            spec.window
        ));
    }
    let runs = batch.runs(env.groups, tq);
    let each = runs.placed().enumerate();
    each.map(|(i, (at, [from, n]))| {
        let segments = match (cu, batch.run_segments.chunks_exact(2).nth(i)) {
            (None, _) => None,
            (Some(_), Some(both)) => Some([both[0].clone(), both[1].clone()]),
            (Some(_), None) => {
                return shape_error(
                    "attention: the batch has documents and no lengths of them for cut rows",
                );
            }
        };
        Ok(Part {
            queries: [at, from, n],
            keys: if spec.causal { from + n } else { tk },
            segments,
            lse: lse(n)?,
        })
    })
    .collect()
}

impl Part {
    fn is_whole(&self, tq: u64) -> bool {
        self.queries[2] == tq
    }
    /// Its queries among those that are here.
    fn of_queries(&self, t: &Tensor) -> Tensor {
        match self.is_whole(t.shape().dims()[1]) {
            true => t.clone(),
            false => t.narrow(1, self.queries[0], self.queries[2]),
        }
    }
    fn of_keys(&self, t: &Tensor) -> Tensor {
        match t.shape().dims()[1] == self.keys {
            true => t.clone(),
            false => t.narrow(1, 0, self.keys),
        }
    }
    /// Where the keys of documents end, where that is not where their queries do.
    fn cu_of_keys(&self) -> Option<&Tensor> {
        let both = self.segments.as_ref();
        both.filter(|_| self.queries[2] != self.keys)
            .map(|[_, keys]| keys)
    }
    /// The part of a bias by distance of rows of `tokens` that is between these queries and keys.
    fn of_distances(&self, bias: &Tensor, tokens: u64) -> Tensor {
        let [_, from, n] = self.queries;
        let distances = n + self.keys - 1;
        match bias.shape().dims()[1] == distances {
            true => bias.clone(),
            false => bias.narrow(1, tokens - n - from, distances),
        }
    }
}

/// The key of the mask of dropped weights, by their places in the global batch: `[sequence, head, query, key]`, each query's keys a whole
/// number of philox blocks.
///
/// The launches that it takes, by the rows of each: one, but where other ranks have the other heads or queries, and so the places between two
/// sequences.
fn keys(
    env: &Env<'_>,
    spec: &AttentionSpec,
    op_index: u32,
    part: &Part,
    (rows, whole): (u64, [u64; 2]),
) -> Vec<([u64; 2], op::PhiloxDyn)> {
    let [at, ranks] = match spec.dropout > 0.0 && env.training {
        true => spec.place_of_heads(env),
        false => [0, 1],
    };
    let [_, from, queries] = part.queries;
    let [all, blocks] = [whole[0], whole[1].div_ceil(4)];
    let key = |row: u64| op::PhiloxDyn {
        seed: env.key.seed,
        stream: env.key.stream(op_index),
        offset: (((env.key.first_sequence + row) * ranks + at) * spec.heads * all + from) * blocks,
        ..Default::default()
    };
    match ranks == 1 && queries == all {
        true => vec![([0, rows], key(0))],
        false => (0..rows).map(|row| ([row, 1], key(row))).collect(),
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
    (packed, cut): (bool, bool),
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
    let queries = if cut { e[1] } else { d[1] };
    let distances = [h, (queries + e[1]).saturating_sub(1)];
    if bias.is_some_and(|b| *b.shape().dims() != distances || b.dtype() != DType::F32)
        || sinks.is_some_and(|s| *s.shape().dims() != [h])
    {
        return shape_error(format!(
            "attention: bias {bias:?} must be f32 {distances:?} and sinks {sinks:?} [{h}]"
        ));
    }
    if packed && queries != e[1] {
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
    let cut = cx.env.batch.cut_over != AxisSet::NONE;
    let cu = cx.env.batch.segments_of(rows)?;
    fits(&spec, [qv, kv, vv], [bias, sinks], (cu.is_some(), cut))?;
    let (d, e) = (qv.shape().dims(), kv.shape().dims());
    let (run, h, g) = (cx.env.run, spec.heads, spec.kv_heads);
    let o = run.empty([d[0], d[1], d[2..].iter().product()], qv.dtype())?;
    let parts = parts(cx, &spec, [d[0], d[1], e[1]])?;
    let whole = [if cut { e[1] } else { d[1] }, e[1]];
    let dropped = spec.dropout > 0.0 && cx.env.training;
    let added = spec.cap > 0.0 || dropped || bias.is_some() || sinks.is_some();
    // Documents of which the queries of a run are a part are for the extended op too.
    let ext = added || cu.is_some() && [d[1], e[1]] != whole;
    let op_index = cx.op_index();
    for part in &parts {
        let [o1, q1] = [&o, qv].map(|t| part.of_queries(t).heads(h));
        let [k1, v1] = [kv, vv].map(|t| part.of_keys(t).heads(g));
        let ops = [&o1, &part.lse, &q1, &k1, &v1].map(Some);
        let [o1, lse1, q1, k1, v1] = ops;
        let cu = part.segments.as_ref().map(|[q, _]| q);
        if ext {
            let params = spec.ext_params(cx.env, part, whole);
            let bias = bias.map(|b| part.of_distances(b, e[1]));
            let cu_k = part.cu_of_keys();
            for (rows, key) in keys(cx.env, &spec, op_index, part, (d[0], whole)) {
                let each = [o1, lse1, q1, k1, v1, cu, cu_k].map(|t| of_rows(t, rows));
                let [o1, lse1, q1, k1, v1, cu, cu_k] = each.each_ref().map(Option::as_ref);
                run.launch(
                    op::ATTENTION_EXT_FWD,
                    &[o1, lse1, q1, k1, v1, bias.as_ref(), sinks, cu, cu_k],
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
        parts,
        whole,
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
        // Several runs of queries read the same keys: the run with the most keys writes their gradients, and the others add to them.
        let mut order: Vec<&Part> = self.parts.iter().collect();
        order.sort_by_key(|p| std::cmp::Reverse(p.keys));
        for (i, part) in order.into_iter().enumerate() {
            let narrow = |t: &Tensor| part.of_keys(t);
            let to = match i {
                0 => [&dk, &dv].map(narrow),
                _ => {
                    let like = |t: &Tensor| b.env.run.empty(*narrow(t).shape(), t.dtype());
                    [like(&dk)?, like(&dv)?]
                }
            };
            let all = [&dq, &dy, &o, &q].map(|t| part.of_queries(t));
            self.part_backward(
                b,
                nodes,
                part,
                (all.each_ref(), [&narrow(&k), &narrow(&v)], to.each_ref()),
            )?;
            for (whole, part_of) in [&dk, &dv].into_iter().zip(&to) {
                let all = whole.shape().dims()[1];
                match i {
                    0 if part.keys < all => {
                        let hidden = whole.narrow(1, part.keys, all - part.keys);
                        let nothing = b.env.run.zeros(*hidden.shape(), hidden.dtype())?;
                        copy(b.env, &hidden, &nothing)?;
                    }
                    0 => {}
                    // Sums are dense, and the keys of a part of each row are not.
                    _ => {
                        let these = narrow(whole);
                        sum(b.env, part_of, part_of, &these)?;
                        copy(b.env, &these, part_of)?;
                    }
                }
            }
        }
        b.give(self.q, dq)?;
        b.give(self.k, dk)?;
        b.give(self.v, dv)
    }

    /// The gradients of one part: of `dq, dy, o, q`, of `k, v`, into `dk, dv`.
    fn part_backward(
        &self,
        b: &mut Back<'_, '_>,
        nodes: &[OpNode],
        part: &Part,
        (wide, [k, v], [dk, dv]): ([&Tensor; 4], [&Tensor; 2], [&Tensor; 2]),
    ) -> Result<()> {
        let (h, g) = (self.spec.heads, self.spec.kv_heads);
        let wide = wide.map(|t| t.heads(h));
        let narrow = [dk, dv, k, v].map(|t| t.heads(g));
        let ops = [
            &wide[0], &narrow[0], &narrow[1], &wide[1], &wide[2], &wide[3], &narrow[2], &narrow[3],
            &part.lse,
        ]
        .map(Some);
        if self.ext {
            return self.ext_backward(b, nodes, &ops, part);
        }
        let (run, params) = (b.env.run, self.spec.params());
        match &part.segments {
            Some([cu, _]) => {
                let [dq, dk, dv, dy, o, q, k, v, lse] = ops;
                let ops = [dq, dk, dv, dy, o, q, k, v, lse, Some(cu)];
                run.launch(op::ATTENTION_VARLEN_BWD, &ops, params.as_bytes(), &[])
            }
            None => run.launch(op::ATTENTION_BWD, &ops, params.as_bytes(), &[]),
        }
    }

    /// By `attention_ext_bwd`; gives the bias and the sinks their gradients.
    fn ext_backward(
        &self,
        b: &mut Back<'_, '_>,
        nodes: &[OpNode],
        ops: &[Option<&Tensor>; 9],
        part: &Part,
    ) -> Result<()> {
        let env = b.env;
        let learned = self.extras.bias.map(|v| b.val(v, nodes)).transpose()?;
        let dbias = match &learned {
            Some(t) => Some(env.run.zeros(*t.shape(), DType::F32)?),
            None => None,
        };
        let bias = learned.as_ref().or(self.extras.fixed_bias.as_ref());
        let bias = bias.map(|t| part.of_distances(t, self.whole[1]));
        let part_of_dbias = dbias.as_ref().map(|t| part.of_distances(t, self.whole[1]));
        let sinks = self.extras.sinks.map(|p| p.0 as usize);
        let wanted = sinks.filter(|p| env.grads.wants(*p));
        // The op adds in f32; the gradient may be of another type.
        let dsinks = match wanted {
            Some(p) => Some(env.run.zeros(*env.params[p].shape(), DType::F32)?),
            None => None,
        };
        let params = self.spec.ext_params(env, part, self.whole);
        let rows = ops[5].map_or(0, |t| t.shape().dims()[0]);
        let sinks = sinks.map(|p| &env.params[p]);
        let (cu, cu_k) = (part.segments.as_ref().map(|[q, _]| q), part.cu_of_keys());
        for (rows, key) in keys(env, &self.spec, self.op_index, part, (rows, self.whole)) {
            let each = ops.map(|t| of_rows(t, rows));
            let [dq, dk, dv, dy, o, q, k, v, lse] = each.each_ref().map(Option::as_ref);
            let [cu, cu_k] = [cu, cu_k].map(|t| of_rows(t, rows));
            let (dbias, dsinks) = (part_of_dbias.as_ref(), dsinks.as_ref());
            let (bias, cu, cu_k) = (bias.as_ref(), cu.as_ref(), cu_k.as_ref());
            let all = [
                dq, dk, dv, dbias, dsinks, dy, o, q, k, v, lse, bias, sinks, cu, cu_k,
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
