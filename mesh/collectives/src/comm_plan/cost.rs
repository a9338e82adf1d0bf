//! The clock: how long a plan takes where messages cost α + β·elements and sums γ·element, links uncontended. A model, no measurement.

use super::{CommPlan, Move};
use std::collections::HashMap;

/// Costs of one link class, in any unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Latency of a message.
    pub alpha: f64,
    /// Time for each element sent.
    pub beta: f64,
    /// Time for each addition.
    pub gamma: f64,
}

/// Time until the last rank is done. Each rank sends and receives at once, one message a direction after the other; a message begins when
/// both its ranks are in the round that has it. The plan must have passed `verify`, or the time of ranks that wait for ever is infinite.
pub fn time(plan: &CommPlan, link: Link) -> f64 {
    let n = plan.ranks.len();
    // When a rank enters its round k.
    let mut round = vec![0usize; n];
    let mut clock = vec![0f64; n];
    loop {
        let mut moved = false;
        for r in 0..n {
            while ready(plan, &round, r) {
                // All ranks of the exchange are timed from the clocks they came with.
                let group = component(plan, &round, r);
                let ends: Option<Vec<f64>> = group
                    .iter()
                    .map(|&g| finish(plan, link, &clock, g, round[g]))
                    .collect();
                let Some(ends) = ends else { break };
                for (&g, e) in group.iter().zip(ends) {
                    clock[g] = e;
                    round[g] += 1;
                }
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    match (0..n).all(|r| round[r] == plan.ranks[r].rounds.len()) {
        true => clock.into_iter().fold(0.0, f64::max),
        false => f64::INFINITY,
    }
}

fn peers(round: &[Move]) -> impl Iterator<Item = usize> + '_ {
    round.iter().filter_map(|m| match m {
        Move::Send { to, .. } => Some(*to as usize),
        Move::Recv { from, .. } => Some(*from as usize),
        _ => None,
    })
}

/// The ranks whose current rounds exchange messages, directly or through others.
fn component(plan: &CommPlan, round: &[usize], r: usize) -> Vec<usize> {
    let mut seen = vec![r];
    let mut next = 0;
    while next < seen.len() {
        if let Some(moves) = plan.ranks[seen[next]].rounds.get(round[seen[next]]) {
            for p in peers(moves) {
                if !seen.contains(&p) {
                    seen.push(p);
                }
            }
        }
        next += 1;
    }
    seen
}

/// Whether all ranks that rank `r` exchanges with in its round stand at the rounds that have the other halves.
fn ready(plan: &CommPlan, round: &[usize], r: usize) -> bool {
    let all = component(plan, round, r);
    let count = |a: usize, b: usize, sends: bool| {
        let moves = plan.ranks[a].rounds.get(round[a]);
        let meant = |m: &&Move| match m {
            Move::Send { to, .. } => sends && *to as usize == b,
            Move::Recv { from, .. } => !sends && *from as usize == b,
            _ => false,
        };
        moves.map_or(0, |m| m.iter().filter(meant).count())
    };
    let mut wanted: HashMap<(usize, usize), i64> = HashMap::new();
    for &a in &all {
        if plan.ranks[a].rounds.len() <= round[a] {
            return false;
        }
        for &b in &all {
            *wanted.entry((a, b)).or_default() += count(a, b, true) as i64;
            *wanted.entry((b, a)).or_default() -= count(a, b, false) as i64;
        }
    }
    wanted.values().all(|d| *d == 0)
}

fn finish(plan: &CommPlan, link: Link, clock: &[f64], r: usize, k: usize) -> Option<f64> {
    let moves = plan.ranks[r].rounds.get(k)?;
    let begin = peers(moves).map(|p| clock[p]).fold(clock[r], f64::max);
    let mut sums = [0f64; 3];
    for m in moves {
        match m {
            Move::Send { span, .. } => sums[0] += link.alpha + link.beta * span.n as f64,
            Move::Recv { span, .. } => sums[1] += link.alpha + link.beta * span.n as f64,
            Move::Fold { dst, parts, .. } => {
                sums[2] += link.gamma * (dst.n * (parts.len() as u64 - 1)) as f64;
            }
            Move::Copy { .. } => {}
        }
    }
    Some(begin + sums[0].max(sums[1]) + sums[2])
}
