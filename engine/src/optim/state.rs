//! The states of a unit's parameters on this rank, packed by groups of parameters that are updated alike.

use super::map::map;
use super::{Flat, Group, Part, StepParams, blocks8};
use crossweave_hal::{Buffer, DType, Device, Stream, Tag};
use crossweave_tensor::{Result, Run, Tensor, shape_error};
use crossweave_zero::optim::{BLOCK_8BIT, Optimizer, Recipe, State, StateName, Stored};
use std::ops::Range;
use std::sync::Arc;

/// Memory of one state of a group.
struct Store {
    name: StateName,
    stored: Stored,
    /// f32, or the codes of blocks.
    values: Arc<Buffer>,
    /// Scales of blocks.
    scales: Option<Arc<Buffer>>,
}

/// The states of a group.
pub(crate) struct States(Vec<Store>);

impl States {
    fn store(&self, name: StateName) -> Result<&Store> {
        match self.0.iter().find(|s| s.name == name) {
            Some(s) => Ok(s),
            None => shape_error(format!("the optimizer keeps no {}", name.name())),
        }
    }
    /// A run of an f32 state: `[len]` from packed element `at`.
    pub fn packed(&self, name: StateName, at: u64, len: u64) -> Result<Tensor> {
        let s = self.store(name)?;
        Ok(Tensor::dense(s.values.clone(), 4 * at, [len], DType::F32))
    }
    /// A run of an 8-bit state that begins a block: codes `[len]` from packed element `at`, scales from packed block `block`.
    pub fn blocks(
        &self,
        name: StateName,
        at: u64,
        len: u64,
        block: u64,
    ) -> Result<(Tensor, Tensor)> {
        let s = self.store(name)?;
        let Some(scales) = &s.scales else {
            return shape_error(format!("{} is not kept in blocks", name.name()));
        };
        let n = len.div_ceil(BLOCK_8BIT);
        Ok((
            Tensor::dense(s.values.clone(), at, [len], DType::U8),
            Tensor::dense(scales.clone(), 4 * block, [n], DType::F32),
        ))
    }
}

/// One part of a state of one parameter.
pub(crate) struct StateView {
    /// Which state; none is the value.
    pub name: Option<StateName>,
    /// Elements of the state, row-major.
    pub range: Range<u64>,
    home: Home,
}

enum Home {
    F32(Tensor),
    Blocks {
        codes: Tensor,
        scales: Tensor,
        name: StateName,
    },
}

impl StateView {
    /// The view of a parameter's value.
    pub fn value(range: Range<u64>, t: Tensor) -> StateView {
        StateView {
            name: None,
            range,
            home: Home::F32(t),
        }
    }
    /// The memory itself, where it is f32.
    pub fn direct(&self) -> Option<&Tensor> {
        match &self.home {
            Home::F32(t) => Some(t),
            Home::Blocks { .. } => None,
        }
    }
    /// The values as f32 `[len]`: the memory itself, or a copy where it is kept in 8 bits.
    pub fn read(&self, run: &Run<'_>) -> Result<Tensor> {
        match &self.home {
            Home::F32(t) => Ok(t.clone()),
            Home::Blocks {
                codes,
                scales,
                name,
            } => {
                let out = run.empty([codes.numel()], DType::F32)?;
                blocks8::decode_all(run, &out, codes, scales, *name)?;
                Ok(out)
            }
        }
    }
    /// Takes over values put into what [`StateView::read`] gave.
    pub fn keep(&self, run: &Run<'_>, landed: &Tensor) -> Result<()> {
        match &self.home {
            Home::F32(_) => Ok(()),
            Home::Blocks {
                codes,
                scales,
                name,
            } => blocks8::encode_all(run, landed, codes, scales, *name),
        }
    }
}

/// What gradients are multiplied by as one f32 on the device, for formulas that take no number from the host.
pub(crate) fn factor(run: &Run<'_>, k: &StepParams<'_>) -> Result<Option<Tensor>> {
    if k.grad_scale == 1.0 {
        return Ok(k.coef.clone());
    }
    let out = run.empty([1], DType::F32)?;
    let scale = k.grad_scale as f32;
    match &k.coef {
        Some(c) => map(run, &[&out], &[c], &[scale], |x| {
            vec![x[0] * x[0].scalar(0)]
        })?,
        None => run
            .stream()
            .fill(out.region(), u64::from(scale.to_bits()), 4)?,
    }
    Ok(Some(out))
}

/// A unit's optimizer on this rank.
#[derive(Default)]
pub(crate) struct UnitOptim {
    groups: Vec<Group>,
}

impl UnitOptim {
    /// Allocates the states of `parts`, which are cut at `slices` logical slices. `params[i]` are the dims and the recipe of parameter `i`, without one it is frozen.
    pub fn new(
        device: &Device,
        params: &[(Vec<u64>, Option<Recipe>)],
        parts: &[Part],
        slices: u64,
    ) -> Result<UnitOptim> {
        // Parameters go together when they are updated alike and keep the same states.
        let mut keys: Vec<(Recipe, Vec<(StateName, Stored)>, Vec<usize>)> = vec![];
        for (i, (dims, recipe)) in params.iter().enumerate() {
            let Some(recipe) = recipe else { continue };
            let states = recipe.optimizer.states(dims);
            let kept: Vec<_> = states.iter().map(|s| (s.name, s.stored)).collect();
            match keys.iter_mut().find(|(r, k, _)| r == recipe && *k == kept) {
                Some((_, _, members)) => members.push(i),
                None => keys.push((*recipe, kept, vec![i])),
            }
        }
        let mut groups = vec![];
        for (mut recipe, kept, members) in keys {
            // What the 8-bit form keeps in f32 is plain AdamW.
            if let Optimizer::Adam8bit(a) = recipe.optimizer
                && kept.iter().all(|(_, s)| *s == Stored::F32)
            {
                recipe.optimizer = Optimizer::Adam(a);
            }
            let parts: Vec<Part> = parts
                .iter()
                .filter(|p| members.contains(&p.param))
                .cloned()
                .collect();
            let elements: u64 = parts.iter().map(|p| p.len).sum();
            let blocks: u64 = parts.iter().map(|p| p.len.div_ceil(BLOCK_8BIT)).sum();
            let whole = |name| -> u64 {
                let of = |i: &usize| recipe.optimizer.states(&params[*i].0);
                let found = |s: &State| s.name == name;
                let sizes = members.iter().flat_map(of).filter(found);
                sizes.map(|s| s.numel).sum()
            };
            let alloc = |bytes: u64| -> Result<Arc<Buffer>> {
                Ok(Arc::new(device.alloc_state(bytes, Tag::Moment)?))
            };
            let mut stores = vec![];
            for (name, stored) in kept {
                let (values, scales) = match stored {
                    Stored::F32 => (alloc(4 * elements)?, None),
                    Stored::Blocks8 => (alloc(elements)?, Some(alloc(4 * blocks)?)),
                    Stored::Whole => (alloc(4 * whole(name))?, None),
                };
                stores.push(Store {
                    name,
                    stored,
                    values,
                    scales,
                });
            }
            groups.push(Group {
                params: members
                    .into_iter()
                    .map(|i| (i, params[i].0.clone()))
                    .collect(),
                recipe,
                parts,
                slices,
                states: States(stores),
            });
        }
        Ok(UnitOptim { groups })
    }

    /// States as before the first step.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        for s in self.groups.iter().flat_map(|g| &g.states.0) {
            let zero = match s.stored {
                Stored::Blocks8 => blocks8::code_of_zero(s.name),
                Stored::F32 | Stored::Whole => 0,
            };
            for (b, value) in [(Some(&s.values), zero), (s.scales.as_ref(), 0)] {
                if let Some(b) = b.filter(|b| b.bytes() > 0) {
                    stream.fill(b.all(), value, 1)?;
                }
            }
        }
        Ok(())
    }

    /// One optimizer step of the unit.
    pub fn update(&self, run: &Run<'_>, flat: &Flat, k: &StepParams<'_>) -> Result<()> {
        let fused = |g: &Group| matches!(g.recipe.optimizer, Optimizer::Adam(_));
        let factor = match self.groups.iter().all(fused) {
            true => k.coef.clone(),
            false => factor(run, k)?,
        };
        let k = StepParams {
            factor,
            ..k.clone()
        };
        self.groups.iter().try_for_each(|g| g.update(run, flat, &k))
    }

    /// Shape of a state of a parameter; none when it is not kept.
    pub fn shape(&self, param: usize, name: StateName) -> Option<Vec<u64>> {
        let mine = |g: &&Group| g.params.iter().any(|(i, _)| *i == param);
        let g = self.groups.iter().find(mine)?;
        g.states.0.iter().find(|s| s.name == name)?;
        let (_, dims) = g.params.iter().find(|(i, _)| *i == param)?;
        let mut dims = dims.clone();
        let left_out = match name {
            StateName::Rows => Some(dims.len().checked_sub(1)?),
            StateName::Cols => Some(dims.len().checked_sub(2)?),
            _ => None,
        };
        if let Some(d) = left_out {
            dims.remove(d);
        }
        Some(dims)
    }

    /// What is kept here of a parameter.
    pub fn views(&self, param: usize) -> Vec<StateView> {
        let Some(g) = self
            .groups
            .iter()
            .find(|g| g.params.iter().any(|(i, _)| *i == param))
        else {
            return vec![];
        };
        let mut out = vec![];
        for s in &g.states.0 {
            if s.stored == Stored::Whole {
                let mut at = 0;
                for (i, dims) in &g.params {
                    let states = g.recipe.optimizer.states(dims);
                    let n = states
                        .iter()
                        .find(|x| x.name == s.name)
                        .map_or(0, |x| x.numel);
                    if *i == param {
                        let t = Tensor::dense(s.values.clone(), 4 * at, [n], DType::F32);
                        out.push(StateView {
                            name: Some(s.name),
                            range: 0..n,
                            home: Home::F32(t),
                        });
                    }
                    at += n;
                }
                continue;
            }
            let (mut at, mut block) = (0, 0);
            for p in &g.parts {
                if p.param == param {
                    let home = match &s.scales {
                        None => {
                            Home::F32(Tensor::dense(s.values.clone(), 4 * at, [p.len], DType::F32))
                        }
                        Some(scales) => Home::Blocks {
                            name: s.name,
                            codes: Tensor::dense(s.values.clone(), at, [p.len], DType::U8),
                            scales: Tensor::dense(
                                scales.clone(),
                                4 * block,
                                [p.len.div_ceil(BLOCK_8BIT)],
                                DType::F32,
                            ),
                        },
                    };
                    out.push(StateView {
                        name: Some(s.name),
                        range: p.first..p.first + p.len,
                        home,
                    });
                }
                at += p.len;
                block += p.len.div_ceil(BLOCK_8BIT);
            }
        }
        out
    }
}
