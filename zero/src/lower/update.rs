//! `Update`: the optimizer step of what this rank owns of a unit, on the device.

use super::{Grads, ParamMemory, Words};
use crossweave_flat::Flat;
use crossweave_optim::update::{self, CutMatrices, Group, StateSlice, StepParams};
use crossweave_optim::{Recipe, StateName};
use crossweave_plan::{Lane, StepId};
use crossweave_program::{
    Builder, Code, CollectiveKind, DType, MemId, Member, Place, Traffic, View,
};

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
        let params: Vec<_> = each
            .map(|(p, r)| (p.held.part.shape().to_vec(), *r))
            .collect();
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
        let Some((own, _)) = g.now[u].own.filter(|_| !rest.is_empty()) else {
            return;
        };
        let from = |place: Place, bytes: u64| Place {
            at: place.at + bytes,
            ..place
        };
        // Of a gradient whose host's part has left, the rest alone is here.
        let grad = match g.now[u].rest {
            true => own,
            false => from(own, 4 * rest.start),
        };
        // Masters of the host's part are not here; where the parameters are the values, they are.
        let value = match dtype {
            DType::F32 => from(params.value, 4 * rest.start),
            _ => params.value,
        };
        let copy = params.whole.filter(|_| f.copied());
        let copy = copy.map(|c| from(c, dtype.bytes(rest.start)));
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
                if let Some(all) = job.groups.figures {
                    let member = Member {
                        kind: CollectiveKind::AllReduce,
                        dtype: DType::F32,
                        send: None,
                        recv: t.span(),
                    };
                    let on = code.on(job.reduce);
                    on.collective(all, Traffic::Optimizer, vec![member]);
                }
            };
            let gather = |own: &View<'_>, all: &View<'_>| {
                if let Some(m) = job.groups.matrices {
                    let member = Member {
                        kind: CollectiveKind::AllGather,
                        dtype: DType::F32,
                        send: Some(own.span()),
                        recv: all.span(),
                    };
                    let on = code.on(job.reduce);
                    on.collective(m.group, Traffic::Optimizer, vec![member]);
                }
            };
            let k = StepParams {
                scaled: job.rescaled,
                coef,
                skip,
                sum: &sum,
                matrices: job.groups.matrices.map(|m| CutMatrices {
                    at: m.at,
                    ranks: m.ranks,
                    gather: &gather,
                }),
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
pub(super) fn words(
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
