//! One unit's long-lived memory in the flat layout (01 §5): values, master copies and moments of what this rank owns, the whole
//! parameters while they are gathered, gradients while they live.
//!
//! What a rank owns is everything where nothing is sharded, else its slice of the layout. Elements of owned state are counted from the
//! start of what is owned (`local`), so the optimizer step does not know what is sharded.
//!
//! Gradients live from the first backward that writes them to the update that reads them, so that they need not all be live at once.

use crate::base::{Base, gathers, trained_sizes};
use crate::optim::{Part, StateView, UnitOptim};
use crossweave_hal::{Buffer, DType, Device, Stream, Tag};
use crossweave_tensor::{Group, ParamDecl, Result, Tensor, UnitDecl};
use crossweave_zero::optim::{Recipe, StateName};
use crossweave_zero::{FlatLayout, Partition};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Which of a parameter's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The value in full precision (the master copy where there is one).
    Value,
    /// First moment, or momentum.
    Moment1,
    /// Second moment.
    Moment2,
    /// Means of the second moment over the last dim (Adafactor).
    Rows,
    /// Means of the second moment over the dim before it (Adafactor).
    Cols,
}

impl StateKind {
    /// All of them.
    pub const ALL: [StateKind; 5] = [
        StateKind::Value,
        StateKind::Moment1,
        StateKind::Moment2,
        StateKind::Rows,
        StateKind::Cols,
    ];
    /// Short name, as in checkpoints.
    pub fn name(self) -> &'static str {
        self.state().map_or("value", StateName::name)
    }
    /// The optimizer's name of it; none for the value.
    pub(crate) fn state(self) -> Option<StateName> {
        match self {
            StateKind::Value => None,
            StateKind::Moment1 => Some(StateName::Moment1),
            StateKind::Moment2 => Some(StateName::Moment2),
            StateKind::Rows => Some(StateName::Rows),
            StateKind::Cols => Some(StateName::Cols),
        }
    }
}

/// Where the whole parameters of a unit live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Every rank holds them, always current: nothing is gathered.
    Resident,
    /// In a buffer that stays, current from the gather to the update (stages 1 and 2, persistent units).
    Kept,
    /// In pool memory between gather and release (stage 3).
    Slot,
}

/// How a unit's state is held, the same for every unit of one home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub home: Home,
    /// Dtype of parameters as blocks read them.
    pub compute: DType,
    /// How the layout is dealt.
    pub deal: Partition,
    pub rank: u32,
    pub ranks: u32,
    /// Logical shards, where sums are canonical.
    pub shards: Option<u32>,
    /// Ranks of a node that hold a second copy of the whole parameters between them; 1 = none.
    pub node: u32,
    /// Gradients are reduced into a shard of their own, and the whole one freed (stages 2 and 3).
    pub grad_shards: bool,
    /// The part of what is owned whose state rests on the host: from 0 to 1.
    pub host: f64,
    /// Parameters rest there too: a slice comes for each gather.
    pub away: bool,
}

/// Slots for whole parameters that hold none now, handed out as the plan foresees (`plan::slots`): of the right size the one that was made
/// first. What the plan has not ordered then never waits for a slot.
#[derive(Default)]
pub(crate) struct Slots {
    free: Vec<(u32, Arc<Buffer>)>,
    made: u32,
}

impl Slots {
    fn take(
        &mut self,
        bytes: u64,
        make: impl FnOnce() -> crossweave_hal::Result<Buffer>,
    ) -> Result<(u32, Arc<Buffer>)> {
        let fits = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, (_, b))| b.bytes() == bytes);
        if let Some((k, _)) = fits.min_by_key(|(_, (number, _))| *number) {
            return Ok(self.free.swap_remove(k));
        }
        let slot = Arc::new(make()?);
        self.made += 1;
        Ok((self.made - 1, slot))
    }
    fn give(&mut self, number: u32, slot: Arc<Buffer>) {
        self.free.push((number, slot));
    }
}

/// A unit's parameters, moments and (while they live) gradients.
pub(crate) struct UnitState {
    pub decls: Vec<ParamDecl>,
    /// Where each parameter lies, and which slice each rank owns; those of `base` are empty in it.
    pub layout: FlatLayout,
    /// Parameters under adapters.
    pub base: Base,
    pub hold: Holding,
    /// Views in compute dtype while the unit is whole.
    pub params: Vec<Tensor>,
    /// All parameters in compute dtype, while there are.
    whole: Option<Arc<Buffer>>,
    /// This rank's part of its node's copy of the whole parameters, in compute dtype.
    pub near: Option<Arc<Buffer>>,
    /// The number of the slot that `whole` is, where it is one.
    slot: u32,
    /// Whether `whole` holds the current values of every rank.
    pub current: bool,
    /// f32 values of what is owned: buffer, and the element where they start.
    value: (Arc<Buffer>, u64),
    /// What updates it, and what that keeps.
    pub optim: UnitOptim,
    /// The whole gradient.
    grad: Option<Arc<Buffer>>,
    /// Whole gradients of logical shards and sums of them, in their order.
    aside: Vec<Arc<Buffer>>,
    /// The sum over micro-batches, where that is kept in 16 bits.
    pub sum: Option<Arc<Buffer>>,
    /// The reduced gradient of what is owned: buffer, and the element where it starts.
    owned_grad: Option<(Arc<Buffer>, u64)>,
    pub grad_views: Vec<Tensor>,
    pub written: Vec<Rc<Cell<bool>>>,
    /// Local elements whose squares this rank adds to the global norm: over all ranks each trained element once.
    pub normed: Vec<Range<u64>>,
    /// The same by the word of the figures that takes their squares, where sums are canonical: one for each logical slice, or for each
    /// parameter of a unit that is dealt whole.
    pub squares: Vec<(u64, Vec<Range<u64>>)>,
    /// Such words of the whole unit.
    pub words: u64,
    /// Owned elements whose state is the host's: the first so many.
    pub host: u64,
    /// Runs of those that are updated alike.
    pub host_runs: Vec<(Recipe, Range<u64>)>,
    /// Their parameters in compute dtype, where no whole buffer keeps them and their values are not here.
    shard: Option<Arc<Buffer>>,
}

/// Elements of a unit's whole buffers: padded where slices must be equal.
fn length(layout: &FlatLayout, hold: &Holding) -> u64 {
    match (hold.home, hold.deal) {
        (Home::Resident, Partition::Flat) => layout.numel(),
        _ => layout.padded(),
    }
}

pub(crate) fn clip(r: &Range<u64>, to: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (r.start.max(to.start), r.end.min(to.end));
    (start < end).then_some(start..end)
}

/// `r` counted from `start`.
pub(crate) fn from(r: Range<u64>, start: u64) -> Range<u64> {
    r.start - start..r.end - start
}

/// Logical slices that figures of whole parameters are summed by.
fn logical_slices(hold: &Holding) -> u64 {
    match (hold.shards, hold.deal) {
        (Some(shards), Partition::Flat) => u64::from(shards),
        // What is dealt whole has one owner.
        _ => 1,
    }
}

/// See [`UnitState::squares`] and [`UnitState::words`].
type Squares = (Vec<(u64, Vec<Range<u64>>)>, u64);

fn logical_squares(unit: &UnitDecl, layout: &FlatLayout, hold: &Holding, first: u64) -> Squares {
    if hold.shards.is_none() {
        return (vec![], 0);
    }
    let whole = hold.deal == Partition::WholeParameter;
    let words = match whole {
        true => unit.params.len() as u64,
        false => logical_slices(hold),
    };
    let start = layout.slice(hold.rank).start;
    let mut squares: Vec<(u64, Vec<Range<u64>>)> = vec![];
    for (param, decl) in unit.params.iter().enumerate() {
        let pieces = layout.pieces(param);
        let mine = pieces.iter().filter(|p| p.rank == hold.rank);
        for (slice, p) in mine.flat_map(|p| layout.logical(p)) {
            if !decl.group.trains() {
                continue;
            }
            let word = if whole { param as u64 } else { slice };
            let run = from(start + p.in_slice.start..start + p.in_slice.end, first);
            match squares.iter_mut().find(|(w, _)| *w == word) {
                Some((_, runs)) => match runs.last_mut() {
                    Some(r) if r.end == run.start => r.end = run.end,
                    _ => runs.push(run),
                },
                None => squares.push((word, vec![run])),
            }
        }
    }
    (squares, words)
}

/// Runs of a unit's first `host` owned elements that are updated alike.
fn host_runs(
    layout: &FlatLayout,
    recipes: &[Option<Recipe>],
    owned: &Range<u64>,
    host: u64,
) -> Vec<(Recipe, Range<u64>)> {
    let mut host_runs: Vec<(Recipe, Range<u64>)> = vec![];
    for (r, recipe) in layout.ranges().iter().zip(recipes) {
        let local = clip(r, owned).map(|r| from(r, owned.start));
        let Some(r) = local.and_then(|r| clip(&r, &(0..host))) else {
            continue;
        };
        if let Some(recipe) = recipe {
            match host_runs.last_mut() {
                Some((same, run)) if same == recipe && run.end == r.start => run.end = r.end,
                _ => host_runs.push((*recipe, r)),
            }
        }
    }
    host_runs
}

impl UnitState {
    /// Allocates a unit's state; `recipes` say how each parameter is updated, without one it is frozen.
    pub fn new(
        device: &Device,
        unit: &UnitDecl,
        hold: Holding,
        recipes: &[Option<Recipe>],
    ) -> Result<UnitState> {
        let sizes = trained_sizes(&unit.params);
        let layout = match hold.shards {
            Some(shards) => FlatLayout::canonical(hold.deal, &sizes, hold.ranks, shards),
            None => FlatLayout::new(hold.deal, &sizes, hold.ranks),
        };
        let slice = layout.slice(hold.rank);
        let resident = hold.home == Home::Resident;
        let length = length(&layout, &hold);
        let owned = if resident { 0..length } else { slice.clone() };
        let mut normed: Vec<Range<u64>> = vec![];
        for (p, r) in unit.params.iter().zip(layout.ranges()) {
            if !p.group.trains() {
                continue;
            }
            if let Some(r) = clip(r, &slice).map(|r| from(r, owned.start)) {
                match normed.last_mut() {
                    Some(run) if run.end == r.start => run.end = r.end,
                    _ => normed.push(r),
                }
            }
        }
        let (squares, words) = logical_squares(unit, &layout, &hold, owned.start);
        let trained = unit.params.iter().any(|p| p.group.trains());
        let len = owned.end - owned.start;
        let host = match trained {
            true => ((len as f64 * hold.host).ceil() as u64).min(len),
            false => 0,
        };
        let host_runs = host_runs(&layout, recipes, &owned, host);
        let alloc = |bytes: u64, tag| -> Result<Arc<Buffer>> {
            Ok(Arc::new(device.alloc_state(bytes, tag)?))
        };
        let mut base = Base::new(device, &unit.params, &hold, length)?;
        let room = hold.compute.bytes(length + base.length());
        let whole = match hold.home {
            Home::Slot => None,
            _ => Some(alloc(room, Tag::Param)?),
        };
        let length = owned.end - owned.start;
        let value = match &whole {
            Some(w) if hold.compute == DType::F32 => (w.clone(), owned.start),
            _ if hold.away && host == len => (alloc(0, Tag::Param)?, 0),
            // The only copy of a parameter is its value, whatever it is read as.
            None if hold.compute == DType::F32 => {
                (alloc(4 * (length + base.behind(&hold)), Tag::Param)?, 0)
            }
            _ => (alloc(4 * (length - host), Tag::Master)?, 0),
        };
        let shard = match hold.home {
            Home::Slot if host > 0 && hold.compute != DType::F32 && !hold.away => {
                Some(alloc(hold.compute.bytes(host), Tag::Param)?)
            }
            _ => None,
        };
        let near = match hold.home {
            Home::Slot if hold.node > 1 => {
                let part = layout.padded() / u64::from(hold.node);
                Some(alloc(hold.compute.bytes(part), Tag::Param)?)
            }
            _ => None,
        };
        base.lie_behind(&value.0, &hold);
        let mut parts = vec![];
        for (param, d) in unit.params.iter().enumerate() {
            let pieces = layout.pieces(param);
            for (logical, p) in pieces.iter().flat_map(|p| layout.logical(p)) {
                if !resident && p.rank != hold.rank {
                    continue;
                }
                // Behind what the host updates, and counted from there.
                let at = layout.slice(p.rank).start + p.in_slice.start - owned.start;
                let cut = host.saturating_sub(at);
                if p.of_param.start + cut < p.of_param.end {
                    parts.push(Part {
                        param,
                        dims: d.shape.dims().to_vec(),
                        first: p.of_param.start + cut,
                        len: p.of_param.end - p.of_param.start - cut,
                        at: at + cut - host,
                        mine: p.rank == hold.rank,
                        logical,
                    });
                }
            }
        }
        let each = unit.params.iter().zip(recipes);
        let each: Vec<_> = each.map(|(p, r)| (p.shape.dims().to_vec(), *r)).collect();
        let mut state = UnitState {
            params: vec![],
            decls: unit.params.clone(),
            written: unit
                .params
                .iter()
                .map(|_| Rc::new(Cell::new(false)))
                .collect(),
            layout,
            base,
            hold,
            whole: None,
            near,
            slot: 0,
            current: resident,
            value,
            optim: UnitOptim::new(device, &each, &parts, logical_slices(&hold))?,
            grad: None,
            aside: vec![],
            sum: None,
            owned_grad: None,
            grad_views: vec![],
            normed,
            squares,
            words,
            host,
            host_runs,
            shard,
        };
        if let Some(w) = whole {
            state.show(w);
        }
        state.changed();
        Ok(state)
    }

    /// Makes `whole` what blocks see.
    fn show(&mut self, whole: Arc<Buffer>) {
        let dtype = self.hold.compute;
        let view = |(i, p): (usize, &ParamDecl)| {
            let first = match p.group {
                Group::Base => self.base.at + self.base.layout.range(i).start,
                _ => self.layout.range(i).start,
            };
            Tensor::dense(whole.clone(), dtype.bytes(first), p.shape, dtype)
        };
        self.params = self.decls.iter().enumerate().map(view).collect();
        self.whole = Some(whole);
    }

    /// Elements of the whole buffers of what is no base.
    pub fn length(&self) -> u64 {
        length(&self.layout, &self.hold)
    }
    /// Elements of the whole gradient: of equal slices where each travels to its owner.
    fn grad_length(&self) -> u64 {
        match self.hold.shards {
            Some(_) => self.layout.padded(),
            None => self.length(),
        }
    }
    /// The elements of the layout that this rank owns, padding included.
    pub fn owned(&self) -> Range<u64> {
        match self.hold.home {
            Home::Resident => 0..self.length(),
            _ => self.layout.slice(self.hold.rank),
        }
    }
    /// Parts of parameter `i` that are owned: (elements of the parameter, local elements).
    pub fn pieces(&self, i: usize) -> Option<(Range<u64>, Range<u64>)> {
        let (param, owned) = (self.layout.range(i), self.owned());
        clip(&param, &owned).map(|r| (from(r.clone(), param.start), from(r, owned.start)))
    }
    /// State as before the first step: padding is read by gathers, moments begin at zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        if self.value.0.bytes() > 0 {
            stream.fill(self.value.0.all(), 0, 1)?;
        }
        self.optim.clear(stream)
    }
    /// Owned elements.
    pub fn owned_len(&self) -> u64 {
        let owned = self.owned();
        owned.end - owned.start
    }
    /// Where the parameters that the host updated arrive: buffer and byte; `None` where they rest on the host.
    pub fn arrives(&self) -> Option<(Arc<Buffer>, u64)> {
        match (self.hold.away, self.hold.compute) {
            (true, _) => None,
            (_, DType::F32) => Some((self.value.0.clone(), 4 * self.value.1)),
            (_, compute) => match &self.shard {
                Some(s) => Some((s.clone(), 0)),
                None => Some((self.whole.clone()?, compute.bytes(self.owned().start))),
            },
        }
    }
    /// Memory for a slice from the host, until the gather.
    pub fn open_shard(&mut self, stream: &Stream) -> Result<Arc<Buffer>> {
        let bytes = self.hold.compute.bytes(self.host + self.base.comes());
        let shard = Arc::new(stream.device().alloc(stream, bytes, Tag::Param)?);
        self.shard = Some(shard.clone());
        Ok(shard)
    }
    /// The host's part of the slice in compute dtype, where it lies apart from the whole.
    pub fn shard(&self) -> Option<&Arc<Buffer>> {
        self.shard.as_ref()
    }
    /// The slice has been gathered: what came for that alone is freed.
    pub fn close_shard(&mut self) {
        if self.hold.away {
            self.shard = None;
        }
    }
    /// Local elements updated on the device: behind those that the host updates.
    pub fn rest(&self) -> Range<u64> {
        self.host..self.owned_len()
    }
    /// A local run of the values as a flat f32 tensor, of what is updated on the device.
    pub fn value(&self, r: &Range<u64>) -> Tensor {
        let (b, at) = &self.value;
        // Masters of the host's part are not here; where the parameters are the values, they are.
        let first = match self.hold.compute {
            DType::F32 => at + r.start,
            _ => r.start - self.host,
        };
        Tensor::dense(b.clone(), 4 * first, [r.end - r.start], DType::F32)
    }
    /// What the host holds of parameter `i`: (elements of the parameter, local elements).
    pub fn hosted(&self, i: usize) -> Option<(Range<u64>, Range<u64>)> {
        let (part, local) = self.pieces(i)?;
        let here = clip(&local, &(0..self.host))?;
        let n = here.end - here.start;
        Some((part.start..part.start + n, here))
    }
    /// What lies on the device of one kind of state of parameter `i`.
    pub fn views(&self, kind: StateKind, i: usize) -> Vec<StateView> {
        let Some(name) = kind.state() else {
            let Some((part, local)) = self.pieces(i) else {
                return vec![];
            };
            let here = clip(&local, &self.rest()).into_iter();
            return here
                .map(|r| {
                    let skipped = r.start - local.start;
                    StateView::value(part.start + skipped..part.end, self.value(&r))
                })
                .collect();
        };
        let all = self.optim.views(i).into_iter();
        all.filter(|v| v.name == Some(name)).collect()
    }
    /// A local run of the 16-bit copy that the optimizer step keeps current beside the value; none where a gather makes it.
    pub fn copy(&self, r: &Range<u64>) -> Option<Tensor> {
        let dtype = self.hold.compute;
        let whole = self.whole.as_ref().filter(|_| self.has_copy())?;
        Some(Tensor::dense(
            whole.clone(),
            dtype.bytes(r.start),
            [r.end - r.start],
            dtype,
        ))
    }
    /// Whether the optimizer step keeps a 16-bit copy current.
    pub fn has_copy(&self) -> bool {
        self.hold.home == Home::Resident && self.hold.compute != DType::F32
    }

    /// Takes a slot for the whole parameters, if they have no place of their own. Slots are no pool memory: they live as long as the
    /// trainer, so that what comes and goes in every step does not divide the pool.
    pub fn open_slot(&mut self, device: &Device, slots: &mut Slots) -> Result<()> {
        let elements = self.length() + self.base.length();
        if self.whole.is_none() && elements > 0 {
            let bytes = self.hold.compute.bytes(elements);
            let (number, slot) = slots.take(bytes, || device.alloc_state(bytes, Tag::Comm))?;
            self.slot = number;
            self.show(slot);
        }
        Ok(())
    }
    /// The whole parameters, if they are there.
    pub fn whole(&self) -> Option<&Arc<Buffer>> {
        self.whole.as_ref()
    }
    /// Gives the slot back; what computes with it runs before the next unit's gather writes it.
    pub fn close_slot(&mut self, slots: &mut Slots) {
        if self.hold.home == Home::Slot {
            self.params.clear();
            self.current = false;
            // The value of one rank alone is shown in place: that is no slot.
            let shown = self.hold.ranks == 1 && self.hold.compute == DType::F32;
            if let Some(slot) = self.whole.take().filter(|_| !shown) {
                slots.give(self.slot, slot);
            }
        }
    }
    /// The value of one rank alone is the whole: what is owned becomes what blocks see, with no copy.
    pub fn show_value(&mut self) {
        let value = self.shard.clone().filter(|_| self.hold.away);
        self.show(value.unwrap_or_else(|| self.value.0.clone()));
    }
    /// The owned values have changed: what was gathered is old.
    pub fn changed(&mut self) {
        self.current = !gathers(self);
    }

    /// A local run of the reduced gradient.
    pub fn grad(&self, r: &Range<u64>) -> Option<Tensor> {
        let (b, at) = self.owned_grad.as_ref()?;
        Some(Tensor::dense(
            b.clone(),
            4 * (at + r.start),
            [r.end - r.start],
            DType::F32,
        ))
    }
    /// The whole gradient.
    pub fn grad_buffer(&self) -> Option<&Arc<Buffer>> {
        self.grad.as_ref()
    }

    /// Makes room for the whole gradient if there is none yet.
    pub fn open_grad(&mut self, stream: &Stream) -> Result<()> {
        if self.grad.is_none() && self.grad_views.is_empty() && !self.decls.is_empty() {
            // Of base alone there is no gradient, and what takes the place of its buffer is never looked into.
            let g = match 4 * self.grad_length() {
                0 => self.value.0.clone(),
                bytes => Arc::new(stream.device().alloc(stream, bytes, Tag::Grad)?),
            };
            let view = |(p, r): (&ParamDecl, &Range<u64>)| {
                // Nobody wants the gradient of what is not trained: an empty view says so.
                match p.group.trains() {
                    true => Tensor::dense(g.clone(), 4 * r.start, p.shape, DType::F32),
                    false => Tensor::dense(g.clone(), 0, [0], DType::F32),
                }
            };
            self.grad_views = self
                .decls
                .iter()
                .zip(self.layout.ranges())
                .map(view)
                .collect();
            self.written.iter().for_each(|w| w.set(false));
            self.grad = (self.grad_length() > 0).then_some(g);
        }
        Ok(())
    }
    /// Parameters nobody used get a gradient of zero.
    pub fn complete_grad(&mut self, stream: &Stream) -> Result<()> {
        self.open_grad(stream)?;
        for (w, v) in self.written.iter().zip(&self.grad_views) {
            if !w.replace(true) && v.numel() > 0 {
                stream.fill(v.region(), 0, 1)?;
            }
        }
        Ok(())
    }
    /// The whole gradient is that of a logical shard, and complete.
    pub fn set_aside(&mut self) {
        self.grad_views.clear();
        self.aside.extend(self.grad.take());
    }
    /// What is set aside.
    pub fn aside(&mut self) -> &mut Vec<Arc<Buffer>> {
        &mut self.aside
    }
    /// The same, to look at.
    pub fn sums(&self) -> &[Arc<Buffer>] {
        &self.aside
    }
    /// The reduced gradient of what is owned lies in `buffer`, from element `at` on.
    pub fn own_grad_at(&mut self, buffer: Arc<Buffer>, at: u64) {
        self.aside.clear();
        self.owned_grad = Some((buffer, at));
    }
    /// Where the reduction leaves what is owned: in a buffer of its own, or where it lies in the whole gradient.
    pub fn open_owned_grad(&mut self, stream: &Stream) -> Result<()> {
        let Some(whole) = self.grad.clone() else {
            return Ok(());
        };
        let owned = self.owned();
        self.owned_grad = Some(if self.hold.grad_shards && self.hold.ranks > 1 {
            let bytes = 4 * (owned.end - owned.start);
            (
                Arc::new(stream.device().alloc(stream, bytes, Tag::Grad)?),
                0,
            )
        } else {
            (whole, owned.start)
        });
        Ok(())
    }
    /// All that is owned of the reduced gradient, as a reduce-scatter writes it.
    pub fn owned_grad(&self) -> Option<Tensor> {
        let owned = self.owned();
        self.grad(&(0..owned.end - owned.start))
    }
    /// The whole gradient is reduced: its memory goes back to the pool unless the reduced one lies in it.
    pub fn close_whole_grad(&mut self) {
        self.grad_views.clear();
        self.aside.clear();
        self.grad = None;
    }
    /// Gives the gradient's memory back to the pool.
    pub fn close_grad(&mut self) {
        self.close_whole_grad();
        self.sum = None;
        self.owned_grad = None;
    }
}
