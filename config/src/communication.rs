//! The algorithms of sums between processes that a config asks for, by kind.

use crate::settings::{Algorithms, Communication};

impl Communication {
    /// The algorithms of all-reduces and of reduce-scatters.
    pub fn of_kinds(&self) -> [&str; 2] {
        match &self.algorithm {
            Algorithms::All(word) => [word, word],
            Algorithms::Each(each) => [&each.all_reduce, &each.reduce_scatter],
        }
    }

    /// Do all sums add in the order of ranks?
    pub fn keeps_order(&self) -> bool {
        let keeps = |word: &&str| ["auto", "ordered"].contains(word);
        self.of_kinds().iter().all(keeps)
    }
}
