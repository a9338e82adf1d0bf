//! The flat layout of a unit: its parameters end to end in one buffer, cut into as many equal slices as there are ranks.
//!
//! Everything that is sharded over the data-parallel group follows this one table: parameters, gradients, master copies, moments,
//! checkpoints, and the bytes that are predicted for them. Units of length are elements throughout; bytes are the caller's.

use std::ops::Range;

/// How the parameters of a unit are dealt to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Partition {
    /// End to end in declared order, padded at the end to a multiple of the ranks; a slice may begin and end inside a parameter.
    #[default]
    Flat,
    /// Each parameter whole on one rank, the ranks balanced by size: for optimizers that need whole matrices. Slices are as long as
    /// the fullest rank needs.
    WholeParameter,
}

/// A part of one parameter that lies in one rank's slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the parameter in the unit.
    pub param: usize,
    /// Rank that owns the part.
    pub rank: u32,
    /// Elements of the parameter, row-major.
    pub of_param: Range<u64>,
    /// Where they lie in the rank's slice.
    pub in_slice: Range<u64>,
}

/// Where each parameter of a unit lies in the unit's flat buffer, and which slice of the buffer each rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatLayout {
    deal: Partition,
    ranges: Vec<Range<u64>>,
    numel: u64,
    slice: u64,
    ranks: u32,
    /// Elements of a logical slice, where there are any.
    logical: Option<u64>,
}

impl FlatLayout {
    /// Lays out parameters of `sizes` elements for `ranks` ranks (0 counts as 1).
    pub fn new(deal: Partition, sizes: &[u64], ranks: u32) -> FlatLayout {
        let ranks = ranks.max(1);
        let numel = sizes.iter().sum();
        let (ranges, slice) = match deal {
            Partition::Flat => (end_to_end(sizes, 0), div_up(numel, ranks)),
            Partition::WholeParameter => owner_whole(sizes, ranks),
        };
        FlatLayout {
            deal,
            ranges,
            numel,
            slice,
            ranks,
            logical: None,
        }
    }

    /// The same, with slices that are made of whole logical slices: the unit is cut into `shards` of those, wherever they lie, so that a
    /// figure of a logical slice is the same on any number of ranks. What is dealt whole has no cuts, and stays as it is.
    pub fn canonical(deal: Partition, sizes: &[u64], ranks: u32, shards: u32) -> FlatLayout {
        let plain = FlatLayout::new(deal, sizes, ranks);
        if deal == Partition::WholeParameter {
            return plain;
        }
        let logical = div_up(plain.numel, shards.max(1));
        FlatLayout {
            slice: logical * u64::from(shards.max(1).div_ceil(plain.ranks)),
            logical: Some(logical),
            ..plain
        }
    }

    /// A piece cut where logical slices end: the number of each, and its part.
    pub fn logical(&self, piece: &Piece) -> Vec<(u64, Piece)> {
        let Some(each) = self.logical.filter(|n| *n > 0) else {
            return vec![(0, piece.clone())];
        };
        let start = self.slice(piece.rank).start;
        let (mut from, end) = (start + piece.in_slice.start, start + piece.in_slice.end);
        let first = from;
        let mut out = vec![];
        while from < end {
            let to = end.min((from / each + 1) * each);
            let of_param = piece.of_param.start + from - first;
            out.push((
                from / each,
                Piece {
                    param: piece.param,
                    rank: piece.rank,
                    of_param: of_param..of_param + to - from,
                    in_slice: from - start..to - start,
                },
            ));
            from = to;
        }
        out
    }

    /// How it was dealt.
    pub fn deal(&self) -> Partition {
        self.deal
    }
    /// Ranks it is cut for.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }
    /// Parameters of the unit.
    pub fn params(&self) -> usize {
        self.ranges.len()
    }
    /// Elements of all parameters, padding left out.
    pub fn numel(&self) -> u64 {
        self.numel
    }
    /// Elements of the flat buffer: `ranks` slices, padding included.
    pub fn padded(&self) -> u64 {
        self.slice * u64::from(self.ranks)
    }
    /// Elements of the buffer that belong to no parameter.
    pub fn padding(&self) -> u64 {
        self.padded() - self.numel
    }
    /// Elements of each rank's slice.
    pub fn slice_len(&self) -> u64 {
        self.slice
    }
    /// Elements of the buffer that `rank` owns; empty for a rank there is not.
    pub fn slice(&self, rank: u32) -> Range<u64> {
        let from = self.slice * u64::from(rank.min(self.ranks));
        from..(from + self.slice).min(self.padded())
    }
    /// Elements of the buffer that hold parameter `param`; empty for a parameter there is not.
    pub fn range(&self, param: usize) -> Range<u64> {
        self.ranges.get(param).cloned().unwrap_or(0..0)
    }
    /// Elements of the buffer of every parameter, in declared order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The parts of a parameter by rank, in the parameter's order. Together they are the whole parameter, each element once.
    pub fn pieces(&self, param: usize) -> Vec<Piece> {
        let whole = self.range(param);
        let mut pieces = vec![];
        let mut from = whole.start;
        while from < whole.end {
            let rank = (from / self.slice) as u32;
            let slice = self.slice(rank);
            let to = whole.end.min(slice.end);
            pieces.push(Piece {
                param,
                rank,
                of_param: from - whole.start..to - whole.start,
                in_slice: from - slice.start..to - slice.start,
            });
            from = to;
        }
        pieces
    }

    /// The parts of parameters that `rank` owns, in declared order.
    pub fn owned(&self, rank: u32) -> Vec<Piece> {
        (0..self.params())
            .flat_map(|p| self.pieces(p))
            .filter(|p| p.rank == rank)
            .collect()
    }
}

fn div_up(n: u64, ranks: u32) -> u64 {
    n.div_ceil(u64::from(ranks))
}

fn end_to_end(sizes: &[u64], from: u64) -> Vec<Range<u64>> {
    let mut at = from;
    let place = |size: &u64| {
        let range = at..at + size;
        at = range.end;
        range
    };
    sizes.iter().map(place).collect()
}

/// The largest parameter first, each to the rank that has least so far (the lowest of equals); within a rank in declared order.
fn owner_whole(sizes: &[u64], ranks: u32) -> (Vec<Range<u64>>, u64) {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&p| (std::cmp::Reverse(sizes[p]), p));
    let mut load = vec![0u64; ranks as usize];
    let mut owner = vec![0usize; sizes.len()];
    for p in order {
        let least = (0..load.len()).min_by_key(|&r| load[r]).unwrap_or(0);
        owner[p] = least;
        load[least] += sizes[p];
    }
    let slice = load.iter().copied().max().unwrap_or(0);
    let mut at: Vec<u64> = (0..u64::from(ranks)).map(|r| r * slice).collect();
    let place = |(size, &rank): (&u64, &usize)| {
        let range = at[rank]..at[rank] + size;
        at[rank] = range.end;
        range
    };
    (sizes.iter().zip(&owner).map(place).collect(), slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of every parameter belongs to exactly one rank, at the place the flat buffer says.
    fn covers(layout: &FlatLayout, sizes: &[u64]) {
        assert_eq!(layout.numel(), sizes.iter().sum::<u64>());
        assert_eq!(
            layout.padded(),
            layout.slice_len() * u64::from(layout.ranks())
        );
        let mut taken = vec![0u8; layout.padded() as usize];
        for (param, size) in sizes.iter().enumerate() {
            let range = layout.range(param);
            assert_eq!(range.end - range.start, *size);
            let mut from = 0;
            for piece in layout.pieces(param) {
                assert_eq!(piece.of_param.start, from);
                from = piece.of_param.end;
                let slice = layout.slice(piece.rank);
                assert!(piece.in_slice.end <= layout.slice_len());
                assert_eq!(
                    slice.start + piece.in_slice.start,
                    range.start + piece.of_param.start
                );
                let here = slice.start + piece.in_slice.start..slice.start + piece.in_slice.end;
                here.for_each(|e| taken[e as usize] += 1);
            }
            assert_eq!(from, *size);
        }
        assert!(taken.iter().all(|&t| t <= 1));
        let used = taken.iter().filter(|&&t| t == 1).count() as u64;
        assert_eq!(used + layout.padding(), layout.padded());
        let owned: usize = (0..layout.ranks()).map(|r| layout.owned(r).len()).sum();
        let pieces: usize = (0..sizes.len()).map(|p| layout.pieces(p).len()).sum();
        assert_eq!(owned, pieces);
    }

    #[test]
    fn every_element_has_one_owner() {
        let units: [&[u64]; 6] = [&[], &[1], &[7, 1, 1], &[10, 3, 5, 16], &[0, 4, 0], &[100]];
        for sizes in units {
            for ranks in [1, 2, 3, 4, 8, 64] {
                for deal in [Partition::Flat, Partition::WholeParameter] {
                    covers(&FlatLayout::new(deal, sizes, ranks), sizes);
                }
            }
        }
    }

    /// Logical slices are the same elements of the same parameters on any number of ranks, and none is on two.
    #[test]
    fn logical_slices_do_not_know_the_ranks() {
        let units: [&[u64]; 5] = [&[], &[7, 1, 1], &[10, 3, 5, 16], &[0, 4, 0], &[100]];
        for sizes in units {
            for shards in [1, 3, 8] {
                let cuts = |ranks: u32| -> Vec<(u64, usize, Range<u64>)> {
                    let l = FlatLayout::canonical(Partition::Flat, sizes, ranks, shards);
                    covers(&l, sizes);
                    let all = (0..sizes.len()).flat_map(|p| l.pieces(p));
                    all.flat_map(|p| l.logical(&p))
                        .map(|(n, p)| (n, p.param, p.of_param))
                        .collect()
                };
                let alone = cuts(1);
                assert!(alone.iter().all(|c| c.0 < u64::from(shards)));
                for ranks in 2..=shards {
                    assert_eq!(cuts(ranks), alone, "{sizes:?}, {ranks} of {shards}");
                }
            }
        }
    }

    #[test]
    fn even_slices_are_equal_and_padding_is_less_than_the_ranks() {
        let l = FlatLayout::new(Partition::Flat, &[10, 3, 5], 4);
        assert_eq!((l.padded(), l.slice_len(), l.padding()), (20, 5, 2));
        assert_eq!(l.slice(3), 15..20);
        let cut: Vec<_> = l
            .pieces(0)
            .iter()
            .map(|p| (p.rank, p.in_slice.clone()))
            .collect();
        assert_eq!(cut, [(0, 0..5), (1, 0..5)]);
        let of_last: Vec<_> = l
            .owned(3)
            .iter()
            .map(|p| (p.param, p.of_param.clone()))
            .collect();
        assert_eq!(of_last, [(2, 2..5)]);
    }

    #[test]
    fn an_owner_holds_whole_parameters_and_the_ranks_are_balanced() {
        let sizes = [6, 5, 4, 3, 2, 1];
        let l = FlatLayout::new(Partition::WholeParameter, &sizes, 3);
        for p in 0..sizes.len() {
            assert_eq!(l.pieces(p).len(), 1, "parameter {p} is cut");
        }
        assert_eq!((l.slice_len(), l.padding()), (7, 0));
        // One rank holds all in declared order, so a job of one rank has the even layout.
        let one = FlatLayout::new(Partition::WholeParameter, &sizes, 1);
        assert_eq!(
            one.ranges(),
            FlatLayout::new(Partition::Flat, &sizes, 1).ranges()
        );
    }
}
