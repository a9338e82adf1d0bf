//! Which calls each plan step made on which stream, and which waits the HAL put between them: tests hold the waits against the plan's
//! edges. Off, it costs a comparison a plan step.

use crossweave_hal::{Wait, WaitLog};
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

impl Tracing {
    /// Takes account of these streams from here on; of that on which another thread copies there have been `asked` copies.
    pub fn new(logs: Vec<WaitLog>, copies: Option<WaitLog>, asked: u64) -> Tracing {
        logs.iter().chain(&copies).for_each(WaitLog::begin);
        Tracing {
            before: logs.iter().map(WaitLog::calls).collect(),
            logs,
            copies: copies.map(|log| {
                let calls = log.calls();
                (log, asked, calls)
            }),
            asked,
            trace: Trace::default(),
        }
    }

    /// The account.
    pub fn end(mut self) -> Trace {
        for log in self
            .logs
            .iter()
            .chain(self.copies.iter().map(|(log, ..)| log))
        {
            let waits = log.end().into_iter().map(|w| (log.stream(), w));
            self.trace.waits.extend(waits);
        }
        self.trace
    }

    /// A step of the plan begins (`false`) or has been enqueued, and so many copies have been asked for.
    pub fn note(&mut self, enqueued: bool, asked: u64) {
        let mut calls = vec![];
        for (log, before) in self.logs.iter().zip(&mut self.before) {
            let now = log.calls();
            if enqueued && now > *before {
                calls.push((log.stream(), *before + 1..now + 1));
            }
            *before = now;
        }
        if let Some((log, first, at)) = &self.copies
            && enqueued
            && asked > self.asked
        {
            let number = |asked: u64| at + (asked - first) + 1;
            calls.push((log.stream(), number(self.asked)..number(asked)));
        }
        self.asked = asked;
        if enqueued {
            self.trace.steps.push(calls);
        }
    }
}
