//! Ranks that have no record here: those of other hosts, and of a host without shared memory. When a wait has taken too long, their processes
//! are asked what they show, and the wait-for graph is followed over all of them.
//!
//! A process answers on a thread of its own, whatever its ranks do. One that does not answer is stopped, or its host cannot be reached: then
//! its ranks count as ranks that do nothing.

use super::doing::{Doing, doing};
use super::host_name::HostName;
use super::judge::{self, Fault, Verdict, View, numbers, ranks};
use super::rank_record::{GROUPS, Life, RankRecord};
use super::words::now;
use super::{CheckerState, Inner, Occupied, lock, view};
use crate::error::Error;
use crossweave_plugin::{GroupRank, JobRank};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Operations of a rank that an answer holds: enough to find where two ranks began to differ, and less of each rank in a large job.
fn kept(world: u32) -> u64 {
    u64::from(8_192 / world.max(1)).clamp(64, 512)
}

/// The way to the other processes of a job.
pub trait Distant: Send + Sync {
    /// Asks every other process for its [`Answers`], and waits a moment for them. `None` where a failure is known, so that nobody's silence
    /// says anything.
    fn ask(&self) -> Option<Vec<Reply>>;
    /// The host of this process.
    fn here(&self) -> HostName;
}

/// What another process has answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its ranks.
    pub ranks: Range<u32>,
    /// Its host.
    pub host: HostName,
    /// What it has said; `None` where it does not answer.
    pub answer: Option<Vec<u8>>,
}

/// The way there, and how many ranks the job has.
pub(super) struct Reach {
    world: u32,
    by: Box<dyn Distant>,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    /// The host's clock, on which its times are.
    now: u64,
    shown: Vec<(View, Doing)>,
    verdict: Option<Verdict>,
}

/// Says what the ranks of this process show, for a process that asks. It does not keep them.
pub struct Answers(Weak<Inner>);

impl Answers {
    /// The answer; empty where the job has ended here.
    pub fn say(&self) -> Vec<u8> {
        let board = self.0.upgrade().map(CheckerState);
        board.map_or(vec![], |b| b.answer())
    }
}

impl CheckerState {
    /// The other processes of a job of `world` ranks can be asked from now on.
    pub fn reach(&self, world: u32, by: impl Distant + 'static) {
        let by = Box::new(by);
        *lock(&self.0.reach) = Some(Arc::new(Reach { world, by }));
    }

    /// By which this process answers when it is asked.
    pub fn answers(&self) -> Answers {
        Answers(Arc::downgrade(&self.0))
    }

    /// Holds what ranks of all processes have asked for against each other, where not all have a record here; a difference ends the job, though
    /// the bytes have moved by then. `false`: there is nothing to compare, now or later.
    pub fn compare(&self) -> bool {
        let Some(reach) = lock(&self.0.reach).clone() else {
            return false;
        };
        let records = self.records();
        let own = records.iter().find(|s| s.record.own());
        let Some((at, mut scene)) = own.and_then(|at| Some((at, Scene::near(&records, at)?)))
        else {
            return true;
        };
        if self.verdict().is_some() || scene.is_whole(&reach) {
            return false;
        }
        let said = scene.join(&reach).or_else(|| scene.mismatch());
        if let Some(verdict) = said {
            let _one = lock(&self.0.judging);
            if at.verdict().is_none() {
                self.pass(at, verdict);
            }
            return false;
        }
        true
    }

    /// The ranks of this process, and those of its host that cannot answer for themselves.
    fn answer(&self) -> Vec<u8> {
        let records = self.records();
        let world = lock(&self.0.reach).as_ref().map_or(1, |r| r.world);
        let of = |s: &Arc<Occupied>| {
            let does = doing(&s.record);
            let mute = matches!(does, Doing::Stopped | Doing::Gone);
            let first = (s.record.head() + 1).saturating_sub(kept(world)).max(1);
            (s.record.own() || mute).then(|| (view(&s.record, first), does))
        };
        let answer = Answer {
            now: now(),
            shown: records.iter().filter_map(of).collect(),
            verdict: self.verdict(),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    }

    /// A collective has failed below: `find` says what that means, from what all ranks show that can be reached. `far`: also those without a
    /// record here.
    pub(super) fn ask(
        &self,
        at: &Arc<Occupied>,
        e: Error,
        far: bool,
        find: impl FnOnce(&Scene) -> Option<Verdict>,
    ) -> Error {
        let _one = lock(&self.0.judging);
        if let Some(v) = at.verdict().or_else(|| self.heard(at)) {
            return v.error();
        }
        let reach = lock(&self.0.reach).clone().filter(|_| far);
        let near = match &reach {
            // Two of them may have to do with each other through a third that is not here.
            Some(_) => self.records(),
            None => self.related(&at.record),
        };
        let Some(mut scene) = Scene::near(&near, at) else {
            return e;
        };
        let said = reach.and_then(|r| scene.join(&r));
        match said.or_else(|| find(&scene)) {
            Some(verdict) => self.pass(at, verdict).error(),
            None => e,
        }
    }
}

/// What all ranks show that can be reached, at about one moment.
pub(super) struct Scene {
    pub views: Vec<View>,
    /// What the rank of each view does.
    pub doing: Vec<Doing>,
    /// The host of each view, where that is another one.
    hosts: Vec<Option<String>>,
    /// The view of the rank that asks.
    pub own: usize,
    /// Hosts were asked, and this one is cut off from all of them.
    alone: Option<(HostName, Vec<JobRank>)>,
    /// Does rank 0, through which all others are reached, not answer?
    headless: bool,
    joined: bool,
}

impl Scene {
    fn near(records: &[Arc<Occupied>], at: &Arc<Occupied>) -> Option<Scene> {
        let of = |r: &RankRecord| view(r, 1);
        Some(Scene {
            views: records.iter().map(|s| of(&s.record)).collect(),
            doing: records.iter().map(|s| doing(&s.record)).collect(),
            hosts: vec![None; records.len()],
            own: records.iter().position(|s| Arc::ptr_eq(s, at))?,
            alone: None,
            headless: false,
            joined: false,
        })
    }

    fn has(&self, rank: u32) -> bool {
        self.views.iter().any(|v| v.rank == Some(rank))
    }

    /// Have all ranks of the job a record here?
    fn is_whole(&self, reach: &Reach) -> bool {
        (0..reach.world).all(|r| self.has(r))
    }

    fn add(&mut self, view: View, doing: Doing, host: &HostName) {
        self.views.push(view);
        self.doing.push(doing);
        self.hosts.push(Some(host.name.clone()));
    }

    /// Asks for the ranks that are not here; a verdict that another process has made is taken over.
    fn join(&mut self, reach: &Reach) -> Option<Verdict> {
        if self.is_whole(reach) {
            return None;
        }
        let replies = reach.by.ask()?;
        self.joined = true;
        for reply in &replies {
            let said = reply.answer.as_ref();
            let Some(said) = said.and_then(|b| serde_json::from_slice::<Answer>(b).ok()) else {
                continue;
            };
            if let Some(v) = said.verdict {
                return Some(v);
            }
            for (mut view, doing) in said.shown {
                if view.rank.is_none_or(|r| self.has(r)) {
                    continue;
                }
                // Ages are kept; clocks of hosts have nothing in common.
                let here = |at: u64| now().saturating_sub(said.now.saturating_sub(at));
                view.ops.iter_mut().for_each(|o| o.at = here(o.at));
                if let Some(w) = &mut view.wait {
                    w.since = here(w.since);
                }
                self.add(view, doing, &reply.host);
            }
        }
        self.silence(&replies, &reach.by.here());
        None
    }

    /// Ranks whose processes do not answer do nothing, as far as anybody can tell.
    fn silence(&mut self, replies: &[Reply], here: &HostName) {
        let first = |r: &&Reply| r.ranks.start == 0;
        let mute = |r: &&Reply| r.answer.is_none();
        self.headless = replies.iter().filter(mute).any(|r| first(&r));
        let other = |r: &&Reply| r.host != *here;
        let mut lost: Vec<&HostName> = vec![];
        for r in replies.iter().filter(mute).filter(other) {
            if !lost.contains(&&r.host) {
                lost.push(&r.host);
            }
        }
        let heard = replies.iter().filter(other).any(|r| r.answer.is_some());
        if !self.headless && !heard && lost.len() > 1 {
            let rank = |v: &View| v.rank.map(JobRank);
            let mut own: Vec<JobRank> = self.views.iter().filter_map(rank).collect();
            own.sort_unstable();
            self.alone = Some((here.clone(), own));
        }
        // Without rank 0 nobody's answer comes, and of nobody's silence anything follows.
        let counts = |r: &&Reply| mute(r) && (first(r) || !self.headless);
        let silent: Vec<&Reply> = replies.iter().filter(counts).collect();
        for reply in silent {
            for rank in reply.ranks.clone() {
                if !self.has(rank) {
                    let view = self.unseen(rank);
                    self.add(view, Doing::Silent, &reply.host);
                }
            }
        }
    }

    /// A rank as the other members of its groups know it.
    fn unseen(&self, rank: u32) -> View {
        let mut entries: Vec<(usize, judge::Entry)> = vec![];
        for (_, e) in self.views.iter().flat_map(|v| &v.entries) {
            let known = entries.iter().any(|(_, k)| k.key == e.key);
            let at = e.ranks().position(|r| r == JobRank(rank));
            if let Some(at) = at.filter(|_| !known) {
                entries.push((entries.len(), e.unknown(GroupRank::from(at))));
            }
        }
        View {
            rank: Some(rank),
            pid: 0,
            life: Life::Live,
            wait: None,
            depends: vec![],
            entries,
            ops: vec![],
        }
    }

    /// The host of a view, where that is another one.
    pub fn host(&self, v: usize) -> Option<&str> {
        self.hosts.get(v)?.as_deref()
    }

    /// Ranks of different hosts are compared only here: the first collective of a group, or message of a pair, in which they differ.
    pub fn mismatch(&self) -> Option<Verdict> {
        if !self.joined {
            return None;
        }
        let mut keys: Vec<(u64, u64)> = vec![];
        let mut pairs: Vec<(u64, u32, u32)> = vec![];
        // Records of one that has taken the place of another would be taken for the other's.
        let first_of_place = |v: &&View| v.entries.len() < GROUPS;
        let all = self
            .views
            .iter()
            .filter(first_of_place)
            .flat_map(|v| &v.entries);
        for (_, e) in all.filter(|(_, e)| e.size > 1) {
            let sent = (0..).zip(&e.sent).filter(|(_, n)| **n > 0);
            pairs.extend(sent.map(|(to, _)| (e.key, e.index, to)));
            match keys.iter_mut().find(|(key, _)| *key == e.key) {
                Some((_, count)) => *count = e.count.max(*count),
                None => keys.push((e.key, e.count)),
            }
        }
        let views = &self.views;
        let found = keys
            .iter()
            .find_map(|(key, n)| judge::mismatch(views, *key, *n));
        let mut pairs = pairs.into_iter();
        let message = |(key, from, to)| judge::message(views, key, from, to, u64::MAX);
        found.or_else(|| pairs.find_map(message))
    }

    /// Is this host cut off from all others?
    pub fn cut_off(&self) -> bool {
        self.alone.is_some()
    }

    /// What is at fault where no record says it: a host that is cut off, or rank 0's.
    pub fn unreachable(&self, within: &str) -> Option<Verdict> {
        let view = &self.views[self.own];
        let me = JobRank(view.rank?);
        let open = view.ops.iter().find(|o| !o.done).or(view.ops.last());
        let waits = open.map_or(String::new(), |o| format!("; {me} waits in {}", o.say()));
        let (culprits, sentence) = match (&self.alone, self.headless) {
            (Some((host, own)), _) => {
                let sentence = format!(
                    "{} did not get through to the other hosts {within}: host {} is cut off, no other host answers{waits}",
                    ranks(own),
                    host.name
                );
                (numbers(own), sentence)
            }
            (None, true) => {
                let v = self.views.iter().position(|v| v.rank == Some(0));
                let host = v.and_then(|v| self.host(v)).unwrap_or("its host");
                let sentence = format!(
                    "rank 0 does not answer, through which ranks learn of each other: its process is stopped, or {host} cannot be \
                     reached; nothing came {within}{waits}"
                );
                (vec![0], sentence)
            }
            _ => return None,
        };
        Some(Verdict {
            fault: Fault::Late,
            sentence,
            culprits,
        })
    }
}
