//! One unit's long-lived memory in its flat: values, master copies and moments of what this rank owns.
//!
//! What a rank owns is everything where nothing is sharded, else its slice of the layout. Elements of owned state are counted from the
//! start of what is owned (`local`), so the optimizer step does not know what is sharded.

use crate::optim::StateView;
use crossweave_hal::{Buffer, DType, Stream};
use crossweave_machine::Machine;
use crossweave_program::Place;
use crossweave_tensor::{ParamDecl, Result, Tensor, UnitDecl};
use crossweave_zero::lower::{Optim, ParamMemory};
use crossweave_zero::optim::StateName;
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

/// A unit's parameters and moments.
pub(crate) struct UnitState {
    pub decls: Vec<ParamDecl>,
    /// Where each parameter lies, and what this rank owns.
    pub flat: Flat,
    /// Whether the whole parameters, where there is room for them, are those that the ranks own now.
    pub current: bool,
    /// f32 values of what is owned: buffer, and the byte where they start.
    value: (Arc<Buffer>, u64),
    /// The 16-bit copy of all parameters that the optimizer step keeps current, where there is one.
    copy: Option<Arc<Buffer>>,
    /// What this rank holds of the parameters under adapters, in compute type: buffer and byte; `None` while it rests on the host.
    pub base: Option<(Arc<Buffer>, u64)>,
    /// What updates it, and what that keeps.
    pub optim: Optim,
    /// What is kept here of each parameter.
    views: Vec<Vec<StateView>>,
    /// All memory of it, with the byte that it holds before the first step.
    moments: Vec<(Arc<Buffer>, u8)>,
}

impl std::ops::Deref for UnitState {
    type Target = Flat;
    fn deref(&self) -> &Flat {
        &self.flat
    }
}

impl UnitState {
    /// A unit's state over the memory of its parameters and of what its optimizer keeps.
    pub fn new(
        machine: &Machine,
        unit: &UnitDecl,
        flat: Flat,
        memory: &ParamMemory,
        optim: &Optim,
    ) -> Result<UnitState> {
        let place = flat.place;
        let held = |p: Place| Some((machine.buffer(p.mem)?.clone(), p.at));
        let Some(value) = held(memory.value) else {
            return crossweave_tensor::shape_error(format!("{}: no memory for values", unit.name));
        };
        let resident = place.residency == Residency::Resident;
        let slices = |i: usize| -> Result<Vec<StateView>> {
            let kept = optim.slices(i);
            kept.iter().map(|s| StateView::of(s, machine)).collect()
        };
        let moments = optim.memory();
        let moments = moments.filter_map(|(m, zero)| Some((machine.buffer(m)?.clone(), zero)));
        let mut state = UnitState {
            decls: unit.params.clone(),
            current: resident,
            value,
            copy: memory
                .whole
                .filter(|_| flat.copied())
                .and_then(held)
                .map(|(b, _)| b),
            base: memory.base.and_then(held),
            optim: optim.clone(),
            views: (0..unit.params.len()).map(slices).collect::<Result<_>>()?,
            moments: moments.collect(),
            flat,
        };
        state.changed();
        Ok(state)
    }

    /// State as before the first step: padding is read by gathers, moments begin at zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        if self.value.0.bytes() > 0 {
            stream.fill(self.value.0.all(), 0, 1)?;
        }
        self.clear_moments(stream)
    }
    /// What the optimizer keeps, as before the first step.
    pub fn clear_moments(&self, stream: &Stream) -> Result<()> {
        let some = self.moments.iter().filter(|(b, _)| b.bytes() > 0);
        some.into_iter()
            .try_for_each(|(b, zero)| Ok(stream.fill(b.all(), u64::from(*zero), 1)?))
    }
    /// A local run of the values as a flat f32 tensor, of what is updated on the device.
    pub fn value(&self, r: &Range<u64>) -> Tensor {
        let (b, at) = &self.value;
        // Masters of the host's part are not here; where the parameters are the values, they are.
        let first = match self.place.compute {
            DType::F32 => r.start,
            _ => r.start - self.host,
        };
        Tensor::dense(b.clone(), at + 4 * first, [r.end - r.start], DType::F32)
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
        let all = self.views[i].iter();
        all.filter(|v| v.name == Some(name)).cloned().collect()
    }
    /// A local run of the 16-bit copy that the optimizer step keeps current beside the value; none where a gather makes it.
    pub fn copy(&self, r: &Range<u64>) -> Option<Tensor> {
        let (dtype, n) = (self.place.compute, r.end - r.start);
        let copy = self.copy.as_ref()?.clone();
        Some(Tensor::dense(copy, dtype.bytes(r.start), [n], dtype))
    }

    /// Whole parameters in a slot are there no longer.
    pub fn released(&mut self) {
        if self.place.residency == Residency::Transient {
            self.current = false;
        }
    }
    /// The owned values have changed: what was gathered is old.
    pub fn changed(&mut self) {
        self.current = !self.gathers();
    }
}
