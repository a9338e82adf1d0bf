//! Why a job ends before its time, as its processes report it of one another.

use crate::message::{Message, kind, pair};
use std::ops::Range;

/// The mark of a message about something that was lost.
pub(crate) const LOST: &str = "lost";

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
    Said {
        /// Why it ends.
        words: String,
        /// What it needed was lost (a rank, a host, a link, a device): the same job, begun again, may come further.
        lost: bool,
    },
    /// Nothing came from its host for longer than the limit, in words.
    Silent(String),
}

impl Cause {
    /// The cause that a process states in its message of failure.
    pub(crate) fn from_message(m: &Message) -> Cause {
        Cause::Said {
            words: String::from_utf8_lossy(&m.value).into_owned(),
            lost: m.key == LOST,
        }
    }
}

impl PeerFailure {
    /// What the server sends to the processes.
    pub(crate) fn notice(&self) -> Message {
        let (kind, at, text) = match &self.cause {
            Cause::Said { words, .. } => (kind::FAIL, self.ranks.start, words.as_str()),
            Cause::Died => (kind::DEAD, self.ranks.start, ""),
            Cause::Silent(words) => (kind::SILENT, self.ranks.end, words.as_str()),
        };
        let mark = if self.is_lost() { LOST } else { "" };
        Message::new(kind, pair(self.process, at), mark, text.as_bytes())
    }

    /// What ends the job is the loss of something that it needs: the same job, begun again, may come further.
    pub fn is_lost(&self) -> bool {
        match self.cause {
            Cause::Died | Cause::Silent(_) => true,
            Cause::Said { lost, .. } => lost,
        }
    }
}

impl std::fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = rank_words(&self.ranks);
        match &self.cause {
            Cause::Said { words, .. } => write!(f, "{who} failed: {words}"),
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
