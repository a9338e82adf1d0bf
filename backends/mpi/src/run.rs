//! The collectives over messages. Every reduction is computed by one owner, in rank order, and copied to the others; small vectors, where
//! one latency counts more than bytes, are sent whole and reduced by every rank in the same order, which gives the same bits.
//!
//! Where several ranks share a host and there are several hosts, `relay` and `chain` say less between hosts, and give the same bits:
//! `crossweave_hosts` has the formulas. Sums that give the order of ranks up, where the job asks for it by name, are in `native` and `by_name`.

mod by_name;
mod chain;
mod native;
mod relay;

use crate::comm::Member;
use crate::flight::{Flight, What};
use crate::fold::Fold;
use crate::hosts::Leaves;
use crossweave_abi::*;
use crossweave_hosts::{Algorithm, OWNED, SMALL, SPREAD};
use crossweave_plugin::Result;
use crossweave_plugin::collective::Checked;
use native::Native;
use smallvec::{SmallVec, smallvec};
use std::sync::atomic::AtomicBool;

/// Bytes of a piece a rank reduces at a time: bounds the scratch to `ranks` times this.
const PIECE: usize = OWNED;
/// Sums of up to this many bytes are put where the others' cores find them sooner; of more, what they have not come to would be pushed out again.
const SHELVED: usize = 64 << 10;
/// Up to so many ranks nothing is allocated for their records.
const FEW: usize = 16;

/// Runs one collective; sends and receives are `exchange`'s.
///
/// # Safety
/// The plan's addresses are live operands of this collective.
pub(crate) unsafe fn collective(
    m: &Member,
    p: &Checked,
    number: u64,
    abandoned: &AtomicBool,
) -> Result<()> {
    let run = Run {
        m,
        p,
        number,
        abandoned,
        n: m.ranks as usize,
        me: m.rank as usize,
    };
    match p.kind {
        COLL_ALL_REDUCE => run.all_reduce(),
        COLL_REDUCE_SCATTER => run.reduce_scatter(),
        COLL_REDUCE => run.reduce(),
        COLL_ALL_GATHER | COLL_ALL_GATHER_V => run.all_gather(),
        COLL_ALL_TO_ALL | COLL_ALL_TO_ALL_V => run.all_to_all(),
        COLL_BROADCAST => run.broadcast(),
        _ => run.barrier(),
    }
}

/// Runs the sends and receives of a group: all are started before any is waited for.
///
/// # Safety
/// As [`collective`].
pub(crate) unsafe fn exchange(m: &Member, group: &[Checked], abandoned: &AtomicBool) -> Result<()> {
    let (sends, receives): (Vec<&Checked>, Vec<&Checked>) = group
        .iter()
        .filter(|p| p.point_to_point())
        .partition(|p| p.kind == COLL_SEND);
    let Some(first) = receives.first().or(sends.first()) else {
        return Ok(());
    };
    let mut f = Flight::new(m, What::Collective(first), None, Some(abandoned));
    // SAFETY: operands, until the stream has passed the group.
    unsafe {
        for p in &receives {
            f.recv(p.peer, p.recv, p.bytes(p.count))?;
        }
        for p in &sends {
            f.send(p.peer, p.send, p.bytes(p.count))?;
        }
    }
    f.land()
}

/// One collective being run. Only [`collective`] makes one, and its caller has promised that the operands are live.
struct Run<'a> {
    m: &'a Member,
    p: &'a Checked,
    number: u64,
    /// Turns true when its stream is being destroyed.
    abandoned: &'a AtomicBool,
    n: usize,
    me: usize,
}

/// # Safety
/// Both ranges are live; they may overlap.
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    if !std::ptr::eq(to, from) && bytes > 0 {
        // SAFETY: promised by the caller.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
}

/// Sends lines just written from this core's cache to the one all cores share.
fn shelve(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a hint, which cannot fault and changes no contents; processors that lack it do nothing.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) at.wrapping_add(line), options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

impl Run<'_> {
    fn flight(&self) -> Flight<'_> {
        Flight::new(
            self.m,
            What::Collective(self.p),
            Some(self.number),
            Some(self.abandoned),
        )
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        // Each rank begins with its successor, so that not everybody calls on rank 0 first.
        let (me, n) = (self.me, self.n);
        (1..n).map(move |i| (me + i) % n)
    }

    /// Where the piece of rank `r` begins when `count` elements are cut evenly.
    fn cut(&self, count: u64, r: usize) -> u64 {
        let (n, r) = (self.n as u64, r as u64);
        count / n * r + (count % n).min(r)
    }

    /// The factors of a scaled sum of this rank and of `with`; 1 of the others.
    fn factors(&self, with: &[usize]) -> Result<SmallVec<[f64; FEW]>> {
        if self.p.reduce != RED_PREMUL_SUM {
            return Ok(smallvec![1.0; self.n]);
        }
        // Not on the stack: the others' may still come when this call has failed.
        let mut all = vec![1.0; self.n];
        // SAFETY: the operand is live in stream order.
        all[self.me] = unsafe { self.p.factor() };
        let at = all.as_mut_ptr();
        let mut f = self.flight();
        let mut post = || -> Result<()> {
            for r in with.iter().copied().filter(|r| *r != self.me) {
                // SAFETY: the vector lives until the flight has landed, or for ever where it fails.
                unsafe { f.recv(r, at.add(r).cast(), 8)? };
            }
            for r in with.iter().copied().filter(|r| *r != self.me) {
                // SAFETY: as above.
                unsafe { f.send(r, at.add(self.me).cast(), 8)? };
            }
            f.land()
        };
        let sent = post();
        match sent {
            Ok(()) => Ok(all.into()),
            Err(e) => {
                std::mem::forget(all);
                Err(e)
            }
        }
    }

    fn fold(&self) -> Fold {
        Fold {
            dtype: self.p.dtype,
            reduce: self.p.reduce,
        }
    }

    /// Every rank, each beginning with its successor.
    fn everybody(&self) -> SmallVec<[usize; FEW]> {
        self.others().collect()
    }

    /// The algorithm of this reduction, of which a rank alone needs none.
    fn algorithm(&self, chosen: Algorithm) -> Algorithm {
        let sum = matches!(self.p.reduce, RED_SUM | RED_AVG | RED_PREMUL_SUM);
        chosen.of_reduction(sum && self.n > 1)
    }

    /// Is a reduction run along a chain of hosts?
    fn chained(&self, leaves: Leaves) -> bool {
        let (width, sum) = (self.p.bytes(1), self.fold().sum_bytes());
        self.m.links.hosts.chain(leaves, width, sum)
    }

    fn all_reduce(&self) -> Result<()> {
        let p = self.p;
        let bytes = p.bytes(p.count);
        let by = self.algorithm(self.m.links.by.choice.all_reduce);
        match by {
            // SAFETY: the operands are live, as `Run` says.
            Algorithm::Native => return unsafe { Native::new(self).all_reduce() },
            Algorithm::Ring | Algorithm::Tree | Algorithm::Halving => {
                // SAFETY: as above.
                return unsafe { by_name::all_reduce(self, by) };
            }
            Algorithm::Auto | Algorithm::Ordered => {}
        }
        let any = by == Algorithm::Auto;
        if any && bytes <= SMALL && self.m.links.hosts.shared() {
            return self.sum_of_words();
        }
        if any && self.chained(Leaves::All) {
            // SAFETY: the operands are live, as `Run` says; what is sent and the result are one buffer, or apart.
            return unsafe { self.chain(Leaves::All, false) };
        }
        // SAFETY: the operands are live, as `Run` says; scratch outlives the flights that use it (`Member` keeps it also after a failure).
        unsafe {
            let factors = self.factors(&self.everybody())?;
            if bytes <= SMALL * if self.n == 2 { 4 } else { 1 } {
                let scratch = self.m.scratch(bytes * self.n);
                let mut f = self.flight();
                for r in self.others() {
                    f.recv(r, scratch.add(r * bytes), bytes)?;
                }
                for r in self.others() {
                    f.send(r, p.send, bytes)?;
                }
                f.land()?;
                let at = |r: usize| match r == self.me {
                    true => p.send,
                    false => scratch.add(r * bytes).cast_const(),
                };
                let sources: SmallVec<[_; FEW]> =
                    (0..self.n).map(|r| (at(r), factors[r])).collect();
                self.fold().run(&sources, p.recv, p.count as usize);
                return Ok(());
            }
            let piece = |r: usize| {
                let (from, to) = (self.cut(p.count, r), self.cut(p.count, r + 1));
                (p.bytes(from), to - from)
            };
            let longest = piece(0).1;
            let step = (PIECE / p.bytes(1).max(1)).max(1) as u64;
            // Two flights at a time: while the sums of one round travel, the pieces of the next do.
            let mut gathering: Option<Flight<'_>> = None;
            let mut done = 0;
            while done < longest {
                let part = |r: usize| {
                    let (at, count) = piece(r);
                    let from = done.min(count);
                    (at + p.bytes(from), (count - from).min(step))
                };
                let (my_at, my_count) = part(self.me);
                let my_bytes = p.bytes(my_count);
                let scratch = self.m.scratch(p.bytes(step) * self.n);
                let mut f = self.flight();
                for r in self.others() {
                    f.recv(r, scratch.add(r * p.bytes(step)), my_bytes)?;
                }
                for r in self.others() {
                    let (at, count) = part(r);
                    f.send(r, p.send.add(at), p.bytes(count))?;
                }
                f.land()?;
                let at = |r: usize| match r == self.me {
                    true => p.send.add(my_at),
                    false => scratch.add(r * p.bytes(step)).cast_const(),
                };
                let sources: SmallVec<[_; FEW]> =
                    (0..self.n).map(|r| (at(r), factors[r])).collect();
                self.fold()
                    .run(&sources, p.recv.add(my_at), my_count as usize);
                if my_bytes <= SHELVED {
                    shelve(p.recv.add(my_at), my_bytes);
                }
                if let Some(mut g) = gathering.take() {
                    g.land()?;
                }
                let mut g = self.flight();
                for r in self.others() {
                    let (at, count) = part(r);
                    g.recv(r, p.recv.add(at), p.bytes(count))?;
                }
                for r in self.others() {
                    g.send(r, p.recv.add(my_at), my_bytes)?;
                }
                gathering = Some(g);
                done += step;
            }
            gathering.map_or(Ok(()), |mut g| g.land())
        }
    }

    fn reduce_scatter(&self) -> Result<()> {
        let p = self.p;
        let (bytes, one) = (p.bytes(p.count), p.bytes(1));
        // SAFETY: as in `all_reduce`.
        unsafe {
            let mine = p.send.add(self.me * bytes);
            // A result that lies over pieces still to be sent waits in scratch.
            let (lo, hi) = (p.send as usize, p.send as usize + bytes * self.n);
            let out = p.recv as usize;
            let apart = out >= hi || out + bytes <= lo || std::ptr::eq(p.recv, mine);
            let by = self.algorithm(self.m.links.by.choice.reduce_scatter);
            match by {
                Algorithm::Native => return Native::new(self).reduce_scatter(!apart),
                Algorithm::Ring | Algorithm::Tree | Algorithm::Halving => {
                    return by_name::reduce_scatter(self, by, !apart);
                }
                Algorithm::Auto if self.chained(Leaves::Blocks) => {
                    return self.chain(Leaves::Blocks, !apart);
                }
                Algorithm::Auto | Algorithm::Ordered => {}
            }
            let factors = self.factors(&self.everybody())?;
            let step = (PIECE / one.max(1)).max(1) as u64;
            let room = p.bytes(step.min(p.count)) * self.n;
            let scratch = self.m.scratch(room + if apart { 0 } else { bytes });
            let target = if apart { p.recv } else { scratch.add(room) };
            let mut done = 0;
            while done < p.count {
                let count = (p.count - done).min(step);
                let (from, len) = (p.bytes(done), p.bytes(count));
                let mut f = self.flight();
                for r in self.others() {
                    f.recv(r, scratch.add(r * len), len)?;
                }
                for r in self.others() {
                    f.send(r, p.send.add(r * bytes + from), len)?;
                }
                f.land()?;
                let at = |r: usize| match r == self.me {
                    true => mine.add(from),
                    false => scratch.add(r * len).cast_const(),
                };
                let sources: SmallVec<[_; FEW]> =
                    (0..self.n).map(|r| (at(r), factors[r])).collect();
                self.fold().run(&sources, target.add(from), count as usize);
                done += count;
            }
            if !apart {
                copy(p.recv, target, bytes);
            }
            Ok(())
        }
    }

    /// Owners reduce their pieces and hand them to the root.
    fn reduce(&self) -> Result<()> {
        let p = self.p;
        if self.chained(Leaves::One(p.root)) {
            // SAFETY: as in `all_reduce`.
            return unsafe { self.chain(Leaves::One(p.root), false) };
        }
        let one = p.bytes(1);
        let step = (PIECE / one.max(1)).max(self.n) as u64;
        // SAFETY: as in `all_reduce`.
        unsafe {
            let factors = self.factors(&self.everybody())?;
            let mut done = 0;
            while done < p.count {
                let count = (p.count - done).min(step);
                let base = p.bytes(done);
                let part = |r: usize| {
                    let (from, to) = (self.cut(count, r), self.cut(count, r + 1));
                    (base + p.bytes(from), to - from)
                };
                let (my_at, my_count) = part(self.me);
                let my_bytes = p.bytes(my_count);
                let scratch = self.m.scratch(my_bytes * (self.n + 1));
                let mut f = self.flight();
                for r in self.others() {
                    f.recv(r, scratch.add(r * my_bytes), my_bytes)?;
                }
                for r in self.others() {
                    let (at, count) = part(r);
                    f.send(r, p.send.add(at), p.bytes(count))?;
                }
                f.land()?;
                let at = |r: usize| match r == self.me {
                    true => p.send.add(my_at),
                    false => scratch.add(r * my_bytes).cast_const(),
                };
                let sources: SmallVec<[_; FEW]> =
                    (0..self.n).map(|r| (at(r), factors[r])).collect();
                let sum = match self.me == p.root {
                    true => p.recv.add(my_at),
                    false => scratch.add(self.n * my_bytes),
                };
                self.fold().run(&sources, sum, my_count as usize);
                let mut g = self.flight();
                if self.me == p.root {
                    for r in self.others() {
                        let (at, count) = part(r);
                        g.recv(r, p.recv.add(at), p.bytes(count))?;
                    }
                } else {
                    g.send(p.root, sum, my_bytes)?;
                }
                g.land()?;
                done += count;
            }
            Ok(())
        }
    }

    fn all_gather(&self) -> Result<()> {
        let p = self.p;
        let place = |r: usize| match &p.counts {
            Some(c) => (p.bytes(c.recv_at[r]), p.bytes(c.recv[r])),
            None => (r * p.bytes(p.count), p.bytes(p.count)),
        };
        let (at, bytes) = place(self.me);
        if self.m.links.hosts.shared() {
            self.gather_over_hosts(place)?;
            // SAFETY: the operands are live, as `Run` says.
            unsafe { copy(p.recv.add(at), p.send, bytes) };
            return Ok(());
        }
        let mut f = self.flight();
        // SAFETY: the operands are live, as `Run` says.
        unsafe {
            for r in self.others() {
                let (at, bytes) = place(r);
                if bytes > 0 {
                    f.recv(r, p.recv.add(at), bytes)?;
                }
            }
            // From where it was: what the others read is then not being written by this core.
            for r in self.others() {
                if bytes > 0 {
                    f.send(r, p.send, bytes)?;
                }
            }
            copy(p.recv.add(at), p.send, bytes);
        }
        f.land()
    }

    fn all_to_all(&self) -> Result<()> {
        let p = self.p;
        let even = |r: usize| (r * p.bytes(p.count), p.bytes(p.count));
        let counts = p.counts.as_deref();
        let to = |r: usize| counts.map_or(even(r), |c| (p.bytes(c.send_at[r]), p.bytes(c.send[r])));
        let from =
            |r: usize| counts.map_or(even(r), |c| (p.bytes(c.recv_at[r]), p.bytes(c.recv[r])));
        let mut f = self.flight();
        // SAFETY: the operands are live, as `Run` says; in place, what is sent is sent from a copy.
        unsafe {
            let mut source = p.send;
            if std::ptr::eq(p.send, p.recv) {
                let bytes = p.bytes(p.count) * self.n;
                let scratch = self.m.scratch(bytes);
                copy(scratch, p.send, bytes);
                source = scratch;
            }
            for r in self.others() {
                let (at, bytes) = from(r);
                if bytes > 0 {
                    f.recv(r, p.recv.add(at), bytes)?;
                }
            }
            for r in self.others() {
                let (at, bytes) = to(r);
                if bytes > 0 {
                    f.send(r, source.add(at), bytes)?;
                }
            }
            let ((a, bytes), (b, _)) = (to(self.me), from(self.me));
            copy(p.recv.add(b), source.add(a), bytes);
        }
        f.land()
    }

    fn broadcast(&self) -> Result<()> {
        let p = self.p;
        let bytes = p.bytes(p.count);
        // SAFETY: the operands are live, as `Run` says.
        unsafe {
            if self.me == p.root {
                copy(p.recv, p.send, bytes);
            }
            if self.m.links.hosts.shared() {
                return self.broadcast_over_hosts(bytes);
            }
            if bytes > SPREAD && self.n > 2 {
                return self.spread(bytes);
            }
            // A binomial tree, seen from the root.
            let rel = (self.me + self.n - p.root) % self.n;
            let peer = |rel: usize| (rel + p.root) % self.n;
            let mut mask = 1;
            while mask < self.n {
                if rel & mask != 0 {
                    let mut f = self.flight();
                    f.recv(peer(rel - mask), p.recv, bytes)?;
                    f.land()?;
                    break;
                }
                mask <<= 1;
            }
            let mut f = self.flight();
            mask >>= 1;
            while mask > 0 {
                if rel + mask < self.n {
                    f.send(peer(rel + mask), p.recv, bytes)?;
                }
                mask >>= 1;
            }
            f.land()
        }
    }

    /// The root deals out pieces; everybody passes its own on.
    fn spread(&self, bytes: usize) -> Result<()> {
        let p = self.p;
        let at = |r: usize| self.cut(bytes as u64, r) as usize;
        let len = |r: usize| at(r + 1) - at(r);
        // SAFETY: the operands are live, as `Run` says.
        unsafe {
            let mut f = self.flight();
            if self.me == p.root {
                for r in self.others() {
                    f.send(r, p.recv.add(at(r)), len(r))?;
                }
                // The root's own piece goes with the second round.
            } else {
                f.recv(p.root, p.recv.add(at(self.me)), len(self.me))?;
            }
            f.land()?;
            let mut g = self.flight();
            if self.me != p.root {
                for r in self.others() {
                    g.recv(r, p.recv.add(at(r)), len(r))?;
                }
            }
            for r in self.others().filter(|r| *r != p.root) {
                g.send(r, p.recv.add(at(self.me)), len(self.me))?;
            }
            g.land()
        }
    }

    /// Round k notifies the rank 2^k ahead; after the last, every rank has heard of every other.
    fn barrier(&self) -> Result<()> {
        let mut hop = 1;
        while hop < self.n {
            let mut f = self.flight();
            // SAFETY: empty messages name no memory.
            unsafe {
                f.recv((self.me + self.n - hop) % self.n, std::ptr::null_mut(), 0)?;
                f.send((self.me + hop) % self.n, std::ptr::null(), 0)?;
            }
            f.land()?;
            hop <<= 1;
        }
        Ok(())
    }
}
