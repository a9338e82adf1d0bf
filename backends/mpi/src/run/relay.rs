//! What only moves bytes, over hosts with several ranks: every byte crosses into a host once, and is passed on there. Small sums are such a
//! thing too: the words of all ranks go everywhere, and every rank adds them up in rank order.

use super::{FEW, PIECE, Run, copy};
use crate::flight::Flight;
use crossweave_abi::RED_PREMUL_SUM;
use crossweave_hosts::SPREAD;
use crossweave_plugin::Result;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Messages that are passed on have tags of their own: two ranks of a host also have words of their own for each other.
const PASSED: u32 = 1;

impl Run<'_> {
    /// One rank of each host gathers its host's words, exchanges them with those of the other hosts, and hands out all of them.
    pub(super) fn sum_of_words(&self) -> Result<()> {
        let (p, hosts) = (self.p, &self.m.links.hosts);
        let bytes = p.bytes(p.count);
        let scaled = p.reduce == RED_PREMUL_SUM;
        // A word: what a rank gives, and its factor behind it.
        let word = if scaled {
            bytes.next_multiple_of(8) + 8
        } else {
            bytes
        };
        let all = self.m.scratch(word * self.n);
        // Words lie host by host, so that those of a host are one message.
        let mut starts: SmallVec<[usize; FEW]> = SmallVec::new();
        let mut at = 0;
        for ranks in &hosts.ranks {
            starts.push(at);
            at += ranks.len() * word;
        }
        let place = |r: usize| starts[hosts.of(r)] + hosts.place[r] * word;
        let here = hosts.of(self.me);
        let mates = &hosts.ranks[here];
        let head = mates[0];
        // SAFETY: the operands are live, as `Run` says; places lie apart.
        unsafe {
            let mine = all.add(place(self.me));
            copy(mine, p.send, bytes);
            if scaled {
                let factor = mine.add(word - 8).cast::<f64>();
                factor.write_unaligned(p.factor());
            }
            let mut f = self.flight();
            if head == self.me {
                for r in &mates[1..] {
                    f.recv(*r, all.add(place(*r)), word)?;
                }
                f.land()?;
                let mut f = self.flight();
                let others = || (0..hosts.count()).filter(|h| *h != here);
                for h in others() {
                    let ranks = &hosts.ranks[h];
                    f.recv(ranks[0], all.add(starts[h]), ranks.len() * word)?;
                }
                for h in others() {
                    let to = hosts.ranks[h][0];
                    f.send(to, all.add(starts[here]), mates.len() * word)?;
                }
                f.land()?;
                let mut f = self.flight();
                for r in &mates[1..] {
                    f.send(*r, all, self.n * word)?;
                }
                f.land()?;
            } else {
                f.send(head, mine, word)?;
                f.land()?;
                let mut f = self.flight();
                f.recv(head, all, self.n * word)?;
                f.land()?;
            }
            let factor = |r: usize| match scaled {
                true => all.add(place(r) + word - 8).cast::<f64>().read_unaligned(),
                false => 1.0,
            };
            let sources: SmallVec<[_; FEW]> = (0..self.n)
                .map(|r| (all.add(place(r)).cast_const(), factor(r)))
                .collect();
            self.fold().run(&sources, p.recv, p.count as usize);
        }
        Ok(())
    }

    /// The rank of a host that gets what `of` gives straight from it.
    fn relay(&self, host: usize, of: usize) -> usize {
        let ranks = &self.m.links.hosts.ranks[host];
        ranks[self.m.links.hosts.place[of] % ranks.len()]
    }

    /// Every rank sends its part to the ranks of its host and to one of each other host, which passes it on; `place` says where the parts
    /// lie, and how long they are.
    pub(super) fn gather_over_hosts(&self, place: impl Fn(usize) -> (usize, usize)) -> Result<()> {
        let (p, hosts) = (self.p, &self.m.links.hosts);
        let here = hosts.of(self.me);
        let longest = (0..self.n).map(|r| place(r).1).max().unwrap_or(0);
        let rounds = longest.div_ceil(PIECE);
        let piece = |r: usize, round: usize| {
            let (at, bytes) = place(r);
            let from = (round * PIECE).min(bytes);
            (at + from, (bytes - from).min(PIECE))
        };
        let mates = || hosts.ranks[here].iter().copied().filter(|r| *r != self.me);
        let far = || (0..self.n).filter(|r| hosts.of(*r) != here);
        let (mut first, mut passed): (VecDeque<Flight<'_>>, VecDeque<Flight<'_>>) =
            Default::default();
        for turn in 0..=rounds {
            // SAFETY: the operands are live, as `Run` says; parts lie apart.
            unsafe {
                if turn < rounds {
                    let mut f = self.flight();
                    let near = mates().chain(far().filter(|r| self.relay(here, *r) == self.me));
                    for r in near {
                        let (at, bytes) = piece(r, turn);
                        if bytes > 0 {
                            f.recv(r, p.recv.add(at), bytes)?;
                        }
                    }
                    let (_, bytes) = piece(self.me, turn);
                    let others = (0..hosts.count()).filter(|h| *h != here);
                    let relays = others.map(|h| self.relay(h, self.me));
                    for r in relays.chain(mates()).filter(|_| bytes > 0) {
                        f.send(r, p.send.add(turn * PIECE), bytes)?;
                    }
                    first.push_back(f);
                }
                if let Some(round) = turn.checked_sub(1) {
                    if let Some(mut f) = first.pop_front() {
                        f.land()?;
                    }
                    let mut f = self.flight().phase(PASSED);
                    for r in far() {
                        let (at, bytes) = piece(r, round);
                        let relay = self.relay(here, r);
                        if bytes == 0 {
                            continue;
                        }
                        if relay != self.me {
                            f.recv(relay, p.recv.add(at), bytes)?;
                            continue;
                        }
                        for mate in mates() {
                            f.send(mate, p.recv.add(at), bytes)?;
                        }
                    }
                    passed.push_back(f);
                    if passed.len() > 1
                        && let Some(mut f) = passed.pop_front()
                    {
                        f.land()?;
                    }
                }
            }
        }
        passed.iter_mut().try_for_each(Flight::land)
    }

    /// From the root's host to the others, one rank of each: few bytes by a binomial tree, many along a chain in pieces; and on to the ranks of
    /// the host.
    pub(super) fn broadcast_over_hosts(&self, bytes: usize) -> Result<()> {
        let (p, hosts) = (self.p, &self.m.links.hosts);
        let (here, count) = (hosts.of(self.me), hosts.count());
        let from = hosts.of(p.root);
        let head = |host: usize| match host == from {
            true => p.root,
            false => hosts.ranks[host][0],
        };
        // Hosts as seen from the root's.
        let rel = (here + count - from) % count;
        let peer = |rel: usize| head((rel + from) % count);
        let mut to: SmallVec<[usize; FEW]> = SmallVec::new();
        let source = if head(here) != self.me {
            Some(head(here))
        } else if bytes > SPREAD {
            to.extend((rel + 1 < count).then(|| peer(rel + 1)));
            (rel > 0).then(|| peer(rel - 1))
        } else {
            let mut mask = 1;
            while mask < count && rel & mask == 0 {
                mask <<= 1;
            }
            let source = (rel > 0).then(|| peer(rel - mask));
            mask >>= 1;
            while mask > 0 {
                to.extend((rel + mask < count).then(|| peer(rel + mask)));
                mask >>= 1;
            }
            source
        };
        if head(here) == self.me {
            let mates = hosts.ranks[here].iter().copied();
            to.extend(mates.filter(|r| *r != self.me));
        }
        let step = SPREAD.min(bytes.max(1));
        let pieces = bytes.div_ceil(step);
        let len = |k: usize| step.min(bytes - k * step);
        let (mut coming, mut leaving): (VecDeque<Flight<'_>>, VecDeque<Flight<'_>>) =
            Default::default();
        let mut next = 0;
        for k in 0..pieces {
            // SAFETY: the operands are live, as `Run` says; a piece is passed on when it has come, and written by nobody afterwards.
            unsafe {
                while let (Some(r), true) = (source, next < pieces && next <= k + 2) {
                    let mut f = self.flight();
                    f.recv(r, p.recv.add(next * step), len(next))?;
                    coming.push_back(f);
                    next += 1;
                }
                if let Some(mut f) = coming.pop_front() {
                    f.land()?;
                }
                let mut f = self.flight();
                for r in &to {
                    f.send(*r, p.recv.add(k * step), len(k))?;
                }
                leaving.push_back(f);
            }
            if leaving.len() > 2
                && let Some(mut f) = leaving.pop_front()
            {
                f.land()?;
            }
        }
        leaving.iter_mut().try_for_each(Flight::land)
    }
}
