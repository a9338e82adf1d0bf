//! Slots of experts over ranks (GShard; Lepikhin et al. 2021, arXiv 2006.16668): every rank sends the slots of each expert to the rank that has it, and what was made of
//! them comes back. All ranks send as many, so that no counts travel, the host reads nothing, and an exchange has equal pieces.

use super::OpNode;
use super::add;
use super::routing::{Grouped, Routing};
use super::spread::{dense, note_back, note_there};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::tape::{Back, Origin, Var};
use crate::{Cx, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

/// The ways of the slots of one micro-batch's experts in one layer.
#[derive(Clone)]
pub struct Slots {
    axis: Axis,
    /// Ranks, experts of each, and slots that a rank has for one.
    sizes: [u64; 3],
    grouped: Grouped,
}

/// To the ranks of the experts, or back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

pub(crate) struct Node {
    pub x: Var,
    pub out: Var,
    way: Way,
    slots: Slots,
}

impl Slots {
    /// Those of a routing within capacities, to the ranks of an axis, each of which has as many of the experts.
    ///
    /// # Errors
    /// Experts that the ranks do not divide; the device.
    pub fn of(cx: &Cx<'_>, routing: &Routing, axis: Axis) -> Result<Slots> {
        let (run, ranks) = (cx.env.run, u64::from(cx.env.groups.size(axis)).max(1));
        let of = routing.grouped();
        let each = of.rows / of.experts.max(1);
        if !of.experts.is_multiple_of(ranks) || each * of.experts != of.rows {
            return shape_error(format!(
                "experts over {axis}: {ranks} ranks do not divide {} slots of {} experts",
                of.rows, of.experts
            ));
        }
        let experts = of.experts / ranks;
        let ends = run.empty([experts], DType::I32)?;
        let p = op::IotaParams {
            start: (ranks * each) as f64,
            step: (ranks * each) as f64,
            ..Default::default()
        };
        run.launch(op::IOTA, &[Some(&ends)], p.as_bytes(), &[])?;
        Ok(Slots {
            axis,
            sizes: [ranks, experts, each],
            grouped: Grouped {
                ends,
                rows: of.rows,
                experts,
            },
        })
    }

    /// The slots that came, by the experts of this rank.
    pub fn grouped(&self) -> Grouped {
        self.grouped.clone()
    }

    /// Sends slots one of the two ways.
    fn run(&self, env: &Env<'_>, x: &Tensor, way: Way) -> Result<Tensor> {
        let ([ranks, experts, each], d) = (self.sizes, x.shape().last());
        let part = (each * d) as i64;
        let made = |x: &Tensor| env.run.empty([ranks * experts * each, d], x.dtype());
        let on = Link::new("slots of experts", self.axis);
        let send = |send: &Tensor| -> Result<Tensor> {
            let recv = made(send)?;
            let all = Exchange::AllToAll { send, recv: &recv };
            env.groups.exchange(env.run, &on, &[all])?;
            Ok(recv)
        };
        // By rank and expert, or by expert and rank.
        let turned = |x: &Tensor, [a, b]: [u64; 2]| -> Result<Tensor> {
            let (x, y) = (dense(env, x)?, made(x)?);
            let from = [part, a as i64 * part, d as i64, 1];
            let (to, x) = (
                y.view([a, b, each, d]),
                x.strided([a, b, each, d], &from, 0),
            );
            add::copy(env, &to, &x)?;
            Ok(y)
        };
        match way {
            Way::There => turned(&send(&dense(env, x)?)?, [experts, ranks]),
            Way::Back => send(&turned(x, [ranks, experts])?),
        }
    }

    /// Slots of this rank's tokens `[E slots, d]`, where their experts are, in the order of these.
    ///
    /// # Errors
    /// Other rows than those of the ways; the device.
    pub fn to_experts(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        let out = self.go(cx, x, Way::There)?;
        note_there(cx, x, out);
        Ok(out)
    }

    /// The results of experts for these slots, as [`Cx::dispatch`] had the rows of `like`.
    ///
    /// # Errors
    /// As [`Slots::to_experts`].
    pub fn from_experts(&self, cx: &mut Cx<'_>, x: Var, like: Var) -> Result<Var> {
        let out = self.go(cx, x, Way::Back)?;
        note_back(cx, x, like, out);
        Ok(out)
    }

    fn go(&self, cx: &mut Cx<'_>, x: Var, way: Way) -> Result<Var> {
        let xv = cx.val(x)?.clone();
        let name = match way {
            Way::There => "to_experts",
            Way::Back => "from_experts",
        };
        if xv.shape().rank() != 2 || xv.shape().rows() != self.grouped.rows {
            return shape_error(format!("{name}: {xv:?} for {} slots", self.grouped.rows));
        }
        let y = self.run(cx.env, &xv, way)?;
        let made = cx.next_node();
        let out = cx.push_val(y, made, Origin::Own, false);
        let slots = self.clone();
        cx.push_node(OpNode::Slots(Box::new(Node { x, out, way, slots })));
        Ok(out)
    }
}

impl Node {
    pub fn backward(&self, b: &mut Back<'_, '_>) -> Result<()> {
        let Some(dy) = b.take(self.out) else {
            return Ok(());
        };
        let way = match self.way {
            Way::There => Way::Back,
            Way::Back => Way::There,
        };
        let dx = self.slots.run(b.env, &dy, way)?;
        b.give(self.x, dx)
    }
}
