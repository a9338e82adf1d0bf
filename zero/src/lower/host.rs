//! What the host holds of a unit, with the calls of its update: its share of what the rank owns, and parameters that only rest there.

use super::Words;
use super::figures::low_squares;
use super::update::words;
use crossweave_flat::Flat;
use crossweave_optim::update::{self, Averaged, Cells, StepParams};
use crossweave_optim::{Optimizer, Recipe};
use crossweave_plan::Lane;
use crossweave_program::abi::op;
use crossweave_program::{
    Builder, Code, DType, Life, MemId, MemoryDecl, MemorySpace, Place, Room, Sums, Tag, View, clip,
};
use std::ops::Range;

/// Elements of a run that are updated alike.
type Run = (Recipe, Range<u64>);

/// What the host updates of a unit.
#[derive(Clone, Debug)]
pub struct HostShare<'a> {
    /// Elements.
    pub numel: u64,
    /// Runs updated alike.
    pub runs: &'a [Run],
    /// Types of parameters, and of the gradient that is updated from.
    pub types: (DType, DType),
    /// The gradient is a sum over micro-batches that is made here.
    pub sums: Option<HostSums>,
    /// Most elements of one launch; none: a unit's, at once. No bit changes.
    pub group: Option<u64>,
    /// Gradients are clipped; the loss is scaled; see [`Job::rescaled`](super::Job::rescaled).
    pub clip: bool,
    /// See `clip`.
    pub scaled: bool,
    /// See `clip`.
    pub rescaled: bool,
}

/// A sum of gradients that the host makes.
#[derive(Clone, Debug)]
pub struct HostSums {
    /// Type in which they arrive: that of a sum in 16 bits, whose parts are rounded.
    pub wire: DType,
    /// Elements whose squares count in the global norm.
    pub normed: Vec<Range<u64>>,
    /// The device has squares of the unit too, which are added to what rounding takes from these.
    pub low: bool,
}

impl HostSums {
    /// Elements of `flat` that count in norms, of those whose gradient the host adds up.
    pub fn of(flat: &Flat, wire: DType) -> HostSums {
        let here = flat.normed.iter().filter_map(|r| clip(r, &(0..flat.host)));
        HostSums {
            wire,
            normed: here.collect(),
            low: flat.host < flat.owned_len(),
        }
    }

    /// Writes the calls that make the sum of `n` elements of type `sum`, and its figures.
    fn write(&self, b: &mut Builder, args: &[Place], (n, sum): (u64, DType)) -> Sums {
        let landing = |code: &Code<'_>| code.arg(HostShare::LANDING.index(), [n], self.wire);
        let total = |code: &Code<'_>| code.arg(HostShare::GRAD.index(), [n], sum);
        let first = b.calls();
        b.call(None, "first part", args, |code| {
            let on = code.on(Lane::Compute);
            match self.wire == sum {
                true => on.copy(&total(code), &landing(code)),
                false => on.cast(&total(code), &landing(code)),
            }
        });
        let further = b.calls();
        b.call(None, "further part", args, |code| {
            let on = code.on(Lane::Compute);
            let p = op::AxpbyParams {
                alpha: 1.0,
                beta: 1.0,
                ..Default::default()
            };
            on.plain(op::AXPBY, &[&total(code), &landing(code)], p.as_bytes());
        });
        let measure = b.calls();
        b.call(None, "measure", args, |code| {
            let on = code.on(Lane::Compute);
            let none = op::NoParams::default();
            let figure = |k: u64, dtype| code.arg_at(HostShare::FIGURES.index(), 4 * k, [1], dtype);
            let (squares, low) = (figure(0, DType::F32), figure(1, DType::F32));
            let count = figure(2, DType::U32);
            for figure in [&squares, &low, &count] {
                on.fill(figure, 0, 4);
            }
            let run = |r: &Range<u64>| {
                let at = sum.bytes(r.start);
                code.arg_at(HostShare::GRAD.index(), at, [r.end - r.start], sum)
            };
            let runs: Vec<View<'_>> = self.normed.iter().map(run).collect();
            if runs.is_empty() {
                return;
            }
            let operands: Vec<_> = std::iter::once(&squares).chain(&runs).collect();
            on.plain(op::MULTI_SUMSQ, &operands, none.as_bytes());
            if self.low {
                low_squares(&on, &low, &squares, &runs);
            }
            for r in &runs {
                on.plain(op::NONFINITE_COUNT, &[&count, r], none.as_bytes());
            }
        });
        Sums {
            landing: HostShare::LANDING,
            figures: HostShare::FIGURES,
            first: first..further,
            further: further..measure,
            measure: measure..b.calls(),
        }
    }
}

impl HostShare<'_> {
    /// The words of the step.
    const WORDS: MemId = MemId(0);
    const GRAD: MemId = MemId(1);
    /// Memory of its room: values.
    pub const VALUE: MemId = MemId(2);
    /// Parameters in 16 bits, where the values are not what the device is given.
    const PARAM: MemId = MemId(3);
    /// Moments.
    pub const MOMENTS: [MemId; 2] = [MemId(4), MemId(5)];
    /// Moving averages of the values.
    pub const EMA: MemId = MemId(6);
    /// Where the gradient of a micro-batch arrives.
    const LANDING: MemId = MemId(7);
    /// Figures of the sum of these.
    const FIGURES: MemId = MemId(8);

    /// Moments that are kept: as many as the optimizer of its runs that keeps most.
    fn moments(&self) -> usize {
        let each = self.runs.iter();
        let each = each.map(|(r, _)| r.optimizer.elementwise_states());
        each.max().unwrap_or(0)
    }

    /// Writes the update of those of `runs` that have one recipe.
    fn update(&self, code: &Code<'_>, runs: &[Run], recipe: &Recipe, k: &StepParams<'_, '_>) {
        let (compute, grad) = self.types;
        let on = code.on(Lane::Compute);
        let view = |mem: MemId, r: &Range<u64>, dtype: DType| {
            code.arg_at(mem.index(), dtype.bytes(r.start), [r.end - r.start], dtype)
        };
        let split = compute != DType::F32;
        let runs = runs.iter().filter(|(same, _)| same == recipe);
        let averaged: Vec<Averaged<'_>> = runs
            .clone()
            .map(|(_, r)| Averaged {
                value: view(Self::VALUE, r, DType::F32),
                ema: view(Self::EMA, r, DType::F32),
            })
            .collect();
        let average = || {
            if let Some(decay) = recipe.ema {
                update::write_ema(&on, decay, &averaged, k.skip.as_ref());
            }
        };
        let cells = runs.map(|(_, r)| Cells {
            value: view(Self::VALUE, r, DType::F32),
            copy: split.then(|| view(Self::PARAM, r, compute)),
            grad: view(Self::GRAD, r, grad),
            states: {
                let kept = recipe.optimizer.elementwise_states();
                let moments = Self::MOMENTS.iter().take(kept);
                moments.map(|m| view(*m, r, DType::F32)).collect()
            },
        });
        let Optimizer::Adam(a) = &recipe.optimizer else {
            // A launch a run: they are cut to the size of a group.
            let cells: Vec<_> = cells.collect();
            let factor = update::factor(&on, k);
            let words = (factor.as_ref(), k);
            update::elementwise(&on, recipe, &recipe.optimizer, &cells, words);
            return average();
        };
        let mut launches: Vec<Vec<View<'_>>> = vec![];
        let mut filled = 0u64;
        for c in cells {
            filled = filled.saturating_add(c.value.numel());
            if launches.is_empty() || self.group.is_some_and(|most| filled > most) {
                filled = c.value.numel();
                launches.push(vec![]);
            }
            if let Some(operands) = launches.last_mut() {
                let master = c.copy.as_ref().map(|_| c.value.clone());
                operands.push(c.copy.unwrap_or(c.value));
                operands.push(c.grad);
                operands.extend(c.states);
                operands.extend(master);
            }
        }
        for operands in &launches {
            update::launch_adam(&on, recipe, a, operands, split, k);
        }
        average();
    }
}

/// A run of elements as pieces of at most `most`.
fn cut((recipe, run): &Run, most: u64) -> impl Iterator<Item = Run> {
    let (recipe, run) = (*recipe, run.clone());
    let pieces = (run.end - run.start).div_ceil(most);
    (0..pieces).map(move |k| {
        let from = run.start + k * most;
        (recipe, from..run.end.min(from.saturating_add(most)))
    })
}

/// Declares pinned memory that is lent for a room's calls.
fn lent(b: &mut Builder, name: &str, bytes: u64, dtype: DType, tag: Tag) -> MemId {
    b.memory(MemoryDecl {
        name: name.into(),
        bytes,
        dtype,
        tag,
        home: MemorySpace::Pinned,
        life: Life::Transient,
    })
}

/// The host's share of a unit, and its update.
pub fn host_room(share: &HostShare<'_>) -> Room {
    let mut b = Builder::default();
    let (compute, grad) = share.types;
    let n = share.numel;
    lent(&mut b, "words", Words::READ, DType::F32, Tag::Staging);
    lent(&mut b, "grad", grad.bytes(n), grad, Tag::Grad);
    lent(&mut b, "value", 4 * n, DType::F32, Tag::Master);
    lent(&mut b, "param", compute.bytes(n), compute, Tag::Param);
    lent(&mut b, "moment1", 4 * n, DType::F32, Tag::Moment);
    lent(&mut b, "moment2", 4 * n, DType::F32, Tag::Moment);
    lent(&mut b, "ema", 4 * n, DType::F32, Tag::Moment);
    if let Some(s) = &share.sums {
        lent(&mut b, "landing", s.wire.bytes(n), s.wire, Tag::Grad);
        lent(&mut b, "figures", 12, DType::F32, Tag::Staging);
    }
    let memory = if share.sums.is_some() { 9 } else { 7 };
    let args: Vec<Place> = (0..memory).map(|m| MemId(m).into()).collect();
    let runs: Vec<Run> = match share.group {
        Some(most) => share
            .runs
            .iter()
            .flat_map(|r| cut(r, most.max(1)))
            .collect(),
        None => share.runs.to_vec(),
    };
    b.call(None, "host update", &args, |code| {
        code.decide();
        let (coef, skip) = words(code, 0, (share.clip, share.scaled));
        let k = StepParams {
            scaled: share.rescaled,
            coef,
            skip,
            sum: &|_| {},
            matrices: None,
        };
        let mut recipes: Vec<Recipe> = vec![];
        for (r, _) in &runs {
            if !recipes.contains(r) {
                recipes.push(*r);
            }
        }
        recipes
            .iter()
            .for_each(|r| share.update(code, &runs, r, &k));
    });
    let split = compute != DType::F32;
    if split {
        b.call(None, "refresh", &args, |code| {
            let view = |m: MemId, dtype| code.arg(m.index(), [n], dtype);
            let (param, value) = (HostShare::PARAM, HostShare::VALUE);
            let on = code.on(Lane::Compute);
            on.cast(&view(param, compute), &view(value, DType::F32));
        });
    }
    let refresh = 1..b.calls();
    let sums = share.sums.as_ref();
    let sums = sums.map(|s| s.write(&mut b, &args, (n, grad)));
    let moments = HostShare::MOMENTS.into_iter().take(share.moments());
    let averages = share.runs.iter().any(|(r, _)| r.ema.is_some());
    let ema = averages.then_some(HostShare::EMA);
    let param = split.then_some(HostShare::PARAM).into_iter();
    Room {
        name: "state".into(),
        parts: param
            .chain([HostShare::VALUE])
            .chain(moments)
            .chain(ema)
            .collect(),
        reads: Some([HostShare::WORDS, HostShare::GRAD]),
        sums,
        update: 0..1,
        refresh,
        program: b.finish(),
    }
}

/// Parameters of a unit that are never updated and rest on the host: nothing but them.
pub fn host_base(elements: u64, compute: DType) -> Room {
    let mut b = Builder::default();
    let bytes = compute.bytes(elements);
    let param = lent(&mut b, "param", bytes, compute, Tag::Param);
    Room {
        name: "base".into(),
        parts: vec![param],
        program: b.finish(),
        ..Room::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_optim::{Adam, ParamGroups};

    #[test]
    fn a_run_is_cut_into_groups_that_cover_it_once() {
        let recipe = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.0).base;
        let pieces =
            |from, to, most| -> Vec<_> { cut(&(recipe, from..to), most).map(|(_, r)| r).collect() };
        assert_eq!(pieces(3, 13, 4), [3..7, 7..11, 11..13]);
        assert_eq!(pieces(3, 13, u64::MAX), vec![Range { start: 3, end: 13 }]);
        assert_eq!(pieces(5, 5, 4), []);
    }
}
