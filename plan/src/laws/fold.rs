//! The transitions of gradients that are summed in the canonical order: set aside by logical shard, added in a tree, and reduced together.

use super::State;
use crate::error::{Law, PlanError};
use crate::op::UnitId;

impl State<'_> {
    pub(super) fn fold(&mut self, index: usize, unit: UnitId, joins: u32) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        let fault = |message: String| self.fault(index, Law::Fold, message);
        if self.clears {
            return fault(
                "a plan that clears gradients cannot set any aside; leave out the zg steps".into(),
            );
        }
        if !standing.open {
            return fault(format!(
                "unit {unit} has no gradient that was written since its last fold; fold it behind a shard's last backward"
            ));
        }
        if standing.reduced.is_some() {
            return fault(format!(
                "the gradient of unit {unit} has been reduced already"
            ));
        }
        if joins > standing.aside {
            return fault(format!(
                "{joins} sums need as many gradients of unit {unit} set aside before, and there are {}",
                standing.aside
            ));
        }
        let bytes = self.facts.units[unit as usize].grad_bytes;
        let standing = &mut self.units[unit as usize];
        standing.open = false;
        standing.aside = standing.aside + 1 - joins;
        self.live.grads -= u64::from(joins) * bytes;
        Ok(())
    }

    /// Before a reduction: what was set aside becomes one gradient, with those of the other ranks beside it meanwhile.
    pub(super) fn gather_sums(&mut self, index: usize, unit: UnitId) -> Result<(), PlanError> {
        let standing = self.units[unit as usize];
        if standing.aside == 0 {
            return Ok(());
        }
        if standing.open {
            return self.fault(
                index,
                Law::Fold,
                format!("the last shard's gradient of unit {unit} is not set aside; put fold{unit} before it"),
            );
        }
        let bytes = self.facts.units[unit as usize].grad_bytes;
        self.live.grads -= u64::from(standing.aside - 1) * bytes;
        if self.facts.ranks > 1 {
            self.transient += u64::from(standing.aside) * bytes;
        }
        Ok(())
    }
}
