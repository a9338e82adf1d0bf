//! The figures of a step: its loss, the squares of gradients and their norm, whether they are finite; small words on the device,
//! of which the host reads some one step late.

use super::{Grads, Job, sum};
use crossweave_flat::Flat;
use crossweave_plan::{Lane, StepId};
use crossweave_program::abi::op::{self, ProgramInst, inst};
use crossweave_program::clip;
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, Figure, Given, GroupId, Member, On, ParamBlock, Place,
    Scalar, Tag, Traffic, View,
};
use std::borrow::Cow;
use std::ops::Range;

/// The small device words of a step: `[loss, sum of squares, norm, coefficient, skip]`, then the figures that the model's last unit gives beside
/// its loss, then the sum of squares of each unit; and where
/// sums are canonical the squares of each logical slice and the loss of each micro-batch of all ranks, which one of them writes.
#[derive(Clone, Debug)]
pub struct Words {
    units: u64,
    /// Figures beside the loss.
    figures: u64,
    /// First word of each unit's logical slices, and the number of all.
    slices: (Vec<u64>, u64),
    /// Micro-batches of all ranks.
    losses: u64,
}

impl Words {
    /// Bytes of the words that every step has, which the host reads.
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
            figures: job.figures,
            slices: (slices, next),
            losses: u64::from(job.shards.unwrap_or(0) * job.micro_batches),
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        4 * self.losses().end
    }
    /// The words of the figures beside the loss, behind [`Words::READ`].
    pub fn figures(&self) -> Range<u64> {
        let first = Words::READ / 4;
        first..first + self.figures
    }
    /// Bytes of the words the host reads.
    pub fn read(&self) -> u64 {
        4 * self.figures().end
    }
    /// The word of unit `u`.
    pub fn of_unit(&self, u: usize) -> u64 {
        self.figures().end + u as u64
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

/// Counts the values that are not finite in `normed` of unit `u`'s gradient.
fn count(code: &Code<'_>, normed: &[Range<u64>], u: usize, (counts, grad): (usize, usize)) {
    let none = op::NoParams::default();
    let count = code.arg_at(counts, 4 * u as u64, [1], DType::U32);
    for g in runs(code, grad, normed) {
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
///
/// What the host has of them is at parameter `arrived`, where it has some.
fn total(code: &Code<'_>, job: &Job, words: &Words, arrived: Option<usize>) {
    if let Some(arg) = arrived {
        arrive(code, job);
        let n = words.units;
        let each = code.arg_at(0, words.read(), [n], DType::F32);
        let [theirs, low, mine] = [0, 1, 3].map(|k| code.arg_at(arg, 4 * k * n, [n], DType::F32));
        // Both parts with what rounding took from them and takes from their sum (Knuth's), so that the bits are those of one sum.
        let on = code.on(Lane::Compute);
        on.map(&[&each], &[&each, &theirs, &low, &mine], &[], |x| {
            let all = x[0] + x[1];
            let other = all - x[0];
            let took = (x[0] - (all - other)) + (x[1] - other);
            vec![all + (took + (x[2] + x[3]))]
        });
    }
    if job.shards.is_some() {
        return sum_words(code, job, words.slices(), Words::SQUARES);
    }
    let reduced = code.on(job.reduce);
    let each = code.arg_at(0, words.read(), [words.units], DType::F32);
    if let Some(stages) = job.groups.stages {
        sum_over(&reduced, stages, CollectiveKind::AllReduce, &each);
    }
    let total = word(code, Words::SQUARES);
    reduce(&code.on(Lane::Compute), op::reduce::SUM, &total, &each);
    if let Some(group) = job.groups.figures {
        sum_over(&reduced, group, CollectiveKind::AllReduce, &total);
    }
}

/// What of the gradient of a unit counts in norms, of what is there of it: all that is owned, or (`rest`) what the device updates.
fn normed(f: &Flat, rest: bool) -> Cow<'_, [Range<u64>]> {
    if !rest {
        return Cow::Borrowed(&f.normed);
    }
    let here = f.normed.iter().filter_map(|r| clip(r, &f.rest()));
    here.map(|r| r.start - f.host..r.end - f.host).collect()
}

/// `low` = what rounding took from `squares`, the sum of squares of `runs`: a sum in double precision of which both are parts.
pub(super) fn low_squares(on: &On<'_>, low: &View<'_>, squares: &View<'_>, runs: &[View<'_>]) {
    let negated = op::AxpbyParams {
        alpha: -1.0,
        beta: 0.0,
        ..Default::default()
    };
    on.plain(op::AXPBY, &[low, squares], negated.as_bytes());
    let operands: Vec<_> = std::iter::once(low).chain(runs).collect();
    on.plain(
        op::MULTI_SUMSQ,
        &operands,
        op::NoParams::default().as_bytes(),
    );
}

/// Waits until each figure of the gradients that the host has added up is on its way.
fn arrive(code: &Code<'_>, job: &Job) {
    let leaving = job.parts.iter().enumerate().filter(|(_, p)| p.leave);
    leaving.for_each(|(u, _)| code.wait_for(u as u32));
}

impl Grads<'_> {
    fn words(&self) -> Place {
        self.memory.words.into()
    }

    /// The start of a step: no figure is there yet.
    pub fn begin(&self, b: &mut Builder) {
        let arrived = self.memory.arrived.map(Place::from);
        let args: Vec<Place> = std::iter::once(self.words()).chain(arrived).collect();
        b.call(None, "begin", &args, |code| {
            let on = code.on(Lane::Compute);
            let all = code.arg(0, [self.words.bytes() / 4], DType::F32);
            on.fill(&all, 0, 4);
            if arrived.is_some() {
                on.fill(&code.arg(1, [4 * self.words.units], DType::F32), 0, 4);
            }
        });
    }

    /// Before the first backward: the host decides the step's scalars, among them the gradients it begins with.
    pub fn decide(&self, b: &mut Builder) {
        b.call(None, "decide", &[self.memory.seed.into()], |code| {
            code.decide();
            if self.job.seeded {
                let seed = code.scalar(Scalar::Given(Given::Seed));
                code.on(Lane::Compute)
                    .fill_scalar(&code.arg(0, [1], DType::F32), seed);
            }
            if self.job.seeded && self.job.figures > 0 {
                let seed = code.scalar(Scalar::Given(Given::Beside));
                code.on(Lane::Compute)
                    .fill_scalar(&code.arg_at(0, 4, [1], DType::F32), seed);
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
                runs(code, arg, &normed(&self.flats[u], self.now[u].rest)),
            );
        }
        for (slice, of) in &self.flats[u].squares {
            add(self.words.slice(u, *slice), runs(code, arg, of));
        }
    }

    /// The squares of a unit's gradient where it is not kept for the norm of all.
    pub fn squares_of(&self, b: &mut Builder, step: StepId, u: usize) {
        let Some((own, _)) = self.now[u].own else {
            return;
        };
        let part = self.memory.arrived.filter(|_| self.now[u].rest);
        let args = [self.words(), own].into_iter().chain(part.map(Place::from));
        let args: Vec<Place> = args.collect();
        b.call(Some(step), "squares", &args, |code| {
            self.squares(code, u, 1);
            let runs = runs(code, 1, &normed(&self.flats[u], self.now[u].rest));
            if part.is_some() && !runs.is_empty() {
                let at = 4 * (3 * self.words.units + u as u64);
                let (low, squares) = (code.arg_at(2, at, [1], DType::F32), self.words.of_unit(u));
                low_squares(&code.on(Lane::Compute), &low, &word(code, squares), &runs);
            }
        });
    }

    /// `GradNorm`: the norm of all gradients and the clipping coefficient. Where a gradient has gone to the host (`left`), its squares
    /// were summed before.
    pub fn norm(&self, b: &mut Builder, step: StepId, left: &[bool]) {
        let here = (0..self.flats.len()).filter(|u| !left[*u]);
        let units: Vec<(usize, Place)> = here.filter_map(|u| Some((u, self.own(u)?))).collect();
        let grads = units.iter().map(|(_, own)| *own);
        let arrived = self.memory.arrived.map(Place::from);
        let args = std::iter::once(self.words()).chain(grads).chain(arrived);
        let args: Vec<Place> = args.collect();
        b.call(Some(step), "norm", &args, |code| {
            for (k, (u, _)) in units.iter().enumerate() {
                self.squares(code, *u, k + 1);
            }
            let theirs = arrived.map(|_| units.len() + 1);
            total(code, self.job, self.words, theirs);
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
        let (Some((counts, _)), Some(own)) =
            (self.memory.counts, self.now[u].own.map(|(place, _)| place))
        else {
            return;
        };
        b.call(Some(step), "count", &[counts.into(), own], |code| {
            self.begin_counts(code, 0);
            count(code, &normed(&self.flats[u], self.now[u].rest), u, (0, 1));
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
        let arrived = self.memory.arrived.map(Place::from);
        let args: Vec<Place> = fixed.into_iter().chain(grads).chain(arrived).collect();
        let n = self.words.units;
        b.call(Some(step), "finite", &args, |code| {
            self.begin_counts(code, 1);
            for (k, (u, _)) in units.iter().enumerate() {
                count(
                    code,
                    &normed(&self.flats[*u], self.now[*u].rest),
                    *u,
                    (1, 3 + k),
                );
            }
            let compute = code.on(Lane::Compute);
            let whole = code.arg(1, [n], DType::U32);
            // Joined as floats, whose largest every device finds: whether one is 0 is all that is asked.
            let floats = code.arg_at(1, 4 * n, [n], DType::F32);
            compute.cast(&floats, &whole);
            if arrived.is_some() {
                arrive(code, self.job);
                let theirs = compute.empty_for([n], DType::F32, Tag::Staging);
                let counted = code.arg_at(3 + units.len(), 8 * n, [n], DType::U32);
                compute.cast(&theirs, &counted);
                sum(&compute, &floats, &floats, &theirs);
            }
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
        let fixed = [self.words(), self.memory.figures.into()];
        let arrived = self.memory.arrived.map(Place::from);
        let args: Vec<Place> = fixed.into_iter().chain(arrived).collect();
        b.call(None, "figures", &args, |code| {
            if self.job.clip <= 0.0 {
                total(code, self.job, self.words, arrived.map(|_| 2));
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
            let figures = self.words.figures();
            if let (false, Some(all)) = (figures.is_empty(), self.job.groups.all) {
                let n = figures.end - figures.start;
                let figures = code.arg_at(0, 4 * figures.start, [n], DType::F32);
                sum_over(&reduced, all, CollectiveKind::AllReduce, &figures);
            }
            let read = code.arg(0, [self.words.read() / 4], DType::F32);
            reduced.publish(&read, 1, Figure::Step);
        });
    }
}
