//! The transitions between pipeline stages: hidden states and their gradients that travel, gradients that stages sum together.

use super::State;
use crate::error::{Law, PlanError};
use crate::op::{MicroBatch, UnitId};

impl State<'_> {
    /// Messages between stages: what leaves is there, and what arrives finds room. All of a group are in flight at once.
    pub(super) fn exchange(&mut self, index: usize) -> Result<(), PlanError> {
        let (grad, messages) = self.plan.steps[index].op.messages();
        for (k, m) in messages.iter().enumerate() {
            if messages[..k].iter().any(|other| other.mb == m.mb) {
                let message = format!("micro-batch {} is twice in one group of messages", m.mb);
                return self.fault(index, Law::Flow, message);
            }
            match (grad, m.sends) {
                (false, true) => self.send_act(index, m.unit, m.mb)?,
                (false, false) => self.recv_act(index, m.unit, m.mb)?,
                (true, true) => self.send_grad(index, m.unit, m.mb)?,
                (true, false) => self.recv_grad(index, m.unit, m.mb)?,
            }
        }
        Ok(())
    }

    fn send_act(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        if self.flow[mb as usize] != Some(unit) {
            return self.fault(
                index,
                Law::Flow,
                format!("the output of unit {unit} for micro-batch {mb} is not there to send"),
            );
        }
        self.set_flow(mb, None);
        Ok(())
    }

    fn recv_act(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        if self.flow[mb as usize].is_some() {
            return self.fault(
                index,
                Law::Flow,
                format!("micro-batch {mb} has a hidden state here already"),
            );
        }
        self.set_flow(mb, Some(unit));
        Ok(())
    }

    fn send_grad(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        if self.flow_grad[mb as usize] != Some(unit) {
            return self.fault(index, Law::Flow, format!("the gradient of the output of unit {unit} for micro-batch {mb} is not there to send"));
        }
        self.set_flow_grad(mb, None);
        Ok(())
    }

    fn recv_grad(&mut self, index: usize, unit: UnitId, mb: MicroBatch) -> Result<(), PlanError> {
        if self.flow_grad[mb as usize].is_some() {
            return self.fault(
                index,
                Law::Flow,
                format!("micro-batch {mb} has a gradient here already"),
            );
        }
        self.set_flow_grad(mb, Some(unit));
        Ok(())
    }

    /// The sum over the stages that share a unit.
    pub(super) fn tie(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        let fault = |message: String| self.fault(index, Law::Tie, message);
        if !standing.shared {
            return fault(format!(
                "no other stage reads the parameters of unit {unit}"
            ));
        }
        if standing.reduced.is_none() || standing.tied {
            return fault(format!(
                "the gradient of unit {unit} is summed over its stages once, behind its reduction"
            ));
        }
        if standing.parts.out || standing.updated || self.norm_done || self.finite_done {
            return fault(format!(
                "the gradient of unit {unit} has been used without the part of the other stages"
            ));
        }
        self.units[unit as usize].tied = true;
        Ok(())
    }

    pub(super) fn owes_tie<T>(&self, index: usize, unit: UnitId) -> Result<T, PlanError> {
        self.fault(index, Law::Tie, format!("another stage reads the parameters of unit {unit} too and has a part of its gradient; put tie{unit} behind its reduction"))
    }

    /// Returns true if a unit's gradient still lacks what other stages add to it.
    pub(super) fn untied(&self, unit: usize) -> bool {
        let s = &self.units[unit];
        s.shared && !s.tied && self.facts.has_grads(unit as UnitId)
    }
}
