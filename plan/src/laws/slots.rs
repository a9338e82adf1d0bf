//! What the slots for gathered parameters take: an engine takes a slot for each size when first needed and keeps it, so that
//! idle ones are held as well.

use crate::facts::Facts;
use crate::op::StepKind;
use crate::plan::Plan;
use std::collections::BTreeMap;

/// Bytes of all slots of a plan: for each size of a unit, as many as are gathered at once at most.
pub(super) fn slot_bytes(plan: &Plan, facts: &Facts) -> u64 {
    // By bytes of a slot: taken now, taken at most.
    let mut sizes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for step in &plan.steps {
        let bytes = |unit: u32| facts.slot_bytes(unit);
        match step.op {
            StepKind::Gather { unit, .. } => {
                let (now, most) = sizes.entry(bytes(unit)).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            StepKind::Release { unit } => {
                let (now, _) = sizes.entry(bytes(unit)).or_default();
                *now = now.saturating_sub(1);
            }
            _ => {}
        }
    }
    sizes.iter().map(|(bytes, (_, most))| bytes * most).sum()
}
