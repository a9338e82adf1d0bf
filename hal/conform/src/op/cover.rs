//! Choices of several things at once, by design: in the rows of a covering array every choice of a factor meets every choice of every other one in
//! some row, so that a kernel that is wrong for one such pair alone is met, whatever else is asked of it. (D. M. Cohen et al., "The AETG system",
//! IEEE Transactions on Software Engineering 23(7), 1997: rows are added greedily.)

use super::cell::Gen;
use crate::case::Effort;
use crate::ctx::Rng;
use std::collections::BTreeSet;

/// The seed of every array; it stands in the ids of the cases that try their rows.
pub const SEED: u64 = 1;
/// Rows that are drawn for each that is taken.
const CANDIDATES: usize = 6;

/// A choice of a factor: its number and that of the choice.
type Choice = (usize, usize);

/// Every set of `strength` factors of `n`, in ascending order.
fn sets(n: usize, strength: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for _ in 0..strength {
        let longer = |s: &Vec<usize>| {
            let from = s.last().map_or(0, |l| l + 1);
            let s = s.clone();
            (from..n).map(move |f| [&s[..], &[f]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

/// Every combination of choices of the factors `of`.
fn choices(levels: &[usize], of: &[usize]) -> Vec<Vec<Choice>> {
    of.iter().fold(vec![vec![]], |all, f| {
        let longer = |c: &Vec<Choice>| {
            let c = c.clone();
            (0..levels[*f]).map(move |l| [&c[..], &[(*f, l)]].concat())
        };
        all.iter().flat_map(longer).collect()
    })
}

/// Rows in which every `strength` factors have every combination of their choices; `levels` has the number of choices of each factor. Of fewer
/// factors than `strength` every combination is a row.
///
/// Needs memory for the combinations of every set of factors.
pub fn covering(levels: &[usize], strength: usize, seed: u64) -> Vec<Vec<usize>> {
    let strength = strength.min(levels.len());
    let mut left: BTreeSet<Vec<Choice>> = sets(levels.len(), strength)
        .iter()
        .flat_map(|of| choices(levels, of))
        .collect();
    let all = sets(levels.len(), strength);
    let mut rng = Rng::new(seed);
    let mut rows = vec![];
    while !left.is_empty() {
        let one = rng.below(left.len() as u64) as usize;
        let Some(first) = left.iter().nth(one).cloned() else {
            break;
        };
        let drawn = (0..CANDIDATES).map(|_| row(levels, &first, &left, &mut rng));
        let worth = |row: &Vec<usize>| {
            let of = |s: &&Vec<usize>| left.contains(&taken(row, s));
            all.iter().filter(of).count()
        };
        let Some(best) = drawn.max_by_key(worth) else {
            break;
        };
        for s in &all {
            left.remove(&taken(&best, s));
        }
        rows.push(best);
    }
    rows
}

/// Returns the choices of a row for the factors `of`.
fn taken(row: &[usize], of: &[usize]) -> Vec<Choice> {
    of.iter().map(|f| (*f, row[*f])).collect()
}

/// A row that has `first`: each other factor, in an order that is drawn, takes the choice by which most of what is left is nearer to be met.
fn row(
    levels: &[usize],
    first: &[Choice],
    left: &BTreeSet<Vec<Choice>>,
    rng: &mut Rng,
) -> Vec<usize> {
    let mut chosen: Vec<Option<usize>> = vec![None; levels.len()];
    first.iter().for_each(|(f, l)| chosen[*f] = Some(*l));
    let mut order: Vec<usize> = (0..levels.len()).filter(|f| chosen[*f].is_none()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for f in order {
        let mut worth = vec![0usize; levels[f]];
        for c in left {
            let own = c.iter().find(|c| c.0 == f);
            let fits = |(g, l): &Choice| *g == f || chosen[*g].is_none_or(|x| x == *l);
            if let Some((_, l)) = own.filter(|_| c.iter().all(fits)) {
                worth[*l] += 1;
            }
        }
        let most = worth.iter().max().copied().unwrap_or(0);
        let best: Vec<usize> = (0..levels[f]).filter(|l| worth[*l] == most).collect();
        chosen[f] = Some(best[rng.below(best.len() as u64) as usize]);
    }
    chosen.into_iter().map(|c| c.unwrap_or(0)).collect()
}

impl Gen {
    /// Rows of choices of factors that have so many each: every pair of choices of any two of them, every triple at [`Effort::Big`], and at
    /// [`Effort::Quick`] a third of the rows of pairs.
    pub fn covering<const N: usize>(&self, levels: [usize; N]) -> Vec<[usize; N]> {
        let (strength, step) = match self.effort {
            Effort::Quick => (2, 3),
            Effort::Default => (2, 1),
            Effort::Big => (3, 1),
        };
        let rows = covering(&levels, strength, SEED).into_iter().step_by(step);
        rows.filter_map(|r| r.try_into().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_in_a_row_and_rows_are_few() {
        for (levels, strength, most) in [
            (vec![2, 5, 4, 4, 2, 4, 2, 5], 2, 32),
            (vec![2, 2, 2, 2, 2, 2, 2, 2, 2, 2], 2, 12),
            (vec![3, 3, 3, 3], 2, 12),
            (vec![2, 3, 4, 2, 3], 3, 48),
            (vec![3, 4], 3, 12),
            (vec![4], 2, 4),
        ] {
            let rows = covering(&levels, strength, SEED);
            assert_eq!(rows, covering(&levels, strength, SEED));
            for row in &rows {
                assert!(row.iter().zip(&levels).all(|(c, n)| c < n));
            }
            for of in sets(levels.len(), strength.min(levels.len())) {
                for want in choices(&levels, &of) {
                    let met = rows.iter().any(|r| taken(r, &of) == want);
                    assert!(met, "{levels:?}: no row has {want:?}");
                }
            }
            assert!(rows.len() <= most, "{levels:?}: {} rows", rows.len());
        }
        assert_eq!(covering(&[], 2, SEED), [[0usize; 0]]);
    }
}
