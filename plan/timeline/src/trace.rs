//! A timeline in Chrome's JSON, which Perfetto and chrome://tracing open: a stage is a process, a kind of work a thread.

use crate::{Span, Timeline, Unit, What};
use serde_json::{Value, json};

/// The threads of a stage, in order.
const LANES: [&str; 3] = ["compute", "messages", "gathers and reductions"];

fn lane(what: What) -> usize {
    match what {
        What::States | What::Grads => 1,
        w if w.computes() => 0,
        _ => 2,
    }
}

impl Timeline {
    /// The picture as a trace. A moment that is no time is shown as a millisecond for each unit, and the whole of shares as a second.
    pub fn trace(&self) -> Value {
        let each = match self.unit {
            Unit::Part => 1e3,
            Unit::Share => 1e6 / self.end().max(1) as f64,
            Unit::Nanoseconds => 1e-3,
        };
        let mut events: Vec<Value> = vec![];
        for (pid, s) in self.stages.iter().enumerate() {
            let name = |what: &str, tid: usize, name: &str| json!({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}});
            events.push(name("process_name", 0, &s.name));
            let lanes = LANES.iter().enumerate();
            events.extend(lanes.map(|(tid, l)| name("thread_name", tid, l)));
            let one = |span: &Span| {
                let ts = span.time.0 as f64 * each;
                let dur = (span.time.1 - span.time.0) as f64 * each;
                let mut args = json!({"run": span.run});
                let mut name = span.what.name().to_string();
                if let Some(mb) = span.mb {
                    args["micro_batch"] = mb.into();
                    name += &format!(" {mb}");
                }
                json!({"ph": "X", "pid": pid, "tid": lane(span.what), "ts": ts, "dur": dur, "name": name, "args": args})
            };
            events.extend(s.spans.iter().map(one));
            let bytes = |(at, bytes): &(u64, u64)| json!({"ph": "C", "pid": pid, "name": "device memory", "ts": *at as f64 * each, "args": {"bytes": bytes}});
            events.extend(s.memory.iter().map(bytes));
        }
        json!({
            "displayTimeUnit": "ms",
            "traceEvents": events,
            "otherData": {"program": "crossweave", "title": self.title, "note": self.note},
        })
    }
}
