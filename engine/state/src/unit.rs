//! One unit: its entries of the state table, and the memory that they name.

use crate::view::StateView;
use crossweave_hal::{Buffer, DType, Stream};
use crossweave_machine::Machine;
use crossweave_program::{Place, StateKind, UnitState, clip};
use crossweave_tensor::{ParamDecl, Result, Tensor, shape_error};
use std::ops::Range;
use std::sync::Arc;

/// Memory from some byte on.
type Held = (Arc<Buffer>, u64);

/// A unit's state on this rank.
pub(crate) struct Unit {
    pub decls: Vec<ParamDecl>,
    pub table: UnitState,
    /// f32 values of what is updated on the device.
    value: Held,
    /// The 16-bit copy of it that updates keep current, where there is one.
    copy: Option<Held>,
    /// What this rank holds of the base; none while it rests on the host.
    base: Option<Held>,
    /// What is kept on the device of each parameter beside its value.
    views: Vec<Vec<StateView>>,
    /// All memory of it, with the byte that it holds before the first step.
    fresh: Vec<(Arc<Buffer>, u8)>,
}

impl Unit {
    pub fn new(machine: &Machine, decls: Vec<ParamDecl>, table: UnitState) -> Result<Unit> {
        let held = |p: Place| Some((machine.buffer(p.mem)?.clone(), p.at));
        let Some(value) = table.flat.place.and_then(held) else {
            return shape_error("no memory for the values of a unit");
        };
        let views = |i: usize| -> Result<Vec<StateView>> {
            let runs = table.params[i].runs.iter();
            runs.map(|r| StateView::of(r, machine)).collect()
        };
        let fresh = table.fresh.iter();
        let fresh = fresh.filter_map(|(m, zero)| Some((machine.buffer(*m)?.clone(), *zero)));
        Ok(Unit {
            value,
            copy: table.copy.and_then(held),
            base: table.base.place.and_then(held),
            views: (0..decls.len()).map(views).collect::<Result<_>>()?,
            fresh: fresh.collect(),
            decls,
            table,
        })
    }

    /// State as before the first step: padding is read by gathers, optimizer states begin at zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        if self.value.0.bytes() > 0 {
            stream.fill(self.value.0.all(), 0, 1)?;
        }
        // In 8 bits the padding of a slice has a part in the scale of its last block.
        let base = self.base(&(0..self.table.base.owned));
        if let Some(base) = base.filter(|b| b.numel() > 0) {
            stream.fill(base.region(), 0, 1)?;
        }
        self.clear_moments(stream)
    }
    /// What the optimizer keeps, as before the first step.
    pub fn clear_moments(&self, stream: &Stream) -> Result<()> {
        let mut some = self.fresh.iter().filter(|(b, _)| b.bytes() > 0);
        some.try_for_each(|(b, zero)| Ok(stream.fill(b.all(), u64::from(*zero), 1)?))
    }

    /// Owned elements `r`, all of them updated on the device, as a flat f32 tensor.
    pub fn value(&self, r: &Range<u64>) -> Tensor {
        let (b, at) = &self.value;
        let first = at + 4 * (r.start - self.table.host);
        Tensor::dense(b.clone(), first, [r.end - r.start], DType::F32)
    }
    /// The 16-bit copy of what is updated on the device; none where a gather makes it.
    pub fn copy(&self) -> Option<Tensor> {
        let (b, at) = self.copy.clone()?;
        let r = self.table.rest();
        Some(Tensor::dense(b, at, [r.end - r.start], self.table.compute))
    }
    /// Elements `r` of what this rank holds of the base, in compute type; none while they rest on the host.
    pub fn base(&self, r: &Range<u64>) -> Option<Tensor> {
        let dtype = self.table.compute;
        let (buffer, at) = self.base.clone()?;
        let first = at + dtype.bytes(r.start);
        Some(Tensor::dense(buffer, first, [r.end - r.start], dtype))
    }

    /// Shape of one kind of state of a parameter; none when it is not kept.
    pub fn shape(&self, i: usize, kind: StateKind) -> Option<Vec<u64>> {
        if kind == StateKind::Value {
            return Some(self.decls[i].shape.dims().to_vec());
        }
        let mut kept = self.table.params[i].shapes.iter();
        kept.find(|(k, _)| *k == kind)
            .map(|(_, shape)| shape.clone())
    }
    /// Whether ranks that hold other parts of a parameter have theirs of such a state.
    pub fn is_cut(&self, i: usize, kind: StateKind) -> bool {
        self.table.params[i].is_cut(kind) && self.shape(i, kind).is_some()
    }
    /// What lies on the device of one kind of state of parameter `i`, of what is no base.
    pub fn views(&self, kind: StateKind, i: usize) -> Vec<StateView> {
        if kind != StateKind::Value {
            let all = self.views[i].iter();
            return all.filter(|v| v.kind == kind).cloned().collect();
        }
        let p = &self.table.params[i];
        let Some((part, local)) = p.owned.clone().filter(|_| !p.base) else {
            return vec![];
        };
        let here = clip(&local, &self.table.rest()).into_iter();
        here.map(|r| {
            let skipped = r.start - local.start;
            StateView::value(part.start + skipped..part.end, self.value(&r))
        })
        .collect()
    }
    /// The parameter of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.decls.iter().position(|d| d.name == name)
    }
}
