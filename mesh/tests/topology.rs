//! Rank arithmetic on every small mesh, and the errors of impossible ones.
#![forbid(unsafe_code)]

use crossweave_mesh::{Axis, Coords, Topology};

fn meshes() -> Vec<Topology> {
    let mut all = Vec::new();
    for dp in 1..4 {
        for pp in 1..3 {
            for tp in 1..4 {
                for cp in 1..3 {
                    for ep in 1..3 {
                        let lengths = [
                            (Axis::Dp, dp),
                            (Axis::Pp, pp),
                            (Axis::Tp, tp),
                            (Axis::Cp, cp),
                            (Axis::Ep, ep),
                        ];
                        all.push(Topology::new(&lengths).unwrap());
                        all.push(Topology::with_layout(&lengths).unwrap());
                    }
                }
            }
        }
    }
    all
}

#[test]
fn rank_and_coordinates_are_inverse() {
    for mesh in meshes() {
        let mut seen = std::collections::HashSet::new();
        for rank in 0..mesh.world_size() {
            let coords = mesh.coords(rank).unwrap();
            assert_eq!(mesh.rank(&coords).unwrap(), rank);
            assert!(Axis::ALL.iter().all(|&a| coords.get(a) < mesh.length(a)));
            assert!(seen.insert(coords));
        }
        assert!(mesh.coords(mesh.world_size()).is_err());
    }
}

#[test]
fn any_set_of_axes_partitions_the_world() {
    for mesh in meshes() {
        for bits in 0..32u32 {
            let axes: Vec<Axis> = Axis::ALL
                .into_iter()
                .filter(|&a| bits >> (a as u32) & 1 == 1)
                .collect();
            let size: u32 = axes.iter().map(|&a| mesh.length(a)).product();
            let mut count = vec![0; mesh.world_size() as usize];
            let mut names = std::collections::HashSet::new();
            for group in mesh.groups(&axes) {
                assert_eq!(group.size(), size);
                assert!(names.insert(group.name()));
                for (index, &rank) in group.ranks.iter().enumerate() {
                    count[rank as usize] += 1;
                    let own = mesh.group(rank, &axes).unwrap();
                    assert_eq!(
                        (own.ranks.as_slice(), own.index),
                        (group.ranks.as_slice(), index as u32)
                    );
                    assert_eq!(own.name(), group.name());
                }
                assert!(group.ranks.is_sorted());
            }
            assert!(count.iter().all(|&c| c == 1));
        }
    }
}

#[test]
fn the_usual_layout_puts_tensor_ranks_side_by_side() {
    let mesh = Topology::new(&[(Axis::Dp, 2), (Axis::Pp, 2), (Axis::Tp, 2)]).unwrap();
    assert_eq!(mesh.group(5, &[Axis::Tp]).unwrap().ranks, [4, 5]);
    assert_eq!(mesh.group(5, &[Axis::Dp]).unwrap().ranks, [5, 7]);
    assert_eq!(mesh.group(5, &[Axis::Pp]).unwrap().ranks, [1, 5]);
    assert_eq!(
        mesh.group(5, &[Axis::Tp, Axis::Dp]).unwrap().ranks,
        [4, 5, 6, 7]
    );
    assert_eq!(
        mesh.group(5, &[Axis::Dp, Axis::Tp, Axis::Dp])
            .unwrap()
            .name(),
        "dp.tp@4"
    );
    assert_eq!(mesh.to_string(), "pp2 x dp2 x tp2");
    let alone = mesh.group(5, &[Axis::Cp]).unwrap();
    assert_eq!(
        (alone.ranks.as_slice(), alone.index, alone.name().as_str()),
        ([5].as_slice(), 0, "cp@5")
    );
    assert_eq!(mesh.group(5, &[]).unwrap().name(), "self@5");
}

#[test]
fn neighbours_go_round() {
    let mesh = Topology::new(&[(Axis::Cp, 3), (Axis::Tp, 2)]).unwrap();
    assert_eq!(mesh.neighbour(0, Axis::Cp, 1).unwrap(), 2);
    assert_eq!(mesh.neighbour(0, Axis::Cp, -1).unwrap(), 4);
    assert_eq!(mesh.neighbour(4, Axis::Cp, 1).unwrap(), 0);
    assert_eq!(mesh.neighbour(3, Axis::Dp, 7).unwrap(), 3);
    for by in [i64::MIN, -7, 7, i64::MAX] {
        assert!(mesh.neighbour(1, Axis::Cp, by).unwrap() < 6);
    }
}

#[test]
fn impossible_meshes_are_refused_in_words() {
    let says = |r: Result<Topology, _>, what: &str| {
        let text = r
            .map(|_| ())
            .map_err(|e: crossweave_mesh::TopologyError| e.to_string())
            .unwrap_err();
        assert!(text.contains(what), "{text}");
    };
    says(Topology::new(&[(Axis::Tp, 0)]), "axis tp has length 0");
    says(
        Topology::new(&[(Axis::Tp, 2), (Axis::Tp, 2)]),
        "tp is given twice",
    );
    says(
        Topology::new(&[(Axis::Tp, 1 << 20), (Axis::Dp, 1 << 20)]),
        "more ranks than can be numbered",
    );
    says(Topology::fill_data(&[(Axis::Tp, 3)], 8), "multiple of 3");
    says(Topology::fill_data(&[], 0), "0 ranks");
    assert_eq!(
        Topology::fill_data(&[(Axis::Tp, 2), (Axis::Dp, 9)], 8)
            .unwrap()
            .length(Axis::Dp),
        4
    );
    let mesh = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    assert!(mesh.rank(&Coords::default().with(Axis::Tp, 2)).is_err());
    assert!(mesh.group(2, &[Axis::Tp]).is_err());
    assert!(
        "tpp"
            .parse::<Axis>()
            .unwrap_err()
            .to_string()
            .contains("'tpp'")
    );
    assert_eq!("ep".parse::<Axis>().unwrap(), Axis::Ep);
    let json = serde_json::to_string(&mesh).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), mesh);
}
