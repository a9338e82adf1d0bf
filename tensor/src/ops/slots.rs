//! Slots of experts over ranks (GShard; Lepikhin et al. 2021, arXiv 2006.16668): every rank sends the slots of each expert to the rank that has it, and what was made of
//! them comes back. All ranks send as many, so that no counts travel, the host reads nothing, and an exchange has equal pieces. Ranks that have parts of the same
//! experts give each other all that came, and add up what each has made of it.

use super::add;
use super::launch::sum;
use super::routing::{Grouped, Routing};
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::exchange::{Exchange, Link};
use crate::{Run, Tensor};
use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;

/// The ways of the slots of one micro-batch's experts in one layer, over `ep` and `etp`.
#[derive(Clone)]
pub(super) struct Slots {
    /// Ranks that have other experts, and ranks that have other parts of these.
    ranks: u64,
    parts: u64,
    /// Experts of a rank, and slots that a rank's tokens have for one.
    experts: u64,
    each: u64,
}

impl Slots {
    /// Those of a routing within capacities over so many ranks along `ep`, each of which has as many of the experts, and along `etp`, which have parts of these; and
    /// the slots that come to the experts of this rank.
    ///
    /// # Errors
    /// Experts that the ranks do not divide; the device.
    pub fn of(
        run: &Run<'_>,
        routing: &Routing,
        [ranks, parts]: [u64; 2],
    ) -> Result<(Slots, Grouped)> {
        let of = routing.grouped();
        let each = of.rows / of.experts.max(1);
        if !of.experts.is_multiple_of(ranks) || each * of.experts != of.rows {
            return shape_error(format!(
                "experts over ranks: {} slots of {} experts over {ranks} ranks",
                of.rows, of.experts
            ));
        }
        let (experts, came) = (of.experts / ranks, ranks * parts * each);
        let ends = run.empty([experts], DType::I32)?;
        let p = op::IotaParams {
            start: came as f64,
            step: came as f64,
            ..Default::default()
        };
        run.launch(op::IOTA, &[Some(&ends)], p.as_bytes(), &[])?;
        let grouped = Grouped {
            ends,
            rows: experts * came,
            experts,
        };
        let slots = Slots {
            ranks,
            parts,
            experts,
            each,
        };
        Ok((slots, grouped))
    }

    /// Dense slots `[E slots, d]` of this rank's tokens, where their experts are, in the order of these.
    ///
    /// # Errors
    /// The device.
    pub fn there(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let mut came = self.sent(env, x, Axis::Ep)?;
        if self.parts > 1 {
            let [rows, d] = [came.shape().rows(), came.shape().last()];
            let all = env.run.empty([self.parts * rows, d], came.dtype())?;
            let (send, recv) = (&came, &all);
            exchange(env, Axis::Etp, Exchange::AllGather { send, recv })?;
            came = all;
        }
        self.turned(env, &came, [self.experts, self.parts * self.ranks])
    }

    /// The results of the same slots, as these were before.
    ///
    /// # Errors
    /// The device.
    pub fn back(&self, env: &Env<'_>, x: &Tensor) -> Result<Tensor> {
        let mut rows = self.turned(env, x, [self.parts * self.ranks, self.experts])?;
        if self.parts > 1 {
            // Of this rank's slots what each rank has made, added up in rank order and f32.
            let summands = self.sent(env, &rows, Axis::Etp)?;
            let [all, d] = [summands.shape().rows(), summands.shape().last()];
            rows = env.run.empty([1, all / self.parts, d], summands.dtype())?;
            sum(
                env.run,
                &rows,
                &summands.view([self.parts, all / self.parts, d]),
                0,
            )?;
            rows = rows.rows();
        }
        self.sent(env, &rows, Axis::Ep)
    }

    /// The piece of each rank along an axis, from each rank; nothing moves where there is one.
    fn sent(&self, env: &Env<'_>, send: &Tensor, axis: Axis) -> Result<Tensor> {
        if env.groups.size(axis) == 1 {
            return Ok(send.clone());
        }
        let recv = env.run.empty(*send.shape(), send.dtype())?;
        exchange(env, axis, Exchange::AllToAll { send, recv: &recv })?;
        Ok(recv)
    }

    /// Slots by `b` and `a` in the order of `a` and `b`: by rank and expert, or by expert and rank.
    fn turned(&self, env: &Env<'_>, x: &Tensor, [a, b]: [u64; 2]) -> Result<Tensor> {
        let (each, d) = (self.each, x.shape().last());
        let part = (each * d) as i64;
        let y = env.run.empty(*x.shape(), x.dtype())?;
        let to = y.view([a, b, each, d]);
        let from = x.strided([a, b, each, d], &[part, a as i64 * part, d as i64, 1], 0);
        add::copy(env, &to, &from)?;
        Ok(y)
    }
}

fn exchange(env: &Env<'_>, axis: Axis, what: Exchange<'_>) -> Result<()> {
    let on = Link::new("slots of experts", axis);
    env.groups.exchange(env.run, &on, &[what])
}
