//! Groups that say much and lie on several hosts: the ranks of a cut layer, which sum inside every block, and those that share a second copy of
//! the parameters (hpZ) so that gathers stay on a host.

use crossweave_axes::{Axis, AxisSet, Group, GroupKey, Part, Topology, TopologyError};
use std::ops::Range;

/// A host by what distinguishes it and by its name, and ranks on it.
pub type HostRanks = (String, String, Range<u32>);

/// A line for each sort of group of which one lies on several hosts: ranks over `tp`, and nodes of `node` data ranks. `hosts` has the ranks of the
/// job in their order.
///
/// # Errors
/// A mesh that has no such groups.
pub fn notes(
    mesh: &Topology,
    node: u32,
    hosts: &[HostRanks],
) -> Result<Vec<String>, TopologyError> {
    let crosses = |groups: Vec<Group>| {
        groups.into_iter().find_map(|g| {
            let on = |r: &u32| hosts.iter().find(|h| h.2.contains(r));
            let first = g.ranks.first().and_then(on)?;
            let other = g
                .ranks
                .iter()
                .find(|r| on(r).is_some_and(|h| h.0 != first.0))?;
            let (a, b) = (g.ranks[0], *other);
            let (on_a, on_b) = (&first.1, &on(other)?.1);
            Some(format!("rank {a} is on {on_a}, rank {b} on {on_b}"))
        })
    };
    let mut notes = vec![];
    if mesh.length(Axis::Tp) > 1
        && let Some(whom) = crosses(mesh.groups(Axis::Tp.into())?)
    {
        notes.push(format!(
            "mesh.tp: a group that sums inside every block lies on several hosts ({whom}): put tp last in mesh.order, and a multiple of mesh.tp = {} \
             ranks on every host",
            mesh.length(Axis::Tp)
        ));
    }
    if node > 1 {
        let key = GroupKey::over(AxisSet::DATA).part(Part::Node(node));
        let places = (0..mesh.world_size()).map(|r| mesh.group(mesh.coord(r)?, &key));
        if let Some(whom) = crosses(places.collect::<Result<_, _>>()?) {
            notes.push(format!(
                "zero_optimization.zero_hpz_partition_size: {node} ranks that share a second copy of the parameters lie on several hosts ({whom}), so \
                 that its gathers leave a host: set it to a number that divides the data ranks of every host"
            ));
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many ranks on each of two hosts of one name.
    fn hosts(first: u32) -> [HostRanks; 2] {
        let host = |machine: &str, ranks| (machine.into(), "node".into(), ranks);
        [host("1", 0..first), host("2", first..8)]
    }

    #[test]
    fn a_cut_layer_on_several_hosts_is_named() {
        let mesh = Topology::new(&[(Axis::Dp, 2), (Axis::Tp, 4)]).unwrap();
        assert_eq!(notes(&mesh, 1, &hosts(4)).unwrap(), Vec::<String>::new());
        let other = mesh
            .ordered(&[Axis::Pp, Axis::Tp, Axis::Cp, Axis::Dp])
            .unwrap();
        let said = notes(&other, 1, &hosts(4)).unwrap();
        assert_eq!(said.len(), 1);
        let parts = [
            "mesh.tp: ",
            "mesh.order",
            "rank 0 is on node, rank 4 on node",
        ];
        assert!(parts.iter().all(|p| said[0].contains(p)), "{said:?}");
        // Five ranks and three: the second group of four lies on both.
        let said = notes(&mesh, 1, &hosts(5)).unwrap();
        assert!(said[0].contains("rank 4 is on node, rank 5"), "{said:?}");
    }

    #[test]
    fn second_copies_that_leave_a_host_are_named() {
        let mesh = Topology::new(&[(Axis::Dp, 8)]).unwrap();
        assert_eq!(notes(&mesh, 4, &hosts(4)).unwrap(), Vec::<String>::new());
        assert_eq!(notes(&mesh, 2, &hosts(4)).unwrap(), Vec::<String>::new());
        let said = notes(&mesh, 8, &hosts(4)).unwrap();
        assert!(said[0].starts_with("zero_optimization.zero_hpz_partition_size: 8"));
        assert!(said[0].contains("rank 0 is on node, rank 4"), "{said:?}");
    }
}
