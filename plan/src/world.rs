//! Laws between ranks: the same collectives in the same order, every send with its receive, nobody waiting for ever.

use crate::error::{Law, PlanError};
use crate::op::{Rank, StepKind, UnitId};
use crate::plan::{Plan, Step};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Hold the plans of all ranks, in rank order, against each other. Each must have passed [`crate::check`] on its own.
///
/// Ranks that run the same units form a group: they must issue the same gathers in the same order, and the same
/// reductions. Ranks of the same place in their groups sum the gradients of a unit that the groups share (`Tie`). The norm and the finite
/// check are issued by all ranks alike. Everything waits: a send and its receive are one event of
/// both ranks, and no rank begins a step before the one before it is over. With that every rank must come to its end, and so it does where streams and
/// libraries wait for less.
pub fn check_world(plans: &[Plan]) -> Result<(), PlanError> {
    let mut groups: BTreeMap<BTreeSet<UnitId>, Vec<Rank>> = BTreeMap::new();
    for (rank, plan) in plans.iter().enumerate() {
        groups.entry(plan.units()).or_default().push(rank as Rank);
    }
    let all: Vec<Rank> = (0..plans.len() as Rank).collect();
    for members in groups.values() {
        same_order(
            plans,
            members,
            |op| matches!(op, StepKind::Gather { .. }),
            "gathers",
        )?;
        same_order(
            plans,
            members,
            |op| matches!(op, StepKind::ReduceGrad { .. } | StepKind::Tie { .. }),
            "reductions",
        )?;
    }
    same_order(
        plans,
        &all,
        |op| matches!(op, StepKind::GradNorm | StepKind::Finite),
        "collectives",
    )?;
    check_peers(plans)?;
    let ties = ties(plans, groups.values())?;
    check_ends(plans, groups.values(), &all, &ties)
}

/// Who sums a unit's gradient together: for each unit and place in a group, the ranks of that place in the groups that tie it.
type Ties = HashMap<UnitId, Vec<Vec<Rank>>>;

/// The ranks of each `Tie`; the groups that share a unit must cut it alike.
fn ties<'a>(
    plans: &[Plan],
    groups: impl Iterator<Item = &'a Vec<Rank>>,
) -> Result<Ties, PlanError> {
    let mut found = Ties::new();
    for members in groups {
        let Some(&first) = members.first() else {
            continue;
        };
        for (step, op) in plans[first as usize]
            .steps
            .iter()
            .map(|s| &s.op)
            .enumerate()
        {
            let &StepKind::Tie { unit } = op else {
                continue;
            };
            let places = found.entry(unit).or_default();
            if !places.is_empty() && places.len() != members.len() {
                let message = format!(
                    "{} ranks here and {} elsewhere hold the slices of unit {unit}; stages that share a unit need as many ranks each",
                    members.len(),
                    places.len()
                );
                return Err(
                    PlanError::at(&plans[first as usize], step, Law::Tie, message).of_rank(first),
                );
            }
            places.resize(members.len(), vec![]);
            for (place, &rank) in places.iter_mut().zip(members) {
                place.push(rank);
            }
        }
    }
    Ok(found)
}

/// Every member issues the same sequence of the operations `pick` picks.
fn same_order(
    plans: &[Plan],
    members: &[Rank],
    pick: fn(&StepKind) -> bool,
    what: &str,
) -> Result<(), PlanError> {
    let list = |rank: Rank| -> Vec<(usize, &Step)> {
        let steps = plans[rank as usize].steps.iter().enumerate();
        steps.filter(|(_, s)| pick(&s.op)).collect()
    };
    let Some((&first, rest)) = members.split_first() else {
        return Ok(());
    };
    let wanted = list(first);
    for &rank in rest {
        let found = list(rank);
        let plan = &plans[rank as usize];
        for (k, (step, mine)) in found.iter().enumerate() {
            let twin = wanted.get(k).map(|(_, s)| *s);
            if !twin.is_some_and(|t| t.op == mine.op) {
                let other = twin.map_or("nothing".to_string(), Step::to_string);
                let message = format!(
                    "number {k} of its group's {what}, where rank {first} issues {other}; the group would hang or mix data"
                );
                return Err(PlanError::at(plan, *step, Law::CollectiveOrder, message).of_rank(rank));
            }
        }
        if let Some((_, next)) = wanted.get(found.len()) {
            let message = format!(
                "it ends after {} {what}, where rank {first} goes on with {next}; the group would hang",
                found.len()
            );
            return Err(PlanError::whole(Law::CollectiveOrder, message).of_rank(rank));
        }
    }
    Ok(())
}

/// What travels between two ranks: whether it is a gradient, whose, of which micro-batch.
type Parcel = (bool, UnitId, u32);

/// The parcel of a peer operation, the other rank, and whether it is a send.
fn parcel(op: &StepKind) -> Option<(Parcel, Rank, bool)> {
    match *op {
        StepKind::SendAct { unit, mb, to } => Some(((false, unit, mb), to, true)),
        StepKind::RecvAct { unit, mb, from } => Some(((false, unit, mb), from, false)),
        StepKind::SendGrad { unit, mb, to } => Some(((true, unit, mb), to, true)),
        StepKind::RecvGrad { unit, mb, from } => Some(((true, unit, mb), from, false)),
        _ => None,
    }
}

/// Between each two ranks, the sends of one are the receives of the other, in the same order.
fn check_peers(plans: &[Plan]) -> Result<(), PlanError> {
    let mut sent: HashMap<(Rank, Rank), VecDeque<(usize, Parcel)>> = HashMap::new();
    let each = || {
        plans.iter().enumerate().flat_map(|(rank, plan)| {
            let steps = plan.steps.iter().enumerate();
            steps.filter_map(move |(k, s)| parcel(&s.op).map(|p| (rank as Rank, k, p)))
        })
    };
    for (rank, step, (what, peer, sends)) in each() {
        if peer as usize >= plans.len() || peer == rank {
            let message = format!(
                "rank {peer} is not another rank of this world of {}",
                plans.len()
            );
            return Err(
                PlanError::at(&plans[rank as usize], step, Law::Peer, message).of_rank(rank),
            );
        }
        if sends {
            sent.entry((rank, peer))
                .or_default()
                .push_back((step, what));
        }
    }
    for (rank, step, (what, peer, sends)) in each() {
        if sends {
            continue;
        }
        let next = sent.get_mut(&(peer, rank)).and_then(VecDeque::pop_front);
        if next.map(|(_, w)| w) != Some(what) {
            let found = next.map_or("nothing more".to_string(), |(k, _)| {
                plans[peer as usize].steps[k].to_string()
            });
            let message = format!("the next thing rank {peer} sends here is {found}");
            return Err(
                PlanError::at(&plans[rank as usize], step, Law::Peer, message).of_rank(rank),
            );
        }
    }
    let mut unread: Vec<_> = sent
        .iter()
        .filter_map(|(pair, q)| Some((*pair, q.front()?.0)))
        .collect();
    unread.sort_unstable();
    match unread.first() {
        Some(&((rank, peer), step)) => {
            let message = format!("rank {peer} never receives it");
            Err(PlanError::at(&plans[rank as usize], step, Law::Peer, message).of_rank(rank))
        }
        None => Ok(()),
    }
}

/// Walk all plans side by side, each in step order, and see that all come to their end.
fn check_ends<'a>(
    plans: &[Plan],
    groups: impl Iterator<Item = &'a Vec<Rank>>,
    all: &[Rank],
    ties: &Ties,
) -> Result<(), PlanError> {
    let mut group_of: Vec<&[Rank]> = vec![all; plans.len()];
    for members in groups {
        for &rank in members {
            group_of[rank as usize] = members;
        }
    }
    let mut at = vec![0usize; plans.len()];
    let head = |at: &[usize], rank: Rank| {
        plans[rank as usize]
            .steps
            .get(at[rank as usize])
            .map(|s| &s.op)
    };
    loop {
        let mut moved = false;
        for rank in 0..plans.len() as Rank {
            while let Some(op) = head(&at, rank) {
                let members = match op {
                    StepKind::GradNorm | StepKind::Finite => all,
                    StepKind::Gather { .. } | StepKind::ReduceGrad { .. } => {
                        group_of[rank as usize]
                    }
                    StepKind::Tie { unit } => {
                        let mut places = ties.get(unit).into_iter().flatten();
                        let mine = places.find(|place| place.contains(&rank));
                        mine.map_or(&[][..], Vec::as_slice)
                    }
                    _ => &[],
                };
                if members.iter().any(|&m| head(&at, m) != Some(op)) {
                    break;
                }
                if let Some((what, peer, sends)) = parcel(op) {
                    let other = head(&at, peer).and_then(parcel);
                    if other != Some((what, rank, !sends)) {
                        break;
                    }
                    at[peer as usize] += 1;
                }
                moved = true;
                if members.is_empty() {
                    at[rank as usize] += 1;
                } else {
                    members.iter().for_each(|&m| at[m as usize] += 1);
                }
            }
        }
        if !moved {
            break;
        }
    }
    let stuck = (0..plans.len()).find(|&r| at[r] < plans[r].steps.len());
    match stuck {
        Some(rank) => {
            let message = "this rank waits here for ever: what it waits for comes later in another rank's plan";
            Err(PlanError::at(&plans[rank], at[rank], Law::Deadlock, message).of_rank(rank as Rank))
        }
        None => Ok(()),
    }
}
