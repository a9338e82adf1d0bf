//! Sums that give up the order of ranks because somebody asked for it: round a ring, up and down a tree, by halves (`crossweave_hosts` has the shapes,
//! and what each says). Sums under way keep all their bits, and 16-bit results are rounded once.

use super::{FEW, Run, copy};
use crate::fold::{Fold, Part};
use crossweave_abi::{DType, RED_PREMUL_SUM, RED_SUM};
use crossweave_hosts::{Algorithm, Halves, Kind, PIECE, parent};
use crossweave_plugin::Result;
use smallvec::SmallVec;

/// A piece of a vector on its way to its sum, on one rank.
struct Sum<'a> {
    run: &'a Run<'a>,
    /// The sum of what this rank knows of, in the type sums are kept in, and room for another's.
    sums: *mut u8,
    other: *mut u8,
    /// Bytes of an element of it.
    wide: usize,
}

/// An all-reduce.
///
/// # Safety
/// The operands are live.
pub(super) unsafe fn all_reduce(run: &Run<'_>, by: Algorithm) -> Result<()> {
    let p = run.p;
    let step = ((PIECE / p.bytes(1)) as u64).min(p.count.max(1));
    let sum = sum(run, step as usize, 0);
    for from in (0..p.count).step_by(step as usize) {
        let count = step.min(p.count - from);
        let at = p.bytes(from);
        // SAFETY: promised by the caller; the piece's words are taken before its result is written.
        unsafe {
            sum.take(p.send.add(at), 0, count as usize);
            let to = p.recv.add(at);
            match by {
                Algorithm::Tree => sum.tree(count as usize, to)?,
                Algorithm::Halving => {
                    let halves = Halves::new(run.n);
                    sum.halve(halves, &halves.cuts(Kind::AllReduce, count), to, None)?;
                }
                _ => {
                    let cuts: SmallVec<[u64; FEW]> =
                        (0..=run.n).map(|r| run.cut(count, r)).collect();
                    sum.ring(&cuts)?;
                    sum.ring_back(&cuts, to)?;
                }
            }
        }
    }
    Ok(())
}

/// A reduce-scatter. `aside`: the result waits in scratch until everything has been taken, since it lies over it.
///
/// # Safety
/// The operands are live; unless `aside`, the result lies over this rank's own block of what is sent, or apart from it.
pub(super) unsafe fn reduce_scatter(run: &Run<'_>, by: Algorithm, aside: bool) -> Result<()> {
    let (p, n) = (run.p, run.n);
    let block = p.bytes(p.count);
    let step = ((PIECE / p.bytes(1) / n).max(1) as u64).min(p.count.max(1));
    let spare = if aside { block } else { 0 };
    let sum = sum(run, step as usize * n, spare);
    let to = match aside {
        true => sum.sums.wrapping_sub(spare.next_multiple_of(64)),
        false => p.recv,
    };
    for from in (0..p.count).step_by(step as usize) {
        let count = step.min(p.count - from);
        // SAFETY: promised by the caller; the piece's words are taken before its result is written.
        unsafe {
            for r in 0..n {
                let words = p.send.add(r * block + p.bytes(from));
                sum.take(words, r * count as usize, count as usize);
            }
            let to = to.add(p.bytes(from));
            if by == Algorithm::Halving {
                let halves = Halves::new(n);
                let cuts = halves.cuts(Kind::ReduceScatter, count * n as u64);
                sum.halve(halves, &cuts, to, Some(count))?;
            } else {
                let cuts: SmallVec<[u64; FEW]> = (0..=n as u64).map(|r| r * count).collect();
                sum.ring(&cuts)?;
                sum.give(cuts[run.me] as usize, to, count as usize);
            }
        }
    }
    // SAFETY: the result has room for a block.
    unsafe { copy(p.recv, to, spare) };
    Ok(())
}

/// Room for the sums of so many elements, behind `spare` bytes of scratch.
fn sum<'a>(run: &'a Run<'a>, elements: usize, spare: usize) -> Sum<'a> {
    let wide = run.fold().sum_bytes();
    let (room, spare) = (elements * wide, spare.next_multiple_of(64));
    let scratch = run.m.scratch(spare + 2 * room);
    let sums = scratch.wrapping_add(spare);
    Sum {
        run,
        sums,
        other: sums.wrapping_add(room),
        wide,
    }
}

impl Sum<'_> {
    fn at(&self, element: u64) -> *mut u8 {
        self.sums.wrapping_add(element as usize * self.wide)
    }

    /// Begins with this rank's words.
    ///
    /// # Safety
    /// `count` elements at `from` are live, and there is room for as many sums behind `to`.
    unsafe fn take(&self, from: *const u8, to: usize, count: usize) {
        let part = Part {
            so_far: std::ptr::null(),
            ranks: self.run.n,
            ends: false,
        };
        // SAFETY: promised by the caller.
        unsafe {
            let factor = match self.run.p.reduce {
                RED_PREMUL_SUM => self.run.p.factor(),
                _ => 1.0,
            };
            let fold = self.run.fold();
            fold.part(part, &[(from, factor)], self.at(to as u64), count);
        }
    }

    /// Adds what has come to the sums of some elements.
    ///
    /// # Safety
    /// Room for as many is behind the first.
    unsafe fn add(&self, first: u64, count: u64) {
        let dtype = match self.run.p.dtype {
            DType::Bf16 | DType::F16 => DType::F32,
            d => d,
        };
        let fold = Fold {
            dtype,
            reduce: RED_SUM,
        };
        let at = self.at(first);
        let both = [(at.cast_const(), 1.0), (self.other.cast_const(), 1.0)];
        // SAFETY: promised by the caller.
        unsafe { fold.run(&both, at, count as usize) };
    }

    /// Writes the result of some elements.
    ///
    /// # Safety
    /// Their sums are complete, and `to` has room for `count` elements.
    unsafe fn give(&self, first: usize, to: *mut u8, count: usize) {
        let part = Part {
            so_far: self.at(first as u64),
            ranks: self.run.n,
            ends: true,
        };
        // SAFETY: promised by the caller.
        unsafe { self.run.fold().part(part, &[], to, count) };
    }

    /// Sends to one rank and receives from another, at the same time; nothing to or from oneself.
    ///
    /// # Safety
    /// Both places hold what is said.
    unsafe fn swap(
        &self,
        (to, at, bytes): (usize, *const u8, usize),
        (from, into, room): (usize, *mut u8, usize),
    ) -> Result<()> {
        let mut f = self.run.flight();
        // SAFETY: promised by the caller.
        unsafe {
            if from != self.run.me {
                f.recv(from, into, room)?;
            }
            if to != self.run.me {
                f.send(to, at, bytes)?;
            }
        }
        f.land()
    }

    /// Sends bytes to a rank.
    ///
    /// # Safety
    /// They are there.
    unsafe fn send(&self, to: usize, at: *const u8, bytes: usize) -> Result<()> {
        let nothing = (self.run.me, std::ptr::null_mut(), 0);
        // SAFETY: promised by the caller.
        unsafe { self.swap((to, at, bytes), nothing) }
    }

    /// Receives bytes from a rank.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn recv(&self, from: usize, into: *mut u8, bytes: usize) -> Result<()> {
        let nothing = (self.run.me, std::ptr::null(), 0);
        // SAFETY: promised by the caller.
        unsafe { self.swap(nothing, (from, into, bytes)) }
    }

    /// Sends the sums of each block round the ring, from the rank behind its owner to its owner; `cuts`: where the blocks begin, and the end.
    ///
    /// # Safety
    /// The words of all blocks have been taken.
    unsafe fn ring(&self, cuts: &[u64]) -> Result<()> {
        let (n, me) = (self.run.n, self.run.me);
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        for step in 0..n - 1 {
            let (out, own) = ((me + 2 * n - 1 - step) % n, (me + 2 * n - 2 - step) % n);
            let len = |b: usize| cuts[b + 1] - cuts[b];
            let [given, got] = [out, own].map(|b| len(b) as usize * self.wide);
            // SAFETY: promised by the caller.
            unsafe {
                let sums = (next, self.at(cuts[out]).cast_const(), given);
                self.swap(sums, (before, self.other, got))?;
                self.add(cuts[own], len(own));
            }
        }
        Ok(())
    }

    /// Sends the results of all blocks on round the ring, each from its owner.
    ///
    /// # Safety
    /// `to` has room for the results of all; this rank's own sums are complete.
    unsafe fn ring_back(&self, cuts: &[u64], to: *mut u8) -> Result<()> {
        let (p, n, me) = (self.run.p, self.run.n, self.run.me);
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let place = |b: usize| to.wrapping_add(p.bytes(cuts[b]));
        let bytes = |b: usize| p.bytes(cuts[b + 1] - cuts[b]);
        // SAFETY: promised by the caller.
        unsafe {
            self.give(
                cuts[me] as usize,
                place(me),
                (cuts[me + 1] - cuts[me]) as usize,
            );
            for step in 0..n - 1 {
                let (out, own) = ((me + n - step) % n, (me + 2 * n - 1 - step) % n);
                let given = (next, place(out).cast_const(), bytes(out));
                self.swap(given, (before, place(own), bytes(own)))?;
            }
        }
        Ok(())
    }

    /// Adds up along the tree, and sends the result down again.
    ///
    /// # Safety
    /// The words have been taken, and `to` has room for the result.
    unsafe fn tree(&self, count: usize, to: *mut u8) -> Result<()> {
        let (run, n, me) = (self.run, self.run.n, self.run.me);
        let above = parent(me);
        let below = (0..n.ilog2() + 1).map(|k| me + (1 << k));
        let below: SmallVec<[usize; FEW]> =
            below.filter(|r| *r < n && parent(*r) == Some(me)).collect();
        let (sums, results) = (count * self.wide, run.p.bytes(count as u64));
        // SAFETY: promised by the caller.
        unsafe {
            for r in &below {
                self.recv(*r, self.other, sums)?;
                self.add(0, count as u64);
            }
            match above {
                Some(r) => {
                    self.send(r, self.sums, sums)?;
                    self.recv(r, to, results)?;
                }
                None => self.give(0, to, count),
            }
            // The tallest tree first: it takes longest.
            below
                .iter()
                .rev()
                .try_for_each(|r| self.send(*r, to, results))
        }
    }

    /// Adds up by halves; then each partner has its own part complete. `blocks`: elements of a rank's block, of which each then has its own; else
    /// everybody gets everything, by halves again.
    ///
    /// # Safety
    /// The words have been taken, and `to` has room for the result.
    unsafe fn halve(
        &self,
        halves: Halves,
        cuts: &[u64],
        to: *mut u8,
        blocks: Option<u64>,
    ) -> Result<()> {
        let (p, me) = (self.run.p, self.run.me);
        let all = *cuts.last().unwrap_or(&0);
        let own = blocks.unwrap_or(all);
        let (sums, results) = (all as usize * self.wide, p.bytes(own));
        let other = halves.stands_for(me);
        // SAFETY: promised by the caller.
        unsafe {
            let partner = match halves.partner(me) {
                Ok(partner) => partner,
                Err(first) => {
                    self.send(first, self.sums, sums)?;
                    return self.recv(first, to, results);
                }
            };
            if let Some(other) = other {
                self.recv(other, self.other, sums)?;
                self.add(0, all);
            }
            for round in halves.rounds(partner) {
                let with = halves.rank(round.with);
                let [(a, b), (c, d)] = [round.gives, round.keeps].map(|(a, b)| (cuts[a], cuts[b]));
                let [given, got] = [b - a, d - c].map(|len| len as usize * self.wide);
                let gives = (with, self.at(a).cast_const(), given);
                self.swap(gives, (with, self.other, got))?;
                self.add(c, d - c);
            }
            let (a, b) = (cuts[partner], cuts[partner + 1]);
            if let Some(count) = blocks {
                self.give(a as usize, to, count as usize);
                if let Some(other) = other {
                    self.give((a + count) as usize, self.other, count as usize);
                    self.send(other, self.other, results)?;
                }
                return Ok(());
            }
            let place = |element: u64| to.wrapping_add(p.bytes(element));
            self.give(a as usize, place(a), (b - a) as usize);
            for round in halves.rounds(partner).rev() {
                let with = halves.rank(round.with);
                let [(a, b), (c, d)] = [round.keeps, round.gives].map(|(a, b)| (cuts[a], cuts[b]));
                let keeps = (with, place(a).cast_const(), p.bytes(b - a));
                self.swap(keeps, (with, place(c), p.bytes(d - c)))?;
            }
            match other {
                Some(other) => self.send(other, to, results),
                None => Ok(()),
            }
        }
    }
}
