//! Moves of what blocks hand on: kept inputs leave the device and return, hidden states and their gradients cross between pipeline stages.

use super::Engine;
use crate::pipeline::{BACKWARD, FORWARD, Pipe};
use crossweave_mesh::Axis;
use crossweave_plan::Message;
use crossweave_program::{Move, Values as Of};
use crossweave_state::Leg;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Engine {
    pub(super) fn run_move(&mut self, what: Move, values: Option<&Of>) -> Tensors<()> {
        match (what, values) {
            (Move::Spill, Some(Of::Unit { unit, mb, .. })) => {
                let [out, _] = self.lanes.spill()?;
                self.values.spill(*unit as usize, *mb as usize, out)
            }
            (Move::Fetch, Some(Of::Unit { unit, mb, .. })) => {
                let [_, back] = self.lanes.spill()?;
                self.values.fetch(*unit as usize, *mb as usize, back)
            }
            (_, Some(Of::Messages { grad, messages })) => self.exchange(*grad, messages),
            _ => crossweave_tensor::shape_error("a move that is of no values"),
        }
    }

    /// Messages of one group between pipeline stages.
    fn exchange(&mut self, grad: bool, messages: &[Message]) -> Tensors<()> {
        let pipe = staged(&self.pipe)?;
        let mut letters = vec![];
        for m in messages {
            let (u, mb) = (m.unit as usize, m.mb as usize);
            let values = match (m.sends, grad) {
                (true, false) => std::mem::take(&mut self.values.flow[mb]),
                (true, true) => {
                    let grads = self.values.grads[mb].take().unwrap_or_default();
                    pipe.whole_grads(u, &grads)?
                }
                (false, _) => pipe.like_flow(u)?,
            };
            letters.push((m.stage, m.sends, values));
        }
        let tag = if grad { BACKWARD } else { FORWARD };
        pipe.exchange(self.groups.mesh(), &letters, tag)?;
        for (m, (_, sends, values)) in messages.iter().zip(letters) {
            let mb = m.mb as usize;
            match (sends, grad) {
                (true, _) => {}
                (false, false) => self.values.flow[mb] = values,
                (false, true) => {
                    self.values.grads[mb] = Some(values.into_iter().map(Some).collect());
                }
            }
        }
        Ok(())
    }

    /// Whether there is more than one rank in the job.
    pub(super) fn is_distributed(&self) -> bool {
        self.lowered.groups.all.is_some()
    }

    /// The runs of units that this rank has, in order.
    pub(super) fn legs(&self) -> Vec<Leg> {
        match &self.pipe {
            Some(p) => p.peers.legs(),
            None => vec![Leg::all(self.blocks.units.len())],
        }
    }

    /// Whether this rank counts its loss: of those that see the same tokens, and hold parts of the same parameters, one does. Where ranks
    /// have pieces of the same rows each counts its share.
    pub(super) fn counts_loss(&self) -> bool {
        self.lowered.spec.place.at(Axis::Tp) == 0
    }

    /// Whether this rank runs the last unit, whose output is the loss.
    pub(super) fn makes_loss(&self) -> bool {
        self.legs()
            .iter()
            .any(|l| l.units.end == self.blocks.units.len())
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
