//! A mesh as a drawing: a panel for each pipeline stage, in it a row for each place on dp and cp and a column for each on tp. The colour of
//! a cell is the data-parallel coordinate; where experts are spread, each cell names them.

use crossweave_axes::{Axis, Coord, Topology};
use std::fmt::Write;

/// Size of a cell, room around a panel, and height of a line of text.
const CELL: [u32; 2] = [84, 34];
const GAP: u32 = 24;
const LINE: u32 = 18;
/// Room left of a panel for the names of its rows.
const NAMES: u32 = 84;

/// Colours of data-parallel replicas, light enough for black text.
const COLOURS: [&str; 8] = [
    "#cfe2f3", "#d9ead3", "#fff2cc", "#f4cccc", "#d9d2e9", "#d0e0e3", "#fce5cd", "#ead1dc",
];

fn text(out: &mut String, [x, y]: [u32; 2], anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
    );
}

/// One rank.
fn cell(out: &mut String, [x, y]: [u32; 2], mesh: &Topology, at: Coord) {
    let [w, h] = CELL;
    let colour = COLOURS[mesh.at(at, Axis::Dp) as usize % COLOURS.len()];
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"{colour}\" stroke=\"#555\"/>"
    );
    let experts = mesh.length(Axis::Ep) > 1;
    let up = if experts { 3 } else { 8 };
    let number = mesh.job_rank(at).to_string();
    text(out, [x + w / 2, y + h / 2 + up - 3], "middle", 13, &number);
    if experts {
        let named = [Axis::Edp, Axis::Ep, Axis::Etp].map(|a| (a, mesh.at(at, a)));
        let long = named.iter().filter(|(a, _)| mesh.length(*a) > 1);
        let words: Vec<String> = long.map(|(a, n)| format!("{a} {n}")).collect();
        text(out, [x + w / 2, y + h - 5], "middle", 9, &words.join(" "));
    }
}

/// The whole mesh.
pub fn drawing(mesh: &Topology) -> String {
    let [pp, dp, cp, tp] = Axis::DENSE.map(|a| mesh.length(a));
    let panel = [
        NAMES + tp * CELL[0] + GAP,
        dp * cp * CELL[1] + 3 * LINE + GAP,
    ];
    // As nearly square as whole panels go.
    let across = (1..=pp)
        .find(|n| n * panel[0] >= pp.div_ceil(*n) * panel[1])
        .unwrap_or(pp);
    let width = (across * panel[0] + GAP).max(560);
    let height = pp.div_ceil(across) * panel[1] + 2 * LINE + GAP;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let order = mesh.order().map(Axis::name).join(", ");
    let title = format!("{} ranks: {mesh}; order {order}", mesh.world_size());
    text(&mut out, [GAP, GAP], "start", 15, &title);
    for stage in 0..pp {
        let left = GAP + stage % across * panel[0];
        let top = GAP + LINE + stage / across * panel[1];
        let name = format!("pp {stage}");
        text(&mut out, [left, top + LINE], "start", 13, &name);
        for t in (0..tp).filter(|_| tp > 1) {
            let x = left + NAMES + t * CELL[0] + CELL[0] / 2;
            text(
                &mut out,
                [x, top + LINE + 14],
                "middle",
                11,
                &format!("tp {t}"),
            );
        }
        for row in 0..dp * cp {
            let (d, c) = (row / cp, row % cp);
            let y = top + 2 * LINE + row * CELL[1];
            let name = match cp {
                1 => format!("dp {d}"),
                _ => format!("dp {d} cp {c}"),
            };
            let middle = y + CELL[1] / 2 + 4;
            text(&mut out, [left + NAMES - 8, middle], "end", 11, &name);
            for t in 0..tp {
                let stands = [
                    (Axis::Pp, stage),
                    (Axis::Dp, d),
                    (Axis::Cp, c),
                    (Axis::Tp, t),
                ];
                let at = stands
                    .into_iter()
                    .fold(Coord::default(), |at, (axis, n)| at.with(axis, n));
                cell(&mut out, [left + NAMES + t * CELL[0], y], mesh, at);
            }
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every rank has a cell of its own inside the drawing.
    #[test]
    fn every_rank_is_drawn_once() {
        for lengths in [[1, 1, 1, 1], [2, 2, 2, 2], [7, 1, 1, 3], [1, 64, 1, 8]] {
            let axes: Vec<_> = Axis::DENSE.into_iter().zip(lengths).collect();
            let mesh = Topology::new(&axes).unwrap().ordered(&[Axis::Tp]).unwrap();
            let svg = drawing(&mesh);
            let number = |line: &str, name: &str| -> u32 {
                let from = line.split_once(&format!(" {name}=\"")).unwrap().1;
                from.split_once('"').unwrap().0.parse().unwrap()
            };
            let head = svg.lines().next().unwrap();
            let [w, h] = ["width", "height"].map(|n| number(head, n));
            let cells = svg.lines().filter(|l| l.contains("stroke"));
            let mut corners: Vec<[u32; 2]> =
                cells.map(|l| ["x", "y"].map(|n| number(l, n))).collect();
            assert!(
                corners
                    .iter()
                    .all(|[x, y]| x + CELL[0] <= w && y + CELL[1] <= h)
            );
            corners.sort_unstable();
            corners.dedup();
            assert_eq!(corners.len() as u32, mesh.world_size());
            for rank in 0..mesh.world_size() {
                assert_eq!(
                    svg.matches(&format!("font-size=\"13\">{rank}</text>"))
                        .count(),
                    1
                );
            }
        }
    }
}
