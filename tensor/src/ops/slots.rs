//! Slots of experts over ranks (GShard; Lepikhin et al. 2021, arXiv 2006.16668): every rank sends the slots of each expert to the rank that has it, and what was made of
//! them comes back. All ranks send as many, so that no counts travel, the host reads nothing, and an exchange has equal pieces.

use super::add;
use super::routing::{Grouped, Routing};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

/// The ways of the slots of one micro-batch's experts in one layer, over `ep`.
#[derive(Clone)]
pub(super) struct Slots {
    /// Ranks, experts of each, and slots that a rank has for one.
    sizes: [u64; 3],
}

impl Slots {
    /// Those of a routing within capacities over so many ranks along `ep`, each of which has as many of the experts, and the slots that come to
    /// the experts of this rank.
    ///
    /// # Errors
    /// Experts that the ranks do not divide, or that are cut over `etp`; the device.
    pub fn of(
        run: &Run<'_>,
        routing: &Routing,
        [ranks, parts]: [u64; 2],
    ) -> Result<(Slots, Grouped)> {
        let of = routing.grouped();
        let each = of.rows / of.experts.max(1);
        if parts > 1 || !of.experts.is_multiple_of(ranks) || each * of.experts != of.rows {
            return shape_error(format!(
                "experts over ranks: {} slots of {} experts over {ranks} ranks, of {parts} parts each",
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
        let grouped = Grouped {
            ends,
            rows: of.rows,
            experts,
        };
        let sizes = [ranks, experts, each];
        Ok((Slots { sizes }, grouped))
    }

    /// Dense slots `[E slots, d]` of this rank's tokens, where their experts are, in the order of these.
    ///
    /// # Errors
    /// The device.
    pub fn there(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let [ranks, experts, _] = self.sizes;
        self.turned(env, &self.sent(env, x)?, [experts, ranks])
    }

    /// The results of the same slots, as these were before.
    ///
    /// # Errors
    /// The device.
    pub fn back(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let [ranks, experts, _] = self.sizes;
        self.sent(env, &self.turned(env, x, [ranks, experts])?)
    }

    /// The piece of each rank, from each rank.
    fn sent(&self, env: &Env<'_>, send: &Tensor) -> Result<Tensor> {
        let recv = env.run.empty(*send.shape(), send.dtype())?;
        let all = Exchange::AllToAll { send, recv: &recv };
        let on = Link::new("slots of experts", Axis::Ep);
        env.groups.exchange(env.run, &on, &[all])?;
        Ok(recv)
    }

    /// Slots by `b` and `a` in the order of `a` and `b`: by rank and expert, or by expert and rank.
    fn turned(&self, env: &Env<'_>, x: &Tensor, [a, b]: [u64; 2]) -> Result<Tensor> {
        let (each, d) = (self.sizes[2], x.shape().last());
        let part = (each * d) as i64;
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let to = y.view([a, b, each, d]);
        let from = x.strided([a, b, each, d], &[part, a as i64 * part, d as i64, 1], 0);
        add::copy(env, &to, &from)?;
        Ok(y)
    }
}
