//! What a run is watched and tried by: spans of a trace, the account of calls and waits, faults on purpose.

use super::Engine;
use crate::error::Result;
use crate::graphs::GraphCounts;
use crate::timeline::OpenStep;
use crate::trace::{Trace, Tracing};
use crossweave_hal::trace::{Span, Tracer};
use crossweave_hal::{Stream, WaitLog};
use crossweave_mesh::Faults;
use crossweave_store::Counters as FileCounters;

impl Engine {
    /// From now on plan steps and collectives are spans of `tracer`. All ranks do this at the same point, or none.
    pub fn timeline(&mut self, tracer: Tracer) {
        self.groups.mesh().borrow_mut().trace(&tracer);
        self.diagnostics.tracer = Some(tracer);
    }

    /// From now on these faults strike this rank.
    pub fn inject(&mut self, faults: Faults) {
        self.groups.mesh().borrow_mut().inject(&faults);
        self.diagnostics.faults = Some(faults);
    }

    /// From now on results of collectives are held against each other. All ranks do this at the same point, or none.
    pub fn check_values(&mut self) {
        self.groups.mesh().borrow_mut().check_values();
    }

    /// Spans that have ended since the last call; waits for nothing.
    pub fn spans(&self) -> Vec<Span> {
        self.diagnostics.spans()
    }

    /// What replaying steps has come to, where it is on.
    pub fn graphs(&self) -> Option<GraphCounts> {
        let graphs = self.blocks.graphs.as_ref();
        graphs.map(|g| g.counts(self.plan()))
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        let peer = self.pipe.iter().map(|p| p.peers.stream());
        self.lanes.all().chain(peer)
    }

    pub(super) fn begin_span(&self) -> Option<OpenStep> {
        self.diagnostics.begin_span(self.step, self.streams())
    }

    pub(super) fn end_span(&self, open: Option<OpenStep>, name: &dyn Fn() -> String) {
        self.diagnostics.end_span(open, self.streams(), name);
    }

    /// Keeps account of the next step, for [`Engine::traced`].
    ///
    /// # Errors
    /// A failure of the host's part of the steps before.
    pub fn trace(&mut self) -> Result<()> {
        self.settle_offload()?;
        let host = self.host.as_ref();
        let peer = self.pipe.iter().map(|p| p.peers.stream().wait_log());
        let logs = self.lanes.all().map(Stream::wait_log);
        let logs: Vec<WaitLog> = logs.chain(host.map(|h| h.out_log())).chain(peer).collect();
        let copies = host.map(|h| h.in_log());
        self.diagnostics.tracing = Some(Tracing::new(logs, copies, self.copies_asked()));
        Ok(())
    }

    /// The account, once the step has been enqueued.
    ///
    /// # Errors
    /// A failure of the host's part of the step.
    pub fn traced(&mut self) -> Result<Option<Trace>> {
        self.settle_offload()?;
        Ok(self.diagnostics.tracing.take().map(Tracing::end))
    }

    fn copies_asked(&self) -> u64 {
        self.host.as_ref().map_or(0, |h| h.copies_asked())
    }

    /// A step of the plan begins (`false`) or has been enqueued.
    pub(super) fn note_step(&mut self, enqueued: bool) {
        if self.diagnostics.tracing.is_none() {
            return;
        }
        let asked = self.copies_asked();
        if let Some(t) = &mut self.diagnostics.tracing {
            t.note(enqueued, asked);
        }
    }

    /// What this rank's files took and what passed through them, if state rests in any.
    pub fn files(&self) -> Option<FileCounters> {
        self.host.as_ref()?.files()
    }
}
