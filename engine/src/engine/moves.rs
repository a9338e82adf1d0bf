//! Moves of what blocks hand on: kept inputs leave the device and return, hidden states and their gradients cross between pipeline stages.

use super::Engine;
use crate::pipeline::{BACKWARD, FORWARD, Pipe};
use crossweave_mesh::Axis;
use crossweave_plan::{Step, StepKind};
use crossweave_program::Move;
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Engine {
    pub(super) fn run_move(&mut self, what: Move, step: Option<&Step>) -> Tensors<()> {
        let mesh = self.groups.mesh();
        match (what, step.map(|s| &s.op)) {
            (Move::Spill, Some(StepKind::Spill { unit, mb })) => {
                let [out, _] = self.lanes.spill()?;
                self.values.spill(*unit as usize, *mb as usize, out)
            }
            (Move::Fetch, Some(StepKind::Fetch { unit, mb })) => {
                let [_, back] = self.lanes.spill()?;
                self.values.fetch(*unit as usize, *mb as usize, back)
            }
            (Move::SendAct, Some(StepKind::SendAct { mb, to, .. })) => {
                let outs = std::mem::take(&mut self.values.flow[*mb as usize]);
                staged(&self.pipe)?.send(mesh, &outs, *to)
            }
            (Move::RecvAct, Some(StepKind::RecvAct { unit, mb, from })) => {
                let ins = staged(&self.pipe)?.receive(mesh, *unit as usize, *from, FORWARD)?;
                self.values.flow[*mb as usize] = ins;
                Ok(())
            }
            (Move::SendGrad, Some(StepKind::SendGrad { unit, mb, to })) => {
                let grads = self.values.grads[*mb as usize].take().unwrap_or_default();
                staged(&self.pipe)?.send_grad(mesh, *unit as usize, &grads, *to)
            }
            (Move::RecvGrad, Some(StepKind::RecvGrad { unit, mb, from })) => {
                let grads = staged(&self.pipe)?.receive(mesh, *unit as usize, *from, BACKWARD)?;
                self.values.grads[*mb as usize] = Some(grads.into_iter().map(Some).collect());
                Ok(())
            }
            _ => crossweave_tensor::shape_error("values that no step of the plan moves"),
        }
    }

    /// Whether there is more than one rank in the job.
    pub(super) fn is_distributed(&self) -> bool {
        self.lowered.groups.all.is_some()
    }

    /// The units this rank runs.
    pub(super) fn own_units(&self) -> Range<usize> {
        match &self.pipe {
            Some(p) => p.peers.own_units(),
            None => 0..self.blocks.units.len(),
        }
    }

    /// Whether this rank counts its loss: of those that see the same tokens, and hold parts of the same parameters, one does. Where ranks
    /// have pieces of the same rows each counts its share.
    pub(super) fn counts_loss(&self) -> bool {
        self.lowered.spec.place.at(Axis::Tp) == 0
    }

    /// Whether this rank runs the last unit, whose output is the loss.
    pub(super) fn makes_loss(&self) -> bool {
        self.own_units().end == self.blocks.units.len()
    }
}

/// The way to other stages.
pub(super) fn staged(pipe: &Option<Pipe>) -> Tensors<&Pipe> {
    match pipe {
        Some(p) => Ok(p),
        None => crossweave_tensor::shape_error(
            "the plan sends to another stage, and there is one stage",
        ),
    }
}
