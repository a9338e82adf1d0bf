//! A mixture of experts in a layer, all of them on each rank: a router, the products of its experts over the rows that come to them, and what
//! the router's losses need, which travels behind the residual stream to the head.
//!
//! Values behind the residual stream: what the balance of experts is judged by (of all layers together their tally, else the sum of the layers'
//! losses), figures of their load, and with a factor for it the sum of the layers' z-losses. Each layer with experts adds its own.

use crate::desc::{self, Balance, Model, Tokens};
use crate::parts::{Curve, Declare, activation};
use crossweave_tensor::{Cx, Flow, Init, Param, Pointwise, Result, Scope, Var};

/// The work of an expert between its products.
enum Between {
    Curve(Curve),
    Swiglu,
    Glu(Pointwise),
}

/// The experts of a layer.
pub struct Experts {
    router: Param,
    up: Param,
    down: Param,
    chosen: u64,
    whole: bool,
    width: u64,
    between: Between,
    balance: Option<Balance>,
}

impl Experts {
    /// Declares their parameters.
    pub fn declare(
        d: &mut Declare<'_, '_>,
        m: &Model,
        e: &desc::Experts,
        residual: f32,
    ) -> Experts {
        let normal = Init::Normal(d.std);
        let router = format!("{}.weight", e.router);
        let router = d.u.param(&router, &[e.count, m.width], normal);
        let up = d.u.param(e.up, &[e.count, e.rows(), m.width], normal);
        let down = [e.count, m.width, e.width];
        let down = d.u.param(e.down, &down, Init::Normal(residual));
        let between = match activation(e.act) {
            _ if !e.gated => Between::Curve(Curve::of(e.act)),
            _ if e.act == desc::Act::Silu => Between::Swiglu,
            a => Between::Glu(Pointwise::glu(a)),
        };
        Experts {
            router,
            up,
            down,
            chosen: e.chosen,
            whole: e.whole,
            width: e.width,
            between,
            balance: m.balance,
        }
    }

    /// Returns the sum of the chosen experts of `x`; what the head judges balance by is added to `flow`.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var, flow: &mut Vec<Var>) -> Result<Var> {
        let scores = cx.router_scores(x, self.router)?;
        let probabilities = cx.softmax(scores)?;
        let (gates, routing) = cx.choose_experts(probabilities, self.chosen, self.whole)?;
        let rows = cx.dispatch(x, &routing)?;
        let up = cx.expert_linear(rows, self.up, &routing)?;
        let h = match &self.between {
            Between::Curve(act) => act.run(cx, up)?,
            gated => {
                let parts = cx.split(up, &[self.width; 2])?;
                match gated {
                    Between::Glu(f) => cx.pointwise(f, &parts)?,
                    _ => cx.swiglu(parts[0], parts[1])?,
                }
            }
        };
        let down = cx.expert_linear(h, self.down, &routing)?;
        let y = cx.combine(down, gates, &routing, x)?;
        let Some(balance) = self.balance else {
            return Ok(y);
        };
        let scope = match balance.over {
            Tokens::Sequence => Scope::Sequence,
            Tokens::MicroBatch | Tokens::Layers => Scope::MicroBatch,
        };
        let tally = cx.tally(probabilities, &routing, scope)?;
        let judged = match balance.over {
            Tokens::Layers => tally,
            Tokens::Sequence | Tokens::MicroBatch => cx.balance_loss(tally, 1.0)?,
        };
        let load = cx.expert_load(tally)?;
        let mut told = vec![judged, load];
        if balance.z > 0.0 {
            told.push(cx.z_loss(scores)?);
        }
        match flow.len() {
            0 | 1 => flow.extend(told),
            _ => {
                for (so_far, own) in flow[1..].iter_mut().zip(told) {
                    *so_far = cx.add(*so_far, own)?;
                }
            }
        }
        Ok(y)
    }
}

/// The losses of routers, at the head.
pub struct Routers {
    balance: Balance,
    layers: f64,
    chosen: f64,
}

impl Routers {
    /// Those of a model with experts.
    pub fn of(m: &Model) -> Option<Routers> {
        let first = m.routed().next()?;
        Some(Routers {
            balance: m.balance?,
            layers: m.routed().count() as f64,
            chosen: first.chosen as f64,
        })
    }

    /// Behind the loss: what is added to it on the way back, and figures for people, which are means over layers (of all layers together the one
    /// that there is): the balance of experts, their load, and the z-loss.
    pub fn losses(&self, cx: &mut Cx<'_>, flow: &[Var]) -> Result<Flow> {
        let part =
            |cx: &mut Cx<'_>, v: Var, factor: f64| cx.pointwise(&Pointwise::scale(factor), &[v]);
        let mean = 1.0 / self.layers;
        let (sum, figure) = match self.balance.over {
            // A tally of the tokens of all layers has the means of those of each; the choices of a token count one by one.
            Tokens::Layers => {
                let all = cx.balance_loss(flow[1], self.chosen * mean * mean)?;
                (all, all)
            }
            Tokens::Sequence | Tokens::MicroBatch => (flow[1], part(cx, flow[1], mean)?),
        };
        let mut beside = part(cx, sum, self.balance.coefficient)?;
        let mut figures = vec![figure, part(cx, flow[2], mean)?];
        if let Some(z) = flow.get(3) {
            let own = part(cx, *z, self.balance.z)?;
            beside = cx.add(beside, own)?;
            figures.push(part(cx, *z, mean)?);
        }
        Ok(Flow([beside].into_iter().chain(figures).collect()))
    }
}
