//! The orders in which stages run their forwards and backwards: lists of work for each stage, in runs of units and micro-batches.
//!
//! Sources: GPipe (Huang et al., arXiv 1811.06965); 1F1B (PipeDream-Flush, Narayanan et al., arXiv 2006.09503); interleaved 1F1B
//! (Narayanan et al., arXiv 2104.04473); ZB-H1 (Qi et al., arXiv 2401.10241); ZB-V (Qi et al., arXiv 2405.15362); DualPipeV (DeepSeek's
//! DualPipe, cut in half), the last two in the order of PyTorch's `ScheduleZBVZeroBubble` and `ScheduleDualPipeV`.

use crossweave_plan::{MicroBatch, PipelineStage, Run, Runs};
use std::collections::VecDeque;

/// How a stage's forwards and backwards follow each other over the micro-batches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Forwards until the first gradient can arrive, then one forward and one backward in turn, then the rest of the backwards: as few
    /// micro-batches in flight as keep every stage busy.
    #[default]
    OneFOneB,
    /// All forwards, then all backwards.
    GPipe,
    /// 1F1B over several runs a stage: run `j * stages + s` is stage `s`'s.
    Interleaved,
    /// 1F1B whose gradients of weights wait: those of stage `s` for `s` micro-batches.
    ZbH1,
    /// Two runs a stage in the form of a V, gradients of weights where a stage would be idle.
    ZbV,
    /// The same V, with forwards of one run between backwards of the other.
    DualPipeV,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 6] = [
        Order::OneFOneB,
        Order::GPipe,
        Order::Interleaved,
        Order::ZbH1,
        Order::ZbV,
        Order::DualPipeV,
    ];

    /// The order of that name, as configurations write it.
    pub fn from_name(name: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|o| o.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Order::OneFOneB => "1f1b",
            Order::GPipe => "gpipe",
            Order::Interleaved => "interleaved",
            Order::ZbH1 => "zb-h1",
            Order::ZbV => "zbv",
            Order::DualPipeV => "dualpipev",
        }
    }

    /// Runs that a stage has, if it may have `chunks` where the order leaves a choice.
    pub fn runs_of_a_stage(self, chunks: u32) -> u32 {
        match self {
            Order::OneFOneB | Order::GPipe | Order::ZbH1 => 1,
            Order::Interleaved => chunks.max(1),
            Order::ZbV | Order::DualPipeV => 2,
        }
    }

    /// The stage that has a run, of so many stages.
    pub fn stage_of(self, run: u32, stages: u32) -> PipelineStage {
        match (run / stages, run % stages) {
            (1, at) if matches!(self, Order::ZbV | Order::DualPipeV) => stages - 1 - at,
            (_, at) => at,
        }
    }

    /// Runs of so many units each, in the model's order, over `stages` stages.
    pub fn divide(self, each: &[u32], stages: u32) -> Runs {
        let mut start = 0;
        let runs = each.iter().zip(0..).map(|(units, k)| {
            let end = start + units;
            Run {
                stage: self.stage_of(k, stages.max(1)),
                units: std::mem::replace(&mut start, end)..end,
            }
        });
        Runs::from(runs.collect::<Vec<_>>())
    }

    /// The work of every stage, in the order in which each does it.
    ///
    /// # Errors
    /// Runs, or micro-batches, of which there is no such order, in one sentence.
    pub fn work(self, runs: &Runs, micro_batches: u32) -> Result<Vec<Vec<Work>>, String> {
        let (p, m) = (runs.stages(), micro_batches);
        let wanted = runs.iter().map(|r| r.stage);
        let fits = wanted.eq((0..runs.count() as u32).map(|k| self.stage_of(k, p)));
        let chunks = runs.count() as u32 / p.max(1);
        if !fits || runs.count() as u32 != p * self.runs_of_a_stage(chunks) {
            return Err(format!(
                "{} runs over {p} stages are not those of {}",
                runs.count(),
                self.name()
            ));
        }
        if self == Order::Interleaved && !m.is_multiple_of(p) {
            return Err(format!(
                "{m} micro-batches over {p} stages: interleaved takes a multiple of the stages"
            ));
        }
        if self == Order::DualPipeV && m < 2 * p {
            return Err(format!(
                "{m} micro-batches over {p} stages: dualpipev takes two for each stage at least"
            ));
        }
        let of = |stage| {
            let list = List::new(p, m, stage);
            match self {
                Order::OneFOneB => list.turns((p - stage - 1).min(m)),
                Order::GPipe => list.turns(m),
                Order::Interleaved => list.interleaved(chunks),
                Order::ZbH1 => list.half(),
                Order::ZbV => list.v(),
                Order::DualPipeV => list.dual(),
            }
        };
        Ok((0..p).map(of).collect())
    }
}

/// What is done with a run of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Its forward.
    Forward,
    /// Its backward.
    Backward,
    /// The part of the backward that makes the gradient of the run's input.
    InputGrad,
    /// The part that makes the gradients of its weights.
    WeightGrad,
}

/// A piece of work of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// What is done.
    pub kind: Kind,
    /// With which run.
    pub run: usize,
    /// With which micro-batch.
    pub mb: MicroBatch,
}

/// The most runs that are forward and not yet wholly backward at once in a stage's list: what multiplies saved activations.
pub fn in_flight<'a>(list: impl IntoIterator<Item = &'a Work>) -> u32 {
    let (mut now, mut most) = (0u32, 0);
    for w in list {
        match w.kind {
            Kind::Forward => now += 1,
            Kind::Backward | Kind::WeightGrad => now = now.saturating_sub(1),
            Kind::InputGrad => {}
        }
        most = most.max(now);
    }
    most
}

/// The list of one stage while it is written: the next micro-batch of each kind and run.
struct List {
    stages: u32,
    micro_batches: u32,
    stage: PipelineStage,
    /// The next forward and the next backward of each run.
    next: Vec<[MicroBatch; 2]>,
    /// Gradients of weights that wait.
    owed: VecDeque<(usize, MicroBatch)>,
    work: Vec<Work>,
}

impl List {
    fn new(stages: u32, micro_batches: u32, stage: PipelineStage) -> List {
        List {
            stages,
            micro_batches,
            stage,
            next: vec![],
            owed: VecDeque::new(),
            work: vec![],
        }
    }

    fn push(&mut self, kind: Kind, run: usize, mb: MicroBatch) {
        // Orders of a V count on more micro-batches than there may be.
        if mb < self.micro_batches {
            self.work.push(Work { kind, run, mb });
        }
    }

    /// The next micro-batch of a run, forward (0) or backward (1).
    fn count(&mut self, run: usize, back: usize) -> MicroBatch {
        if self.next.len() <= run {
            self.next.resize(run + 1, [0; 2]);
        }
        let mb = self.next[run][back];
        self.next[run][back] += 1;
        mb
    }

    fn counted(&self, run: usize, back: usize) -> MicroBatch {
        self.next.get(run).map_or(0, |n| n[back])
    }

    fn forward(&mut self, run: usize) {
        let mb = self.count(run, 0);
        self.push(Kind::Forward, run, mb);
    }

    /// Both parts of a backward, one behind the other.
    fn backward(&mut self, run: usize) {
        let mb = self.count(run, 1);
        self.push(Kind::InputGrad, run, mb);
        self.push(Kind::WeightGrad, run, mb);
    }

    /// The first part of a backward; the second waits.
    fn input_grad(&mut self, run: usize) {
        let mb = self.count(run, 1);
        self.push(Kind::InputGrad, run, mb);
        self.owed.push_back((run, mb));
    }

    /// The second part that has waited longest.
    fn weight_grad(&mut self) {
        if let Some((run, mb)) = self.owed.pop_front() {
            self.push(Kind::WeightGrad, run, mb);
        }
    }

    /// So many forwards ahead of the first backward, then one of each in turn.
    fn turns(mut self, ahead: u32) -> Vec<Work> {
        let (run, m) = (self.stage as usize, self.micro_batches);
        for mb in 0..m + ahead {
            if mb < m {
                self.push(Kind::Forward, run, mb);
            }
            if let Some(mb) = mb.checked_sub(ahead) {
                self.push(Kind::Backward, run, mb);
            }
        }
        self.work
    }

    /// Micro-batches go through the runs of a stage in rounds of as many as there are stages.
    fn interleaved(mut self, chunks: u32) -> Vec<Work> {
        let (p, total) = (self.stages, self.micro_batches * chunks);
        let at = |k: u32| {
            let (round, at) = (k / (p * chunks), k % (p * chunks));
            (at / p, round * p + at % p)
        };
        let run = |chunk: u32, stage: u32| (chunk * p + stage) as usize;
        let ahead = ((p - self.stage - 1) * 2 + (chunks - 1) * p).min(total);
        for k in 0..total + ahead {
            if k < total {
                let (chunk, mb) = at(k);
                self.push(Kind::Forward, run(chunk, self.stage), mb);
            }
            if let Some(k) = k.checked_sub(ahead) {
                let (chunk, mb) = at(k);
                self.push(Kind::Backward, run(chunks - 1 - chunk, self.stage), mb);
            }
        }
        self.work
    }

    /// 1F1B in which the gradients of weights of stage `s` are made `s` micro-batches late: while those behind it still run.
    fn half(mut self) -> Vec<Work> {
        let (run, m) = (self.stage as usize, self.micro_batches);
        let ahead = (self.stages - self.stage - 1).min(m);
        (0..ahead).for_each(|_| self.forward(run));
        for mb in 0..m {
            if ahead + mb < m {
                self.forward(run);
            }
            self.input_grad(run);
            if mb >= self.stage {
                self.weight_grad();
            }
        }
        while !self.owed.is_empty() {
            self.weight_grad();
        }
        self.work
    }

    /// The stage's runs of a V: down, and up again.
    fn both(&self) -> [usize; 2] {
        [self.stage, 2 * self.stages - 1 - self.stage].map(|r| r as usize)
    }

    fn v(mut self) -> Vec<Work> {
        let (p, s, [down, up]) = (self.stages, self.stage, self.both());
        // As many as fill the V once, though some may not be there.
        let m = self.micro_batches.max(2 * p - 1);
        (0..2 * (p - s) - 1).for_each(|_| self.forward(down));
        for _ in 0..s {
            self.forward(up);
            self.forward(down);
        }
        for _ in 0..p - s {
            self.forward(up);
            self.backward(up);
        }
        while self.counted(up, 0) < self.counted(down, 0) || self.counted(down, 0) < m {
            if self.counted(down, 0) < m {
                self.forward(down);
            }
            self.backward(down);
            self.forward(up);
            self.backward(up);
        }
        for _ in 0..s {
            self.input_grad(down);
            self.input_grad(up);
        }
        for _ in 0..p - s {
            self.input_grad(down);
            self.oldest_of(down);
        }
        while self.owed.iter().any(|(run, _)| *run == up) {
            self.oldest_of(up);
        }
        while !self.owed.is_empty() {
            self.weight_grad();
        }
        self.work
    }

    /// The second part of a backward of this run that has waited longest.
    fn oldest_of(&mut self, run: usize) {
        if let Some(at) = self.owed.iter().position(|(r, _)| *r == run)
            && let Some((run, mb)) = self.owed.remove(at)
        {
            self.push(Kind::WeightGrad, run, mb);
        }
    }

    fn dual(mut self) -> Vec<Work> {
        let (p, s, [down, up]) = (self.stages, self.stage, self.both());
        (0..2 * (p - s - 1)).for_each(|_| self.forward(down));
        for _ in 0..s + 1 {
            self.forward(down);
            self.forward(up);
        }
        for _ in 0..p - s - 1 {
            self.input_grad(up);
            self.weight_grad();
            self.forward(up);
        }
        for _ in 0..self.micro_batches + s + 1 - 2 * p {
            self.forward(down);
            self.backward(up);
            self.forward(up);
            self.backward(down);
        }
        for _ in 0..p - s - 1 {
            self.backward(up);
            self.forward(up);
            self.backward(down);
        }
        // From the middle on gradients of weights wait, for the runs in which the stage would be idle.
        for half in 0..2 * (s + 1) {
            let run = [up, down][half as usize % 2];
            match half > s {
                true => self.input_grad(run),
                false => self.backward(run),
            }
        }
        for _ in 0..p - s - 1 {
            self.weight_grad();
            self.input_grad(down);
        }
        (0..s + 1).for_each(|_| self.weight_grad());
        self.work
    }
}
