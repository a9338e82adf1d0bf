//! The figures of a step: its loss, the squares of gradients and their norm, whether they are finite; small words on the device,
//! of which the host reads some one step late.

use super::{Grads, Job};
use crossweave_flat::Flat;
use crossweave_plan::{Lane, StepId};
use crossweave_program::abi::op::{self, ProgramInst, inst};
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, Figure, Given, GroupId, Member, On, ParamBlock, Place,
    Scalar, Traffic, View,
};
use std::ops::Range;

/// The small device words of a step: `[loss, sum of squares, norm, coefficient, skip]`, then the sum of squares of each unit; and where
/// sums are canonical the squares of each logical slice and the loss of each micro-batch of all ranks, which one of them writes.
#[derive(Clone, Debug)]
pub struct Words {
    units: u64,
    /// First word of each unit's logical slices, and the number of all.
    slices: (Vec<u64>, u64),
    /// Micro-batches of all ranks.
    losses: u64,
}

impl Words {
    /// Bytes of the words the host reads.
    pub const READ: u64 = 20;
    /// The loss.
    pub const LOSS: u64 = 0;
    /// The sum of squares.
    pub const SQUARES: u64 = 1;
    /// The global norm.
    pub const NORM: u64 = 2;
    /// What clipping multiplies gradients by.
    pub const COEFFICIENT: u64 = 3;
    /// Not zero where the step is to be skipped. A positive f32 and a positive integer are both words that are not zero, and zero is
    /// zero in both, so the largest count as f32 serves as the flag the update reads as an integer.
    pub const SKIP: u64 = 4;

    /// The words of a job over these flats.
    pub fn new(job: &Job, flats: &[Flat]) -> Words {
        let mut next = 0;
        let mut first = |f: &Flat| {
            next += f.words;
            next - f.words
        };
        let slices = flats.iter().map(&mut first).collect();
        Words {
            units: flats.len() as u64,
            slices: (slices, next),
            losses: u64::from(job.shards.unwrap_or(0) * job.micro_batches),
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        4 * self.losses().end
    }
    /// The word of unit `u`.
    pub fn of_unit(&self, u: usize) -> u64 {
        Words::READ / 4 + u as u64
    }
    /// The words of the squares of all logical slices.
    fn slices(&self) -> Range<u64> {
        let first = self.of_unit(self.units as usize);
        first..first + self.slices.1
    }
    /// The word of logical slice `k` of unit `u`.
    fn slice(&self, u: usize, k: u64) -> u64 {
        self.slices().start + self.slices.0[u] + k
    }
    /// The words of the losses of all micro-batches.
    pub fn losses(&self) -> Range<u64> {
        let first = self.slices().end;
        first..first + self.losses
    }
}

/// Word `i` of those that parameter 0 is bound to.
fn word(code: &Code<'_>, i: u64) -> View<'static> {
    code.arg_at(0, 4 * i, [1], DType::F32)
}

/// One small sum over the ranks of a group, in place.
fn sum_over(on: &On<'_>, group: GroupId, kind: CollectiveKind, t: &View<'_>) {
    let member = Member {
        kind,
        dtype: t.dtype(),
        send: None,
        recv: t.span(),
    };
    on.collective(group, Traffic::Scalar, vec![member]);
}

fn reduce(on: &On<'_>, kind: u32, to: &View<'_>, from: &View<'_>) {
    let p = op::ReduceParams {
        kind,
        axes: 1,
        ..Default::default()
    };
    on.plain(op::REDUCE, &[to, from], p.as_bytes());
}

/// Writes `norm = sqrt(sum of squares) * unscale`, and with a limit the clipping coefficient `min(1, limit / (norm + 1e-6))`; what
/// undoes the loss scale goes to the update by itself, and both together are DeepSpeed's fused factor.
fn norm(code: &Code<'_>, limit: Option<f64>) {
    let i = |op, dst, a, b, imm| ProgramInst {
        op,
        dst,
        a,
        b,
        imm,
        ..Default::default()
    };
    // Registers: 0 sum of squares, 1 norm, 2 coefficient, 3.. temporaries.
    let program = [
        i(inst::SQRT, 1, 0, 0, 0.0),
        i(inst::SCALAR, 3, 0, 0, 0.0),
        i(inst::MUL, 1, 1, 3, 0.0),
        i(inst::CONST, 3, 0, 0, 1e-6),
        i(inst::ADD, 3, 1, 3, 0.0),
        i(inst::CONST, 4, 0, 0, limit.map_or(f32::MAX, |l| l as f32)),
        i(inst::DIV, 3, 4, 3, 0.0),
        i(inst::CONST, 4, 0, 0, 1.0),
        i(inst::MIN, 2, 3, 4, 0.0),
    ];
    let mut p = op::ProgramParams {
        writes: 0b110,
        n_insts: program.len() as u32,
        ..Default::default()
    };
    p.insts[..program.len()].copy_from_slice(&program);
    let words = [Words::SQUARES, Words::NORM, Words::COEFFICIENT].map(|i| word(code, i));
    let unscale = code.scalar(Scalar::Given(Given::Unscale));
    code.on(Lane::Compute).launch(
        op::ELEMENTWISE_PROGRAM,
        &words.each_ref().map(Some),
        ParamBlock::fixed(p.as_bytes()),
        Some(ParamBlock::scalars(&[unscale])),
    );
}

/// Runs of what this rank owns of a unit's gradient, at parameter `arg`.
fn runs(code: &Code<'_>, arg: usize, runs: &[Range<u64>]) -> Vec<View<'static>> {
    let view = |r: &Range<u64>| code.arg_at(arg, 4 * r.start, [r.end - r.start], DType::F32);
    runs.iter().map(view).collect()
}

/// Counts the values of unit `u`'s gradient that are not finite.
fn count(code: &Code<'_>, flat: &Flat, u: usize, (counts, grad): (usize, usize)) {
    let none = op::NoParams::default();
    let count = code.arg_at(counts, 4 * u as u64, [1], DType::U32);
    for g in runs(code, grad, &flat.normed) {
        code.on(Lane::Compute)
            .plain(op::NONFINITE_COUNT, &[&count, &g], none.as_bytes());
    }
}

/// Word `to` = the sum of `words` over the ranks, one of which wrote each, in the order of the words.
fn sum_words(code: &Code<'_>, job: &Job, words: Range<u64>, to: u64) {
    let n = words.end - words.start;
    let all = code.arg_at(0, 4 * words.start, [n], DType::F32);
    if let Some(group) = job.groups.figures {
        let on = code.on(job.reduce);
        sum_over(&on, group, CollectiveKind::AllReduce, &all);
    }
    let to = word(code, to);
    reduce(&code.on(Lane::Compute), op::reduce::SUM, &to, &all);
}

/// The sum of squares over units, in their order, whatever order they were reduced in; and over ranks. Pipeline stages first give
/// each other the words of their units, zero on all but one, so that the sum has the bits of one stage.
fn total(code: &Code<'_>, job: &Job, words: &Words) {
    if job.shards.is_some() {
        return sum_words(code, job, words.slices(), Words::SQUARES);
    }
    let reduced = code.on(job.reduce);
    let each = code.arg_at(0, Words::READ, [words.units], DType::F32);
    if let Some(stages) = job.groups.stages {
        sum_over(&reduced, stages, CollectiveKind::AllReduce, &each);
    }
    let total = word(code, Words::SQUARES);
    reduce(&code.on(Lane::Compute), op::reduce::SUM, &total, &each);
    if let Some(group) = job.groups.figures {
        sum_over(&reduced, group, CollectiveKind::AllReduce, &total);
    }
}

impl Grads<'_> {
    fn words(&self) -> Place {
        self.memory.words.into()
    }

    /// The start of a step: no figure is there yet.
    pub fn begin(&self, b: &mut Builder) {
        b.call(None, "begin", &[self.words()], |code| {
            let all = code.arg(0, [self.words.bytes() / 4], DType::F32);
            code.on(Lane::Compute).fill(&all, 0, 4);
        });
    }

    /// Before the first backward: the host decides the step's scalars, among them the gradient it begins with.
    pub fn decide(&self, b: &mut Builder) {
        b.call(None, "decide", &[self.memory.seed.into()], |code| {
            code.decide();
            if self.job.seeded {
                let seed = code.scalar(Scalar::Given(Given::Seed));
                code.on(Lane::Compute)
                    .fill_scalar(&code.arg(0, [1], DType::F32), seed);
            }
        });
    }

    /// Adds the squares of this rank's slice of a unit's gradient to the unit's word, or those of each logical slice to its own.
    fn squares(&self, code: &Code<'_>, u: usize, arg: usize) {
        let none = op::NoParams::default();
        let on = code.on(Lane::Compute);
        let add = |at: u64, parts: Vec<View<'static>>| {
            if parts.is_empty() {
                return;
            }
            let to = word(code, at);
            let operands: Vec<_> = std::iter::once(&to).chain(&parts).collect();
            on.plain(op::MULTI_SUMSQ, &operands, none.as_bytes());
        };
        if self.job.shards.is_none() {
            return add(
                self.words.of_unit(u),
                runs(code, arg, &self.flats[u].normed),
            );
        }
        for (slice, of) in &self.flats[u].squares {
            add(self.words.slice(u, *slice), runs(code, arg, of));
        }
    }

    /// The squares of a unit's gradient where it is not kept for the norm of all.
    pub fn squares_of(&self, b: &mut Builder, step: StepId, u: usize) {
        if let Some(own) = self.own(u) {
            b.call(Some(step), "squares", &[self.words(), own], |code| {
                self.squares(code, u, 1);
            });
        }
    }

    /// `GradNorm`: the norm of all gradients and the clipping coefficient. Where a gradient has gone to the host (`left`), its squares
    /// were summed before.
    pub fn norm(&self, b: &mut Builder, step: StepId, left: &[bool]) {
        let here = (0..self.flats.len()).filter(|u| !left[*u]);
        let units: Vec<(usize, Place)> = here.filter_map(|u| Some((u, self.own(u)?))).collect();
        let grads = units.iter().map(|(_, own)| *own);
        let args: Vec<Place> = std::iter::once(self.words()).chain(grads).collect();
        b.call(Some(step), "norm", &args, |code| {
            for (k, (u, _)) in units.iter().enumerate() {
                self.squares(code, *u, k + 1);
            }
            total(code, self.job, self.words);
            norm(code, Some(self.job.clip));
        });
    }

    /// Once a step, before the first count: counts are zero.
    fn begin_counts(&mut self, code: &Code<'_>, arg: usize) {
        if !std::mem::replace(&mut self.counting, true) {
            let n = self.words.units;
            let counts = code.arg(arg, [n], DType::U32);
            code.on(Lane::Compute).fill(&counts, 0, 4);
        }
    }

    /// A unit's gradient leaves the device before the finite check: it is counted while it is there.
    pub fn count_leaving(&mut self, b: &mut Builder, step: StepId, u: usize) {
        let (Some((counts, _)), Some(own)) = (self.memory.counts, self.own(u)) else {
            return;
        };
        b.call(Some(step), "count", &[counts.into(), own], |code| {
            self.begin_counts(code, 0);
            count(code, &self.flats[u], u, (0, 1));
        });
    }

    /// `Finite`: counts this rank's non-finite gradients by unit and joins all ranks' counts; from here on the device knows whether it
    /// skips, and the host will.
    pub fn finite(&mut self, b: &mut Builder, step: StepId, left: &[bool]) {
        let Some((counts, verdict)) = self.memory.counts else {
            return;
        };
        let here = (0..self.flats.len()).filter(|u| !left[*u]);
        let units: Vec<(usize, Place)> = here.filter_map(|u| Some((u, self.own(u)?))).collect();
        let fixed = [self.words(), counts.into(), verdict.into()];
        let grads = units.iter().map(|(_, own)| *own);
        let args: Vec<Place> = fixed.into_iter().chain(grads).collect();
        let n = self.words.units;
        b.call(Some(step), "finite", &args, |code| {
            self.begin_counts(code, 1);
            for (k, (u, _)) in units.iter().enumerate() {
                count(code, &self.flats[*u], *u, (1, 3 + k));
            }
            let compute = code.on(Lane::Compute);
            let whole = code.arg(1, [n], DType::U32);
            // Joined as floats, whose largest every device finds: whether one is 0 is all that is asked.
            let floats = code.arg_at(1, 4 * n, [n], DType::F32);
            compute.cast(&floats, &whole);
            if let Some(all) = self.job.groups.all {
                let on = code.on(self.job.reduce);
                sum_over(&on, all, CollectiveKind::AllReduceMax, &floats);
            }
            reduce(&compute, op::reduce::MAX, &word(code, Words::SKIP), &floats);
            compute.publish(&floats, 2, Figure::Verdict);
        });
    }

    /// The end of a step: its figures go to the host, which reads them when it likes.
    pub fn publish(&self, b: &mut Builder) {
        let args = [self.words(), self.memory.figures.into()];
        b.call(None, "figures", &args, |code| {
            if self.job.clip <= 0.0 {
                total(code, self.job, self.words);
                norm(code, None);
            }
            let reduced = code.on(self.job.reduce);
            match (self.job.shards, self.job.groups.all) {
                (Some(_), _) => sum_words(code, self.job, self.words.losses(), Words::LOSS),
                (None, Some(all)) => {
                    let loss = word(code, Words::LOSS);
                    sum_over(&reduced, all, CollectiveKind::AllReduce, &loss);
                }
                (None, None) => {}
            }
            let read = code.arg(0, [Words::READ / 4], DType::F32);
            reduced.publish(&read, 1, Figure::Step);
        });
    }
}
