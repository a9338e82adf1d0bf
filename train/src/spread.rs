//! Groups that say much and lie on several hosts: the ranks of a cut layer, which sum inside every block, and those that share a second copy of
//! the parameters (hpZ) so that gathers stay on a host.

use crate::processes::Processes;
use crossweave_config::Resolved;
use crossweave_mesh::{Axis, AxisSet, Group, GroupKey, Part, Topology, TopologyError};

/// A line for each sort of group of which one lies on several hosts. `hosts`: each rank's, by what distinguishes it and by its name.
///
/// # Errors
/// A mesh that has no such groups.
fn notes(mesh: &Topology, node: u32, hosts: &[(&str, &str)]) -> Result<Vec<String>, TopologyError> {
    let crosses = |groups: Vec<Group>| {
        groups.into_iter().find_map(|g| {
            let on = |r: &u32| hosts.get(*r as usize).copied();
            let first = g.ranks.first().and_then(on)?;
            let other = g
                .ranks
                .iter()
                .find(|r| on(r).is_some_and(|h| h.0 != first.0))?;
            let (a, b) = (g.ranks[0], *other);
            let (on_a, on_b) = (first.1, on(other)?.1);
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

/// What the user should know of how the ranks of a job are spread over its hosts.
pub fn over_hosts(config: &Resolved, processes: &Processes) -> Vec<String> {
    let node = config.settings.zero_optimization.zero_hpz_partition_size as u32;
    let hosts = processes.host_of_ranks();
    // The mesh was made of the same config: it has its groups.
    notes(&config.mesh, node, &hosts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four ranks on each of two hosts of one name.
    const HOSTS: [(&str, &str); 8] = {
        let (a, b) = (("1", "node"), ("2", "node"));
        [a, a, a, a, b, b, b, b]
    };

    #[test]
    fn a_cut_layer_on_several_hosts_is_named() {
        let mesh = Topology::new(&[(Axis::Dp, 2), (Axis::Tp, 4)]).unwrap();
        assert_eq!(notes(&mesh, 1, &HOSTS).unwrap(), Vec::<String>::new());
        let other = mesh
            .ordered(&[Axis::Pp, Axis::Tp, Axis::Cp, Axis::Dp])
            .unwrap();
        let said = notes(&other, 1, &HOSTS).unwrap();
        assert_eq!(said.len(), 1);
        let parts = [
            "mesh.tp: ",
            "mesh.order",
            "rank 0 is on node, rank 4 on node",
        ];
        assert!(parts.iter().all(|p| said[0].contains(p)), "{said:?}");
        // Three ranks and five: the second group of four lies on both.
        let mut uneven = HOSTS;
        uneven[4] = HOSTS[0];
        let said = notes(&mesh, 1, &uneven).unwrap();
        assert!(said[0].contains("rank 4 is on node, rank 5"), "{said:?}");
    }

    #[test]
    fn second_copies_that_leave_a_host_are_named() {
        let mesh = Topology::new(&[(Axis::Dp, 8)]).unwrap();
        assert_eq!(notes(&mesh, 4, &HOSTS).unwrap(), Vec::<String>::new());
        assert_eq!(notes(&mesh, 2, &HOSTS).unwrap(), Vec::<String>::new());
        let said = notes(&mesh, 8, &HOSTS).unwrap();
        assert!(said[0].starts_with("zero_optimization.zero_hpz_partition_size: 8"));
        assert!(said[0].contains("rank 0 is on node, rank 4"), "{said:?}");
    }
}
