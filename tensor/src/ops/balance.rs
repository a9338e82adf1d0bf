//! How evenly tokens go to experts: the auxiliary losses of a router, and figures for people.
//!
//! A [`Cx::tally`] is `[2, G, E]` over `G` scopes of equally many tokens: the part of all choices that each expert has (no gradient), and the
//! mean of its probability. Where ranks have other tokens of a scope the first are those of all of them, and the second this rank's share, so that
//! losses of the ranks add up to that of the whole. Tallies of several layers may be added up. The loss of a tally is `E sum f P` (Fedus et al. 2022, arXiv 2101.03961),
//! a mean over scopes: 1 where experts have equally many.

use super::OpNode;
use super::comm::{cutting, of_hidden};
use super::launch::{binary, count, map, none, sum, whole};
use super::routing::Routing;
use crate::error::{Result, shape_error};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::AxisSet;

/// The tokens over which the balance of experts is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of each row by itself, which are the same on any number of ranks and micro-batches.
    #[default]
    Sequence,
    /// All of a micro-batch.
    MicroBatch,
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    kind: Kind,
}

enum Kind {
    /// Probabilities, of so many tokens a scope here, and on all ranks; or of those that count.
    Tally([u64; 2], Option<Counted>),
    /// A tally, with the factor of its sum.
    Loss(f64),
    /// Scores, with the log of the sum of exponentials of each token, and how many tokens all ranks have.
    Z(Tensor, u64),
    /// A tally: figures without a gradient.
    Load,
}

/// The name of the sum over ranks of the tokens that experts have.
pub const COUNTS: &str = "counts of experts";

/// The axes whose ranks have other tokens of the same scope.
fn token_axes(cx: &Cx<'_>) -> AxisSet {
    AxisSet::of(&cutting(cx.env))
}

/// Tokens of all ranks for `n` that are here.
fn of_all(cx: &Cx<'_>, n: u64) -> u64 {
    let (batch, groups) = (cx.env.batch, cx.env.groups);
    batch.whole(groups, n * batch.hidden_piece(groups)[1])
}

/// Tokens whose labels count.
struct Counted {
    /// 1 for each that does, and 0 for the others, f32 `[n]`.
    which: Tensor,
    /// Their number in each scope, on all ranks that have tokens of it, at least 1, f32 `[G]`.
    many: Tensor,
}

impl Counted {
    /// Those of labels, of which one below 0 does not count; how many they are is not known yet.
    fn of(run: &Run<'_>, labels: &Tensor, scopes: u64) -> Result<Counted> {
        let n = labels.numel();
        let [given, which] = [run.empty([n], DType::F32)?, run.empty([n], DType::F32)?];
        let o = [Some(&given), Some(&labels.view([n]))];
        run.launch(op::CAST, &o, none().as_bytes(), &[])?;
        map(run, &which, &[&given], |x| {
            (x[0] + 1.0).max(x[0].lit(0.0)).min(x[0].lit(1.0))
        })?;
        let many = run.empty([scopes], DType::F32)?;
        Ok(Counted { which, many })
    }

    /// Sets the numbers of tokens that count from the `k` choices of each, of which `[G, E]` are of each expert.
    fn count_from_choices(&self, run: &Run<'_>, choices: &Tensor, k: u64) -> Result<()> {
        let scopes = self.many.numel();
        let all = run.empty([scopes, 1], DType::F32)?;
        sum(run, &all, choices, 1)?;
        map(run, &self.many, &[&all.view([scopes])], |x| {
            (x[0] / k as f32).max(x[0].lit(1.0))
        })
    }

    /// Cells of choices `[n k]` in a table of `size`, none of tokens that do not count.
    fn cells(&self, run: &Run<'_>, cells: &Tensor, size: u64) -> Result<Tensor> {
        let n = self.which.numel();
        let k = cells.numel() / n;
        let lost = run.empty([n], DType::I32)?;
        let o = [Some(&lost), Some(&self.which)];
        run.launch(op::CAST, &o, none().as_bytes(), &[])?;
        let [one, size] = [whole(run, 1, n)?, whole(run, size, n)?];
        binary(run, op::binary::SUB, [&lost, &lost, &one])?;
        binary(run, op::binary::MUL, [&lost, &lost, &size])?;
        let y = run.empty([n, k], DType::I32)?;
        let lost = lost.strided([n, k], &[1, 0], 0);
        binary(run, op::binary::ADD, [&y, &cells.view([n, k]), &lost])?;
        Ok(y.view([n * k]))
    }
}

fn noted(cx: &mut Cx<'_>, x: Var, y: Tensor, kind: Kind) -> Var {
    let saves = matches!(kind, Kind::Loss(_) | Kind::Z(..));
    let node = cx.next_node();
    let out = cx.push_val(y, node, Origin::Own, false);
    // It is a figure too, and what is made of it lies elsewhere.
    cx.save(out);
    if saves {
        cx.save(x);
    }
    let over = token_axes(cx);
    cx.typed(out, |c| {
        let x = c.vals[x.0 as usize];
        match kind {
            Kind::Tally(..) => c.counted(COUNTS, x, over),
            Kind::Load => c.figures("load", x),
            Kind::Loss(_) | Kind::Z(..) => c.mean("balance", x),
        }
    });
    cx.push_node(OpNode::Balance(Node { x, out, kind }));
    out
}

impl Cx<'_> {
    /// The tally of the choices made by `probabilities [B, T, E]`: of all tokens, or of those whose labels count, where there are labels.
    pub fn tally(
        &mut self,
        probabilities: Var,
        routing: &Routing,
        (scope, counted): (Scope, bool),
    ) -> Result<Var> {
        let (pv, run) = (self.val(probabilities)?, self.env.run);
        let [n, k, e] = routing.sizes;
        let &[b, _, last] = pv.shape().dims() else {
            return shape_error(format!("tally: probabilities {pv:?}"));
        };
        if last != e || pv.numel() != n * e || n == 0 {
            return shape_error(format!("tally: probabilities {pv:?} of {n} routed tokens"));
        }
        let scopes = match scope {
            Scope::Sequence => b,
            Scope::MicroBatch => 1,
        };
        let each = n / scopes;
        let counts = run.empty([scopes * e], DType::I32)?;
        let cells = match scopes {
            1 => routing.experts.clone(),
            _ => {
                let at = count(run, n * k)?;
                binary(
                    run,
                    op::binary::DIV,
                    [&at, &at, &whole(run, each * k, n * k)?],
                )?;
                binary(run, op::binary::MUL, [&at, &at, &whole(run, e, n * k)?])?;
                binary(run, op::binary::ADD, [&at, &at, &routing.experts])?;
                at
            }
        };
        let labels = self.env.batch.targets.as_ref().filter(|_| counted);
        let counted = match labels.map(|t| of_hidden(self.env, COUNTS, t)).transpose()? {
            Some(t) if t.numel() == n => Some(Counted::of(run, &t, scopes)?),
            Some(t) => return shape_error(format!("tally: labels {t:?} of {n} tokens")),
            None => None,
        };
        let cells = match &counted {
            Some(c) => c.cells(run, &cells, scopes * e)?,
            None => cells,
        };
        let o = [Some(&counts), Some(&cells)];
        run.launch(op::HISTOGRAM, &o, none().as_bytes(), &[])?;
        let y = run.empty([2, scopes, e], DType::F32)?;
        let [parts, means] = halves(&y);
        let o = [Some(&parts), Some(&counts)];
        run.launch(op::CAST, &o, none().as_bytes(), &[])?;
        for axis in token_axes(self).iter() {
            self.env.groups.all_reduce(run, COUNTS, axis, &parts)?;
        }
        let to = means.view([scopes, 1, e]);
        let mut weighed = pv.view([n, e]);
        if let Some(c) = &counted {
            weighed = run.empty([n, e], DType::F32)?;
            let which = c.which.strided([n, e], &[1, 0], 0);
            map(run, &weighed, &[&pv.view([n, e]), &which], |x| x[0] * x[1])?;
        }
        sum(run, &to, &weighed.view([scopes, each, e]), 1)?;
        if let Some(c) = &counted {
            c.count_from_choices(run, &parts.view([scopes, e]), k)?;
            let many = c.many.strided([scopes, e], &[1, 0], 0);
            for half in [&parts, &means] {
                let half = half.view([scopes, e]);
                binary(run, op::binary::DIV, [&half, &half, &many])?;
            }
        }
        let all = match counted {
            Some(_) => 1,
            None => of_all(self, each),
        };
        let p = none();
        for (t, of) in [(&parts, all * k), (&means, all)] {
            let d = op::ScaleDyn {
                scale: 1.0 / of as f64,
                ..Default::default()
            };
            run.launch(
                op::MULTI_SCALE,
                &[None, Some(t)],
                p.as_bytes(),
                d.as_bytes(),
            )?;
        }
        let kind = Kind::Tally([each, all], counted);
        Ok(noted(self, probabilities, y, kind))
    }

    /// `factor E sum f P` of a tally, a mean over its scopes, `[1]`.
    pub fn balance_loss(&mut self, tally: Var, factor: f64) -> Result<Var> {
        let (t, run) = (self.val(tally)?, self.env.run);
        let &[2, scopes, e] = t.shape().dims() else {
            return shape_error(format!("balance_loss: tally {t:?}"));
        };
        let factor = factor * e as f64 / scopes as f64;
        let [parts, means] = halves(t);
        let products = run.empty([scopes * e], DType::F32)?;
        map(run, &products, &[&parts, &means], |x| {
            x[0] * x[1] * factor as f32
        })?;
        let y = run.empty([1], DType::F32)?;
        sum(run, &y, &products, 0)?;
        Ok(noted(self, tally, y, Kind::Loss(factor)))
    }

    /// The mean over tokens of the square of the log of the sum of exponentials of `scores [.., E]` (Zoph et al. 2022, arXiv 2202.08906), `[1]`.
    pub fn z_loss(&mut self, scores: Var) -> Result<Var> {
        let (sv, run) = (self.val(scores)?.rows(), self.env.run);
        let n = sv.shape().rows();
        let [losses, lse] = [run.empty([n], DType::F32)?, run.empty([n], DType::F32)?];
        // Any target: the loss is not looked at.
        let first = whole(run, 0, n)?;
        let o = [&losses, &lse, &sv, &first].map(Some);
        let p = op::XentParams::default();
        run.launch(op::CROSS_ENTROPY_FWD, &o, p.as_bytes(), &[])?;
        map(run, &losses, &[&lse], |x| x[0] * x[0])?;
        let y = run.empty([1], DType::F32)?;
        sum(run, &y, &losses, 0)?;
        let all = of_all(self, n).max(1);
        super::xent::scale(run, &y, 1.0 / all as f64)?;
        Ok(noted(self, scores, y, Kind::Z(lse, all)))
    }

    /// Figures of a tally without a gradient, `[4]`: the tokens of the expert with the fewest and of that with the most, over those that each
    /// would have if all had as many; the entropy of the parts of all over that of equal parts; the part of choices that were dropped. Where rows are cut
    /// over ranks each gives an equal share of these figures.
    pub fn expert_load(&mut self, tally: Var, routing: &Routing) -> Result<Var> {
        let (t, run) = (self.val(tally)?, self.env.run);
        let &[2, scopes, e] = t.shape().dims() else {
            return shape_error(format!("expert_load: tally {t:?}"));
        };
        let parts = run.empty([1, e], DType::F32)?;
        sum(run, &parts, &halves(t)[0].view([scopes, e]), 0)?;
        super::xent::scale(run, &parts, 1.0 / scopes as f64)?;
        let parts = parts.view([e]);
        let y = run.empty([4], DType::F32)?;
        let reduce = |kind, to: u64, x: &Tensor| {
            let p = op::ReduceParams {
                kind,
                axes: 1,
                ..Default::default()
            };
            let to = y.narrow(0, to, 1);
            run.launch(op::REDUCE, &[Some(&to), Some(x)], p.as_bytes(), &[])
        };
        let ranks = self.env.batch.whole(self.env.groups, 1) as f64;
        let terms = run.empty([e], DType::F32)?;
        let even = (e as f64).ln().max(f64::MIN_POSITIVE) * ranks;
        map(run, &terms, &[&parts], |x| {
            // 0 ln 0 is 0.
            let least = x[0].lit(f32::MIN_POSITIVE);
            x[0] * x[0].max(least).log() * (-1.0 / even) as f32
        })?;
        let relative = run.empty([e], DType::F32)?;
        map(run, &relative, &[&parts], |x| {
            x[0] * (e as f64 / ranks) as f32
        })?;
        reduce(op::reduce::MIN, 0, &relative)?;
        reduce(op::reduce::MAX, 1, &relative)?;
        reduce(op::reduce::SUM, 2, &terms)?;
        routing.dropped(run, &y.narrow(0, 3, 1), 1.0 / ranks)?;
        Ok(noted(self, tally, y, Kind::Load))
    }
}

/// Both halves of a tally, each flat.
fn halves(t: &Tensor) -> [Tensor; 2] {
    let n = t.numel() / 2;
    [0, 1].map(|i| t.view([2 * n]).narrow(0, i * n, n))
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>, nodes: &[OpNode]) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let run = b.env.run;
        let (shape, dtype) = b.meta(self.x);
        match &self.kind {
            Kind::Load => Ok(()),
            Kind::Tally([each, all], counted) => {
                let &[2, scopes, e] = dy.shape().dims() else {
                    return shape_error(format!("tally: gradient {dy:?}"));
                };
                let dx = run.empty(shape, dtype)?;
                let of_means = dy.strided([scopes, *each, e], &[e as i64, 0, 1], scopes * e);
                let (part, to) = (1.0 / *all as f32, dx.view([scopes, *each, e]));
                match counted {
                    None => map(run, &to, &[&of_means], |x| x[0] * part)?,
                    Some(c) => {
                        let which = c
                            .which
                            .strided([scopes, *each, e], &[*each as i64, 1, 0], 0);
                        let many = c.many.strided([scopes, *each, e], &[1, 0, 0], 0);
                        map(run, &to, &[&of_means, &which, &many], |x| {
                            x[0] * x[1] / x[2]
                        })?;
                    }
                }
                b.give(self.x, dx)
            }
            Kind::Loss(factor) => {
                let t = b.val(self.x, nodes)?;
                let dx = run.empty(shape, dtype)?;
                let ([of_parts, of_means], [parts, _]) = (halves(&dx), halves(&t));
                run.stream().fill(of_parts.region(), 0, 1)?;
                let each = dy.broadcast_scalar(parts.numel());
                map(run, &of_means, &[&parts, &each], |x| {
                    x[0] * x[1] * *factor as f32
                })?;
                b.give(self.x, dx)
            }
            Kind::Z(lse, all) => {
                let scores = b.val(self.x, nodes)?;
                let n = scores.shape().rows();
                let e = scores.shape().last();
                let dx = run.empty(shape, dtype)?;
                let o = [Some(&dx.rows()), Some(&scores.rows())];
                run.launch(op::SOFTMAX_FWD, &o, none().as_bytes(), &[])?;
                let lse = lse.strided([n, e], &[1, 0], 0);
                let each = dy.strided([n, e], &[0, 0], 0);
                let part = 2.0 / *all as f32;
                let made = run.empty(shape, dtype)?;
                map(run, &made.rows(), &[&dx.rows(), &lse, &each], |x| {
                    x[0] * x[1] * x[2] * part
                })?;
                b.give(self.x, made)
            }
        }
    }
}
