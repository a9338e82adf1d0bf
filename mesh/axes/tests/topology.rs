//! Rank arithmetic on every small mesh and on random ones, and the errors of impossible ones.
#![forbid(unsafe_code)]

use crossweave_axes::{Axis, AxisSet, Channel, Coord, Group, GroupKey, Part, Place, Topology};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

fn divisors(n: u32) -> Vec<u32> {
    (1..=n).filter(|d| n.is_multiple_of(*d)).collect()
}

/// A mesh of at most a few hundred ranks: any lengths, any order, experts carved in any way that divides.
fn mesh() -> impl Strategy<Value = Topology> {
    let lengths = [1..=3u32, 1..=4, 1..=3, 1..=4];
    let order = Just(Axis::DENSE.to_vec()).prop_shuffle();
    (
        lengths,
        order,
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(lengths, order, ep, etp, given)| {
            let [_, dp, cp, tp] = lengths;
            let mut all: Vec<(Axis, u32)> = Axis::DENSE.into_iter().zip(lengths).collect();
            let etp = match given {
                true => *etp.get(&divisors(dp * cp * tp)),
                false => tp,
            };
            if given {
                all.push((Axis::Etp, etp));
            }
            all.push((Axis::Ep, *ep.get(&divisors(dp * cp * tp / etp))));
            Topology::new(&all).unwrap().ordered(&order).unwrap()
        })
}

/// What [`Topology::groups`] gives for a set, held against the definition: ranks are of one group when they agree on every
/// axis of the arrangement that is not in the set.
fn hold(mesh: &Topology, axes: AxisSet) {
    let world = mesh.world_size();
    let expert = Axis::EXPERT.iter().any(|a| axes.contains(*a));
    let arrangement: Vec<Axis> = match expert {
        true => [Axis::Pp].into_iter().chain(Axis::EXPERT).collect(),
        false => Axis::DENSE.to_vec(),
    };
    let others = |rank: u32| -> Vec<u32> {
        let at = mesh.coord(rank).unwrap();
        let rest = arrangement.iter().filter(|a| !axes.contains(**a));
        rest.map(|a| mesh.at(at, *a)).collect()
    };
    let groups: Vec<Group> = mesh.groups(axes).unwrap();
    let mut seen = BTreeSet::new();
    let mut names = HashSet::new();
    for g in &groups {
        assert_eq!(g.size(), mesh.size(axes), "{mesh} over {axes}");
        assert!(names.insert(g.name()));
        for (index, &rank) in g.ranks.iter().enumerate() {
            assert!(seen.insert(rank), "{mesh} over {axes}: rank {rank} twice");
            let place = Place::new(*mesh, rank).unwrap();
            let own = place.group(&axes.into()).unwrap();
            assert_eq!(
                own.ranks, g.ranks,
                "{mesh} over {axes}, as rank {rank} sees it"
            );
            assert_eq!((own.index, own.name()), (index as u32, g.name()));
            assert_eq!(
                (place.index(axes), place.size(axes)),
                (index as u32, g.size())
            );
            assert_eq!(others(rank), others(g.ranks[0]));
        }
    }
    assert_eq!(seen.len() as u32, world, "{mesh} over {axes}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn groups_partition_the_world_and_agree_on_every_rank(mesh in mesh()) {
        // 16 sets of dense axes and 14 with axes of experts.
        prop_assert_eq!(AxisSet::all().count(), 30);
        AxisSet::all().for_each(|axes| hold(&mesh, axes));
    }

    #[test]
    fn ranks_and_coordinates_are_inverse_and_experts_lie_within_a_stage(mesh in mesh()) {
        let mut seen = HashSet::new();
        let experts: u32 = Axis::EXPERT.iter().map(|a| mesh.length(*a)).product();
        prop_assert_eq!(experts, mesh.size(AxisSet::STAGE));
        for rank in 0..mesh.world_size() {
            let at = mesh.coord(rank).unwrap();
            prop_assert_eq!(mesh.job_rank(at), rank);
            prop_assert!(Axis::ALL.iter().all(|a| mesh.at(at, *a) < mesh.length(*a)));
            prop_assert!(seen.insert(at));
            for axis in Axis::ALL {
                let moved = mesh.moved(at, axis, mesh.length(axis) - 1);
                prop_assert_eq!(mesh.at(moved, axis), mesh.length(axis) - 1);
                prop_assert_eq!(mesh.moved(moved, axis, mesh.at(at, axis)), at);
                if axis != Axis::Pp {
                    prop_assert_eq!(mesh.at(moved, Axis::Pp), mesh.at(at, Axis::Pp));
                }
            }
            // Where an expert is cut as a dense weight is, it is cut over the same ranks, whatever the order.
            if mesh.length(Axis::Etp) == mesh.length(Axis::Tp) {
                let place = Place::new(mesh, rank).unwrap();
                let [tp, etp] = [Axis::Tp, Axis::Etp].map(|a| place.group(&a.into()).unwrap().ranks);
                prop_assert_eq!(tp, etp);
            }
        }
        prop_assert!(mesh.coord(mesh.world_size()).is_err());
    }

    #[test]
    fn nodes_cut_a_group_into_runs(mesh in mesh(), pick in any::<prop::sample::Index>()) {
        let data = mesh.size(AxisSet::DATA);
        let node = *pick.get(&divisors(data));
        let key = GroupKey::over(AxisSet::DATA).part(Part::Node(node));
        let mut seen = 0;
        for rank in 0..mesh.world_size() {
            let place = Place::new(mesh, rank).unwrap();
            let (near, all) = (place.group(&key).unwrap(), place.group(&AxisSet::DATA.into()).unwrap());
            let first = (all.index / node * node) as usize;
            prop_assert_eq!(&near.ranks[..], &all.ranks[first..first + node as usize]);
            prop_assert_eq!(near.ranks[near.index as usize], rank);
            seen += u32::from(near.index == 0) * near.size();
        }
        prop_assert_eq!(seen, mesh.world_size());
    }
}

#[test]
fn the_usual_order_puts_tensor_ranks_side_by_side() {
    let mesh = Topology::new(&[(Axis::Dp, 2), (Axis::Pp, 2), (Axis::Tp, 2)]).unwrap();
    let five = Place::new(mesh, 5).unwrap();
    let ranks = |axes: &[Axis]| five.group(&axes.into()).unwrap().ranks;
    assert_eq!(ranks(&[Axis::Tp]), [4, 5]);
    assert_eq!(ranks(&[Axis::Dp]), [5, 7]);
    assert_eq!(ranks(&[Axis::Pp]), [1, 5]);
    assert_eq!(ranks(&[Axis::Tp, Axis::Dp]), [4, 5, 6, 7]);
    let written_twice = five
        .group(&(&[Axis::Dp, Axis::Tp, Axis::Dp]).into())
        .unwrap();
    assert_eq!(written_twice.name(), "dp.tp@4");
    assert_eq!(mesh.to_string(), "pp2 x dp2 x tp2");
    let alone = five.group(&Axis::Cp.into()).unwrap();
    assert_eq!(
        (&alone.ranks[..], alone.index, alone.name().as_str()),
        (&[5][..], 0, "cp@5")
    );
    assert_eq!(five.group(&AxisSet::NONE.into()).unwrap().name(), "self@5");
    let other = mesh.ordered(&[Axis::Tp, Axis::Dp]).unwrap();
    assert_eq!(other.order(), [Axis::Tp, Axis::Dp, Axis::Pp, Axis::Cp]);
    let five = Place::new(other, 5).unwrap();
    assert_eq!(five.group(&Axis::Tp.into()).unwrap().ranks, [1, 5]);
    assert_eq!(five.group(&Axis::Pp.into()).unwrap().ranks, [4, 5]);
    assert_eq!(other.to_string(), "tp2 x dp2 x pp2");
}

/// Megatron's example: eight ranks of a stage, tp 2; experts over 4 with etp 1, and with etp left to be tp.
#[test]
fn experts_are_carved_from_the_ranks_of_a_stage() {
    let of = |etp: Option<u32>, ep: u32| {
        let mut lengths = vec![(Axis::Pp, 2), (Axis::Dp, 4), (Axis::Tp, 2), (Axis::Ep, ep)];
        lengths.extend(etp.map(|n| (Axis::Etp, n)));
        Topology::new(&lengths).unwrap()
    };
    let folded = of(Some(1), 4);
    assert_eq!(folded.world_size(), 16);
    let nine = Place::new(folded, 9).unwrap();
    assert_eq!(
        [Axis::Edp, Axis::Ep, Axis::Etp].map(|a| nine.at(a)),
        [0, 1, 0]
    );
    assert_eq!(nine.group(&Axis::Ep.into()).unwrap().ranks, [8, 9, 10, 11]);
    assert_eq!(nine.group(&Axis::Edp.into()).unwrap().ranks, [9, 13]);
    let cut = of(None, 4);
    let nine = Place::new(cut, 9).unwrap();
    assert_eq!(nine.group(&Axis::Etp.into()).unwrap().ranks, [8, 9]);
    assert_eq!(nine.group(&Axis::Ep.into()).unwrap().ranks, [9, 11, 13, 15]);
    assert_eq!(cut.length(Axis::Edp), 1);
    assert_eq!(cut.to_string(), "pp2 x dp4 x tp2; experts ep4 x etp2");
    assert_eq!(of(Some(1), 1).to_string(), "pp2 x dp4 x tp2; experts edp8");
}

#[test]
fn names_follow_from_axes() {
    let dp = || GroupKey::over(Axis::Dp);
    let names = [
        (dp(), "dp", "dp"),
        (dp().on(Channel::Gather), "dp/gather", "dp"),
        (dp().part(Part::Node(4)), "dp/node", "dp.node"),
        (
            GroupKey::over(Axis::Pp).on(Channel::Peers),
            "pp/peers",
            "pp",
        ),
        (
            GroupKey::over(Axis::Pp).part(Part::Tied(vec![0, 3])),
            "pp/tie",
            "tie",
        ),
        (GroupKey::over(AxisSet::WORLD), "pp.dp.cp.tp", "pp.dp.cp.tp"),
    ];
    for (key, name, ledger) in names {
        assert_eq!(
            (key.to_string().as_str(), key.ledger().as_str()),
            (name, ledger)
        );
    }
    let mesh = Topology::new(&[(Axis::Pp, 4), (Axis::Dp, 2)]).unwrap();
    assert_eq!(mesh.long(AxisSet::DATA).to_string(), "dp");
    let tie = GroupKey::over(Axis::Pp).part(Part::Tied(vec![0, 3]));
    assert_eq!(
        mesh.group(mesh.coord(7).unwrap(), &tie).unwrap().ranks,
        [1, 7]
    );
    assert!(mesh.group(mesh.coord(2).unwrap(), &tie).is_err());
}

#[test]
fn impossible_meshes_are_refused_with_the_key_and_what_to_set() {
    let says =
        |r: Result<Topology, crossweave_axes::TopologyError>, key: &str, what: &str, fix: &str| {
            let e = r.unwrap_err();
            assert!(
                e.key == key && e.what.contains(what) && e.fix.contains(fix),
                "{e}"
            );
        };
    use Axis::*;
    says(
        Topology::new(&[(Tp, 0)]),
        "mesh.tp",
        "axis tp has length 0",
        "1",
    );
    says(
        Topology::new(&[(Tp, 2), (Tp, 2)]),
        "mesh.tp",
        "tp is given twice",
        "leave one",
    );
    says(
        Topology::new(&[(Edp, 2)]),
        "mesh.edp",
        "what ep and etp leave",
        "leave it out",
    );
    says(
        Topology::new(&[(Tp, 1 << 20), (Dp, 1 << 20)]),
        "mesh.tp",
        "more ranks than can be numbered",
        "less",
    );
    says(
        Topology::fill_data(&[(Tp, 3)], 8),
        "mesh.tp",
        "8 ranks cannot be divided over 3 tensor-parallel ranks",
        "--ranks 9",
    );
    says(
        Topology::fill_data(&[(Pp, 2), (Cp, 2)], 6),
        "mesh.pp",
        "take 4 together",
        "--ranks 8",
    );
    says(
        Topology::fill_data(&[], 0),
        "mesh.dp",
        "0 ranks",
        "--ranks 1",
    );
    says(
        Topology::new(&[(Dp, 6), (Ep, 4)]),
        "mesh.ep",
        "4 does not divide the 6 places",
        "set it to 3",
    );
    says(
        Topology::new(&[(Dp, 4), (Tp, 2), (Ep, 8)]),
        "mesh.ep",
        "mesh.etp is mesh.tp, 2",
        "set it to 4",
    );
    says(
        Topology::new(&[(Dp, 4), (Tp, 2), (Etp, 3)]),
        "mesh.etp",
        "do not divide the 8 ranks",
        "set it to 2",
    );
    let one = Topology::one();
    says(
        one.ordered(&[Pp, Pp]),
        "mesh.order",
        "pp is listed twice",
        "once each",
    );
    says(
        one.ordered(&[Ep]),
        "mesh.order",
        "ep is an axis of experts",
        "once each",
    );
    assert_eq!(
        Topology::fill_data(&[(Tp, 2), (Dp, 9)], 8)
            .unwrap()
            .length(Dp),
        4
    );
    let mixed = GroupKey::over(&[Tp, Ep]);
    let e = one.group(Coord::default(), &mixed).unwrap_err().to_string();
    assert!(
        e.contains("tp.ep") && e.contains("dense parameters and of experts"),
        "{e}"
    );
    assert!("tpp".parse::<Axis>().unwrap_err().contains("'tpp'"));
    assert_eq!("etp".parse::<Axis>().unwrap(), Etp);
}
