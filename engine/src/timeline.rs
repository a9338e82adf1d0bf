//! What a run is watched and tried by: plan steps as spans of a trace (what each put on which stream, how long the host took to enqueue
//! it), faults on purpose, values held against each other.

use crate::trainer::Trainer;
use crossweave_hal::Stream;
use crossweave_hal::trace::{Open, Span, Tracer, Work};
use crossweave_mesh::Faults;
use std::time::Duration;

/// What watches or tries a run, where somebody asked for it.
#[derive(Default)]
pub(crate) struct Diagnostics {
    tracer: Option<Tracer>,
    faults: Option<Faults>,
}

impl Diagnostics {
    pub fn set_step(&self, step: u64) {
        if let Some(f) = &self.faults {
            f.set_step(step);
        }
    }
}

/// A step of the walk that is being enqueued.
pub(crate) struct OpenStep {
    open: Open,
    from: Duration,
}

impl Trainer {
    /// From now on plan steps and collectives are spans of `tracer`. All ranks do this at the same point, or none.
    pub fn timeline(&mut self, tracer: Tracer) {
        self.groups.mesh().borrow_mut().trace(&tracer);
        self.groups.diagnostics.tracer = Some(tracer);
    }

    /// From now on these faults strike this rank.
    pub fn inject(&mut self, faults: Faults) {
        self.groups.mesh().borrow_mut().inject(&faults);
        self.groups.diagnostics.faults = Some(faults);
    }

    /// From now on results of collectives are held against each other. All ranks do this at the same point, or none.
    pub fn check_values(&mut self) {
        self.groups.mesh().borrow_mut().check_values();
    }

    /// Spans that have ended since the last call; waits for nothing.
    pub fn spans(&self) -> Vec<Span> {
        self.groups
            .diagnostics
            .tracer
            .as_ref()
            .map(Tracer::drain)
            .unwrap_or_default()
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        let always = [Some(&self.compute), Some(&self.reduce)];
        let some = [&self.gather, &self.spill_out, &self.fetch_in];
        let peer = self.pipe.iter().map(|p| &p.stream);
        let own = always.into_iter().chain(some.map(Option::as_ref));
        own.flatten().chain(peer)
    }

    pub(crate) fn begin_span(&self) -> Option<OpenStep> {
        let tracer = self.groups.diagnostics.tracer.as_ref()?;
        tracer.set_step(self.step);
        let from = tracer.now();
        let open = tracer.begin(self.streams());
        Some(OpenStep { open, from })
    }

    pub(crate) fn end_span(&self, open: Option<OpenStep>, name: &dyn Fn() -> String) {
        let (Some(tracer), Some(o)) = (&self.groups.diagnostics.tracer, open) else {
            return;
        };
        tracer.end(o.open, self.streams(), name, &|| Work::Step);
        tracer.host(format!("enqueue {}", name()), o.from, tracer.now());
    }
}
