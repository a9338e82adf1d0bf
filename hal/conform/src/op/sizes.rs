//! Sizes beyond those that a kernel has tiles, blocks and grids of: what a usual trial proves of 33 elements, these
//! prove of 4,097 and 65,541. A kernel that is wrong beyond a size, or one that is chosen from a size on, shows.
//!
//! Every size of an op is large in some trial, one or two at a time and the others small, so that a trial costs
//! what its elements cost. Sizes are a little beyond the tile, by a seeded number, so that the ends of vectors of
//! every width are met.

use super::cell::Gen;
use super::tensor::T;
use crate::case::Effort;

/// Sizes that tiles and blocks have.
const TILES: [usize; 4] = [128, 256, 1024, 4096];
/// Beyond what a dim of a grid may have on some devices.
const GRID: usize = 65_535;

impl Gen {
    fn past(&mut self, n: usize) -> usize {
        n + 1 + self.below(7)
    }

    /// A size just beyond each tile that a kernel may have, and a whole number of tiles: kernels without ends are chosen for those.
    pub fn beyond(&mut self) -> Vec<usize> {
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
    for n in g.beyond() {
        let (a, b) = (make(g, &[3, n]), make(g, &[n, 3]));
        all.push((format!("[3,{n}] rows broadcast"), a.broadcast(&[0])));
        all.push((format!("[{n},3] columns broadcast"), b.broadcast(&[1])));
    }
    all
}
