//! Offload is the placement of copies: gradients out behind their reduction, updates on the host lane, parameters in behind them,
//! slices in before gathers, activations out behind the next computation and back one backward ahead.
//!
//! A gradient that has gone out is not on the device when the norm is taken: what the norm and the finite check need of it is summed
//! where it is reduced, unit by unit.

use crossweave_plan::{Facts, Keep, Lane, Pass, Plan, PlanError, Step, StepKind, UnitId, words};
use std::collections::BTreeSet;

/// A tier of memory below the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffloadDevice {
    /// Host memory.
    Host,
    /// Files on a fast disk, through a bounded pool of host memory.
    Nvme,
}

/// The pass that moves updates to the host: each unit's gradient goes out as soon as it is reduced, its update runs on the host
/// lane, its parameters come in behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostUpdates {
    /// Optimizer states are brought from a file for each update and put back: how many units ahead. `None`: they rest in host memory.
    pub ahead: Option<u32>,
    /// The host updates while the next step computes, whose gradients are therefore those of the parameters before: parameters come
    /// in one step late, all before the first update.
    pub delayed: bool,
    /// Parameters rest on the host too ([`ParamsAway`]): nothing comes in behind an update.
    pub params_away: bool,
    /// The reduced gradients of each micro-batch ([`crate::ReduceEach`]) go out as they are made, and the host adds them up. Those of
    /// units that pipeline stages share stay until the stages' parts are added.
    pub sums: bool,
}

impl Pass for HostUpdates {
    fn name(&self) -> String {
        let tier = if self.ahead.is_some() { "nvme" } else { "host" };
        let late = if self.delayed { ",delayed" } else { "" };
        format!("{tier}_updates{late}")
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED, words::UPDATES]
    }

    fn run(&self, mut plan: Plan, _facts: &Facts) -> Result<Plan, PlanError> {
        let mut steps = std::mem::take(&mut plan.steps);
        let updates: Vec<UnitId> = updated(&steps).collect();
        // What other stages add to must have been added before it goes.
        let ties = steps
            .iter()
            .filter(|s| matches!(s.op, StepKind::Tie { .. }));
        let tied: BTreeSet<UnitId> = ties.flat_map(|s| s.op.units().to_vec()).collect();
        if self.delayed {
            // The last step's parameters come in before any of this step's update, hence behind the last use of all.
            let (late, rest) = steps
                .into_iter()
                .partition(|s| matches!(s.op, StepKind::Update { .. }));
            let late: Vec<Step> = late;
            steps = rest;
            steps.extend(late);
        }
        let with_update: BTreeSet<UnitId> = updates.iter().copied().collect();
        let mut out = Vec::with_capacity(steps.len() + 4 * updates.len());
        let comes_in = |unit: UnitId| Step::new(StepKind::ParamIn { unit });
        let (mut done, mut fetched) = (0, 0);
        for mut step in steps {
            match step.op {
                StepKind::Update { unit } => {
                    if done == 0 && self.delayed && !self.params_away {
                        out.extend(updates.iter().map(|&u| comes_in(u)));
                    }
                    if let Some(ahead) = self.ahead {
                        // This unit's state, and those of the next: a later read runs while this unit is updated. A gradient
                        // is beside its state on the disk, so a state that is read has had its gradient written.
                        let out_already = |u: &UnitId| {
                            let left = StepKind::GradOut {
                                unit: *u,
                                more: false,
                            };
                            *u == unit || out.iter().any(|s: &Step| s.op == left)
                        };
                        let until = updates.len().min(done + 1 + ahead as usize);
                        let ready = updates[fetched..until.max(fetched)]
                            .iter()
                            .take_while(|u| out_already(u))
                            .map(|&u| Step::new(StepKind::StateIn { unit: u }))
                            .collect::<Vec<_>>();
                        fetched += ready.len();
                        out.extend(ready);
                    }
                    step.lane = Lane::Host;
                    out.push(step);
                    if !self.delayed && !self.params_away {
                        out.push(comes_in(unit));
                    }
                    if self.ahead.is_some() {
                        out.push(Step::new(StepKind::StateOut { unit }));
                    }
                    done += 1;
                }
                StepKind::ReduceGrad {
                    ref units, more, ..
                } if self.sums || !more => {
                    let leave: Vec<UnitId> = units.clone();
                    out.push(step);
                    let ready = |u: &UnitId| with_update.contains(u) && !tied.contains(u);
                    let leave = leave.into_iter().filter(ready);
                    out.extend(leave.map(|unit| Step::new(StepKind::GradOut { unit, more })));
                }
                StepKind::Tie { unit } => {
                    out.push(step);
                    out.push(Step::new(StepKind::GradOut { unit, more: false }));
                }
                _ => out.push(step),
            }
        }
        Ok(plan.rebuild(out))
    }
}

fn updated(steps: &[Step]) -> impl Iterator<Item = UnitId> + '_ {
    steps.iter().filter_map(|s| match s.op {
        StepKind::Update { unit } => Some(unit),
        _ => None,
    })
}

/// The pass for parameters that rest on the host: each gather is preceded by a copy of this rank's slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParamsAway;

impl Pass for ParamsAway {
    fn name(&self) -> String {
        "params_away".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::PLACED]
    }

    fn run(&self, mut plan: Plan, _facts: &Facts) -> Result<Plan, PlanError> {
        let steps = std::mem::take(&mut plan.steps);
        let mut out = Vec::with_capacity(2 * steps.len());
        for step in steps {
            if let StepKind::Gather { unit, .. } = step.op {
                out.push(Step::new(StepKind::ShardIn { unit }));
            }
            out.push(step);
        }
        Ok(plan.rebuild(out))
    }
}

/// The pass that spills kept inputs to the host: out behind the next computation, so that the copy runs beside the one after; back
/// before the backward that precedes their own. What is needed again too soon for that stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillInputs;

impl Pass for SpillInputs {
    fn name(&self) -> String {
        "spill_inputs".to_string()
    }

    fn needs(&self) -> &'static [&'static str] {
        &[words::SCHEDULE]
    }

    fn run(&self, mut plan: Plan, _facts: &Facts) -> Result<Plan, PlanError> {
        let steps = std::mem::take(&mut plan.steps);
        let computes: Vec<usize> = (0..steps.len())
            .filter(|&k| steps[k].op.computes())
            .collect();
        // What goes in behind, and before, each step.
        let mut behind: Vec<Vec<Step>> = vec![vec![]; steps.len()];
        let mut before: Vec<Vec<Step>> = vec![vec![]; steps.len()];
        for (i, &from) in computes.iter().enumerate() {
            let StepKind::Forward {
                unit,
                mb,
                keep: Keep::Input,
            } = steps[from].op
            else {
                continue;
            };
            let again = StepKind::Recompute { unit, mb };
            let Some(j) = computes.iter().position(|&k| steps[k].op == again) else {
                continue;
            };
            // The backward before its own; where there is none in between, the computation before.
            let back = |k: &usize| steps[computes[*k]].op.writes_grad().is_some();
            let back = (i + 2..j).rev().find(back).unwrap_or(j.saturating_sub(1));
            if back <= i + 1 {
                continue;
            }
            behind[computes[i + 1]].push(Step::new(StepKind::Spill { unit, mb }));
            before[computes[back]].push(Step::new(StepKind::Fetch { unit, mb }));
        }
        let mut out = Vec::with_capacity(2 * steps.len());
        for ((step, before), behind) in steps.into_iter().zip(before).zip(behind) {
            out.extend(before);
            out.push(step);
            out.extend(behind);
        }
        Ok(plan.rebuild(out))
    }
}
