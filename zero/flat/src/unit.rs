//! A unit's parameters end to end, by the placement of the unit: what this rank owns of them, what it counts in norms, what the
//! host updates. Of each lies here what this rank holds, which is a box of it (`Held`): its elements are counted in the box, in
//! the flat, or (`local`) from the start of what is owned.
//!
//! The parameters that adapters sit on (`base`) are a second flat behind the first: never updated, in the compute type, sharded
//! only where whole parameters come and go.

use crate::layout::{FlatLayout, Partition};
use crate::placement::{Placement, Residency};
use crossweave_optim::Recipe;
use crossweave_optim::update::Part;
use crossweave_program::axes::Held;
use crossweave_program::{DType, clip};
use std::ops::Range;

/// A parameter as its flat sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatParam {
    /// Full name.
    pub name: String,
    /// What this rank holds of it.
    pub held: Held,
    /// It has a gradient and an update.
    pub trains: bool,
    /// An adapter sits on it.
    pub base: bool,
}

impl FlatParam {
    /// Elements that this rank holds.
    pub fn numel(&self) -> u64 {
        self.held.part.numel()
    }
    /// Whether this rank counts it in norms: over all ranks of a stage each trained element once.
    pub fn counts(&self) -> bool {
        self.trains && self.held.first
    }
}

/// A unit's parameters by their placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Flat {
    /// Its parameters.
    pub params: Vec<FlatParam>,
    /// Where they are.
    pub place: Placement,
    /// Where each lies, and which slice each rank owns; those of the base are empty in it.
    pub layout: FlatLayout,
    /// The same of the base; the others are empty in it.
    pub base: FlatLayout,
    /// First element of the base in the whole buffer.
    pub base_at: u64,
    /// Elements of the layout that this rank owns, padding included.
    pub owned: Range<u64>,
    /// Local elements whose squares this rank adds to the global norm: over all ranks each trained element once.
    pub normed: Vec<Range<u64>>,
    /// The same by the word of the figures that takes their squares, where sums are canonical: one for each logical slice, or for each
    /// parameter of a unit that is cut by whole parameters.
    pub squares: Vec<(u64, Vec<Range<u64>>)>,
    /// Such words of the whole unit.
    pub words: u64,
    /// Owned elements whose state is the host's: the first so many.
    pub host: u64,
    /// Runs of those that are updated alike.
    pub host_runs: Vec<(Recipe, Range<u64>)>,
}

/// `r` counted from `start`.
pub fn from(r: Range<u64>, start: u64) -> Range<u64> {
    r.start - start..r.end - start
}

/// What of a parameter is owned: elements of the parameter, and of what is owned.
fn pieces(param: &Range<u64>, owned: &Range<u64>) -> Option<(Range<u64>, Range<u64>)> {
    clip(param, owned).map(|r| (from(r.clone(), param.start), from(r, owned.start)))
}

/// Elements of each parameter that is (not) of the base, 0 of the others.
fn sizes(params: &[FlatParam], base: bool) -> Vec<u64> {
    let of = |p: &FlatParam| if p.base == base { p.numel() } else { 0 };
    params.iter().map(of).collect()
}

/// Appends a run, joined to the last where the two are neighbours.
fn join(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        Some(r) if r.end == run.start => r.end = run.end,
        _ => runs.push(run),
    }
}

/// See [`Flat::squares`] and [`Flat::words`].
type Squares = (Vec<(u64, Vec<Range<u64>>)>, u64);

fn logical_squares(
    params: &[FlatParam],
    layout: &FlatLayout,
    p: &Placement,
    first: u64,
) -> Squares {
    if p.shards.is_none() {
        return (vec![], 0);
    }
    let whole = p.partition == Partition::WholeParameter;
    let words = match whole {
        true => params.len() as u64,
        false => logical_slices(p),
    };
    let start = layout.slice(p.rank).start;
    let mut squares: Vec<(u64, Vec<Range<u64>>)> = vec![];
    for (param, decl) in params.iter().enumerate() {
        let pieces = layout.pieces(param);
        let mine = pieces.iter().filter(|piece| piece.rank == p.rank);
        for (slice, piece) in mine.flat_map(|piece| layout.logical(piece)) {
            if !decl.counts() {
                continue;
            }
            let word = if whole { param as u64 } else { slice };
            let run = from(
                start + piece.in_slice.start..start + piece.in_slice.end,
                first,
            );
            match squares.iter_mut().find(|(w, _)| *w == word) {
                Some((_, runs)) => join(runs, run),
                None => squares.push((word, vec![run])),
            }
        }
    }
    (squares, words)
}

/// Logical slices that figures of whole parameters are summed by.
fn logical_slices(p: &Placement) -> u64 {
    match (p.shards, p.partition) {
        (Some(shards), Partition::Flat) => u64::from(shards),
        // What is cut by whole parameters has one owner.
        _ => 1,
    }
}

impl Flat {
    /// Lays out `params`; `recipes` say how each is updated, without one it is frozen.
    pub fn new(params: Vec<FlatParam>, place: Placement, recipes: &[Option<Recipe>]) -> Flat {
        let trained = sizes(&params, false);
        let layout = match place.shards {
            Some(shards) => FlatLayout::canonical(place.partition, &trained, place.ranks, shards),
            None => FlatLayout::new(place.partition, &trained, place.ranks),
        };
        let slice = layout.slice(place.rank);
        let resident = place.residency == Residency::Resident;
        let length = match resident && place.partition == Partition::Flat {
            true => layout.numel(),
            false => layout.padded(),
        };
        let owned = if resident { 0..length } else { slice.clone() };
        let mut normed = vec![];
        for (p, r) in params
            .iter()
            .zip(layout.ranges())
            .filter(|(p, _)| p.counts())
        {
            debug_assert!(!p.base);
            if let Some(r) = clip(r, &slice) {
                join(&mut normed, from(r, owned.start));
            }
        }
        let (squares, words) = logical_squares(&params, &layout, &place, owned.start);
        let len = owned.end - owned.start;
        let host = match params.iter().any(|p| p.trains) {
            true => ((len as f64 * place.host).ceil() as u64).min(len),
            false => 0,
        };
        let mut host_runs: Vec<(Recipe, Range<u64>)> = vec![];
        for (r, recipe) in layout.ranges().iter().zip(recipes) {
            let local = clip(r, &owned).map(|r| from(r, owned.start));
            let here = local.and_then(|r| clip(&r, &(0..host)));
            let (Some(r), Some(recipe)) = (here, recipe) else {
                continue;
            };
            match host_runs.last_mut() {
                Some((same, run)) if same == recipe && run.end == r.start => run.end = r.end,
                _ => host_runs.push((*recipe, r)),
            }
        }
        Flat {
            base: FlatLayout::new(Partition::Flat, &sizes(&params, true), place.ranks),
            base_at: length,
            params,
            place,
            layout,
            owned,
            normed,
            squares,
            words,
            host,
            host_runs,
        }
    }

    /// Elements of the whole buffer of what is no base: padded where slices must be equal.
    pub fn length(&self) -> u64 {
        self.base_at
    }
    /// Elements of the whole gradient: of equal slices where each travels to its owner.
    pub fn grad_length(&self) -> u64 {
        match self.place.shards {
            Some(_) => self.layout.padded(),
            None => self.length(),
        }
    }
    /// Owned elements.
    pub fn owned_len(&self) -> u64 {
        self.owned.end - self.owned.start
    }
    /// Local elements updated on the device: behind those that the host updates.
    pub fn rest(&self) -> Range<u64> {
        self.host..self.owned_len()
    }
    /// Whether some parameter is trained.
    pub fn trains(&self) -> bool {
        self.params.iter().any(|p| p.trains)
    }
    /// Whether each rank holds its slice of the base only.
    pub fn base_is_sharded(&self) -> bool {
        self.place.residency == Residency::Transient
    }
    /// Whether anything is gathered.
    pub fn gathers(&self) -> bool {
        let base = self.base_is_sharded() && self.base.numel() > 0;
        self.place.residency != Residency::Resident && (self.layout.padded() > 0 || base)
    }
    /// Whether what is owned is shown as the whole: of a rank alone that holds its values only, and in one piece. Where nothing of a unit trains the host
    /// has its base alone.
    pub fn shown(&self) -> bool {
        let p = &self.place;
        let alone = p.residency == Residency::Transient && p.ranks == 1;
        let apart = self.base_comes() > 0 && self.host < self.owned_len();
        alone && p.compute == DType::F32 && !apart
    }
    /// Whether a 16-bit copy of all parameters stays beside the values, which the update keeps current.
    pub fn copied(&self) -> bool {
        self.place.residency == Residency::Resident && self.place.compute != DType::F32
    }
    /// Elements of the base in the whole buffer.
    pub fn base_length(&self) -> u64 {
        match self.base_is_sharded() {
            true => self.base.padded(),
            false => self.base.numel(),
        }
    }
    /// Elements of the base that lie behind the values of what is owned, in their buffer: of a rank alone, which shows its values as
    /// the whole.
    pub fn base_behind(&self) -> u64 {
        let p = &self.place;
        let alone = self.base_is_sharded() && p.ranks == 1 && p.compute == DType::F32;
        match alone && !p.away {
            true => self.base.numel(),
            false => 0,
        }
    }
    /// Elements of the base's slice where it comes from the host for each gather.
    pub fn base_comes(&self) -> u64 {
        match self.base_is_sharded() && self.base.numel() > 0 && self.place.away {
            true => self.base.slice_len(),
            false => 0,
        }
    }
    /// Elements of the base held by this rank.
    pub fn base_owned(&self) -> Range<u64> {
        match self.base_is_sharded() {
            true => self.base.slice(self.place.rank),
            false => 0..self.base.numel(),
        }
    }
    /// Elements of parameter `i` in the whole of its flat, the base's or that of the others.
    pub fn range_of(&self, i: usize) -> Range<u64> {
        match self.params[i].base {
            true => self.base.range(i),
            false => self.layout.range(i),
        }
    }
    /// First element of parameter `i` in the whole buffer.
    pub fn whole_at(&self, i: usize) -> u64 {
        match self.params[i].base {
            true => self.base_at + self.base.range(i).start,
            false => self.layout.range(i).start,
        }
    }
    /// What this rank owns of parameter `i`: elements of the parameter, and local elements; nothing of the base.
    pub fn pieces(&self, i: usize) -> Option<(Range<u64>, Range<u64>)> {
        pieces(&self.layout.range(i), &self.owned)
    }
    /// The same of a parameter of the base, in what this rank holds of that.
    pub fn base_pieces(&self, i: usize) -> Option<(Range<u64>, Range<u64>)> {
        pieces(&self.base.range(i), &self.base_owned())
    }
    /// What the host holds of parameter `i`: elements of the parameter, and local elements.
    pub fn hosted(&self, i: usize) -> Option<(Range<u64>, Range<u64>)> {
        let (part, local) = self.pieces(i)?;
        let here = clip(&local, &(0..self.host))?;
        let n = here.end - here.start;
        Some((part.start..part.start + n, here))
    }
    /// Logical slices that figures of whole parameters are summed by.
    pub fn logical_slices(&self) -> u64 {
        logical_slices(&self.place)
    }
    /// The parts of parameters that are updated on the device, cut where logical slices end.
    pub fn parts(&self) -> Vec<Part> {
        let resident = self.place.residency == Residency::Resident;
        let mut parts = vec![];
        for (param, d) in self.params.iter().enumerate() {
            let pieces = self.layout.pieces(param);
            for (logical, p) in pieces.iter().flat_map(|p| self.layout.logical(p)) {
                if !resident && p.rank != self.place.rank {
                    continue;
                }
                // Behind what the host updates, and counted from there.
                let at = self.layout.slice(p.rank).start + p.in_slice.start - self.owned.start;
                let cut = self.host.saturating_sub(at);
                if p.of_param.start + cut < p.of_param.end {
                    parts.push(Part {
                        param,
                        held: d.held.part.clone(),
                        first: p.of_param.start + cut,
                        len: p.of_param.end - p.of_param.start - cut,
                        at: at + cut - self.host,
                        mine: p.rank == self.place.rank && d.held.first,
                        logical,
                    });
                }
            }
        }
        parts
    }
}
