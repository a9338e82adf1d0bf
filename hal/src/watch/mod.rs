//! The collective checker (as MUST for MPI, but always on): every rank's calls are recorded and compared with its
//! neighbours' before a byte moves, and when ranks cannot continue together, one message on all of them says why.
//!
//! A [`CheckerState`] is the state that the ranks of a job share: a record for each rank (`RankRecord`), in memory of the process or
//! in files that the processes of a host map. A communicator writes each collective into its rank's record and compares
//! a rolling hash with those of its two neighbours in the group. Every pair of neighbours is compared by the rank that
//! comes second, and a collective needs all ranks, so nothing is moved by one that does not match. A host thread that
//! waits notes it in its record; when nothing has moved for a moment, it searches for a deadlock itself. No lock is
//! taken and nothing is allocated unless something is wrong.
//!
//! Compared are kind, element type, length, reduction, root, counts, and the purpose ([`Purpose`]); not the contents.
//! The parts of composed collectives are not seen, only the collective that was called.

mod collective_record;
pub mod crash;
pub mod death_watch;
mod distant;
mod doing;
mod flight;
mod host_name;
mod judge;
mod late;
mod member;
mod names;
mod purpose;
mod rank_record;
mod recall;
mod stuck;
mod waits;
mod words;

pub use collective_record::CollectiveRecord;
pub use distant::{Answers, Distant, Reply};
pub use flight::{Flight, RankFlight};
pub use host_name::{HostName, addresses, interfaces};
pub use judge::{Fault, Verdict};
pub(crate) use member::{Mark, Member};
pub use purpose::Purpose;

use crate::comm::WeakAbort;
use crate::error::{Code, Error, Result};
use crossweave_plugin::Members;
use judge::View;
use rank_record::{GroupWord, RANK_WORDS, RankRecord};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use words::Words;

/// How long the judge waits for ranks that are still on their way to a collective others differ in: a majority names the culprit.
const ARRIVAL: Duration = Duration::from_secs(2);
/// A rank that has waited for so long (in nanoseconds) is not on its way.
const STANDING: u64 = 500_000_000;
/// A wait shorter than this is below the reporting threshold. Longer than a tick of the kernel: a wait that would end before the next one sets a timer of
/// its own, which takes 3 to 12 us of the caller and, on a virtual machine, of the rank that computes beside it.
const SHORT: Duration = Duration::from_millis(6);
/// Between processes a message may be on its way without either end knowing.
const QUIET: Duration = Duration::from_millis(300);
/// How long a failure without a reason waits for another rank's sentence.
const LINGER: Duration = Duration::from_millis(300);
/// Seats of ranks that have ended and are still remembered.
const REMEMBERED: usize = 64;

/// Called for each launch on the communicators of a device, before it and after: fault injection, traces.
pub trait Observer: Send + Sync {
    /// What is about to be enqueued. An error refuses it.
    ///
    /// # Errors
    /// Whatever the caller shall see in place of the collective.
    fn before(&self, comm: &str, ops: &[crate::Collective<'_>], tag: &str) -> Result<()>;
    /// It was enqueued, or refused.
    fn after(&self, _comm: &str, _ops: &[crate::Collective<'_>], _tag: &str, _result: &Result<()>) {
    }
}

struct Occupied {
    record: Arc<RankRecord>,
    /// All its operations up to this number were seen to be done by the last search.
    settled: AtomicU64,
    /// Its rank runs under a schedule: while it waits for others outside the device, nobody comes.
    turns: AtomicBool,
    /// What releases every rank that waits in it.
    aborts: Mutex<Vec<WeakAbort>>,
    verdict: Mutex<Option<Verdict>>,
    /// Until when its failures wait for another rank's sentence; set by the first since it joined a communicator.
    lingers: Mutex<Option<Instant>>,
}

struct Inner {
    records: RwLock<Vec<Arc<Occupied>>>,
    /// Shared by the processes of the job, if there are several.
    root: Option<Words>,
    folder: Option<PathBuf>,
    /// Grows with every communicator that joins.
    joined: AtomicU64,
    /// One verdict is made at a time.
    judging: Mutex<()>,
    /// The state of all records at the last search for a deadlock.
    searched: AtomicU64,
    /// The way to ranks that have no record here.
    reach: Mutex<Option<Arc<distant::Reach>>>,
}

/// What the ranks of a job share for checking each other. Clones share it.
#[derive(Clone)]
pub struct CheckerState(Arc<Inner>);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for CheckerState {
    fn default() -> CheckerState {
        CheckerState::new(None, None)
    }
}

impl CheckerState {
    fn new(root: Option<Words>, folder: Option<PathBuf>) -> CheckerState {
        CheckerState(Arc::new(Inner {
            records: RwLock::default(),
            root,
            folder,
            joined: AtomicU64::new(0),
            judging: Mutex::default(),
            searched: AtomicU64::new(0),
            reach: Mutex::default(),
        }))
    }

    fn records(&self) -> Vec<Arc<Occupied>> {
        let records = self.0.records.read();
        records.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A record for a rank of this process.
    fn sit(&self) -> io::Result<Arc<Occupied>> {
        let record = RankRecord::new(Words::private(RANK_WORDS)?);
        Ok(self.place(record))
    }

    fn place(&self, record: RankRecord) -> Arc<Occupied> {
        let new = Arc::new(Occupied {
            record: Arc::new(record),
            settled: AtomicU64::new(0),
            turns: AtomicBool::new(false),
            aborts: Mutex::default(),
            verdict: Mutex::default(),
            lingers: Mutex::default(),
        });
        let mut records = self
            .0
            .records
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let ended = records.iter().filter(|s| s.record.life().over()).count();
        if ended > REMEMBERED {
            records.retain(|s| !s.record.life().over());
        }
        records.push(new.clone());
        new
    }

    /// What every rank shows.
    fn views(&self) -> Vec<View> {
        self.records().iter().map(|s| view(&s.record, 1)).collect()
    }

    /// The records that have to do with this one: through groups they share, and groups those share.
    fn related(&self, to: &RankRecord) -> Vec<Arc<Occupied>> {
        let records = self.records();
        let live = |s: &RankRecord| -> Vec<u64> {
            let entries = s.entries().into_iter();
            entries
                .filter(|(_, e)| !e.failed)
                .map(|(_, e)| e.key)
                .collect()
        };
        let keys: Vec<Vec<u64>> = records.iter().map(|s| live(&s.record)).collect();
        let mut known: Vec<u64> = live(to);
        let mut taken = vec![false; records.len()];
        loop {
            let hit = |i: &usize| {
                let own = std::ptr::eq(&*records[*i].record, to);
                !taken[*i] && (own || keys[*i].iter().any(|k| known.contains(k)))
            };
            let Some(i) = (0..records.len()).find(hit) else {
                break;
            };
            taken[i] = true;
            known.extend(&keys[i]);
        }
        let all = records.into_iter().zip(taken);
        let mut all: Vec<_> = all.filter_map(|(s, t)| t.then_some(s)).collect();
        all.sort_by_key(|s| s.record.rank());
        all
    }

    /// Passes a verdict on everybody who has to do with `from`: the first one made stays, and all get it.
    fn pass(&self, from: &Arc<Occupied>, verdict: Verdict) -> Verdict {
        let verdict = match &self.0.root {
            Some(root) => shared_verdict(self, root, from, verdict),
            None => verdict,
        };
        let related = self.related(&from.record);
        // Everybody knows it before anybody is released.
        for s in &related {
            s.judge(&verdict);
        }
        for s in &related {
            s.release();
        }
        verdict
    }

    /// The verdict of another process, if there is one: it becomes ours.
    fn heard(&self, at: &Arc<Occupied>) -> Option<Verdict> {
        let root = self.0.root.as_ref()?;
        let by = root[ROOT_VERDICT].load(Acquire);
        if by == 0 || at.verdict().is_some() {
            return None;
        }
        let records = self.records();
        let author = records
            .iter()
            .find(|s| s.record.rank().map(u64::from) == Some(by - 1))?;
        let (sentence, meta) = author.record.published()?;
        let verdict = Verdict::from_parts(sentence, meta);
        for s in records.iter().filter(|s| s.record.own()) {
            s.judge(&verdict);
            s.release();
        }
        Some(verdict)
    }

    /// Waits until every member of the group has come to its `seq`-th collective, or shows that it does not.
    fn await_members(&self, key: u64, seq: u64) {
        let until = Instant::now() + ARRIVAL;
        loop {
            let mut open = false;
            let mut known = 0;
            let mut size = 0;
            for s in self.records() {
                for (_, e) in s.record.entries().iter().filter(|(_, e)| e.key == key) {
                    (known, size) = (known + 1, e.size);
                    // A short wait may be for the collective before.
                    let waits =
                        |w: rank_record::Wait| words::now().saturating_sub(w.since) > STANDING;
                    let waits = s.record.wait().is_some_and(waits);
                    let idle = waits || s.record.life().over() || e.life.over();
                    open |= e.count < seq && !idle;
                }
            }
            if (!open && known >= size) || Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// Two neighbours differ: makes the verdict, or finds that somebody has made it.
    fn mismatch(
        &self,
        at: &Arc<Occupied>,
        find: &dyn Fn(&[View]) -> Option<Verdict>,
        key: u64,
        seq: u64,
    ) -> Option<Error> {
        if !at.turns.load(Relaxed) {
            self.await_members(key, seq);
        }
        let _one = lock(&self.0.judging);
        if let Some(v) = at.verdict().or_else(|| self.heard(at)) {
            return Some(v.error());
        }
        let verdict = find(&self.views())?;
        Some(self.pass(at, verdict).error())
    }

    /// Looks for a deadlock among `related`, once for each state of them. `quiet`: nothing has moved since.
    fn search(&self, at: &Arc<Occupied>, related: &[Arc<Occupied>], quiet: u64) -> Option<Error> {
        if self.0.searched.swap(quiet, AcqRel) == quiet {
            return None;
        }
        // Who waits for nothing but work must not be kept from it.
        if !waits::may_be_stuck(related.iter().map(|s| &*s.record)) {
            return None;
        }
        let views: Vec<View> = related.iter().map(|s| s.open()).collect();
        let verdict = stuck::deadlock(&views)?;
        // What moved meanwhile was seen half before and half after.
        if pulse(related) != quiet {
            return None;
        }
        let _one = lock(&self.0.judging);
        if let Some(v) = at.verdict().or_else(|| self.heard(at)) {
            return Some(v.error());
        }
        Some(self.pass(at, verdict).error())
    }

    /// A failure that nothing explains may be what another rank's timeout has left behind: that rank is about to say so. Each wait on a failed
    /// stream fails, of each buffer too that is given back, and what the first has not heard the next will not hear.
    fn linger(&self, at: &Arc<Occupied>) -> Option<Verdict> {
        let until = *lock(&at.lingers).get_or_insert_with(|| Instant::now() + LINGER);
        loop {
            let said = at.verdict().or_else(|| self.heard(at));
            if said.is_some() || Instant::now() > until {
                return said;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What all ranks did last, for a post-mortem.
    pub fn flight(&self) -> Flight {
        let records = self.records();
        Flight::of(records.iter().map(|s| (&*s.record, s.verdict())))
    }

    /// Where a rank was seen last: `its last call was all_reduce of … 0.2 s ago`.
    pub fn last_call(&self, rank: u32) -> Option<String> {
        let records = self.records();
        let at = records.iter().find(|s| s.record.rank() == Some(rank))?;
        // The very last record may be half written: its rank may have died over it. The whole ring would be read for longer than some
        // launchers leave to any process that asks.
        let op = at
            .record
            .ops_from(at.record.head().saturating_sub(3))
            .pop()?;
        let host = match at.record.wait() {
            Some(_) => ", and its host waited",
            None => "",
        };
        Some(format!(
            "its last call was {} {}{host}",
            op.say(),
            judge::age(op.at)
        ))
    }

    /// The verdict that ended the job, if one did.
    pub fn verdict(&self) -> Option<Verdict> {
        self.records().iter().find_map(|s| s.verdict())
    }
}

// Places of the words all processes share.
const ROOT_WORDS: usize = 512;
const ROOT_VERDICT: usize = 0;

/// Between processes one verdict wins: that of the process which enters its rank first.
fn shared_verdict(
    board: &CheckerState,
    root: &Words,
    from: &Arc<Occupied>,
    verdict: Verdict,
) -> Verdict {
    from.record.publish(&verdict.sentence, verdict.meta());
    let me = u64::from(from.record.rank().unwrap_or(0)) + 1;
    match root[ROOT_VERDICT].compare_exchange(0, me, AcqRel, Acquire) {
        Ok(_) => verdict,
        Err(by) if by == me => verdict,
        Err(_) => board.heard(from).unwrap_or(verdict),
    }
}

/// A board whose records are files in shared memory, for the processes of one host.
impl CheckerState {
    /// Takes the places of this process, which is `ranks` of the job. `folder` is one all processes of the host see and nobody else uses
    /// (shared memory, `/dev/shm`); it is made if it is not there. Call [`CheckerState::rendezvous`] when all have.
    ///
    /// # Errors
    /// The folder cannot be written to, or another process has one of these ranks.
    pub fn in_folder(folder: &Path, ranks: Range<u32>) -> Result<CheckerState> {
        let io = |e: io::Error| {
            let why = format!(
                "the collective checker cannot use {}: {e}",
                folder.display()
            );
            Error::new(Code::Internal, "checker", why)
        };
        std::fs::create_dir_all(folder).map_err(io)?;
        let at = folder.join("job");
        let root = match Words::create(&at, ROOT_WORDS) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => open_soon(&at, ROOT_WORDS),
            made => made,
        };
        let board = CheckerState::new(Some(root.map_err(io)?), Some(folder.into()));
        for rank in ranks {
            let words = Words::create(&folder.join(format!("rank{rank}")), RANK_WORDS);
            let record = RankRecord::new(words.map_err(io)?);
            record.set_rank(rank);
            board.place(record);
        }
        Ok(board)
    }

    /// Opens the places of the host's other processes, `ranks`, which have all taken them.
    ///
    /// # Errors
    /// One that is not there.
    pub fn rendezvous(&self, ranks: &[u32]) -> Result<()> {
        let Some(folder) = &self.0.folder else {
            return Ok(());
        };
        for rank in ranks {
            if self
                .records()
                .iter()
                .any(|s| s.record.rank() == Some(*rank))
            {
                continue;
            }
            let at = folder.join(format!("rank{rank}"));
            let words = open_soon(&at, RANK_WORDS).map_err(|e| {
                let why = format!("rank {rank} has no place in the collective checker: {e}");
                Error::new(Code::Internal, "checker", why)
            })?;
            self.place(RankRecord::of_other(words));
        }
        Ok(())
    }
}

/// A file that is being made: it is there before it has its length.
fn open_soon(at: &Path, len: usize) -> io::Result<Words> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match Words::open(at, len) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// Changes whenever one of these ranks does something.
fn pulse(records: &[Arc<Occupied>]) -> u64 {
    let each = records.iter().map(|s| s.record.pulse());
    each.fold(records.len() as u64, |h, p| collective_record::mix(h ^ p))
}

/// What a rank shows, of its operations those from `first`.
fn view(record: &RankRecord, first: u64) -> View {
    View {
        rank: record.rank(),
        pid: record.pid(),
        life: record.life(),
        wait: record.wait(),
        depends: record.depends(),
        entries: record.entries(),
        ops: record.ops_from(first),
    }
}

impl Occupied {
    /// What it shows of what may not be done, and of what it did last.
    fn open(&self) -> View {
        let view = view(&self.record, self.settled.load(Relaxed) + 1);
        let open = view.ops.iter().find(|o| !o.done).or(view.ops.last());
        if let Some(op) = open {
            self.settled.fetch_max(op.number - 1, Relaxed);
        }
        view
    }

    fn verdict(&self) -> Option<Verdict> {
        match self.record.judged.load(Acquire) {
            true => lock(&self.verdict).clone(),
            false => None,
        }
    }
    /// Notes the verdict; its communicators take no more.
    fn judge(&self, v: &Verdict) {
        if !self.record.own() {
            return;
        }
        lock(&self.verdict).get_or_insert_with(|| v.clone());
        self.record.judged.store(true, Release);
        for (n, _) in self.record.entries() {
            self.record
                .group_word(n, GroupWord::Failed)
                .store(1, Release);
        }
    }
    /// Releases every rank that waits.
    fn release(&self) {
        let aborts = std::mem::take(&mut *lock(&self.aborts));
        // Each is tried; one that cannot be aborted has failed itself. All before any goes: this may be the last that holds one, whose end
        // waits for what it has in flight, maybe behind another's.
        let all: Vec<_> = aborts.iter().filter_map(WeakAbort::get).collect();
        for a in &all {
            let _ = a.release();
        }
    }
}

/// Where a device sits. Counted as one, by itself: the counts of the board are all ranks' and go from core to core.
struct Place {
    board: CheckerState,
    at: Arc<Occupied>,
}

/// A device's place on the board: taken with its first communicator.
#[derive(Default)]
pub(crate) struct Watch {
    on: AtomicBool,
    off: AtomicBool,
    turns: AtomicBool,
    place: Mutex<Option<Arc<Place>>>,
    rank: Mutex<Option<u32>>,
    observer: Mutex<Option<Arc<dyn Observer>>>,
}

impl Watch {
    /// Its rank in the job, for messages.
    pub fn set_rank(&self, rank: u32) {
        *lock(&self.rank) = Some(rank);
        if let Some(place) = &*lock(&self.place) {
            place.at.record.set_rank(rank);
        }
    }
    /// Nothing of this device is recorded from now on.
    pub fn switch_off(&self) {
        self.off.store(true, Relaxed);
    }
    /// Its rank runs under a schedule, one thread of the job at a time.
    pub fn in_turns(&self) {
        self.turns.store(true, Relaxed);
    }
    /// The last operation it was asked for, with where and for what.
    pub fn last_call(&self) -> Option<String> {
        let place = self.place()?;
        place.at.record.ops_from(u64::MAX).pop().map(|op| op.say())
    }
    pub fn observe(&self, o: Option<Arc<dyn Observer>>) {
        *lock(&self.observer) = o;
    }
    pub fn observer(&self) -> Option<Arc<dyn Observer>> {
        lock(&self.observer).clone()
    }
    /// Its place, once it has one.
    #[inline]
    fn place(&self) -> Option<Arc<Place>> {
        match self.on.load(Acquire) {
            true => lock(&self.place).clone(),
            false => None,
        }
    }
    /// A step of the plan, for [`Watch::set_step`].
    pub fn step(&self, at: u32, name: &str, meets: &str) -> Purpose {
        let known = self.place().map(|p| p.at.record.step(at, name, meets));
        known.unwrap_or_default()
    }
    pub fn set_step(&self, step: Purpose) {
        if !self.on.load(Acquire) {
            return;
        }
        if let Some(place) = &*lock(&self.place) {
            place.at.record.set_step(step);
        }
    }

    /// A communicator of this device joins: `key` is what all its members and nobody else call it; then the size of the group, and
    /// the group rank.
    pub fn join(
        &self,
        board: &CheckerState,
        key: u64,
        name: &str,
        members: &Members,
        size_and_rank: (u32, u32),
    ) -> Option<Member> {
        if self.off.load(Relaxed) {
            return None;
        }
        let mut place = lock(&self.place);
        if place.is_none() {
            let rank = *lock(&self.rank);
            // Between processes the record was made when they met.
            let own =
                |s: &Arc<Occupied>| s.record.own() && rank.is_some() && s.record.rank() == rank;
            let at = match board
                .records()
                .into_iter()
                .find(own)
                .filter(|_| board.0.root.is_some())
            {
                Some(at) => at,
                // Without memory for it a rank goes unwatched.
                None => board.sit().ok()?,
            };
            if let Some(r) = rank {
                at.record.set_rank(r);
            }
            at.turns.store(self.turns.load(Relaxed), Relaxed);
            let board = board.clone();
            *place = Some(Arc::new(Place { board, at }));
            self.on.store(true, Release);
        }
        let own = place.clone()?;
        drop(place);
        *lock(&own.at.lingers) = None;
        Member::join(
            own.board.clone(),
            own.at.clone(),
            key,
            name,
            members,
            size_and_rank,
        )
    }

    /// Waits by `wait`, which takes a limit, for `stream` to pass its call `target`: in short pieces, so that a deadlock is found while it
    /// lasts.
    pub fn wait(
        &self,
        stream: u32,
        target: u64,
        wait: &dyn Fn(Option<Duration>) -> Result<()>,
    ) -> Result<()> {
        let Some(place) = self.place() else {
            return wait(None);
        };
        let (board, at) = (&place.board, &place.at);
        let began = Instant::now();
        let done = piece(wait, began, SHORT);
        let result = match done {
            Piece::Over(r) => r.map_err(|e| self.why(e, began.elapsed())),
            Piece::NotYet => {
                let mine = at.record.mine();
                if mine {
                    at.record.block(stream, target);
                }
                let r = watch_over(board, at, mine, wait);
                // Until it is known why, it counts as one that waits: others that a timeout has ended too are looking at it.
                let r = r.map_err(|e| self.why(e, began.elapsed()));
                if mine {
                    at.record.unblock();
                }
                r
            }
        };
        result.inspect(|()| at.record.passed_with(stream, target))
    }

    /// A failure that a verdict has caused, or that it explains, is reported as the verdict.
    pub fn explain(&self, e: Error) -> Error {
        self.why(e, Duration::ZERO)
    }

    /// The same behind a wait of this length.
    fn why(&self, e: Error, waited: Duration) -> Error {
        let Some(place) = self.place() else {
            return e;
        };
        let (board, at) = (&place.board, &place.at);
        if e.at == "checker" || !matches!(e.code, Code::Comm | Code::Aborted | Code::Timeout) {
            return e;
        }
        match at.verdict().or_else(|| board.heard(at)) {
            Some(v) => v.error(),
            // A wait that the caller has bounded is over, and nobody is late for it.
            None if e.code == Code::Timeout && !e.sticky && waited.is_zero() => {
                board.ask(at, e, false, |s| stuck::left(&s.views, s.own))
            }
            None if e.code == Code::Timeout => {
                let within = match waited {
                    Duration::ZERO => "in time".to_string(),
                    some => format!("in time ({:.1} s)", some.as_secs_f64()),
                };
                board.ask(at, e, true, |s| late::late(s, &within))
            }
            // A plugin that has learnt of a rank's end may speak before anybody has looked: the records say what the rank did not come to. Of
            // what this rank has aborted itself nobody else is to blame.
            None if e.code == Code::Comm || !at.record.aborts() => {
                // What a transport calls a fault of the other side may be two that do not run the same program.
                let far = e.code == Code::Comm && !at.turns.load(Relaxed);
                let e = board.ask(at, e, far, |s| {
                    s.mismatch().or_else(|| stuck::left(&s.views, s.own))
                });
                match e.at == "checker" || at.turns.load(Relaxed) {
                    true => e,
                    false => board.linger(at).map_or(e, |v| v.error()),
                }
            }
            None => e,
        }
    }

    /// A stream waits for another: what it does after its call `after` comes behind call `upto` of `on`.
    pub fn depend(&self, stream: u32, after: u64, on: u32, upto: u64) {
        if let Some(place) = self.place() {
            place.at.record.depend(rank_record::Depend {
                stream,
                after,
                on,
                upto,
            });
        }
    }

    /// The device closes.
    pub fn end(&self) {
        if let Some(place) = self.place() {
            place.at.record.end();
        }
    }
}

enum Piece {
    Over(Result<()>),
    NotYet,
}

/// One bounded wait. A collective's own timeout is distinguished from the piece's: a failed stream stays failed.
fn piece(wait: &dyn Fn(Option<Duration>) -> Result<()>, began: Instant, limit: Duration) -> Piece {
    match wait(Some(limit)) {
        Err(e) if e.code == Code::Timeout && !e.sticky && began.elapsed() >= limit / 2 => {
            Piece::NotYet
        }
        r => Piece::Over(r),
    }
}

/// Waits on, looking for a deadlock whenever all ranks have stood still for a moment, and for a verdict others have made.
fn watch_over(
    board: &CheckerState,
    at: &Arc<Occupied>,
    mine: bool,
    wait: &dyn Fn(Option<Duration>) -> Result<()>,
) -> Result<()> {
    let apart = board.0.root.is_some();
    let began = Instant::now();
    let related = board.related(&at.record);
    let mut still = (pulse(&related), Instant::now());
    loop {
        // Within a process the last rank to wait sees at once that all do. Coming back takes a core from those that work: seldom.
        if mine
            && (!apart || still.1.elapsed() >= QUIET)
            && let Some(e) = board.search(at, &related, still.0)
        {
            return Err(drained(wait, e));
        }
        let pause = match began.elapsed().as_millis() {
            0..40 => 8,
            _ => 20,
        };
        if let Piece::Over(r) = piece(wait, Instant::now(), Duration::from_millis(pause)) {
            return r;
        }
        if let Some(v) = at.verdict().or_else(|| board.heard(at)) {
            return Err(drained(wait, v.error()));
        }
        let now = pulse(&related);
        if now != still.0 {
            still = (now, Instant::now());
        }
    }
}

/// The wait is over when the stream is: its memory may be freed next. Everything it waits for has been aborted.
fn drained(wait: &dyn Fn(Option<Duration>) -> Result<()>, e: Error) -> Error {
    let _ = wait(None);
    e
}
