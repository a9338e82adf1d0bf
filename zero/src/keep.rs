//! Which units stay gathered between uses: `Reuse` drops the release and the gather between two uses of a unit, `Persist` keeps small
//! units for the whole step. And from where they are gathered again: `Hierarchical` takes the ranks of one node.

use crate::spec::{UnitAt, ZeroSpec};
use crossweave_plan::{Facts, MicroBatch, Pass, Plan, PlanError, Step, StepKind, UnitId, words};
use std::collections::BTreeMap;

/// A use of a unit's parameters: between its gather and its release one computation.
struct Use {
    gather: usize,
    release: usize,
    /// The unit that computes; not the gathered one if that is tied to it.
    by: UnitId,
    mb: MicroBatch,
    forward: bool,
}

/// The uses of `unit`, in order.
fn uses(plan: &Plan, unit: UnitId) -> Vec<Use> {
    let mut found = vec![];
    let mut open = None;
    let mut last = None;
    for (index, step) in plan.steps.iter().enumerate() {
        match step.op {
            StepKind::Gather { unit: u, .. } if u == unit => (open, last) = (Some(index), None),
            StepKind::Release { unit: u } if u == unit => {
                if let (Some(gather), Some((by, mb, forward))) = (open.take(), last) {
                    found.push(Use {
                        gather,
                        release: index,
                        by,
                        mb,
                        forward,
                    });
                }
            }
            ref op => {
                if let (Some(_), Some(by), Some(mb)) = (open, op.reads_params(), op.micro_batch()) {
                    last = Some((by, mb, matches!(op, StepKind::Forward { .. })));
                }
            }
        }
    }
    found
}

/// The pass that keeps a unit gathered from one use to the next where that costs nothing or is asked for. It follows [`crate::Place`]:
/// what that placed is one gather and one release for each use.
///
/// A recompute and its backward always share one gather. A unit that others are tied to stays gathered until they have run their
/// backward, so that it too is gathered once for the forward and once for its own backward; that costs no peak, since the peak is where
/// all activations are live, and there the tied unit needs it anyway.
#[derive(Clone, Copy, Debug)]
pub struct Reuse {
    /// Release after the forward, gather again for the backward. Off: keep from a micro-batch's forward to its backward, one gather for
    /// each micro-batch; those in flight together (a pipeline's) share one.
    pub reshard: bool,
    /// Keep also what is used again within so many parameter elements of other units.
    pub within: Option<u64>,
}

impl Pass for Reuse {
    fn name(&self) -> String {
        let reshard = if self.reshard { "" } else { ",keep" };
        match self.within {
            Some(n) => format!("reuse({n}{reshard})"),
            None => format!("reuse({})", reshard.trim_start_matches(',')),
        }
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let mut dropped = vec![false; plan.steps.len()];
        for unit in 0..facts.units.len() as UnitId {
            let all = uses(&plan, unit);
            // Up to where the micro-batches begun so far use the unit again.
            let ends: BTreeMap<MicroBatch, usize> =
                all.iter().enumerate().map(|(k, u)| (u.mb, k)).collect();
            let mut until = 0;
            for (k, pair) in all.windows(2).enumerate() {
                let [before, after] = pair else { continue };
                let same = before.mb == after.mb;
                let rebuilt = same && !before.forward && before.by == after.by;
                let tied = same && after.by != unit;
                // A unit that others are tied to is used by them between its own forward and backward: it too stays for all of them.
                until = until.max(ends[&before.mb]);
                let kept = !self.reshard && until > k;
                let near = |limit| {
                    let between = plan.steps[before.release..after.gather].iter();
                    let others = between.filter_map(|s| s.op.reads_params());
                    let elements: u64 = others.map(|u| facts.units[u as usize].params).sum();
                    elements <= limit
                };
                if rebuilt || tied || kept || self.within.is_some_and(near) {
                    dropped[before.release] = true;
                    dropped[after.gather] = true;
                }
            }
        }
        let steps = std::mem::take(&mut plan.steps).into_iter().zip(dropped);
        let kept = steps.filter(|(_, d)| !d).map(|(s, _)| s).collect();
        Ok(plan.rebuild(kept))
    }
}

/// The pass that keeps some units gathered from the start of the step to the last computation ([`ZeroSpec::persists`]): gathering little
/// things costs latency and saves no memory worth it.
#[derive(Clone, Copy, Debug)]
pub struct Persist(pub ZeroSpec);

impl Pass for Persist {
    fn name(&self) -> String {
        match self.0.persistent {
            Some(_) => format!("persist({})", self.0.persist_below),
            None => "persist(0)".into(),
        }
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let stays = |u: UnitId| {
            self.0.persists(UnitAt {
                unit: u as usize,
                units: facts.units.len(),
                elements: facts.units[u as usize].params,
            })
        };
        let mut kept: Vec<UnitId> = plan
            .steps
            .iter()
            .filter_map(|s| match s.op {
                StepKind::Gather { unit, .. } if stays(unit) => Some(unit),
                _ => None,
            })
            .collect();
        kept.sort_unstable();
        kept.dedup();
        if kept.is_empty() {
            return Ok(plan);
        }
        let steps = std::mem::take(&mut plan.steps);
        let end = steps.iter().rposition(|s| s.op.computes());
        let mut out: Vec<Step> = kept
            .iter()
            .map(|&unit| Step::new(StepKind::gather(unit)))
            .collect();
        for (index, step) in steps.into_iter().enumerate() {
            let moved = match step.op {
                StepKind::Gather { unit, .. } | StepKind::Release { unit } => stays(unit),
                _ => false,
            };
            if !moved {
                out.push(step);
            }
            if Some(index) == end {
                out.extend(
                    kept.iter()
                        .map(|&unit| Step::new(StepKind::Release { unit })),
                );
            }
        }
        Ok(plan.rebuild(out))
    }
}

/// The pass for hierarchical partition (hpZ): the first gather of a unit in a step is from all ranks, and each later one from copies
/// that the ranks of the own node hold between them. It follows the passes that drop gathers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hierarchical;

impl Pass for Hierarchical {
    fn name(&self) -> String {
        "near".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn run(&self, mut plan: Plan, facts: &Facts) -> Result<Plan, PlanError> {
        let mut seen = vec![false; facts.units.len()];
        for step in &mut plan.steps {
            if let StepKind::Gather { unit, node } = &mut step.op {
                *node = std::mem::replace(&mut seen[*unit as usize], true);
            }
        }
        Ok(plan)
    }
}
