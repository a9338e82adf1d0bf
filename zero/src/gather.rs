//! Gathers ahead of their use: `Prefetch` moves each up past computations, as far as slots and the budget go.

use crossweave_plan::{Facts, Pass, Plan, PlanError, Step, StepKind, UnitId, trace, words};
use std::collections::BTreeMap;

/// Each gather moves up past `depth` computations, so that it runs beside them: never above its own unit's release or
/// update, never past another gather, never where more than `slots` units or more than the budget would be live.
#[derive(Clone, Copy, Debug)]
pub struct Prefetch {
    /// Computations a gather may be ahead of its use.
    pub depth: u32,
    /// Units that may be gathered at once.
    pub slots: u32,
    /// Parameter elements that may be gathered at once; none: not limited.
    pub elements: Option<u64>,
}

impl Pass for Prefetch {
    fn name(&self) -> String {
        format!("prefetch({},{})", self.depth, self.slots)
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        // Slots are held for the whole step, so one more of a size costs its bytes wherever it is needed.
        let mut peak = trace(&plan, facts)?.into_iter().max().unwrap_or(0);
        let slots = facts.slots.map_or(self.slots, |s| s.min(self.slots));
        let budget = facts.budget.unwrap_or(u64::MAX);
        let mut steps: Vec<Step> = std::mem::take(&mut plan.steps);
        let limit = self.elements.unwrap_or(u64::MAX);
        // Units, and their elements, gathered once each step is done.
        let mut live: Vec<(u32, u64)> = Vec::with_capacity(steps.len());
        for step in &steps {
            let (units, elements) = live.last().copied().unwrap_or((0, 0));
            let size = |u: UnitId| facts.units[u as usize].params;
            live.push(match step.op {
                StepKind::Gather { unit, .. } => (units + 1, elements + size(unit)),
                StepKind::Release { unit } => (units - 1, elements - size(unit)),
                _ => (units, elements),
            });
        }
        // Slots of each size taken once each step is done, and the most of them.
        let mut sizes: BTreeMap<u64, (Vec<u64>, u64)> = BTreeMap::new();
        for step in &steps {
            if let StepKind::Gather { unit, .. } = step.op {
                sizes.entry(facts.slot_bytes(unit)).or_default();
            }
        }
        for (bytes, (taken, most)) in &mut sizes {
            let mut now = 0u64;
            for step in &steps {
                let mine = |u: UnitId| u64::from(facts.slot_bytes(u) == *bytes);
                match step.op {
                    StepKind::Gather { unit, .. } => now += mine(unit),
                    StepKind::Release { unit } => now -= mine(unit),
                    _ => {}
                }
                taken.push(now);
                *most = now.max(*most);
            }
        }
        for index in 0..steps.len() {
            let StepKind::Gather { unit, .. } = steps[index].op else {
                continue;
            };
            let (size, params) = (facts.slot_bytes(unit), facts.units[unit as usize].params);
            let Some((taken, most)) = sizes.get_mut(&size) else {
                continue;
            };
            let mut wanted = *most;
            let mut to = index;
            let mut passed = 0;
            while to > 0 && passed < self.depth {
                let above = &steps[to - 1].op;
                let blocked = match *above {
                    StepKind::Gather { .. } => true,
                    StepKind::Release { unit: u } | StepKind::Update { unit: u } => u == unit,
                    _ => false,
                };
                let (now, before) = (live[to - 1], if to > 1 { live[to - 2] } else { (0, 0) });
                let full = now.0.max(before.0) + 1 > slots
                    || now.1.max(before.1).saturating_add(params) > limit;
                let before = if to > 1 { taken[to - 2] } else { 0 };
                let here = wanted.max(taken[to - 1].max(before) + 1);
                let heavy = peak.saturating_add((here - *most) * size) > budget;
                if blocked || full || heavy {
                    break;
                }
                wanted = here;
                passed += u32::from(above.computes());
                to -= 1;
            }
            if to == index {
                continue;
            }
            steps[to..=index].rotate_right(1);
            peak += (wanted - *most) * size;
            *most = wanted;
            // The steps jumped over now run with one more unit live.
            live[to..=index].rotate_right(1);
            for k in to + 1..=index {
                live[k] = (live[k].0 + 1, live[k].1 + params);
            }
            let before = if to > 0 { live[to - 1] } else { (0, 0) };
            live[to] = (before.0 + 1, before.1 + params);
            for (bytes, (taken, _)) in &mut sizes {
                taken[to..=index].rotate_right(1);
                let mine = u64::from(*bytes == size);
                let before = if to > 0 { taken[to - 1] } else { 0 };
                taken[to + 1..=index].iter_mut().for_each(|n| *n += mine);
                taken[to] = before + mine;
            }
        }
        Ok(plan.rebuild(steps))
    }
}
