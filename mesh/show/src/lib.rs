//! A mesh for people and programs: the map of its ranks and every group with its members, as text, as JSON and as a drawing.
#![forbid(unsafe_code)]

mod svg;

pub use svg::drawing;

use crossweave_axes::{Axis, AxisSet, Group, Topology, TopologyError};
use crossweave_hosts::Hosts;
use serde_json::{Value, json};
use std::fmt::Write;

type Result<T> = std::result::Result<T, TopologyError>;

/// Groups of ranks: over which axes, and what they are for.
const USES: [(&[Axis], &str); 9] = {
    use Axis::*;
    [
        (
            &[Pp],
            "hidden states and their gradients from stage to stage",
        ),
        (&[Tp], "pieces of one layer: sums inside blocks"),
        (
            &[Cp],
            "pieces of one sequence: keys and values of attention",
        ),
        (&[Dp], "other samples"),
        (&[Dp, Cp], "ZeRO of dense parameters: gradients, gathers"),
        (&[Ep], "tokens to their experts and back"),
        (&[Etp], "pieces of one expert"),
        (&[Edp], "ZeRO of experts: gradients, gathers"),
        (&Axis::DENSE, "norm, loss and verdicts of all ranks"),
    ]
};

/// The groups of a mesh that have several members, each set of axes once: named by the axes longer than one, with every use.
fn groups(mesh: &Topology) -> Result<Vec<(AxisSet, String, Vec<Group>)>> {
    let mut found: Vec<(AxisSet, String, Vec<Group>)> = vec![];
    // Where no expert is spread or cut, these are the groups of the dense axes again.
    let experts = mesh.length(Axis::Ep) > 1 || mesh.length(Axis::Etp) != mesh.length(Axis::Tp);
    for (axes, what) in USES {
        let expert = Axis::EXPERT.iter().any(|a| axes.contains(a));
        let axes = mesh.long(axes.into());
        if axes.is_empty() || expert && !experts {
            continue;
        }
        match found.iter_mut().find(|(a, ..)| *a == axes) {
            Some((_, uses, _)) => *uses = format!("{uses}; {what}"),
            None => {
                let all = mesh.groups(axes)?;
                found.push((axes, what.to_string(), all));
            }
        }
    }
    Ok(found)
}

/// The axes of the table: all dense ones, and those of experts where there is one longer than 1.
fn shown(mesh: &Topology) -> Vec<Axis> {
    let mut axes = mesh.order().to_vec();
    if mesh.length(Axis::Ep) > 1 || mesh.length(Axis::Etp) != mesh.length(Axis::Tp) {
        axes.extend(Axis::EXPERT);
    }
    axes
}

/// Numbers as runs: `0-3`, `0-6:2`, `0,4,5`.
fn runs(ranks: &[u32]) -> String {
    let mut out = String::new();
    let mut rest = ranks;
    while let [first, tail @ ..] = rest {
        let step = tail
            .first()
            .map_or(0, |t| i64::from(*t) - i64::from(*first));
        let follows = rest
            .windows(2)
            .take_while(|w| i64::from(w[1]) - i64::from(w[0]) == step && step > 0)
            .count();
        let comma = if out.is_empty() { "" } else { "," };
        let n = match follows {
            // A pair is as short written out.
            0 | 1 => {
                let _ = write!(out, "{comma}{first}");
                1
            }
            n => {
                let by = if step == 1 {
                    String::new()
                } else {
                    format!(":{step}")
                };
                let _ = write!(out, "{comma}{first}-{}{by}", rest[n]);
                n + 1
            }
        };
        rest = &rest[n..];
    }
    out
}

/// The table of ranks: one row a rank.
fn rank_map(mesh: &Topology, hosts: Option<&Hosts>) -> String {
    let axes = shown(mesh);
    let mut text = format!("{:>6}", "rank");
    for a in &axes {
        let _ = write!(text, " {:>5}", a.name());
    }
    if hosts.is_some() {
        text.push_str("  host");
    }
    for rank in 0..mesh.world_size() {
        let place = mesh.place(rank);
        let _ = write!(text, "\n{rank:>6}");
        for a in &axes {
            let _ = write!(text, " {:>5}", place.at(*a));
        }
        if let Some(hosts) = hosts {
            let _ = write!(text, " {:>5}", hosts.of(rank as usize));
        }
    }
    text
}

/// The most hosts over which a group of a set lies.
fn reach(all: &[Group], hosts: &Hosts) -> usize {
    hosts.most_over(all.iter().map(|g| &g.ranks[..]))
}

/// One set of axes: a heading, and its groups, as many on a line as fit.
fn listing(
    (axes, what, all): (AxisSet, &str, &[Group]),
    hosts: Option<&Hosts>,
    width: usize,
) -> String {
    let size = all.first().map_or(0, Group::size);
    let plural = if all.len() == 1 { "" } else { "s" };
    let mut text = format!(
        "{axes}: {} group{plural} of {size} ranks{}; {what}",
        all.len(),
        match hosts.map(|h| reach(all, h)) {
            None => String::new(),
            Some(1) => " within a host".into(),
            Some(n) => format!(" over {n} hosts"),
        }
    );
    let each: Vec<String> = all.iter().map(|g| runs(&g.ranks)).collect();
    let column = each.iter().map(String::len).max().unwrap_or(0) + 2;
    let per_line = (width.saturating_sub(4) / column).max(1);
    for line in each.chunks(per_line) {
        let mut row = String::from("   ");
        for g in line {
            let _ = write!(row, " {g:<w$}", w = column - 1);
        }
        let _ = write!(text, "\n{}", row.trim_end());
    }
    text
}

/// The whole page, in lines of at most `width` columns where members fit; with `hosts` on which of them each rank is, and over how many
/// groups lie.
///
/// # Errors
/// None for the groups of a mesh.
pub fn page(mesh: &Topology, hosts: Option<&Hosts>, width: usize) -> Result<String> {
    let ranks = mesh.world_size();
    let plural = if ranks == 1 { "" } else { "s" };
    let order = mesh.order().map(Axis::name).join(", ");
    let map = rank_map(mesh, hosts);
    let on = hosts.map_or(String::new(), |h| format!("; {} hosts", h.count()));
    let mut text = format!("{ranks} rank{plural}: {mesh}; order {order}{on}\n\n{map}\n");
    for (axes, what, all) in groups(mesh)? {
        let _ = writeln!(text, "\n{}", listing((axes, &what, &all), hosts, width));
    }
    Ok(text)
}

/// Ranks and groups for programs; with `hosts` as on the page, and with `notes` on groups that had better lie within one.
///
/// # Errors
/// None for the groups of a mesh.
pub fn figures(mesh: &Topology, hosts: Option<&Hosts>, notes: &[String]) -> Result<Value> {
    let mut ranks = vec![];
    for rank in 0..mesh.world_size() {
        let place = mesh.place(rank);
        let at = Axis::ALL.map(|a| (a.name().to_string(), json!(place.at(a))));
        let mut row = serde_json::Map::from_iter(at);
        row.insert("rank".into(), json!(rank));
        if let Some(hosts) = hosts {
            row.insert("host".into(), json!(hosts.of(rank as usize)));
        }
        ranks.push(Value::Object(row));
    }
    let sets = groups(mesh)?.into_iter().map(|(axes, what, all)| {
        let over = hosts.map(|h| reach(&all, h));
        let members: Vec<Vec<u32>> = all.into_iter().map(|g| g.ranks).collect();
        let mut set = json!({"axes": axes.to_string(), "for": what, "groups": members});
        if let Some(over) = over {
            set["hosts"] = json!(over);
        }
        set
    });
    let sets: Vec<Value> = sets.collect();
    let lengths = Axis::ALL.map(|a| (a.name().to_string(), json!(mesh.length(a))));
    let mut all = json!({
        "world": mesh.world_size(),
        "order": mesh.order().map(Axis::name),
        "lengths": serde_json::Map::from_iter(lengths),
        "ranks": ranks,
        "sets": sets,
    });
    if let Some(hosts) = hosts {
        all["hosts"] = json!(hosts.count());
        all["notes"] = json!(notes);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_written_as_runs() {
        for (ranks, text) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[3, 4], "3,4"),
            (&[0, 1, 2, 3], "0-3"),
            (&[0, 2, 4, 6], "0-6:2"),
            (&[0, 1, 4, 5], "0,1,4,5"),
            (&[0, 1, 2, 8, 9, 10, 12], "0-2,8-10,12"),
            (&[9, 5, 1], "9,5,1"),
        ] {
            assert_eq!(runs(ranks), text);
        }
    }

    #[test]
    fn every_set_of_axes_is_listed_once_with_all_it_is_for() {
        let mesh = Topology::new(&[(Axis::Pp, 2), (Axis::Dp, 2), (Axis::Tp, 2), (Axis::Ep, 2)]);
        let all = groups(&mesh.unwrap()).unwrap();
        let names: Vec<String> = all.iter().map(|(a, ..)| a.to_string()).collect();
        // edp is 1 here, and dp.cp is dp where cp is 1.
        assert_eq!(names, ["pp", "tp", "dp", "ep", "etp", "pp.dp.tp"]);
        assert!(all[2].1.contains("samples") && all[2].1.contains("ZeRO"));
        assert!(groups(&Topology::one()).unwrap().is_empty());
    }
}
