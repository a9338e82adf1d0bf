//! Forward and backward steps of the plan that repeat, replayed as graphs of the device (ADR 0037).
//!
//! The walk is the same with and without: blocks run their ops on the tape as ever, and the stream compares. What differs from step to step
//! (dropout's position, a pooled address that moved) is enqueued as it is, so no step needs to be known as recordable beforehand.

use crate::trainer::Trainer;
use crossweave_hal::{Device, Followed, Recordings};
use crossweave_plan::{Step, StepKind};
use serde::{Deserialize, Serialize};

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

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
    pub fn new(
        device: &Device,
        wanted: bool,
    ) -> std::result::Result<Option<Graphs>, crossweave_hal::Error> {
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

impl Trainer {
    /// Runs a step of the plan, its calls on the compute stream as a graph where they are those of a step before.
    pub(crate) fn replaying(
        &mut self,
        step: &Step,
        run: impl FnOnce(&mut Trainer) -> Tensors<()>,
    ) -> Tensors<()> {
        let repeats = matches!(
            step.op,
            StepKind::Forward { .. } | StepKind::Recompute { .. } | StepKind::Backward { .. }
        );
        let at = step.id.0 as usize;
        let device = self.lanes.compute.device();
        match &mut self.blocks.graphs {
            Some(g) if repeats => {
                if g.books.len() <= at {
                    g.books.resize_with(at + 1, || None);
                }
                let book = match g.books[at].take() {
                    Some(b) => b,
                    None => Recordings::new(device)?,
                };
                if book.refused().is_some() {
                    g.books[at] = Some(book);
                    g.counts.called += 1;
                    return run(self);
                }
                self.lanes.compute.follow(book)?;
            }
            _ => return run(self),
        }
        let ran = run(self);
        let (book, followed) = self.lanes.compute.close(ran.is_ok());
        let Some(g) = &mut self.blocks.graphs else {
            return ran;
        };
        g.books[at] = book;
        ran?;
        match followed? {
            Followed::Called => g.counts.called += 1,
            Followed::Replayed { calls, recorded } => {
                g.counts.recorded += u64::from(recorded);
                g.counts.replayed += 1;
                g.counts.launches_saved += calls - 1;
            }
        }
        Ok(())
    }

    /// What replaying steps has come to, where it is on.
    pub fn graphs(&self) -> Option<GraphCounts> {
        self.blocks.graphs.as_ref().map(Graphs::counts)
    }
}
