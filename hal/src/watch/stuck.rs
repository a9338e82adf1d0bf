//! Messages for a deadlock and for a rank that has left, made from the wait-for graph ([`super::waits`]).

use super::collective_record::CollectiveRecord;
use super::judge::{Fault, Member, Verdict, View, members, numbers, ranks};
use super::rank_record::Life;
use super::waits::{Graph, Need};
use crossweave_abi::{COLL_RECV, COLL_SEND};
use crossweave_plugin::JobRank;

/// One rank that cannot go on, and whom it waits for.
#[derive(Clone)]
pub(super) struct Stuck<'a> {
    pub view: usize,
    pub launch: usize,
    pub name: JobRank,
    pub op: &'a CollectiveRecord,
    pub on: JobRank,
    /// It has asked for it, but other things come first there.
    pub behind: bool,
}

/// Which ranks can never go on, if some cannot.
pub(super) fn deadlock(views: &[View]) -> Option<Verdict> {
    let mut g = Graph::new(views);
    g.reduce();
    let first = (0..views.len()).find(|v| g.stuck[*v])?;
    let at = (first, g.front(first, g.awaited(first)?));
    walk(&g, at)
}

/// View `own` has learnt that a rank it needs has left: which, and what it did last. `None` when what it asked for needs nobody who has.
pub(super) fn left(views: &[View], own: usize) -> Option<Verdict> {
    let mut g = Graph::new(views);
    // A rank that is still there may yet come, also one that waits.
    g.stuck.fill(false);
    g.settle();
    let l = g.first_open(own)?;
    walk(&g, (own, g.front(own, l)))
}

/// From a launch that does not complete to whom it needs, and on, until somebody has ended or the way closes.
fn walk(g: &Graph<'_>, mut at: (usize, usize)) -> Option<Verdict> {
    let views = g.views;
    let mut path: Vec<Stuck<'_>> = vec![];
    loop {
        let (v, l) = at;
        if let Some(from) = path.iter().position(|s| (s.view, s.launch) == at) {
            return Some(cycle(&path[from..]));
        }
        let (op, need) = g.ops(v, l).find_map(|o| Some((o, g.need(v, o)?)))?;
        let (member, behind) = match need {
            Need::Call(m) | Need::Halted(m) => (m, None),
            Need::Behind(m, b) => (m, Some(b)),
        };
        let other = g.view_of(&member)?;
        path.push(Stuck {
            view: v,
            launch: l,
            name: g.name(v, op.key),
            op,
            on: member.name,
            behind: behind.is_some(),
        });
        let over = member.entry.life.over() || member.view.life.over();
        at = match behind {
            Some(b) => (other, g.front(other, b)),
            None if over => return Some(ended(views, op, &member)),
            None => (other, g.front(other, g.awaited(other)?)),
        };
    }
}

pub(super) fn cycle(path: &[Stuck<'_>]) -> Verdict {
    let mut names: Vec<JobRank> = path.iter().map(|s| s.name).collect();
    names.sort_unstable();
    names.dedup();
    let one = |s: &Stuck<'_>| {
        let why = match s.behind {
            true => format!("for {}, which has something else to do first", s.on),
            false => format!("for {}, which has not called it", s.on),
        };
        format!("{} waits in {} {why}", s.name, s.op.say())
    };
    let mut sentence = format!("deadlock of {}: ", ranks(&names));
    sentence += &path.iter().map(one).collect::<Vec<_>>().join("; ");
    let mut groups: Vec<&str> = path.iter().map(|s| &*s.op.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let collectives = path.iter().all(|s| !s.op.point_to_point());
    if groups.len() > 1 && collectives {
        sentence += &format!(
            "; they call the groups {} in different orders",
            groups.join(" and ")
        );
    }
    Verdict {
        fault: Fault::Deadlock,
        sentence,
        culprits: numbers(&names),
    }
}

/// Somebody waits in `op` for a member that has ended.
pub(super) fn ended(views: &[View], op: &CollectiveRecord, gone: &Member<'_>) -> Verdict {
    let last = gone.view.ops.last();
    let after = match last {
        Some(o) => format!("its last call was {}", o.say()),
        None => "it had called nothing".to_string(),
    };
    // A rank that is in no group any more has nothing left to do with the others.
    let lives = |(_, e): &(usize, super::rank_record::Entry)| e.life == Life::Live;
    let how = match (gone.entry.life, gone.view.entries.iter().any(lives)) {
        (Life::Panicked, _) => "has panicked",
        (Life::Aborted, _) => "has aborted the group",
        (_, false) => "has ended",
        _ => "has left the group",
    };
    let waiting: Vec<JobRank> = members(views, op.key)
        .iter()
        .filter(|m| m.index != gone.index && calls(m, op, gone.index))
        .map(|m| m.name)
        .collect();
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let who = match waiting.is_empty() {
        true => String::new(),
        false => format!(", where {} {verb}", ranks(&waiting)),
    };
    Verdict {
        fault: Fault::Ended,
        sentence: format!(
            "{} {how} and never comes to {}{who}; {after}",
            gone.name,
            op.say()
        ),
        culprits: vec![gone.name.0],
    }
}

/// Has this member asked for `op` (a collective, or its end of the message)?
fn calls(m: &Member<'_>, op: &CollectiveRecord, peer: u32) -> bool {
    match op.kind {
        COLL_SEND => m
            .entry
            .sent
            .get(peer as usize)
            .is_some_and(|n| *n >= op.seq),
        COLL_RECV => m
            .entry
            .received
            .get(peer as usize)
            .is_some_and(|n| *n >= op.seq),
        _ => m.entry.count >= op.seq,
    }
}
