//! A mixture of experts in a layer: a router, the products of its experts over the rows that come to them, and what
//! the router's losses need, which travels behind the residual stream to the head.
//!
//! Ranks along `ep` have other experts each, and along `etp` other parts of their inner width. Their stacks are then a unit of their own before the layer, which
//! borrows them: other ranks share them than share the layer, and a unit has one set of owners. So it is too where a layer is cut over `tp` and its
//! experts are not: then ranks that share these see other tokens, and ranks that share the layer see the same.
//!
//! Values behind the residual stream: what the balance of experts is judged by (of all layers together their tally, else the sum of the layers'
//! losses), figures of their load, and with a factor for it the sum of the layers' z-losses. Each layer with experts adds its own.

use crate::desc::{self, Balance, Model, Tokens};
use crate::lora::Adapters;
use crate::lora_stacks::StackAdapter;
use crate::parts::{Curve, Declare, activation};
use crate::split::cuts_tokens;
use crossweave_tensor::{
    Axis, Block, Builder, Capacity, Cx, Flow, Grouped, Init, Param, Pieces, Place, Pointwise,
    Priority, Result, Routing, Scope, Spread, Unit, Var,
};

/// The work of an expert between its products.
enum Between {
    Curve(Curve),
    Swiglu,
    Glu(Pointwise),
}

/// The tokens over which something is looked at, as ops have them.
fn scope(over: Tokens) -> Scope {
    match over {
        Tokens::Sequence => Scope::Sequence,
        Tokens::MicroBatch | Tokens::Layers => Scope::MicroBatch,
    }
}

/// The room that experts have for choices, as ops have it; none where they take all.
pub fn room_of(e: &desc::Experts) -> Option<Capacity> {
    e.capacity.map(|c| Capacity {
        over: scope(c.over),
        factor: c.factor,
        least: c.least,
        first: match c.by_probability {
            true => Priority::Probability,
            false => Priority::Position,
        },
        renormalizes: c.renormalizes,
    })
}

/// A unit that holds the stacks of a layer's experts.
struct Stacks;

impl Block for Stacks {
    fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        Ok(flow)
    }
}

/// Returns true if other ranks of a mesh share the experts of a layer than share the layer.
pub fn apart(place: &Place) -> bool {
    [Axis::Ep, Axis::Etp, Axis::Tp]
        .iter()
        .any(|a| place.length(*a) > 1)
}

/// Declares the stacks of the experts of the layer at `prefix` as a unit of their own, cut over `ep` by experts and over `etp` by their inner width.
/// Returns the adapters that stand with them.
pub fn stacks(
    b: &mut Builder,
    m: &Model,
    prefix: &str,
    (e, all): (&desc::Experts, &mut Adapters),
) -> [Option<StackAdapter>; 2] {
    let mut made = [None, None];
    b.unit_named(&format!("{prefix}.experts"), prefix, |u| {
        let inner = match e.gated {
            true => Pieces::Fused(vec![e.width; 2]),
            false => Pieces::One,
        };
        let cuts = [(1, inner), (2, Pieces::One)];
        for (p, (dim, pieces)) in declared(u, m, e).into_iter().zip(&cuts) {
            u.split(p, Axis::Ep, 0, Pieces::Each);
            u.split(p, Axis::Etp, *dim, pieces.clone());
        }
        made = adapters(u, m, e, all);
        for (a, (dim, pieces)) in made.iter().zip(&cuts) {
            a.iter().for_each(|a| a.spread(u, *dim, pieces));
        }
        u.lends();
        Stacks
    });
    made
}

/// Declares the adapters of the first stack and of the last, where they are asked for.
fn adapters(
    u: &mut Unit<'_>,
    m: &Model,
    e: &desc::Experts,
    all: &mut Adapters,
) -> [Option<StackAdapter>; 2] {
    [(e.up, up(m, e)), (e.down, down(m, e))].map(|(name, shape)| all.stack(u, name, shape))
}

/// The shape of the first stack.
fn up(m: &Model, e: &desc::Experts) -> [u64; 3] {
    [e.count, e.rows(), m.width]
}

/// The shape of the last.
fn down(m: &Model, e: &desc::Experts) -> [u64; 3] {
    [e.count, m.width, e.width]
}

/// The first stack of the experts of a layer, and the last.
fn declared(u: &mut Unit<'_>, m: &Model, e: &desc::Experts) -> [Param; 2] {
    let [normal, residual] = [m.init.std, m.init.residual].map(|std| Init::Normal(std as f32));
    let first = u.param(e.up, &up(m, e), normal);
    [first, u.param(e.down, &down(m, e), residual)]
}

/// The experts of a layer.
pub struct Experts {
    router: Param,
    /// The first stack, and the last.
    stacks: [Param; 2],
    /// The adapters of the two stacks.
    adapters: [Option<StackAdapter>; 2],
    chosen: u64,
    whole: bool,
    capacity: Option<Capacity>,
    room: f64,
    /// The stacks are those of a unit before.
    apart: bool,
    /// Inner width that is here.
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
        place: &Place,
    ) -> Experts {
        let router = format!("{}.weight", e.router);
        let router = d.u.param(&router, &[e.count, m.width], Init::Normal(d.std));
        d.u.along_tokens(router);
        let apart = apart(place);
        let stacks = match apart {
            true => [router; 2],
            false => declared(d.u, m, e),
        };
        let between = match activation(e.act) {
            _ if !e.gated => Between::Curve(Curve::of(e.act)),
            _ if e.act == desc::Act::Silu => Between::Swiglu,
            a => Between::Glu(Pointwise::glu(a)),
        };
        Experts {
            router,
            stacks,
            adapters: [None, None],
            chosen: e.chosen,
            whole: e.whole,
            apart,
            capacity: room_of(e),
            room: e.room,
            width: e.width / u64::from(place.length(Axis::Etp)),
            between,
            balance: m.balance,
        }
    }

    /// Borrows the stacks of the unit before ([`stacks`]) and what stands with them, behind all that the layer has itself.
    pub fn borrow(
        &mut self,
        u: &mut Unit<'_>,
        e: &desc::Experts,
        adapters: [Option<StackAdapter>; 2],
    ) {
        for (own, name) in self.stacks.iter_mut().zip([e.up, e.down]) {
            let name = u.full_name(name);
            *own = u.borrow(&name).unwrap_or(*own);
        }
        self.adapters = adapters.map(|a| a.map(|a| a.borrowed(u)));
    }

    /// Declares the adapters of stacks that are the layer's own, behind all other parameters of it.
    pub fn adapt(&mut self, u: &mut Unit<'_>, m: &Model, e: &desc::Experts, all: &mut Adapters) {
        self.adapters = adapters(u, m, e, all);
    }

    /// The products of rows with the first stack or the last, and what its adapter adds.
    fn product(&self, cx: &mut Cx<'_>, rows: Var, i: usize, by: &Grouped) -> Result<Var> {
        let y = cx.expert_linear(rows, self.stacks[i], by)?;
        match &self.adapters[i] {
            Some(a) => a.add(cx, rows, y, by),
            None => Ok(y),
        }
    }

    /// The experts of each token, and the gates of these: within capacities, but where text is continued.
    fn choose(&self, cx: &mut Cx<'_>, probabilities: Var) -> Result<(Var, Routing)> {
        match self.capacity.filter(|_| !cx.env.batch.continues) {
            Some(room) => cx.choose_within(probabilities, (self.chosen, self.whole), &room),
            None => cx.choose_experts(probabilities, self.chosen, self.whole),
        }
    }

    /// Returns the sum of the chosen experts of `x`; what the head judges balance by is added to `flow`.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var, flow: &mut Vec<Var>) -> Result<Var> {
        let scores = cx.router_scores(x, self.router)?;
        let probabilities = cx.softmax(scores)?;
        let (gates, routing) = self.choose(cx, probabilities)?;
        let rows = cx.dispatch(x, &routing)?;
        let ways = match self.apart {
            true => Some(Spread::of(cx, &routing, self.room)?),
            false => None,
        };
        let (rows, by) = match &ways {
            Some(ways) => (ways.to_experts(cx, rows)?, ways.grouped()),
            None => (rows, routing.grouped()),
        };
        let up = self.product(cx, rows, 0, &by)?;
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
        let mut down = self.product(cx, h, 1, &by)?;
        if let Some(ways) = &ways {
            down = ways.from_experts(cx, down, x)?;
        }
        let y = cx.combine(down, gates, &routing, x)?;
        let Some(balance) = self.balance else {
            return Ok(y);
        };
        let tally = cx.tally(
            probabilities,
            &routing,
            (scope(balance.over), balance.counted),
        )?;
        let judged = match balance.over {
            Tokens::Layers => tally,
            Tokens::Sequence | Tokens::MicroBatch => cx.balance_loss(tally, 1.0)?,
        };
        let load = cx.expert_load(tally, &routing)?;
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
    /// that there is): the balance of experts, their load, and the z-loss. Ranks that have other tokens of hidden states have shares of it, which are added up.
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
        let whole = |cx: &mut Cx<'_>, share: Var| match cuts_tokens(cx) {
            true => cx.reduce(share, Axis::Tp),
            false => Ok(share),
        };
        let mut figures = vec![whole(cx, figure)?, part(cx, flow[2], mean)?];
        if let Some(z) = flow.get(3) {
            let own = part(cx, *z, self.balance.z)?;
            beside = cx.add(beside, own)?;
            let figure = part(cx, *z, mean)?;
            figures.push(whole(cx, figure)?);
        }
        let beside = whole(cx, beside)?;
        Ok(Flow([beside].into_iter().chain(figures).collect()))
    }
}
