//! `wall_clock_breakdown`: where the time of a step goes, by the device's own events, printed beside the log.

use super::setup::Job;
use crate::error::Result;
use crossweave_engine::Trainer;
use crossweave_hal::trace::{Span, Tracer, Work};
use crossweave_plan::Op;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a line tells, in the order of a step.
const PARTS: [&str; 7] = [
    "forward",
    "recompute",
    "backward",
    "reduce",
    "gather",
    "send/recv",
    "optimizer",
];

/// Time of the steps since the last line.
pub struct Breakdown {
    /// None where the run is traced, whose tracer then serves both.
    tracer: Option<Tracer>,
    /// The device tells the time between events.
    times: bool,
    spent: BTreeMap<&'static str, Duration>,
    steps: u64,
    whole: Duration,
}

impl Breakdown {
    /// Has `trainer` tell when its steps begin and end, if the config asks. All ranks call this at the same point. `traced`: a tracer
    /// is at work already.
    ///
    /// # Errors
    /// A device without events.
    pub fn begin(job: &Job, traced: bool, trainer: &mut Trainer) -> Result<Option<Breakdown>> {
        if !job.resolved.settings.wall_clock_breakdown {
            return Ok(None);
        }
        let mut tracer = None;
        if !traced {
            let own = Tracer::new(trainer.device(), Instant::now())?;
            trainer.timeline(own.clone());
            tracer = Some(own);
        }
        Ok(Some(Breakdown {
            times: tracer.as_ref().is_none_or(Tracer::device_times),
            tracer,
            spent: BTreeMap::new(),
            steps: 0,
            whole: Duration::ZERO,
        }))
    }

    /// Takes what has ended; `traced`: the spans that the run's trace has written.
    pub fn take(&mut self, traced: &[Span]) {
        let own = self.tracer.as_ref().map(Tracer::drain).unwrap_or_default();
        for span in own.iter().chain(traced).filter(|s| s.work == Work::Step) {
            let part = span
                .name
                .parse()
                .ok()
                .and_then(|op| part(&op))
                .unwrap_or("other");
            *self.spent.entry(part).or_default() += span.to.saturating_sub(span.from);
        }
    }

    /// A step took `ms` from the end of the one before to its own.
    pub fn step(&mut self, ms: f64) {
        self.steps += 1;
        self.whole += Duration::from_secs_f64(ms.max(0.0) / 1e3);
    }

    /// The line about the steps since the last one; none while the trace of the run has told of no step.
    pub fn line(&mut self) -> Option<String> {
        self.take(&[]);
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

/// The part that a step of the plan belongs to.
fn part(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Forward { .. } => "forward",
        Op::Recompute { .. } => "recompute",
        Op::Backward { .. } | Op::InputGrad { .. } | Op::WeightGrad { .. } => "backward",
        Op::ReduceGrad { .. } | Op::Fold { .. } | Op::Tie { .. } => "reduce",
        Op::Gather { .. } => "gather",
        Op::SendAct { .. } | Op::RecvAct { .. } | Op::SendGrad { .. } | Op::RecvGrad { .. } => {
            "send/recv"
        }
        Op::GradNorm | Op::Finite | Op::Update { .. } | Op::ZeroGrad { .. } => "optimizer",
        _ => return None,
    })
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
        let mut b = Breakdown {
            tracer: None,
            times: true,
            spent: BTreeMap::new(),
            steps: 0,
            whole: Duration::ZERO,
        };
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
