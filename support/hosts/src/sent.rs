//! The bytes that the ranks of a host send in a collective, to one another and to other hosts, by the algorithms that carry it between hosts.
//!
//! With `S` bytes of a vector, `n` ranks on `H` hosts, `r` of them on the host that is looked at, `w` bytes an element and `a` bytes of its
//! sum under way (4 for 16-bit floats, else `w`), a host sends to other hosts:
//!
//! | collective | by owners | over hosts |
//! |---|---|---|
//! | all-reduce, small | `r (n - r) S` | `r (H - 1) S` |
//! | all-reduce | `2 r (n - r) / n S` | `a / w S` but for the last host, and `S` but for the first |
//! | reduce-scatter | `r (n - r) / n S` | `a / w S`; the last host the results of the others' ranks |
//! | reduce | `r (n - r) / n S`, and `r / n S` where the root is elsewhere | `a / w S`; the last host `S` where the root is elsewhere |
//! | all-gather | `r (n - r) / n S` | `r (H - 1) / n S` |
//! | all-to-all | `r (n - r) / n S` | |
//! | broadcast | the pieces of `spread` | `S` at most |
//!
//! What sums that give the order of ranks up say is in `by_name`.

use crate::{Algorithm, Hosts, Leaves};

/// Vectors of up to this many bytes are added up by every rank; between two ranks, of which each then sends the vector once, of up to four
/// times as many.
pub const SMALL: usize = 4 << 10;
/// A broadcast of more bytes goes out in pieces that the ranks then exchange.
pub const SPREAD: usize = 128 << 10;

/// Bytes of the piece of a vector that each owner adds up at a time.
pub const OWNED: usize = 2048 << 10;

/// A collective of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every rank has the sum.
    AllReduce,
    /// Every rank has a block of the sum.
    ReduceScatter,
    /// Every rank has what all have given.
    AllGather,
    /// Every rank has a block of each.
    AllToAll,
    /// Every rank sends to the one behind it, and the last to the first.
    Ring,
}

/// A collective with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The kind of the collective.
    pub kind: Kind,
    /// Elements of the whole vector: what is summed, what is gathered, what a rank deals out or sends on.
    pub elements: u64,
    /// Bytes of an element.
    pub width: u64,
    /// Bytes of an element of a sum under way.
    pub sum: u64,
    /// The algorithm of a sum.
    pub by: Algorithm,
}

/// Bytes that the ranks of a host send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The bytes to ranks of the same host.
    pub within: u64,
    /// The bytes to ranks of other hosts.
    pub between: u64,
}

impl Hosts {
    /// The bytes that each host's ranks send in a collective over all of these.
    pub fn sent(&self, call: Call) -> Vec<Sent> {
        if let Some(all) = self.messages_by_name(call) {
            let mut sent = vec![Sent::default(); self.count()];
            for (rank, to, _, bytes) in all {
                let of = &mut sent[self.of(rank)];
                match self.apart(rank, to) {
                    true => of.between += bytes,
                    false => of.within += bytes,
                }
            }
            return sent;
        }
        let (n, hosts) = (self.of.len() as u64, self.count() as u64);
        let whole = call.elements * call.width;
        let each = |of: &dyn Fn(usize, u64) -> [u64; 2]| -> Vec<Sent> {
            let all = self.ranks.iter().enumerate();
            let sent = |(h, ranks): (usize, &Vec<usize>)| {
                let [within, between] = of(h, ranks.len() as u64);
                Sent { within, between }
            };
            all.map(sent).collect()
        };
        // Sums by owners only, where that is asked for, or as near as can be said.
        let any = !matches!(call.by, Algorithm::Ordered | Algorithm::Native);
        let chained = |leaves| any && self.chain(leaves, call.width as usize, call.sum as usize);
        // A vector of which every rank has a block, and blocks of the ranks of a host.
        let block = whole / n.max(1);
        let small = SMALL as u64 * if n == 2 { 4 } else { 1 };
        match call.kind {
            Kind::AllReduce if whole <= small && !(any && self.shared()) => {
                each(&|_, r| [r * (r - 1), r * (n - r)].map(|times| times * whole))
            }
            // One rank of each host gathers its host's words, exchanges them, and hands out all.
            Kind::AllReduce if whole <= small => {
                each(&|_, r| [(r - 1) * (1 + n), r * (hosts - 1)].map(|times| times * whole))
            }
            Kind::AllReduce if chained(Leaves::All) => each(&|h, r| {
                let (on, back) = self.links(h);
                let between = on * call.elements * call.sum + back * whole;
                [2 * (r - 1) * whole, between]
            }),
            // Words go to their owners, and sums come from there.
            Kind::AllReduce => each(&|h, r| {
                let owned = call.width * self.owned(h, call.elements);
                let out = r * (whole - owned) + (n - r) * owned;
                [2 * (r - 1) * owned, out]
            }),
            Kind::ReduceScatter if chained(Leaves::Blocks) => each(&|h, r| {
                let between = match self.links(h).0 {
                    0 => (n - r) * block,
                    _ => call.elements * call.sum,
                };
                [(r - 1) * whole, between]
            }),
            // Each far block comes to one rank of the host, which passes it on.
            Kind::AllGather if self.shared() => {
                each(&|_, r| [(r - 1) * n, r * (hosts - 1)].map(|times| times * block))
            }
            Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => {
                each(&|_, r| [r * (r - 1), r * (n - r)].map(|times| times * block))
            }
            Kind::Ring => each(&|h, r| {
                let next = |i: &&usize| self.apart(**i, (**i + 1) % self.of.len());
                let out = self.ranks[h].iter().filter(next).count() as u64;
                [(r - out) * whole, out * whole]
            }),
        }
    }

    /// Messages that the rank sends that sends most; `None` where that is the affair of a library, or of the pieces that go along hosts.
    pub fn messages(&self, call: Call) -> Option<u64> {
        let n = self.of.len() as u64;
        if n == 1 || call.by == Algorithm::Native {
            return (n == 1).then_some(0);
        }
        if let Some(all) = self.messages_by_name(call) {
            let mut each = vec![0; self.of.len()];
            all.iter()
                .for_each(|(rank, _, messages, _)| each[*rank] += messages);
            return each.into_iter().max();
        }
        let whole = call.elements * call.width;
        let ordered = call.by == Algorithm::Ordered;
        match call.kind {
            Kind::AllReduce | Kind::ReduceScatter if self.shared() && !ordered => None,
            Kind::AllReduce if whole <= SMALL as u64 * if n == 2 { 4 } else { 1 } => Some(n - 1),
            // In rounds of a piece of each owner.
            Kind::AllReduce => {
                let owned = whole.div_ceil(n);
                Some(2 * (n - 1) * owned.div_ceil(OWNED as u64))
            }
            Kind::ReduceScatter => Some((n - 1) * (whole / n).div_ceil(OWNED as u64).max(1)),
            _ => None,
        }
    }

    /// Links of the chain behind a host and before it: 1 or 0.
    fn links(&self, host: usize) -> (u64, u64) {
        (u64::from(host + 1 < self.count()), u64::from(host > 0))
    }

    /// Elements of a vector that the ranks of a host own: it is cut evenly, and the first ranks have one more where it does not divide.
    fn owned(&self, host: usize, elements: u64) -> u64 {
        let n = self.of.len() as u64;
        let each = |r: &usize| elements / n + u64::from((*r as u64) < elements % n);
        self.ranks[host].iter().map(each).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(hosts: &Hosts, kind: Kind, elements: u64, width: u64) -> Vec<u64> {
        let call = Call {
            kind,
            elements,
            width,
            sum: 4,
            by: Algorithm::Auto,
        };
        hosts.sent(call).iter().map(|s| s.between).collect()
    }

    /// The bytes of docs/launching.md, in bytes of the model: S of f32, with 4 bytes an element.
    #[test]
    fn what_leaves_a_host_is_what_the_table_says() {
        const S: u64 = 4 * 48_000;
        let all = |h: u32, r: u32| between(&Hosts::even(h, r), Kind::AllReduce, S / 4, 4);
        assert_eq!(all(2, 2), [S, S]);
        assert_eq!(all(3, 2), [S, 2 * S, S]);
        assert_eq!(all(4, 1), [S * 3 / 2; 4]);
        assert_eq!(all(1, 4), [0]);
        // 2 r (n - r) / n S, where the ranks of a host are no neighbours.
        let spread = Hosts::new(&[0, 1, 0, 1]);
        assert_eq!(between(&spread, Kind::AllReduce, S / 4, 4), [2 * S, 2 * S]);
        // In 16 bits sums under way are twice as long: a chain pays for 2 x 4 only.
        assert_eq!(
            between(&Hosts::even(2, 4), Kind::AllReduce, S / 4, 2),
            [S, S / 2]
        );
        assert_eq!(
            between(&Hosts::even(2, 2), Kind::AllReduce, S / 4, 2),
            [S, S]
        );
        // Words: one message of all of a host's.
        assert_eq!(
            between(&Hosts::even(3, 2), Kind::AllReduce, 100, 4),
            [1600; 3]
        );
        assert_eq!(
            between(&Hosts::even(2, 1), Kind::AllReduce, 4000, 4),
            [16_000; 2]
        );
        let rest = |kind, h, r| between(&Hosts::even(h, r), kind, S / 4, 4);
        assert_eq!(rest(Kind::AllGather, 4, 2), [3 * 2 * S / 8; 4]);
        assert_eq!(rest(Kind::ReduceScatter, 2, 4), [S, S / 2]);
        assert_eq!(rest(Kind::ReduceScatter, 2, 2), [S; 2]);
        assert_eq!(rest(Kind::AllToAll, 2, 2), [S; 2]);
        assert_eq!(rest(Kind::Ring, 2, 2), [S; 2]);
    }

    /// What only moves bytes is sent as often over hosts as on one, and fewer of these times between them.
    #[test]
    fn nothing_is_lost_between_hosts() {
        for kind in [Kind::AllGather, Kind::AllToAll] {
            let call = Call {
                kind,
                elements: 48_000,
                width: 4,
                sum: 4,
                by: Algorithm::Auto,
            };
            let sum = |h: &Hosts| -> u64 {
                let all = h.sent(call);
                all.iter().map(|s| s.within + s.between).sum()
            };
            let spread = [Hosts::even(6, 1), Hosts::even(3, 2), Hosts::even(1, 6)];
            assert_eq!(spread.each_ref().map(sum), [30 * 32_000; 3], "{kind:?}");
        }
    }
}
