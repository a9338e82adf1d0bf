//! A schedule played against the clock: when each piece of work begins and ends where every stage does its list in order, messages are free,
//! and nothing begins before what it needs is there.

use crate::work::{Kind, Work, in_flight};
use crossweave_plan::{PipelineStage, Runs};
use std::collections::HashMap;
use std::ops::Range;

/// What a run costs, in any unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Its forward.
    pub forward: u64,
    /// The gradient of its input.
    pub input: u64,
    /// The gradients of its weights.
    pub weights: u64,
}

impl Cost {
    /// Each part takes one unit of time.
    pub const UNIT: Cost = Cost {
        forward: 1,
        input: 1,
        weights: 1,
    };

    /// All parts together.
    pub fn whole(&self) -> u64 {
        self.forward + self.input + self.weights
    }

    fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Forward => self.forward,
            Kind::InputGrad => self.input,
            Kind::WeightGrad => self.weights,
            Kind::Backward => self.input + self.weights,
        }
    }
}

/// When each piece of work of each stage runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// By stage, in the order of its list.
    pub stages: Vec<Vec<(Work, Range<u64>)>>,
}

/// The result that a piece of work waits for: an output, or the gradient of an input or of weights.
type Made = (Kind, usize, u32);

impl Timeline {
    /// Plays the lists of all stages; `cost` is that of a run.
    ///
    /// # Errors
    /// The first stage that waits for ever, in one sentence.
    pub fn play(
        runs: &Runs,
        lists: &[Vec<Work>],
        cost: impl Fn(usize) -> Cost,
    ) -> Result<Timeline, String> {
        let mut made: HashMap<Made, u64> = HashMap::new();
        let mut at = vec![0u64; lists.len()];
        let mut stages: Vec<Vec<(Work, Range<u64>)>> = vec![vec![]; lists.len()];
        loop {
            let mut moved = false;
            for (s, list) in lists.iter().enumerate() {
                while let Some(w) = list.get(stages[s].len()) {
                    let ready = needs(runs, w).map(|n| made.get(&n).copied());
                    let Some(ready) = ready.collect::<Option<Vec<u64>>>() else {
                        break;
                    };
                    let begin = ready.into_iter().fold(at[s], u64::max);
                    let end = begin + cost(w.run).of(w.kind);
                    at[s] = end;
                    stages[s].push((*w, begin..end));
                    made.extend(makes(w).map(|m| (m, end)));
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        match lists
            .iter()
            .zip(&stages)
            .position(|(l, s)| l.len() > s.len())
        {
            None => Ok(Timeline { stages }),
            Some(s) => Err(format!(
                "stage {s} waits for ever before {:?}",
                lists[s][stages[s].len()]
            )),
        }
    }

    /// The end of the last piece of work.
    pub fn makespan(&self) -> u64 {
        let ends = self.stages.iter().flatten().map(|(_, t)| t.end);
        ends.max().unwrap_or(0)
    }

    /// The most runs that a stage has the activations of at once, from their forwards to the ends of their backwards.
    pub fn peak(&self, stage: PipelineStage) -> u32 {
        let own = self.stages.get(stage as usize);
        in_flight(own.into_iter().flatten().map(|(w, _)| w))
    }
}

/// What must be there before a piece of work.
fn needs(runs: &Runs, w: &Work) -> impl Iterator<Item = Made> + use<> {
    let Work { kind, run, mb } = *w;
    let before = match kind {
        Kind::Forward => run.checked_sub(1).map(|r| (Kind::Forward, r, mb)),
        Kind::WeightGrad => Some((Kind::InputGrad, run, mb)),
        Kind::Backward | Kind::InputGrad => Some((Kind::Forward, run, mb)),
    };
    let back = matches!(kind, Kind::Backward | Kind::InputGrad);
    let behind = (back && run + 1 < runs.count()).then_some((Kind::InputGrad, run + 1, mb));
    before.into_iter().chain(behind)
}

/// What is there behind it.
fn makes(w: &Work) -> impl Iterator<Item = Made> + use<> {
    let Work { kind, run, mb } = *w;
    let kinds: &[Kind] = match kind {
        Kind::Forward => &[Kind::Forward],
        Kind::InputGrad => &[Kind::InputGrad],
        Kind::WeightGrad => &[Kind::WeightGrad],
        Kind::Backward => &[Kind::InputGrad, Kind::WeightGrad],
    };
    kinds.iter().map(move |k| (*k, run, mb))
}
