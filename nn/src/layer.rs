//! A transformer layer as its description says: norms, attention, MLP, in the order and with the parts that it names.

use crate::context;
use crate::desc::{self, Act, Around, Model, Order, Positions, Qkv, Up};
use crate::experts::{self, Experts};
use crate::lora::{Adapter, Adapters};
use crate::parts::{Curve, Declare, HeadNormed, Input, Lin, Normed, Several, activation};
use crate::split::{self, Cut};
use crossweave_family::rope::{Rotary, Tables};
use crossweave_tensor::{
    AttentionExtras, AttentionSpec, Axis, AxisSet, Block, Builder, Cx, Flow, Init, Lies, Param,
    Place, Pointwise, Result, Tensor, Var, dropout_of,
};
use std::sync::Arc;

/// Norms around attention or MLP.
#[derive(Clone, Copy)]
struct Norms {
    before: Option<Normed>,
    after: Option<Normed>,
    sum: Option<Normed>,
}

/// Tables of angles among the constants of the block, of queries and of keys: those of short sequences, and of longer ones where they differ.
#[derive(Clone, Copy)]
struct Turn {
    short: [[usize; 2]; 2],
    long: Option<(u64, [[usize; 2]; 2])>,
    interleaved: bool,
}

struct Attention {
    qkv: Several,
    /// Fewer key-value heads than ranks: so many, of which every rank takes that of its queries.
    shared_heads: Option<u64>,
    qk_norm: Option<[HeadNormed; 2]>,
    /// The norms stand behind the rotation.
    rotates_first: bool,
    turn: Option<Turn>,
    /// The line of biases by distance of the longest sequence, among the constants.
    alibi: Option<usize>,
    buckets: Option<Bias>,
    spec: AttentionSpec,
    out: Lin,
}

/// Learned biases by distance: of a table and a line of buckets among the constants, or those that the layers before have made of theirs.
enum Bias {
    Own(Param, usize),
    Given,
}

/// Attention to what an encoder gives.
struct Cross {
    q: Lin,
    kv: Several,
    spec: AttentionSpec,
    out: Lin,
}

/// The work of the MLP between its products.
enum Between {
    Curve(Curve),
    Swiglu,
    Glu(Pointwise),
}

struct Mlp {
    up: Several,
    between: Between,
    dropout: f64,
    down: Lin,
}

/// The part of a layer behind attention.
enum Feed {
    Mlp(Mlp),
    Experts(Box<Mixture>),
}

/// Experts, and what weighs them against the MLP that stays beside them (Rajbhandari et al. 2022, arXiv 2201.05596).
struct Mixture {
    experts: Experts,
    beside: Option<(Mlp, Lin)>,
}

struct Layer {
    attention: (Norms, Attention),
    cross: Option<(Norms, Cross)>,
    feed: (Norms, Feed),
    order: Order,
    residual_of_norm: bool,
    dropout: f64,
    factor: Option<Pointwise>,
    adapters: Vec<Option<Adapter>>,
}

/// Tables that layers share: one of each rotation, one of the biases by distance.
#[derive(Default)]
struct Shared {
    turns: Vec<(Rotary, [Tables; 2], Option<[Tables; 2]>)>,
    alibi: Option<Arc<[f32]>>,
}

/// Declares the layers of an encoder's decoder.
pub fn behind(b: &mut Builder, m: &Model, d: &desc::Decoder, all: &mut Adapters, place: &Place) {
    declare(b, m, (d.prefix, &d.layers), all, place);
}

/// Declares the layers, cut over the tensor-parallel ranks of the mesh.
pub fn layers(b: &mut Builder, m: &Model, all: &mut Adapters, place: &Place) {
    declare(b, m, (m.stack.prefix, &m.stack.layers), all, place);
}

fn declare(
    b: &mut Builder,
    m: &Model,
    (prefix, layers): (&str, &[desc::Layer]),
    all: &mut Adapters,
    place: &Place,
) {
    let mut shared = Shared::default();
    let apart = experts::apart(place);
    for (i, l) in layers.iter().enumerate() {
        let name = format!("{prefix}.{i}");
        let lent = l.experts.as_ref().filter(|_| apart);
        let lent = lent.map(|e| experts::stacks(b, m, &name, (e, &mut *all)));
        b.unit(&name, |u| {
            let mut d = Declare::new(u, m.init.std, l.conv1d).over(place);
            let residual = m.init.residual as f32;
            let (around, a) = &l.attention;
            let attention = normed(&mut d, m.width, around, |d| {
                attention(d, m, a, residual, &mut shared)
            });
            let cross = l
                .cross
                .as_ref()
                .map(|(around, a)| normed(&mut d, m.width, around, |d| cross(d, m, a, residual)));
            let (around, mlp) = &l.mlp;
            let dropout = l.inner_dropout;
            let feed = normed(&mut d, m.width, around, |d| match &l.experts {
                Some(e) => {
                    let beside = e.beside.map(|weighs| {
                        let own = declared_mlp(d, m.width, mlp, residual, dropout);
                        (own, d.hidden_linear(weighs, [m.width, 2], d.std))
                    });
                    let experts = Experts::declare(d, m, e, place);
                    Feed::Experts(Box::new(Mixture { experts, beside }))
                }
                None => Feed::Mlp(declared_mlp(d, m.width, mlp, residual, dropout)),
            });
            let (u, adapters) = d.adapters(all);
            let mut layer = Layer {
                attention,
                cross,
                feed,
                order: l.order,
                residual_of_norm: l.residual_of_norm,
                dropout: l.dropout,
                factor: (l.factor != 0.0).then(|| Pointwise::scale(l.factor)),
                adapters,
            };
            if let (Some(e), (_, Feed::Experts(mixture))) = (&l.experts, &mut layer.feed) {
                match lent {
                    Some(adapters) => mixture.experts.borrow(u, e, adapters),
                    None => mixture.experts.adapt(u, m, e, all),
                }
            }
            layer
        });
    }
}

/// Declares what `make` does, between the norms around it.
fn normed<'a, 'u, T>(
    d: &mut Declare<'a, 'u>,
    width: u64,
    around: &Around,
    make: impl FnOnce(&mut Declare<'a, 'u>) -> T,
) -> (Norms, T) {
    let norm = |d: &mut Declare<'a, 'u>, n: Option<desc::Norm>| n.map(|n| d.hidden_norm(&n, width));
    let before = norm(d, around.before);
    let made = make(d);
    let [after, sum] = [around.after, around.sum].map(|n| norm(d, n));
    (Norms { before, after, sum }, made)
}

fn cross(d: &mut Declare<'_, '_>, m: &Model, c: &desc::Cross, residual: f32) -> Cross {
    let ([q, k, v], inner, std) = (c.qkv, c.heads * c.head_dim, d.std);
    let heads = c.heads / d.tp;
    Cross {
        q: d.columns(q, [m.width, inner], std, &[]),
        kv: d.several(&[k, v], m.width, &[inner; 2], true),
        spec: AttentionSpec {
            heads,
            kv_heads: heads,
            scale: c.scale,
            dropout: c.dropout,
            split: over_tp(d.tp),
            ..AttentionSpec::default()
        },
        out: d.rows(c.out, [inner, m.width], residual),
    }
}

fn attention(
    d: &mut Declare<'_, '_>,
    m: &Model,
    a: &desc::Attention,
    residual: f32,
    shared: &mut Shared,
) -> Attention {
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let widths = [q, kv, kv];
    let std = d.std;
    let all = q + 2 * kv;
    let shared_heads = split::shares(a, d.tp).then_some(a.kv_heads);
    let qkv = match a.qkv {
        Qkv::Separate([q, k, v]) if shared_heads.is_some() => {
            let sizes = widths.map(|w| [m.width, w]);
            let q = d.columns(q, sizes[0], std, &[]);
            Several::Apart(vec![
                q,
                d.hidden_linear(k, sizes[1], std),
                d.hidden_linear(v, sizes[2], std),
            ])
        }
        // Heads that are normed lie by themselves.
        Qkv::Separate(parts) => d.several(&parts, m.width, &widths, a.qk_norm.is_none()),
        Qkv::Fused(l) => {
            let lin = d.columns(l, [m.width, all], std, &widths);
            Several::Cut(lin, widths.map(|w| w / d.tp).to_vec())
        }
        Qkv::ByHead(l) => {
            let lin = d.columns(l, [m.width, all], std, &[]);
            let q = a.heads / a.kv_heads * a.head_dim;
            Several::CutHeads(lin, a.kv_heads / d.tp, vec![q, a.head_dim, a.head_dim])
        }
    };
    let qk_norm = a.qk_norm.map(|n| {
        let heads = [a.heads, a.kv_heads];
        let ranks = [d.tp, if shared_heads.is_some() { 1 } else { d.tp }];
        [0, 1].map(|i| d.head_norm(&n.norms[i], n.over, [heads[i], a.head_dim], ranks[i]))
    });
    let out = d.rows(a.out, [q, m.width], residual);
    let (mut turn, mut alibi, mut buckets) = (None, None, None);
    match &a.positions {
        Positions::None => {}
        Positions::Rotary(r) => turn = Some(shared.turn(d, m, r)),
        Positions::Alibi => alibi = Some(shared.alibi(d, m, a.heads)),
        Positions::Buckets(b) => {
            buckets = Some(match b.table {
                Some(name) => {
                    let table = d.u.param(name, &[b.rows, a.heads], Init::Normal(std));
                    let table = d.of_heads(table, 1);
                    Bias::Own(table, line(d, m, b, a.causal))
                }
                None => Bias::Given,
            });
        }
    }
    Attention {
        qkv,
        shared_heads,
        qk_norm,
        rotates_first: a.rotates_first,
        turn,
        alibi,
        buckets,
        spec: AttentionSpec {
            heads: a.heads / d.tp,
            kv_heads: (a.kv_heads / d.tp).max(1),
            causal: a.causal,
            window: a.window,
            scale: a.scale,
            cap: a.cap,
            dropout: a.dropout,
            split: over_tp(d.tp),
        },
        out,
    }
}

/// The dim of the columns of `[B, T, width]`.
const COLUMNS: usize = 2;

/// The axes over which heads are cut.
fn over_tp(tp: u64) -> AxisSet {
    match tp {
        1 => AxisSet::NONE,
        _ => Axis::Tp.into(),
    }
}

fn declared_mlp(
    d: &mut Declare<'_, '_>,
    width: u64,
    mlp: &desc::Mlp,
    residual: f32,
    dropout: f64,
) -> Mlp {
    let (std, inner) = (d.std, mlp.width);
    let up = match mlp.up {
        Up::Plain(l) => Several::Apart(vec![d.columns(l, [width, inner], std, &[])]),
        Up::Gated(parts) => d.several(&parts, width, &[inner; 2], true),
        Up::GatedFused(l) => {
            let lin = d.columns(l, [width, 2 * inner], std, &[inner; 2]);
            Several::Cut(lin, vec![inner / d.tp; 2])
        }
    };
    let plain = matches!(mlp.up, Up::Plain(_));
    let between = match activation(mlp.act) {
        _ if plain => Between::Curve(Curve::of(mlp.act)),
        _ if mlp.act == Act::Silu => Between::Swiglu,
        a => Between::Glu(Pointwise::glu(a)),
    };
    let down = d.rows(mlp.down, [inner, width], residual);
    Mlp {
        up,
        between,
        dropout,
        down,
    }
}

/// The buckets of the distances of the longest sequence, key minus query, as whole numbers in f32 `[2 positions - 1]`: half of them for one
/// token each, the others for ever more, as `transformers` computes them in f32.
fn line(d: &mut Declare<'_, '_>, m: &Model, b: &desc::Buckets, causal: bool) -> usize {
    let rows = if causal { b.rows } else { b.rows / 2 };
    let exact = (rows / 2).max(1);
    let span = (b.far as f64 / exact as f64).ln() as f32;
    let bucket = |x: u64| {
        let far = x as i64 - (m.positions as i64 - 1);
        let (side, n) = match causal {
            true => (0, (-far).max(0) as u64),
            false => (if far > 0 { rows } else { 0 }, far.unsigned_abs()),
        };
        let log = || (n as f32 / exact as f32).ln() / span * (rows - exact) as f32;
        let one = if n < exact { n } else { exact + log() as u64 };
        (side + one.min(rows.saturating_sub(1))) as f32
    };
    let n = 2 * m.positions - 1;
    d.u.constant(&[n], (0..n).map(bucket).collect())
}

impl Shared {
    fn turn(&mut self, d: &mut Declare<'_, '_>, m: &Model, r: &Rotary) -> Turn {
        let at = self.turns.iter().position(|(one, ..)| one == r);
        let at = at.unwrap_or_else(|| {
            let turning = r.turning().filter(|t| *t < m.positions);
            let short = r.both(turning.unwrap_or(m.positions));
            let long = turning.map(|_| r.both(m.positions));
            self.turns.push((r.clone(), short, long));
            self.turns.len() - 1
        });
        let (_, short, long) = &self.turns[at];
        let mut one = |t: &Tables| {
            let rows = t.0.len() as u64 / (r.dim / 2).max(1);
            [&t.0, &t.1].map(|t| d.u.constant(&[rows, r.dim / 2], t.clone()))
        };
        let mut put = |[q, k]: &[Tables; 2]| {
            let of_k = one(k);
            let of_q = if Arc::ptr_eq(&q.0, &k.0) {
                of_k
            } else {
                one(q)
            };
            [of_q, of_k]
        };
        Turn {
            short: put(short),
            long: long
                .as_ref()
                .map(|t| (r.turning().unwrap_or_default(), put(t))),
            interleaved: r.interleaved,
        }
    }

    /// Biases of distances, `[heads, 2 positions - 1]`: the slope of the head for each step towards the query.
    fn alibi(&mut self, d: &mut Declare<'_, '_>, m: &Model, heads: u64) -> usize {
        let n = 2 * m.positions - 1;
        let line = self.alibi.get_or_insert_with(|| {
            let far = |x: u64| x as f64 - (m.positions - 1) as f64;
            slopes(heads)
                .into_iter()
                .flat_map(|s| (0..n).map(move |x| (s * far(x)) as f32))
                .collect()
        });
        d.u.constant(&[heads, n], line.clone())
    }
}

/// Slopes of the heads (Press et al. 2021): powers of 2^(-8/n) for the largest power of two n of heads, the rest between them.
fn slopes(heads: u64) -> Vec<f64> {
    let whole = heads.max(1).ilog2();
    let n = 1u64 << whole;
    let base = |n: u64| 2f64.powf(-8.0 / n as f64);
    let first = (1..=n).map(|i| base(n).powf(i as f64));
    let rest = (0..heads.saturating_sub(n)).map(|i| base(2 * n).powf((2 * i + 1) as f64));
    first.chain(rest).collect()
}

impl Attention {
    /// Queries and keys behind their norms, where these stand `here`.
    fn normed(&self, cx: &mut Cx<'_>, [q, k]: [Var; 2], here: bool) -> Result<[Var; 2]> {
        match &self.qk_norm {
            Some([of_q, of_k]) if here => Ok([of_q.run(cx, q)?, of_k.run(cx, k)?]),
            _ => Ok([q, k]),
        }
    }

    /// Queries, keys and values, normed and rotated.
    fn inputs(&self, cx: &mut Cx<'_>, adapters: &[Option<Adapter>], of: Input) -> Result<[Var; 3]> {
        let p = self.qkv.run(cx, adapters, of)?;
        let (mut q, mut k, mut v) = (p[0], p[1], p[2]);
        if self.shared_heads.is_some() {
            // A rank has its own tokens of them, or of a fused projection a part of each.
            let whole = |cx: &mut Cx<'_>, x: Var| match self.qkv {
                Several::Cut(..) => cx.gather(x, Axis::Tp, COLUMNS),
                _ if split::cuts_tokens(cx) => split::of_all_tokens(cx, x),
                _ => Ok(x),
            };
            [k, v] = [whole(cx, k)?, whole(cx, v)?];
        }
        [q, k] = self.normed(cx, [q, k], !self.rotates_first)?;
        if let Some(turn) = self.turn {
            let t = cx.val(q)?.shape().dims()[1];
            let t = cx.env.batch.whole(cx.env.groups, t);
            let at = match turn.long {
                Some((most, long)) if t > most => long,
                _ => turn.short,
            };
            let [of_q, of_k] = at.map(|both| both.map(|i| &cx.env.consts[i]));
            q = cx.rope(q, self.spec.heads, of_q[0], of_q[1], turn.interleaved)?;
            let heads = self.shared_heads.unwrap_or(self.spec.kv_heads);
            k = cx.rope(k, heads, of_k[0], of_k[1], turn.interleaved)?;
        }
        [q, k] = self.normed(cx, [q, k], self.rotates_first)?;
        match self.shared_heads {
            Some(n) => {
                let gathered = matches!(self.qkv, Several::Cut(..)) || split::cuts_tokens(cx);
                let mut own = |x: Var| own_head(cx, x, (n, gathered));
                Ok([q, own(k)?, own(v)?])
            }
            None => Ok([q, k, v]),
        }
    }

    /// Returns the input of the last product. `bias`: what buckets of distances give.
    fn attended(
        &self,
        cx: &mut Cx<'_>,
        adapters: &[Option<Adapter>],
        of: Input,
        bias: Option<Var>,
    ) -> Result<Var> {
        let inputs = self.inputs(cx, adapters, of)?;
        let t = cx.val(inputs[1])?.shape().dims()[1];
        let t = cx.env.batch.whole(cx.env.groups, t);
        let ([q, k, v], spec) = context::meet(cx, inputs, self.spec)?;
        let y = match (self.alibi, bias) {
            (None, None) => cx.attention(q, k, v, spec)?,
            (line, bias) => {
                // Of all heads of the layer those that are here.
                let [at, ranks] = spec.place_of_heads(cx.env);
                let own = |line: &Tensor| match ranks {
                    1 => line.clone(),
                    _ => line.narrow(0, at * spec.heads, spec.heads),
                };
                let extras = AttentionExtras {
                    bias,
                    fixed_bias: line.map(|i| middle(&own(&cx.env.consts[i]), t)),
                    ..Default::default()
                };
                cx.attention_with(q, k, v, spec, extras)?
            }
        };
        context::part(cx, y)
    }

    /// Learned biases by distance, which travel behind the residual stream from the layer that makes them.
    fn bias(&self, cx: &mut Cx<'_>, x: Var, flow: &mut Vec<Var>) -> Result<Option<Var>> {
        match self.buckets {
            None => Ok(None),
            Some(Bias::Given) => Ok(flow.last().copied()),
            Some(Bias::Own(table, line)) => {
                let t = cx.val(x)?.shape().dims()[1];
                let bias = cx.distance_bias(table, &middle(&cx.env.consts[line], t))?;
                flow.push(bias);
                Ok(Some(bias))
            }
        }
    }
}

impl Cross {
    fn run(
        &self,
        cx: &mut Cx<'_>,
        adapters: &[Option<Adapter>],
        [n, memory]: [Var; 2],
    ) -> Result<Var> {
        let q = self.q.run(cx, adapters, n)?;
        let memory = self.kv.enter(cx, memory)?;
        let kv = self.kv.run(cx, adapters, memory)?;
        let a = cx.attention(q, kv[0], kv[1], self.spec)?;
        self.out.run(cx, adapters, a)
    }
}

/// The head of this rank's queries, among `n` that all ranks have; its gradient is the sum of what ranks make of it, where they are `gathered`
/// that of the gather.
fn own_head(cx: &mut Cx<'_>, x: Var, (n, gathered): (u64, bool)) -> Result<Var> {
    let x = match gathered {
        true => x,
        false => cx.enter(x, Axis::Tp)?,
    };
    cx.hold_whole(x, Axis::Tp);
    let width = cx.val(x)?.shape().last() / n;
    let [at, ranks] = [cx.env.groups.at(Axis::Tp), cx.env.groups.size(Axis::Tp)].map(u64::from);
    match n {
        1 => Ok(x),
        _ => Ok(cx.split(x, &vec![width; n as usize])?[(at * n / ranks) as usize]),
    }
}

/// Returns the part of a line for the longest sequence that the distances of `t` tokens have, along
/// its last dim.
fn middle(line: &Tensor, t: u64) -> Tensor {
    let dims = line.shape().dims();
    let all = line.shape().last().div_ceil(2);
    line.narrow(dims.len() - 1, all.saturating_sub(t), 2 * t - 1)
}

impl Mlp {
    /// Returns the input of the last product.
    fn inner(&self, cx: &mut Cx<'_>, adapters: &[Option<Adapter>], of: Input) -> Result<Var> {
        let p = self.up.run(cx, adapters, of)?;
        let h = match &self.between {
            Between::Curve(act) => act.run(cx, p[0])?,
            Between::Swiglu => cx.swiglu(p[0], p[1])?,
            Between::Glu(f) => cx.pointwise(f, &p)?,
        };
        dropout_of(cx, h, self.dropout, Lies::Columns(Axis::Tp))
    }
}

impl Mixture {
    fn run(
        &self,
        cx: &mut Cx<'_>,
        adapters: &[Option<Adapter>],
        x: Var,
        flow: &mut Vec<Var>,
    ) -> Result<Var> {
        let y = self.experts.run(cx, x, flow)?;
        let Some((mlp, weighs)) = &self.beside else {
            return Ok(y);
        };
        let of = mlp.up.enter(cx, x)?;
        let h = mlp.inner(cx, adapters, of)?;
        let m = mlp.down.run(cx, adapters, h)?;
        let parts = weighs.run(cx, adapters, x)?;
        let parts = cx.softmax(parts)?;
        cx.weigh(y, m, parts)
    }
}

impl Layer {
    /// Returns the result of attention, and the stream that it is added to.
    fn attend(&self, cx: &mut Cx<'_>, x: Var, bias: Option<Var>) -> Result<[Var; 2]> {
        let (norms, a) = &self.attention;
        let n = Normed::maybe(norms.before, cx, x)?;
        let of = a.qkv.enter(cx, n)?;
        let y = a.attended(cx, &self.adapters, of, bias)?;
        let y = a.out.run(cx, &self.adapters, y)?;
        self.added(cx, norms, [y, n, x])
    }

    /// The same of the MLP, or of experts, which add to what flows behind the stream.
    fn think(&self, cx: &mut Cx<'_>, x: Var, flow: &mut Vec<Var>) -> Result<[Var; 2]> {
        let (norms, feed) = &self.feed;
        let n = Normed::maybe(norms.before, cx, x)?;
        let y = match feed {
            Feed::Mlp(mlp) => {
                let of = mlp.up.enter(cx, n)?;
                let h = mlp.inner(cx, &self.adapters, of)?;
                mlp.down.run(cx, &self.adapters, h)?
            }
            Feed::Experts(experts) => experts.run(cx, &self.adapters, n, flow)?,
        };
        self.added(cx, norms, [y, n, x])
    }

    /// Attention and MLP beside each other, of one normed input or of two, and what both add to the stream. Where ranks make summands of
    /// their results, and nothing is done to these one by one, they are one sum over the ranks.
    fn beside(
        &self,
        cx: &mut Cx<'_>,
        x: Var,
        bias: Option<Var>,
        flow: &mut Vec<Var>,
    ) -> Result<Var> {
        let ((norms, a), (of_feed, feed)) = (&self.attention, &self.feed);
        let n = Normed::maybe(norms.before, cx, x)?;
        let of = a.qkv.enter(cx, n)?;
        let y = a.attended(cx, &self.adapters, of, bias)?;
        let one_sum = self.has_one_sum();
        let (y, to) = match one_sum {
            true => (a.out.summand(cx, y)?, x),
            false => {
                let y = a.out.run(cx, &self.adapters, y)?;
                let [y, to] = self.added(cx, norms, [y, n, x])?;
                (y, to)
            }
        };
        let seen = if self.order == Order::Shared { n } else { x };
        let mlp = match feed {
            Feed::Mlp(mlp) => mlp,
            Feed::Experts(experts) => {
                let n = Normed::maybe(of_feed.before, cx, seen)?;
                let m = experts.run(cx, &self.adapters, n, flow)?;
                let [m, _] = self.added(cx, of_feed, [m, x, x])?;
                let both = cx.add_into(y, m)?;
                return cx.add_into(to, both);
            }
        };
        let of = match self.order {
            Order::Shared if of_feed.before.is_none() => of,
            _ => {
                let n = Normed::maybe(of_feed.before, cx, seen)?;
                mlp.up.enter(cx, n)?
            }
        };
        let h = mlp.inner(cx, &self.adapters, of)?;
        let both = match one_sum {
            true => {
                let m = mlp.down.summand(cx, h)?;
                let both = cx.add_into(y, m)?;
                Cut::Rows.reduce(cx, both)?
            }
            false => {
                let m = mlp.down.run(cx, &self.adapters, h)?;
                let [m, _] = self.added(cx, of_feed, [m, x, x])?;
                cx.add_into(y, m)?
            }
        };
        cx.add_into(to, both)
    }

    /// Are the results of attention and MLP summands of ranks that can be added before their sum? Not where a norm, a mask or a factor
    /// stands between.
    fn has_one_sum(&self) -> bool {
        let ((norms, a), (of_feed, feed)) = (&self.attention, &self.feed);
        let Feed::Mlp(mlp) = feed else {
            return false;
        };
        let plain = norms.after.is_none() && of_feed.after.is_none() && self.factor.is_none();
        let summed = [&a.out, &mlp.down].map(|l| l.is_summed(&self.adapters));
        plain && self.dropout == 0.0 && !self.residual_of_norm && summed == [true; 2]
    }

    fn added(&self, cx: &mut Cx<'_>, norms: &Norms, [y, n, x]: [Var; 3]) -> Result<[Var; 2]> {
        let y = Normed::maybe(norms.after, cx, y)?;
        let mut y = cx.dropout(y, self.dropout)?;
        if let Some(f) = &self.factor {
            y = cx.pointwise(f, &[y])?;
        }
        Ok([y, if self.residual_of_norm { n } else { x }])
    }
}

impl Block for Layer {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let mut flow = flow.0;
        let x = flow[0];
        let bias = self.attention.1.bias(cx, x, &mut flow)?;
        let y = match self.order {
            Order::Sequential => {
                let [a, to] = self.attend(cx, x, bias)?;
                let x = cx.add_into(to, a)?;
                let mut x = Normed::maybe(self.attention.0.sum, cx, x)?;
                if let Some((norms, cross)) = &self.cross {
                    let n = Normed::maybe(norms.before, cx, x)?;
                    let y = cross.run(cx, &self.adapters, [n, flow[1]])?;
                    let [y, to] = self.added(cx, norms, [y, n, x])?;
                    x = cx.add_into(to, y)?;
                    x = Normed::maybe(norms.sum, cx, x)?;
                }
                let [m, to] = self.think(cx, x, &mut flow)?;
                let y = cx.add_into(to, m)?;
                Normed::maybe(self.feed.0.sum, cx, y)?
            }
            Order::Parallel | Order::Shared => self.beside(cx, x, bias, &mut flow)?,
        };
        flow[0] = y;
        Ok(Flow(flow))
    }
}
