//! The rows of a micro-batch on one rank: how many, of how many tokens, and what of them counts.

use crate::documents::Documents;

/// The rows that a rank reads in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// Sequences a micro-batch on this rank.
    pub batch: u64,
    /// Sequences of this rank's micro-batch over the mean of all ranks': what its loss and gradients count for. 1 where all take the same.
    pub weight: f64,
    /// Tokens a sequence.
    pub seq_len: u64,
    /// Rows hold several documents that must not see each other, or whose positions begin anew.
    pub documents: Option<Documents>,
    /// Some predictions have a target of -100 and do not count: the loss is the mean over those of all ranks that do.
    pub labelled: bool,
}

impl Rows {
    /// `batch` sequences of `seq_len` tokens, as many as on the other ranks, each one document whose every prediction counts.
    pub fn new(batch: u64, seq_len: u64) -> Rows {
        Rows {
            batch,
            weight: 1.0,
            seq_len,
            documents: None,
            labelled: false,
        }
    }

    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> u64 {
        self.batch * self.seq_len
    }
}
