//! Which rank is at fault when a wait takes too long: the wait-for graph is followed from the waiting rank to a rank
//! that does not wait.
//!
//! A rank that is waited for may itself wait for another, and with pipeline stages it usually does. The search follows
//! everything that a wait needs, ranks that certainly do not wait first; only if every path leads back is it a cycle.

use super::collective_record::CollectiveRecord;
use super::distant::Scene;
use super::doing::Doing;
use super::judge::{Fault, Member, Verdict, age, ranks};
use super::stuck::{Stuck, cycle};
use super::waits::{Graph, Need};
use crossweave_plugin::JobRank;

/// Where the way ends.
enum End<'a> {
    /// It has not asked for it, and its host does not wait.
    Absent(Member<'a>),
    /// Its process is stopped.
    Stopped(Member<'a>),
    /// Its own device does not come to the end of what everybody has asked for.
    Slow(Member<'a>),
}

/// Why the rank that asks has waited for too long.
pub(super) fn late(scene: &Scene, within: &str) -> Option<Verdict> {
    if scene.cut_off() {
        return scene.unreachable(within);
    }
    let found = scene.mismatch().or_else(|| chain(scene, within));
    found.or_else(|| scene.unreachable(within))
}

/// Follows the chain of waits to its end.
fn chain(scene: &Scene, within: &str) -> Option<Verdict> {
    let (waiting, doing) = (scene.own, &scene.doing);
    let mut g = Graph::new(&scene.views);
    // Here everybody counts as stuck: a rank that has not called is to be looked at.
    g.stuck.fill(true);
    let halted = |d: &Doing| matches!(d, Doing::Stopped | Doing::Silent);
    g.halted = doing.iter().map(halted).collect();
    g.settle();
    let open = g.awaited(waiting).or_else(|| g.first_open(waiting))?;
    let mut way = Way {
        g: &g,
        doing,
        path: vec![],
        seen: vec![],
        circle: None,
    };
    match way.follow(waiting, g.front(waiting, open)) {
        Some(end) => Some(sentence(&g, scene, &way.path, &end, within)),
        None => way.circle.map(|c| cycle(&c)),
    }
}

struct Way<'g, 'a> {
    g: &'g Graph<'a>,
    doing: &'g [Doing],
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
        needs.sort_by_key(|(_, n)| {
            let (Need::Call(m) | Need::Behind(m, _) | Need::Halted(m)) = n;
            match (self.does(m), n) {
                (Doing::Stopped, _) => 0,
                // A process that does not answer may only be slow to.
                (Doing::Silent, _) => 2,
                (_, Need::Call(m)) if m.view.wait.is_none() => 1,
                _ => 3,
            }
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

    fn does(&self, m: &Member<'_>) -> Doing {
        let view = self.g.view_of(m);
        view.map_or(Doing::Unknown, |v| self.doing[v])
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
    scene: &Scene,
    path: &[Stuck<'_>],
    end: &End<'_>,
    within: &str,
) -> Verdict {
    let (End::Absent(m) | End::Stopped(m) | End::Slow(m)) = end;
    let view = g.view_of(m);
    let does = view.map_or(Doing::Unknown, |v| scene.doing[v]);
    let last = match m.view.ops.last() {
        _ if does == Doing::Silent => "nobody here knows its last call".to_string(),
        Some(o) => format!("its last call was {} {}", o.say(), age(o.at)),
        None => "it has called nothing yet".to_string(),
    };
    let host = match (end, does, &m.view.wait) {
        (End::Stopped(_), Doing::Silent, _) => {
            let host = view.and_then(|v| scene.host(v)).unwrap_or("its host");
            let mute = |v: &usize| scene.doing[*v] == Doing::Silent && Some(*v) != view;
            let others = (0..g.views.len()).filter(mute);
            let mut others: Vec<JobRank> = others
                .filter_map(|v| g.views[v].rank.map(JobRank))
                .collect();
            others.sort_unstable();
            let too = match others.is_empty() {
                true => String::new(),
                false => format!("; {} do not answer either", ranks(&others)),
            };
            format!("its process does not answer: it is stopped, or {host} cannot be reached{too}")
        }
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
            sentence: format!("{} did not come {within}; {last}, {host}", m.name),
            culprits: vec![m.name.0],
        };
    };
    let what = if link.behind {
        "did not get to"
    } else {
        "did not come to"
    };
    let mut sentence = format!(
        "{} {what} {} {within}, where {} waits; {last}, {host}",
        m.name,
        link.op.say(),
        link.name
    );
    if path.len() > 1 {
        let links = path.iter().map(|s| {
            format!(
                "{} waits for {} ({}, {})",
                s.name,
                s.on,
                s.op.what(),
                s.op.id()
            )
        });
        sentence += &format!(
            "; {}, {} waits for nobody",
            links.collect::<Vec<_>>().join(", "),
            m.name
        );
    }
    Verdict {
        fault: Fault::Late,
        sentence,
        culprits: vec![m.name.0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::error::Error;
    use crate::watch::collective_record::{Print, Raw};
    use crate::watch::distant::{Answers, Distant, Reply};
    use crate::watch::host_name::HostName;
    use crate::watch::rank_record::GroupWord;
    use crate::watch::{CheckerState, Occupied};
    use crossweave_abi::{COLL_ALL_REDUCE, DType};
    use crossweave_plugin::Members;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    /// A rank alone in its process, with its place on the board.
    struct Alone(CheckerState, Arc<Occupied>);

    impl Alone {
        fn new(rank: u32) -> Alone {
            let board = CheckerState::default();
            let at = board.sit().unwrap();
            at.record.set_rank(rank);
            Alone(board, at)
        }
        /// Joins the group of these two ranks of the job.
        fn join(&self, pair: [u32; 2]) {
            let me = self.1.record.rank().unwrap();
            let key = (1 + u64::from(pair[0])) << 8 | u64::from(pair[1]);
            let index = u32::from(pair[1] == me);
            let (_, region) = self.1.record.join(key, "dp", 2, index).unwrap();
            let members = Members::new(pair.map(JobRank));
            self.1.record.set_members(region, 2, &members);
        }
        /// Asks for a sum of so many elements in a group it has joined; its call on the stream is `call`.
        fn ask(&self, pair: [u32; 2], elements: u64, call: u64) {
            let record = &self.1.record;
            let key = (1 + u64::from(pair[0])) << 8 | u64::from(pair[1]);
            let index = u32::from(pair[1] == record.rank().unwrap());
            let (entry, _) = record.find(key, index).unwrap();
            let count = record.group_word(entry, GroupWord::Count);
            count.store(count.load(SeqCst) + 1, SeqCst);
            let print = Print {
                kind: COLL_ALL_REDUCE,
                dtype: DType::F32.id(),
                count: elements,
                ..Print::default()
            };
            let number = record.record(Raw {
                print,
                entry: entry as u16,
                seq: count.load(SeqCst),
                launch: record.launch(),
                ..Raw::default()
            });
            record.enqueued(number, call);
        }
        /// Another process asks this rank, which has waited too long.
        fn explain(&self) -> Error {
            let e = Error::new(Code::Timeout, "stream_sync", "late");
            self.0.ask(&self.1, e, true, |s| late(s, "in time"))
        }
    }

    /// Processes that answer at once, or not at all.
    struct Job(Vec<(u32, HostName, Option<Answers>)>);

    impl Distant for Job {
        fn ask(&self) -> Option<Vec<Reply>> {
            let headless = self.0.iter().any(|(r, _, a)| *r == 0 && a.is_none());
            let one = |(rank, host, answers): &(u32, HostName, Option<Answers>)| Reply {
                ranks: *rank..rank + 1,
                host: host.clone(),
                answer: answers.as_ref().filter(|_| !headless).map(Answers::say),
            };
            Some(self.0.iter().map(one).collect())
        }
        fn here(&self) -> HostName {
            HostName::named("here")
        }
    }

    /// Everybody but the ranks in `silent` answers `asker`; each has a host of its own.
    fn connect(all: &[Alone], asker: usize, silent: &[u32]) {
        let rank = |a: &Alone| a.1.record.rank().unwrap();
        let others = all.iter().enumerate().filter(|(i, _)| *i != asker);
        let way = others.map(|(_, a)| {
            let r = rank(a);
            let answers = (!silent.contains(&r)).then(|| a.0.answers());
            (r, HostName::named(&format!("h{r}")), answers)
        });
        all[asker].0.reach(all.len() as u32, Job(way.collect()));
    }

    /// Ranks that each wait for the next one, in any order and in groups of two, so that group ranks and ranks of the job differ: the last is
    /// named, which has not called, or whose process does not answer.
    #[test]
    fn the_last_of_a_chain_over_many_hosts_is_named() {
        let mut dice = 1u64;
        let mut roll = |sides: u64| {
            dice = dice
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (dice >> 33) % sides
        };
        for trial in 0..300 {
            let n = 2 + roll(7) as u32;
            let mut order: Vec<u32> = (0..n).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, roll(i as u64 + 1) as usize);
            }
            let all: Vec<Alone> = order.iter().map(|r| Alone::new(*r)).collect();
            for (k, w) in order.windows(2).enumerate() {
                let pair = [w[0].min(w[1]), w[0].max(w[1])];
                all[k].join(pair);
                all[k + 1].join(pair);
                // A sum that all have come to before.
                for (who, call) in [(&all[k], 1), (&all[k + 1], 1)] {
                    who.ask(pair, 8, call);
                    who.1.record.passed(0, 1);
                }
                all[k].ask(pair, 4 + k as u64, 2);
                all[k].1.record.block(0, 2);
            }
            let last = order[n as usize - 1];
            let silent = roll(2) == 0;
            let asker = if silent && last == 0 {
                n as usize - 2
            } else {
                0
            };
            connect(
                &all,
                asker,
                if silent {
                    std::slice::from_ref(&last)
                } else {
                    &[]
                },
            );
            let e = all[asker].explain();
            assert_eq!(
                e.peer,
                Some(JobRank(last)),
                "{trial}, {order:?}, {silent}: {e}"
            );
            assert!(
                e.message
                    .starts_with(&format!("rank {last} did not come to ")),
                "{e}"
            );
            assert_eq!(silent, e.message.contains("does not answer"), "{e}");
        }
    }

    #[test]
    fn ranks_of_different_hosts_that_differ_are_compared_when_one_waits() {
        let all = [5, 2, 0, 1, 3, 4].map(Alone::new);
        for (who, elements) in [(&all[0], 4), (&all[1], 9)] {
            who.join([2, 5]);
            who.ask([2, 5], elements, 1);
            who.1.record.block(0, 1);
        }
        connect(&all, 0, &[]);
        let e = all[0].explain();
        assert!(
            e.message
                .starts_with("ranks 2 and 5 differ at collective #1 of dp"),
            "{e}"
        );
        // Who asks later takes the verdict over, in the same words.
        connect(&all, 1, &[]);
        assert_eq!(all[1].explain().message, e.message);
    }

    #[test]
    fn a_host_that_is_cut_off_from_all_others_names_itself() {
        let all = [0, 1, 2].map(Alone::new);
        all[0].join([0, 2]);
        all[0].ask([0, 2], 4, 1);
        all[0].1.record.block(0, 1);
        connect(&all, 0, &[1, 2]);
        let e = all[0].explain();
        assert!(
            e.message
                .starts_with("rank 0 did not get through to the other hosts"),
            "{e}"
        );
        assert_eq!(e.peer, Some(JobRank(0)));
    }
}
