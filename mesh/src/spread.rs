//! The mesh on its hosts: over how many each axis lies, and the groups that say much and lie on several: the ranks of a cut layer, which sum
//! inside every block, and those that share a second copy of the parameters (hpZ) so that gathers stay on a host.

use crossweave_axes::{Axis, AxisSet, Group, GroupKey, Part, Topology, TopologyError};
use crossweave_hosts::Hosts;
use std::ops::Range;

/// A host by what distinguishes it and by its name, and ranks on it.
pub type HostRanks = (String, String, Range<u32>);

/// Hosts that are only numbers.
pub fn numbered(hosts: &Hosts) -> Vec<HostRanks> {
    let one = |(n, ranks): (usize, &Vec<usize>)| {
        let name = format!("host {n}");
        let first = ranks.first().map_or(0, |r| *r as u32);
        (name.clone(), name, first..first + ranks.len() as u32)
    };
    hosts.ranks.iter().enumerate().map(one).collect()
}

/// The hosts of each rank of a job.
fn spread(hosts: &[HostRanks]) -> Hosts {
    let mut names: Vec<&str> = hosts.iter().map(|h| h.0.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let number = |h: &HostRanks| names.binary_search(&h.0.as_str()).unwrap_or(0) as u32;
    let of = |h: &HostRanks| h.2.clone().map(move |_| number(h)).collect::<Vec<_>>();
    Hosts::new(&hosts.iter().flat_map(of).collect::<Vec<_>>())
}

/// The sentence of a job on several hosts: how many ranks each has, and over how many of them each axis lies; none of a job on one.
///
/// # Errors
/// A mesh that has no such groups.
pub fn sentence(mesh: &Topology, hosts: &[HostRanks]) -> Result<Option<String>, TopologyError> {
    let all = spread(hosts);
    if all.count() < 2 {
        return Ok(None);
    }
    let each = || all.ranks.iter().map(Vec::len);
    let (least, most) = (each().min().unwrap_or(0), each().max().unwrap_or(0));
    let plural = if most == 1 { "" } else { "s" };
    let ranks = match least == most {
        true => format!("{most} rank{plural} each"),
        false => format!("{least} to {most} ranks"),
    };
    let mut axes = vec![];
    for axis in mesh.order().into_iter().filter(|a| mesh.length(*a) > 1) {
        let groups = mesh.groups(axis.into())?;
        axes.push(match all.most_over(groups.iter().map(|g| &g.ranks[..])) {
            1 => format!("{axis} within a host"),
            n => format!("{axis} over {n}"),
        });
    }
    let count = all.count();
    Ok(Some(format!(
        "{count} hosts of {ranks}: {}",
        axes.join(", ")
    )))
}

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
    fn a_job_on_several_hosts_says_how_its_axes_lie() {
        let mesh = Topology::new(&[(Axis::Pp, 2), (Axis::Dp, 2), (Axis::Tp, 2)]).unwrap();
        let said = |hosts: &[HostRanks]| sentence(&mesh, hosts).unwrap();
        assert_eq!(
            said(&hosts(4)).unwrap(),
            "2 hosts of 4 ranks each: pp over 2, dp within a host, tp within a host"
        );
        assert_eq!(
            said(&numbered(&Hosts::even(4, 2))).unwrap(),
            "4 hosts of 2 ranks each: pp over 2, dp over 2, tp within a host"
        );
        // Ranks dealt out by turns, and unequal hosts; a process is a row, and a host may have several.
        let turns: Vec<HostRanks> = (0..8)
            .map(|r| ((r % 2).to_string(), "node".into(), r..r + 1))
            .collect();
        assert!(
            said(&turns)
                .unwrap()
                .ends_with("pp within a host, dp within a host, tp over 2")
        );
        assert!(
            said(&hosts(5))
                .unwrap()
                .starts_with("2 hosts of 3 to 5 ranks: ")
        );
        assert_eq!(said(&hosts(8)[..1]), None);
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
