//! One collective of one rank: publish, arrive, compare what everyone published, do the own share, and leave together.
//!
//! Every rank does 1/n of the work (the *owner computes*): it reads its part of every input in rank order and writes the result into every
//! output, so all ranks hold identical bits. Inputs of at most [`SMALL`] bytes are copied into double-buffered slots instead; then every
//! rank computes its own output and the closing barrier falls away: a slot is reused two rounds later, when everyone has long read it.
//! Nobody touches another's buffers then, so a small round needs no common decision to go ahead either.
//!
//! Each rank says on a line of its own that it has come, and looks at the others'. That is one message between cores where a common counter is
//! three, and what is published travels in the line that says so. Lines alternate, and the next one is fetched for writing ahead of its round.

use super::reduce::{self, Sum};
use super::transfer::{BLOCK, Stores, claim, demote, push};
use super::world::{Cause, Patience, World};
use crossweave_abi::*;
use crossweave_plugin::collective::{Checked, Counts, kind_name, reduce_name};
use crossweave_plugin::{Code, Error, GroupRank, Result};
use smallvec::{SmallVec, smallvec};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Ranks up to which a round allocates nothing.
const FEW: usize = 8;
type Few = SmallVec<[*mut u8; FEW]>;

/// Bytes of input up to which copying in is cheaper than a second barrier.
pub(super) const SMALL: usize = 1024;

/// What must be equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    kind: u32,
    dtype: DType,
    reduce: u32,
    root: u32,
    count: u64,
}

impl std::fmt::Display for Print {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} x {}",
            kind_name(self.kind),
            self.count,
            self.dtype.name()
        )?;
        if self.reduce != 0 {
            write!(f, " {}", reduce_name(self.reduce))?;
        }
        if matches!(self.kind, COLL_BROADCAST | COLL_REDUCE) {
            write!(f, " root {}", self.root)?;
        }
        Ok(())
    }
}

/// What a rank shows the others.
#[derive(Clone, Copy)]
struct Posted {
    print: Print,
    send: *const u8,
    recv: *mut u8,
    scale: f64,
    /// Alive until the closing barrier; small rounds have none.
    counts: *const Counts,
}

#[repr(align(64))]
struct Inbox([u8; SMALL]);

/// Something on cache lines on which nothing else is written; two, which the processor fetches as a pair.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Line<T>(pub(super) T);

/// In [`Card::arrived`]: the rank arrives no more.
const FROZEN: u64 = 1 << 63;

/// What a rank shows in the rounds of one parity, in one cache line: who sees that it has come has all of it.
#[repr(C)]
struct Card {
    /// The last round of this parity it has arrived at, counted from 1, and [`FROZEN`].
    arrived: AtomicU64,
    posted: UnsafeCell<MaybeUninit<Posted>>,
}
const _: () = assert!(size_of::<Card>() <= 64);

impl Default for Card {
    fn default() -> Card {
        Card {
            arrived: AtomicU64::new(0),
            posted: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

/// A rank's place in the world, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Slot {
    pub(super) joined: AtomicBool,
    pub(super) gone: AtomicBool,
    cards: [Line<Card>; 2],
    /// Rounds with a closing barrier that this rank has done its share of, the odd and the even ones.
    through: [Line<AtomicU64>; 2],
    inbox: UnsafeCell<[Inbox; 2]>,
}
// SAFETY: the cells of parity p are written by their rank before it arrives at a round of that parity and read by others after all have
// arrived; the next write of that parity comes two rounds later, when all have arrived once more and so are done reading. A rank whose
// round has failed finds the world failed before it would write again.
unsafe impl Sync for Slot {}
// SAFETY: as above; the addresses in it are used only between the two barriers of their round.
unsafe impl Send for Slot {}

impl Slot {
    fn card(&self, round: u64) -> &AtomicU64 {
        &self.cards[(round & 1) as usize].0.arrived
    }

    pub(super) fn arrived(&self, round: u64) -> bool {
        self.card(round).load(SeqCst) & !FROZEN > round
    }

    /// Says so, unless the card is frozen.
    pub(super) fn arrive(&self, round: u64) -> bool {
        let card = self.card(round);
        let before = card.load(Relaxed);
        // Nobody else changes the count, so that it fails only when the card freezes in between.
        before & FROZEN == 0
            && card
                .compare_exchange(before, round + 1, SeqCst, Relaxed)
                .is_ok()
    }

    fn closed(&self, closed: u64) -> &AtomicU64 {
        &self.through[(closed & 1) as usize].0
    }

    /// From now on it does not arrive; had it before? A small round's arrival may still thaw the card, but who waits for that rank in
    /// another kind of round finds them different and touches nothing.
    pub(super) fn freeze(&self, round: u64) -> bool {
        self.card(round).fetch_or(FROZEN, SeqCst) & !FROZEN > round
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            joined: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            cards: Default::default(),
            through: Default::default(),
            inbox: UnsafeCell::new([Inbox([0; SMALL]), Inbox([0; SMALL])]),
        }
    }
}

/// Where one rank stands: rounds begun, and those of them that end with a barrier. Only the launch whose turn it is touches it, and passes it
/// on with the turn.
#[derive(Default)]
pub(super) struct Place {
    round: AtomicU64,
    closed: AtomicU64,
}

fn next(count: &AtomicU64) -> u64 {
    let n = count.load(Relaxed) + 1;
    count.store(n, Relaxed);
    n
}

/// Says "through" also when the work panics: the others wait for it unconditionally.
struct Through<'a>(&'a AtomicU64, u64);
impl Drop for Through<'_> {
    fn drop(&mut self) {
        self.0.store(self.1, Release);
    }
}

impl World {
    /// Takes part in the next collective. The caller calls [`World::spoken`] before it waits for anything else.
    pub(super) fn round(
        &self,
        rank: usize,
        place: &Place,
        op: &Checked,
        patience: &Patience<'_>,
    ) -> Result<()> {
        // Who has failed writes nothing more: others may still read what it has shown them in a small round.
        self.health()?;
        let n = self.ranks();
        let round = place.round.load(Relaxed);
        let parity = (round & 1) as usize;
        let mine = &self.slots[rank];
        let print = Print {
            kind: op.kind,
            dtype: op.dtype,
            reduce: op.reduce,
            root: op.root as u32,
            count: op.count,
        };
        let input = op.bytes(match op.kind {
            COLL_REDUCE_SCATTER | COLL_ALL_TO_ALL => op.count * n as u64,
            _ => op.count,
        });
        let small = input <= SMALL
            && matches!(
                op.kind,
                COLL_ALL_REDUCE
                    | COLL_REDUCE_SCATTER
                    | COLL_ALL_GATHER
                    | COLL_ALL_TO_ALL
                    | COLL_BROADCAST
                    | COLL_REDUCE
                    | COLL_BARRIER
            );
        let mut send = op.send;
        // SAFETY: see `Slot`: between our passing the last round and our arriving at this one, nobody else touches this parity.
        unsafe {
            if small && input > 0 && !send.is_null() {
                let inbox = (*mine.inbox.get())[parity].0.as_mut_ptr();
                // A broadcast is read at the root only; elsewhere `send` may be an output.
                if op.kind != COLL_BROADCAST || rank == op.root {
                    std::ptr::copy_nonoverlapping(send, inbox, input);
                }
                send = inbox;
            }
            let counts = op.counts.as_deref();
            (*mine.cards[parity].0.posted.get()).write(Posted {
                print,
                send,
                recv: op.recv,
                // The span was checked, and the host orders its writer before us.
                scale: op.factor(),
                counts: counts.map_or(std::ptr::null(), std::ptr::from_ref),
            });
        }
        if small {
            mine.cards[parity].0.arrived.store(round + 1, Release);
            // Said first: to be seen early is worth more than to be found near.
            demote(send, if send == op.send { 0 } else { input });
        } else {
            self.arrive(rank, round)?;
        }
        next(&place.round);
        self.gather(rank, round, small, &print, patience)?;

        // All are in: from here on everyone goes through, whatever happens elsewhere. Of a small round only this rank does, for itself.
        let mut all: SmallVec<[Posted; FEW]> = self
            .slots
            .iter()
            // SAFETY: see `Slot`: every rank has written this parity before it arrived.
            .map(|s| unsafe { (*s.cards[parity].0.posted.get()).assume_init() })
            .collect();
        if let Err(e) = self.agree(&all, round) {
            self.fail(e);
            // When only counts differ, the others read ours for the same comparison: nobody leaves before all have. Otherwise nobody reads any,
            // and for a rank whose round is a small one the others would wait in vain.
            if !small && all.iter().all(|p| p.print == print) {
                self.through(rank, place, || ());
            }
            return self.health();
        }
        // The next round is likely to be like this one, and nobody reads its parity any more.
        claim(std::ptr::from_ref(&mine.cards[1 - parity]).cast(), 1);
        if small {
            // SAFETY: only the address is taken.
            let inbox = unsafe { &raw const (*mine.inbox.get())[1 - parity] };
            claim(inbox.cast(), input);
            // Our own we read where it is: the others are taking our inbox out of our cache.
            all[rank].send = op.send;
            // SAFETY: every other input lies in an inbox that stays unchanged until two rounds later; we write our own output only.
            unsafe { small_share(rank, op, &all) };
            return Ok(());
        }
        self.through(rank, place, || {
            // SAFETY: all ranks stay until all are through, and the shares are disjoint.
            unsafe { share(rank, op, &all) };
        });
        Ok(())
    }

    /// Does `work`, says so, and waits until all ranks have done theirs.
    fn through(&self, rank: usize, place: &Place, work: impl FnOnce()) {
        let closed = next(&place.closed);
        let mine = self.slots[rank].closed(closed);
        claim(std::ptr::from_ref(mine).cast(), 1);
        let through = Through(mine, closed);
        work();
        drop(through);
        let done = |s: &Slot| s.closed(closed).load(SeqCst) >= closed;
        let what = || format!("waits in {} for the shares of the others", self.name);
        self.wait(&|| self.slots.iter().all(done), &what);
    }

    /// Waits until all ranks have arrived.
    fn gather(
        &self,
        rank: usize,
        round: u64,
        small: bool,
        print: &Print,
        patience: &Patience<'_>,
    ) -> Result<()> {
        let ready = || self.all_in(round);
        let absent = |s: &Slot| !s.arrived(round);
        let gone = || {
            let away = |s: &Slot| s.gone.load(SeqCst) && absent(s);
            self.slots.iter().position(away)
        };
        let waits = || {
            let missing = self.members.list(self.listed(absent));
            format!(
                "waits in {} for {missing}: {print}, collective {round}",
                self.name
            )
        };
        let Some(cause) = self.wait_or(&ready, &self.reason(patience, gone), &waits) else {
            return Ok(());
        };
        let what = format!("{print} (collective {round})");
        let e = match cause {
            Cause::Failed => None,
            Cause::Gone(r) => Some(
                self.error(
                    Code::Comm,
                    format!(
                        "{} destroyed its communicator while {} waited in {what}",
                        self.members.of(r),
                        self.members.of(rank)
                    ),
                )
                .peer(r.into()),
            ),
            Cause::Abandoned => Some(
                self.error(
                    Code::Aborted,
                    format!(
                        "{} destroyed its stream while it waited in {what}",
                        self.members.of(rank)
                    ),
                )
                .peer(rank.into()),
            ),
            Cause::Late => {
                let missing = self.listed(absent);
                let never = self.listed(|s| !s.joined.load(SeqCst));
                let joined = if never.is_empty() {
                    String::new()
                } else {
                    format!(" ({} never joined)", self.members.list(never))
                };
                Some(
                    self.error(
                        Code::Timeout,
                        format!(
                            "{} did not come to {what} within {:?}{joined}",
                            self.members.list(missing.iter().copied()),
                            patience.timeout
                        ),
                    )
                    .peer(missing.first().copied().unwrap_or(GroupRank(0))),
                )
            }
        };
        if let Some(e) = e {
            self.fail(e);
        }
        // The last rank may have come just before: then the round was decided, and holds.
        let decided = if small { ready() } else { self.freeze(round) };
        if decided { Ok(()) } else { self.health() }
    }

    /// Every rank makes the same comparison and so finds the same sentence.
    fn agree(&self, all: &[Posted], round: u64) -> Result<()> {
        let sentence = |a: usize, da: String, b: usize, db: String| -> Error {
            self.error(
                Code::Comm,
                format!(
                    "collective {round} differs: {} calls {da}, {} calls {db}",
                    self.members.of(a),
                    self.members.of(b)
                ),
            )
            .peer(b.into())
        };
        if let Some(r) = all.iter().position(|p| p.print != all[0].print) {
            let text = |p: &Posted| p.print.to_string();
            return Err(sentence(0, text(&all[0]), r, text(&all[r])));
        }
        let kind = all[0].print.kind;
        if !matches!(kind, COLL_ALL_TO_ALL_V | COLL_ALL_GATHER_V) {
            return Ok(());
        }
        let text = |what: &str, c: u64, other: usize| {
            let other = self.members.of(other);
            format!("{} {what} {c} for {other}", kind_name(kind))
        };
        for from in 0..all.len() {
            for to in 0..all.len() {
                // SAFETY: `*_v` rounds end with a barrier, so the counts of every rank live until we are through.
                let (f, t) = unsafe { (&*all[from].counts, &*all[to].counts) };
                let sends = match kind {
                    COLL_ALL_GATHER_V => f.recv[from],
                    _ => f.send[to],
                };
                if sends != t.recv[from] {
                    return Err(sentence(
                        from,
                        text("sending", sends, to),
                        to,
                        text("receiving", t.recv[from], from),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Rank `r`'s part of `count` elements, cut at cache lines.
fn part(count: u64, r: usize, n: usize) -> (u64, u64) {
    let each = count.div_ceil(n as u64).next_multiple_of(64);
    let cut = |i: u64| (i * each).min(count);
    (cut(r as u64), cut(r as u64 + 1))
}

/// # Safety
/// The others' inputs are in inboxes; `op`'s output is this rank's.
unsafe fn small_share(rank: usize, op: &Checked, all: &[Posted]) {
    let n = all.len();
    let size = op.bytes(1).max(1);
    // SAFETY: the request checked the output for what is written here, and an inbox holds every input.
    unsafe {
        match op.kind {
            COLL_ALL_REDUCE => total(op, all, 0, &[op.recv], 0, op.count, Stores::Plain),
            COLL_REDUCE if rank == op.root => {
                total(op, all, 0, &[op.recv], 0, op.count, Stores::Plain)
            }
            COLL_REDUCE_SCATTER => {
                let skip = rank * op.count as usize * size;
                total(op, all, skip, &[op.recv], 0, op.count, Stores::Plain)
            }
            COLL_ALL_GATHER => {
                let bytes = op.bytes(op.count);
                for (j, p) in all.iter().enumerate().take(n).filter(|_| bytes > 0) {
                    push(p.send, &[op.recv.add(j * bytes)], bytes, Stores::Plain);
                }
            }
            COLL_ALL_TO_ALL if op.count > 0 => {
                let each = op.bytes(op.count);
                for (j, p) in all.iter().enumerate() {
                    let source = p.send.add(rank * each);
                    push(source, &[op.recv.add(j * each)], each, Stores::Plain);
                }
            }
            COLL_BROADCAST if op.count > 0 => push(
                all[op.root].send,
                &[op.recv],
                op.bytes(op.count),
                Stores::Plain,
            ),
            _ => {}
        }
    }
}

/// Sums elements `from..to` of all inputs (each `skip` bytes in) into all `outputs`, at the same element positions.
///
/// # Safety
/// The inputs hold `skip` bytes and `to` elements, the outputs `to` elements.
unsafe fn total(
    op: &Checked,
    all: &[Posted],
    skip: usize,
    outputs: &[*mut u8],
    from: u64,
    to: u64,
    stores: Stores,
) {
    if from >= to {
        return;
    }
    // SAFETY: forwarded.
    let sources: SmallVec<[(*const u8, f64); FEW]> = all
        .iter()
        .map(|p| (unsafe { p.send.add(skip) }, p.scale))
        .collect();
    // What has just been read is in the caches: to write it past them would only throw it out first.
    let read = |o: &*mut u8| sources.iter().any(|(s, _)| *s == o.cast_const());
    let stores = match outputs.iter().all(read) {
        true => Stores::Plain,
        false => stores,
    };
    let sum = Sum {
        dtype: op.dtype,
        reduce: op.reduce,
        sources: &sources,
        outputs,
        stores,
    };
    // SAFETY: forwarded.
    unsafe { reduce::run(&sum, from as usize, to as usize) };
}

/// This rank's share of a large round.
///
/// # Safety
/// All ranks are between the barriers of the round, with spans checked for equal prints.
unsafe fn share(rank: usize, op: &Checked, all: &[Posted]) {
    let n = all.len();
    let bytes = |count: u64| op.bytes(count);
    let stores = Stores::for_traffic(2 * n * bytes(op.count));
    let outputs = || -> Few { all.iter().map(|p| p.recv).collect() };
    // SAFETY: forwarded; each arm writes only what this rank owns in this round.
    unsafe {
        match op.kind {
            COLL_ALL_REDUCE | COLL_REDUCE => {
                let (from, to) = part(op.count, rank, n);
                let to_all = match op.kind {
                    COLL_REDUCE => smallvec![all[op.root].recv],
                    _ => outputs(),
                };
                total(op, all, 0, &to_all, from, to, stores);
            }
            COLL_REDUCE_SCATTER => {
                let skip = rank * bytes(op.count);
                let stores = Stores::for_traffic(2 * n * n * bytes(op.count));
                total(op, all, skip, &[op.recv], 0, op.count, stores);
            }
            COLL_ALL_GATHER => {
                let each = bytes(op.count);
                let to: Few = all.iter().map(|p| p.recv.add(rank * each)).collect();
                push(op.send, &to, each, Stores::for_traffic(2 * n * n * each));
            }
            COLL_ALL_GATHER_V => {
                let to: Few = all
                    .iter()
                    .map(|p| p.recv.wrapping_add(bytes((&*p.counts).recv_at[rank])))
                    .collect();
                push(
                    op.send,
                    &to,
                    bytes((&*all[rank].counts).recv[rank]),
                    Stores::Plain,
                );
            }
            COLL_BROADCAST => {
                let (from, to) = part(op.count, rank, n);
                // 4-bit elements: `part` cuts at multiples of 64, so at bytes.
                let at = bytes(from);
                let to_all: Few = all.iter().map(|p| p.recv.wrapping_add(at)).collect();
                let source = all[op.root].send.wrapping_add(at);
                push(source, &to_all, bytes(to) - at, stores);
            }
            COLL_ALL_TO_ALL => {
                let each = bytes(op.count);
                let in_place = all.iter().any(|p| p.send == p.recv.cast_const());
                let stores = Stores::for_traffic(2 * n * n * each);
                for (other, p) in all.iter().enumerate() {
                    if in_place {
                        exchange(rank, other, each, all);
                    } else if each > 0 {
                        let (source, to) = (p.send.add(rank * each), op.recv.add(other * each));
                        push(source, &[to], each, stores);
                    }
                }
            }
            COLL_ALL_TO_ALL_V => {
                let own = &*all[rank].counts;
                for (from, p) in all.iter().enumerate() {
                    let len = bytes(own.recv[from]);
                    if len > 0 {
                        let source = p.send.add(bytes((&*p.counts).send_at[rank]));
                        let to = op.recv.add(bytes(own.recv_at[from]));
                        push(source, &[to], len, Stores::Plain);
                    }
                }
            }
            _ => {}
        }
    }
}

/// This rank's half of the two-way exchange with `other`, through a buffer, so that it also works in place.
///
/// # Safety
/// As [`share`].
unsafe fn exchange(rank: usize, other: usize, each: usize, all: &[Posted]) {
    let (a, b) = (rank.min(other), rank.max(other));
    // The pair's bytes are cut in two; the lower rank takes the first half, both directions of it.
    let middle = (each / 2).next_multiple_of(64).min(each);
    let (mut from, to) = match (a == b, rank == a) {
        (true, _) => (0, each),
        (_, true) => (0, middle),
        (_, false) => (middle, each),
    };
    let mut buffers = [[0u8; BLOCK]; 2];
    // SAFETY: forwarded; this half of these two blocks is touched by this rank only.
    unsafe {
        while from < to {
            let len = BLOCK.min(to - from);
            let [ab, ba] = &mut buffers;
            all[a]
                .send
                .add(b * each + from)
                .copy_to_nonoverlapping(ab.as_mut_ptr(), len);
            all[b]
                .send
                .add(a * each + from)
                .copy_to_nonoverlapping(ba.as_mut_ptr(), len);
            all[b]
                .recv
                .add(a * each + from)
                .copy_from_nonoverlapping(ab.as_ptr(), len);
            all[a]
                .recv
                .add(b * each + from)
                .copy_from_nonoverlapping(ba.as_ptr(), len);
            from += len;
        }
    }
}
