//! Mixtures of experts on one rank (Shazeer et al. 2017, arXiv 1701.06538; Fedus et al. 2022, arXiv 2101.03961): scores of a router in f32, the
//! `k` experts of each token, rows put in the order of experts and back, products by groups of them, and the sum that gates weigh.
//!
//! A batch of `n` tokens always has `n k` rows: what follows from the data is where groups of them end, and that stays on the device. The host
//! reads nothing, and a backward, or a forward that runs again, uses tensors of the same shapes. What is said of the balance of experts is in
//! [`super::balance`], and which choices are dropped where experts have capacities in [`super::capacity`].

use super::capacity::Capacity;
use super::comm::cutting;
use super::launch::{binary, cast, gather, map, none, sum};
use super::routing::{Grouped, Routing};
use super::{OpNode, add};
use crate::block::Function;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::spmd::Spmd;
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Param, Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::AxisSet;

pub(crate) struct Node {
    pub ins: Vec<Var>,
    pub out: Var,
    kind: Kind,
}

enum Kind {
    /// `x`: scores by a router's weight.
    Scores(Param),
    /// Scores: a softmax.
    Softmax,
    /// Probabilities: those of the experts that are chosen, which add up to 1 where `whole` says so, or those of them that were `kept`.
    Gates {
        routing: Routing,
        whole: bool,
        kept: bool,
    },
    /// `x`: its rows in the order of experts.
    Dispatch(Routing),
    /// Rows in that order: the product of each with the weight of its expert.
    Product(Param, Grouped),
    /// Rows in that order and gates: the sum of each token's.
    Combine(Routing),
}

fn matmul(run: &Run<'_>, o: [&Tensor; 3], add: bool) -> Result<()> {
    let p = op::MatmulParams {
        flags: if add { op::FLAG_ACCUM } else { 0 },
        ..Default::default()
    };
    let [c, a, b] = o.map(Some);
    run.launch(op::MATMUL, &[c, a, b, None], p.as_bytes(), &[])
}

/// Records a node.
fn noted(cx: &mut Cx<'_>, ins: Vec<Var>, y: Tensor, kind: Kind) -> Var {
    let cheap = matches!(kind, Kind::Dispatch(_));
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, cheap);
    let saved: &[Var] = match kind {
        Kind::Softmax => &[out],
        Kind::Dispatch(_) => &[],
        _ => &ins,
    };
    saved.iter().for_each(|v| cx.save(*v));
    cx.push_node(OpNode::Experts(Box::new(Node { ins, out, kind })));
    out
}

impl Cx<'_> {
    /// Scores of a router `[E, d]` for `x [.., d]`, in f32 whatever the compute type.
    pub fn router_scores(&mut self, x: Var, w: Param) -> Result<Var> {
        let (xv, wv, run) = (self.val(x)?, self.param(w)?, self.env.run);
        let &[e, d] = wv.shape().dims() else {
            return shape_error(format!("router_scores: the weight is {wv:?}"));
        };
        if xv.shape().last() != d {
            return shape_error(format!("router_scores: input {xv:?} against weight {wv:?}"));
        }
        let y = run.empty(xv.shape().with_last(e), DType::F32)?;
        matmul(run, [&y.rows(), &xv.rows(), &wv.t()], false)?;
        let out = noted(self, vec![x], y, Kind::Scores(w));
        self.typed(out, |c| {
            c.linear(c.vals[x.0 as usize], (&[w.0.into()], &[]), 0, None)
        });
        Ok(out)
    }

    /// A softmax over the last dim.
    pub fn softmax(&mut self, x: Var) -> Result<Var> {
        let (xv, run) = (self.val(x)?, self.env.run);
        let y = run.empty(*xv.shape(), xv.dtype())?;
        let o = [Some(&y.rows()), Some(&xv.rows())];
        run.launch(op::SOFTMAX_FWD, &o, none().as_bytes(), &[])?;
        let out = noted(self, vec![x], y, Kind::Softmax);
        self.typed(out, |c| c.same("softmax", &[c.vals[x.0 as usize]], false));
        Ok(out)
    }

    /// The `k` experts with the largest of `probabilities [.., E]` for each token, those of lower number first where they are equal, and their
    /// gates `[n, k]`: the probabilities, or where they are `whole` these divided by their sum.
    pub fn choose_experts(
        &mut self,
        probabilities: Var,
        k: u64,
        whole: bool,
    ) -> Result<(Var, Routing)> {
        chosen(self, probabilities, (k, whole), None)
    }

    /// The same within a capacity: of these choices those have places that find a slot. Where rows are cut over ranks these decide over whole rows, whose choices they
    /// give each other.
    ///
    /// # Errors
    /// As of that; probabilities of other than `[B, T, E]`; more slots than an i32 counts.
    pub fn choose_within(
        &mut self,
        probabilities: Var,
        (k, whole): (u64, bool),
        room: &Capacity,
    ) -> Result<(Var, Routing)> {
        chosen(self, probabilities, (k, whole), Some(room))
    }

    /// Rows of `x [.., d]` in the order of their experts: `[n k, d]`, or in slots `[slots, d]`.
    pub fn dispatch(&mut self, x: Var, routing: &Routing) -> Result<Var> {
        let xv = self.val(x)?.clone();
        if xv.shape().rows() != routing.sizes[0] {
            return shape_error(format!(
                "dispatch: input {xv:?} of {} routed tokens",
                routing.sizes[0]
            ));
        }
        let y = dispatched(self.env, &xv, routing)?;
        let out = noted(self, vec![x], y, Kind::Dispatch(routing.clone()));
        self.typed(out, |c| c.same("dispatch", &[c.vals[x.0 as usize]], true));
        Ok(out)
    }

    /// `y_i = W[e] x_i` for the rows of each expert `e`, of one stack of weights `[E, out, in]`.
    pub fn expert_linear(&mut self, x: Var, w: Param, by: &Grouped) -> Result<Var> {
        let (xv, wv, run) = (self.val(x)?, self.param(w)?, self.env.run);
        let (e, rows) = (by.experts, by.rows);
        let (&[n, d], &[experts, out, input]) = (xv.shape().dims(), wv.shape().dims()) else {
            return shape_error(format!(
                "expert_linear: input {xv:?} against weights {wv:?}"
            ));
        };
        if n != rows || experts != e || input != d {
            return shape_error(format!(
                "expert_linear: input {xv:?} against weights {wv:?} for {rows} rows of {e} experts"
            ));
        }
        let y = run.empty([n, out], xv.dtype())?;
        let o = [&y, xv, wv, &by.ends].map(Some);
        run.launch(op::GROUPED_MATMUL, &o, none().as_bytes(), &[])?;
        let out = noted(self, vec![x], y, Kind::Product(w, by.clone()));
        self.typed(out, |c| c.of_experts(c.vals[x.0 as usize], w.0.into()));
        Ok(out)
    }

    /// `a p_0 + b p_1`, in f32 and rounded once, of two values of one shape `[.., d]` and the parts `p [.., 2]` that each row has of them.
    pub fn weigh(&mut self, a: Var, b: Var, parts: Var) -> Result<Var> {
        self.apply(Weighed, &[a, b, parts])
    }

    /// The sum of what a token's experts have made of it, `y [rows, d]` in the order of experts, weighed by `gates [n, k]`: in f32 in the order in
    /// which they were chosen, in the shape of `like`.
    pub fn combine(&mut self, y: Var, gates: Var, routing: &Routing, like: Var) -> Result<Var> {
        let (yv, gv, shape) = (self.val(y)?, self.val(gates)?, *self.val(like)?.shape());
        let run = self.env.run;
        let ([n, k, _], d) = (routing.sizes, yv.shape().last());
        if yv.shape().rows() != routing.rows() || gv.numel() != n * k || shape.numel() != n * d {
            return shape_error(format!("combine: rows {yv:?}, gates {gv:?} for {n} tokens"));
        }
        let made = run.empty([n * k, d], yv.dtype())?;
        gather(run, &made, yv, routing.place())?;
        let gate = |j: u64| gv.strided([n, d], &[k as i64, 0], j);
        let row = |j: u64| made.strided([n, d], &[(k * d) as i64, 1], j * d);
        let out = run.empty(shape, yv.dtype())?;
        let mut so_far: Option<Tensor> = None;
        // A launch takes 16 operands: the result, the sum so far, and seven choices with their gates.
        for from in (0..k).step_by(7) {
            let to = k.min(from + 7);
            let next = match to == k {
                true => out.rows(),
                false => run.empty([n, d], DType::F32)?,
            };
            let each: Vec<Tensor> = (from..to).flat_map(|j| [gate(j), row(j)]).collect();
            let ins: Vec<&Tensor> = so_far.iter().chain(&each).collect();
            let begun = ins.len() % 2;
            map(run, &next, &ins, |x| {
                let mut pairs = x[begun..].chunks(2).map(|p| p[0] * p[1]);
                let first = match (begun, pairs.next()) {
                    (1, Some(p)) => x[0] + p,
                    (_, Some(p)) => p,
                    (_, None) => x[0],
                };
                pairs.fold(first, |sum, p| sum + p)
            })?;
            so_far = Some(next);
        }
        let result = noted(self, vec![y, gates], out, Kind::Combine(routing.clone()));
        self.typed(result, |c| {
            let both = [c.vals[y.0 as usize], c.vals[gates.0 as usize]];
            c.same("combine", &both, false)
        });
        Ok(result)
    }
}

/// What stays beside experts: `a p_0 + b p_1` of two values `[.., d]` and the parts `p [.., 2]` that each row has of them.
struct Weighed;

impl Function for Weighed {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let &[a, b, parts] = ins else {
            return shape_error(format!("weighed: {} inputs", ins.len()));
        };
        if a.shape() != b.shape() || parts.numel() != 2 * a.shape().rows() {
            return shape_error(format!("weighed: {a:?} and {b:?} by {parts:?}"));
        }
        let y = env.run.empty(*a.shape(), a.dtype())?;
        let [p, q] = [0, 1].map(|i| part(a, parts, i));
        map(env.run, &y.rows(), &[&a.rows(), &p, &b.rows(), &q], |x| {
            x[0] * x[1] + x[2] * x[3]
        })?;
        Ok(y)
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (run, parts, dy) = (env.run, ins[2], dout.rows());
        let [n, d] = [dy.shape().rows(), dy.shape().last()];
        let dparts = run.empty([n, 2], DType::F32)?;
        let mut all = vec![];
        for (i, x) in ins[..2].iter().enumerate() {
            let dx = run.empty(*x.shape(), x.dtype())?;
            map(run, &dx.rows(), &[&dy, &part(x, parts, i as u64)], |x| {
                x[0] * x[1]
            })?;
            let products = run.empty([n, d], DType::F32)?;
            map(run, &products, &[&dy, &x.rows()], |x| x[0] * x[1])?;
            let whole = run.empty([n, 1], DType::F32)?;
            sum(run, &whole, &products, 1)?;
            add::copy(env, &dparts.narrow(1, i as u64, 1), &whole)?;
            all.push(Some(dx));
        }
        all.push(Some(
            cast(run, &dparts, parts.dtype())?.view(*parts.shape()),
        ));
        Ok(all)
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        match ins.iter().all(|x| *x == ins[0]) {
            true => Ok(ins[0]),
            false => Err(format!("{ins:?} are not alike")),
        }
    }
}

/// The `i`-th part of each row, along the row of `x`.
fn part(x: &Tensor, parts: &Tensor, i: u64) -> Tensor {
    parts.strided([x.shape().rows(), x.shape().last()], &[2, 0], i)
}

/// [`Cx::choose_experts`], within a capacity where there is one.
fn chosen(
    cx: &mut Cx<'_>,
    probabilities: Var,
    (k, whole): (u64, bool),
    room: Option<&Capacity>,
) -> Result<(Var, Routing)> {
    let (pv, run) = (cx.val(probabilities)?, cx.env.run);
    let rows = match (pv.shape().dims(), room) {
        ([b, t, _], _) => [*b, *t],
        (_, None) => [1, pv.shape().rows()],
        (_, Some(_)) => {
            return shape_error(format!("choose_experts: probabilities {pv:?} of rows"));
        }
    };
    let pv = pv.rows();
    let &[n, e] = pv.shape().dims() else {
        return shape_error(format!("choose_experts: probabilities {pv:?}"));
    };
    if k == 0 || k > e || n == 0 || n * e > i32::MAX as u64 {
        return shape_error(format!("choose_experts: {k} of {e} experts for {n} tokens"));
    }
    let mut values = run.empty([n, k], DType::F32)?;
    let experts = run.empty([n, k], DType::I32)?;
    let o = [&values, &experts, &pv].map(Some);
    run.launch(op::TOPK, &o, op::DimParams::default().as_bytes(), &[])?;
    let (experts, sizes) = (experts.view([n * k]), [n, k, e]);
    let routing = match room {
        None => Routing::of(run, experts, sizes)?,
        Some(room) => {
            let choices = [&experts, &values.view([n * k])];
            room.routing(cx.env, choices, rows, sizes)?
        }
    };
    let kept = room.is_some_and(|r| r.renormalizes);
    if kept {
        values = routing.kept(run, &values)?;
    }
    if whole || kept {
        let mut total = run.empty([n, 1], DType::F32)?;
        sum(run, &total, &values, 1)?;
        if kept {
            // A token of which nothing was kept has gates of 0.
            let some = run.empty([n, 1], DType::F32)?;
            map(run, &some, &[&total], |x| {
                x[0].max(x[0].lit(f32::MIN_POSITIVE))
            })?;
            total = some;
        }
        let total = total.strided([n, k], &[1, 0], 0);
        binary(run, op::binary::DIV, [&values, &values, &total])?;
    }
    let kind = Kind::Gates {
        routing: routing.clone(),
        whole: whole || kept,
        kept,
    };
    let out = noted(cx, vec![probabilities], values, kind);
    let over = AxisSet::of(&cutting(cx.env));
    cx.typed(out, |c| {
        let x = c.vals[probabilities.0 as usize];
        match room {
            None => c.same("choose_experts", &[x], false),
            Some(_) => c.decided("choose_experts", x, over),
        }
    });
    // Its own backward reads the gates.
    cx.save(out);
    Ok((out, routing))
}

/// Rows of tokens in the order of experts.
fn dispatched(env: &Env<'_>, x: &Tensor, routing: &Routing) -> Result<Tensor> {
    let y = env
        .run
        .empty([routing.rows(), x.shape().last()], x.dtype())?;
    gather(env.run, &y, &x.rows(), routing.token())?;
    Ok(y)
}

impl Node {
    /// The output again, of rows in the order of experts.
    pub fn rerun(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        match &self.kind {
            Kind::Dispatch(routing) => dispatched(env, x, routing),
            _ => shape_error(
                "backward: a dropped value belongs to an op that is not cheap to re-run",
            ),
        }
    }

    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let (env, run, x) = (b.env, b.env.run, self.ins[0]);
        match &self.kind {
            Kind::Scores(w) => {
                let xv = b.val(x, nodes)?;
                let dx = scores_backward(env, &xv, *w, &dy)?;
                b.give(x, dx)
            }
            Kind::Softmax => {
                let y = b.val(self.out, nodes)?;
                let dx = run.empty(*y.shape(), y.dtype())?;
                let o = [Some(&dx.rows()), Some(&dy.rows()), Some(&y.rows())];
                run.launch(op::SOFTMAX_BWD, &o, none().as_bytes(), &[])?;
                b.give(x, dx)
            }
            Kind::Gates {
                routing,
                whole,
                kept,
            } => {
                let gates = b.val(self.out, nodes)?;
                let probabilities = b.val(x, nodes)?;
                let values = (&probabilities, &gates);
                let dp = gates_backward(env, values, (routing, [*whole, *kept]), &dy)?;
                b.give(x, dp)
            }
            Kind::Dispatch(routing) => {
                let (shape, dtype) = b.meta(x);
                let sums = run.zeros(shape, DType::F32)?;
                let o = [Some(&sums.rows()), Some(&dy), Some(routing.token())];
                let p = op::IndexParams::default();
                run.launch(op::SCATTER_ADD_ROWS, &o, p.as_bytes(), &[])?;
                b.give(x, cast(run, &sums, dtype)?)
            }
            Kind::Product(w, by) => {
                let xv = b.val(x, nodes)?;
                let i = w.0 as usize;
                if env.grads.wants(i) {
                    let (dw, add) = env.grads.slot(i)?;
                    let p = op::GroupedParams {
                        flags: if add { op::FLAG_ACCUM } else { 0 },
                        ..Default::default()
                    };
                    let o = [dw, &dy, &xv, &by.ends].map(Some);
                    run.launch(op::GROUPED_MATMUL_DW, &o, p.as_bytes(), &[])?;
                }
                let wv = &env.params[i];
                let &[e, out, input] = wv.shape().dims() else {
                    return shape_error(format!("expert_linear: weights {wv:?}"));
                };
                let turned =
                    wv.strided([e, input, out], &[(out * input) as i64, 1, input as i64], 0);
                let dx = run.empty(*xv.shape(), xv.dtype())?;
                let o = [&dx, &dy, &turned, &by.ends].map(Some);
                run.launch(op::GROUPED_MATMUL, &o, none().as_bytes(), &[])?;
                b.give(x, dx)
            }
            Kind::Combine(routing) => {
                let (y, gates) = (b.val(x, nodes)?, b.val(self.ins[1], nodes)?);
                let [dy, dgates] = combine_backward(env, (&y, &gates), routing, &dy)?;
                b.give(x, dy)?;
                b.give(self.ins[1], dgates)
            }
        }
    }
}

/// The backward of a router in f32, whatever `x` is stored in: its weight's gradient is written, and that of `x` returned.
fn scores_backward(env: &Env<'_>, x: &Tensor, w: Param, dy: &Tensor) -> Result<Tensor> {
    let (run, i) = (env.run, w.0 as usize);
    let dy = dy.rows();
    let wide = cast(run, &x.rows(), DType::F32)?;
    if env.grads.wants(i) {
        let (dw, add) = env.grads.slot(i)?;
        match dw.dtype() {
            DType::F32 => matmul(run, [dw, &dy.t(), &wide], add)?,
            _ => {
                let made = run.empty(*dw.shape(), DType::F32)?;
                matmul(run, [&made, &dy.t(), &wide], false)?;
                let p = op::AxpbyParams {
                    alpha: 1.0,
                    beta: if add { 1.0 } else { 0.0 },
                    ..Default::default()
                };
                run.launch(op::AXPBY, &[Some(dw), Some(&made)], p.as_bytes(), &[])?;
            }
        }
    }
    drop(wide);
    let weight = cast(run, &env.params[i], DType::F32)?;
    let dx = run.empty(*x.shape(), DType::F32)?;
    matmul(run, [&dx.rows(), &dy, &weight], false)?;
    cast(run, &dx, x.dtype())
}

/// The gradient of all probabilities by those of the gates, which are `p_j / sum p` where they are whole.
fn gates_backward(
    env: &Env<'_>,
    (probabilities, gates): (&Tensor, &Tensor),
    (routing, [whole, kept]): (&Routing, [bool; 2]),
    dy: &Tensor,
) -> Result<Tensor> {
    let (run, [n, k, e]) = (env.run, routing.sizes);
    let cells = routing.cells(run, kept)?;
    let mut chosen = dy.clone();
    if whole {
        // dp_j = (dg_j - sum_i dg_i g_i) / sum p, of what was kept: from choices that have no cell nothing comes.
        let picked = run.empty([n * k, 1], DType::F32)?;
        gather(run, &picked, &probabilities.view([n * e, 1]), &cells)?;
        let total = run.empty([n, 1], DType::F32)?;
        sum(run, &total, &picked.view([n, k]), 1)?;
        let weighed = run.empty([n, k], DType::F32)?;
        map(run, &weighed, &[dy, gates], |x| x[0] * x[1])?;
        let mean = run.empty([n, 1], DType::F32)?;
        sum(run, &mean, &weighed, 1)?;
        let [mean, total] = [mean, total].map(|t| t.strided([n, k], &[1, 0], 0));
        map(run, &weighed, &[dy, &mean, &total], |x| {
            (x[0] - x[1]) / x[2]
        })?;
        chosen = weighed;
    }
    let all = run.zeros(*probabilities.shape(), DType::F32)?;
    let o = [
        Some(&all.view([n * e, 1])),
        Some(&chosen.view([n * k, 1])),
        Some(&cells),
    ];
    let p = op::IndexParams::default();
    run.launch(op::SCATTER_ADD_ROWS, &o, p.as_bytes(), &[])?;
    Ok(all)
}

/// The gradients of the rows in the order of experts, and of the gates.
fn combine_backward(
    env: &Env<'_>,
    (y, gates): (&Tensor, &Tensor),
    routing: &Routing,
    dout: &Tensor,
) -> Result<[Tensor; 2]> {
    let (run, [n, k, _], d) = (env.run, routing.sizes, y.shape().last());
    let dout = match dout.is_dense() {
        true => dout.rows(),
        false => {
            let dense = run.empty([n, d], dout.dtype())?;
            add::copy(env, &dense, &dout.rows())?;
            dense
        }
    };
    let made = run.empty([n * k, d], y.dtype())?;
    gather(run, &made, y, routing.place())?;
    let products = run.empty([n, k, d], DType::F32)?;
    let each = dout.strided([n, k, d], &[d as i64, 0, 1], 0);
    map(run, &products, &[&each, &made.view([n, k, d])], |x| {
        x[0] * x[1]
    })?;
    let dgates = run.empty([n, k, 1], DType::F32)?;
    sum(run, &dgates, &products, 2)?;
    drop((products, made));
    let places = routing.rows();
    let gate = run.empty([places, 1], DType::F32)?;
    gather(run, &gate, &gates.view([n * k, 1]), routing.order())?;
    let rows = run.empty([places, d], dout.dtype())?;
    gather(run, &rows, &dout, routing.token())?;
    let dy = run.empty([places, d], y.dtype())?;
    map(
        run,
        &dy,
        &[&rows, &gate.strided([places, d], &[1, 0], 0)],
        |x| x[0] * x[1],
    )?;
    Ok([dy, dgates.view([n, k])])
}
