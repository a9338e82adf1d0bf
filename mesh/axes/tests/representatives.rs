//! A few ranks stand for all of a mesh, and how far the ranks of a group stand apart.
#![forbid(unsafe_code)]

use crossweave_axes::{Axis, AxisSet, Representatives, Topology};

#[test]
fn two_places_of_each_axis_and_all_stages_stand() {
    let lengths = [(Axis::Pp, 3), (Axis::Dp, 5), (Axis::Tp, 4)];
    let mesh = Topology::new(&lengths).unwrap();
    let few = Representatives::of(&mesh);
    assert_eq!(few.mesh().world_size(), 12);
    assert_eq!(few.numbers()[..5], [0, 1, 4, 5, 20]);
    let edp = few.mesh().length(Axis::Edp) * few.mesh().length(Axis::Etp);
    assert_eq!(edp, few.mesh().size(AxisSet::STAGE));
    for order in [
        [Axis::Tp, Axis::Pp, Axis::Cp, Axis::Dp],
        [Axis::Dp, Axis::Tp, Axis::Pp, Axis::Cp],
    ] {
        let mesh = mesh.ordered(&order).unwrap();
        let few = Representatives::of(&mesh);
        for (mine, whole) in few.numbers().iter().enumerate() {
            let (a, b) = (
                few.mesh().coord(mine as u32).unwrap(),
                mesh.coord(*whole).unwrap(),
            );
            assert_eq!(a, b, "{order:?}");
        }
    }
    let experts = Topology::new(&[(Axis::Dp, 4), (Axis::Ep, 2)]).unwrap();
    assert_eq!(Representatives::of(&experts).numbers(), [0, 1, 2, 3]);
    assert_eq!(Representatives::all(&mesh).numbers().len(), 60);
}

#[test]
fn a_group_reaches_as_far_as_its_slowest_axis() {
    let mesh = Topology::new(&[(Axis::Pp, 2), (Axis::Dp, 8), (Axis::Tp, 4)]).unwrap();
    let reach = |mesh: &Topology, axes: AxisSet| mesh.reach(axes);
    assert_eq!(reach(&mesh, Axis::Tp.into()), 4);
    assert_eq!(reach(&mesh, Axis::Cp.into()), 1);
    assert_eq!(reach(&mesh, AxisSet::DATA), 32);
    assert_eq!(reach(&mesh, AxisSet::WORLD), 64);
    let other = mesh
        .ordered(&[Axis::Tp, Axis::Pp, Axis::Dp, Axis::Cp])
        .unwrap();
    assert_eq!(reach(&other, AxisSet::DATA), 8);
    assert_eq!(reach(&other, Axis::Tp.into()), 64);
}
