//! Hierarchical plans: ranks in nodes (or islands of one vendor), little traffic between them, the same bits everywhere (docs/islands.md).
//!
//! Each node sums inside first, in whatever order its vendor's library has. Then lane by lane (one border rank a node, each with a share
//! of the vector) the nodes' partial sums go to one *home* each, which adds them in node order and hands the result back. One rank
//! computes each element, the rest copy bits, so all nodes agree however differently their vendors add.

use super::build::Builder;
use super::{Buf, CommPlan, Cut, Join, Kind, Move, Order, Span};
use std::fmt;

/// Which ranks form a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(Vec<Vec<u32>>);

/// Why a list of nodes is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesError(String);

impl fmt::Display for NodesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for NodesError {}

impl Nodes {
    /// Every rank from 0 on in exactly one node, in any order (ranks of a node need not be neighbours); no node empty.
    pub fn new(nodes: Vec<Vec<u32>>) -> Result<Nodes, NodesError> {
        let count: usize = nodes.iter().map(Vec::len).sum();
        let mut seen = vec![false; count];
        if let Some(k) = nodes.iter().position(Vec::is_empty) {
            return Err(NodesError(format!("node {k} has no ranks")));
        }
        for &r in nodes.iter().flatten() {
            match seen.get_mut(r as usize) {
                None => {
                    return Err(NodesError(format!(
                        "rank {r} is listed, but there are {count} ranks, counted from 0"
                    )));
                }
                Some(true) => return Err(NodesError(format!("rank {r} is in two nodes"))),
                Some(s) => *s = true,
            }
        }
        Ok(Nodes(nodes))
    }
    /// The ranks of each node.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.0.iter().map(Vec::as_slice)
    }
    /// Ranks in all.
    pub fn ranks(&self) -> u32 {
        self.0.iter().map(|n| n.len() as u32).sum()
    }
    /// Border ranks of a node: as many as the smallest node has ranks.
    pub fn lanes(&self) -> u32 {
        self.0.iter().map(|n| n.len() as u32).min().unwrap_or(0)
    }
}

/// All-reduce of `count` elements: inside nodes by their vendors, between nodes `2(k-1)/k` of the vector a node and direction.
pub fn hierarchical(count: u64, nodes: &Nodes) -> CommPlan {
    let mut b = Builder::new(nodes.ranks());
    let lanes = Cut::new(count, nodes.lanes());
    let k = nodes.0.len() as u32;
    let place = |lane: u32| (lanes.at(lane), lanes.len(lane));
    for ranks in &nodes.0 {
        for (l, &me) in ranks.iter().enumerate() {
            let mut moves = vec![];
            for (lane, &to) in (0..nodes.lanes()).zip(ranks) {
                let (at, n) = place(lane);
                if to != me && n > 0 {
                    let span = Span::new(Buf::Data, at, n);
                    moves.push(Move::Send { span, to });
                }
            }
            let border = (l as u32) < nodes.lanes();
            let (at, n) = place(if border { l as u32 } else { 0 });
            let own = Span::new(Buf::Data, at, n);
            if !border || n == 0 {
                b.round(me, moves);
                continue;
            }
            let mut parts = vec![];
            for &from in ranks {
                if from == me {
                    parts.push(own);
                    continue;
                }
                let span = Span::new(Buf::Scratch, b.scratch(me, n), n);
                moves.push(Move::Recv { span, from });
                parts.push(span);
            }
            b.round(me, moves);
            if parts.len() > 1 {
                let by = Order::Vendor;
                let dst = own;
                b.round(me, vec![Move::Fold { dst, parts, by }]);
            }
        }
    }
    for (ranks, lanes) in nodes.0.iter().map(|r| (r, 0..nodes.lanes())) {
        let span = |l: u32| (place(l).1 > 0).then(|| Span::new(Buf::Data, place(l).0, place(l).1));
        let owned = lanes
            .zip(ranks)
            .filter_map(|(l, &root)| Some((root, span(l)?)));
        let shares: Vec<(u32, Span)> = owned.collect();
        let join = |&(root, own): &(u32, Span)| Join {
            root,
            own,
            sum: own,
        };
        for &me in ranks {
            b.inside(me, shares.iter().map(join).collect(), shares.clone());
        }
    }
    for lane in 0..nodes.lanes() {
        let (start, n) = place(lane);
        let homes = Cut::new(n, k);
        let border = |node: u32| nodes.0[node as usize][lane as usize];
        let part = |node: u32| {
            let n = homes.len(node);
            (n > 0).then(|| Span::new(Buf::Data, start + homes.at(node), n))
        };
        for node in 0..k {
            let me = border(node);
            let mut out = vec![];
            let mut parts = vec![];
            for other in 0..k {
                if other == node {
                    parts.extend(part(node));
                    continue;
                }
                if let Some(span) = part(other) {
                    let to = border(other);
                    out.push(Move::Send { span, to });
                }
                if let Some(own) = part(node) {
                    let span = Span::new(Buf::Scratch, b.scratch(me, own.n), own.n);
                    let from = border(other);
                    out.push(Move::Recv { span, from });
                    parts.push(span);
                }
            }
            b.round(me, out);
            if let (Some(dst), true) = (part(node), parts.len() > 1) {
                let by = Order::Given;
                b.round(me, vec![Move::Fold { dst, parts, by }]);
            }
            let mut back = vec![];
            for other in (0..k).filter(|&o| o != node) {
                let peer = border(other);
                if let Some(span) = part(node) {
                    back.push(Move::Send { span, to: peer });
                }
                if let Some(span) = part(other) {
                    back.push(Move::Recv { span, from: peer });
                }
            }
            b.round(me, back);
        }
    }
    for ranks in &nodes.0 {
        for (l, &me) in ranks.iter().enumerate() {
            b.behind(me);
            let mut moves = vec![];
            for (lane, &owner) in (0..nodes.lanes()).zip(ranks) {
                let (at, n) = place(lane);
                if n == 0 {
                    continue;
                }
                let span = Span::new(Buf::Data, at, n);
                if lane as usize == l {
                    let others = ranks.iter().filter(|&&r| r != me);
                    moves.extend(others.map(|&to| Move::Send { span, to }));
                } else {
                    moves.push(Move::Recv { span, from: owner });
                }
            }
            b.round(me, moves);
        }
    }
    b.finish(Kind::AllReduce, count, false)
}

/// Reduce-scatter of `count` elements a rank: each island joins every piece at one of its ranks, which sends the sum to the piece's owner;
/// the owner adds the islands' sums in their order. An island of m of n ranks sends `(n-m)/n` of the vector.
pub fn hierarchical_scatter(count: u64, nodes: &Nodes) -> CommPlan {
    let n = nodes.ranks();
    let mut b = Builder::new(n);
    let finish = |b: Builder| b.finish(Kind::ReduceScatter, count, false);
    if count == 0 {
        return finish(b);
    }
    // Island and index in it of each rank; who joins rank r's piece in island k.
    let mut place = vec![(0, 0); n as usize];
    for (k, ranks) in nodes.0.iter().enumerate() {
        for (i, &r) in ranks.iter().enumerate() {
            place[r as usize] = (k, i);
        }
    }
    let deputy = |r: u32, k: usize| nodes.0[k][place[r as usize].1 % nodes.0[k].len()];
    let deputy = |r: u32, k: usize| {
        if place[r as usize].0 == k {
            r
        } else {
            deputy(r, k)
        }
    };
    let piece = |r: u32| Span::new(Buf::Data, u64::from(r) * count, count);
    // Where each rank's sum of piece r lies, where it is the one that joins it.
    let mut sums: Vec<Vec<Option<Span>>> = vec![vec![None; n as usize]; n as usize];
    for (k, ranks) in nodes.0.iter().enumerate() {
        for &me in ranks {
            let (mut moves, mut folds, mut joins) = (vec![], vec![], vec![]);
            for r in 0..n {
                let (root, own) = (deputy(r, k), piece(r));
                let mut sum = own;
                if root == me && ranks.len() > 1 {
                    let mut parts = vec![];
                    for &from in ranks {
                        if from == me {
                            parts.push(own);
                            continue;
                        }
                        let span = Span::new(Buf::Scratch, b.scratch(me, count), count);
                        moves.push(Move::Recv { span, from });
                        parts.push(span);
                    }
                    sum = Span::new(Buf::Scratch, b.scratch(me, count), count);
                    let by = Order::Vendor;
                    let dst = sum;
                    folds.push(Move::Fold { dst, parts, by });
                }
                match root == me {
                    true => sums[me as usize][r as usize] = Some(sum),
                    false => moves.push(Move::Send {
                        span: own,
                        to: root,
                    }),
                }
                joins.push(Join { root, own, sum });
            }
            b.round(me, moves);
            b.round(me, folds);
            b.inside(me, joins, vec![]);
        }
    }
    for me in 0..n {
        let mine = place[me as usize].0;
        let (mut moves, mut parts) = (vec![], vec![]);
        for r in (0..n).filter(|&r| place[r as usize].0 != mine) {
            if let Some(span) = sums[me as usize][r as usize] {
                moves.push(Move::Send { span, to: r });
            }
        }
        for k in 0..nodes.0.len() {
            if k == mine {
                parts.extend(sums[me as usize][me as usize]);
                continue;
            }
            let span = Span::new(Buf::Scratch, b.scratch(me, count), count);
            let from = deputy(me, k);
            moves.push(Move::Recv { span, from });
            parts.push(span);
        }
        b.round(me, moves);
        let (dst, by) = (Span::new(Buf::Out, 0, count), Order::Given);
        b.round(
            me,
            vec![match parts[..] {
                [src] => Move::Copy { dst, src },
                _ => Move::Fold { dst, parts, by },
            }],
        );
        b.behind(me);
    }
    finish(b)
}

/// Elements each node sends to other nodes.
pub fn across(plan: &CommPlan, nodes: &Nodes) -> Vec<u64> {
    let mut home = vec![0; nodes.ranks() as usize];
    for (k, ranks) in nodes.0.iter().enumerate() {
        ranks.iter().for_each(|&r| home[r as usize] = k);
    }
    let mut sent = vec![0; nodes.0.len()];
    for (r, p) in plan.ranks.iter().enumerate() {
        for m in p.rounds.iter().flatten() {
            if let Move::Send { span, to } = m
                && home[*to as usize] != home[r]
            {
                sent[home[r]] += span.n;
            }
        }
    }
    sent
}
