//! Where the time between the ends of two steps goes on one rank: computing, the optimizer, communication that nothing hides, reading
//! input that nothing hides, and the rest. Found from the spans of the device's streams; nothing here waits or measures.

use crossweave_hal::trace::{Span, Work};
use crossweave_plan::StepKind;
use crossweave_report::StepTime;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A stretch of time, since the tracer's origin.
type Stretch = (Duration, Duration);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Compute,
    Optimizer,
    Communication,
    Input,
}

/// What is known of one step so far.
#[derive(Default)]
struct Seen {
    /// By lane: work of the plan's steps, and collectives within or between them.
    work: BTreeMap<String, Vec<(Kind, Stretch)>>,
    collectives: BTreeMap<String, Vec<Stretch>>,
    /// The same by the axes of their groups.
    groups: BTreeMap<String, Vec<Stretch>>,
    input: Vec<Stretch>,
}

/// Adds up the steps of a rank.
pub struct Split {
    /// There are several ranks: then what prepares a collective is communication.
    several: bool,
    seen: BTreeMap<u64, Seen>,
    /// Steps whose time holds more than a step: something else was done before them.
    broken: BTreeSet<u64>,
    sums: [Duration; 5],
    /// Communication by the axes of its groups, while nothing else runs.
    exposed: BTreeMap<String, Duration>,
    whole: Duration,
    steps: u64,
}

impl Split {
    /// The split of a rank of a job; `several`: the job has more than one rank.
    pub fn new(several: bool) -> Split {
        Split {
            several,
            seen: BTreeMap::new(),
            broken: BTreeSet::new(),
            sums: [Duration::ZERO; 5],
            exposed: BTreeMap::new(),
            whole: Duration::ZERO,
            steps: 0,
        }
    }

    /// Is the `n`-th step since the start watched? A few at the beginning, then two of ten, since a step is only known between its own end
    /// and that of the step before.
    pub fn watches(n: u64) -> bool {
        (2..=9).contains(&n) || matches!(n % 10, 0 | 9)
    }

    /// Takes spans that have ended.
    pub fn take(&mut self, spans: &[Span]) {
        for span in spans {
            let stretch = (span.from, span.to);
            match &span.work {
                Work::Host => {}
                Work::Collective(c) => {
                    let seen = self.seen.entry(span.step).or_default();
                    let lane = seen.collectives.entry(span.lane.clone()).or_default();
                    lane.push(stretch);
                    let group = seen.groups.entry(c.group.clone()).or_default();
                    group.push(stretch);
                }
                Work::Step => {
                    let kind = match span.name.parse().ok().and_then(|op| part(&op)) {
                        Some("forward" | "recompute" | "backward") => Kind::Compute,
                        Some("optimizer") => Kind::Optimizer,
                        Some(_) if self.several => Kind::Communication,
                        Some(_) => Kind::Compute,
                        None => continue,
                    };
                    let seen = self.seen.entry(span.step).or_default();
                    let lane = seen.work.entry(span.lane.clone()).or_default();
                    lane.push((kind, stretch));
                }
            }
        }
    }

    /// The batch of step `step` was read from `from` to `to`.
    pub fn input(&mut self, step: u64, from: Duration, to: Duration) {
        self.seen.entry(step).or_default().input.push((from, to));
    }

    /// Between the step before `step` and it something else was done: a validation, a checkpoint.
    pub fn interrupted(&mut self, step: u64) {
        self.broken.insert(step);
    }

    /// Adds up the steps below `step`, whose spans have all been taken.
    pub fn settle(&mut self, step: u64) {
        while let Some((&first, _)) = self.seen.first_key_value() {
            // The step before is kept until this one is done.
            if first + 1 >= step {
                break;
            }
            self.count(first + 1);
            self.seen.remove(&first);
            self.broken.remove(&(first + 1));
        }
    }

    /// The mean of the steps that were added up; `None` where none was.
    pub fn mean(&mut self) -> Option<StepTime> {
        self.settle(u64::MAX);
        let each = |d: Duration| d.as_secs_f64() * 1e3 / self.steps as f64;
        let [compute, optimizer, communication, input, other] = self.sums;
        (self.steps > 0).then(|| StepTime {
            steps: self.steps,
            step_ms: each(self.whole),
            compute_ms: each(compute),
            optimizer_ms: each(optimizer),
            communication_ms: each(communication),
            exposed_ms: self
                .exposed
                .iter()
                .map(|(g, d)| (g.clone(), each(*d)))
                .collect(),
            input_ms: each(input),
            other_ms: each(other),
        })
    }

    fn count(&mut self, step: u64) {
        let (Some(before), Some(seen)) = (self.seen.get(&(step - 1)), self.seen.get(&step)) else {
            return;
        };
        let (Some(from), Some(to)) = (before.end(), seen.end()) else {
            return;
        };
        if self.broken.contains(&step) || to <= from {
            return;
        }
        let within = |kind: Kind| {
            let mut all = before.of(kind);
            all.extend(seen.of(kind));
            clip(union(all), (from, to))
        };
        let mut taken: Vec<Stretch> = vec![];
        let mut sums = [Duration::ZERO; 5];
        let kinds = [
            Kind::Compute,
            Kind::Optimizer,
            Kind::Communication,
            Kind::Input,
        ];
        for (sum, kind) in sums.iter_mut().zip(kinds) {
            let own = without(&within(kind), &taken);
            *sum = total(&own);
            if kind == Kind::Communication {
                let each = before.groups.iter().chain(&seen.groups);
                for (group, time) in of_groups(&own, each, (from, to)) {
                    *self.exposed.entry(group).or_default() += time;
                }
            }
            taken.extend(own);
            taken = union(taken);
        }
        sums[4] = (to - from).saturating_sub(total(&taken));
        for (sum, own) in self.sums.iter_mut().zip(sums) {
            *sum += own;
        }
        self.whole += to - from;
        self.steps += 1;
    }
}

impl Seen {
    /// When the last of its work was done.
    fn end(&self) -> Option<Duration> {
        let work = self.work.values().flatten().map(|(_, s)| s.1);
        let collectives = self.collectives.values().flatten().map(|s| s.1);
        work.chain(collectives).max()
    }

    fn of(&self, kind: Kind) -> Vec<Stretch> {
        let mut all = vec![];
        for (lane, work) in &self.work {
            let own: Vec<Stretch> = work
                .iter()
                .filter_map(|(k, s)| (*k == kind).then_some(*s))
                .collect();
            // A collective that a step of the plan waits for on its own stream, such as the sum in a norm, is no computing.
            match self.collectives.get(lane) {
                Some(c) if kind != Kind::Communication => {
                    all.extend(without(&union(own), &union(c.clone())));
                }
                _ => all.extend(own),
            }
        }
        match kind {
            Kind::Communication => all.extend(self.collectives.values().flatten()),
            Kind::Input => all.extend(&self.input),
            Kind::Compute | Kind::Optimizer => {}
        }
        all
    }
}

/// What of `left` calls of each group take, where a moment counts for the first group by name.
fn of_groups<'a>(
    left: &[Stretch],
    calls: impl Iterator<Item = (&'a String, &'a Vec<Stretch>)>,
    within: Stretch,
) -> Vec<(String, Duration)> {
    let mut groups: BTreeMap<&String, Vec<Stretch>> = BTreeMap::new();
    for (group, own) in calls {
        groups.entry(group).or_default().extend(own);
    }
    let mut left = left.to_vec();
    let mut take = |(group, own): (&String, Vec<Stretch>)| {
        let rest = without(&left, &clip(union(own), within));
        let time = total(&left) - total(&rest);
        left = rest;
        (group.clone(), time)
    };
    groups.into_iter().map(&mut take).collect()
}

/// Sorted, and none touches another.
fn union(mut all: Vec<Stretch>) -> Vec<Stretch> {
    all.retain(|(from, to)| to > from);
    all.sort_unstable();
    let mut out: Vec<Stretch> = vec![];
    for (from, to) in all {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

fn clip(all: Vec<Stretch>, (from, to): Stretch) -> Vec<Stretch> {
    let cut = |(a, b): Stretch| (a.max(from), b.min(to));
    all.into_iter().map(cut).filter(|(a, b)| b > a).collect()
}

/// What of `all` is in none of `taken`; both as [`union`] gives them.
fn without(all: &[Stretch], taken: &[Stretch]) -> Vec<Stretch> {
    let mut out = vec![];
    for &(mut from, to) in all {
        for &(a, b) in taken {
            if b <= from || a >= to {
                continue;
            }
            if a > from {
                out.push((from, a));
            }
            from = from.max(b);
        }
        if from < to {
            out.push((from, to));
        }
    }
    out
}

fn total(all: &[Stretch]) -> Duration {
    all.iter().map(|(from, to)| *to - *from).sum()
}

/// The part that a step of the plan belongs to.
pub(crate) fn part(op: &StepKind) -> Option<&'static str> {
    Some(match op {
        StepKind::Forward { .. } => "forward",
        StepKind::Recompute { .. } => "recompute",
        StepKind::Backward { .. } | StepKind::InputGrad { .. } | StepKind::WeightGrad { .. } => {
            "backward"
        }
        StepKind::ReduceGrad { .. } | StepKind::Fold { .. } | StepKind::Tie { .. } => "reduce",
        StepKind::Gather { .. } => "gather",
        op if op.is_message() => "send/recv",
        StepKind::GradNorm
        | StepKind::Finite
        | StepKind::Update { .. }
        | StepKind::ZeroGrad { .. } => "optimizer",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_hal::trace::CollectiveWork;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn span(step: u64, lane: &str, name: &str, from: u64, to: u64) -> Span {
        let collective = CollectiveWork {
            group: if lane == "compute" { "tp" } else { "dp" }.into(),
            scope: "dp".into(),
            call: 0,
            bytes: 4,
            rank: 0,
            size: 2,
            root: None,
            messages: vec![],
        };
        Span {
            name: name.into(),
            lane: lane.into(),
            work: match name {
                "all_reduce" => Work::Collective(Box::new(collective)),
                _ => Work::Step,
            },
            step,
            from: ms(from),
            to: ms(to),
        }
    }

    /// A step of 100 ms from `at` on: 10 idle, 20 forward, 30 backward, a reduction that the backward hides up to 10, 10 of the norm of
    /// which a collective takes 4, 15 update, idle.
    fn step(step: u64, at: u64) -> Vec<Span> {
        let s = |lane, name, from, to| span(step, lane, name, at + from, at + to);
        vec![
            s("compute", "F0.0", 10, 30),
            s("compute", "B0.0", 30, 60),
            s("reduce", "ar0", 50, 70),
            s("reduce", "all_reduce", 52, 69),
            s("compute", "norm", 70, 80),
            s("compute", "all_reduce", 75, 79),
            s("compute", "opt0", 80, 95),
            s("compute", "opt1", 98, 100),
        ]
    }

    #[test]
    fn the_parts_of_a_step_are_its_whole() {
        assert_eq!(
            ["norm", "opt0", "ar0", "F0.0"].map(|n| n.parse().ok().and_then(|op| part(&op))),
            [
                Some("optimizer"),
                Some("optimizer"),
                Some("reduce"),
                Some("forward")
            ]
        );
        let mut split = Split::new(true);
        for n in 0..4 {
            split.take(&step(n + 1, 100 * n));
            // Hidden behind the step before but for 5 ms.
            split.input(n + 2, ms(100 * n + 50), ms(100 * n + 105));
            split.settle(n.saturating_sub(1));
        }
        let t = split.mean().unwrap();
        let parts = [
            t.compute_ms,
            t.optimizer_ms,
            t.communication_ms,
            t.input_ms,
            t.other_ms,
        ];
        assert_eq!((t.steps, t.step_ms), (3, 100.0));
        // Of the 14 one prepares the reduction.
        let exposed: Vec<_> = t
            .exposed_ms
            .iter()
            .map(|(g, ms)| (g.as_str(), ms.round()))
            .collect();
        assert_eq!(exposed, [("dp", 9.0), ("tp", 4.0)]);
        for (got, want) in parts.into_iter().zip([50.0, 23.0, 14.0, 5.0, 8.0]) {
            assert!((got - want).abs() < 1e-9, "{parts:?}");
        }
    }

    #[test]
    fn steps_that_were_not_watched_or_were_interrupted_do_not_count() {
        let mut split = Split::new(false);
        assert_eq!(split.mean(), None);
        for n in [1, 2, 5, 6, 7] {
            split.take(&step(n, 100 * n));
        }
        split.interrupted(6);
        let t = split.mean().unwrap();
        // Steps 2 and 7: 5 follows a gap, 6 a validation.
        assert_eq!((t.steps, t.step_ms), (2, 100.0));
        assert!(split.seen.is_empty());
        let watched: Vec<u64> = (1..=31).filter(|n| Split::watches(*n)).collect();
        assert_eq!(
            watched,
            [2, 3, 4, 5, 6, 7, 8, 9, 10, 19, 20, 29, 30],
            "pairs, so that each has the step before it"
        );
    }

    #[test]
    fn stretches_are_joined_cut_and_taken_away() {
        let s = |a, b| (ms(a), ms(b));
        let u = union(vec![s(5, 9), s(1, 3), s(2, 4), s(7, 7), s(9, 10)]);
        assert_eq!(u, [s(1, 4), s(5, 10)]);
        assert_eq!(clip(u.clone(), s(2, 6)), [s(2, 4), s(5, 6)]);
        assert_eq!(
            without(&u, &[s(0, 2), s(6, 7), s(9, 20)]),
            [s(2, 4), s(5, 6), s(7, 9)]
        );
        assert_eq!(without(&u, &[]), u);
        assert_eq!(total(&u), ms(8));
    }
}
