//! Attention of queries that stay over keys and values that go around a ring of ranks (context parallelism, [`crate::Meeting::Ring`]; Liu et
//! al. 2023, arXiv 2310.01889).
//!
//! | step | keys and values that are here | what travels meanwhile |
//! |---|---|---|
//! | 0 | own | own, to the next rank |
//! | i | of the rank i places before | these, to the next; in the backward the gradients that ranks before have made of them |
//! | last | of the rank behind | in the backward: gradients, which are then home |
//!
//! What a step gives is merged in f32 by the logs of the sums of exponentials (`Merge`). Each part of the backward has the
//! merged result and log, so that its weights are those of whole rows; gradients of keys and values travel in f32 and are
//! added in the order of the ring. A part in which no query sees a key is not computed.

use super::OpNode;
use super::add::{copy, sum};
use super::attention::{AttentionExtras, AttentionSpec};
use super::ring_parts::{Circle, Mask, Merge, Parcel, Part};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Lane, Link};
use crate::tape::{Back, Origin, Var};
use crate::{Batch, Cx, Meeting, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

/// The op in messages and facts.
const NAME: &str = "ring";

pub(crate) struct Node {
    q: Var,
    k: Var,
    v: Var,
    extras: AttentionExtras,
    pub out: Var,
    circle: Circle,
    spec: AttentionSpec,
    op_index: u32,
    /// The log of the sum of the exponentials of each query's scores over all keys, f32 `[B, H, n]` of each run.
    lse: Vec<Tensor>,
}

/// Attention over a ring under way on one rank.
struct Round<'a, 'e> {
    env: &'a Env<'e>,
    circle: Circle,
    spec: AttentionSpec,
    op_index: u32,
    /// Rows.
    rows: u64,
    /// Bias by distance of whole rows.
    bias: Option<&'a Tensor>,
    sinks: Option<&'a Tensor>,
    /// Type of the operands.
    dtype: DType,
}

/// The operands that a part has beside those of every attention.
#[derive(Default)]
struct Beside {
    bias: Option<Tensor>,
    cu: [Option<Tensor>; 2],
}

impl Round<'_, '_> {
    fn link(&self) -> Link {
        let link = Link::new(NAME, Axis::Cp);
        match self.env.groups.beside() {
            true => Link {
                lane: Lane::Beside,
                ..link
            },
            false => link,
        }
    }

    /// Begins to send what is here to the next rank, and to receive as much from the one before.
    fn pass_on(&self, here: &Tensor) -> Result<Tensor> {
        let came = self.env.run.empty(*here.shape(), here.dtype())?;
        let [to, from] = self.circle.neighbours();
        let messages = [
            Exchange::Send { to, what: here },
            Exchange::Recv { from, what: &came },
        ];
        let groups = self.env.groups;
        groups.exchange(self.env.run, &self.link(), &messages)?;
        Ok(came)
    }

    /// Waits for what travels.
    fn arrive(&self) -> Result<()> {
        self.env.groups.settle(self.env.run)
    }

    /// Room for keys and values of a place, or for their gradients.
    fn room(&self, place: u64, width: u64, dtype: DType) -> Result<Parcel> {
        Parcel::room(self.env, self.circle.runs(place), [self.rows, width], dtype)
    }

    /// Keys and values of this rank as they travel.
    fn packed(&self, k: &Tensor, v: &Tensor) -> Result<Parcel> {
        let own = self.circle.place[0];
        let width = k.shape().dims()[2..].iter().product();
        let all = self.room(own, width, self.dtype)?;
        for (i, (at, [_, n])) in self.circle.runs(own).placed().enumerate() {
            for (to, from) in all.of(i).iter().zip([k, v]) {
                let from = from.narrow(1, at, n);
                copy(self.env, &to.view(*from.shape()), &from)?;
            }
        }
        Ok(all)
    }

    /// The tokens of queries' run `i` among those that are here.
    fn of_run(&self, t: &Tensor, i: usize) -> Tensor {
        match self.circle.runs(self.circle.place[0]).placed().nth(i) {
            Some((at, [_, n])) if n < t.shape().dims()[1] => t.narrow(1, at, n),
            _ => t.clone(),
        }
    }

    /// Returns true if a part is for the extended op: what is added to scores, documents, keys of which a window shows some, and 16 bits,
    /// whose parts are f32.
    fn is_extended(&self, part: &Part) -> bool {
        let dropped = self.spec.dropout > 0.0 && self.env.training;
        let added = self.spec.cap > 0.0 || dropped || self.bias.is_some() || self.sinks.is_some();
        let documents = self.env.batch.segments.is_some();
        let shifted = matches!(part.mask, Mask::Shifted(_));
        added || documents || shifted || self.dtype != DType::F32
    }

    fn beside(&self, part: &Part, whose: u64) -> Result<Beside> {
        let ((i, [a, n]), (j, [c, m])) = (part.queries, part.keys);
        let t = self.circle.tokens;
        let bias = self.bias.map(|b| b.narrow(1, c + t - a - n, n + m - 1));
        let batch = self.env.batch;
        let cu = match batch.segments_of(self.rows)? {
            None => [None, None],
            Some(_) => {
                let of = |place: u64, run: usize| {
                    let at = self.circle.number(place, run);
                    batch.run_segments.get(at).cloned()
                };
                let both = [of(self.circle.place[0], i), of(whose, j)];
                if both.iter().any(Option::is_none) {
                    return shape_error(
                        "attention: the batch has documents and no lengths of them for the ranks of a ring",
                    );
                }
                both
            }
        };
        Ok(Beside { bias, cu })
    }

    /// Parameters of a part for the op that all devices have.
    fn params(&self, part: &Part) -> op::AttentionParams {
        self.masked(part).params()
    }

    /// The mask that a part has left.
    fn masked(&self, part: &Part) -> AttentionSpec {
        match part.mask {
            Mask::Nothing => AttentionSpec {
                causal: false,
                window: 0,
                ..self.spec
            },
            // Keys behind a causal query are in no part but its own.
            Mask::Own | Mask::Shifted(_) => self.spec,
        }
    }

    /// The same for the extended op: numbers of whole rows and heads, by which dropped weights are drawn.
    fn ext_params(
        &self,
        part: &Part,
        has_documents: bool,
    ) -> (op::AttentionExtParams, op::PhiloxDyn) {
        let (env, t) = (self.env, self.circle.tokens);
        let ((_, [a, _]), (_, [c, _])) = (part.queries, part.keys);
        let spec = self.masked(part);
        let dropped = spec.dropout > 0.0 && env.training;
        let [at, ranks] = spec.place_of_heads(env);
        let whole = |n: u64| if dropped { n as i64 } else { 0 };
        let documents = if has_documents { op::FLAG_IN_ROW } else { 0 };
        let params = op::AttentionExtParams {
            flags: spec.flags() | documents,
            scale: spec.scale,
            window: spec.window as i64,
            cap: spec.cap,
            dropout: if dropped { spec.dropout } else { 0.0 },
            heads: whole(ranks * spec.heads),
            queries: whole(t),
            keys: whole(t),
            first_key: whole(c),
            shift: match part.mask {
                Mask::Shifted(by) => by,
                Mask::Own | Mask::Nothing => 0,
            },
            ..Default::default()
        };
        let first = env.key.first_sequence * ranks + at;
        let key = op::PhiloxDyn {
            seed: env.key.seed,
            stream: env.key.stream(self.op_index),
            offset: (first * spec.heads * t + a) * t.div_ceil(4),
            ..Default::default()
        };
        (params, key)
    }

    /// One part: its result, f32 `[B, n, width]`, and the log of its sums.
    fn part(
        &self,
        q: &Tensor,
        [k, v]: &[Tensor; 2],
        part: &Part,
        whose: u64,
    ) -> Result<[Tensor; 2]> {
        let (h, g, run) = (self.spec.heads, self.spec.kv_heads, self.env.run);
        let (i, [_, n]) = part.queries;
        let q = self.of_run(q, i);
        let width = q.shape().dims()[2..].iter().product();
        let o = run.empty([self.rows, n, width], DType::F32)?;
        let lse = run.empty([self.rows, h, n], DType::F32)?;
        let [o1, q1] = [&o, &q].map(|t| t.heads(h));
        let [k1, v1] = [k, v].map(|t| t.heads(g));
        let [o1, l1, q1, k1, v1] = [&o1, &lse, &q1, &k1, &v1].map(Some);
        if self.is_extended(part) {
            let beside = self.beside(part, whose)?;
            let (params, key) = self.ext_params(part, beside.cu[0].is_some());
            let [cu, cu_k] = beside.cu.each_ref().map(Option::as_ref);
            let sinks = self.sinks.filter(|_| part.is_own);
            let all = [o1, l1, q1, k1, v1, beside.bias.as_ref(), sinks, cu, cu_k];
            let id = op::ATTENTION_EXT_FWD;
            run.launch(id, &all, params.as_bytes(), key.as_bytes())?;
        } else {
            let params = self.params(part);
            run.launch(
                op::ATTENTION_FWD,
                &[o1, l1, q1, k1, v1],
                params.as_bytes(),
                &[],
            )?;
        }
        Ok([o, lse])
    }

    /// All parts: of each run that is here the merged result and log.
    fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Vec<[Tensor; 2]>> {
        let merge = Merge::new();
        let [own, places] = self.circle.place;
        let mut merged: Vec<Option<[Tensor; 2]>> = vec![None; self.circle.runs(own).iter().count()];
        let mut here = self.packed(k, v)?;
        for step in 0..places {
            let whose = self.circle.whose(step);
            let next = match step + 1 < places {
                true => Some(self.pass_on(&here.flat)?),
                false => None,
            };
            for part in self.circle.parts(&self.spec, whose) {
                let made = self.part(q, &here.of(part.keys.0), &part, whose)?;
                match &mut merged[part.queries.0] {
                    Some(to) => merge.add(self.env, [to, &made])?,
                    first => *first = Some(made),
                }
            }
            self.arrive()?;
            if let Some(flat) = next {
                here = here.holding(flat, self.circle.runs(self.circle.whose(step + 1)));
            }
        }
        let all: Option<Vec<[Tensor; 2]>> = merged.into_iter().collect();
        match all {
            Some(all) => Ok(all),
            None => shape_error("attention: queries of a ring see none of its keys"),
        }
    }
}

/// Refuses operands that attention over a ring cannot have.
fn fits(
    spec: &AttentionSpec,
    circle: &Circle,
    [qv, kv, vv]: [&Tensor; 3],
    extras: &AttentionExtras,
    sinks: Option<&Tensor>,
) -> Result<()> {
    let (d, e) = (qv.shape().dims(), kv.shape().dims());
    let width = |d: &[u64], heads: u64| match d {
        [_, _, rest @ ..] if heads > 0 => {
            let all: u64 = rest.iter().product();
            all.is_multiple_of(heads).then_some(all / heads)
        }
        _ => None,
    };
    let alike = spec.kv_heads > 0
        && spec.heads.is_multiple_of(spec.kv_heads)
        && width(d, spec.heads).is_some()
        && width(d, spec.heads) == width(e, spec.kv_heads)
        && d[..2] == e[..2]
        && vv.shape() == kv.shape();
    if !alike {
        return shape_error(format!(
            "attention over a ring: q {qv:?}, k {kv:?}, v {vv:?} with {} heads over {}",
            spec.heads, spec.kv_heads
        ));
    }
    if extras.bias.is_some() {
        return shape_error(
            "attention over a ring: a learned bias by distance has no gradient here; set mesh.cp_comm to \"a2a\"",
        );
    }
    let t = circle.tokens;
    let bias = extras.fixed_bias.as_ref();
    let distances = [spec.heads, 2 * t - 1];
    if bias.is_some_and(|b| *b.shape().dims() != distances || b.dtype() != DType::F32)
        || sinks.is_some_and(|s| *s.shape().dims() != [spec.heads])
    {
        return shape_error(format!(
            "attention over a ring: bias {bias:?} must be f32 {distances:?} and sinks {sinks:?} [{}]",
            spec.heads
        ));
    }
    Ok(())
}

/// Returns true if the keys of a batch's other tokens go around a ring of ranks.
pub(crate) fn goes_round(batch: &Batch) -> bool {
    batch.cut_over.contains(Axis::Cp) && matches!(batch.rows.meeting, Meeting::Ring { .. })
}

pub(crate) fn forward(
    cx: &mut Cx<'_>,
    [q, k, v]: [Var; 3],
    spec: AttentionSpec,
    extras: AttentionExtras,
) -> Result<Var> {
    let (qv, kv, vv) = (cx.val(q)?, cx.val(k)?, cx.val(v)?);
    let d = qv.shape().dims();
    let [rows, here] = match *d {
        [b, t, ..] => [b, t],
        _ => [0, 0],
    };
    let circle = Circle::of(cx.env.batch, cx.env.groups, here);
    let sinks = extras.sinks.map(|s| cx.param(s)).transpose()?;
    fits(&spec, &circle, [qv, kv, vv], &extras, sinks)?;
    let round = Round {
        env: cx.env,
        circle,
        spec,
        op_index: cx.op_index(),
        rows,
        bias: extras.fixed_bias.as_ref(),
        sinks,
        dtype: qv.dtype(),
    };
    let op_index = round.op_index;
    let merged = round.forward(qv, kv, vv)?;
    let shape = [rows, here, d[2..].iter().product()];
    let o = match &merged[..] {
        [[one, _]] if qv.dtype() == DType::F32 => one.clone(),
        _ => {
            let o = cx.env.run.empty(shape, qv.dtype())?;
            for (i, [part, _]) in merged.iter().enumerate() {
                rounded(cx.env, &round.of_run(&o, i), part)?;
            }
            o
        }
    };
    let lse = merged.into_iter().map(|[_, lse]| lse).collect();
    let node = cx.next_node();
    let out = cx.push_val(o, node, Origin::Own, false);
    for x in [q, k, v, out] {
        cx.save(x);
    }
    cx.typed(out, |c| {
        let ins = [q, k, v].map(|x| c.vals[x.0 as usize]);
        let met = spec.split.union(Axis::Cp.into());
        c.attention(&ins, met, extras.sinks.map(|s| s.0.into()))
    });
    cx.push_node(OpNode::Ring(Box::new(Node {
        q,
        k,
        v,
        extras,
        out,
        circle,
        spec,
        op_index,
        lse,
    })));
    Ok(out)
}

/// `y = x` of f32, in the type of `y`, any strides.
fn rounded(env: &Env<'_>, y: &Tensor, x: &Tensor) -> Result<()> {
    let x = x.view(*y.shape());
    if y.dtype() == x.dtype() {
        return copy(env, y, &x);
    }
    // Casts write densely.
    let dense = match y.is_dense() {
        true => y.clone(),
        false => env.run.empty(*y.shape(), y.dtype())?,
    };
    let none = op::NoParams::default();
    let operands = [Some(&dense), Some(&x)];
    env.run.launch(op::CAST, &operands, none.as_bytes(), &[])?;
    match y.is_dense() {
        true => Ok(()),
        false => copy(env, y, &dense),
    }
}

/// A gradient that parts are added to, of which the first is written.
struct Sum {
    parts: Vec<Tensor>,
    written: Vec<bool>,
}

impl Sum {
    fn new(parts: Vec<Tensor>) -> Sum {
        let written = vec![false; parts.len()];
        Sum { parts, written }
    }
    /// Where part `i` is written: there, or beside it.
    fn slot(&self, env: &Env<'_>, i: usize) -> Result<Tensor> {
        let to = &self.parts[i];
        match self.written[i] {
            false => Ok(to.clone()),
            true => env.run.empty(*to.shape(), to.dtype()),
        }
    }
    /// Adds what was written into a slot.
    fn add(&mut self, env: &Env<'_>, i: usize, slot: &Tensor) -> Result<()> {
        match std::mem::replace(&mut self.written[i], true) {
            false => Ok(()),
            true => sum(env, &self.parts[i], &self.parts[i], slot),
        }
    }
}

/// The gradients that a ring's backward makes.
struct Made {
    /// Those of the queries of each run, f32.
    dq: Vec<Tensor>,
    /// Those of this rank's keys and values, f32.
    dkv: Parcel,
    /// That of the sinks, f32.
    dsinks: Option<Tensor>,
}

impl Round<'_, '_> {
    /// One part of the backward: of `dy`, the merged result and `q`, `k`, `v`, into `dq` and `[dk, dv]`.
    fn part_backward(
        &self,
        part: &Part,
        whose: u64,
        (dq, [dk, dv]): (&Tensor, &[Tensor; 2]),
        (wide, [k, v], lse): (&[Tensor; 3], &[Tensor; 2], &Tensor),
        dsinks: Option<&Tensor>,
    ) -> Result<()> {
        let (h, g, run) = (self.spec.heads, self.spec.kv_heads, self.env.run);
        let i = part.queries.0;
        let [dy, o, q] = wide.each_ref().map(|t| self.of_run(t, i).heads(h));
        let dq = dq.heads(h);
        let narrow = [dk, dv, k, v].map(|t| t.heads(g));
        let [dk, dv, k, v] = narrow.each_ref().map(Some);
        let [dq, dy, o, q] = [&dq, &dy, &o, &q].map(Some);
        if !self.is_extended(part) {
            let params = self.params(part);
            let all = [dq, dk, dv, dy, o, q, k, v, Some(lse)];
            return run.launch(op::ATTENTION_BWD, &all, params.as_bytes(), &[]);
        }
        let beside = self.beside(part, whose)?;
        let (params, key) = self.ext_params(part, beside.cu[0].is_some());
        let [cu, cu_k] = beside.cu.each_ref().map(Option::as_ref);
        let sinks = self.sinks.filter(|_| part.is_own);
        let dsinks = dsinks.filter(|_| part.is_own);
        let bias = beside.bias.as_ref();
        let all = [
            dq,
            dk,
            dv,
            None,
            dsinks,
            dy,
            o,
            q,
            k,
            v,
            Some(lse),
            bias,
            sinks,
            cu,
            cu_k,
        ];
        let id = op::ATTENTION_EXT_BWD;
        run.launch(id, &all, params.as_bytes(), key.as_bytes())
    }

    fn backward(
        &self,
        wide: &[Tensor; 3],
        (k, v): (&Tensor, &Tensor),
        lse: &[Tensor],
        dsinks: Option<Tensor>,
    ) -> Result<Made> {
        let (env, [own, places]) = (self.env, self.circle.place);
        let of_run = |[_, n]: [u64; 2]| {
            let width = wide[2].shape().dims()[2..].iter().product();
            env.run.empty([self.rows, n, width], DType::F32)
        };
        let dq = self.circle.runs(own).iter().map(of_run);
        let mut dq = Sum::new(dq.collect::<Result<_>>()?);
        let width = k.shape().dims()[2..].iter().product();
        let mut here = self.packed(k, v)?;
        // Gradients that ranks before have made of the keys that were here last.
        let mut sums: Option<Parcel> = None;
        for step in 0..places {
            let whose = self.circle.whose(step);
            let came = sums.as_ref().map(|p| self.pass_on(&p.flat)).transpose()?;
            let next = match step + 1 < places {
                true => Some(self.pass_on(&here.flat)?),
                false => None,
            };
            let parts = self.circle.parts(&self.spec, whose);
            let made = match parts.is_empty() {
                true => None,
                false => Some(self.room(whose, width, DType::F32)?),
            };
            let runs = made.iter().flat_map(|m| {
                let runs = self.circle.runs(whose).iter().count();
                (0..runs).flat_map(|j| m.of(j))
            });
            let mut dkv = Sum::new(runs.collect());
            for part in parts {
                let ((i, _), (j, _)) = (part.queries, part.keys);
                let to_q = dq.slot(env, i)?;
                let to_kv = [dkv.slot(env, 2 * j)?, dkv.slot(env, 2 * j + 1)?];
                let of = (wide, &here.of(j), &lse[i]);
                self.part_backward(&part, whose, (&to_q, &to_kv), of, dsinks.as_ref())?;
                dq.add(env, i, &to_q)?;
                for (side, slot) in to_kv.iter().enumerate() {
                    dkv.add(env, 2 * j + side, slot)?;
                }
            }
            self.arrive()?;
            sums = match (came, sums, made) {
                (Some(flat), Some(before), made) => {
                    let all = before.holding(flat, self.circle.runs(whose));
                    if let Some(made) = made {
                        for (j, _) in self.circle.runs(whose).iter().enumerate() {
                            let sides = all.of(j).into_iter().zip(made.of(j)).enumerate();
                            for (side, (to, own)) in sides {
                                if dkv.written[2 * j + side] {
                                    sum(env, &to, &to, &own)?;
                                }
                            }
                        }
                    }
                    Some(all)
                }
                // Of its own keys a rank has a part of each.
                (_, _, made) => made,
            };
            if let Some(flat) = next {
                here = here.holding(flat, self.circle.runs(self.circle.whose(step + 1)));
            }
        }
        let dkv = match sums {
            Some(last) if places > 1 => {
                let home = self.pass_on(&last.flat)?;
                self.arrive()?;
                last.holding(home, self.circle.runs(own))
            }
            Some(all) => all,
            None => return shape_error("attention: keys of a ring that no rank has"),
        };
        Ok(Made {
            dq: dq.parts,
            dkv,
            dsinks,
        })
    }
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
        let env = b.env;
        let sinks = self.extras.sinks.map(|p| p.0 as usize);
        let wanted = sinks.filter(|p| env.grads.wants(*p));
        let dsinks = match wanted {
            Some(p) => Some(env.run.zeros(*env.params[p].shape(), DType::F32)?),
            None => None,
        };
        let round = Round {
            env,
            circle: self.circle,
            spec: self.spec,
            op_index: self.op_index,
            rows: q.shape().dims()[0],
            bias: self.extras.fixed_bias.as_ref(),
            sinks: sinks.map(|p| &env.params[p]),
            dtype: q.dtype(),
        };
        let made = round.backward(&[dy, o, q], (&k, &v), &self.lse, dsinks)?;
        if let (Some(p), Some(d)) = (wanted, &made.dsinks) {
            env.grads.take(env.run, p, d)?;
        }
        let [dq, dk, dv] = b.dests([self.q, self.k, self.v])?;
        for (i, part) in made.dq.iter().enumerate() {
            rounded(env, &round.of_run(&dq, i), part)?;
            for (to, of) in [&dk, &dv].into_iter().zip(made.dkv.of(i)) {
                rounded(env, &round.of_run(to, i), &of)?;
            }
        }
        b.give(self.q, dq)?;
        b.give(self.k, dk)?;
        b.give(self.v, dv)
    }

    /// Values read.
    pub fn inputs(&self) -> Vec<Var> {
        vec![self.q, self.k, self.v]
    }
}
