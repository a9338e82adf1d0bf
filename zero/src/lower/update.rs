//! `Update`: the optimizer step of what this rank owns of a unit, on the device; and of what the host owns of it, as a program of the
//! host's own.

use super::{Grads, ParamMemory, Words};
use crate::flat::Flat;
use crossweave_optim::update::{self, Cells, Group, StateSlice, StepParams};
use crossweave_optim::{Optimizer, Recipe, StateName};
use crossweave_plan::{Lane, StepId};
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, Home, Life, MemId, Member, MemoryDecl, Place, Program,
    Tag, Traffic, View,
};
use std::ops::Range;

/// What updates a unit on this rank, and what that keeps.
#[derive(Clone, Debug, Default)]
pub struct Optim {
    /// Parameters updated alike.
    pub groups: Vec<Group>,
}

impl Optim {
    /// Declares the memory of what is kept of unit `u`; `recipes` say how each parameter is updated, without one it is frozen.
    pub fn declare(b: &mut Builder, u: usize, f: &Flat, recipes: &[Option<Recipe>]) -> Optim {
        let each = f.params.iter().zip(recipes);
        let params: Vec<_> = each.map(|(p, r)| (p.dims.clone(), *r)).collect();
        let slices = f.logical_slices();
        Optim {
            groups: update::groups(b, u, &params, &f.parts(), slices),
        }
    }

    /// Shape of a state of a parameter; none when it is not kept.
    pub fn shape(&self, param: usize, name: StateName) -> Option<Vec<u64>> {
        self.groups.iter().find_map(|g| g.shape(param, name))
    }

    /// What is kept here of a parameter.
    pub fn slices(&self, param: usize) -> Vec<StateSlice> {
        let mine = |g: &&Group| g.params.iter().any(|(i, _)| *i == param);
        let group = self.groups.iter().find(mine);
        group.map_or(vec![], |g| g.slices(param))
    }

    /// `Update`, of what of unit `u` is updated on the device.
    pub fn update(
        &self,
        b: &mut Builder,
        step: StepId,
        (g, u): (&Grads<'_>, usize),
        params: &ParamMemory,
    ) {
        let (job, f) = (g.job, &g.flats[u]);
        let (rest, dtype) = (f.rest(), f.place.compute);
        let Some(own) = g.own(u).filter(|_| !rest.is_empty()) else {
            return;
        };
        let from = |place: Place, bytes: u64| Place {
            at: place.at + bytes,
            ..place
        };
        // Masters of the host's part are not here; where the parameters are the values, they are.
        let value = match dtype {
            DType::F32 => from(params.value, 4 * rest.start),
            _ => params.value,
        };
        let copy = params.whole.filter(|_| f.copied());
        let copy = copy.map(|c| from(c, dtype.bytes(rest.start)));
        let grad = from(own, 4 * rest.start);
        let mut args = vec![g.memory.words.into(), grad, value];
        args.extend(copy);
        let states = args.len();
        args.extend(self.memory().map(|(mem, _)| Place::from(mem)));
        b.call(Some(step), "update", &args, |code| {
            let n = rest.end - rest.start;
            let flat = update::Flat {
                grad: code.arg(1, [n], DType::F32),
                value: code.arg(2, [n], DType::F32),
                copy: copy.map(|_| code.arg(3, [n], dtype)),
            };
            let (coef, skip) = words(code, 0, (job.clip > 0.0, job.scaled));
            let sum = |t: &View<'_>| {
                if let Some(data) = job.groups.data {
                    let member = Member {
                        kind: CollectiveKind::AllReduce,
                        dtype: DType::F32,
                        send: None,
                        recv: t.span(),
                    };
                    let on = code.on(job.reduce);
                    on.collective(data, Traffic::Optimizer, vec![member]);
                }
            };
            let k = StepParams {
                scaled: job.rescaled,
                coef,
                skip,
                sum: &sum,
            };
            let on = code.on(Lane::Compute);
            update::update(code, on, &self.groups, states, &flat, &k);
        });
    }

    /// All memory of it, each with the byte that it holds before the first step.
    pub fn memory(&self) -> impl Iterator<Item = (MemId, u8)> + '_ {
        self.groups.iter().flat_map(Group::memory)
    }
}

/// The words of a step that an update reads, at parameter `arg`: the coefficient of clipping, and what forbids the update.
fn words(
    code: &Code<'_>,
    arg: usize,
    (clip, scaled): (bool, bool),
) -> (Option<View<'static>>, Option<View<'static>>) {
    let word = |i, dtype| code.arg_at(arg, 4 * i, [1], dtype);
    (
        clip.then(|| word(Words::COEFFICIENT, DType::F32)),
        scaled.then(|| word(Words::SKIP, DType::U32)),
    )
}

/// What the host updates of a unit.
#[derive(Clone, Debug)]
pub struct HostShare<'a> {
    /// Elements.
    pub numel: u64,
    /// Runs updated alike.
    pub runs: &'a [(Recipe, Range<u64>)],
    /// Types of parameters, and of gradients as they arrive.
    pub types: (DType, DType),
    /// Most elements of one launch.
    pub group: u64,
    /// Gradients are clipped; the loss is scaled; see [`Job::rescaled`](super::Job::rescaled).
    pub clip: bool,
    /// See `clip`.
    pub scaled: bool,
    /// See `clip`.
    pub rescaled: bool,
}

impl HostShare<'_> {
    /// Memory of its program: the words of the step.
    pub const WORDS: MemId = MemId(0);
    /// The gradient.
    pub const GRAD: MemId = MemId(1);
    /// Values.
    pub const VALUE: MemId = MemId(2);
    /// Parameters in 16 bits, where the values are not what the device is given.
    pub const PARAM: MemId = MemId(3);
    /// Moments.
    pub const MOMENTS: [MemId; 2] = [MemId(4), MemId(5)];

    /// Writes the update of the runs of one recipe.
    fn update(&self, code: &Code<'_>, recipe: &Recipe, k: &StepParams<'_, '_>) {
        let (compute, grad) = self.types;
        let on = code.on(Lane::Compute);
        let view = |mem: MemId, r: &Range<u64>, dtype: DType| {
            code.arg_at(mem.index(), dtype.bytes(r.start), [r.end - r.start], dtype)
        };
        let split = compute != DType::F32;
        let runs = self.runs.iter().filter(|(same, _)| same == recipe);
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
            return update::elementwise(&on, recipe, &recipe.optimizer, &cells, words);
        };
        let mut launches: Vec<Vec<View<'_>>> = vec![];
        let mut filled = 0u64;
        for c in cells {
            filled = filled.saturating_add(c.value.numel());
            if launches.is_empty() || filled > self.group {
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
    }
}

/// The program of the host's update of its share of a unit, over memory that is lent for it: that of [`HostShare`].
pub fn host_update(share: &HostShare<'_>) -> Program {
    let mut b = Builder::default();
    let (compute, grad) = share.types;
    let mut declare = |name: &str, bytes, dtype, tag| {
        b.memory(MemoryDecl {
            name: name.into(),
            bytes,
            dtype,
            tag,
            home: Home::Pinned,
            life: Life::Transient,
        })
    };
    let n = share.numel;
    declare("words", Words::READ, DType::F32, Tag::Staging);
    declare("grad", grad.bytes(n), grad, Tag::Grad);
    declare("value", 4 * n, DType::F32, Tag::Master);
    declare("param", compute.bytes(n), compute, Tag::Param);
    declare("moment1", 4 * n, DType::F32, Tag::Moment);
    declare("moment2", 4 * n, DType::F32, Tag::Moment);
    let args: Vec<Place> = (0..6).map(|m| MemId(m).into()).collect();
    b.call(None, "host update", &args, |code| {
        code.decide();
        let (coef, skip) = words(code, 0, (share.clip, share.scaled));
        let k = StepParams {
            scaled: share.rescaled,
            coef,
            skip,
            sum: &|_| {},
        };
        let mut recipes: Vec<Recipe> = vec![];
        for (r, _) in share.runs {
            if !recipes.contains(r) {
                recipes.push(*r);
            }
        }
        recipes.iter().for_each(|r| share.update(code, r, &k));
    });
    b.finish()
}
