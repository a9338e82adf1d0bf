//! Sizes beyond those that a kernel has tiles, blocks and grids of: what a usual trial proves of 33 elements, these
//! prove of 4,097 and 65,541. A kernel that is wrong beyond a size, or one that is chosen from a size on, shows.
//!
//! Every size of an op is large in some trial, one or two at a time and the others small, so that a trial costs
//! what its elements cost. Sizes are a little beyond the tile, by a seeded number, so that the ends of vectors of
//! every width are met.

//!
//! Trials of residues ([`About::Residues`]) are of the ends that a tile has: sizes of every residue class of interest of every
//! width, small and behind one whole tile, in every dim.

use super::cell::{About, Gen};
use super::tensor::T;
use crate::case::Effort;
use std::collections::BTreeSet;

/// Sizes that tiles and blocks have.
const TILES: [usize; 4] = [128, 256, 1024, 4096];
/// Beyond what a dim of a grid may have on some devices.
const GRID: usize = 65_535;

/// Widths of tiles and of vectors whose ends are tried.
pub const WIDTHS: [usize; 5] = [8, 16, 32, 64, 128];

/// The residues that are tried of a width: one element, around the half, all but one, and none beside whole tiles.
pub fn residues_of(width: usize) -> [usize; 6] {
    let half = width / 2;
    [1, half - 1, half, half + 1, width - 1, 0]
}

/// A size of each of those, and the same behind one whole tile.
fn residues() -> Vec<usize> {
    let of = |w: usize| {
        residues_of(w).map(|r| [if r == 0 { w } else { r }, w + if r == 0 { w } else { r }])
    };
    let all: BTreeSet<usize> = WIDTHS.into_iter().flat_map(of).flatten().collect();
    all.into_iter().collect()
}

impl Gen {
    /// Sizes of residues in a seeded order: all, or at `--quick` two, which differ from case to case.
    fn ends(&mut self) -> Vec<usize> {
        let mut all = residues();
        for i in (1..all.len()).rev() {
            let at = self.below(i + 1);
            all.swap(i, at);
        }
        if self.effort == Effort::Quick {
            all.truncate(2);
        }
        all
    }

    /// Shapes of so many dims and at most so many elements, in which each dim has each size of residues: several dims end in the
    /// middle of a tile at once. `most` is at least the largest size.
    pub fn ending<const DIMS: usize>(&mut self, most: usize) -> Vec<[usize; DIMS]> {
        let most = match self.effort {
            Effort::Quick => (most / 8).max(256),
            _ => most,
        };
        let mut left: [Vec<usize>; DIMS] = std::array::from_fn(|_| self.ends());
        let mut all = Vec::new();
        while let Some(first) = (0..DIMS)
            .map(|k| (all.len() + k) % DIMS)
            .find(|d| !left[*d].is_empty())
        {
            let (mut shape, mut room) = ([1; DIMS], most);
            for dim in (0..DIMS).map(|k| (first + k) % DIMS) {
                shape[dim] = match left[dim].iter().position(|n| *n <= room) {
                    Some(at) => left[dim].remove(at),
                    None => 1 + self.below(room.min(5)),
                };
                room /= shape[dim];
            }
            all.push(shape);
        }
        all
    }

    fn past(&mut self, n: usize) -> usize {
        n + 1 + self.below(7)
    }

    /// A size just beyond each tile that a kernel may have, and a whole number of tiles: kernels without ends are chosen for those.
    pub fn beyond(&mut self) -> Vec<usize> {
        if self.about == About::Residues {
            return self.ends();
        }
        let (tiles, whole): (&[usize], usize) = match self.effort {
            Effort::Quick => (&[256], 1024),
            Effort::Default => (&TILES, 256),
            Effort::Big => (&[128, 256, 512, 1024, 2048, 4096, 8192, 16_384], 256),
        };
        let mut all: Vec<usize> = tiles.iter().map(|n| self.past(*n)).collect();
        all.push(whole);
        all
    }

    /// One size, for dims that are rarely other than the rest of a layout: beyond 1,024, and a whole number of tiles.
    pub fn long(&mut self) -> usize {
        1024 + 128 * (1 + self.below(3))
    }

    /// The same, or at the ends of tiles each size of those.
    pub fn longs(&mut self) -> Vec<usize> {
        match self.about {
            About::Residues if self.effort == Effort::Quick => vec![],
            About::Residues => self.ends(),
            _ => vec![self.long()],
        }
    }

    /// The same where the work grows with the square: to 4,096 even where all is tried, and to 256 where little is.
    pub fn beyond_squared(&mut self) -> Vec<usize> {
        let most = match self.effort {
            Effort::Quick => 256,
            _ => 4096,
        };
        let mut n = self.beyond();
        n.retain(|n| *n < 2 * most);
        n
    }

    /// Sizes that a grid cannot count, and whose last index is no 16-bit number.
    pub fn grid(&mut self) -> Vec<usize> {
        match self.effort {
            _ if self.about == About::Residues => vec![],
            Effort::Quick => vec![],
            Effort::Default => vec![self.past(GRID + 1)],
            Effort::Big => vec![self.past(GRID + 1), self.past(1 << 20)],
        }
    }
}

/// Operands with a large size: alone, as a dim of every place, transposed, padded and with gaps.
pub fn operands(g: &mut Gen, mut make: impl FnMut(&mut Gen, &[usize]) -> T) -> Vec<(String, T)> {
    let mut all = Vec::new();
    let mut put = |what: String, x: T| all.push((what, x));
    if g.about == About::Residues {
        for n in g.ends() {
            put(format!("[{n}]"), make(g, &[n]));
        }
        for (i, s) in g.ending::<4>(4096).into_iter().enumerate() {
            let x = make(g, &s);
            let (how, x) = match i % 4 {
                0 => ("", x),
                1 => (" padded", x.padded(3)),
                2 => (" transposed", x.transposed()),
                _ => (" in another order", x.lying(&[3, 0, 2, 1])),
            };
            put(format!("{s:?}{how}"), x);
        }
        return all;
    }
    for n in g.beyond() {
        put(format!("[{n}]"), make(g, &[n]));
        put(format!("[{n},3] transposed"), make(g, &[n, 3]).transposed());
        put(format!("[3,{n}] padded"), make(g, &[3, n]).padded(3));
        let middle = make(g, &[2, n, 3]).lying(&[2, 0, 1]);
        put(format!("[2,{n},3] in another order"), middle);
    }
    for n in g.grid() {
        put(format!("[{n}]"), make(g, &[n]));
        put(format!("[{n},2] transposed"), make(g, &[n, 2]).transposed());
        put(format!("[2,{n}] padded"), make(g, &[2, n]).padded(1));
        let n = n.next_multiple_of(128);
        let first = make(g, &[n, 1, 2]).lying(&[2, 0, 1]);
        put(format!("[{n},1,2] in another order"), first);
    }
    let n = g.long();
    let outer = make(g, &[n, 1, 2, 3]).lying(&[3, 1, 0, 2]);
    put(format!("[{n},1,2,3] in another order"), outer);
    // Two sizes at once.
    if g.effort != Effort::Quick {
        let (m, n) = (g.past(1024), g.past(64));
        let x = make(g, &[m, n]).transposed();
        put(format!("[{m},{n}] transposed"), x);
    }
    all
}

/// The same for operands that are only read: broadcast as well.
pub fn inputs(g: &mut Gen, mut make: impl FnMut(&mut Gen, &[usize]) -> T) -> Vec<(String, T)> {
    let mut all = operands(g, &mut make);
    if g.about == About::Residues {
        for s in g.ending::<2>(1024) {
            let x = make(g, &s).broadcast(&[all.len() % 2]);
            all.push((format!("{s:?} broadcast"), x));
        }
        return all;
    }
    for n in g.beyond() {
        let (a, b) = (make(g, &[3, n]), make(g, &[n, 3]));
        all.push((format!("[3,{n}] rows broadcast"), a.broadcast(&[0])));
        all.push((format!("[{n},3] columns broadcast"), b.broadcast(&[1])));
    }
    all
}
