//! ZeRO composed with pipeline schedules, as plans: every stage of sharding on every stage of a pipeline, with accumulation, recompute
//! and offload, is lawful by `check` and by the slow simulator, the ranks agree on their collectives, and what a stage holds and moves
//! follows the formulas.
#![forbid(unsafe_code)]

#[path = "../../plan/tests/simulator/mod.rs"]
mod simulator;

use crossweave_mesh::{Axis, Topology};
use crossweave_parallel::Keeps;
use crossweave_parallel::schedule::{Order, pipeline};
use crossweave_plan::{
    Depend, Facts, Keep, PassManager, Plan, PlanError, Runs, StepKind, UnitFacts, check,
    check_world, trace,
};
use crossweave_zero::{
    Bucket, HostUpdates, ParamsAway, Place, Prefetch, Reuse, SpillInputs, Ties, Updates, ZeroStage,
};
use simulator::simulate;

const UNITS: u32 = 6;

/// An embedding, layers and a head; `tied`: the head reads the embedding.
fn facts(micro_batches: u32, dp: u32, tied: bool, away: Away) -> Facts {
    let unit = UnitFacts {
        params: 12,
        param_bytes: 24,
        grad_bytes: 48,
        state_bytes: 144,
        host_state_bytes: if away == Away::None { 0 } else { 144 },
        saved_all: 100,
        saved_selective: 60,
        saved_input: 10,
        flow_bytes: 10,
        workspace_bytes: 3,
        ..UnitFacts::default()
    };
    let mut facts = Facts::uniform(UNITS, micro_batches, dp, unit);
    facts.units[0].params = 60;
    facts.units[0].param_bytes = 120;
    facts.units[0].grad_bytes = 240;
    if tied {
        facts.units[UNITS as usize - 1].ties = vec![0];
    }
    facts
}

/// What rests off the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    None,
    /// States and updates on the host, kept inputs spilled.
    Host,
    /// States in files, and parameters beside them.
    Nvme,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    stage: u32,
    pp: u32,
    dp: u32,
    micro_batches: u32,
    order: Order,
    pick: Option<Keep>,
    away: Away,
    tied: bool,
}

impl Case {
    fn facts(&self) -> Facts {
        facts(self.micro_batches, self.dp, self.tied, self.away)
    }

    /// The plans of the stages.
    fn plans(&self, facts: &Facts) -> Vec<Plan> {
        let runs = Runs::even(UNITS, self.pp);
        let plan = |stage| {
            let start = pipeline(&runs, stage, self.micro_batches, self.order).unwrap();
            let built = self.passes().run(start, facts);
            built.unwrap_or_else(|e| panic!("{self:?}: {e}"))
        };
        (0..self.pp).map(plan).collect()
    }

    /// Every rank of the job has the plan of its stage.
    fn agree(&self, plans: &[Plan], facts: &Facts) -> Result<(), PlanError> {
        let mesh = Topology::new(&[(Axis::Pp, self.pp), (Axis::Dp, self.dp)]).unwrap();
        let each = plans.iter();
        let ranks: Vec<_> = each
            .flat_map(|p| (0..self.dp).map(move |_| (p, facts)))
            .collect();
        check_world(&mesh, &ranks)
    }

    fn passes(&self) -> PassManager {
        let mut p = PassManager::new();
        if let Some(keep) = self.pick {
            p = p.with(Keeps(vec![keep]));
        }
        let stage = ZeroStage::from_number(self.stage).unwrap();
        p = p.with(Place(stage));
        if self.stage == 3 {
            p = p.with(Reuse {
                reshard: !self.micro_batches.is_multiple_of(3),
                within: None,
            });
        }
        // Clipping and early updates in turn.
        let norm = self.micro_batches.is_multiple_of(2);
        p = p.with(Bucket { bytes: 100 }).with(Ties).with(Updates {
            norm,
            finite: norm && self.dp > 1,
            early: !norm,
            lag: true,
        });
        if self.away != Away::None {
            p = p.with(SpillInputs);
        }
        if self.stage == 3 {
            p = p.with(Prefetch {
                depth: 1,
                slots: 4,
                elements: None,
            });
        }
        match self.away {
            Away::None => {}
            Away::Host => {
                p = p.with(HostUpdates {
                    ahead: None,
                    delayed: norm,
                    params_away: false,
                    sums: false,
                });
            }
            Away::Nvme => {
                let params_away = self.stage == 3;
                p = p.with(HostUpdates {
                    ahead: Some(1),
                    delayed: false,
                    params_away,
                    sums: false,
                });
                if params_away {
                    p = p.with(ParamsAway);
                }
            }
        }
        p.with(Depend)
    }
}

/// Every combination; `f` sees each.
fn cases(mut f: impl FnMut(Case)) {
    let picks = [None, Some(Keep::Input), Some(Keep::Selective)];
    for stage in 0..4 {
        for pp in [2, 4] {
            for dp in 1..4 {
                for micro_batches in 1..9 {
                    for order in [Order::OneFOneB, Order::GPipe] {
                        for pick in picks {
                            for away in [Away::None, Away::Host, Away::Nvme] {
                                for tied in [false, true] {
                                    f(Case {
                                        stage,
                                        pp,
                                        dp,
                                        micro_batches,
                                        order,
                                        pick,
                                        away,
                                        tied,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn zero_composes_with_pipeline_schedules() {
    let mut seen = 0;
    cases(|case| {
        let facts = case.facts();
        let plans = case.plans(&facts);
        for (stage, plan) in plans.iter().enumerate() {
            check(plan, &facts).unwrap_or_else(|e| panic!("{case:?}, stage {stage}: {e}\n{plan}"));
        }
        let agreed = case.agree(&plans, &facts);
        agreed.unwrap_or_else(|e| panic!("{case:?}: {e}"));
        seen += 1;
        // The simulator looks back over the whole plan at every step: a part of the cases, of every kind.
        if seen % 11 == 0 && case.micro_batches < 6 {
            for plan in &plans {
                let slow =
                    simulate(plan, &facts).unwrap_or_else(|e| panic!("{case:?}: {e}\n{plan}"));
                assert_eq!(trace(plan, &facts).unwrap(), slow, "{case:?}");
            }
        }
    });
    assert!(seen > 6000, "{seen}");
}

fn count(plan: &Plan, pick: impl Fn(&StepKind) -> bool) -> u64 {
    plan.steps.iter().filter(|s| pick(&s.op)).count() as u64
}

/// 03's rows on ZeRO with a pipeline: reductions once a step at every stage (accumulated, then scattered), parameters once a step below
/// stage 3 and twice a micro-batch at stage 3, a stage's own units only; what crosses a boundary once forward and once backward.
#[test]
fn traffic_of_a_stage_is_that_of_its_own_units() {
    cases(|case| {
        if case.away == Away::Nvme || case.tied {
            return;
        }
        let facts = case.facts();
        let m = u64::from(case.micro_batches);
        for (stage, plan) in (0..).zip(case.plans(&facts)) {
            let plan = &plan;
            let own = plan.units();
            for &unit in &own {
                let reduces = |op: &StepKind| matches!(op, StepKind::ReduceGrad { units, .. } if units.contains(&unit));
                assert_eq!(count(plan, reduces), 1, "{case:?} unit {unit}");
                let gathers = count(
                    plan,
                    |op| matches!(op, StepKind::Gather { unit: u, .. } if *u == unit),
                );
                let last = stage + 1 == case.pp;
                let reshards = !case.micro_batches.is_multiple_of(3);
                let flies = case.order == Order::GPipe || !last;
                let wanted = match case.stage {
                    0 => 0,
                    1 | 2 => 1,
                    _ if reshards => 2 * m,
                    // Kept from a forward to its backward: micro-batches in flight together share one gather.
                    _ if flies => 1,
                    _ => m,
                };
                assert_eq!(gathers, wanted, "{case:?} unit {unit}");
            }
            let boundaries = u64::from(stage > 0) + u64::from(stage + 1 < case.pp);
            let sends =
                |op: &StepKind| matches!(op, StepKind::SendAct { .. } | StepKind::SendGrad { .. });
            let receives =
                |op: &StepKind| matches!(op, StepKind::RecvAct { .. } | StepKind::RecvGrad { .. });
            assert_eq!(count(plan, sends), m * boundaries, "{case:?}");
            assert_eq!(count(plan, receives), m * boundaries, "{case:?}");
        }
    });
}

/// Saved activations by the number of micro-batches in flight: `min(P - stage, m)` with 1F1B, `m` with GPipe; and parameters, gradients
/// and states of a stage's own units, divided as the ZeRO stage says.
#[test]
fn a_stage_holds_its_own_units_and_what_is_in_flight() {
    cases(|case| {
        if case.away != Away::None || case.tied || case.stage == 3 {
            return;
        }
        let facts = case.facts();
        // The same sizes of activations, and nothing else: the checker's peak is then theirs.
        let mut only = facts.clone();
        for u in &mut only.units {
            (u.param_bytes, u.grad_bytes, u.state_bytes) = (0, u.grad_bytes.min(1), 0);
            (u.flow_bytes, u.workspace_bytes) = (0, 0);
        }
        for (stage, plan) in (0..).zip(case.plans(&facts)) {
            let plan = &plan;
            let peak = check(plan, &facts).unwrap();
            let sum = |of: &dyn Fn(&UnitFacts) -> u64| -> u64 {
                plan.units()
                    .iter()
                    .map(|&u| of(&facts.units[u as usize]))
                    .sum()
            };
            let saved = match case.pick {
                None => sum(&|u| u.saved_all),
                Some(keep) => sum(&|u| u.saved(keep)),
            };
            let flying = match case.order {
                Order::OneFOneB => (case.pp - stage).min(case.micro_batches),
                Order::GPipe => case.micro_batches,
                other => unreachable!("{other:?} is none of the cases"),
            };
            // A unit being recomputed holds all it saves for once.
            let rebuilt = if case.pick == Some(Keep::Input) {
                90
            } else {
                0
            };
            let most = check(plan, &only).unwrap().parts.activations;
            assert_eq!(
                most,
                u64::from(flying) * saved + rebuilt,
                "{case:?} stage {stage}"
            );
            let dp = u64::from(case.dp);
            let part = |bytes: u64, from: u32| match case.stage >= from {
                true => bytes.div_ceil(dp),
                false => bytes,
            };
            assert_eq!(peak.parts.params, sum(&|u| u.param_bytes), "{case:?}");
            assert_eq!(
                peak.parts.state,
                sum(&|u| part(u.state_bytes, 1)),
                "{case:?}"
            );
        }
    });
}
