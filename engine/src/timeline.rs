//! What a run is watched and tried by: plan steps as spans of a trace (what each put on which stream, how long the host took to enqueue
//! it), faults on purpose, values held against each other.

use crate::nonfinite::Watch;
use crate::trace::Tracing;
use crossweave_hal::trace::{Open, Span, Tracer, Work};
use crossweave_hal::{Device, Purpose, Stream};
use crossweave_mesh::Faults;
use crossweave_plan::{Step, StepKind};
use std::time::Duration;

/// What watches or tries a run, where somebody asked for it.
#[derive(Default)]
pub(crate) struct Diagnostics {
    pub tracer: Option<Tracer>,
    pub faults: Option<Faults>,
    /// Calls and waits of a step, while a caller wants them.
    pub tracing: Option<Tracing>,
    /// Looks for values that are not finite.
    pub watch: Option<Watch>,
    /// What the checker calls the plan's steps.
    purposes: Vec<Option<Purpose>>,
    /// Steps that this engine has run itself, those before a resume left out.
    steps: u64,
    /// Device allocations made by steps after the second.
    late: u64,
}

impl Diagnostics {
    /// A step has been run, which made so many device allocations.
    pub fn count_allocations(&mut self, allocations: u64) {
        self.steps += 1;
        if self.steps > 2 {
            self.late += allocations;
        }
    }
    /// Device allocations made by steps after the second.
    pub fn late_allocations(&self) -> u64 {
        self.late
    }

    /// What the collective checker calls a step: its number and text in the plan, given once. Its collectives meet those of the same text
    /// on other ranks, whatever its number there; of a transfer both ends are called alike. The two ends of a message in a group stand in groups
    /// that differ: they have kind and round in common.
    pub fn purpose(&mut self, device: &Device, s: &Step) -> Purpose {
        let at = s.id.index();
        if let Some(Some(known)) = self.purposes.get(at) {
            return *known;
        }
        let text = s.op.to_string();
        let meets = match &s.op {
            StepKind::Exchange { grad, round, .. } => {
                let what = if *grad { "gradients" } else { "hidden states" };
                format!("{what} of round {round}")
            }
            _ => text.split(['<', '>']).next().unwrap_or(&text).to_string(),
        };
        let purpose = device.plan_step(s.id.0, &text, &meets);
        let len = self.purposes.len().max(at + 1);
        self.purposes.resize(len, None);
        self.purposes[at] = Some(purpose);
        purpose
    }

    pub fn set_step(&self, step: u64) {
        if let Some(f) = &self.faults {
            f.set_step(step);
        }
    }

    /// Something of step `step` is about to be enqueued.
    pub fn begin_span<'a>(
        &self,
        step: u64,
        streams: impl Iterator<Item = &'a Stream>,
    ) -> Option<OpenStep> {
        let tracer = self.tracer.as_ref()?;
        tracer.set_step(step);
        let from = tracer.now();
        let open = tracer.begin(streams);
        Some(OpenStep { open, from })
    }

    /// It has been enqueued.
    pub fn end_span<'a>(
        &self,
        open: Option<OpenStep>,
        streams: impl Iterator<Item = &'a Stream>,
        name: &dyn Fn() -> String,
    ) {
        let (Some(tracer), Some(o)) = (&self.tracer, open) else {
            return;
        };
        tracer.end(o.open, streams, name, &|| Work::Step);
        tracer.host(format!("enqueue {}", name()), o.from, tracer.now());
    }

    /// Spans that have ended since the last call; waits for nothing.
    pub fn spans(&self) -> Vec<Span> {
        let drained = self.tracer.as_ref().map(Tracer::drain);
        drained.unwrap_or_default()
    }
}

/// A step of the walk that is being enqueued.
pub(crate) struct OpenStep {
    open: Open,
    from: Duration,
}
