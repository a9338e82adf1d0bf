//! The timeline of a step: what each pipeline stage does when, drawn as SVG ([`Timeline::svg`]), as text ([`Timeline::text`]) and as a trace for
//! Perfetto ([`Timeline::trace`]). Where the times come from, a plan that was played or a run that was watched, is its maker's.
#![forbid(unsafe_code)]

mod axis;
mod svg;
mod text;
mod trace;

#[cfg(test)]
mod tests;

use crossweave_plan::{MicroBatch, Runs, StepKind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a stretch of time is spent with, as pictures tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A forward.
    Forward,
    /// A forward once more, of what was not kept.
    Recompute,
    /// A backward in one.
    Backward,
    /// Its first part.
    InputGrad,
    /// Its second part.
    WeightGrad,
    /// Norm, finite check and updates.
    Optimizer,
    /// Hidden states between stages.
    States,
    /// Gradients of hidden states between stages.
    Grads,
    /// A gather of parameters.
    Gather,
    /// A reduction of gradients.
    Reduce,
    /// A copy between device and host.
    Copy,
}

impl What {
    /// All of them, in the order of a legend.
    pub const ALL: [What; 11] = [
        What::Forward,
        What::Recompute,
        What::Backward,
        What::InputGrad,
        What::WeightGrad,
        What::Optimizer,
        What::States,
        What::Grads,
        What::Gather,
        What::Reduce,
        What::Copy,
    ];

    /// That of an operation; none of one that takes no time.
    pub fn of(op: &StepKind) -> Option<What> {
        Some(match op {
            StepKind::Forward { .. } => What::Forward,
            StepKind::Recompute { .. } => What::Recompute,
            StepKind::Backward { .. } => What::Backward,
            StepKind::InputGrad { .. } => What::InputGrad,
            StepKind::WeightGrad { .. } => What::WeightGrad,
            StepKind::GradNorm | StepKind::Finite | StepKind::Update { .. } => What::Optimizer,
            op if op.is_message() => match op.messages().0 {
                true => What::Grads,
                false => What::States,
            },
            StepKind::Gather { .. } => What::Gather,
            StepKind::ReduceGrad { .. } | StepKind::Tie { .. } => What::Reduce,
            StepKind::Spill { .. }
            | StepKind::Fetch { .. }
            | StepKind::StateIn { .. }
            | StepKind::StateOut { .. }
            | StepKind::GradOut { .. }
            | StepKind::ParamIn { .. }
            | StepKind::ShardIn { .. } => What::Copy,
            _ => return None,
        })
    }

    /// Its name in a legend.
    pub fn name(self) -> &'static str {
        match self {
            What::Forward => "forward",
            What::Recompute => "recompute",
            What::Backward => "backward",
            What::InputGrad => "gradient of the input",
            What::WeightGrad => "gradients of weights",
            What::Optimizer => "optimizer",
            What::States => "hidden states",
            What::Grads => "their gradients",
            What::Gather => "gather",
            What::Reduce => "reduction",
            What::Copy => "copy",
        }
    }

    /// Returns true of what the device computes, and of no communication.
    pub fn computes(self) -> bool {
        self <= What::Optimizer
    }
}

/// A stretch of time of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What is done.
    pub what: What,
    /// The run that it is done with, among those of the stage.
    pub run: u32,
    /// The micro-batch; none of what is done for all of them.
    pub mb: Option<MicroBatch>,
    /// Its beginning, and its end.
    pub time: (u64, u64),
}

/// The spans of a stage, from its steps with their times: units of a run that follow one another are one span, and what is computed in no time is
/// none.
pub fn spans<'a>(
    runs: &Runs,
    stage: u32,
    steps: impl IntoIterator<Item = (&'a StepKind, (u64, u64))>,
) -> Vec<Span> {
    let mut all: Vec<Span> = vec![];
    let run_of = |unit: u32| {
        let mut own = runs.of(stage);
        own.position(|k| runs.units(k).contains(&unit))
    };
    // The last span of computing, which another unit may prolong.
    let mut last = None;
    for (op, time) in steps {
        let Some(what) = What::of(op) else {
            continue;
        };
        let run = op.units().first().and_then(|u| run_of(*u)).unwrap_or(0) as u32;
        let mb = op.micro_batch();
        if what.computes() {
            if time.1 <= time.0 {
                continue;
            }
            let before = last.map(|k: usize| &mut all[k]);
            let same = |s: &&mut Span| (s.what, s.run, s.mb) == (what, run, mb);
            let length = time.1 - time.0;
            if let Some(s) = before.filter(same)
                && time.0.saturating_sub(s.time.1) <= length / 4
            {
                s.time.1 = time.1;
                continue;
            }
            last = Some(all.len());
        }
        all.push(Span {
            what,
            run,
            mb,
            time,
        });
    }
    all
}

/// What one stage does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// What it does.
    pub spans: Vec<Span>,
    /// Bytes on its device, each from a moment on.
    pub memory: Vec<(u64, u64)>,
    /// The most bytes at once, where they are known.
    pub peak: Option<u64>,
}

/// What a timeline is drawn as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A picture.
    Svg,
    /// Lines of text.
    Text,
    /// Events for Perfetto.
    Trace,
}

impl Form {
    /// The form of a file by the end of its name, and what such a file begins with; none of another file.
    pub fn of(path: &Path) -> Option<(Form, &'static [u8])> {
        match path.extension()?.to_str()? {
            "svg" => Some((Form::Svg, b"<svg")),
            "txt" => Some((Form::Text, b"")),
            "json" => Some((Form::Trace, b"{\"displayTimeUnit\":")),
            _ => None,
        }
    }
}

/// What a moment's number means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The cost of a part of a run.
    #[default]
    Part,
    /// Nothing but a share of the whole.
    Share,
    /// Nanoseconds.
    Nanoseconds,
}

/// A step of all stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// What is drawn.
    pub title: String,
    /// A line about it.
    pub note: String,
    /// The unit of its times.
    pub unit: Unit,
    /// The stages, in order.
    pub stages: Vec<Stage>,
}

impl Timeline {
    /// The drawing in a form.
    pub fn drawn(&self, form: Form) -> String {
        match form {
            Form::Svg => self.svg(),
            Form::Text => self.text(),
            Form::Trace => self.trace().to_string(),
        }
    }

    /// The end of the last span.
    pub fn end(&self) -> u64 {
        let all = self.stages.iter().flat_map(|s| &s.spans);
        all.map(|s| s.time.1).max().unwrap_or(0)
    }

    /// From the first forward to the end of the last backward.
    pub fn computed(&self) -> u64 {
        let all = self.stages.iter().flat_map(|s| &s.spans);
        let all = all.filter(|s| s.what < What::Optimizer);
        let begin = all.clone().map(|s| s.time.0).min();
        let end = all.map(|s| s.time.1).max();
        end.unwrap_or(0) - begin.unwrap_or(0)
    }

    /// The part of the time, up to the end of all backwards, in which a stage computes nothing, of all stages together. What overlaps counts once.
    pub fn idle(&self) -> f64 {
        let (mut busy, mut end) = (0u64, 0u64);
        for s in &self.stages {
            let mut until = 0;
            let own = s.spans.iter().filter(|s| s.what < What::Optimizer);
            let mut times: Vec<(u64, u64)> = own.map(|s| s.time).collect();
            times.sort_unstable();
            for (from, to) in times {
                busy += to.saturating_sub(from.max(until));
                until = until.max(to);
            }
            end = end.max(until);
        }
        let all = end as f64 * self.stages.len() as f64;
        if all > 0.0 {
            1.0 - busy as f64 / all
        } else {
            0.0
        }
    }

    /// The kinds of spans that there are, in the order of a legend.
    fn kinds(&self) -> Vec<What> {
        let all = self.stages.iter().flat_map(|s| &s.spans);
        let mut kinds: Vec<What> = all.map(|s| s.what).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}
