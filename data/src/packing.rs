//! Which examples share a row: as many as fit, best fit by decreasing length within a window.
//!
//! The rows follow from the lengths alone, so there are as many in every epoch and with every seed; the order in which they are trained on
//! is the seed's. Examples are drawn into windows at random, so that rows are not sorted by length, and a row that still has room stays open
//! for the windows behind.

use crate::rng::{Rng, Tag};
use std::collections::BTreeSet;

/// Examples that are sorted by length at once.
const WINDOW: usize = 4096;

/// The examples of each row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Indices of examples, row after row.
    examples: Vec<u32>,
    /// The start of each row in `examples`, and the end of the last.
    begins: Vec<u32>,
}

impl Packing {
    /// Each of `count` examples alone.
    pub(crate) fn single(count: u32) -> Packing {
        Packing {
            examples: (0..count).collect(),
            begins: (0..=count).collect(),
        }
    }

    /// Examples of these lengths, none above `room`, in rows of `room` tokens.
    pub(crate) fn best_fit(lengths: &[u32], room: u32) -> Packing {
        let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
        Rng::new(0, Tag::Packing, 0).shuffle(&mut order);
        let mut rows: Vec<Vec<u32>> = vec![];
        // Room that is left, and the row that has it.
        let mut open: BTreeSet<(u32, u32)> = BTreeSet::new();
        for window in order.chunks_mut(WINDOW) {
            window.sort_by_key(|e| std::cmp::Reverse(lengths[*e as usize]));
            for example in window {
                let len = lengths[*example as usize];
                let fullest = open.range((len, 0)..).next().copied();
                let (left, row) = fullest.unwrap_or_else(|| {
                    rows.push(vec![]);
                    (room, rows.len() as u32 - 1)
                });
                open.remove(&(left, row));
                rows[row as usize].push(*example);
                if left > len {
                    open.insert((left - len, row));
                }
            }
        }
        let mut packing = Packing::default();
        packing.begins.push(0);
        for row in rows {
            packing.examples.extend(row);
            packing.begins.push(packing.examples.len() as u32);
        }
        packing
    }

    /// Rows.
    pub(crate) fn rows(&self) -> u64 {
        self.begins.len() as u64 - 1
    }

    /// The examples of a row; none where there is no such row.
    pub(crate) fn row(&self, row: u32) -> &[u32] {
        let ends = self.begins.get(row as usize..).and_then(|b| b.get(..2));
        ends.and_then(|b| self.examples.get(b[0] as usize..b[1] as usize))
            .unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(lengths: &[u32], room: u32) -> f64 {
        let packing = Packing::best_fit(lengths, room);
        let all: u64 = lengths.iter().map(|n| u64::from(*n)).sum();
        all as f64 / (packing.rows() as f64 * f64::from(room))
    }

    #[test]
    fn chats_fill_their_rows() {
        let lengths = |count: u32| -> Vec<u32> {
            (0..count)
                .map(|i| 20 + i.wrapping_mul(2_654_435_761) % 381)
                .collect()
        };
        for count in [500, 5_000, 50_000] {
            let share = full(&lengths(count), 1025);
            assert!(share > 0.98, "{count} chats: {share}");
        }
        // Rows that are much longer than a window of examples stay open for the next one.
        let share = full(&lengths(50_000), 300_000);
        assert!(share > 0.95, "{share}");
    }

    #[test]
    fn what_does_not_fit_beside_another_is_alone() {
        assert_eq!(Packing::best_fit(&[6, 6, 6], 10).rows(), 3);
        assert_eq!(Packing::best_fit(&[5, 5, 10], 10).rows(), 2);
        assert_eq!(Packing::best_fit(&[], 10).rows(), 0);
        let single = Packing::single(3);
        assert_eq!(
            (single.rows(), single.row(2), single.row(3)),
            (3, &[2][..], &[][..])
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn every_example_is_in_one_row_and_no_row_is_too_long(
            lengths in prop::collection::vec(1u32..40, 0..9000),
        ) {
            let packing = Packing::best_fit(&lengths, 40);
            let mut seen = vec![];
            for row in 0..packing.rows() as u32 {
                let examples = packing.row(row);
                prop_assert!(!examples.is_empty());
                prop_assert!(examples.iter().map(|e| lengths[*e as usize]).sum::<u32>() <= 40);
                seen.extend_from_slice(examples);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len() as u32).collect::<Vec<_>>());
        }
    }
}
