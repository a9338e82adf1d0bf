//! A communicator in the checker: records each call and compares it with the calls of the neighbouring ranks.

use super::collective_record::{Print, Raw, mix};
use super::judge;
use super::names::Site;
use super::purpose::Purpose;
use super::rank_record::{CHAIN, GroupWord, MESSAGES, PEER, RankRecord};
use super::{CheckerState, Occupied};
use crate::comm::{Collective, WeakAbort};
use crate::error::{Code, Error, Result};
use crossweave_abi as abi;
use crossweave_plugin::{GroupRank, JobRank, Members};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{Ordering::*, fence};

/// Another member, once it is found.
#[derive(Clone)]
struct Peer {
    record: Arc<RankRecord>,
    entry: usize,
    at: usize,
}

/// Call sites a communicator knows the numbers of.
const KNOWN: usize = 16;

/// One rank's place in a communicator.
pub(crate) struct Member {
    board: CheckerState,
    at: Arc<Occupied>,
    entry: usize,
    region: usize,
    key: u64,
    size: u32,
    index: u32,
    /// The members by their ranks in the job.
    members: Members,
    /// The members after and before it, which it is compared with.
    next: u32,
    last: u32,
    count: u64,
    chain: u64,
    peers: Vec<Option<Peer>>,
    /// When peers were last looked for, by the board's count of joins.
    looked: u64,
    sites: [(usize, usize, Site); KNOWN],
}

const LOW48: u64 = (1 << 48) - 1;

/// Where a member's word of a collective lies among the [`CHAIN`] of its communicator. Words of eight collectives share a line: who is behind
/// fetches it once for all that have been asked for before it. Each member begins elsewhere, so that what it stores
/// and what it loads do not lie alike in their pages: 1 to 3 ns a call.
#[inline]
fn slot(seq: u64, member: u32) -> usize {
    const LINE: usize = 8;
    (seq as usize + member as usize * 9 * LINE) % CHAIN
}

/// A word that says which collective it belongs to: a round of the buffer above, a hash below.
fn stamped(seq: u64, buffer: usize, hash: u64) -> u64 {
    (seq / buffer as u64 + 1) << 48 | hash & LOW48
}

/// A collective that is written down: its place in the group's order, its word, and what the next member's was a moment before.
struct Posted {
    seq: u64,
    mine: u64,
    early: u64,
}

/// A communicator's place in the records, for every thread that may abort it.
pub(crate) struct Mark {
    at: Arc<Occupied>,
    entry: usize,
    key: u64,
}

impl Mark {
    /// Its rank aborts it: on record before the others can learn of it from the plugin.
    pub fn aborted(&self) {
        self.at.record.abort(self.entry, self.key);
    }
}

impl Member {
    pub(super) fn join(
        board: CheckerState,
        at: Arc<Occupied>,
        key: u64,
        name: &str,
        members: &Members,
        (size, index): (u32, u32),
    ) -> Option<Member> {
        let (entry, region) = at.record.join(key, name, size, index)?;
        at.record.set_members(region, size, members);
        board.0.joined.fetch_add(1, SeqCst);
        Some(Member {
            board,
            at,
            entry,
            region,
            key,
            size,
            index,
            members: members.clone(),
            next: (index + 1) % size.max(1),
            last: (index + size.max(1) - 1) % size.max(1),
            count: 0,
            chain: 0,
            peers: vec![None; size as usize],
            looked: 0,
            sites: [(0, 0, Site::default()); KNOWN],
        })
    }

    /// Who is aborted when a verdict falls.
    pub fn aborts(&self, handle: WeakAbort) {
        let mut all = super::lock(&self.at.aborts);
        all.retain(|a| a.get().is_some());
        all.push(handle);
    }

    /// Its rank, as messages name it.
    pub fn rank(&self) -> JobRank {
        let alone = || self.members.of(GroupRank(self.index));
        self.at.record.rank().map_or_else(alone, JobRank)
    }

    /// Its failure, if one has been found.
    pub fn failure(&self) -> Option<Error> {
        match self.failed() {
            true => self.at.verdict().map(|v| v.error()),
            false => None,
        }
    }

    #[inline]
    fn failed(&self) -> bool {
        let failed = self.at.record.group_word(self.entry, GroupWord::Failed);
        failed.load(Acquire) != 0
    }

    /// What marks it as aborted by its own rank, from any thread and also when it is no more.
    pub fn mark(&self) -> Mark {
        Mark {
            at: self.at.clone(),
            entry: self.entry,
            key: self.key,
        }
    }

    /// The communicator is given up by its user: what it misses is no mistake.
    pub fn give_up(&self) {
        let failed = self.at.record.group_word(self.entry, GroupWord::Failed);
        failed.store(1, Release);
    }

    #[inline]
    fn site(&mut self, site: &'static Location<'static>, tag: &'static str) -> Site {
        let key = (std::ptr::from_ref(site) as usize, tag.as_ptr() as usize);
        let slot = (key.0 >> 3 ^ key.1 >> 2) % KNOWN;
        let known = self.sites[slot];
        if (known.0, known.1) == key {
            return known.2;
        }
        let n = self.at.record.site(site, tag);
        self.sites[slot] = (key.0, key.1, n);
        n
    }

    /// The member at a place, if it has joined.
    #[inline]
    fn peer(&mut self, index: u32) -> Option<&Peer> {
        if self.peers.get(index as usize)?.is_none() {
            self.look();
        }
        self.peers[index as usize].as_ref()
    }

    #[cold]
    fn look(&mut self) {
        let joined = self.board.0.joined.load(SeqCst);
        // Other processes do not count here.
        if joined == self.looked && self.board.0.root.is_none() {
            return;
        }
        self.looked = joined;
        for s in self.board.records() {
            for index in 0..self.size {
                if self.peers[index as usize].is_some() || index == self.index {
                    continue;
                }
                if let Some((entry, at)) = s.record.find(self.key, index) {
                    let record = s.record.clone();
                    self.peers[index as usize] = Some(Peer { record, entry, at });
                }
            }
        }
    }

    /// Words that a caller gives.
    pub fn words(&self, words: &str) -> Purpose {
        self.at.record.words(words)
    }

    /// Records what is asked for in one call and compares it: the numbers of the first and last record. `about`: words of the caller's, or
    /// the default.
    pub fn enter(
        &mut self,
        stream: u32,
        members: &[Collective<'_>],
        site: &'static Location<'static>,
        tag: &'static str,
        about: Purpose,
    ) -> Result<(u64, u64)> {
        if self.failed()
            && let Some(e) = self.failure()
        {
            return Err(e);
        }
        self.at.record.owned();
        let site = self.site(site, tag);
        let purpose = match about.given() {
            true => about,
            false => self.at.record.now_step(),
        };
        let launch = self.at.record.launch();
        let first = self.at.record.head() + 1;
        for m in members {
            let mut print = Print::of(m, u64::from(self.size));
            print.purpose = match m {
                // A send and its receive are two lines as a rule.
                Collective::Send { .. } | Collective::Recv { .. } => purpose.at(site.tag),
                // Nothing is moved, so that barriers meet from any line.
                Collective::Barrier => about.at(0),
                _ => purpose.at(site.line),
            };
            let raw = Raw {
                print,
                entry: self.entry as u16,
                site: site.number,
                stream,
                launch,
                step: purpose.number(),
                plan: purpose.plan(),
                ..Raw::default()
            };
            if print.point_to_point() {
                self.message(raw)?;
                continue;
            }
            let asked = self.post(raw, m);
            if members.len() == 1 {
                self.check(asked, m)?;
            }
        }
        // All of a call is on record before any of it is judged.
        if members.len() > 1 {
            let point = |m: &&Collective<'_>| {
                !matches!(m, Collective::Send { .. } | Collective::Recv { .. })
            };
            let many = members.iter().filter(point).count() as u64;
            for (m, seq) in members.iter().filter(point).zip(self.count + 1 - many..) {
                let mine = self.region + slot(seq, self.index);
                let mine = self.at.record.word(mine).load(Relaxed);
                self.check(
                    Posted {
                        seq,
                        mine,
                        early: 0,
                    },
                    m,
                )?;
            }
        }
        Ok((first, self.at.record.head()))
    }

    /// They are on their stream.
    #[inline]
    pub fn enqueued(&self, numbers: (u64, u64), call: u64) {
        for n in numbers.0..=numbers.1 {
            self.at.record.enqueued(n, call);
        }
    }

    /// Writes a collective down.
    #[inline]
    fn post(&mut self, mut raw: Raw, c: &Collective<'_>) -> Posted {
        let seq = self.count + 1;
        // Lines are asked for before they are wanted: ours, which the neighbours have read since, for a later call; theirs while the record
        // is written.
        let slot = slot(seq, self.index);
        self.at
            .record
            .claim(self.region + self::slot(seq + 8, self.index));
        let next = self.next;
        let early = self.peers[next as usize].as_ref();
        let early = early.map_or(0, |p| {
            p.record.word(p.at + self::slot(seq, next)).load(Relaxed)
        });
        raw.seq = seq;
        self.count = seq;
        self.chain = mix(self.chain ^ raw.print.fingerprint());
        let record = &self.at.record;
        record.record(raw);
        let mine = stamped(seq, CHAIN, self.chain);
        match c {
            Collective::AllToAllV { counts, .. } => {
                self.post_splits(seq, &counts.send, &counts.recv);
            }
            Collective::AllGatherV { counts, .. } => self.post_splits(seq, &counts.recv, &[]),
            _ => {}
        }
        let record = &self.at.record;
        record
            .group_word(self.entry, GroupWord::Count)
            .store(seq, Relaxed);
        record.word(self.region + slot).store(mine, Release);
        Posted { seq, mine, early }
    }

    /// Compares it with the neighbours'.
    #[inline]
    fn check(&mut self, p: Posted, c: &Collective<'_>) -> Result<()> {
        let Posted { seq, mine, early } = p;
        let (next, last) = (self.next, self.last);
        if self.size > 1 {
            if early != mine {
                self.compare(next, seq, mine)?;
            }
            if last != next {
                self.compare(last, seq, mine)?;
            }
            if let Collective::AllToAllV { counts, .. } = c {
                self.compare_splits(seq, &counts.send, &counts.recv)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn compare(&mut self, with: u32, seq: u64, mine: u64) -> Result<()> {
        let Some(p) = self.peer(with) else {
            return Ok(());
        };
        let theirs = p.record.word(p.at + slot(seq, with));
        if theirs.load(Acquire) == mine {
            return Ok(());
        }
        // Of two neighbours that come at the same time at least one sees the other: both have written, and look once more behind this.
        fence(SeqCst);
        let theirs = theirs.load(Relaxed);
        if theirs == mine {
            return Ok(());
        }
        self.unequal(with, seq, theirs, mine)
    }

    /// The neighbour has not come yet, or differs, or never comes.
    fn unequal(&mut self, with: u32, seq: u64, theirs: u64, mine: u64) -> Result<()> {
        let key = self.key;
        let Some(p) = self.peer(with) else {
            return Ok(());
        };
        // A place that another communicator has taken over says nothing of this one.
        let same = p.record.group_word(p.entry, GroupWord::Key).load(Acquire) == key;
        let differs = same && theirs >> 48 == mine >> 48;
        // A destroyed communicator calls nothing more.
        let over = theirs >> 48 < mine >> 48 && p.record.group_life(p.entry).over();
        match (differs, over) {
            (false, false) => Ok(()),
            (true, _) => self.differs(seq),
            (_, true) => self.ended(with, Some(seq)),
        }
    }

    #[cold]
    fn differs(&self, seq: u64) -> Result<()> {
        let key = self.key;
        let find = |views: &[judge::View]| judge::mismatch(views, key, seq);
        let known = self.board.mismatch(&self.at, &find, key, seq);
        known.map_or(Ok(()), Err)
    }

    /// A member has left while others want it. `seq`: a collective this rank asks for; `None`: look at what has been asked for.
    #[cold]
    fn ended(&self, index: u32, seq: Option<u64>) -> Result<()> {
        let _one = super::lock(&self.board.0.judging);
        if let Some(v) = self.at.verdict().or_else(|| self.board.heard(&self.at)) {
            return Err(v.error());
        }
        let views = self.board.views();
        let members = judge::members(&views, self.key);
        let Some(gone) = members.iter().find(|m| m.index == index) else {
            return Ok(());
        };
        let reached = gone.entry.count;
        if !gone.entry.life.over() || gone.entry.failed || seq.is_some_and(|s| s <= reached) {
            return Ok(());
        }
        // The first one it does not come to, as somebody who is there has called it.
        let wanted = |o: &&super::CollectiveRecord| {
            o.key == self.key && !o.point_to_point() && o.seq == reached + 1
        };
        let op = members.iter().find_map(|m| m.view.ops.iter().find(wanted));
        let Some(op) = op else {
            return Ok(());
        };
        let verdict = super::stuck::ended(&views, op, gone);
        Err(self.board.pass(&self.at, verdict).error())
    }

    // --- sends and receives ---

    fn message(&mut self, mut raw: Raw) -> Result<()> {
        let peer = raw.print.peer;
        if peer >= self.size {
            // Refused by the code that knows the ranks; nothing is compared.
            self.at.record.record(raw);
            return Ok(());
        }
        let half = |send: bool| if send { 0 } else { PEER / 2 };
        let send = raw.print.kind == abi::COLL_SEND;
        let mine = self.region + CHAIN + peer as usize * PEER + half(send);
        let record = &self.at.record;
        let seq = record.word(mine).load(Relaxed) + 1;
        raw.seq = seq;
        record.record(raw);
        let stamp = stamped(seq, MESSAGES, raw.print.message());
        let slot = 1 + seq as usize % MESSAGES;
        record
            .group_word(self.entry, GroupWord::Messages)
            .store(1, Relaxed);
        record.word(mine + slot).store(stamp, SeqCst);
        record.word(mine).store(seq, SeqCst);
        let (me, key) = (self.index as usize, self.key);
        let Some(p) = self.peer(peer) else {
            return Ok(());
        };
        let other = p.at + CHAIN + me * PEER + half(!send);
        let theirs = p.record.word(other + slot).load(SeqCst);
        if theirs == stamp || theirs >> 48 != stamp >> 48 {
            return Ok(());
        }
        let (from, to) = match send {
            true => (me as u32, peer),
            false => (peer, me as u32),
        };
        let find = |views: &[judge::View]| judge::message(views, key, from, to, seq);
        let known = self.board.mismatch(&self.at, &find, key, 0);
        known.map_or(Ok(()), Err)
    }

    // --- counts of all_to_all_v ---

    fn post_splits(&self, seq: u64, send: &[u64], recv: &[u64]) {
        for peer in 0..self.size as usize {
            for (half, counts) in [send, recv].into_iter().enumerate() {
                let count = counts.get(peer).copied().unwrap_or(0);
                let word = self.at.record.count_word(self.region, peer, seq, half);
                word.store(stamped(seq * 64, 64, count), SeqCst);
            }
        }
    }

    fn compare_splits(&mut self, seq: u64, send: &[u64], recv: &[u64]) -> Result<()> {
        let (me, key) = (self.index, self.key);
        for peer in (0..self.size).filter(|p| *p != me) {
            let Some(p) = self.peer(peer) else {
                continue;
            };
            let theirs = |half| {
                p.record
                    .count_word(p.at, me as usize, seq, half)
                    .load(SeqCst)
            };
            let (sends, expects) = (theirs(0), theirs(1));
            let count = |list: &[u64]| list.get(peer as usize).copied().unwrap_or(0);
            let of_now = |word: u64| word >> 48 == stamped(seq * 64, 64, 0) >> 48;
            let odd = if of_now(sends) && sends & LOW48 != count(recv) {
                Some((peer, sends & LOW48, me, count(recv)))
            } else if of_now(expects) && expects & LOW48 != count(send) {
                Some((me, count(send), peer, expects & LOW48))
            } else {
                None
            };
            if let Some((from, sends, to, expects)) = odd {
                let find = |views: &[judge::View]| {
                    judge::splits(views, key, seq, from, sends, to, expects)
                };
                let known = self.board.mismatch(&self.at, &find, key, seq);
                return known.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }
}

impl Member {
    /// What is wrong with ending now: sends nobody receives, receives nobody sends.
    pub fn unmatched(&mut self) -> Option<Error> {
        for index in 0..self.size {
            let mine = self.region + CHAIN + index as usize * PEER;
            let (sent, received) = (
                self.at.record.word(mine).load(SeqCst),
                self.at.record.word(mine + PEER / 2).load(SeqCst),
            );
            let (me, own, key) = (self.index as usize, self.index, self.key);
            let (who, members) = (self.rank(), self.members.clone());
            let Some(p) = self.peer(index) else {
                continue;
            };
            let theirs = p.at + CHAIN + me * PEER;
            // The rank that ends last sees it: a sender may be gone before its message is.
            let waiting = p.record.word(theirs).load(SeqCst);
            // The place of a communicator that has ended may be another's by now.
            let its = p.record.group_word(p.entry, GroupWord::Key).load(SeqCst) == key;
            if its && waiting > received && index != own {
                let alone = || members.of(GroupRank(index));
                let name = p.record.rank().map_or_else(alone, JobRank);
                let mine = |o: &super::CollectiveRecord| {
                    let this = o.key == key && o.kind == abi::COLL_SEND;
                    this && o.peer == own && o.seq == received + 1
                };
                let place = p.record.ops().into_iter().find(mine);
                let place = place.map_or(String::new(), |o| format!(": {}", o.say()));
                let why = format!(
                    "{} ends with {} message(s) of {name} never received{place}",
                    who,
                    waiting - received
                );
                return Some(Error::new(Code::Comm, "checker", why));
            }
            if sent + received == 0 {
                continue;
            }
            let over = p.record.group_life(p.entry).over();
            let takes = p.record.word(theirs + PEER / 2).load(SeqCst);
            let gives = p.record.word(theirs).load(SeqCst);
            let name = p
                .record
                .rank()
                .map_or_else(|| members.of(GroupRank(index)), JobRank);
            let odd = if sent > takes && over {
                Some((
                    abi::COLL_SEND,
                    takes + 1,
                    sent - takes,
                    "sends to",
                    "never received",
                ))
            } else if received > gives && over {
                Some((
                    abi::COLL_RECV,
                    gives + 1,
                    received - gives,
                    "receives from",
                    "never sent",
                ))
            } else {
                None
            };
            if let Some((kind, seq, many, verb, what)) = odd {
                let ops = self.at.record.ops();
                let hit = |o: &&super::CollectiveRecord| {
                    o.key == self.key && o.kind == kind && o.peer == index && o.seq == seq
                };
                let place = ops
                    .iter()
                    .find(hit)
                    .map_or(String::new(), |o| format!(": {}", o.say()));
                let why = format!(
                    "{} {verb} {name} {many} time(s) more than that rank answers; {what}{place}",
                    self.rank()
                );
                return Some(Error::new(Code::Comm, "checker", why));
            }
        }
        None
    }

    /// The first thing asked for whose stream nobody has waited for since.
    pub fn unawaited(&self) -> Option<Error> {
        let ops = self.at.record.ops();
        let op = ops.iter().find(|o| o.key == self.key && !o.done)?;
        let why = format!(
            "{} ends without having waited for {}; call Stream::sync, or read its result",
            self.rank(),
            op.say()
        );
        Some(Error::new(Code::Comm, "checker", why))
    }

    /// A call on a communicator that is no more: who called what, where.
    pub fn refused(&self, c: Option<&Collective<'_>>, site: &Location<'_>, why: &str) -> Error {
        let what = c.map_or("group", Collective::name);
        let at = site.file();
        Error::new(
            Code::Aborted,
            "launch",
            format!("{} calls {what} at {at}:{} {why}", self.rank(), site.line()),
        )
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let failed = self
            .at
            .record
            .group_word(self.entry, GroupWord::Failed)
            .load(Acquire)
            != 0;
        self.at.record.leave(self.entry);
        if failed {
            return;
        }
        // A neighbour that has asked for more than we ever will is notified now, not when it notices.
        let (n, me) = (self.size, self.index);
        for with in [(me + 1) % n, (me + n - 1) % n] {
            let count = self.count;
            let ahead = self.peer(with).is_some_and(|p| {
                let theirs = p.record.group_word(p.entry, GroupWord::Count).load(SeqCst);
                theirs > count && !p.record.group_life(p.entry).over()
            });
            if with != me && ahead && self.ended(me, None).is_err() {
                return;
            }
        }
    }
}
