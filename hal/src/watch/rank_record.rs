//! What one rank shows the others: its last operations, where its groups stand, what its host waits for. Written by the rank, read by all.
//!
//! | words | what |
//! |---|---|
//! | head | rank, operations recorded, state, what the host thread waits for |
//! | sites | file, line, column and tag of each call site, by value |
//! | ring | the last [`RING`] operations, a cache line each |
//! | groups | one entry a communicator: key, size, place, operations so far |
//! | verdict | the sentence that ended the job, for other processes |
//! | steps | names of plan steps, and words of callers |
//! | seq | the stream's call that carries each operation of the ring, once it is enqueued, and the number of its plan step |
//! | depends | waits of streams for others |
//! | rest | per communicator: a rolling hash of its last [`CHAIN`] collectives, and counters per peer |

use super::collective_record::{RECORD, Raw, hash};
use super::names::{Site, text_from, text_to};
use super::words::{Words, now, thread, tid};
use crossweave_plugin::{GroupRank, JobRank, Members};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Operations a rank remembers.
pub(super) const RING: usize = 1024;
/// Collectives of one communicator that a slower neighbour can still be compared with one by one; beyond, the rolling hash decides.
pub(super) const CHAIN: usize = 512;
/// Streams whose progress is known one by one.
pub(super) const STREAMS: usize = 64;
pub(super) const SITES: usize = 512;
pub(super) const SITE: usize = 16;
pub(super) const STEPS: usize = 4096;
pub(super) const STEP: usize = 8;
/// Communicators of a rank that have a place each; later ones take the places of those that have ended.
pub(super) const GROUPS: usize = 256;
const GROUP: usize = 32;
/// Words per peer of a communicator.
pub(super) const PEER: usize = 32;
/// Among the words of a peer: its rank in the job, and one.
const RANK_OF: usize = 13;
/// Messages per direction that can be compared one by one.
pub(super) const MESSAGES: usize = 8;
/// Collectives whose counts per rank are kept.
const COUNTED: u64 = 4;

// Places of the head.
const RANK: usize = 1;
const HEAD: usize = 2;
const STATE: usize = 3;
const BLOCK: usize = 4;
const BLOCK_STREAM: usize = 5;
const BLOCK_TARGET: usize = 6;
const BLOCK_SINCE: usize = 7;
const OWNER: usize = 8;
const MANY: usize = 9;
const PID: usize = 10;
const LAUNCHES: usize = 11;
pub(super) const NOW_STEP: usize = 12;
pub(super) const VERDICT_LEN: usize = 13;
pub(super) const VERDICT_META: usize = 14;
/// Communicators left and waits between streams: counted, so that a change is seen.
const CHANGES: usize = 15;
const DEPENDS: usize = 16;
/// Entries of groups that have ever been taken: those beyond need not be looked at.
const USED: usize = 17;
/// The thread that asks for operations, as the system numbers it.
const TID: usize = 18;
pub(super) const NOW_PLAN: usize = 19;
const DONE: usize = 64;

pub(super) const SITES_AT: usize = 256;
const RING_AT: usize = SITES_AT + SITES * SITE;
const GROUPS_AT: usize = RING_AT + RING * RECORD;
pub(super) const VERDICT_AT: usize = GROUPS_AT + GROUPS * GROUP;
pub(super) const VERDICT_WORDS: usize = 1024;
pub(super) const STEPS_AT: usize = VERDICT_AT + VERDICT_WORDS;
const SEQ_AT: usize = STEPS_AT + STEPS * STEP;
const DEPENDS_AT: usize = SEQ_AT + RING;
/// A word of `seq` has the call in its low bits and the plan step above.
const CALL_BITS: u32 = 40;
const CALL: u64 = (1 << CALL_BITS) - 1;
/// Waits between streams that are remembered.
const MANY_DEPENDS: usize = 256;
const DEPEND: usize = 4;
const REST_AT: usize = DEPENDS_AT + MANY_DEPENDS * DEPEND;
/// Words of a record: address space; what is not used is not memory.
pub(super) const RANK_WORDS: usize = 1 << 19;

// Places of a group's entry. What changes with every collective has a line of its own.
const G_KEY: usize = 0;
const G_SIZE: usize = 1;
const G_STATE: usize = 2;
const G_AT: usize = 3;
const G_FAILED: usize = 4;
/// Has a message been asked for?
const G_MESSAGES: usize = 5;
const G_NAME: usize = 8;
const G_COUNT: usize = 16;

/// How a rank or one of its communicators stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Life {
    Free,
    Live,
    Ended,
    Panicked,
    /// Aborted by its own rank, which still has it.
    Aborted,
}

impl Life {
    fn of(word: u64) -> Life {
        match word {
            1 => Life::Live,
            2 => Life::Ended,
            3 => Life::Panicked,
            4 => Life::Aborted,
            _ => Life::Free,
        }
    }
    /// Can it never do anything more?
    pub fn over(self) -> bool {
        matches!(self, Life::Ended | Life::Panicked | Life::Aborted)
    }
}

/// Who drives a rank, in the system's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub pid: u32,
    pub tid: u64,
}

/// A wait of a rank's host thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wait {
    pub stream: u32,
    /// It ends when the stream has passed this call.
    pub target: u64,
    pub since: u64,
}

/// What `stream` does after its call `after` comes behind call `upto` of stream `on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Depend {
    pub stream: u32,
    pub after: u64,
    pub on: u32,
    pub upto: u64,
}

/// One communicator of a rank, as it stands in the record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub key: u64,
    pub name: String,
    pub size: u32,
    pub index: u32,
    /// By group rank: which rank of the job each member is.
    job: Vec<u32>,
    pub life: Life,
    pub failed: bool,
    /// Collectives asked for so far.
    pub count: u64,
    /// Sends to and receives from each peer so far.
    pub sent: Vec<u64>,
    pub received: Vec<u64>,
}

impl Entry {
    /// Which rank of the job a member of the communicator is.
    pub fn rank_of(&self, member: GroupRank) -> JobRank {
        let known = self.job.get(member.0 as usize);
        JobRank(known.copied().unwrap_or(member.0))
    }
    /// The members, as ranks of the job.
    pub fn ranks(&self) -> impl Iterator<Item = JobRank> + '_ {
        (0..self.size).map(|m| self.rank_of(GroupRank(m)))
    }
    /// The same communicator as it stands for a member of whom nothing is known.
    pub fn unknown(&self, member: GroupRank) -> Entry {
        Entry {
            index: member.0,
            life: Life::Live,
            failed: false,
            count: 0,
            sent: vec![0; self.size as usize],
            received: vec![0; self.size as usize],
            ..self.clone()
        }
    }
}

/// One communicator of a rank, in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    pub key: u64,
    /// Collectives asked for so far.
    pub count: u64,
    /// Has it been asked for messages too?
    pub messages: bool,
}

/// One rank's place.
pub(crate) struct RankRecord {
    pub(super) words: Words,
    /// A rank of this process writes it; else it is only read.
    own: bool,
    book: Mutex<Book>,
    /// Has a verdict been passed on it?
    pub(super) judged: AtomicBool,
}

/// What the writer keeps for itself.
#[derive(Default)]
pub(super) struct Book {
    pub sites: HashMap<(usize, u32, u32, usize), Site>,
    pub steps: HashMap<String, u16>,
    /// Words of the region each group entry has.
    regions: Vec<(usize, usize)>,
    next: usize,
}

impl RankRecord {
    /// A new one in fresh memory.
    pub fn new(words: Words) -> RankRecord {
        words[PID].store(u64::from(std::process::id()), Relaxed);
        words[STATE].store(1, Release);
        RankRecord {
            words,
            own: true,
            book: Mutex::default(),
            judged: AtomicBool::new(false),
        }
    }

    /// Another process's.
    pub fn of_other(words: Words) -> RankRecord {
        RankRecord {
            words,
            own: false,
            book: Mutex::default(),
            judged: AtomicBool::new(false),
        }
    }

    pub fn own(&self) -> bool {
        self.own
    }
    pub(super) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    /// A word of this rank will be written soon: its line is fetched, from the core that has read it last, behind what happens meanwhile.
    #[inline]
    pub fn claim(&self, at: usize) {
        self.words.claim(at);
    }

    // --- who and how ---

    /// Rank in the job, where somebody has said it.
    pub fn rank(&self) -> Option<u32> {
        self.words[RANK]
            .load(Relaxed)
            .checked_sub(1)
            .map(|r| r as u32)
    }
    pub fn set_rank(&self, rank: u32) {
        self.words[RANK].store(u64::from(rank) + 1, Relaxed);
    }
    pub fn life(&self) -> Life {
        Life::of(self.words[STATE].load(Acquire))
    }
    pub fn end(&self) {
        let how = if std::thread::panicking() { 3 } else { 2 };
        self.words[STATE].store(how, Release);
    }
    /// Operations recorded so far.
    pub fn head(&self) -> u64 {
        self.words[HEAD].load(Acquire)
    }
    pub fn pid(&self) -> u32 {
        self.words[PID].load(Relaxed) as u32
    }
    /// Its process and the thread that asks for operations, 0 where there is none.
    pub fn host(&self) -> Host {
        let many = self.words[MANY].load(Relaxed) != 0;
        let tid = self.words[TID].load(Relaxed);
        Host {
            pid: self.pid(),
            tid: if many { 0 } else { tid },
        }
    }

    // --- the host thread ---

    /// The calling thread asks for operations of this rank.
    #[inline]
    pub fn owned(&self) {
        let me = thread();
        let owner = &self.words[OWNER];
        match owner.load(Relaxed) {
            o if o == me => {}
            0 => {
                self.words[TID].store(tid(), Relaxed);
                owner.store(me, Relaxed);
            }
            // Several threads: what one of them waits for says nothing about the rank.
            _ => self.words[MANY].store(1, Relaxed),
        }
    }
    /// Is the calling thread the one that asks for this rank's operations?
    pub fn mine(&self) -> bool {
        self.own
            && self.words[OWNER].load(Relaxed) == thread()
            && self.words[MANY].load(Relaxed) == 0
    }
    pub fn block(&self, stream: u32, target: u64) {
        let w = &self.words;
        w[BLOCK_STREAM].store(u64::from(stream), Relaxed);
        w[BLOCK_TARGET].store(target, Relaxed);
        w[BLOCK_SINCE].store(now(), Relaxed);
        w[BLOCK].store(w[BLOCK].load(Relaxed) | 1, SeqCst);
    }
    pub fn unblock(&self) {
        // Odd while blocked; the next wait has another number.
        let at = self.words[BLOCK].load(Relaxed);
        self.words[BLOCK].store((at | 1) + 1, SeqCst);
    }
    /// What its host thread waits for.
    pub fn wait(&self) -> Option<Wait> {
        let w = &self.words;
        let epoch = w[BLOCK].load(SeqCst);
        let wait = Wait {
            stream: w[BLOCK_STREAM].load(Relaxed) as u32,
            target: w[BLOCK_TARGET].load(Relaxed),
            since: w[BLOCK_SINCE].load(Relaxed),
        };
        let many = w[MANY].load(Relaxed) != 0;
        (epoch & 1 == 1 && !many && w[BLOCK].load(SeqCst) == epoch).then_some(wait)
    }
    /// Changes whenever the rank does something.
    pub fn pulse(&self) -> u64 {
        let w = &self.words;
        let parts = [STATE, HEAD, BLOCK, CHANGES, DEPENDS].map(|at| w[at].load(SeqCst));
        super::collective_record::hash(&parts)
    }
    /// The stream has passed everything up to this call.
    pub fn passed(&self, stream: u32, upto: u64) {
        if let Some(w) = self
            .words
            .get(DONE + stream as usize)
            .filter(|_| (stream as usize) < STREAMS)
        {
            w.fetch_max(upto, Release);
        }
    }
    pub fn done(&self, stream: u32) -> u64 {
        match (stream as usize) < STREAMS {
            true => self.words[DONE + stream as usize].load(Acquire),
            false => 0,
        }
    }

    /// A stream waits for another.
    pub fn depend(&self, d: Depend) {
        let n = self.words[DEPENDS].load(Relaxed);
        let at = DEPENDS_AT + n as usize % MANY_DEPENDS * DEPEND;
        let words = [u64::from(d.stream), d.after, u64::from(d.on), d.upto];
        for (to, from) in self.words[at..].iter().zip(words) {
            to.store(from, Relaxed);
        }
        self.words[DEPENDS].store(n + 1, SeqCst);
    }
    fn each_depend(&self) -> impl Iterator<Item = Depend> + '_ {
        let n = (self.words[DEPENDS].load(SeqCst) as usize).min(MANY_DEPENDS);
        (0..n).map(|i| {
            let w = &self.words[DEPENDS_AT + i * DEPEND..];
            Depend {
                stream: w[0].load(Relaxed) as u32,
                after: w[1].load(Relaxed),
                on: w[2].load(Relaxed) as u32,
                upto: w[3].load(Relaxed),
            }
        })
    }
    /// Those whose end has not been seen.
    pub fn depends(&self) -> Vec<Depend> {
        let open = |d: &Depend| d.upto > self.done(d.on);
        self.each_depend().filter(open).collect()
    }
    /// The host has waited for a stream, and so for what that has waited for, and so on.
    pub fn passed_with(&self, stream: u32, upto: u64) {
        if self.words[DEPENDS].load(SeqCst) == 0 {
            return self.passed(stream, upto);
        }
        let mut reach = [0u64; STREAMS];
        let Some(first) = reach.get_mut(stream as usize) else {
            return;
        };
        *first = upto;
        let mut changed = true;
        while changed {
            changed = false;
            for d in self.each_depend() {
                let from = reach.get(d.stream as usize).copied().unwrap_or(0);
                let to = reach.get_mut(d.on as usize);
                if let Some(to) = to.filter(|to| from > d.after && **to < d.upto) {
                    *to = d.upto;
                    changed = true;
                }
            }
        }
        for (s, upto) in reach.iter().enumerate().filter(|(_, upto)| **upto > 0) {
            self.passed(s as u32, *upto);
        }
    }

    // --- the ring ---

    /// A number for what is enqueued in one call.
    #[inline]
    pub fn launch(&self) -> u64 {
        let n = self.words[LAUNCHES].load(Relaxed) + 1;
        self.words[LAUNCHES].store(n, Relaxed);
        n
    }

    /// Writes the next record. Always inlined: a record that goes through memory is stored in small pieces and read in larger ones, for which
    /// a processor waits until all that was stored before has left it.
    #[inline(always)]
    pub fn record(&self, mut raw: Raw) -> u64 {
        raw.at = now();
        let number = self.words[HEAD].load(Relaxed) + 1;
        let at = RING_AT + number as usize % RING * RECORD;
        // The next but one is fetched, which nobody has touched for long: what follows may wait for all that was written.
        self.words
            .claim(RING_AT + (number as usize + 2) % RING * RECORD);
        self.words.claim(SEQ_AT + (number as usize + 8) % RING);
        let slot = &self.words[at..at + RECORD];
        // Readers take a record whose number is the same before and after they read the rest.
        slot[0].store(0, Relaxed);
        let plan = u64::from(raw.plan) << CALL_BITS;
        self.words[SEQ_AT + number as usize % RING].store(plan, Relaxed);
        fence(Release);
        for (to, from) in slot[1..].iter().zip(raw.pack()) {
            to.store(from, Relaxed);
        }
        slot[0].store(number, Release);
        self.words[HEAD].store(number, Release);
        number
    }

    /// What a rank sends each other one in the `seq`-th collective of a communicator, and what it expects (`half`): where it is written down.
    #[inline]
    pub fn count_word(&self, region: usize, peer: usize, seq: u64, half: usize) -> &AtomicU64 {
        let round = 1 + MESSAGES + (seq % COUNTED) as usize;
        &self.words[region + CHAIN + peer * PEER + half * (PEER / 2) + round]
    }
    /// The counts of an all_gather_v, if they are the ones of this hash.
    pub(super) fn counts(&self, entry: u16, seq: u64, splits: u64) -> Vec<u64> {
        const LOW48: u64 = (1 << 48) - 1;
        let g = &self.words[GROUPS_AT + usize::from(entry) % GROUPS * GROUP..][..GROUP];
        let (size, region) = (g[G_SIZE].load(Relaxed) >> 32, g[G_AT].load(Relaxed));
        let end = region as usize + CHAIN + size as usize * PEER;
        if end > self.words.len() {
            return vec![];
        }
        let one = |r| self.count_word(region as usize, r, seq, 0).load(Acquire) & LOW48;
        let counts: Vec<u64> = (0..size as usize).map(one).collect();
        match hash(&counts) == splits {
            true => counts,
            false => vec![],
        }
    }

    /// The stream's call that ends an operation, 0 while it is being enqueued; and its step of the plan, as [`super::Purpose`] has it.
    pub(super) fn carried(&self, number: u64) -> (u64, u32) {
        let word = self.words[SEQ_AT + number as usize % RING].load(Acquire);
        (word & CALL, (word >> CALL_BITS) as u32)
    }
    /// The operation is on its stream: its work ends with this call.
    #[inline]
    pub fn enqueued(&self, number: u64, call: u64) {
        let word = &self.words[SEQ_AT + number as usize % RING];
        let plan = word.load(Relaxed) & !CALL;
        word.store(plan | (call & CALL), Release);
    }

    pub(super) fn raw(&self, number: u64) -> Option<Raw> {
        let at = RING_AT + number as usize % RING * RECORD;
        let slot = &self.words[at..at + RECORD];
        let whole = |order| slot[0].load(order) == number;
        if !whole(Acquire) {
            return None;
        }
        let mut words = [0; RECORD - 1];
        for (to, from) in words.iter_mut().zip(&slot[1..]) {
            *to = from.load(Relaxed);
        }
        fence(Acquire);
        whole(Relaxed).then(|| Raw::unpack(words))
    }

    // --- groups ---

    /// Makes an entry for a communicator: its number and where its own words begin. `None` when there is no room: it goes unwatched.
    pub fn join(&self, key: u64, name: &str, size: u32, index: u32) -> Option<(usize, usize)> {
        let need = CHAIN + PEER * size as usize;
        let mut book = self.book();
        if book.next == 0 {
            book.next = REST_AT;
        }
        let (n, at) = (book.regions.len(), book.next);
        let entry = if n < GROUPS && at + need <= RANK_WORDS {
            book.next = (at + need).next_multiple_of(8);
            book.regions.push((at, need));
            n
        } else {
            // The place of one that has ended.
            (0..n).find(|e| {
                let life = Life::of(self.words[GROUPS_AT + e * GROUP + G_STATE].load(Relaxed));
                matches!(life, Life::Ended | Life::Panicked) && book.regions[*e].1 >= need
            })?
        };
        let (region, words) = book.regions[entry];
        let g = GROUPS_AT + entry * GROUP;
        self.words[g + G_KEY].store(0, SeqCst);
        for w in &self.words[region..region + words] {
            w.store(0, Relaxed);
        }
        let text = &name.as_bytes()[..name.len().min(56)];
        text_to(&self.words[g + G_NAME + 1..g + G_COUNT], text);
        self.words[g + G_NAME].store(text.len() as u64, Relaxed);
        self.words[g + G_SIZE].store(u64::from(size) << 32 | u64::from(index), Relaxed);
        self.words[g + G_AT].store(region as u64, Relaxed);
        self.words[g + G_FAILED].store(0, Relaxed);
        self.words[g + G_MESSAGES].store(0, Relaxed);
        self.words[g + G_COUNT].store(0, Relaxed);
        self.words[g + G_STATE].store(1, Relaxed);
        // A rank that begins anew is no rank that has ended.
        self.words[STATE].store(1, Release);
        self.words[USED].fetch_max(entry as u64 + 1, SeqCst);
        self.words[g + G_KEY].store(key, SeqCst);
        Some((entry, region))
    }

    /// Writes down which ranks of the job the members of a communicator are.
    pub fn set_members(&self, region: usize, size: u32, members: &Members) {
        for m in 0..size {
            let word = &self.words[region + CHAIN + m as usize * PEER + RANK_OF];
            word.store(u64::from(members.of(GroupRank(m)).0) + 1, Relaxed);
        }
    }

    /// Where the words of member `index` of the communicator begin, if it is here: entry and region.
    pub fn find(&self, key: u64, index: u32) -> Option<(usize, usize)> {
        (0..self.used()).find_map(|e| {
            let g = &self.words[GROUPS_AT + e * GROUP..][..GROUP];
            let hit = g[G_KEY].load(SeqCst) == key && g[G_SIZE].load(Relaxed) as u32 == index;
            hit.then(|| (e, g[G_AT].load(Relaxed) as usize))
        })
    }
    #[inline]
    pub fn group_word(&self, entry: usize, what: GroupWord) -> &AtomicU64 {
        let at = match what {
            GroupWord::Key => G_KEY,
            GroupWord::State => G_STATE,
            GroupWord::Failed => G_FAILED,
            GroupWord::Messages => G_MESSAGES,
            GroupWord::Count => G_COUNT,
        };
        &self.words[GROUPS_AT + entry * GROUP + at]
    }
    #[inline]
    pub fn group_life(&self, entry: usize) -> Life {
        Life::of(self.group_word(entry, GroupWord::State).load(Acquire))
    }
    /// Has its rank aborted one of its communicators?
    pub fn aborts(&self) -> bool {
        (0..self.used()).any(|e| self.group_life(e) == Life::Aborted)
    }
    /// Its own rank gives the communicator of this key up: it asks for nothing more, and still learns of every failure. Nothing where another
    /// communicator has the place by now; under the lock that it would take the place with, so that it cannot come between.
    pub fn abort(&self, entry: usize, key: u64) {
        let _book = self.book();
        if self.group_word(entry, GroupWord::Key).load(SeqCst) != key {
            return;
        }
        let state = self.group_word(entry, GroupWord::State);
        if state.compare_exchange(1, 4, SeqCst, SeqCst).is_ok() {
            self.words[CHANGES].fetch_add(1, SeqCst);
        }
    }
    /// The communicator is destroyed here.
    pub fn leave(&self, entry: usize) {
        let how = if std::thread::panicking() { 3 } else { 2 };
        self.group_word(entry, GroupWord::State).store(how, SeqCst);
        self.words[CHANGES].fetch_add(1, SeqCst);
    }

    pub fn entry(&self, n: usize) -> Option<Entry> {
        let g = self
            .words
            .get(GROUPS_AT + n * GROUP..GROUPS_AT + (n + 1) * GROUP)?;
        let key = g[G_KEY].load(SeqCst);
        if key == 0 || n >= GROUPS {
            return None;
        }
        let size = (g[G_SIZE].load(Relaxed) >> 32) as u32;
        let at = g[G_AT].load(Relaxed) as usize + CHAIN;
        let all = self.words.get(at..at + size as usize * PEER)?;
        let counts = |first: usize| {
            let each = all.chunks(PEER).map(|p| p[first].load(SeqCst));
            each.collect::<Vec<u64>>()
        };
        let job = |(m, p): (u32, &[AtomicU64])| {
            let said = p[RANK_OF].load(Relaxed).checked_sub(1);
            said.map_or(m, |r| r as u32)
        };
        Some(Entry {
            key,
            job: (0..).zip(all.chunks(PEER)).map(job).collect(),
            name: text_from(&g[G_NAME + 1..G_COUNT], g[G_NAME].load(Relaxed) as usize),
            size,
            index: g[G_SIZE].load(Relaxed) as u32,
            life: Life::of(g[G_STATE].load(SeqCst)),
            failed: g[G_FAILED].load(Relaxed) != 0,
            count: g[G_COUNT].load(SeqCst),
            sent: counts(0),
            received: counts(PEER / 2),
        })
    }
    /// All its communicators, those that have ended too.
    pub fn entries(&self) -> Vec<(usize, Entry)> {
        (0..self.used())
            .filter_map(|n| Some((n, self.entry(n)?)))
            .collect()
    }
    fn used(&self) -> usize {
        (self.words[USED].load(SeqCst) as usize).min(GROUPS)
    }
    /// What has been asked for in its communicators, in numbers: those that have failed left out.
    pub fn tallies(&self) -> impl Iterator<Item = Tally> + '_ {
        (0..self.used()).filter_map(|n| {
            let g = &self.words[GROUPS_AT + n * GROUP..][..GROUP];
            let key = g[G_KEY].load(SeqCst);
            (key != 0 && g[G_FAILED].load(Relaxed) == 0).then(|| Tally {
                key,
                count: g[G_COUNT].load(SeqCst),
                messages: g[G_MESSAGES].load(Relaxed) != 0,
            })
        })
    }
}

/// A word of a group's entry that others look at.
#[derive(Clone, Copy)]
pub(super) enum GroupWord {
    Key,
    State,
    Failed,
    Messages,
    Count,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::collective_record::Print;
    use std::panic::Location;

    fn record() -> RankRecord {
        RankRecord::new(Words::private(RANK_WORDS).unwrap())
    }

    #[test]
    fn the_ring_keeps_the_last_operations_whole() {
        let s = record();
        let (entry, _) = s.join(77, "dp", 2, 1).unwrap();
        let site = s.site(Location::caller(), "grad").number;
        let step = s.step(70_017, "reduce unit 3", "reduce unit 3");
        for n in 1..=RING as u64 + 10 {
            let print = Print {
                kind: 1,
                dtype: crossweave_abi::DType::F32.id(),
                count: n,
                ..Print::default()
            };
            let entry = entry as u16;
            let raw = Raw {
                print,
                entry,
                seq: n,
                site,
                launch: s.launch(),
                step: step.number(),
                plan: step.plan(),
                ..Raw::default()
            };
            let number = s.record(raw);
            s.enqueued(number, 2 * n);
        }
        let ops = s.ops();
        assert_eq!(ops.len(), RING);
        let last = ops.last().unwrap();
        assert_eq!(
            (last.number, last.count),
            (RING as u64 + 10, RING as u64 + 10)
        );
        assert!(last.site.contains("rank_record.rs:"), "{}", last.site);
        assert_eq!((&*last.tag, &*last.step), ("grad", "70017 reduce unit 3"));
        assert_eq!(&*last.group, "dp");
        assert!(!last.done);
        s.passed(0, last.call);
        assert!(s.ops().iter().all(|o| o.done));
    }

    /// 96 layers with 32 micro-batches at ZeRO stage 3 gather and reduce about 10,000 times; many of these steps read alike.
    #[test]
    fn a_long_plan_keeps_the_names_of_all_its_steps() {
        let s = record();
        let (entry, _) = s.join(77, "dp", 2, 1).unwrap();
        let texts: Vec<String> = (0..300).map(|u| format!("+{u}")).collect();
        for at in (0..100_000u32).step_by(7) {
            let text = &texts[at as usize % texts.len()];
            let step = s.step(at, text, text);
            s.set_step(step);
            assert_eq!(s.now_step(), step);
            let number = s.record(Raw {
                entry: entry as u16,
                step: step.number(),
                plan: step.plan(),
                ..Raw::default()
            });
            s.enqueued(number, 9);
            assert_eq!(s.carried(number).0, 9);
            let op = &s.ops_from(number)[0];
            assert_eq!(&*op.step, format!("{at} {text}"));
        }
    }

    #[test]
    fn communicators_without_number_come_and_go_in_one_seat() {
        let s = record();
        for key in 1..2000 {
            let (entry, _) = s.join(key, "g", 4, 0).unwrap();
            assert!(s.find(key, 0).is_some());
            s.leave(entry);
        }
        for key in 5000..5000 + GROUPS as u64 {
            s.join(key, "g", 4, 0).unwrap();
        }
        assert!(
            s.join(9999, "g", 4, 0).is_none(),
            "all places are taken by living ones"
        );
    }

    #[test]
    fn an_abort_that_comes_late_leaves_the_rank_that_has_the_place_by_then_alone() {
        let s = record();
        for key in 1..=GROUPS as u64 {
            s.join(key, "g", 4, 0).unwrap();
        }
        let (entry, _) = s.find(3, 0).unwrap();
        s.leave(entry);
        let (again, _) = s.join(5000, "g", 4, 0).unwrap();
        assert_eq!(again, entry);
        s.abort(entry, 3);
        assert_eq!(s.group_life(entry), Life::Live);
        s.abort(entry, 5000);
        assert_eq!(s.group_life(entry), Life::Aborted);
    }

    #[test]
    fn a_wait_is_seen_while_it_lasts() {
        let s = record();
        s.owned();
        assert!(s.mine() && s.wait().is_none());
        let before = s.pulse();
        s.block(3, 9);
        let w = s.wait().unwrap();
        assert_eq!((w.stream, w.target), (3, 9));
        assert_ne!(before, s.pulse());
        s.unblock();
        assert!(s.wait().is_none());
        // A second thread that asks for operations makes waits of the first say nothing.
        s.block(3, 9);
        std::thread::scope(|t| t.spawn(|| s.owned()).join().unwrap());
        assert!(s.wait().is_none() && !s.mine());
    }
}
