//! Why a job ends before its time, as its processes report it of one another.

use crate::message::{Message, kind, pair};
use std::ops::Range;

/// Why a job ends before its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFailure {
    /// The process.
    pub process: u32,
    /// The rank of it that failed, or all its ranks where it died.
    pub ranks: Range<u32>,
    /// What is known of why.
    pub cause: Cause,
}

/// How a process came to fail, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its connection ended without a word.
    Died,
    /// Its own words.
    Said(String),
    /// Nothing came from its host for longer than the limit, in words.
    Silent(String),
}

impl PeerFailure {
    /// What the server sends to the processes.
    pub(crate) fn notice(&self) -> Message {
        let (kind, at, text) = match &self.cause {
            Cause::Said(words) => (kind::FAIL, self.ranks.start, words.as_str()),
            Cause::Died => (kind::DEAD, self.ranks.start, ""),
            Cause::Silent(words) => (kind::SILENT, self.ranks.end, words.as_str()),
        };
        Message::new(kind, pair(self.process, at), "", text.as_bytes())
    }
}

impl std::fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = rank_words(&self.ranks);
        match &self.cause {
            Cause::Said(words) => write!(f, "{who} failed: {words}"),
            Cause::Silent(words) => write!(f, "{who} {words}"),
            Cause::Died => write!(
                f,
                "{who} died without a word (killed, crashed, or its machine is gone)"
            ),
        }
    }
}

/// Ranks in words: `rank 3`, `ranks 0 to 2`.
pub fn rank_words(ranks: &Range<u32>) -> String {
    match ranks.len() {
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {} to {}", ranks.start, ranks.end.saturating_sub(1)),
    }
}
