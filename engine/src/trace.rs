//! Which calls each plan step made on which stream, and which waits the HAL put between them: tests hold the waits against the plan's
//! edges. Off, it costs a comparison a plan step.

use crate::error::Result;
use crate::trainer::Trainer;
use crossweave_hal::{Stream, Wait, WaitLog};
use std::ops::Range;

/// One step of training, call by call.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// For each step of the plan, in order, the calls it made: index of the stream, and their numbers on it.
    pub steps: Vec<Vec<(u32, Range<u64>)>>,
    /// The waits between streams: the stream that waited, and for what.
    pub waits: Vec<(u32, Wait)>,
}

/// A trace being taken.
pub(crate) struct Tracing {
    logs: Vec<WaitLog>,
    /// Calls on each stream up to the step before.
    before: Vec<u64>,
    /// The stream on which another thread copies to the device, one call for each copy asked for; copies asked for before, and its calls then.
    copies: Option<(WaitLog, u64, u64)>,
    asked: u64,
    trace: Trace,
}

impl Trainer {
    fn wait_logs(&self) -> Vec<WaitLog> {
        let out = self.offload.iter().map(|o| o.executor.out_log());
        let peer = self.pipe.iter().map(|p| p.stream.wait_log());
        let all = self.lanes.all().map(Stream::wait_log).chain(out);
        all.chain(peer).collect()
    }

    /// Keeps account of the next step, for [`Trainer::traced`].
    ///
    /// # Errors
    /// A failure of the host's part of the steps before.
    pub fn trace(&mut self) -> Result<()> {
        self.settle_offload()?;
        let logs = self.wait_logs();
        let copies = self.offload.as_ref().map(|o| o.executor.in_log());
        logs.iter().chain(&copies).for_each(WaitLog::begin);
        let asked = self.copies_asked();
        self.diagnostics.tracing = Some(Tracing {
            before: logs.iter().map(WaitLog::calls).collect(),
            logs,
            copies: copies.map(|log| {
                let calls = log.calls();
                (log, asked, calls)
            }),
            asked,
            trace: Trace::default(),
        });
        Ok(())
    }

    /// The account, once the step has been enqueued.
    ///
    /// # Errors
    /// A failure of the host's part of the step.
    pub fn traced(&mut self) -> Result<Option<Trace>> {
        self.settle_offload()?;
        let Some(mut t) = self.diagnostics.tracing.take() else {
            return Ok(None);
        };
        for log in t.logs.iter().chain(t.copies.iter().map(|(log, ..)| log)) {
            let waits = log.end().into_iter().map(|w| (log.stream(), w));
            t.trace.waits.extend(waits);
        }
        Ok(Some(t.trace))
    }

    fn copies_asked(&self) -> u64 {
        self.offload
            .as_ref()
            .map_or(0, |o| o.executor.copies_asked())
    }

    /// A step of the plan begins (`false`) or has been enqueued.
    pub(crate) fn note_step(&mut self, enqueued: bool) {
        let asked = match &self.diagnostics.tracing {
            None => return,
            Some(_) => self.copies_asked(),
        };
        let Some(t) = &mut self.diagnostics.tracing else {
            return;
        };
        let mut calls = vec![];
        for (log, before) in t.logs.iter().zip(&mut t.before) {
            let now = log.calls();
            if enqueued && now > *before {
                calls.push((log.stream(), *before + 1..now + 1));
            }
            *before = now;
        }
        if let Some((log, first, at)) = &t.copies
            && enqueued
            && asked > t.asked
        {
            let number = |asked: u64| at + (asked - first) + 1;
            calls.push((log.stream(), number(t.asked)..number(asked)));
        }
        t.asked = asked;
        if enqueued {
            t.trace.steps.push(calls);
        }
    }
}
