//! Forward and backward steps of the plan that repeat, replayed as graphs of the device (ADR 0037).
//!
//! The walk is the same with and without: blocks run their ops on the tape as ever, and the stream compares. What differs from step to step
//! (dropout's position, a pooled address that moved) is enqueued as it is, so no step needs to be known as recordable beforehand.

use crossweave_hal::{Device, Recordings, Stream};
use crossweave_plan::Plan;
use serde::{Deserialize, Serialize};

/// What replaying has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphCounts {
    /// Graphs recorded.
    pub recorded: u64,
    /// Plan steps enqueued as graphs, those just recorded among them: one, or one for each segment between collectives.
    pub replayed: u64,
    /// Plan steps of which some segments were enqueued as graphs and others call by call.
    #[serde(default)]
    pub partly: u64,
    /// Plan steps that could have been and were enqueued call by call.
    pub called: u64,
    /// Launches, copies and fills that graphs stood for, less one for each graph launched.
    pub launches_saved: u64,
    /// What is not replayed, with the first step of the plan that it is about, and how many of the plan.
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
        if book.given_up() {
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
        let f = followed?;
        self.counts.recorded += f.recorded;
        self.counts.launches_saved += f.calls - f.graphs;
        let kind = match (f.graphs, f.called) {
            (0, _) => &mut self.counts.called,
            (_, 0) => &mut self.counts.replayed,
            _ => &mut self.counts.partly,
        };
        *kind += 1;
        Ok(())
    }

    pub fn counts(&self, plan: &Plan) -> GraphCounts {
        let mut c = self.counts.clone();
        let mut first: Vec<(usize, String, u64)> = vec![];
        for (at, book) in self.books.iter().enumerate() {
            let Some(why) = book.as_ref().and_then(Recordings::unmet) else {
                continue;
            };
            match first.iter_mut().find(|(_, w, _)| *w == why) {
                Some((_, _, n)) => *n += 1,
                None => first.push((at, why, 1)),
            }
        }
        let step = |at: &usize| plan.steps.get(*at).map(|s| format!("{}: ", s.op));
        let line = |(at, why, n): &(usize, String, u64)| {
            let step = step(at).unwrap_or_default();
            (format!("{step}{why}"), *n)
        };
        c.refused = first.iter().map(line).collect();
        c
    }
}
