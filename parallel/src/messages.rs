//! From the lists of work of all stages to the plan of one: units in the place of runs, and between them what crosses from stage to stage.
//!
//! Each message is put where its sender has made it, by the clock of a play in which every part of a run takes one unit of time; what a stage
//! sends and receives at one time is one group (`Exchange`), hidden states apart from gradients. All stages put messages in the one order of
//! that clock, so each comes to the next group of messages when all before it are over, whichever of the two ends waits: no order of messages
//! between stages is in another order on one of them, and no circle of stages can stand in sends.

use crate::timeline::{Cost, Timeline};
use crate::work::{Kind, Work};
use crossweave_plan::{Keep, Message, PipelineStage, Plan, Runs, StepKind};
use std::collections::BTreeMap;

/// Messages of one stage by the time at which they are there; at one time hidden states come first.
type Mail = BTreeMap<(u64, bool), Vec<Message>>;

/// The plan of one stage.
///
/// # Errors
/// Lists that wait for ever.
pub(crate) fn lay(runs: &Runs, lists: &[Vec<Work>], stage: PipelineStage) -> Result<Plan, String> {
    let timeline = Timeline::play(runs, lists, |_| Cost::UNIT)?;
    let mut mail = Mail::new();
    for (from, done) in timeline.stages.iter().enumerate() {
        for (work, time) in done {
            let Some((grad, unit, to)) = leaves(runs, work) else {
                continue;
            };
            let from = from as PipelineStage;
            if ![from, to].contains(&stage) {
                continue;
            }
            let sends = from == stage;
            mail.entry((time.end, grad)).or_default().push(Message {
                unit,
                mb: work.mb,
                stage: if sends { to } else { from },
                sends,
            });
        }
    }
    let mut mail = mail.into_iter().peekable();
    let mut ops = vec![];
    let own = timeline.stages.get(stage as usize);
    for (work, time) in own.into_iter().flatten() {
        while let Some((at, messages)) = mail.next_if(|((at, _), _)| *at <= time.start) {
            ops.push(exchange(at, messages));
        }
        steps(runs, work, &mut ops);
    }
    ops.extend(mail.map(|(at, messages)| exchange(at, messages)));
    Ok(Plan::from_ops(ops))
}

/// What is there at one time, by the clock of all stages.
fn exchange((time, grad): (u64, bool), messages: Vec<Message>) -> StepKind {
    StepKind::Exchange {
        grad,
        round: time as u32,
        messages,
    }
}

/// The message that a piece of work ends with: whether it is a gradient, of the output of which unit, and for which stage.
fn leaves(runs: &Runs, w: &Work) -> Option<(bool, u32, PipelineStage)> {
    let units = runs.units(w.run);
    match w.kind {
        Kind::Forward => Some((false, units.end - 1, runs.after(w.run)?)),
        Kind::Backward | Kind::InputGrad => Some((true, units.start - 1, runs.before(w.run)?)),
        Kind::WeightGrad => None,
    }
}

/// The steps of a piece of work: its units, backward from the last.
fn steps(runs: &Runs, w: &Work, ops: &mut Vec<StepKind>) {
    let (units, mb) = (runs.units(w.run), w.mb);
    let keep = Keep::All;
    match w.kind {
        Kind::Forward => ops.extend(units.map(|unit| StepKind::Forward { unit, mb, keep })),
        Kind::Backward => ops.extend(units.rev().map(|unit| StepKind::Backward { unit, mb })),
        Kind::InputGrad => ops.extend(units.rev().map(|unit| StepKind::InputGrad { unit, mb })),
        Kind::WeightGrad => ops.extend(units.rev().map(|unit| StepKind::WeightGrad { unit, mb })),
    }
}
