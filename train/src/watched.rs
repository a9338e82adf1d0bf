//! What a rank of each pipeline stage does in a step, by its device's events, for the report to draw beside what was planned: the spans of the
//! last step that was watched, and how long its units took in it.

use crossweave_engine::PipelineSpec;
use crossweave_hal::trace::{Span, Work};
use crossweave_plan::{Runs, StepKind};
use crossweave_report::{UnitTimes, Watched};
use crossweave_timeline::spans;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Steps of plans beyond which a step is not drawn.
const DRAWN: usize = 20_000;

/// The steps of one step of training, with when each began and ended, in nanoseconds.
type Seen = Vec<(StepKind, (u64, u64))>;

/// The time of a unit's forwards, backwards in one, and their two parts, with the number of each.
type Kinds = [(u64, u64); 4];

/// What one rank is seen to do.
pub struct Watcher {
    stage: u32,
    runs: Runs,
    began: u64,
    steps: BTreeMap<u64, Seen>,
    last: Option<(u64, Seen)>,
}

fn nanos(t: Duration) -> u64 {
    t.as_nanos() as u64
}

/// The unit that a step computes, and which of its kinds it is.
fn computed(op: &StepKind) -> Option<(u32, usize)> {
    Some(match *op {
        StepKind::Forward { unit, .. } => (unit, 0),
        StepKind::Backward { unit, .. } => (unit, 1),
        StepKind::InputGrad { unit, .. } => (unit, 2),
        StepKind::WeightGrad { unit, .. } => (unit, 3),
        _ => return None,
    })
}

impl Watcher {
    /// A watcher of a stage's rank, whose clock is at `now`.
    pub fn new(cut: &PipelineSpec, stage: u32, now: Duration) -> Watcher {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Watcher {
            stage,
            runs: cut.runs.clone(),
            began: nanos(wall.unwrap_or_default().saturating_sub(now)),
            steps: BTreeMap::new(),
            last: None,
        }
    }

    /// Takes spans that have ended.
    pub fn take(&mut self, spans: &[Span]) {
        for span in spans.iter().filter(|s| s.work == Work::Step) {
            if let Ok(op) = span.name.parse() {
                let time = (nanos(span.from), nanos(span.to));
                self.steps.entry(span.step).or_default().push((op, time));
            }
        }
    }

    /// Keeps what is known of the steps below `step`, whose spans have all been taken.
    pub fn settle(&mut self, step: u64) {
        while let Some(first) = self.steps.first_entry() {
            if first.key().saturating_add(1) >= step {
                break;
            }
            let (step, seen) = first.remove_entry();
            if seen.len() <= DRAWN {
                self.last = Some((step, seen));
            }
        }
    }

    /// What was seen; none where no step was.
    pub fn end(mut self) -> Option<Watched> {
        self.settle(u64::MAX);
        let (step, mut seen) = self.last?;
        seen.sort_by_key(|(_, time)| *time);
        let mut units: BTreeMap<u32, Kinds> = BTreeMap::new();
        for (op, (from, to)) in &seen {
            if let Some((unit, kind)) = computed(op) {
                let (sum, count) = &mut units.entry(unit).or_default()[kind];
                (*sum, *count) = (*sum + to.saturating_sub(*from), *count + 1);
            }
        }
        let each = seen.iter().map(|(op, time)| (op, *time));
        let units = units.into_iter().map(|(unit, kinds)| {
            let mean = |(sum, count): (u64, u64)| sum / count.max(1);
            let [forward, whole, input, weights] = kinds.map(mean);
            UnitTimes {
                unit,
                forward,
                backward: match input + weights {
                    0 => [whole / 2, whole - whole / 2],
                    _ => [input, weights],
                },
            }
        });
        Some(Watched {
            stage: self.stage,
            step,
            began: self.began,
            spans: spans(&self.runs, self.stage, each),
            units: units.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_engine::PipelineOrder;

    fn span(name: &str, step: u64, from: u64, to: u64) -> Span {
        Span {
            name: name.into(),
            lane: "compute".into(),
            work: Work::Step,
            step,
            from: Duration::from_nanos(from),
            to: Duration::from_nanos(to),
        }
    }

    /// Units of a run are one span, the last whole step is kept, and times are the means of it.
    #[test]
    fn a_step_is_kept_and_units_are_timed() {
        let cut = PipelineSpec::even(4, 2, PipelineOrder::ZbH1);
        let mut w = Watcher::new(&cut, 1, Duration::ZERO);
        for (step, at) in [(1, 0), (2, 1000), (3, 2000)] {
            w.take(&[
                span("F2.0", step, at, at + 10 * step),
                span("F3.0", step, at + 40, at + 50),
                span("F3.1", step, at + 50, at + 64),
                span("I3.0", step, at + 66, at + 70),
                span("W3.0", step, at + 70, at + 76),
                span("a1.0<0", step, at, at),
            ]);
        }
        w.settle(3);
        assert_eq!(w.last.as_ref().map(|l| l.0), Some(1));
        let seen = w.end().unwrap();
        assert_eq!((seen.step, seen.stage), (3, 1));
        let times: Vec<_> = seen
            .units
            .iter()
            .map(|u| (u.unit, u.forward, u.backward))
            .collect();
        assert_eq!(times, [(2, 30, [0, 0]), (3, 12, [4, 6])]);
        let forwards: Vec<_> = seen.spans.iter().map(|s| s.time).collect();
        assert!(forwards.contains(&(2066, 2070)), "{forwards:?}");
    }
}
