//! Deadlocks: a wait-for graph over ranks and what they have asked for, built from the records alone.
//!
//! What was asked for completes when every rank it needs has asked for it too and everything before it, on each of their streams and in
//! their groups, completes. Only a rank's host can ask for more. So a host that waits is stuck exactly when what it waits for needs a host
//! that is stuck itself, or a rank that has ended. The largest such set is what remains when every host that may go on is taken out.
//! Whatever is not known (a rank of another machine, a record that is too old, a host with several threads) counts as able to go on, so
//! a verdict is never a guess.

use super::judge::{Fault, Member, Verdict, View, age, members, ranks};
use super::op::Op;
use super::seat::{Depend, Life};
use crossweave_abi::{COLL_RECV, COLL_SEND};

/// Operations that were enqueued in one call.
struct Launch {
    ops: Vec<usize>,
    number: u64,
    stream: u32,
    /// The stream's call that ends it; 0 while it is being enqueued.
    call: u64,
    /// Earlier ones that come first: of the stream, and of each group in it.
    before: Vec<usize>,
}

struct Graph<'a> {
    views: &'a [View],
    /// By view: what has not been seen to complete, oldest first.
    launches: Vec<Vec<Launch>>,
    complete: Vec<Vec<bool>>,
    stuck: Vec<bool>,
}

/// What one operation still needs.
enum Need<'a> {
    /// A member that has not asked for it.
    Call(Member<'a>),
    /// A member whose own launch of it stands behind another that does not complete.
    Behind(Member<'a>, usize),
}

impl<'a> Graph<'a> {
    fn new(views: &'a [View]) -> Graph<'a> {
        let launches: Vec<Vec<Launch>> = views.iter().map(outstanding).collect();
        Graph {
            complete: launches.iter().map(|l| vec![false; l.len()]).collect(),
            stuck: views.iter().map(|v| v.wait.is_some()).collect(),
            launches,
            views,
        }
    }

    fn view_of(&self, m: &Member<'_>) -> Option<usize> {
        self.views.iter().position(|v| std::ptr::eq(v, m.view))
    }

    /// The launch in which view `v` has asked for what meets `op`; `None`: long ago, or not remembered.
    fn meets(&self, v: usize, op: &Op, me: u32, index: u32) -> Option<usize> {
        let ops = &self.views[v].ops;
        let other = |o: &Op| match op.kind {
            COLL_SEND => o.kind == COLL_RECV && o.peer == me,
            COLL_RECV => o.kind == COLL_SEND && o.peer == me,
            _ => !o.point_to_point(),
        };
        let hit = |i: &usize| {
            let o = &ops[*i];
            o.key == op.key && o.seq == op.seq && other(o)
        };
        let here = |l: &Launch| l.ops.iter().any(&hit);
        debug_assert!(self.views[v].entry(op.key, index).is_some());
        self.launches[v].iter().position(here)
    }

    /// The first thing `op` of view `v` needs and does not get. Members of other machines and of other times are no needs.
    fn need(&self, v: usize, op: &Op) -> Option<Need<'a>> {
        let own = self.views[v].entries.iter().map(|(_, e)| e);
        let me = own.filter(|e| e.key == op.key).map(|e| e.index).next()?;
        let wanted = |m: &Member<'_>| match op.point_to_point() {
            true => m.index == op.peer,
            false => m.index != me,
        };
        for m in members(self.views, op.key).into_iter().filter(wanted) {
            let Some(other) = self.view_of(&m) else {
                continue;
            };
            let has = match op.kind {
                COLL_SEND => m
                    .entry
                    .received
                    .get(me as usize)
                    .copied()
                    .unwrap_or(u64::MAX),
                COLL_RECV => m.entry.sent.get(me as usize).copied().unwrap_or(u64::MAX),
                _ => m.entry.count,
            };
            if has < op.seq {
                let never = self.stuck[other] || m.entry.life.over() || m.view.life.over();
                if never {
                    return Some(Need::Call(m));
                }
                continue;
            }
            let Some(l) = self.meets(other, op, me, m.index) else {
                continue;
            };
            let blocked = |b: &&usize| !self.complete[other][**b];
            if let Some(b) = self.launches[other][l].before.iter().find(blocked) {
                return Some(Need::Behind(m, *b));
            }
        }
        None
    }

    /// Everything that completes when only hosts that are not stuck ask for more.
    fn settle(&mut self) {
        for c in &mut self.complete {
            c.fill(false);
        }
        loop {
            let mut changed = false;
            for v in 0..self.views.len() {
                for l in 0..self.launches[v].len() {
                    let launch = &self.launches[v][l];
                    let ready = !self.complete[v][l]
                        && launch.before.iter().all(|b| self.complete[v][*b])
                        && launch
                            .ops
                            .iter()
                            .all(|o| self.need(v, &self.views[v].ops[*o]).is_none());
                    if ready {
                        self.complete[v][l] = true;
                        changed = true;
                    }
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// What the host of view `v` waits for and does not get.
    fn awaited(&self, v: usize) -> Option<usize> {
        let wait = self.views[v].wait?;
        let reach = reach(&self.views[v].depends, wait.stream, wait.target);
        let of = |l: &Launch| within(&reach, l);
        (0..self.launches[v].len()).find(|l| of(&self.launches[v][*l]) && !self.complete[v][*l])
    }

    /// Takes out every host that may go on, until none does.
    fn reduce(&mut self) {
        loop {
            self.settle();
            let free: Vec<usize> = (0..self.views.len())
                .filter(|v| self.stuck[*v] && self.awaited(*v).is_none())
                .collect();
            if free.is_empty() {
                return;
            }
            for v in free {
                self.stuck[v] = false;
            }
        }
    }

    /// The earliest launch that keeps this one from completing, maybe itself.
    fn front(&self, v: usize, mut l: usize) -> usize {
        while let Some(b) = self.launches[v][l]
            .before
            .iter()
            .find(|b| !self.complete[v][**b])
        {
            l = *b;
        }
        l
    }

    fn name(&self, v: usize, key: u64) -> u32 {
        let view = &self.views[v];
        let place = || {
            view.entries
                .iter()
                .find(|(_, e)| e.key == key)
                .map_or(0, |(_, e)| e.index)
        };
        view.rank.unwrap_or_else(place)
    }
}

/// How far each stream has to come for `stream` to pass its call `upto`: itself, and what it waits for, and what that waits for.
fn reach(depends: &[Depend], stream: u32, upto: u64) -> Vec<(u32, u64)> {
    let mut all = vec![(stream, upto)];
    let mut next = 0;
    while let Some((s, upto)) = all.get(next).copied() {
        next += 1;
        for d in depends.iter().filter(|d| d.stream == s && d.after < upto) {
            match all.iter().find(|(on, to)| *on == d.on && *to >= d.upto) {
                Some(_) => {}
                None => all.push((d.on, d.upto)),
            }
        }
    }
    all
}

fn within(reach: &[(u32, u64)], l: &Launch) -> bool {
    let hit = |(s, upto): &(u32, u64)| *s == l.stream && l.call <= *upto;
    l.call > 0 && reach.iter().any(hit)
}

/// What of a rank's records has not been seen to complete, as launches.
fn outstanding(view: &View) -> Vec<Launch> {
    let mut all: Vec<Launch> = vec![];
    let failed = |o: &Op| view.entries.iter().any(|(_, e)| e.key == o.key && e.failed);
    for (i, op) in view.ops.iter().enumerate() {
        if op.done || failed(op) {
            continue;
        }
        match all.last_mut() {
            Some(l) if l.number == op.launch => l.ops.push(i),
            _ => all.push(Launch {
                ops: vec![i],
                number: op.launch,
                stream: op.stream,
                call: op.call,
                before: vec![],
            }),
        }
    }
    for l in 1..all.len() {
        let keys = |l: &Launch| l.ops.iter().map(|o| view.ops[*o].key).collect::<Vec<_>>();
        let own = keys(&all[l]);
        let mut before = vec![];
        before.extend((0..l).rev().find(|b| all[*b].stream == all[l].stream));
        // A wait between streams is a wait for the last launch it covers; its own stream is covered above.
        let reach = reach(&view.depends, all[l].stream, all[l].call);
        for (stream, upto) in reach.into_iter().skip(1) {
            let covered = |b: &usize| within(&[(stream, upto)], &all[*b]);
            let last = (0..l).rev().find(covered);
            before.extend(last.filter(|b| !before.contains(b)));
        }
        for key in own {
            let last = (0..l).rev().find(|b| keys(&all[*b]).contains(&key));
            before.extend(last.filter(|b| !before.contains(b)));
        }
        all[l].before = before;
    }
    all
}

/// One rank that cannot go on, and whom it waits for.
struct Stuck<'a> {
    view: usize,
    launch: usize,
    name: u32,
    op: &'a Op,
    on: u32,
    /// It has asked for it, but other things come first there.
    behind: bool,
}

/// Which ranks can never go on, if some cannot.
pub(super) fn deadlock(views: &[View]) -> Option<Verdict> {
    let mut g = Graph::new(views);
    g.reduce();
    let first = (0..views.len()).find(|v| g.stuck[*v])?;
    let at = (first, g.front(first, g.awaited(first)?));
    walk(&g, at)
}

/// View `own` has been told that a rank it needs has left: which, and what it did last. `None` when what it asked for needs nobody who has.
pub(super) fn left(views: &[View], own: usize) -> Option<Verdict> {
    let mut g = Graph::new(views);
    // Whoever is still there may yet come, also one that waits.
    g.stuck.fill(false);
    g.settle();
    let l = g.complete[own].iter().position(|c| !c)?;
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
        let mut ops = g.launches[v][l].ops.iter().map(|o| &views[v].ops[*o]);
        let (op, need) = ops.find_map(|o| Some((o, g.need(v, o)?)))?;
        let (member, behind) = match need {
            Need::Call(m) => (m, None),
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

fn cycle(path: &[Stuck<'_>]) -> Verdict {
    let mut names: Vec<u32> = path.iter().map(|s| s.name).collect();
    names.sort_unstable();
    names.dedup();
    let one = |s: &Stuck<'_>| {
        let why = match s.behind {
            true => format!("for rank {}, which has something else to do first", s.on),
            false => format!("for rank {}, which has not called it", s.on),
        };
        format!("rank {} waits in {} {why}", s.name, s.op.say())
    };
    let mut sentence = format!("deadlock of {}: ", ranks(&names));
    sentence += &path.iter().map(one).collect::<Vec<_>>().join("; ");
    let mut groups: Vec<&str> = path.iter().map(|s| s.op.group.as_str()).collect();
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
        culprits: names,
    }
}

/// Somebody waits in `op` for a member that has ended.
pub(super) fn ended(views: &[View], op: &Op, gone: &Member<'_>) -> Verdict {
    let last = gone.view.ops.last();
    let after = match last {
        Some(o) => format!("its last call was {}", o.say()),
        None => "it had called nothing".to_string(),
    };
    // A rank that is in no group any more has nothing left to do with the others.
    let lives = |(_, e): &(usize, super::seat::Entry)| e.life == Life::Live;
    let how = match (gone.entry.life, gone.view.entries.iter().any(lives)) {
        (Life::Panicked, _) => "has panicked",
        (Life::Aborted, _) => "has aborted the group",
        (_, false) => "has ended",
        _ => "has left the group",
    };
    let waiting: Vec<u32> = members(views, op.key)
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
            "rank {} {how} and never comes to {}{who}; {after}",
            gone.name,
            op.say()
        ),
        culprits: vec![gone.name],
    }
}

/// Has this member asked for `op` (a collective, or its end of the message)?
fn calls(m: &Member<'_>, op: &Op, peer: u32) -> bool {
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

/// A rank's wait has gone on for too long: who has not come, and where it is.
pub(super) fn late(views: &[View], waiting: usize, within: &str) -> Option<Verdict> {
    let mut g = Graph::new(views);
    // Here everybody counts as stuck: whoever has not called is the one that is late.
    g.stuck.fill(true);
    g.settle();
    let l = (0..g.launches[waiting].len()).find(|l| !g.complete[waiting][*l])?;
    let l = g.front(waiting, l);
    let mut ops = g.launches[waiting][l]
        .ops
        .iter()
        .map(|o| &views[waiting].ops[*o]);
    let (op, need) = ops.find_map(|o| Some((o, g.need(waiting, o)?)))?;
    let (m, came) = match need {
        Need::Call(m) => (m, false),
        Need::Behind(m, _) => (m, true),
    };
    let host = match &m.view.wait {
        Some(w) => format!("its host waits since it blocked {}", age(w.since)),
        None => "its host is busy elsewhere".to_string(),
    };
    let last = match m.view.ops.last() {
        Some(o) => format!("its last call was {} {}", o.say(), age(o.at)),
        None => "it has called nothing yet".to_string(),
    };
    let what = if came {
        "did not get to"
    } else {
        "did not come to"
    };
    Some(Verdict {
        fault: Fault::Late,
        sentence: format!(
            "rank {} {what} {} {within}, where rank {} waits; {last}, {host}",
            m.name,
            op.say(),
            g.name(waiting, op.key)
        ),
        culprits: vec![m.name],
    })
}
