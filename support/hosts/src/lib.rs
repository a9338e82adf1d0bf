//! The ranks of a group by the hosts that they are on, and the bytes of a collective that leave each host. The back end that carries
//! collectives between hosts decides by it, and who plans a job counts by it.
#![forbid(unsafe_code)]

mod algorithm;
mod by_name;
mod sent;
mod spread;

pub use algorithm::{Algorithm, Choice, KEY};
pub use by_name::{Halves, PIECE, parent};
pub use sent::{Call, Kind, OWNED, SMALL, SPREAD, Sent};
pub use spread::{Spread, SpreadError};

/// The hosts of a group's ranks, in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Each rank's host, by its number.
    numbers: Vec<u32>,
    /// The ranks of each host, ascending.
    pub ranks: Vec<Vec<usize>>,
    /// The host of each rank.
    of: Vec<usize>,
    /// Each rank's place among those of its host.
    pub place: Vec<usize>,
    /// The ranks of each host are neighbours.
    neighbours: bool,
}

/// The result of a reduction, and the ranks that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Every rank has the whole vector.
    All,
    /// Each rank has a block.
    Blocks,
    /// One rank has the whole vector.
    One(usize),
}

impl Hosts {
    /// `numbers`: each rank's host.
    pub fn new(numbers: &[u32]) -> Hosts {
        let mut names: Vec<u32> = vec![];
        let mut ranks: Vec<Vec<usize>> = vec![];
        let (mut of, mut place) = (vec![], vec![]);
        for (r, number) in numbers.iter().enumerate() {
            // Ranks of a host mostly follow one another.
            let known = names.iter().rposition(|n| n == number);
            let host = known.unwrap_or_else(|| {
                names.push(*number);
                ranks.push(vec![]);
                names.len() - 1
            });
            place.push(ranks[host].len());
            ranks[host].push(r);
            of.push(host);
        }
        Hosts {
            numbers: numbers.to_vec(),
            neighbours: of.is_sorted(),
            ranks,
            of,
            place,
        }
    }

    /// So many hosts with so many ranks on each, numbered host by host.
    pub fn even(hosts: u32, each: u32) -> Hosts {
        let of = |host| (0..each).map(move |_| host);
        let numbers: Vec<u32> = (0..hosts).flat_map(of).collect();
        Hosts::new(&numbers)
    }

    /// The hosts of some of the ranks.
    pub fn some(&self, ranks: &[usize]) -> Hosts {
        let numbers: Vec<u32> = ranks.iter().map(|r| self.numbers[*r]).collect();
        Hosts::new(&numbers)
    }

    /// The host of a rank.
    pub fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// Are two ranks on different hosts?
    pub fn apart(&self, a: usize, b: usize) -> bool {
        self.of[a] != self.of[b]
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the most hosts over which one of some groups lies, each given by its ranks; 1 of none.
    pub fn most_over<'a>(&self, groups: impl IntoIterator<Item = &'a [u32]>) -> usize {
        let count = |ranks: &[u32]| {
            let ranks: Vec<usize> = ranks.iter().map(|r| *r as usize).collect();
            self.some(&ranks).count()
        };
        groups.into_iter().map(count).max().unwrap_or(1)
    }

    /// There are several hosts, and several ranks on one of them: else every rank stands for itself.
    pub fn shared(&self) -> bool {
        (2..self.of.len()).contains(&self.count())
    }

    /// Does a chain over hosts send fewer bytes from the host that sends most than owners do? `width` bytes an element, `sum` of its sum.
    pub fn chain(&self, leaves: Leaves, width: usize, sum: usize) -> bool {
        let (n, last) = (self.of.len(), self.count() - 1);
        if !self.shared() || !self.neighbours {
            return false;
        }
        let elsewhere = |h: usize, root: usize| usize::from(self.of[root] != h);
        // In bytes of a vector of `n` elements.
        let owners = |h: usize| {
            let r = self.ranks[h].len();
            width
                * match leaves {
                    Leaves::All => 2 * r * (n - r),
                    Leaves::Blocks => r * (n - r),
                    Leaves::One(root) => r * (n - r) + r * elsewhere(h, root),
                }
        };
        let chain = |h: usize| {
            let on = if h < last { n * sum } else { 0 };
            let back = match leaves {
                Leaves::All if h > 0 => n,
                Leaves::Blocks if h == last => n - self.ranks[h].len(),
                Leaves::One(root) if h == last => n * elsewhere(h, root),
                _ => 0,
            };
            on + back * width
        };
        let most = |of: &dyn Fn(usize) -> usize| (0..=last).map(of).max();
        most(&chain) < most(&owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_in_the_order_of_their_first_ranks() {
        let h = Hosts::new(&[7, 7, 3, 7, 3]);
        assert_eq!(h.ranks, [vec![0, 1, 3], vec![2, 4]]);
        assert_eq!(h.place, [0, 1, 0, 2, 1]);
        assert!(h.shared() && !h.neighbours && h.apart(1, 2) && !h.apart(0, 3));
        assert_eq!(h.some(&[4, 0]), Hosts::new(&[3, 7]));
        assert_eq!(h.most_over([&[0, 1][..], &[1, 2, 4]]), 2);
        assert_eq!(h.most_over([&[2, 4][..]]), 1);
        assert_eq!(Hosts::even(2, 3), Hosts::new(&[0, 0, 0, 1, 1, 1]));
        // One host, or one rank on each: nobody shares a link.
        assert!(!Hosts::new(&[1, 1, 1]).shared() && !Hosts::new(&[1, 2, 3]).shared());
    }

    #[test]
    fn a_chain_is_taken_where_it_says_less() {
        let even = Hosts::even;
        let all = |h: &Hosts, width, sum| h.chain(Leaves::All, width, sum);
        // 2 x 2: owners 2 S, a chain S, and 2 S where partial sums are twice as long.
        assert!(all(&even(2, 2), 4, 4) && !all(&even(2, 2), 2, 4));
        // 4 x 2: 3 S, 2 S and 3 S. 2 x 4: 4 S, S and 2 S.
        assert!(all(&even(4, 2), 4, 4) && !all(&even(4, 2), 2, 4));
        assert!(all(&even(2, 4), 4, 4) && all(&even(2, 4), 2, 4));
        // One rank a host: owners say 1.5 S, a chain 2 S.
        assert!(!all(&even(4, 1), 4, 4));
        // Blocks: 2 x 4 2 S by owners, S by a chain; 2 x 2 S by both.
        assert!(even(2, 4).chain(Leaves::Blocks, 4, 4));
        assert!(!even(2, 2).chain(Leaves::Blocks, 4, 4));
        // A root on the first host, or on the last: 2 x 4 2.5 S by owners.
        assert!(even(2, 4).chain(Leaves::One(0), 4, 4) && even(2, 4).chain(Leaves::One(7), 4, 4));
        // Ranks that are no neighbours keep their owners.
        assert!(!all(&Hosts::new(&[0, 1, 0, 1, 0, 1, 0, 1]), 4, 4));
    }
}
