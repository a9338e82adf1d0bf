//! Reductions along a chain of hosts, in pieces. Each host goes on with the sum where the host before it stopped, in rank order, and the sums
//! under way keep all their bits; a 16-bit result is rounded once, at the last host. The bits are those of one owner that adds all ranks.
//!
//! A piece is worked on by one rank of each host, by turns: the others of the host send it their words. The result goes back from host to host
//! where everybody wants it, and straight to its rank where one does. So many bytes leave a host, however many ranks are on it: see `hosts`.

use super::{FEW, Run, copy};
use crate::flight::Flight;
use crate::fold::Part;
use crate::hosts::Leaves;
use crossweave_plugin::Result;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Bytes of the longest piece.
const LONGEST: usize = 256 << 10;
/// Bytes of the shortest, unless the vector has less.
const SHORTEST: usize = 8 << 10;
/// Results travel under tags of their own: between two ranks of a host, words and results go both ways.
const RESULT: u32 = 1;

/// The cut of a reduction into pieces, the same on every rank.
struct Pieces {
    leaves: Leaves,
    /// Ranks.
    n: usize,
    /// Elements of the vector, or of a block of it.
    count: usize,
    /// Elements of a piece.
    step: usize,
}

/// A piece: where it lies in the vector that is reduced, in elements, and in the result.
#[derive(Clone, Copy)]
struct Piece {
    from: usize,
    to: usize,
    count: usize,
    /// The rank that gets its result; `None`: all do.
    owner: Option<usize>,
}

impl Pieces {
    fn blocks(&self) -> usize {
        match self.leaves {
            Leaves::Blocks => self.n,
            Leaves::All | Leaves::One(_) => 1,
        }
    }

    fn len(&self) -> usize {
        self.count.div_ceil(self.step) * self.blocks()
    }

    /// The pieces of all blocks take turns, so that owners work at the same time.
    fn get(&self, k: usize) -> Piece {
        let (block, to) = (k % self.blocks(), k / self.blocks() * self.step);
        Piece {
            from: block * self.count + to,
            to,
            count: self.step.min(self.count - to),
            owner: match self.leaves {
                Leaves::All => None,
                Leaves::Blocks => Some(block),
                Leaves::One(root) => Some(root),
            },
        }
    }
}

/// What a rank keeps of a piece under way.
struct Way<'a> {
    /// Its words on their way to the rank that works on the piece, or the others' words on their way here.
    words: Flight<'a>,
    /// What it sends on: a sum, or a result.
    on: Option<Flight<'a>>,
    /// The result on its way here.
    result: Option<Flight<'a>>,
}

impl Run<'_> {
    /// The rank that works on piece `k` on a host: its owner where it is there.
    fn worker(&self, host: usize, k: usize, piece: &Piece) -> usize {
        let hosts = &self.m.hosts;
        match piece.owner {
            Some(owner) if hosts.of(owner) == host => owner,
            _ => hosts.ranks[host][k % hosts.ranks[host].len()],
        }
    }

    /// Reduces what this rank sends over all ranks. `aside`: the result waits in scratch until everything has been sent, since it lies over it.
    ///
    /// # Safety
    /// The operands are live; unless `aside`, the result lies over this rank's own part of what is sent, or apart from it.
    pub(super) unsafe fn chain(&self, leaves: Leaves, aside: bool) -> Result<()> {
        let (p, hosts) = (self.p, &self.m.hosts);
        let (one, sum) = (p.bytes(1), self.fold().sum_bytes());
        let here = hosts.of(self.me);
        let (mates, last) = (&hosts.ranks[here], hosts.count() - 1);
        // A result comes back after as many pieces as there are links both ways; words are sent before their turn.
        let window = 2 * hosts.count() + 2;
        let ahead = window / 2;
        let even = p.bytes(p.count) / (2 * window);
        let pieces = Pieces {
            leaves,
            n: self.n,
            count: p.count as usize,
            step: (even.clamp(SHORTEST, LONGEST) / one).max(1),
        };
        let factors = self.factors(mates)?;
        // A place: the words of every rank of the host, the sum so far, the result.
        let (words, sums) = (pieces.step * one, pieces.step * sum);
        let place = (mates.len() + 1) * words + sums;
        let places = window + ahead + 1;
        let spare = if aside { p.bytes(p.count) } else { 0 };
        let scratch = self.m.scratch(spare + places * place);
        let room = scratch.wrapping_add(spare);
        let to = if aside { scratch } else { p.recv };
        let mut under_way: VecDeque<Way<'_>> = VecDeque::new();
        // Results that are passed on.
        let mut leaving: VecDeque<Flight<'_>> = VecDeque::new();
        // The piece at the front, and the next whose words are asked for.
        let (mut front, mut next) = (0, 0);
        for turn in 0..pieces.len() + window {
            while next < pieces.len() && next <= turn + ahead {
                let at = room.wrapping_add(next % places * place);
                let piece = pieces.get(next);
                let mut f = self.flight();
                let worker = self.worker(here, next, &piece);
                // SAFETY: places of different pieces lie apart; the words sent are live, and are not written over before they have left.
                unsafe {
                    if worker == self.me {
                        for (i, r) in mates.iter().enumerate().filter(|(_, r)| **r != self.me) {
                            f.recv(*r, at.add(i * words), piece.count * one)?;
                        }
                        if here > 0 {
                            let before = self.worker(here - 1, next, &piece);
                            f.recv(before, at.add(mates.len() * words), piece.count * sum)?;
                        }
                    } else {
                        f.send(worker, p.send.add(piece.from * one), piece.count * one)?;
                    }
                }
                under_way.push_back(Way {
                    words: f,
                    on: None,
                    result: None,
                });
                next += 1;
            }
            if turn < pieces.len() {
                let at = room.wrapping_add(turn % places * place);
                let piece = pieces.get(turn);
                let worker = self.worker(here, turn, &piece);
                let way = &mut under_way[turn - front];
                way.words.land()?;
                let mine = to.wrapping_add(piece.to * one);
                let so_far = at.wrapping_add(mates.len() * words);
                let wanted = piece.owner.is_none_or(|owner| owner == self.me);
                if worker == self.me {
                    let at = |(i, r): (usize, &usize)| match *r == self.me {
                        true => p.send.wrapping_add(piece.from * one),
                        false => at.wrapping_add(i * words).cast_const(),
                    };
                    let sources: SmallVec<[_; FEW]> = mates
                        .iter()
                        .enumerate()
                        .map(|(i, r)| (at((i, r)), factors[*r]))
                        .collect();
                    let out = match (here == last, wanted) {
                        (false, _) => so_far,
                        (true, true) => mine,
                        (true, false) => so_far.wrapping_add(sums),
                    };
                    let part = Part {
                        so_far: if here == 0 {
                            std::ptr::null()
                        } else {
                            so_far.cast_const()
                        },
                        ranks: self.n,
                        ends: here == last,
                    };
                    // SAFETY: the words have come; the sum lies over the one before it, the result over this rank's own words or apart.
                    unsafe {
                        self.fold().part(part, &sources, out, piece.count);
                        let mut f = self.flight();
                        if here < last {
                            let after = self.worker(here + 1, turn, &piece);
                            f.send(after, out, piece.count * sum)?;
                        } else {
                            f = f.phase(RESULT);
                            self.pass_on(&mut f, turn, &piece, out, piece.count * one)?;
                        }
                        way.on = Some(f);
                    }
                }
                // The last host's worker has it already.
                if wanted && !(here == last && worker == self.me) {
                    let from = match here == last || (worker != self.me && piece.owner.is_none()) {
                        true => worker,
                        false => self.worker(self.next_with(here, &piece), turn, &piece),
                    };
                    let mut f = self.flight().phase(RESULT);
                    // SAFETY: this rank's own words have left from there, or have been added up.
                    unsafe { f.recv(from, mine, piece.count * one)? };
                    way.result = Some(f);
                }
            }
            if turn >= window {
                let done = turn - window;
                let piece = pieces.get(done);
                let Some(mut way) = under_way.pop_front() else {
                    break;
                };
                front += 1;
                if let Some(mut f) = way.on.take() {
                    f.land()?;
                }
                if let Some(mut f) = way.result.take() {
                    f.land()?;
                    if piece.owner.is_none() && self.worker(here, done, &piece) == self.me {
                        let mut f = self.flight().phase(RESULT);
                        let mine = to.wrapping_add(piece.to * one);
                        // SAFETY: the result has come, and nothing is written there any more.
                        unsafe { self.pass_on(&mut f, done, &piece, mine, piece.count * one)? };
                        leaving.push_back(f);
                        if leaving.len() > window {
                            leaving.pop_front().map_or(Ok(()), |mut f| f.land())?;
                        }
                    }
                }
            }
        }
        leaving.iter_mut().try_for_each(Flight::land)?;
        // SAFETY: the result has room for as many bytes.
        unsafe { copy(p.recv, to, spare) };
        Ok(())
    }

    /// The host from which a host gets the result of a piece: the one behind it, or the last, where only one rank wants it.
    fn next_with(&self, host: usize, piece: &Piece) -> usize {
        match piece.owner {
            None => host + 1,
            Some(_) => self.m.hosts.count() - 1,
        }
    }

    /// Sends the result of piece `k` from a worker of it to those who get it from there.
    ///
    /// # Safety
    /// The bytes stay until the flight has landed.
    unsafe fn pass_on(
        &self,
        f: &mut Flight<'_>,
        k: usize,
        piece: &Piece,
        at: *const u8,
        bytes: usize,
    ) -> Result<()> {
        let hosts = &self.m.hosts;
        let here = hosts.of(self.me);
        let back = here.checked_sub(1).map(|h| self.worker(h, k, piece));
        let mates = hosts.ranks[here].iter().copied();
        // The link first: it is what everybody waits for.
        let all = back.into_iter().chain(mates);
        let to: SmallVec<[usize; FEW]> = match piece.owner {
            None => all.collect(),
            Some(owner) => SmallVec::from_slice(&[owner]),
        };
        for r in to.into_iter().filter(|r| *r != self.me) {
            // SAFETY: promised by the caller.
            unsafe { f.send(r, at, bytes)? };
        }
        Ok(())
    }
}
