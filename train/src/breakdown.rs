//! Where the time of a step goes, by the device's own events: a few steps of every run for its report, and with
//! `wall_clock_breakdown` all of them, printed beside the log.

use crate::prepared::Run;
use crate::split::{Split, part};
use crate::train_error::Result;
use crate::watched::Watcher;
use crossweave_engine::Engine;
use crossweave_hal::trace::{Span, Tracer, Work};
use crossweave_mesh::{Axis, AxisSet};
use crossweave_report::{StepTime, Watched};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The parts of a line, in the order of a step.
const PARTS: [&str; 7] = [
    "forward",
    "recompute",
    "backward",
    "reduce",
    "gather",
    "send/recv",
    "optimizer",
];

/// The clock of one rank's steps.
pub struct Times {
    tracer: Tracer,
    /// The run is traced: the trace reads the tracer's spans and hands them on, and every step is watched.
    traced: bool,
    split: Split,
    /// What the first rank of a pipeline stage is watched by.
    watcher: Option<Watcher>,
    /// Steps since the start.
    steps: u64,
    lines: Option<Lines>,
}

impl Times {
    /// Has `engine` record when its steps begin and end. All ranks call this at the same point. `traced`: the tracer that is at work
    /// already.
    ///
    /// # Errors
    /// A device without events, where the config asks for a breakdown; elsewhere nothing is recorded then.
    pub fn begin(run: &Run, traced: Option<&Tracer>, engine: &mut Engine) -> Result<Option<Times>> {
        let wanted = run.job.resolved.settings.wall_clock_breakdown;
        let tracer = match traced {
            Some(t) => t.clone(),
            None => match Tracer::new(engine.device(), Instant::now()) {
                Ok(own) => {
                    engine.timeline(own.clone());
                    own
                }
                Err(e) if wanted => return Err(e.into()),
                Err(_) => return Ok(None),
            },
        };
        let place = engine.spec().place;
        let first = place.index(AxisSet::STAGE) == 0 && tracer.device_times();
        let cut = run.layout.division.stages.as_ref().filter(|_| first);
        Ok(Some(Times {
            watcher: cut.map(|cut| Watcher::new(cut, place.at(Axis::Pp), tracer.now())),
            traced: traced.is_some(),
            split: Split::new(run.job.ranks > 1),
            steps: 0,
            lines: wanted.then(|| Lines::new(tracer.device_times())),
            tracer,
        }))
    }

    /// A step is about to be enqueued.
    pub fn enqueue(&mut self) {
        self.steps += 1;
        let all = self.traced || self.lines.is_some();
        self.tracer.pause(!all && !Split::watches(self.steps));
    }

    /// Now, by the clock of the spans.
    pub fn now(&self) -> Duration {
        self.tracer.now()
    }

    /// The batch of step `step` was read since `from`.
    pub fn read(&mut self, step: u64, from: Duration) {
        if self.tracer.device_times() {
            self.split.input(step, from, self.tracer.now());
        }
    }

    /// Something other than a step was done behind step `step`.
    pub fn interrupted(&mut self, step: u64) {
        self.split.interrupted(step + 1);
    }

    /// Takes what has ended; `traced`: the spans that the run's trace has written. Steps up to `settled` have been waited for.
    pub fn take(&mut self, traced: &[Span], settled: u64) {
        let own = match self.traced {
            true => vec![],
            false => self.tracer.drain(),
        };
        for spans in [&own, traced] {
            self.split.take(spans);
            if let Some(w) = &mut self.watcher {
                w.take(spans);
            }
            if let Some(l) = &mut self.lines {
                l.take(spans);
            }
        }
        // What a step leaves to other streams may end a step later.
        self.split.settle(settled);
        if let Some(w) = &mut self.watcher {
            w.settle(settled);
        }
    }

    /// A step took `ms` from the end of the one before to its own.
    pub fn step(&mut self, ms: f64) {
        if let Some(l) = &mut self.lines {
            l.step(ms);
        }
    }

    /// The line about the steps since the last one, where lines are printed.
    pub fn line(&mut self) -> Option<String> {
        self.take(&[], 0);
        self.lines.as_mut().and_then(Lines::line)
    }

    /// The mean step of the run, and what was seen of the last one; every step has been waited for.
    pub fn end(&mut self) -> (Option<StepTime>, Option<Watched>) {
        self.take(&[], u64::MAX);
        (
            self.split.mean(),
            self.watcher.take().and_then(Watcher::end),
        )
    }
}

/// Time of the steps since the last line.
struct Lines {
    /// The device can time events.
    times: bool,
    spent: BTreeMap<&'static str, Duration>,
    steps: u64,
    whole: Duration,
}

impl Lines {
    fn new(times: bool) -> Lines {
        Lines {
            times,
            spent: BTreeMap::new(),
            steps: 0,
            whole: Duration::ZERO,
        }
    }

    fn take(&mut self, spans: &[Span]) {
        for span in spans.iter().filter(|s| s.work == Work::Step) {
            let part = span
                .name
                .parse()
                .ok()
                .and_then(|op| part(&op))
                .unwrap_or("other");
            *self.spent.entry(part).or_default() += span.to.saturating_sub(span.from);
        }
    }

    fn step(&mut self, ms: f64) {
        self.steps += 1;
        self.whole += Duration::from_secs_f64(ms.max(0.0) / 1e3);
    }

    /// None while no step has ended.
    fn line(&mut self) -> Option<String> {
        if self.spent.is_empty() && self.times {
            return None;
        }
        let steps = self.steps.max(1) as f64;
        let each = |d: Duration| d.as_secs_f64() * 1e3 / steps;
        let spent = std::mem::take(&mut self.spent);
        let parts = PARTS.iter().chain(&["other"]);
        let parts = parts.filter_map(|p| Some(format!("{p} {:.2}", each(*spent.get(p)?))));
        let parts: Vec<_> = parts.collect();
        let line = match parts.is_empty() {
            true => "not known: the device does not tell the time between events".to_string(),
            false => parts.join(" | "),
        };
        let line = format!(
            "  time of a step, ms (streams overlap): {line} | whole {:.2}",
            each(self.whole)
        );
        (self.steps, self.whole) = (0, Duration::ZERO);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_plan_are_told_by_their_part() {
        let of = |text: &str| part(&text.parse().unwrap());
        assert_eq!(of("F3.1'"), Some("forward"));
        assert_eq!(of("W2.0"), Some("backward"));
        assert_eq!(of("rs1,2"), Some("reduce"));
        assert_eq!(of("a1.0>2"), Some("send/recv"));
        assert_eq!(of("opt4"), Some("optimizer"));
        assert_eq!(of("out1.0"), None);
    }

    #[test]
    fn a_line_is_the_mean_of_the_steps_since_the_last() {
        let mut b = Lines::new(true);
        let span = |name: &str, ms: u64, work| Span {
            name: name.into(),
            lane: "compute".into(),
            work,
            step: 1,
            from: Duration::from_millis(10),
            to: Duration::from_millis(10 + ms),
        };
        b.take(&[
            span("F0.0", 4, Work::Step),
            span("B0.0", 8, Work::Step),
            span("F0.0", 99, Work::Host),
        ]);
        b.step(10.0);
        b.step(10.0);
        let line = b.line().unwrap();
        assert!(
            line.ends_with("forward 2.00 | backward 4.00 | whole 10.00"),
            "{line}"
        );
        assert_eq!(b.line(), None);
        b.times = false;
        assert!(b.line().unwrap().contains("not known"));
    }
}
