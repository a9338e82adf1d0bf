//! The parameters of a unit by how they are updated, and the memory of what their optimizer keeps: packed end to end in each group.

use super::code_of_zero;
use crate::{BLOCK_8BIT, Optimizer, Recipe, State, StateName, Stored};
use crossweave_program::axes::TensorBox;
use crossweave_program::{Builder, DType, Life, MemId, MemoryDecl, MemorySpace, Place, Tag};
use std::ops::Range;

/// A part of one parameter that this rank updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the parameter in the unit.
    pub param: usize,
    /// What this rank holds of the parameter.
    pub held: TensorBox,
    /// First element, and elements, of what it holds.
    pub first: u64,
    /// See `first`.
    pub len: u64,
    /// Where they lie among the local elements updated on the device.
    pub at: u64,
    /// Logical slice it lies in; 0 where there are none.
    pub logical: u64,
    /// Does this rank own the part, as the first of those that do? Where nothing is sharded it updates others' too, but counts only its
    /// own in figures of whole parameters.
    pub mine: bool,
}

/// Memory of one state of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Which.
    pub name: StateName,
    /// How.
    pub stored: Stored,
    /// f32, or the codes of blocks.
    pub values: MemId,
    /// Scales of blocks.
    pub scales: Option<MemId>,
}

/// Parameters updated alike.
#[derive(Clone, Debug)]
pub struct Group {
    /// How.
    pub recipe: Recipe,
    /// Index in the unit and declared dims of every parameter of the group, whatever this rank owns of it.
    pub params: Vec<(usize, Vec<u64>)>,
    /// What this rank updates.
    pub parts: Vec<Part>,
    /// Logical slices by which figures of whole parameters are summed; 1 where they are summed by rank.
    pub slices: u64,
    /// What is kept.
    pub states: Vec<Kept>,
}

/// What is kept of one state of a part of a parameter, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSlice {
    /// Which state.
    pub name: StateName,
    /// First element of the state, row-major: of what this rank holds, where it is cut with the parameter.
    pub first: u64,
    /// Elements.
    pub len: u64,
    /// f32 values, or codes of 8 bits where there are scales.
    pub values: Place,
    /// An f32 for each block of codes.
    pub scales: Option<Place>,
}

/// Parameters go together when they are updated alike and keep the same states. Declares the memory of the states of `parts`, which are
/// cut at `slices` logical slices; `params[i]` are the declared dims and the recipe of parameter `i`, without one it is frozen.
pub fn groups(
    b: &mut Builder,
    unit: usize,
    params: &[(Vec<u64>, Option<Recipe>)],
    parts: &[Part],
    slices: u64,
) -> Vec<Group> {
    type Key = (Recipe, Vec<(StateName, Stored)>, Vec<usize>);
    let mut keys: Vec<Key> = vec![];
    for (i, (dims, recipe)) in params.iter().enumerate() {
        let Some(recipe) = recipe else { continue };
        let states = recipe.states(dims);
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
        let here = |p: &&Part| members.contains(&p.param);
        let parts: Vec<Part> = parts.iter().filter(here).cloned().collect();
        let elements: u64 = parts.iter().map(|p| p.len).sum();
        let blocks: u64 = parts.iter().map(|p| p.len.div_ceil(BLOCK_8BIT)).sum();
        let number = groups.len();
        let mut declare = |name: StateName, what: &str, elements: u64, dtype: DType| {
            b.memory(MemoryDecl {
                name: format!("{}{what}.{unit}/{number}", name.name()),
                bytes: dtype.bytes(elements),
                dtype,
                tag: Tag::Moment,
                home: MemorySpace::Device,
                life: Life::Always { turns: 1 },
            })
        };
        let whole = |name| -> u64 {
            let of = |i: &usize| recipe.states(&params[*i].0);
            let found = |s: &State| s.name == name;
            let sizes = members.iter().flat_map(of).filter(found);
            sizes.map(|s| s.numel).sum()
        };
        let mut states = vec![];
        for (name, stored) in kept {
            let (values, scales) = match stored {
                Stored::F32 => (declare(name, "", elements, DType::F32), None),
                Stored::Whole => (declare(name, "", whole(name), DType::F32), None),
                Stored::Blocks8 => {
                    let codes = declare(name, " codes", elements, DType::U8);
                    (codes, Some(declare(name, " scales", blocks, DType::F32)))
                }
            };
            states.push(Kept {
                name,
                stored,
                values,
                scales,
            });
        }
        let dims = |i: usize| (i, params[i].0.clone());
        groups.push(Group {
            params: members.into_iter().map(dims).collect(),
            recipe,
            parts,
            slices,
            states,
        });
    }
    groups
}

impl Kept {
    /// Its memory, and the byte that all of it holds before the first step.
    fn memory(&self) -> impl Iterator<Item = (MemId, u8)> + use<> {
        let zero = match self.stored {
            Stored::Blocks8 => code_of_zero(self.name),
            Stored::F32 | Stored::Whole => 0,
        };
        let scales = self.scales.map(|s| (s, 0));
        std::iter::once((self.values, zero)).chain(scales)
    }
}

impl Group {
    /// The memory of its states, each with the byte that all of it holds before the first step.
    pub fn memory(&self) -> impl Iterator<Item = (MemId, u8)> + '_ {
        self.states.iter().flat_map(Kept::memory)
    }

    /// The place of a state among [`Group::memory`].
    pub(super) fn arg(&self, name: StateName) -> usize {
        let before = self.states.iter().take_while(|s| s.name != name);
        before.map(|s| s.memory().count()).sum()
    }

    /// Runs of neighbouring elements: (place in the flat, place in the packed states, length).
    pub(super) fn runs(&self) -> Vec<(u64, u64, u64)> {
        let mut runs: Vec<(u64, u64, u64)> = vec![];
        let mut packed = 0;
        for p in &self.parts {
            match runs.last_mut() {
                Some((at, _, len)) if *at + *len == p.at => *len += p.len,
                _ => runs.push((p.at, packed, p.len)),
            }
            packed += p.len;
        }
        runs
    }

    /// Place of a part's parameter in the group.
    pub(super) fn slot(&self, part: &Part) -> u64 {
        let here = self.params.iter().position(|(i, _)| *i == part.param);
        here.unwrap_or(0) as u64
    }

    /// Shape of a state of parameter `param` of the unit; none where it is not of this group or keeps no such state.
    pub fn shape(&self, param: usize, name: StateName) -> Option<Vec<u64>> {
        self.states.iter().find(|s| s.name == name)?;
        let (_, dims) = self.params.iter().find(|(i, _)| *i == param)?;
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

    /// What is kept here of parameter `param` of the unit.
    pub fn slices(&self, param: usize) -> Vec<StateSlice> {
        let mut out = vec![];
        for s in &self.states {
            match s.stored {
                Stored::Whole => out.extend(self.whole(s, param)),
                _ => self.cut(s, param, &mut out),
            }
        }
        out
    }

    fn whole(&self, s: &Kept, param: usize) -> Option<StateSlice> {
        let numel = |dims: &[u64]| {
            let states = self.recipe.states(dims);
            let this = states.iter().find(|x| x.name == s.name);
            this.map_or(0, |x| x.numel)
        };
        let at = self.params.iter().position(|(i, _)| *i == param)?;
        let before: u64 = self.params[..at].iter().map(|(_, d)| numel(d)).sum();
        Some(StateSlice {
            name: s.name,
            first: 0,
            len: numel(&self.params[at].1),
            values: Place {
                mem: s.values,
                at: 4 * before,
            },
            scales: None,
        })
    }

    fn cut(&self, s: &Kept, param: usize, out: &mut Vec<StateSlice>) {
        let (mut at, mut block) = (0, 0);
        for p in &self.parts {
            if p.param == param {
                let each = if s.scales.is_some() { 1 } else { 4 };
                out.push(StateSlice {
                    name: s.name,
                    first: p.first,
                    len: p.len,
                    values: Place {
                        mem: s.values,
                        at: each * at,
                    },
                    scales: s.scales.map(|mem| Place { mem, at: 4 * block }),
                });
            }
            at += p.len;
            block += p.len.div_ceil(BLOCK_8BIT);
        }
    }
}

impl StateSlice {
    /// Its elements of the state.
    pub fn range(&self) -> Range<u64> {
        self.first..self.first + self.len
    }
}
