//! Reductions along a chain of hosts, in pieces. Each host goes on with the sum where the host before it stopped, in rank order, and the sums
//! under way keep all their bits; a 16-bit result is rounded once, at the last host. The bits are those of one owner that adds all ranks.
//!
//! A piece is worked on by one rank of each host, by turns: the others of the host send it their words. The result goes back from host to host
//! where everybody wants it, and straight to its rank where one does. So many bytes leave a host, however many ranks are on it: see `crossweave_hosts`.

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
    /// Number of ranks of the communicator.
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

/// The state of a piece under way on a rank.
struct Way<'a> {
    /// Its words on their way to the rank that works on the piece, or the others' words on their way here.
    words: Flight<'a>,
    /// The bytes that it sends on: those of a sum, or of a result.
    on: Option<Flight<'a>>,
    /// The result on its way here.
    result: Option<Flight<'a>>,
}

/// The places in scratch of a piece's parts: the words of every rank of the host, the sum so far, the result.
struct Room {
    at: *mut u8,
    /// Places, which the pieces take by turns.
    places: usize,
    /// Bytes of the words of one rank, and of the sums.
    words: usize,
    sums: usize,
    /// Ranks of the host.
    mates: usize,
}

impl Room {
    /// Bytes of a place.
    fn place(&self) -> usize {
        (self.mates + 1) * self.words + self.sums
    }

    /// The words of a rank, by its place on the host, for piece `k`.
    fn words(&self, k: usize, nth: usize) -> *mut u8 {
        let at = k % self.places * self.place() + nth * self.words;
        self.at.wrapping_add(at)
    }

    fn sum(&self, k: usize) -> *mut u8 {
        self.words(k, self.mates)
    }

    fn result(&self, k: usize) -> *mut u8 {
        self.sum(k).wrapping_add(self.sums)
    }
}

/// A reduction along the chain, as one rank runs it.
struct Chain<'a> {
    run: &'a Run<'a>,
    pieces: Pieces,
    /// Every rank's factor of a scaled sum; only those of this host are known.
    factors: SmallVec<[f64; FEW]>,
    room: Room,
    /// The place of the result.
    to: *mut u8,
    /// The pieces under way, of which the first is `front`.
    under_way: VecDeque<Way<'a>>,
    front: usize,
    /// Results that are passed on.
    leaving: VecDeque<Flight<'a>>,
}

impl Run<'_> {
    /// Reduces what this rank sends over all ranks. `aside`: the result waits in scratch until everything has been sent, since it lies over it.
    ///
    /// # Safety
    /// The operands are live; unless `aside`, the result lies over this rank's own part of what is sent, or apart from it.
    pub(super) unsafe fn chain(&self, leaves: Leaves, aside: bool) -> Result<()> {
        let (p, hosts) = (self.p, &self.m.links.hosts);
        // A result comes back after as many pieces as there are links both ways; words are sent before their turn.
        let window = 2 * hosts.count() + 2;
        let ahead = window / 2;
        let even = p.bytes(p.count) / (2 * window);
        let pieces = Pieces {
            leaves,
            n: self.n,
            count: p.count as usize,
            step: (even.clamp(SHORTEST, LONGEST) / p.bytes(1)).max(1),
        };
        let mates = &hosts.ranks[hosts.of(self.me)];
        let factors = self.factors(mates)?;
        let mut room = Room {
            at: std::ptr::null_mut(),
            places: window + ahead + 1,
            words: pieces.step * p.bytes(1),
            sums: pieces.step * self.fold().sum_bytes(),
            mates: mates.len(),
        };
        let spare = if aside { p.bytes(p.count) } else { 0 };
        let scratch = self.m.scratch(spare + room.places * room.place());
        room.at = scratch.wrapping_add(spare);
        let to = if aside { scratch } else { p.recv };
        let all = pieces.len();
        let mut chain = Chain {
            run: self,
            pieces,
            factors,
            room,
            to,
            under_way: VecDeque::new(),
            front: 0,
            leaving: VecDeque::new(),
        };
        let mut next = 0;
        for turn in 0..all + window {
            // SAFETY: promised by the caller; each piece is asked for, added up and settled once, in this order.
            unsafe {
                while next < all && next <= turn + ahead {
                    chain.ask(next)?;
                    next += 1;
                }
                if turn < all {
                    chain.add_up(turn)?;
                }
                if let Some(done) = turn.checked_sub(window) {
                    chain.settle(done, window)?;
                }
            }
        }
        chain.leaving.iter_mut().try_for_each(Flight::land)?;
        // SAFETY: the result has room for as many bytes.
        unsafe { copy(p.recv, to, spare) };
        Ok(())
    }

    /// The rank that works on piece `k` on a host: its owner where it is there.
    fn worker(&self, host: usize, k: usize, piece: &Piece) -> usize {
        let hosts = &self.m.links.hosts;
        match piece.owner {
            Some(owner) if hosts.of(owner) == host => owner,
            _ => hosts.ranks[host][k % hosts.ranks[host].len()],
        }
    }

    /// The place of this rank's host in the chain, and that of the last.
    fn links(&self) -> (usize, usize) {
        let hosts = &self.m.links.hosts;
        (hosts.of(self.me), hosts.count() - 1)
    }

    /// The host from which a host gets the result of a piece: the one behind it, or the last, where only one rank wants it.
    fn next_with(&self, host: usize, piece: &Piece) -> usize {
        match piece.owner {
            None => host + 1,
            Some(_) => self.links().1,
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
        let hosts = &self.m.links.hosts;
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

impl Chain<'_> {
    /// Starts sending this rank's words of piece `k`, or receiving the others' where it works on it.
    ///
    /// # Safety
    /// The contract of [`Run::chain`] holds, and the piece before in its place is settled.
    unsafe fn ask(&mut self, k: usize) -> Result<()> {
        let (run, p) = (self.run, self.run.p);
        let ((here, _), piece) = (run.links(), self.pieces.get(k));
        let worker = run.worker(here, k, &piece);
        let (bytes, mut f) = (p.bytes(piece.count as u64), run.flight());
        // SAFETY: places of different pieces lie apart; words are live, and are not written over before they have left.
        unsafe {
            if worker == run.me {
                for (i, r) in run.m.links.hosts.ranks[here].iter().enumerate() {
                    if *r != run.me {
                        f.recv(*r, self.room.words(k, i), bytes)?;
                    }
                }
                if let Some(before) = here.checked_sub(1) {
                    let before = run.worker(before, k, &piece);
                    let bytes = piece.count * run.fold().sum_bytes();
                    f.recv(before, self.room.sum(k), bytes)?;
                }
            } else {
                let from = p.bytes(piece.from as u64);
                f.send(worker, p.send.wrapping_add(from), bytes)?;
            }
        }
        self.under_way.push_back(Way {
            words: f,
            on: None,
            result: None,
        });
        Ok(())
    }

    /// This rank's place for the result of a piece.
    fn mine(&self, piece: &Piece) -> *mut u8 {
        let at = self.run.p.bytes(piece.to as u64);
        self.to.wrapping_add(at)
    }

    /// Adds the words of this host to piece `k` and sends the sum on, where this rank works on it, and starts receiving its result.
    ///
    /// # Safety
    /// The contract of [`Run::chain`] holds, and the piece has been asked for.
    unsafe fn add_up(&mut self, k: usize) -> Result<()> {
        let (run, p) = (self.run, self.run.p);
        let ((here, last), piece) = (run.links(), self.pieces.get(k));
        let (worker, mine) = (run.worker(here, k, &piece), self.mine(&piece));
        let wanted = piece.owner.is_none_or(|owner| owner == run.me);
        let bytes = p.bytes(piece.count as u64);
        self.under_way[k - self.front].words.land()?;
        if worker == run.me {
            let from = p.bytes(piece.from as u64);
            let words = |(i, r): (usize, &usize)| match *r == run.me {
                true => (p.send.wrapping_add(from), self.factors[*r]),
                false => (self.room.words(k, i).cast_const(), self.factors[*r]),
            };
            let mates = run.m.links.hosts.ranks[here].iter();
            let sources: SmallVec<[_; FEW]> = mates.enumerate().map(words).collect();
            let out = match (here == last, wanted) {
                (false, _) => self.room.sum(k),
                (true, true) => mine,
                (true, false) => self.room.result(k),
            };
            let part = Part {
                so_far: match here {
                    0 => std::ptr::null(),
                    _ => self.room.sum(k).cast_const(),
                },
                ranks: run.n,
                ends: here == last,
            };
            let mut f = run.flight();
            // SAFETY: the words have come; the sum lies over the one before it, the result over this rank's own words or apart.
            unsafe {
                run.fold().part(part, &sources, out, piece.count);
                if here < last {
                    let after = run.worker(here + 1, k, &piece);
                    f.send(after, out, piece.count * run.fold().sum_bytes())?;
                } else {
                    f = f.phase(RESULT);
                    run.pass_on(&mut f, k, &piece, out, bytes)?;
                }
            }
            self.under_way[k - self.front].on = Some(f);
        }
        // The last host's worker has it already.
        if wanted && !(here == last && worker == run.me) {
            let from = match here == last || (worker != run.me && piece.owner.is_none()) {
                true => worker,
                false => run.worker(run.next_with(here, &piece), k, &piece),
            };
            let mut f = run.flight().phase(RESULT);
            // SAFETY: this rank's own words have left from there, or have been added up.
            unsafe { f.recv(from, mine, bytes)? };
            self.under_way[k - self.front].result = Some(f);
        }
        Ok(())
    }

    /// Waits until piece `k`, the first under way, has left and its result has come, and passes that on. At most `window` are being passed on.
    ///
    /// # Safety
    /// The contract of [`Run::chain`] holds, and the piece has been added up.
    unsafe fn settle(&mut self, k: usize, window: usize) -> Result<()> {
        let run = self.run;
        let ((here, _), piece) = (run.links(), self.pieces.get(k));
        let Some(mut way) = self.under_way.pop_front() else {
            return Ok(());
        };
        self.front += 1;
        if let Some(mut f) = way.on.take() {
            f.land()?;
        }
        let Some(mut f) = way.result.take() else {
            return Ok(());
        };
        f.land()?;
        if piece.owner.is_none() && run.worker(here, k, &piece) == run.me {
            let mut f = run.flight().phase(RESULT);
            let bytes = run.p.bytes(piece.count as u64);
            // SAFETY: the result has come, and nothing is written there any more.
            unsafe { run.pass_on(&mut f, k, &piece, self.mine(&piece), bytes)? };
            self.leaving.push_back(f);
        }
        match self.leaving.len() > window {
            true => self.leaving.pop_front().map_or(Ok(()), |mut f| f.land()),
            false => Ok(()),
        }
    }
}
