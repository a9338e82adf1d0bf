//! `run.balance`: how the global batch, or with `mesh.pp` the model's units, are divided over ranks that are not equally fast.

use crate::resolve::Resolver;
use crate::settings::{Run, Settings};

const KEY: &str = "run.balance";

/// The shares of the ranks in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Balance {
    /// Every rank the same.
    Even,
    /// In proportion to how fast each rank is found to be before the first step.
    Speed,
    /// In proportion to one positive number for each rank.
    Weights(Vec<f64>),
}

impl Run {
    /// `run.balance`, read; `None` when it is no value of that key.
    pub fn balance(&self) -> Option<Balance> {
        match self.balance.trim() {
            "even" => Some(Balance::Even),
            "speed" => Some(Balance::Speed),
            list => {
                let weight = |w: &str| {
                    w.trim()
                        .parse()
                        .ok()
                        .filter(|w: &f64| w.is_finite() && *w > 0.0)
                };
                list.split(',')
                    .map(weight)
                    .collect::<Option<_>>()
                    .map(Balance::Weights)
            }
        }
    }
}

impl Resolver<'_> {
    /// The key by itself, and with what it contradicts.
    pub(crate) fn balance(&mut self, s: &Settings, ranks: u64) {
        let given = &s.run.balance;
        let how = "write \"even\", \"speed\", or a positive number for each rank, e.g. \"3,1\"";
        match s.run.balance() {
            None => {
                return self.error(
                    KEY,
                    format!("wanted a division of the batch, got {given:?}"),
                    how,
                );
            }
            Some(Balance::Even) => return,
            Some(Balance::Weights(w)) if w.len() as u64 != ranks => {
                let what = format!("{} weights for {ranks} ranks", w.len());
                return self.error(
                    KEY,
                    what,
                    format!("give {ranks}, in the order of the ranks, or \"speed\""),
                );
            }
            Some(Balance::Speed | Balance::Weights(_)) => {}
        }
        if s.mesh.cp > 1 {
            let what = "the ranks that cut rows (mesh.cp) see the same sequences, and have equal parts of them";
            self.error(KEY, what, "set it to \"even\", or mesh.cp to 1");
        }
        if s.mesh.ep > 1 {
            let what = "the ranks that have other experts (mesh.ep) wait for each other in every layer, and have as many rows each";
            self.error(KEY, what, "set it to \"even\", or mesh.ep to 1");
        }
        if s.run.canonical_shards.is_some() {
            let what =
                "canonical sums go over logical shards of one size, whichever rank computes them";
            self.error(
                KEY,
                what,
                "set it to \"even\", or remove run.canonical_shards",
            );
        }
    }
}
