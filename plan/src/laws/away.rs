//! The transitions of what rests off the device: spilled activations, states and updates on the host, slices of parameters.

use super::{Act, State};
use crate::error::{Law, PlanError};
use crate::facts::Facts;
use crate::op::{Keep, MicroBatch, Reduction, UnitId};
use crate::plan::Storage;

/// Bytes of a unit's reduced gradient on this rank, and of the part that the device updates.
fn slice_and_rest(facts: &Facts, unit: UnitId) -> (u64, u64) {
    let fact = &facts.units[unit as usize];
    let slice = facts.shard(unit, fact.grad_bytes);
    let here = fact.state_bytes.saturating_sub(fact.host_state_bytes);
    let part = here as f64 / fact.state_bytes.max(1) as f64;
    (slice, (slice as f64 * part) as u64)
}

/// The reduced gradient of some micro-batches leaves; what the device updates is added to that of those before.
fn part_leaves(state: &mut State<'_>, unit: UnitId) {
    let (slice, rest) = slice_and_rest(state.facts, unit);
    let parts = &mut state.units[unit as usize].parts;
    parts.waits = false;
    state.live.grads -= match std::mem::replace(&mut parts.left, true) {
        false => slice - rest,
        true => slice,
    };
}

impl State<'_> {
    /// Bytes of a unit's state while it is on the device: what rests on the host is never there.
    pub(super) fn device_state(&self, unit: UnitId) -> u64 {
        let fact = &self.facts.units[unit as usize];
        match self.units[unit as usize].hosted {
            true => {
                let here = fact.state_bytes.saturating_sub(fact.host_state_bytes);
                self.state_bytes(unit, here)
            }
            false => self.state_bytes(unit, fact.state_bytes),
        }
    }

    /// Returns true if nothing of a unit's update is left to the device.
    pub(super) fn wholly_hosted(&self, unit: UnitId) -> bool {
        let fact = &self.facts.units[unit as usize];
        self.units[unit as usize].hosted && fact.host_state_bytes >= fact.state_bytes
    }

    /// The gradient in slots of a unit is over. Of one that left in parts, what the device updates is still there.
    pub(super) fn let_grad_go(&mut self, unit: UnitId, how: Reduction) {
        if self.plan.grads == Storage::Slots {
            let whole = self.facts.units[unit as usize].grad_bytes;
            self.live.grads -= match (how, self.units[unit as usize].parts.leave) {
                (Reduction::Scatter, true) => slice_and_rest(self.facts, unit).1,
                (Reduction::Scatter, false) => self.facts.shard(unit, whole),
                (Reduction::All, _) => whole,
            };
        }
    }

    /// Bytes of what a pair holds now; nothing if it holds nothing that could be spilled.
    pub(super) fn held(&self, unit: UnitId, mb: MicroBatch) -> Option<u64> {
        let saved = self.saved[self.pair(unit, mb)];
        match saved.act {
            Act::Kept(Keep::Nothing) | Act::Before | Act::Owed | Act::Done => None,
            Act::Kept(_) | Act::Rebuilt => Some(saved.bytes),
        }
    }

    pub(super) fn spill(
        &mut self,
        index: usize,
        unit: UnitId,
        mb: MicroBatch,
    ) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        match self.held(unit, mb).filter(|_| !self.saved[pair].spilled) {
            Some(bytes) => {
                self.saved[pair].spilled = true;
                self.live.activations -= bytes;
                Ok(())
            }
            None => self.fault(
                index,
                Law::Spill,
                format!(
                    "unit {unit} has no activations of micro-batch {mb} on the device to spill"
                ),
            ),
        }
    }

    pub(super) fn fetch(
        &mut self,
        index: usize,
        unit: UnitId,
        mb: MicroBatch,
    ) -> Result<(), PlanError> {
        let pair = self.pair(unit, mb);
        match self.held(unit, mb).filter(|_| self.saved[pair].spilled) {
            Some(bytes) => {
                self.saved[pair].spilled = false;
                self.live.activations += bytes;
                Ok(())
            }
            None => self.fault(
                index,
                Law::Spill,
                format!("no activations of unit {unit} for micro-batch {mb} are spilled"),
            ),
        }
    }

    pub(super) fn state_in(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        if self.units[unit as usize].on_device {
            return self.fault(
                index,
                Law::State,
                format!("the optimizer state of unit {unit} is on the device already"),
            );
        }
        self.units[unit as usize].on_device = true;
        self.live.state += self.device_state(unit);
        Ok(())
    }

    pub(super) fn state_out(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        if !self.units[unit as usize].on_device {
            return self.fault(
                index,
                Law::State,
                format!("the optimizer state of unit {unit} is not on the device"),
            );
        }
        self.units[unit as usize].on_device = false;
        self.live.state -= self.device_state(unit);
        Ok(())
    }

    pub(super) fn grad_out(
        &mut self,
        index: usize,
        unit: UnitId,
        more: bool,
    ) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        let fault = |message: String| self.fault(index, Law::State, message);
        if !standing.hosted {
            return fault(format!(
                "unit {unit} is updated on the device, which needs its gradient there"
            ));
        }
        if standing.parts.out || standing.updated {
            return fault(format!(
                "the gradient of unit {unit} is copied out twice, or after its update"
            ));
        }
        if more {
            if !standing.parts.waits {
                return fault(format!(
                    "no gradient of unit {unit} of some micro-batches is there to leave; copy it out once, behind rs{unit}+"
                ));
            }
            part_leaves(self, unit);
            return Ok(());
        }
        let Some(how) = standing.reduced else {
            return fault(format!(
                "the gradient of unit {unit} is not reduced yet; copy it out behind its reduction"
            ));
        };
        if self.untied(unit as usize) {
            return self.owes_tie(index, unit);
        }
        self.units[unit as usize].parts.out = true;
        if standing.parts.leave {
            part_leaves(self, unit);
            return Ok(());
        }
        if self.wholly_hosted(unit) {
            self.let_grad_go(unit, how);
        }
        Ok(())
    }

    pub(super) fn param_in(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        let fault = |message: String| self.fault(index, Law::State, message);
        if !standing.hosted || standing.shard_away {
            return fault(format!(
                "unit {unit} has no new parameters on the host to copy in"
            ));
        }
        if standing.params_in {
            return fault(format!("the parameters of unit {unit} arrive twice"));
        }
        self.units[unit as usize].params_in = true;
        Ok(())
    }

    pub(super) fn shard_in(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        if standing.shard_here || standing.gathered || self.plan.params == Storage::Resident {
            return self.fault(
                index,
                Law::State,
                format!(
                    "no gather of unit {unit} waits for its slice; it is on the device already"
                ),
            );
        }
        self.units[unit as usize].shard_here = true;
        self.live.params += self
            .facts
            .shard(unit, self.facts.units[unit as usize].param_bytes);
        Ok(())
    }
}
