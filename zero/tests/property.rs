//! Random models and hostile pass settings: what the passes make is lawful by `check` and by the slow simulator, to the
//! byte; and whatever a random mutation makes of it, the two agree on whether it may run.
#![forbid(unsafe_code)]

#[path = "../../plan/tests/simulator/mod.rs"]
mod simulator;

use crossweave_plan::{
    Depend, Facts, Keep, Lane, Law, Order, Pass, PassManager, Plan, Reduction, Step, StepId,
    StepKind, Storage, UnitFacts, accesses, check, trace,
};
use crossweave_zero::{
    Bucket, Canonical, HostUpdates, Own, ParamsAway, Persist, Place, Prefetch, ReduceEach, Reuse,
    SpillInputs, Updates, ZeroSpec, ZeroStage,
};
use proptest::prelude::*;
use simulator::simulate;

fn unit() -> impl Strategy<Value = UnitFacts> {
    (
        0u64..4,
        1u64..50,
        0u64..40,
        0u64..40,
        (0u64..20, 0u64..3),
        0u64..9,
    )
        .prop_map(
            |(params, saved, dear, input, (flow, host), work)| UnitFacts {
                params,
                param_bytes: params * 2,
                grad_bytes: params * 4,
                state_bytes: params * 12,
                host_state_bytes: params * 6 * host,
                saved_all: saved + dear + input,
                saved_selective: dear + input,
                saved_input: input,
                flow_bytes: flow,
                workspace_bytes: work,
                ..UnitFacts::default()
            },
        )
}

fn facts() -> impl Strategy<Value = Facts> {
    (
        prop::collection::vec(unit(), 1..5),
        1u32..4,
        1u32..5,
        any::<bool>(),
    )
        .prop_map(|(mut units, micro_batches, ranks, tied)| {
            // At least one gradient, or there is nothing to update.
            units[0].params = 3;
            units[0].param_bytes = 6;
            units[0].grad_bytes = 12;
            if tied && units.len() > 1 {
                units.last_mut().unwrap().ties = vec![0];
            }
            Facts {
                units,
                micro_batches,
                ranks,
                budget: None,
                slots: None,
            }
        })
}

/// How the schedule is written and what the passes get.
#[derive(Clone, Debug)]
struct Settings {
    keeps: Vec<Keep>,
    split: bool,
    breadth_first: bool,
    spill: bool,
    clear: bool,
    offload: bool,
    stage: u32,
    bucket: Option<u64>,
    updates: Updates,
    /// Stage 3 alone gathers units for their uses.
    persist: u64,
    reuse: Option<Reuse>,
    prefetch: Option<(u32, u32)>,
    host: Option<HostUpdates>,
    spill_inputs: bool,
    /// Each micro-batch is reduced by itself, where gradients are sharded.
    each: bool,
    /// Micro-batches of a logical shard, and the first shard of the rank, if sums are canonical.
    canonical: Option<(u32, u32)>,
}

fn settings() -> impl Strategy<Value = Settings> {
    let keep = prop::sample::select(vec![Keep::All, Keep::Input, Keep::Selective]);
    let flags = prop::array::uniform6(any::<bool>());
    let updates = (any::<bool>(), any::<bool>(), any::<bool>());
    let bucket = prop::option::of(prop::sample::select(vec![0, 1, 12, 30, u64::MAX]));
    let prefetch = prop::option::of((0u32..10, 0u32..10));
    let ahead = prop::option::of(0u32..4);
    let host = prop::option::of((ahead, any::<bool>(), any::<bool>()));
    let canonical = prop::option::of((1u32..3, 0u32..9));
    let persist = 0u64..4;
    let reuse = prop::option::of((any::<bool>(), prop::option::of(0u64..9)));
    let extra = (any::<bool>(), any::<bool>());
    (
        prop::collection::vec(keep, 5),
        flags,
        0u32..4,
        bucket,
        updates,
        (prefetch, host, extra, canonical, persist, reuse),
    )
        .prop_map(
            |(
                keeps,
                [split, breadth_first, spill, lag, clear, offload],
                stage,
                bucket,
                (norm, finite, early),
                (prefetch, host, (spill_inputs, each), canonical, persist, reuse),
            )| {
                let each = each && (stage >= 2 || host.is_some()) && !clear && canonical.is_none();
                Settings {
                    keeps,
                    split,
                    breadth_first,
                    spill,
                    clear,
                    offload,
                    stage,
                    bucket,
                    updates: Updates {
                        norm,
                        finite,
                        early,
                        lag,
                    },
                    persist,
                    reuse: reuse.map(|(reshard, within)| Reuse { reshard, within }),
                    prefetch,
                    spill_inputs,
                    // Gradients that are cleared are not set aside, nor reduced in parts.
                    canonical: canonical.filter(|_| !clear),
                    each,
                    // Parameters can rest on the host only where they are gathered.
                    host: host.map(|(ahead, delayed, away)| HostUpdates {
                        ahead,
                        delayed,
                        params_away: away && stage > 0,
                        sums: each,
                    }),
                }
            },
        )
}

/// Forwards and backwards, micro-batch by micro-batch or all forwards first.
fn schedule(facts: &Facts, set: &Settings) -> Plan {
    let units = facts.units.len() as u32;
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    for mb in 0..facts.micro_batches {
        let (mut f, mut b) = (Vec::new(), Vec::new());
        for unit in 0..units {
            f.push(StepKind::Forward {
                unit,
                mb,
                keep: set.keeps[unit as usize],
            });
            f.extend(set.spill.then_some(StepKind::Spill { unit, mb }));
        }
        for unit in (0..units).rev() {
            b.extend(set.spill.then_some(StepKind::Fetch { unit, mb }));
            if set.keeps[unit as usize] == Keep::Input {
                b.push(StepKind::Recompute { unit, mb });
            }
            b.push(if set.split {
                StepKind::InputGrad { unit, mb }
            } else {
                StepKind::Backward { unit, mb }
            });
        }
        if set.split {
            b.extend((0..units).map(|unit| StepKind::WeightGrad { unit, mb }));
        }
        forwards.push(f);
        backwards.push(b);
    }
    if set.breadth_first {
        Plan::from_ops(forwards.into_iter().chain(backwards).flatten())
    } else {
        Plan::from_ops(
            forwards
                .into_iter()
                .zip(backwards)
                .flat_map(|(f, b)| f.into_iter().chain(b)),
        )
    }
}

fn build(facts: &Facts, set: &Settings) -> Plan {
    let mut line = PassManager::new().with(Place(ZeroStage::from_number(set.stage).unwrap()));
    if set.each {
        line = line.with(ReduceEach {
            alone: set.host.is_some(),
        });
    }
    if let Some((micro_batches, _)) = set.canonical {
        // The last shard may be short of micro-batches; it is a shard all the same.
        line = line.with(Canonical {
            shards: facts.micro_batches.div_ceil(micro_batches),
            micro_batches,
        });
    }
    if set.stage == 3 {
        // What rests on the host is gathered for each use.
        let away = set.host.is_some_and(|h| h.params_away);
        let below = if away { 0 } else { set.persist };
        line = line.with(Persist(ZeroSpec {
            persist_below: below,
            ..ZeroSpec::default()
        }));
        if let Some(reuse) = set.reuse {
            line = line.with(reuse);
        }
    }
    if let Some(bytes) = set.bucket {
        line = line.with(Bucket { bytes });
    }
    line = line.with(set.updates);
    if let Some((depth, slots)) = set.prefetch {
        line = line.with(Prefetch {
            depth,
            slots,
            elements: None,
        });
    }
    if set.spill_inputs && !set.spill {
        line = line.with(SpillInputs);
    }
    if let Some(host) = set.host {
        line = line.with(host);
        if host.params_away {
            line = line.with(ParamsAway);
        }
    }
    if let Some((micro_batches, first)) = set.canonical {
        line = line.with(Own {
            shards: first..first + facts.micro_batches.div_ceil(micro_batches),
            micro_batches,
        });
    }
    let mut plan = line.run(schedule(facts, set), facts).unwrap();
    let mut steps = Vec::new();
    if set.clear {
        let updated = plan
            .steps
            .iter()
            .filter(|s| matches!(s.op, StepKind::Update { .. }));
        let clears = updated.map(|s| StepKind::ZeroGrad {
            unit: s.op.units()[0],
        });
        steps.extend(clears.map(Step::new));
    }
    for step in std::mem::take(&mut plan.steps) {
        match step.op {
            StepKind::Update { unit } if set.offload && set.host.is_none() => {
                steps.push(Step::new(StepKind::StateIn { unit }));
                steps.push(step);
                steps.push(Step::new(StepKind::StateOut { unit }));
            }
            _ => steps.push(step),
        }
    }
    plan.rebuild(steps)
}

/// Most units gathered at once.
fn width(plan: &Plan) -> i64 {
    let (mut live, mut most) = (0, 0);
    for step in &plan.steps {
        live += match step.op {
            StepKind::Gather { .. } => 1,
            StepKind::Release { .. } => -1,
            _ => 0,
        };
        most = most.max(live);
    }
    most
}

#[derive(Clone, Debug)]
enum Mutation {
    Drop(usize),
    Double(usize, usize),
    Swap(usize, usize),
    Move(usize, usize),
    Unit(usize, u32),
    Keep(usize, Keep),
    Host(usize),
    Params(Storage),
    Grads(Storage),
    Insert(usize, StepKind),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = 0usize..400;
    let keep = prop::sample::select(vec![Keep::All, Keep::Input, Keep::Selective, Keep::Nothing]);
    let home = prop::sample::select(vec![Storage::Resident, Storage::Slots]);
    let stray = (0u32..4, 0u32..3).prop_flat_map(|(unit, mb)| {
        prop::sample::select(vec![
            StepKind::StateIn { unit },
            StepKind::StateOut { unit },
            StepKind::GradOut { unit, more: false },
            StepKind::GradOut { unit, more: true },
            StepKind::ParamIn { unit },
            StepKind::ShardIn { unit },
            StepKind::Spill { unit, mb },
            StepKind::Fetch { unit, mb },
            StepKind::ZeroGrad { unit },
            StepKind::Fold { unit, joins: mb },
            StepKind::ReduceGrad {
                units: vec![unit],
                how: Reduction::Scatter,
                more: true,
            },
            StepKind::SendAct { unit, mb, to: 1 },
            StepKind::RecvAct { unit, mb, from: 1 },
            StepKind::SendGrad { unit, mb, to: 1 },
            StepKind::RecvGrad { unit, mb, from: 1 },
            StepKind::gather(unit),
            StepKind::Release { unit },
            StepKind::GradNorm,
            StepKind::Update { unit },
        ])
    });
    prop_oneof![
        at.clone().prop_map(Mutation::Drop),
        (at.clone(), at.clone()).prop_map(|(a, b)| Mutation::Double(a, b)),
        (at.clone(), at.clone()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        at.clone().prop_map(|a| Mutation::Swap(a, a + 1)),
        (at.clone(), at.clone()).prop_map(|(a, b)| Mutation::Move(a, b)),
        (at.clone(), 0u32..5).prop_map(|(a, u)| Mutation::Unit(a, u)),
        (at.clone(), keep).prop_map(|(a, k)| Mutation::Keep(a, k)),
        at.clone().prop_map(Mutation::Host),
        home.clone().prop_map(Mutation::Params),
        home.prop_map(Mutation::Grads),
        (at, stray).prop_map(|(a, op)| Mutation::Insert(a, op)),
    ]
}

fn mutate(mut plan: Plan, mutation: &Mutation) -> Plan {
    let mut steps = std::mem::take(&mut plan.steps);
    let n = steps.len();
    match mutation.clone() {
        Mutation::Drop(a) => drop(steps.remove(a % n)),
        Mutation::Double(a, b) => {
            let twin = steps[a % n].clone();
            steps.insert(b % n, twin);
        }
        Mutation::Swap(a, b) => steps.swap(a % n, b % n),
        Mutation::Move(a, b) => {
            let step = steps.remove(a % n);
            steps.insert(b % n, step);
        }
        Mutation::Unit(a, u) => match &mut steps[a % n].op {
            StepKind::Gather { unit, .. }
            | StepKind::Release { unit }
            | StepKind::Forward { unit, .. }
            | StepKind::Recompute { unit, .. }
            | StepKind::Backward { unit, .. }
            | StepKind::Update { unit } => *unit = u,
            StepKind::ReduceGrad { units, .. } => units.push(u),
            _ => {}
        },
        Mutation::Keep(a, k) => {
            let found = (0..n)
                .map(|k| (a + k) % n)
                .find(|&k| matches!(steps[k].op, StepKind::Forward { .. }));
            if let Some(StepKind::Forward { keep, .. }) = found.map(|f| &mut steps[f].op) {
                *keep = k;
            }
        }
        Mutation::Host(a) => steps[a % n].lane = Lane::Host,
        Mutation::Params(home) => plan.params = home,
        Mutation::Grads(home) => plan.grads = home,
        Mutation::Insert(a, op) => steps.insert(a % n, Step::new(op)),
    }
    plan.rebuild(steps)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_settings_give_lawful_plans(facts in facts(), set in settings()) {
        let plan = build(&facts, &set);
        let fast = trace(&plan, &facts).unwrap();
        prop_assert_eq!(&fast, &simulate(&plan, &facts).unwrap());
        let peak = check(&plan, &facts).unwrap();
        prop_assert_eq!(peak.bytes, fast.iter().copied().max().unwrap());
        prop_assert_eq!(peak.bytes, peak.parts.total());
        prop_assert_eq!(plan.to_string().parse::<Plan>().unwrap().to_string(), plan.to_string());
    }

    #[test]
    fn prefetch_keeps_to_its_slots_and_the_budget(mut facts in facts(), mut set in settings()) {
        set.stage = 3;
        // These are put in behind the passes, where prefetch cannot count their bytes.
        (set.clear, set.offload, set.host, set.spill_inputs) = (false, false, None, false);
        // And so are the sums that only another rank than the first must keep apart.
        set.canonical = set.canonical.map(|(micro_batches, _)| (micro_batches, 0));
        let ahead = set.prefetch.take();
        let before = build(&facts, &set);
        set.prefetch = ahead;
        if let Some((_, slots)) = ahead {
            facts.budget = Some(check(&before, &facts).unwrap().bytes + u64::from(slots));
            let after = build(&facts, &set);
            check(&after, &facts).unwrap();
            prop_assert!(width(&after) <= width(&before).max(i64::from(slots)));
        }
    }

    #[test]
    fn check_and_the_simulator_agree_on_mutants(
        facts in facts(),
        set in settings(),
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let plan = mutations.iter().fold(build(&facts, &set), |p, m| {
            if p.steps.len() > 1 { mutate(p, m) } else { p }
        });
        match (trace(&plan, &facts), simulate(&plan, &facts)) {
            (Ok(fast), Ok(slow)) => prop_assert_eq!(fast, slow, "{}", plan),
            (Err(_), Err(_)) => {}
            (Ok(_), Err(slow)) => prop_assert!(false, "check lets pass what breaks a law: {}\n{}", slow, plan),
            (Err(fast), Ok(_)) => prop_assert!(false, "check refuses a lawful plan: {}\n{}", fast, plan),
        }
    }

    #[test]
    fn edges_order_every_conflict_and_none_is_idle(facts in facts(), set in settings()) {
        let plan = Depend.run(build(&facts, &set), &facts).unwrap();
        check(&plan, &facts).unwrap();
        let order = Order::new(&plan);
        let touched = accesses(&plan, &facts);
        for b in 0..touched.len() {
            for a in 0..b {
                let conflict = touched[a].iter().any(|x| touched[b].iter().any(|y| x.resource == y.resource && (x.write || y.write)));
                let same = plan.steps[a].lane == plan.steps[b].lane;
                prop_assert!(!conflict || same || order.before(StepId(a as u32), StepId(b as u32)), "{} {}", a, b);
            }
        }
        for step in 0..plan.steps.len() {
            for edge in 0..plan.steps[step].after.len() {
                let mut cut = plan.clone();
                cut.steps[step].after.remove(edge);
                prop_assert_eq!(check(&cut, &facts).unwrap_err().law, Law::Hazard);
            }
        }
    }
}
