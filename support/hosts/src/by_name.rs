//! What ranks say in sums that give their order up: round a ring, up and down a tree, by halves. The back end goes by the same shapes.
//!
//! With `E` elements of `w` bytes, of `a` bytes while they are being summed, over `n` ranks, a rank sends:
//!
//! | algorithm | messages | bytes |
//! |---|---|---|
//! | ring, all-reduce | `2 (n - 1)` | `(n - 1) / n E (a + w)` |
//! | ring, reduce-scatter | `n - 1` | `(n - 1) / n E a` |
//! | tree, all-reduce | `log2 n` at most | `E a` up, and `E w` to each rank below |
//! | halving, all-reduce | `2 log2 n` | `(n - 1) / n E (a + w)` where `n` is a power of two |
//! | halving, reduce-scatter | `log2 n` | `(n - 1) / n E a` where `n` is a power of two |
//!
//! Of other numbers of ranks the first ones go together by twos before they halve, and part again behind it. A vector goes in pieces of [`PIECE`].

use crate::{Algorithm, Call, Hosts, Kind};

/// Bytes of the vector that is summed at a time; of a vector of blocks, of all blocks together.
pub const PIECE: usize = 8 << 20;

/// A rank, another that it sends to, so many messages and bytes.
type Said = (usize, usize, u64, u64);

/// The rank above one in the tree; the first has none.
pub fn parent(rank: usize) -> Option<usize> {
    (rank > 0).then(|| rank & (rank - 1))
}

/// The ranks that halve a vector between them, of `n`: a power of two, of which the first stand for a neighbour too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    n: usize,
    /// Partners.
    pub partners: usize,
}

impl Halves {
    /// Those of so many ranks.
    pub fn new(n: usize) -> Halves {
        Halves {
            n,
            partners: 1 << n.max(1).ilog2(),
        }
    }

    /// Pairs of neighbours of which only the first is a partner.
    fn pairs(self) -> usize {
        self.n - self.partners
    }

    /// The rank of a partner.
    pub fn rank(self, partner: usize) -> usize {
        partner + partner.min(self.pairs())
    }

    /// The partner that a rank is, or the rank that stands for it.
    pub fn partner(self, rank: usize) -> Result<usize, usize> {
        match rank / 2 < self.pairs() {
            true if rank % 2 == 1 => Err(rank - 1),
            true => Ok(rank / 2),
            false => Ok(rank - self.pairs()),
        }
    }

    /// The neighbour that a rank stands for.
    pub fn stands_for(self, rank: usize) -> Option<usize> {
        (rank / 2 < self.pairs() && rank.is_multiple_of(2)).then_some(rank + 1)
    }

    /// The rounds of a partner in order: with whom, and the partners whose parts it keeps, and gives away.
    pub fn rounds(self, partner: usize) -> impl DoubleEndedIterator<Item = Round> {
        let steps = self.partners.ilog2();
        (0..steps).map(move |step| {
            // The parts of this many partners are halved.
            let wide = self.partners >> step;
            let from = partner & !(wide - 1);
            let middle = from + wide / 2;
            let (low, high) = ((from, middle), (middle, from + wide));
            let upper = partner >= middle;
            Round {
                with: partner ^ (wide / 2),
                keeps: if upper { high } else { low },
                gives: if upper { low } else { high },
            }
        })
    }

    /// The first of each partner's elements, and the end: blocks of the ranks for which it stands, or even parts of a vector.
    pub fn cuts(self, kind: Kind, elements: u64) -> Vec<u64> {
        let m = self.partners as u64;
        let cut = |partner: u64| match kind {
            Kind::ReduceScatter if partner == m => elements,
            Kind::ReduceScatter => elements / self.n as u64 * self.rank(partner as usize) as u64,
            _ => elements / m * partner + (elements % m).min(partner),
        };
        (0..=m).map(cut).collect()
    }
}

/// A round of a partner: ranges of partners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The other.
    pub with: usize,
    /// The parts that stay.
    pub keeps: (usize, usize),
    /// The parts that go to the other.
    pub gives: (usize, usize),
}

impl Hosts {
    /// What all ranks say to which in a sum by an algorithm that gives the order up; `None` of other calls. What a library's own calls say is its
    /// affair: they count as a ring, and as owners where they move words of 16 bits.
    pub(crate) fn messages_by_name(&self, call: Call) -> Option<Vec<Said>> {
        let blocks = match call.kind {
            Kind::AllReduce => false,
            Kind::ReduceScatter => true,
            _ => return None,
        };
        let n = self.of.len();
        let pieces = (call.elements * call.width).div_ceil(PIECE as u64).max(1);
        match call.by {
            Algorithm::Ring => {}
            Algorithm::Native if call.width >= 4 => {}
            Algorithm::Tree if !blocks => return Some(tree(n, call, pieces)),
            Algorithm::Halving => return Some(halving(n, call, pieces)),
            _ => return None,
        }
        let block = |r: usize| {
            let (n, r) = (n as u64, r as u64);
            call.elements / n + u64::from(r < call.elements % n)
        };
        let ring = |rank: usize| {
            let next = (rank + 1) % n;
            let sums = (call.elements - block(rank)) * call.sum;
            let results = (call.elements - block(next)) * call.width;
            let (times, bytes) = match blocks {
                true => (1, sums),
                false => (2, sums + results),
            };
            (rank, next, times * (n as u64 - 1) * pieces, bytes)
        };
        Some((0..n).filter(|_| n > 1).map(ring).collect())
    }
}

fn tree(n: usize, call: Call, pieces: u64) -> Vec<Said> {
    let edge = |rank: usize| {
        let above = parent(rank)?;
        let (up, down) = (call.elements * call.sum, call.elements * call.width);
        Some([(rank, above, pieces, up), (above, rank, pieces, down)])
    };
    (0..n).filter_map(edge).flatten().collect()
}

fn halving(n: usize, call: Call, pieces: u64) -> Vec<Said> {
    let halves = Halves::new(n);
    let cuts = halves.cuts(call.kind, call.elements);
    let blocks = call.kind == Kind::ReduceScatter;
    let mut all = vec![];
    for rank in 0..n {
        let Ok(partner) = halves.partner(rank) else {
            continue;
        };
        if let Some(other) = halves.stands_for(rank) {
            let back = match blocks {
                true => call.elements / n as u64 * call.width,
                false => call.elements * call.width,
            };
            all.push((other, rank, pieces, call.elements * call.sum));
            all.push((rank, other, pieces, back));
        }
        for round in halves.rounds(partner) {
            let with = halves.rank(round.with);
            let [gives, keeps] = [round.gives, round.keeps].map(|(a, b)| cuts[b] - cuts[a]);
            all.push((rank, with, pieces, gives * call.sum));
            if !blocks {
                all.push((rank, with, pieces, keeps * call.width));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: u64 = 55_440;

    fn sent(n: u32, kind: Kind, by: Algorithm, width: u64) -> (Vec<u64>, Option<u64>) {
        let call = Call {
            kind,
            elements: E,
            width,
            sum: 4,
            by,
        };
        let alone = Hosts::even(n, 1);
        let bytes = alone.sent(call).iter().map(|s| s.between).collect();
        (bytes, alone.messages(call))
    }

    #[test]
    fn ranks_say_what_the_table_says() {
        for n in [2u32, 4, 8] {
            let m = u64::from(n);
            let (log, part) = (u64::from(n.ilog2()), (m - 1) * E / m);
            for width in [2, 4] {
                let all = |by| sent(n, Kind::AllReduce, by, width);
                let blocks = |by| sent(n, Kind::ReduceScatter, by, width);
                let whole = vec![part * (4 + width); n as usize];
                let sums = vec![part * 4; n as usize];
                assert_eq!(all(Algorithm::Ring), (whole.clone(), Some(2 * (m - 1))));
                assert_eq!(all(Algorithm::Halving), (whole, Some(2 * log)));
                assert_eq!(blocks(Algorithm::Ring), (sums.clone(), Some(m - 1)));
                assert_eq!(blocks(Algorithm::Halving), (sums, Some(log)));
                let (bytes, messages) = all(Algorithm::Tree);
                assert_eq!(messages, Some(log.max(1)));
                assert_eq!(bytes[0], log * E * width);
                assert_eq!(bytes[n as usize - 1], E * 4);
            }
            assert_eq!(sent(n, Kind::AllReduce, Algorithm::Native, 4).1, None);
        }
    }

    /// The first of three ranks stands for the second.
    #[test]
    fn ranks_beyond_a_power_of_two_go_together() {
        let (bytes, messages) = sent(3, Kind::AllReduce, Algorithm::Halving, 4);
        let half = E / 2 * 4;
        assert_eq!(bytes, [2 * half + 4 * E, 4 * E, 2 * half]);
        assert_eq!(messages, Some(3));
        let (bytes, _) = sent(3, Kind::ReduceScatter, Algorithm::Halving, 4);
        let block = E / 3 * 4;
        assert_eq!(bytes, [block + block, 4 * E, 2 * block]);
    }

    #[test]
    fn partners_keep_every_part_once() {
        for n in 1..40 {
            let halves = Halves::new(n);
            let mut kept = vec![];
            for partner in 0..halves.partners {
                let rank = halves.rank(partner);
                assert_eq!(halves.partner(rank), Ok(partner));
                if let Some(other) = halves.stands_for(rank) {
                    assert_eq!(halves.partner(other), Err(rank));
                }
                let mut has = (0, halves.partners);
                for round in halves.rounds(partner) {
                    let (a, b) = (round.keeps.min(round.gives), round.keeps.max(round.gives));
                    assert_eq!((a.0, a.1, b.1), (has.0, b.0, has.1));
                    let theirs = halves.rounds(round.with);
                    assert!(theirs.into_iter().any(|r| r.gives == round.keeps));
                    has = round.keeps;
                }
                assert_eq!(has, (partner, partner + 1));
                kept.push(rank);
                kept.extend(halves.stands_for(rank));
            }
            kept.sort_unstable();
            assert_eq!(kept, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_tree_reaches_every_rank() {
        for n in 1..40 {
            let up = |mut rank| {
                while let Some(above) = parent(rank) {
                    assert!(above < rank);
                    rank = above;
                }
                rank
            };
            assert!((0..n).all(|r| up(r) == 0));
        }
    }
}
