//! Schedules of one run a stage and of several: what they take by the clock, what they hold, and that no order of them hangs.
#![forbid(unsafe_code)]

use crossweave_parallel::played::{self, Outlook};
use crossweave_parallel::schedule::{Order, pipeline};
use crossweave_parallel::timeline::{Cost, Timeline};
use crossweave_plan::axes::{Axis, Topology};
use crossweave_plan::{
    Depend, Facts, Law, Pass, Plan, PlanError, Runs, StepKind, UnitFacts, check, check_world,
};

/// One unit a run, of `chunks` runs a stage where the order leaves a choice.
fn runs(order: Order, p: u32, chunks: u32) -> Runs {
    let count = p * order.runs_of_a_stage(chunks);
    order.divide(&vec![1; count as usize], p)
}

fn facts(runs: &Runs, m: u32) -> Facts {
    let unit = UnitFacts {
        params: 100,
        param_bytes: 200,
        grad_bytes: 400,
        state_bytes: 1200,
        saved_all: 90,
        saved_input: 10,
        owed_bytes: 40,
        flow_bytes: 10,
        ..UnitFacts::default()
    };
    Facts::uniform(runs.count() as u32, m, 1, unit)
}

fn plans(order: Order, runs: &Runs, m: u32) -> Vec<Plan> {
    let of = |stage| pipeline(runs, stage, m, order).unwrap();
    (0..runs.stages()).map(of).collect()
}

fn agree(plans: &[Plan], facts: &Facts) -> Result<(), PlanError> {
    let mesh = Topology::new(&[(Axis::Pp, plans.len() as u32)]).unwrap();
    let ranks: Vec<_> = plans.iter().map(|p| (p, facts)).collect();
    check_world(&mesh, &ranks)
}

fn play(order: Order, runs: &Runs, m: u32, cost: impl Fn(usize) -> Cost) -> Timeline {
    Timeline::play(runs, &order.work(runs, m).unwrap(), cost).unwrap()
}

/// Golden values of PyTorch's schedules, simulated with F = I = W = 1 a run and free messages; a run is a stage in the first two columns and half
/// of one in the others.
#[test]
fn makespans_are_those_of_the_papers_to_the_unit() {
    use Order::*;
    let orders = [OneFOneB, GPipe, ZbH1, Interleaved, ZbV, DualPipeV];
    for (p, m, wanted) in [
        (2, 4, [15, 15, 13, 27, 25, 25]),
        (4, 8, [33, 33, 27, 57, 51, 51]),
        (4, 16, [57, 57, 51, 105, 99, 99]),
        (8, 16, [69, 69, 55, 117, 103, 103]),
    ] {
        for (order, wanted) in orders.into_iter().zip(wanted) {
            let played = play(order, &runs(order, p, 2), m, |_| Cost::UNIT);
            assert_eq!(played.makespan(), wanted, "{order:?}, {p} stages, {m}");
        }
    }
    let peaks = |order| -> Vec<u32> {
        let played = play(order, &runs(order, 4, 2), 8, |_| Cost::UNIT);
        (0..4).map(|s| played.peak(s)).collect()
    };
    assert_eq!(peaks(OneFOneB), [4, 3, 2, 1]);
    assert_eq!(peaks(GPipe), [8; 4]);
    assert_eq!(peaks(ZbH1), [4; 4]);
    assert_eq!(peaks(Interleaved), [11, 9, 7, 5]);
    assert_eq!(peaks(ZbV), [8; 4]);
    assert_eq!(peaks(DualPipeV), [9; 4]);
}

/// ZB-H1: a bubble of (p - 1) max(F, I, F + I - W), and min(p, m) micro-batches in flight on every stage that has work for them.
#[test]
fn the_bubble_of_zb_h1_is_its_formula() {
    for p in 1..6u32 {
        for m in [p, 2 * p, 3 * p + 1] {
            for (forward, input, weights) in [(1, 1, 1), (2, 3, 2), (3, 2, 1), (2, 2, 3), (1, 2, 2)]
            {
                let cost = Cost {
                    forward,
                    input,
                    weights,
                };
                let runs = runs(Order::ZbH1, p, 1);
                let played = play(Order::ZbH1, &runs, m, |_| cost);
                let work = u64::from(m) * (forward + input + weights);
                let longest = forward
                    .max(input)
                    .max((forward + input).saturating_sub(weights));
                let bubble = u64::from(p - 1) * longest;
                assert_eq!(
                    played.makespan(),
                    work + bubble,
                    "{p} stages, {m}, {cost:?}"
                );
                assert!(
                    (0..p).all(|s| played.peak(s) <= p.min(m)),
                    "{p} stages, {m}"
                );
            }
        }
    }
}

/// No schedule is faster than its slowest stage: the forwards of the runs before its first, and its own work of every micro-batch. While costs
/// differ by no more than 30 %, ZB-H1 is not slower than 1F1B of the same stages. Both hold of lists of work, and of the plans made of them.
#[test]
fn uneven_costs_have_a_bound_and_an_order() {
    let mut seed = 7u64;
    let mut roll = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    for _ in 0..200 {
        let (p, m) = (2 + roll(4) as u32, 1 + roll(3) as u32);
        let m = m * 2 * p;
        let costs: Vec<Cost> = (0..4 * p)
            .map(|_| Cost {
                forward: 100 + roll(31),
                input: 100 + roll(31),
                weights: 100 + roll(31),
            })
            .collect();
        let mut ends = vec![];
        for order in Order::ALL {
            let runs = runs(order, p, 3);
            let played = play(order, &runs, m, |k| costs[k]);
            for s in 0..p {
                let before = runs.of(s).next().map_or(0, |first| {
                    costs[..first].iter().map(|c| c.forward).sum::<u64>()
                });
                let own = runs.of(s).map(|k| costs[k]);
                let own: u64 = own.map(|c| c.forward + c.input + c.weights).sum();
                let least = before + u64::from(m) * own;
                assert!(played.makespan() >= least, "{order:?}, stage {s} of {p}");
            }
            let planned = Outlook::of(order, &runs, m, |k| costs[k]).unwrap();
            assert!(planned.makespan >= played.makespan(), "{order:?}");
            ends.push((order, [played.makespan(), planned.makespan]));
        }
        let of = |order| ends.iter().find(|(o, _)| *o == order).unwrap().1;
        let (zero, one) = (of(Order::ZbH1), of(Order::OneFOneB));
        assert!(
            zero[0] <= one[0] && zero[1] <= one[1],
            "{p} stages, {m}: {ends:?}"
        );
    }
}

/// Plans take as long as the lists that they are made of, where every part of a run takes as long: no message stands in the way of another. With
/// other costs one may, and a plan is no faster than its lists. It holds as many runs, and every stage works for as long.
#[test]
fn plans_take_as_long_as_their_lists() {
    let mut seed = 11u64;
    let mut roll = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    let mut later = 0;
    for order in Order::ALL {
        for (p, m) in [(1, 3), (2, 4), (3, 6), (4, 8), (4, 16), (5, 10), (8, 16)] {
            let cut = runs(order, p, 3);
            let even = Outlook::of(order, &cut, m, |_| Cost::UNIT).unwrap();
            let listed = play(order, &cut, m, |_| Cost::UNIT);
            assert_eq!(
                even.makespan,
                listed.makespan(),
                "{order:?}, {p} stages, {m}"
            );
            let peaks: Vec<u32> = (0..p).map(|s| listed.peak(s)).collect();
            assert_eq!(even.in_flight, peaks, "{order:?}, {p} stages, {m}");
            let costs: Vec<Cost> = (0..cut.count())
                .map(|_| Cost {
                    forward: 1 + roll(9),
                    input: 1 + roll(9),
                    weights: 1 + roll(9),
                })
                .collect();
            let uneven = Outlook::of(order, &cut, m, |k| costs[k]).unwrap();
            let listed = play(order, &cut, m, |k| costs[k]).makespan();
            assert!(uneven.makespan >= listed, "{order:?}, {p} stages, {m}");
            later += usize::from(uneven.makespan > listed);
            for s in 0..p {
                let own = cut.of(s).map(|k| costs[k].whole()).sum::<u64>();
                assert_eq!(uneven.busy[s as usize], u64::from(m) * own);
            }
            assert!((0.0..1.0).contains(&uneven.idle()), "{}", uneven.idle());
        }
    }
    assert!(later > 5, "messages were in the way {later} times");
}

/// A plan whose messages cross stands for ever, and is named with its stage and step.
#[test]
fn plans_that_cross_are_named() {
    let cut = runs(Order::OneFOneB, 2, 1);
    let mut all = plans(Order::OneFOneB, &cut, 3);
    let is_message = |k: &usize| all[1].steps[*k].op.is_message();
    let messages: Vec<usize> = (0..all[1].steps.len()).filter(is_message).collect();
    let mut steps = all[1].steps.clone();
    steps.swap(messages[0], messages[1]);
    all[1] = Plan::default().rebuild(steps);
    let facts = facts(&cut, 3);
    let ordered = all.iter().map(|p| Depend.run(p.clone(), &facts).unwrap());
    let ordered: Vec<Plan> = ordered.collect();
    let borrowed: Vec<&Plan> = ordered.iter().collect();
    let e = played::play(&borrowed, |_, s| played::work(&s.op, |_| Cost::UNIT)).unwrap_err();
    assert!(e.contains("stage 0 waits for ever at step"), "{e}");
}

/// Every stage's plan keeps the laws, every world comes to its end, and as many boundaries are crossed as runs change stages.
#[test]
fn every_schedule_keeps_the_laws() {
    for order in Order::ALL {
        for p in 1..=8 {
            for m in [1, 2, 3, 4, 5, 7, 8, 16, 32] {
                for chunks in 1..=4 {
                    let alone = order.runs_of_a_stage(chunks) == order.runs_of_a_stage(1);
                    let cut = runs(order, p, chunks);
                    if alone && chunks > 1 || order.work(&cut, m).is_err() {
                        continue;
                    }
                    // The larger ones in turns: all of them are a minute.
                    if p * chunks > 8 && (p + m + chunks) % 4 != 0 {
                        continue;
                    }
                    let at = format!("{order:?}, {p} stages, {m} micro-batches, {chunks} chunks");
                    let facts = facts(&cut, m);
                    let plans = plans(order, &cut, m);
                    for plan in &plans {
                        check(plan, &facts).unwrap_or_else(|e| panic!("{at}: {e}"));
                    }
                    agree(&plans, &facts).unwrap_or_else(|e| panic!("{at}: {e}"));
                    let crossed = (0..cut.count()).filter(|k| cut.after(*k).is_some()).count();
                    let wanted = match order {
                        Order::ZbV | Order::DualPipeV => 2 * p - 2,
                        _ if p == 1 => 0,
                        _ => cut.count() as u32 - 1,
                    };
                    assert_eq!(crossed as u32, wanted, "{at}");
                    let sent = plans.iter().flat_map(|p| &p.steps);
                    let sent = sent.flat_map(|s| s.op.messages().1).filter(|m| m.sends);
                    assert_eq!(sent.count() as u32, 2 * m * wanted, "{at}");
                }
            }
        }
    }
}

/// With two neighbouring steps of a stage swapped it either still comes to its end or is refused, with the rank and the step or what is missing.
#[test]
fn a_swapped_pair_of_steps_passes_or_is_named() {
    let (mut passed, mut refused) = (0, 0);
    for order in Order::ALL {
        let cut = runs(order, 3, 2);
        let m = 6;
        let facts = facts(&cut, m);
        let whole = plans(order, &cut, m);
        for stage in 0..whole.len() {
            for k in 1..whole[stage].steps.len() {
                let mut plans = whole.clone();
                let mut steps = whole[stage].steps.clone();
                steps.swap(k - 1, k);
                plans[stage] = Plan::default().rebuild(steps);
                let own = check(&plans[stage], &facts).map(|_| ());
                match own.and_then(|()| agree(&plans, &facts)) {
                    Ok(()) => passed += 1,
                    Err(e) => {
                        refused += 1;
                        let text = e.to_string();
                        assert!(text.contains("step") || text.contains("never"), "{text}");
                    }
                }
            }
        }
    }
    assert!(
        passed > 50 && refused > 50,
        "{passed} pass, {refused} are refused"
    );
}

/// What became of layouts and of their plans with two neighbouring steps swapped.
#[derive(Default, Debug)]
struct Swept {
    layouts: usize,
    passed: usize,
    refused: usize,
}

/// Every schedule of so many stages, micro-batches and chunks: its plans keep the laws and come to their end, and so they do, or are refused with
/// rank and step, with each `n`th pair of neighbouring steps swapped.
fn sweep(p: u32, m: u32, chunks: u32, (n, seen): (usize, &mut usize), found: &mut Swept) {
    for order in Order::ALL {
        let cut = runs(order, p, chunks);
        let alone = order != Order::Interleaved;
        if alone && chunks > 1 || order.work(&cut, m).is_err() {
            continue;
        }
        let at = format!("{order:?}, {p} stages, {m} micro-batches, {chunks} chunks");
        let facts = facts(&cut, m);
        let whole = plans(order, &cut, m);
        for plan in &whole {
            check(plan, &facts).unwrap_or_else(|e| panic!("{at}: {e}"));
        }
        agree(&whole, &facts).unwrap_or_else(|e| panic!("{at}: {e}"));
        found.layouts += 1;
        let mut plans = whole.clone();
        for stage in 0..whole.len() {
            for k in 1..whole[stage].steps.len() {
                *seen += 1;
                if *seen % n != 0 {
                    continue;
                }
                let mut steps = whole[stage].steps.clone();
                steps.swap(k - 1, k);
                plans[stage] = Plan::default().rebuild(steps);
                let own = check(&plans[stage], &facts).map(|_| ());
                match own.and_then(|()| agree(&plans, &facts)) {
                    Ok(()) => found.passed += 1,
                    Err(e) => {
                        found.refused += 1;
                        let text = e.to_string();
                        let named = text.contains("step") || text.contains("never");
                        assert!(named, "{at}, step {k} of stage {stage}: {text}");
                    }
                }
                plans[stage] = whole[stage].clone();
            }
        }
    }
}

/// A sample of the sweep below.
#[test]
fn a_swapped_pair_of_any_schedule_passes_or_is_named() {
    let (mut found, mut seen) = (Swept::default(), 0);
    for (p, m, chunks) in [(2, 4, 3), (4, 8, 2), (5, 10, 4), (8, 16, 1), (7, 14, 2)] {
        sweep(p, m, chunks, (61, &mut seen), &mut found);
    }
    assert!(
        found.layouts == 10 && found.passed > 20 && found.refused > 20,
        "{found:?}"
    );
}

/// Every schedule of up to 8 stages, 32 micro-batches and 4 chunks with every pair: 1,556 layouts, 922,931 swaps.
#[test]
#[ignore = "six minutes; for a change of schedules, messages or laws"]
fn every_schedule_with_every_pair_swapped_passes_or_is_named() {
    let (mut found, mut seen) = (Swept::default(), 0);
    for p in 1..=8 {
        for (m, chunks) in (1..=32).flat_map(|m| (1..=4).map(move |c| (m, c))) {
            sweep(p, m, chunks, (1, &mut seen), &mut found);
        }
    }
    assert_eq!((found.layouts, seen), (1556, 922_931));
    assert!(
        found.passed > 400_000 && found.refused > 400_000,
        "{found:?}"
    );
}

/// On a ring of chunks every stage sends to the next at one time: alone each would stand in its send, and as one group they pass. What two stages
/// exchange is one event of both, so a message that is missing on one side is named.
#[test]
fn a_ring_passes_as_groups_and_not_as_single_sends() {
    let facts = facts(&runs(Order::Interleaved, 3, 2), 6);
    let all = plans(Order::Interleaved, &runs(Order::Interleaved, 3, 2), 6);
    let group = |s: &StepKind| matches!(s, StepKind::Exchange { .. });
    assert!(all.iter().flat_map(|p| &p.steps).any(|s| group(&s.op)));
    for p in &all {
        let text = p.to_string();
        assert_eq!(text.parse::<Plan>().unwrap().to_string(), text);
    }
    // The receives of each group behind its sends: a circle.
    let apart = |p: &Plan| {
        let each = p.steps.iter().flat_map(|s| {
            let (grad, mut messages) = s.op.messages();
            if messages.is_empty() {
                return vec![s.op.clone()];
            }
            messages.sort_by_key(|m| !m.sends);
            let alone = |m| StepKind::Exchange {
                grad,
                round: 0,
                messages: vec![m],
            };
            messages.into_iter().map(alone).collect()
        });
        Plan::from_ops(each)
    };
    let single: Vec<Plan> = all.iter().map(apart).collect();
    let e = agree(&single, &facts).unwrap_err();
    assert_eq!(e.law, Law::Deadlock, "{e}");
    assert!(e.to_string().contains("rank "), "{e}");
    let mut lacks = all.clone();
    let steps = lacks[1].steps.iter_mut();
    let first = steps.map(|s| &mut s.op).find_map(|op| match op {
        StepKind::Exchange { messages, .. } => Some(messages),
        _ => None,
    });
    first.unwrap().pop();
    assert_eq!(agree(&lacks, &facts).unwrap_err().law, Law::Peer);
}

/// What there is no order of is refused in a sentence.
#[test]
fn runs_and_micro_batches_that_fit_no_order_are_refused() {
    let refused = |order: Order, cut: &Runs, m| order.work(cut, m).unwrap_err();
    let e = refused(Order::Interleaved, &runs(Order::Interleaved, 3, 2), 4);
    assert!(e.contains("multiple of the stages"), "{e}");
    let e = refused(Order::DualPipeV, &runs(Order::DualPipeV, 3, 2), 5);
    assert!(e.contains("two for each stage"), "{e}");
    let e = refused(Order::OneFOneB, &runs(Order::Interleaved, 2, 2), 4);
    assert!(e.contains("are not those of 1f1b"), "{e}");
    let e = refused(Order::ZbV, &runs(Order::Interleaved, 2, 2), 4);
    assert!(e.contains("are not those of zbv"), "{e}");
}

/// Megatron-LM#1304: 30 layers over 4 stages became 28. Every unit is in one run, and no two in the same place.
#[test]
fn no_unit_is_lost_between_runs() {
    for units in 1..40u32 {
        for stages in 1..=units.min(9) {
            let cut = Runs::even(units, stages);
            cut.check(units as usize).unwrap();
            let all: Vec<u32> = (0..stages).flat_map(|s| cut.units_of(s)).collect();
            assert_eq!(all, (0..units).collect::<Vec<_>>(), "{stages} stages");
            assert!(cut.check(units as usize + 1).is_err());
        }
    }
    let cut = Order::ZbV.divide(&[2, 1, 3, 1], 2);
    cut.check(7).unwrap();
    assert_eq!(cut.units_of(0).collect::<Vec<_>>(), [0, 1, 6]);
    assert_eq!(cut.units_of(1).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert_eq!(
        (cut.after(1), cut.before(2), cut.last_stage()),
        (None, None, 0)
    );
}
