//! One unit's long-lived memory in its flat: values, master copies and moments of what this rank owns, the whole parameters while they
//! are gathered.
//!
//! What a rank owns is everything where nothing is sharded, else its slice of the layout. Elements of owned state are counted from the
//! start of what is owned (`local`), so the optimizer step does not know what is sharded.

use crate::base::Base;
use crate::optim::{StateView, UnitOptim};
use crossweave_hal::{Buffer, DType, Device, Stream, Tag};
use crossweave_tensor::{ParamDecl, Result, Tensor, UnitDecl};
use crossweave_zero::optim::{Recipe, StateName};
use crossweave_zero::{Flat, Residency, clip};
use std::ops::Range;
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

/// A unit's parameters and moments.
pub(crate) struct UnitState {
    pub decls: Vec<ParamDecl>,
    /// Where each parameter lies, and what this rank owns.
    pub flat: Flat,
    /// Parameters under adapters.
    pub base: Base,
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
    /// Their parameters in compute dtype, where no whole buffer keeps them and their values are not here.
    shard: Option<Arc<Buffer>>,
}

impl std::ops::Deref for UnitState {
    type Target = Flat;
    fn deref(&self) -> &Flat {
        &self.flat
    }
}

impl UnitState {
    /// Allocates a unit's state; `recipes` say how each parameter is updated, without one it is frozen.
    pub fn new(
        device: &Device,
        unit: &UnitDecl,
        flat: Flat,
        recipes: &[Option<Recipe>],
    ) -> Result<UnitState> {
        let place = flat.place;
        let alloc = |bytes: u64, tag| -> Result<Arc<Buffer>> {
            Ok(Arc::new(device.alloc_state(bytes, tag)?))
        };
        let mut base = Base::new(device, &flat)?;
        let room = place.compute.bytes(flat.length() + flat.base_length());
        let whole = match place.residency {
            Residency::Transient => None,
            _ => Some(alloc(room, Tag::Param)?),
        };
        let (length, host) = (flat.owned_len(), flat.host);
        let value = match &whole {
            Some(w) if place.compute == DType::F32 => (w.clone(), flat.owned.start),
            _ if place.away && host == length => (alloc(0, Tag::Param)?, 0),
            // The only copy of a parameter is its value, whatever it is read as.
            None if place.compute == DType::F32 => {
                (alloc(4 * (length + flat.base_behind()), Tag::Param)?, 0)
            }
            _ => (alloc(4 * (length - host), Tag::Master)?, 0),
        };
        let transient = place.residency == Residency::Transient;
        let shard = match transient && host > 0 && place.compute != DType::F32 && !place.away {
            true => Some(alloc(place.compute.bytes(host), Tag::Param)?),
            false => None,
        };
        let near = match transient && place.secondary > 1 {
            true => {
                let part = flat.layout.padded() / u64::from(place.secondary);
                Some(alloc(place.compute.bytes(part), Tag::Param)?)
            }
            false => None,
        };
        base.lie_behind(&value.0, &flat);
        let each = unit.params.iter().zip(recipes);
        let each: Vec<_> = each.map(|(p, r)| (p.shape.dims().to_vec(), *r)).collect();
        let mut state = UnitState {
            params: vec![],
            decls: unit.params.clone(),
            base,
            whole: None,
            near,
            slot: 0,
            current: place.residency == Residency::Resident,
            value,
            optim: UnitOptim::new(device, &each, &flat.parts(), flat.logical_slices())?,
            shard,
            flat,
        };
        if let Some(w) = whole {
            state.show(w);
        }
        state.changed();
        Ok(state)
    }

    /// Makes `whole` what blocks see.
    fn show(&mut self, whole: Arc<Buffer>) {
        let dtype = self.place.compute;
        let view = |(i, p): (usize, &ParamDecl)| {
            let first = dtype.bytes(self.flat.whole_at(i));
            Tensor::dense(whole.clone(), first, p.shape, dtype)
        };
        self.params = self.decls.iter().enumerate().map(view).collect();
        self.whole = Some(whole);
    }

    /// State as before the first step: padding is read by gathers, moments begin at zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        if self.value.0.bytes() > 0 {
            stream.fill(self.value.0.all(), 0, 1)?;
        }
        self.optim.clear(stream)
    }
    /// Where the parameters that the host updated arrive: buffer and byte; `None` where they rest on the host.
    pub fn arrives(&self) -> Option<(Arc<Buffer>, u64)> {
        match (self.place.away, self.place.compute) {
            (true, _) => None,
            (_, DType::F32) => Some((self.value.0.clone(), 4 * self.value.1)),
            (_, compute) => match &self.shard {
                Some(s) => Some((s.clone(), 0)),
                None => Some((self.whole.clone()?, compute.bytes(self.owned.start))),
            },
        }
    }
    /// Memory for a slice from the host, until the gather.
    pub fn open_shard(&mut self, stream: &Stream) -> Result<Arc<Buffer>> {
        let bytes = self.place.compute.bytes(self.host + self.base_comes());
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
        if self.place.away {
            self.shard = None;
        }
    }
    /// A local run of the values as a flat f32 tensor, of what is updated on the device.
    pub fn value(&self, r: &Range<u64>) -> Tensor {
        let (b, at) = &self.value;
        // Masters of the host's part are not here; where the parameters are the values, they are.
        let first = match self.place.compute {
            DType::F32 => at + r.start,
            _ => r.start - self.host,
        };
        Tensor::dense(b.clone(), 4 * first, [r.end - r.start], DType::F32)
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
        let dtype = self.place.compute;
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
        self.place.residency == Residency::Resident && self.place.compute != DType::F32
    }

    /// Takes a slot for the whole parameters, if they have no place of their own. Slots are no pool memory: they live as long as the
    /// trainer, so that what comes and goes in every step does not divide the pool.
    pub fn open_slot(&mut self, device: &Device, slots: &mut Slots) -> Result<()> {
        let elements = self.length() + self.base_length();
        if self.whole.is_none() && elements > 0 {
            let bytes = self.place.compute.bytes(elements);
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
        if self.place.residency == Residency::Transient {
            self.params.clear();
            self.current = false;
            // The value of one rank alone is shown in place: that is no slot.
            let shown = self.place.ranks == 1 && self.place.compute == DType::F32;
            if let Some(slot) = self.whole.take().filter(|_| !shown) {
                slots.give(self.slot, slot);
            }
        }
    }
    /// The value of one rank alone is the whole: what is owned becomes what blocks see, with no copy.
    pub fn show_value(&mut self) {
        let value = self.shard.clone().filter(|_| self.place.away);
        self.show(value.unwrap_or_else(|| self.value.0.clone()));
    }
    /// The owned values have changed: what was gathered is old.
    pub fn changed(&mut self) {
        self.current = !self.gathers();
    }
}
