//! Plans of several ranks against each other: what each law between ranks refuses, with the rank that is named.
#![forbid(unsafe_code)]

use crossweave_plan::axes::{Axis, AxisSet, Representatives, Topology};
use crossweave_plan::{
    Facts, KeptPart, Law, Moves, Peer, Plan, PlanError, Said, SideEvent, SideProgram, StepKind,
    UnitFacts, check, check_representative_side_programs, check_representatives,
    check_side_programs, check_world,
};

fn facts(units: u32, micro_batches: u32) -> Facts {
    let unit = UnitFacts {
        params: 8,
        param_bytes: 16,
        grad_bytes: 32,
        state_bytes: 96,
        saved_all: 50,
        saved_selective: 20,
        saved_input: 10,
        flow_bytes: 10,
        workspace_bytes: 1,
        ..UnitFacts::default()
    };
    Facts::uniform(units, micro_batches, 2, unit)
}

fn plan(text: &str) -> Plan {
    text.parse().unwrap()
}

const ONE: &str = "F0.0 F1.0 B1.0 ar1 B0.0 ar0 norm opt0 opt1";
const SHARDED: &str = "+0 F0.0 -0 +1 F1.0 B1.0 -1 rs1 +0 B0.0 -0 rs0 opt0 opt1";

/// Plans of the ranks of a mesh, of units of which nothing more is known.
fn on(lengths: &[(Axis, u32)], texts: &[&str]) -> Result<(), PlanError> {
    let (plans, f) = (texts.iter().map(|t| plan(t)), Facts::default());
    let plans: Vec<Plan> = plans.collect();
    let ranks: Vec<_> = plans.iter().map(|p| (p, &f)).collect();
    check_world(&Topology::new(lengths).unwrap(), &ranks)
}

/// Data-parallel ranks.
fn world(texts: &[&str]) -> Result<(), PlanError> {
    on(&[(Axis::Dp, texts.len() as u32)], texts)
}

/// Stages of one rank each.
fn staged(texts: &[&str]) -> Result<(), PlanError> {
    on(&[(Axis::Pp, texts.len() as u32)], texts)
}

#[test]
fn ranks_agree_on_collectives() {
    world(&[SHARDED, SHARDED]).unwrap();
    world(&[ONE, ONE, ONE]).unwrap();
    let late = "+0 F0.0 -0 +1 F1.0 B1.0 -1 +0 B0.0 -0 rs0 rs1 opt0 opt1";
    let fault = world(&[SHARDED, late]).unwrap_err();
    assert_eq!((fault.law, fault.rank), (Law::CollectiveOrder, Some(1)));
    assert!(
        fault.to_string().contains("plan of rank 1, step 10 (rs0)"),
        "{fault}"
    );
    let short = "F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 opt1";
    assert_eq!(world(&[ONE, short]).unwrap_err().law, Law::CollectiveOrder);
    assert_eq!(world(&[short, ONE]).unwrap_err().law, Law::CollectiveOrder);
    // One gathers from its node where the other gathers from all.
    let near = SHARDED.replace("+0 B0.0", "+0* B0.0");
    assert_ne!(near, SHARDED);
    world(&[&near, &near]).unwrap();
    let fault = world(&[SHARDED, &near]).unwrap_err();
    assert_eq!((fault.law, fault.rank), (Law::CollectiveOrder, Some(1)));
    assert!(fault.to_string().contains("(+0*): number 2"), "{fault}");
    // Each lane agrees, but the two interleave otherwise: rank 0 reduces before it gathers, rank 1 after.
    let crossed = "+0 F0.0 -0 +1 F1.0 B1.0 -1 +0 rs1 B0.0 -0 rs0 opt0 opt1";
    assert_eq!(world(&[SHARDED, crossed]).unwrap_err().law, Law::Deadlock);
}

#[test]
fn every_send_meets_its_receive() {
    let first = "F0.0 a0.0>1 F0.1 a0.1>1 g0.0<1 B0.0 g0.1<1 B0.1";
    let second = "a0.0<0 F1.0 B1.0 a0.1<0 g0.0>0 F1.1 B1.1 g0.1>0";
    staged(&[first, second]).unwrap();
    // A send waits for its receive: here each waits to send to the other.
    let crossed = "a0.0<0 F1.0 B1.0 g0.0>0 a0.1<0 F1.1 B1.1 g0.1>0";
    assert_eq!(staged(&[first, crossed]).unwrap_err().law, Law::Deadlock);
    let swapped = "a0.1<0 F1.1 B1.1 g0.1>0 a0.0<0 F1.0 B1.0 g0.0>0";
    let fault = staged(&[first, swapped]).unwrap_err();
    assert_eq!((fault.law, fault.rank), (Law::Peer, Some(0)));
    let deaf = "a0.0<0 F1.0 B1.0 g0.0>0 F1.1 B1.1 g0.1>0";
    assert!(
        staged(&[first, deaf])
            .unwrap_err()
            .to_string()
            .contains("never receives it")
    );
    assert_eq!(staged(&["F0.0 a0.0>5 B0.0"]).unwrap_err().law, Law::Peer);
    // Each waits for what the other sends only later.
    let fault = staged(&["g0.0<1 F0.0 a0.0>1 B0.0", "a0.0<0 F1.0 B1.0 g0.0>0"]).unwrap_err();
    assert_eq!(fault.law, Law::Deadlock);
}

/// A unit that two stages read: its gradient is summed over them.
#[test]
fn ties_are_events_of_the_stages_that_share_a_unit() {
    let mut f = facts(2, 1);
    f.units[1].ties = vec![0];
    let last = "a0.0<0 F1.0 B1.0 ar0 ar1 g0.0>0 tie0 norm opt0 opt1";
    let first = "F0.0 a0.0>1 g0.0<1 B0.0 ar0 tie0 norm opt0";
    check(&plan(first), &f).unwrap();
    staged(&[first, last]).unwrap();
    // Two ranks of each stage: the first sums with the first, the second with the second.
    let both = [(Axis::Pp, 2), (Axis::Dp, 2)];
    on(&both, &[first, first, last, last]).unwrap();
    let e = on(&both, &[first, first, last]).unwrap_err().to_string();
    assert!(e.contains("3 plans for a mesh of 4 ranks"), "{e}");
    // A stage that sums before it has sent what the other needs to get there.
    let early = "a0.0<0 F1.0 B1.0 ar0 tie0 ar1 g0.0>0 norm opt0 opt1";
    check(&plan(early), &f).unwrap();
    assert_eq!(staged(&[first, early]).unwrap_err().law, Law::Deadlock);
}

/// Four data-parallel ranks, of which ranks 0 and 2 share some experts, and 1 and 3 the others: what these sum is no event of the others.
#[test]
fn collectives_of_experts_are_events_of_the_ranks_that_share_them() {
    let mut experts = facts(2, 1);
    experts.units[1].talk.owners = Some((AxisSet::EXPERT_DATA, 2));
    let mesh = Topology::new(&[(Axis::Dp, 4), (Axis::Ep, 2)]).unwrap();
    let (early, late) = (
        plan(ONE),
        plan("F0.0 F1.0 B1.0 B0.0 ar0 ar1 norm opt0 opt1"),
    );
    let hold = |plans: [&Plan; 4], f: &Facts| {
        let ranks: Vec<_> = plans.into_iter().map(|p| (p, f)).collect();
        check_world(&mesh, &ranks)
    };
    hold([&early, &late, &early, &late], &experts).unwrap();
    let e = hold([&early, &late, &early, &late], &facts(2, 1)).unwrap_err();
    assert_eq!((e.law, e.rank), (Law::CollectiveOrder, Some(1)));
    // Rank 0 is in the sum of its experts while rank 2, which shares them, waits for it in that of the rest.
    let e = hold([&early, &late, &late, &late], &experts).unwrap_err();
    assert_eq!(e.law, Law::Deadlock, "{e}");
    let less = plan("F0.0 F1.0 B1.0 B0.0 ar0 norm opt0");
    let e = hold([&early, &early, &less, &early], &experts).unwrap_err();
    assert_eq!((e.law, e.rank), (Law::CollectiveOrder, Some(2)), "{e}");
}

/// What a backward gathers again it does not gather where the forward was recomputed just before it; and of messages each member expects
/// what the other sends.
#[test]
fn what_is_gathered_again_and_messages_are_events_of_their_groups() {
    let said = |what: &str, moves: Moves| Said {
        axes: Axis::Tp.into(),
        what: what.into(),
        moves: Some(Moves { ranks: 2, ..moves }),
    };
    let mut again = facts(2, 1);
    let gathered = Moves {
        kind: "all_gather",
        again: true,
        ..Moves::default()
    };
    again.units[1].talk.backward = vec![said("gather of 8 elements", gathered)];
    let mut kept = again.clone();
    kept.units[1].talk.backward.clear();
    let mesh = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    let hold = |plan: &Plan, facts: [&Facts; 2]| check_world(&mesh, &facts.map(|f| (plan, f)));
    let once = plan(ONE);
    let twice = plan("F0.0 F1.0 R1.0 B1.0 B0.0 ar0 ar1 opt0 opt1");
    hold(&once, [&again, &again]).unwrap();
    hold(&twice, [&again, &kept]).unwrap();
    let e = hold(&once, [&again, &kept]).unwrap_err().to_string();
    assert!(
        e.contains("gather of 8 elements") && e.contains("left waiting"),
        "{e}"
    );

    let peer = |ahead, elements, sends| Peer {
        ahead,
        elements,
        sends,
    };
    let pieces = |out: [u64; 2], into: [u64; 2]| {
        let mut f = facts(2, 1);
        let send = [0, 1].map(|k| peer(k as u32, out[k], true));
        let recv = [0, 1].map(|k| peer(k as u32, into[k], false));
        let moves = Moves {
            kind: "all_to_all_v",
            elements: out.iter().sum(),
            peers: send.into_iter().chain(recv).collect(),
            ..Moves::default()
        };
        f.units[0].talk.forward = vec![said("dispatch of some elements", moves)];
        f
    };
    // By distance: what each keeps, and what it exchanges with the other.
    let (first, second) = (pieces([3, 5], [3, 2]), pieces([1, 2], [1, 5]));
    hold(&once, [&first, &second]).unwrap();
    let other = pieces([1, 4], [1, 5]);
    let e = hold(&once, [&first, &other]).unwrap_err().to_string();
    let words = [
        "over tp",
        "dispatch",
        "expects messages of [2]",
        "from rank 1",
        "sends [4]",
    ];
    assert!(words.iter().all(|w| e.contains(w)), "{e}");
}

/// Parts of a kept input are gathered where its forward is recomputed, and nowhere else; a rank that keeps the whole would leave the other waiting.
#[test]
fn parts_of_kept_inputs_are_gathered_before_a_recomputation() {
    let mut parts = facts(2, 1);
    parts.units[1].talk.kept = Some(KeptPart {
        bytes: 5,
        gather: Said {
            axes: Axis::Tp.into(),
            what: "kept input of 8 elements".into(),
            moves: Some(Moves {
                kind: "all_gather",
                ranks: 2,
                ..Moves::default()
            }),
        },
    });
    let whole = facts(2, 1);
    let mesh = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    let hold = |plan: &Plan, facts: [&Facts; 2]| check_world(&mesh, &facts.map(|f| (plan, f)));
    let once = plan(ONE);
    let twice = plan("F0.0 F1.0 R1.0 B1.0 B0.0 ar0 ar1 opt0 opt1");
    hold(&once, [&parts, &whole]).unwrap();
    hold(&twice, [&parts, &parts]).unwrap();
    let e = hold(&twice, [&parts, &whole]).unwrap_err().to_string();
    assert!(
        e.contains("kept input of 8 elements") && e.contains("R1.0"),
        "{e}"
    );
}

/// Four ranks of two data-parallel replicas, cut over tp in two: blocks sum over tp, updates over dp.
#[test]
fn what_blocks_and_updates_say_is_an_event_of_their_groups() {
    let said = |axes: Axis, what: &str| Said {
        axes: axes.into(),
        what: what.into(),
        ..Said::default()
    };
    let mut f = facts(2, 1);
    for u in &mut f.units {
        u.talk.forward = vec![said(Axis::Tp, "reduce of 8 elements")];
        u.talk.backward = vec![said(Axis::Tp, "enter of 8 elements")];
        u.talk.update = vec![said(Axis::Dp, "norms of whole parameters")];
    }
    let mesh = Topology::new(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap();
    let one = plan(ONE);
    let hold = |plans: [&Plan; 4], facts: [&Facts; 4]| {
        let ranks: Vec<_> = plans.into_iter().zip(facts).collect();
        check_world(&mesh, &ranks)
    };
    hold([&one; 4], [&f; 4]).unwrap();
    let fault = |plans, facts, rank: u32, law: Law, words: &[&str]| {
        let e = hold(plans, facts).unwrap_err();
        let text = e.to_string();
        assert_eq!((e.law, e.rank), (law, Some(rank)), "{text}");
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
    };
    // Rank 3's second unit has one sum less: rank 2 would wait in its forward's.
    let mut less = f.clone();
    less.units[1].talk.forward.clear();
    let words = [
        "(F1.0",
        "said over tp",
        "rank 2 says reduce of 8 elements in F1.0",
    ];
    fault(
        [&one; 4],
        [&f, &f, &f, &less],
        3,
        Law::CollectiveOrder,
        &["over tp", "rank 2"],
    );
    let mut none = f.clone();
    none.units.iter_mut().for_each(|u| u.talk.forward.clear());
    none.units.iter_mut().for_each(|u| u.talk.backward.clear());
    let left = [
        "F0.0",
        "rank 3 says nothing more",
        "left waiting inside the step",
    ];
    fault(
        [&one; 4],
        [&f, &f, &f, &none],
        2,
        Law::CollectiveOrder,
        &left,
    );
    // It says as much, of another size.
    let mut other = f.clone();
    other.units[1].talk.forward[0].what = "reduce of 9 elements".into();
    let sizes = [words[1], words[2], "is reduce of 9 elements here"];
    fault(
        [&one; 4],
        [&f, &f, &f, &other],
        3,
        Law::CollectiveOrder,
        &sizes,
    );
    // An update that sums on one replica only leaves the other's rank waiting, whatever the order of updates.
    let mut quiet = f.clone();
    quiet.units[0].talk.update.clear();
    fault(
        [&one; 4],
        [&f, &f, &quiet, &quiet],
        2,
        Law::CollectiveOrder,
        &["over dp"],
    );
    // Every group says the same in its own order, and no rank gets past the first of either: tp waits for the reduction over dp.
    let early = plan("F0.0 F1.0 B1.0 ar1 B0.0 ar0 opt0 opt1");
    let late = plan("F0.0 F1.0 B1.0 B0.0 ar1 ar0 opt0 opt1");
    hold([&early, &early, &early, &early], [&f; 4]).unwrap();
    hold([&early, &late, &early, &late], [&f; 4]).unwrap();
    fault(
        [&early, &late, &late, &early],
        [&f; 4],
        0,
        Law::Deadlock,
        &["waits here for ever"],
    );
}

/// Numbers below a bound, the same for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// Stages whose plans are right or have a step taken out, put elsewhere or twice; what blocks say over random axes. The verdict of the
/// representatives is that of all ranks, to the word.
#[test]
fn representatives_stand_for_all_ranks_of_a_job() {
    let right = [
        "+0 F0.0 a0.0>1 F0.1 a0.1>1 g0.0<1 B0.0 g0.1<1 B0.1 -0 rs0 norm opt0",
        "+1 a0.0<0 F1.0 B1.0 a0.1<0 g0.0>0 F1.1 B1.1 g0.1>0 -1 rs1 norm opt1",
    ];
    let mut draw = Draw(0x5eed);
    let (mut lawful, mut unlawful) = (0, 0);
    for _ in 0..400 {
        let (dp, tp, cp) = (1 + draw.below(4), 1 + draw.below(3), 1 + draw.below(2));
        let lengths = [
            (Axis::Pp, 2),
            (Axis::Dp, dp),
            (Axis::Tp, tp),
            (Axis::Cp, cp),
        ];
        let mesh = Topology::new(&lengths.map(|(a, n)| (a, n as u32))).unwrap();
        let order = [
            [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Tp],
            [Axis::Tp, Axis::Pp, Axis::Dp, Axis::Cp],
        ];
        let mesh = mesh.ordered(&order[draw.below(2)]).unwrap();
        let stages: Vec<(Plan, Facts)> = right
            .iter()
            .map(|text| {
                let mut steps: Vec<&str> = text.split(' ').collect();
                for _ in 0..draw.below(6).saturating_sub(3) {
                    let (from, to) = (draw.below(steps.len()), draw.below(steps.len()));
                    match draw.below(3) {
                        0 => drop(steps.remove(from)),
                        1 => steps.swap(from, to),
                        _ => steps.insert(to, steps[from]),
                    }
                }
                let mut f = facts(2, 2);
                for unit in &mut f.units {
                    let axes = [
                        AxisSet::DATA,
                        Axis::Tp.into(),
                        Axis::Pp.into(),
                        AxisSet::WORLD,
                    ];
                    if draw.below(2) == 0 {
                        let wide = draw.below(8) == 0;
                        let (axes, what) =
                            (axes[draw.below(2) + 2 * usize::from(wide)], "a sum".into());
                        let moves = None;
                        unit.talk.forward = vec![Said { axes, what, moves }];
                    }
                }
                (plan(&steps.join(" ")), f)
            })
            .collect();
        let of = |rank: u32| {
            let coord = mesh.coord(rank).unwrap();
            let (plan, facts) = &stages[mesh.at(coord, Axis::Pp) as usize];
            (plan, facts)
        };
        let every: Vec<_> = (0..mesh.world_size()).map(of).collect();
        let few = Representatives::of(&mesh);
        let some: Vec<_> = few.numbers().iter().map(|r| of(*r)).collect();
        let (all, those) = (
            check_world(&mesh, &every),
            check_representatives(&few, &some),
        );
        assert_eq!(
            all.as_ref().map_err(PlanError::to_string),
            those.as_ref().map_err(PlanError::to_string)
        );
        match all {
            Ok(()) => lawful += 1,
            Err(_) => unlawful += 1,
        }
        // Outside the step the ranks at place 0 of the data axis do something else than the others.
        let sizes = [AxisSet::DATA, Axis::Tp.into(), AxisSet::WORLD];
        let say = |axes| {
            SideEvent::Said(Said {
                axes,
                what: "a sum".into(),
                ..Said::default()
            })
        };
        let mut lists = || {
            let n = draw.below(3);
            (0..n)
                .map(|_| say(sizes[draw.below(3)]))
                .collect::<Vec<_>>()
        };
        let (first, rest) = (lists(), lists());
        let side = |rank: u32| {
            let coord = mesh.coord(rank).unwrap();
            let mut events = match mesh.at(coord, Axis::Dp) {
                0 => first.clone(),
                _ => rest.clone(),
            };
            events.insert(0, SideEvent::Step(StepKind::GradNorm));
            [SideProgram {
                name: "reads",
                events,
            }]
        };
        let all: Vec<_> = (0..mesh.world_size()).map(side).collect();
        let some: Vec<_> = few.numbers().iter().map(|r| side(*r)).collect();
        let f = facts(2, 2);
        let each =
            |list: &[[SideProgram; 1]]| -> Vec<_> { list.iter().map(|s| s.to_vec()).collect() };
        let (all, some) = (each(&all), each(&some));
        let with = |list: &'_ [Vec<SideProgram>]| -> Vec<Law> {
            let pairs: Vec<_> = list.iter().map(|s| (&s[..], &f)).collect();
            let done = match list.len() == mesh.world_size() as usize {
                true => check_side_programs(&mesh, &pairs),
                false => check_representative_side_programs(&few, &pairs),
            };
            done.err().into_iter().map(|e| e.law).collect()
        };
        assert_eq!(with(&all), with(&some));
    }
    assert!(lawful > 30 && unlawful > 100, "{lawful} and {unlawful}");
}
