//! Forward and backward steps of the plan that repeat, replayed as graphs of the device (ADR 0037).
//!
//! The walk is the same with and without: blocks run their ops on the tape as ever, and the stream compares. What differs from step to step
//! (dropout's position, a pooled address that moved) is enqueued as it is, so no step needs to be known as recordable beforehand.

use crossweave_hal::{Device, Followed, Recordings, Stream};
use serde::{Deserialize, Serialize};

/// What replaying has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphCounts {
    /// Graphs recorded.
    pub recorded: u64,
    /// Plan steps enqueued as one graph, those just recorded among them.
    pub replayed: u64,
    /// Plan steps that could have been and were enqueued call by call.
    pub called: u64,
    /// Launches, copies and fills that graphs stood for, less one for each graph launched.
    pub launches_saved: u64,
    /// Why steps are no longer compared, and how many of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(String, u64)>,
}

/// Recordings by the plan's step, while nobody follows them.
pub(crate) struct Graphs {
    books: Vec<Option<Recordings>>,
    counts: GraphCounts,
}

impl Graphs {
    pub fn new(device: &Device, wanted: bool) -> crossweave_hal::Result<Option<Graphs>> {
        if !wanted {
            return Ok(None);
        }
        // A device without graphs is told at once and not at the first step.
        Recordings::new(device)?;
        Ok(Some(Graphs {
            books: vec![],
            counts: GraphCounts::default(),
        }))
    }

    /// Step `at` of the plan is about to be enqueued; whether its calls on the stream are compared with those of a step before.
    pub fn begin(&mut self, at: usize, stream: &Stream) -> crossweave_hal::Result<bool> {
        if self.books.len() <= at {
            self.books.resize_with(at + 1, || None);
        }
        let book = match self.books[at].take() {
            Some(b) => b,
            None => Recordings::new(stream.device())?,
        };
        if book.refused().is_some() {
            self.books[at] = Some(book);
            self.counts.called += 1;
            return Ok(false);
        }
        stream.follow(book)?;
        Ok(true)
    }

    /// A step that is compared has been enqueued, without an error where `ran`.
    pub fn end(&mut self, at: usize, stream: &Stream, ran: bool) -> crossweave_hal::Result<()> {
        let (book, followed) = stream.close(ran);
        self.books[at] = book;
        if !ran {
            return Ok(());
        }
        match followed? {
            Followed::Called => self.counts.called += 1,
            Followed::Replayed { calls, recorded } => {
                self.counts.recorded += u64::from(recorded);
                self.counts.replayed += 1;
                self.counts.launches_saved += calls - 1;
            }
        }
        Ok(())
    }

    pub fn counts(&self) -> GraphCounts {
        let mut c = self.counts.clone();
        for why in self.books.iter().flatten().filter_map(Recordings::refused) {
            match c.refused.iter_mut().find(|(w, _)| w == why) {
                Some((_, n)) => *n += 1,
                None => c.refused.push((why.to_string(), 1)),
            }
        }
        c
    }
}
