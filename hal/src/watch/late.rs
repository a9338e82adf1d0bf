//! Which rank is at fault when a wait takes too long: the wait-for graph is followed from the waiting rank to a rank
//! that does not wait.
//!
//! A rank that is waited for may itself wait for another, and with pipeline stages it usually does. The search follows
//! everything that a wait needs, ranks that certainly do not wait first; only if every path leads back is it a cycle.

use super::collective_record::CollectiveRecord;
use super::judge::{Fault, Member, Verdict, View, age};
use super::rank_record::{Host, RankRecord};
use super::stuck::{Stuck, cycle};
use super::waits::{Graph, Need};

/// What the host thread of a rank and its process do, as the system reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nobody knows.
    Unknown,
    Computes,
    Sleeps,
    /// SIGSTOP, or a debugger.
    Stopped,
    /// There is no such process any more.
    Gone,
}

/// Asks the system.
pub(super) fn doing(record: &RankRecord) -> Doing {
    let Host { pid, tid } = record.host();
    let state = |path: String| -> Option<char> {
        let text = std::fs::read_to_string(path).ok()?;
        // The name, in brackets, may hold anything.
        text.rsplit_once(')')?.1.trim_start().chars().next()
    };
    let process = state(format!("/proc/{pid}/stat"));
    let there = std::path::Path::new("/proc/self/stat").exists();
    let thread = state(format!("/proc/{pid}/task/{tid}/stat")).filter(|_| tid > 0);
    match (process, thread) {
        (Some('T' | 't'), _) => Doing::Stopped,
        (Some('Z' | 'X'), _) => Doing::Gone,
        (None, _) if there && pid > 0 => Doing::Gone,
        (_, Some('R')) => Doing::Computes,
        (_, Some('S' | 'D')) => Doing::Sleeps,
        _ => Doing::Unknown,
    }
}

/// Where the way ends.
enum End<'a> {
    /// It has not asked for it, and its host does not wait.
    Absent(Member<'a>),
    /// Its process is stopped.
    Stopped(Member<'a>),
    /// Its own device does not come to the end of what everybody has asked for.
    Slow(Member<'a>),
}

/// Why rank `waiting` (a view) has waited for too long. `doing`: of each view.
pub(super) fn late(
    views: &[View],
    doing: &[Doing],
    waiting: usize,
    within: &str,
) -> Option<Verdict> {
    let mut g = Graph::new(views);
    // Here everybody counts as stuck: a rank that has not called is to be looked at.
    g.stuck.fill(true);
    g.halted = doing.iter().map(|d| *d == Doing::Stopped).collect();
    g.settle();
    let open = g.awaited(waiting).or_else(|| g.first_open(waiting))?;
    let mut way = Way {
        g: &g,
        path: vec![],
        seen: vec![],
        circle: None,
    };
    match way.follow(waiting, g.front(waiting, open)) {
        Some(end) => Some(sentence(&g, doing, &way.path, &end, within)),
        None => way.circle.map(|c| cycle(&c)),
    }
}

struct Way<'g, 'a> {
    g: &'g Graph<'a>,
    /// From the rank that asked to the one that is looked at.
    path: Vec<Stuck<'a>>,
    /// Launches that were looked at.
    seen: Vec<(usize, usize)>,
    /// The first circle that was met.
    circle: Option<Vec<Stuck<'a>>>,
}

impl<'a> Way<'_, 'a> {
    /// Follows what a launch needs to where it ends; the way there is then in `path`.
    fn follow(&mut self, v: usize, l: usize) -> Option<End<'a>> {
        if let Some(from) = (self.path.iter()).position(|s| (s.view, s.launch) == (v, l)) {
            self.circle
                .get_or_insert_with(|| self.path[from..].to_vec());
            return None;
        }
        if self.seen.contains(&(v, l)) {
            return None;
        }
        self.seen.push((v, l));
        let g = self.g;
        let mut needs: Vec<(&'a CollectiveRecord, Need<'a>)> = vec![];
        for op in g.ops(v, l) {
            needs.extend(g.needs(v, op).into_iter().map(|n| (op, n)));
        }
        // Who plainly keeps the others from going on comes before who may.
        needs.sort_by_key(|(_, n)| match n {
            Need::Halted(_) => 0,
            Need::Call(m) if self.halted(m) => 0,
            Need::Call(m) if m.view.wait.is_none() => 1,
            _ => 2,
        });
        for (op, need) in needs {
            let (Need::Call(m) | Need::Behind(m, _) | Need::Halted(m)) = &need;
            self.path.push(Stuck {
                view: v,
                launch: l,
                name: g.name(v, op.key),
                op,
                on: m.name,
                behind: !matches!(need, Need::Call(_)),
            });
            if let Some(end) = self.end(need) {
                return Some(end);
            }
            self.path.pop();
        }
        None
    }

    fn halted(&self, m: &Member<'_>) -> bool {
        self.g.view_of(m).is_some_and(|v| self.g.halted[v])
    }

    fn end(&mut self, need: Need<'a>) -> Option<End<'a>> {
        let g = self.g;
        let (m, behind) = match need {
            Need::Halted(m) => return Some(End::Stopped(m)),
            Need::Call(m) => (m, None),
            Need::Behind(m, b) => (m, Some(b)),
        };
        let v = g.view_of(&m)?;
        if g.halted[v] {
            return Some(End::Stopped(m));
        }
        let next = match behind {
            Some(b) => b,
            None if m.view.wait.is_none() => return Some(End::Absent(m)),
            // Everybody has come to what it waits for: its device is still at it.
            None => match g.awaited(v) {
                Some(l) => l,
                None => return Some(End::Slow(m)),
            },
        };
        self.follow(v, g.front(v, next))
    }
}

fn sentence(
    g: &Graph<'_>,
    doing: &[Doing],
    path: &[Stuck<'_>],
    end: &End<'_>,
    within: &str,
) -> Verdict {
    let (End::Absent(m) | End::Stopped(m) | End::Slow(m)) = end;
    let view = g.view_of(m);
    let does = view.map_or(Doing::Unknown, |v| doing[v]);
    let last = match m.view.ops.last() {
        Some(o) => format!("its last call was {} {}", o.say(), age(o.at)),
        None => "it has called nothing yet".to_string(),
    };
    let host = match (end, does, &m.view.wait) {
        (End::Stopped(_), ..) => format!(
            "its process {} is stopped (SIGSTOP, or a debugger; kill -CONT {} lets it go on)",
            m.view.pid, m.view.pid
        ),
        (End::Slow(_), _, wait) => {
            let work = (view.and_then(|v| g.waited(v).and_then(|l| g.ops(v, l).next())))
                .map_or(String::new(), |o| format!(", for {}", o.say()));
            let since = wait.map_or(String::new(), |w| {
                format!(", a wait that began {}", age(w.since))
            });
            format!("it waits for its own device alone{since}{work}")
        }
        (_, Doing::Gone, _) => format!("its process {} is no more", m.view.pid),
        (_, Doing::Computes, _) => "its host is busy elsewhere (it computes)".to_string(),
        (_, Doing::Sleeps, _) => "its host is busy elsewhere (it sleeps)".to_string(),
        _ => "its host is busy elsewhere".to_string(),
    };
    let Some(link) = path.last() else {
        // There is always the link that led here.
        return Verdict {
            fault: Fault::Late,
            sentence: format!("rank {} did not come {within}; {last}, {host}", m.name),
            culprits: vec![m.name],
        };
    };
    let what = if link.behind {
        "did not get to"
    } else {
        "did not come to"
    };
    let mut sentence = format!(
        "rank {} {what} {} {within}, where rank {} waits; {last}, {host}",
        m.name,
        link.op.say(),
        link.name
    );
    if path.len() > 1 {
        let links = path.iter().map(|s| {
            format!(
                "rank {} waits for rank {} ({}, {})",
                s.name,
                s.on,
                s.op.what(),
                s.op.id()
            )
        });
        sentence += &format!(
            "; {}, rank {} waits for nobody",
            links.collect::<Vec<_>>().join(", "),
            m.name
        );
    }
    Verdict {
        fault: Fault::Late,
        sentence,
        culprits: vec![m.name],
    }
}
