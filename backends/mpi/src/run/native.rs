//! Sums by the library's own collectives, in pieces, so that counts have no limit. Narrow elements go as words: each rank gets its part of all of them,
//! adds it up once and in rank order, and gives the result to all. A library rounds 16-bit floats at every hop, and Open MPI adds 8-bit integers with
//! saturation, where the vector unit does.
//!
//! Everything the library works on lies in the member's scratch. A collective that hangs cannot be cancelled; it is left behind, with its memory.

use super::{FEW, Run, copy};
use crate::flight::Flight;
use crate::fold::Part;
use crate::library::Shares;
use crossweave_abi::{RED_AVG, RED_PREMUL_SUM};
use crossweave_plugin::Result;
use smallvec::SmallVec;

/// Bytes of a piece; of blocks, of all of them together.
const PIECE: usize = 4 << 20;
/// Pieces under way at a time.
const WINDOW: usize = 2;
/// Places in scratch begin at multiples of this.
const LINE: usize = 64;

/// A place of a piece in scratch, with its number of elements and the first of them in the vector or block.
struct Way<'a> {
    flight: Flight<'a>,
    at: *mut u8,
    from: u64,
    count: u64,
}

/// Bytes for each rank and their place, written where they stay until a call has completed.
///
/// # Safety
/// There is room for two numbers for each.
unsafe fn shares(at: *mut i32, all: impl ExactSizeIterator<Item = (usize, usize)>) -> Shares {
    let n = all.len();
    for (r, (bytes, place)) in all.enumerate() {
        // SAFETY: promised by the caller; a piece has fewer bytes than an i32 counts.
        unsafe {
            at.add(r).write(bytes as i32);
            at.add(n + r).write(place as i32);
        }
    }
    Shares {
        bytes: at,
        at: at.wrapping_add(n),
    }
}

/// A sum by the library's own collectives, as one rank runs it.
pub(super) struct Native<'a> {
    run: &'a Run<'a>,
}

impl<'a> Native<'a> {
    /// The sum of a collective that is being run.
    pub(super) fn new(run: &'a Run<'a>) -> Native<'a> {
        Native { run }
    }

    /// Is this a sum of elements that go as words?
    fn narrow(&self) -> bool {
        self.run.p.bytes(1) < 4
    }

    /// This rank's words of a piece, scaled where the sum is.
    ///
    /// # Safety
    /// Both places hold `count` elements.
    unsafe fn take(&self, from: *const u8, to: *mut u8, count: u64) {
        // SAFETY: promised by the caller.
        unsafe {
            match self.run.p.reduce {
                RED_PREMUL_SUM => {
                    let words = [(from, self.run.p.factor())];
                    self.run.fold().run(&words, to, count as usize);
                }
                _ => copy(to, from, self.run.p.bytes(count)),
            }
        }
    }

    /// The result of a sum that lies at `from`, shared out where an average is asked for.
    ///
    /// # Safety
    /// Both places hold `count` elements.
    unsafe fn give(&self, from: *const u8, to: *mut u8, count: u64) {
        let part = Part {
            so_far: from,
            ranks: self.run.n,
            ends: true,
        };
        // SAFETY: promised by the caller.
        unsafe {
            match self.run.p.reduce {
                RED_AVG => self.run.fold().part(part, &[], to, count as usize),
                _ => copy(to, from, self.run.p.bytes(count)),
            }
        }
    }

    /// An all-reduce.
    ///
    /// # Safety
    /// The operands are live.
    pub(super) unsafe fn all_reduce(&self) -> Result<()> {
        let p = self.run.p;
        if self.narrow() {
            // SAFETY: promised by the caller.
            return unsafe { self.narrow_all_reduce() };
        }
        let step = ((PIECE / p.bytes(1)) as u64).min(p.count.max(1));
        let room = p.bytes(step).next_multiple_of(LINE);
        let scratch = self.run.m.scratch(WINDOW * room);
        let pieces = p.count.div_ceil(step);
        let mut under_way: SmallVec<[Way<'_>; WINDOW]> = SmallVec::new();
        for turn in 0..pieces + WINDOW as u64 - 1 {
            // SAFETY: promised by the caller; a place has been left by the piece before in it.
            unsafe {
                if turn < pieces {
                    let (from, at) = (turn * step, turn as usize % WINDOW * room);
                    let (at, count) = (scratch.add(at), step.min(p.count - from));
                    self.take(p.send.add(p.bytes(from)), at, count);
                    let mut flight = self.run.flight();
                    flight.of_all(p.bytes(count), |own, g| {
                        own.all_reduce(g, at, count as i32, p.dtype)
                    })?;
                    under_way.push(Way {
                        flight,
                        at,
                        from,
                        count,
                    });
                }
                if turn + 1 >= WINDOW as u64 && !under_way.is_empty() {
                    let mut way = under_way.remove(0);
                    way.flight.land()?;
                    self.give(way.at, p.recv.add(p.bytes(way.from)), way.count);
                }
            }
        }
        Ok(())
    }

    /// An all-reduce of narrow elements.
    ///
    /// # Safety
    /// The operands are live.
    unsafe fn narrow_all_reduce(&self) -> Result<()> {
        let (p, n) = (self.run.p, self.run.n);
        let factors = self.run.factors(&self.run.everybody())?;
        let step = ((PIECE / p.bytes(1)) as u64).min(p.count.max(1));
        let piece = p.bytes(step).next_multiple_of(LINE);
        // Of each rank the words of one part, which is longest at the first.
        let got = (n * p.bytes(self.run.cut(step, 1))).next_multiple_of(LINE);
        let words = self
            .run
            .m
            .scratch(2 * piece + got + 4 * n * size_of::<i32>());
        let (theirs, sum) = (words.wrapping_add(piece), words.wrapping_add(piece + got));
        let numbers: *mut i32 = sum.wrapping_add(piece).cast();
        for from in (0..p.count).step_by(step as usize) {
            let count = step.min(p.count - from);
            let part = |r: usize| {
                let (from, to) = (self.run.cut(count, r), self.run.cut(count, r + 1));
                (p.bytes(to - from), p.bytes(from))
            };
            let ((mine, _), at) = (part(self.run.me), p.bytes(from));
            // SAFETY: promised by the caller; places lie apart, and each call has completed before the next.
            unsafe {
                copy(words, p.send.add(at), p.bytes(count));
                let given = shares(numbers, (0..n).map(part));
                let each = shares(numbers.add(2 * n), (0..n).map(|r| (mine, r * mine)));
                let mut f = self.run.flight();
                f.of_all(p.bytes(count), |own, g| {
                    own.all_to_all(g, words, given, theirs, each)
                })?;
                f.land()?;
                let of = |r: usize| (theirs.add(r * mine).cast_const(), factors[r]);
                let sources: SmallVec<[_; FEW]> = (0..n).map(of).collect();
                self.run.fold().run(&sources, sum, mine / p.bytes(1));
                let mut f = self.run.flight();
                f.of_all(p.bytes(count), |own, g| {
                    own.all_gather(g, sum, mine as i32, words, given)
                })?;
                f.land()?;
                copy(p.recv.add(at), words, p.bytes(count));
            }
        }
        Ok(())
    }

    /// A reduce-scatter. `aside`: the result waits in scratch until everything has been taken, since it lies over it.
    ///
    /// # Safety
    /// The operands are live; unless `aside`, the result lies over this rank's own block of what is sent, or apart from it.
    pub(super) unsafe fn reduce_scatter(&self, aside: bool) -> Result<()> {
        let (p, n) = (self.run.p, self.run.n);
        let narrow = self.narrow();
        let factors = match narrow {
            true => self.run.factors(&self.run.everybody())?,
            false => SmallVec::new(),
        };
        let block = p.bytes(p.count);
        let step = ((PIECE / p.bytes(1) / n).max(1) as u64).min(p.count.max(1));
        // The words of all blocks, and the others' of this one, or its sum.
        let words = (n * p.bytes(step)).next_multiple_of(LINE);
        let room = words
            + if narrow {
                words
            } else {
                p.bytes(step).next_multiple_of(LINE)
            };
        let spare = if aside {
            block.next_multiple_of(LINE)
        } else {
            0
        };
        let all = spare + WINDOW * room;
        let scratch = self.run.m.scratch(all + 2 * n * size_of::<i32>());
        let to = if aside { scratch } else { p.recv };
        let numbers: *mut i32 = scratch.wrapping_add(all).cast();
        let pieces = p.count.div_ceil(step);
        let mut under_way: SmallVec<[Way<'_>; WINDOW]> = SmallVec::new();
        for turn in 0..pieces + WINDOW as u64 - 1 {
            // SAFETY: promised by the caller; places lie apart, and have been left by the piece before in them.
            unsafe {
                if turn < pieces {
                    let (from, at) = (turn * step, turn as usize % WINDOW * room);
                    let (at, count) = (scratch.add(spare + at), step.min(p.count - from));
                    let (sum, bytes) = (at.add(words), p.bytes(count));
                    for r in 0..n {
                        let of = p.send.add(r * block + p.bytes(from));
                        match narrow {
                            true => copy(at.add(r * bytes), of, bytes),
                            false => self.take(of, at.add(r * bytes), count),
                        }
                    }
                    let mut flight = self.run.flight();
                    if narrow {
                        let even = shares(numbers, (0..n).map(|r| (bytes, r * bytes)));
                        flight
                            .of_all(bytes * n, |own, g| own.all_to_all(g, at, even, sum, even))?;
                        flight.land()?;
                        let of = |r: usize| (sum.add(r * bytes).cast_const(), factors[r]);
                        let sources: SmallVec<[_; FEW]> = (0..n).map(of).collect();
                        let to = to.add(p.bytes(from));
                        self.run.fold().run(&sources, to, count as usize);
                        continue;
                    }
                    flight.of_all(bytes * n, |own, g| {
                        own.reduce_scatter(g, at, sum, count as i32, p.dtype)
                    })?;
                    under_way.push(Way {
                        flight,
                        at: sum,
                        from,
                        count,
                    });
                }
                if turn + 1 >= WINDOW as u64 && !under_way.is_empty() {
                    let mut way = under_way.remove(0);
                    way.flight.land()?;
                    self.give(way.at, to.add(p.bytes(way.from)), way.count);
                }
            }
        }
        // SAFETY: the result has room for a block.
        unsafe { copy(p.recv, to, spare.min(block)) };
        Ok(())
    }
}
