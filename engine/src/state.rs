//! One unit's long-lived memory: parameters end to end in one flat buffer, moments and master copies in the same layout (01 §5).
//!
//! Gradients live from the first backward that writes them to the update that reads them, so that they need not all be live at once.

use crossweave_hal::{Buffer, DType, Device, Stream, Tag};
use crossweave_tensor::{Group, ParamDecl, Result, Tensor, UnitDecl};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Which of a parameter's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// The value in full precision (the master copy where there is one).
    Value,
    /// First moment.
    Moment1,
    /// Second moment.
    Moment2,
}

impl StateKind {
    /// All of them.
    pub const ALL: [StateKind; 3] = [StateKind::Value, StateKind::Moment1, StateKind::Moment2];
    /// Short name, as in checkpoints.
    pub fn name(self) -> &'static str {
        match self {
            StateKind::Value => "value",
            StateKind::Moment1 => "moment1",
            StateKind::Moment2 => "moment2",
        }
    }
}

/// A unit's parameters, moments and (while they live) gradients.
pub(crate) struct UnitState {
    pub decls: Vec<ParamDecl>,
    /// Elements of each parameter in the flat buffers.
    pub ranges: Vec<Range<u64>>,
    pub numel: u64,
    /// Views in compute dtype.
    pub params: Vec<Tensor>,
    /// f32; the same buffer as `params` when computing in f32.
    master: Arc<Buffer>,
    pub has_master: bool,
    moment1: Arc<Buffer>,
    moment2: Arc<Buffer>,
    grad: Option<Arc<Buffer>>,
    pub grad_views: Vec<Tensor>,
    pub written: Vec<Rc<Cell<bool>>>,
    /// Runs of neighbouring parameters that are updated alike: (decays, elements).
    pub runs: Vec<(bool, Range<u64>)>,
}

impl UnitState {
    /// Allocates a unit's state; `decay_all` puts weight decay on vectors too.
    pub fn new(
        device: &Device,
        unit: &UnitDecl,
        compute: DType,
        decay_all: bool,
        moments: bool,
    ) -> Result<UnitState> {
        let mut ranges = vec![];
        let mut numel = 0;
        let mut runs: Vec<(bool, Range<u64>)> = vec![];
        for p in &unit.params {
            let r = numel..numel + p.shape.numel();
            numel = r.end;
            if p.group != Group::Frozen {
                let decays = decay_all || p.group != Group::NoDecay;
                match runs.last_mut() {
                    Some((d, run)) if *d == decays && run.end == r.start => run.end = r.end,
                    _ => runs.push((decays, r.clone())),
                }
            }
            ranges.push(r);
        }
        let has_master = compute != DType::F32;
        let flat = |dtype: DType, tag| -> Result<Arc<Buffer>> {
            Ok(Arc::new(device.alloc_state(dtype.bytes(numel), tag)?))
        };
        let values = flat(compute, Tag::Param)?;
        let master = if has_master {
            flat(DType::F32, Tag::Master)?
        } else {
            values.clone()
        };
        let none = if moments { numel } else { 0 };
        let moment =
            || -> Result<Arc<Buffer>> { Ok(Arc::new(device.alloc_state(4 * none, Tag::Moment)?)) };
        let view = |p: &ParamDecl, r: &Range<u64>| {
            Tensor::dense(values.clone(), compute.bytes(r.start), p.shape, compute)
        };
        Ok(UnitState {
            params: unit
                .params
                .iter()
                .zip(&ranges)
                .map(|(p, r)| view(p, r))
                .collect(),
            decls: unit.params.clone(),
            written: unit
                .params
                .iter()
                .map(|_| Rc::new(Cell::new(false)))
                .collect(),
            ranges,
            numel,
            master,
            has_master,
            moment1: moment()?,
            moment2: moment()?,
            grad: None,
            grad_views: vec![],
            runs,
        })
    }

    /// The moments' buffers that hold anything.
    pub fn moments(&self) -> impl Iterator<Item = &Buffer> {
        [&self.moment1, &self.moment2]
            .into_iter()
            .map(|b| b.as_ref())
            .filter(|b| b.bytes() > 0)
    }
    fn flat(&self, kind: StateKind) -> &Arc<Buffer> {
        match kind {
            StateKind::Value => &self.master,
            StateKind::Moment1 => &self.moment1,
            StateKind::Moment2 => &self.moment2,
        }
    }
    /// A run of a state as a flat f32 tensor.
    pub fn state(&self, kind: StateKind, r: &Range<u64>) -> Tensor {
        Tensor::dense(
            self.flat(kind).clone(),
            4 * r.start,
            [r.end - r.start],
            DType::F32,
        )
    }
    /// A run of the values in compute dtype.
    pub fn values(&self, r: &Range<u64>) -> Option<Tensor> {
        let t = self.params.first()?;
        Some(Tensor::dense(
            t.buffer().clone(),
            t.dtype().bytes(r.start),
            [r.end - r.start],
            t.dtype(),
        ))
    }
    /// A run of the gradient.
    pub fn grad(&self, r: &Range<u64>) -> Option<Tensor> {
        self.grad
            .as_ref()
            .map(|g| Tensor::dense(g.clone(), 4 * r.start, [r.end - r.start], DType::F32))
    }
    /// The whole gradient.
    pub fn grad_buffer(&self) -> Option<&Arc<Buffer>> {
        self.grad.as_ref()
    }

    /// Makes room for the gradient if there is none yet.
    pub fn open_grad(&mut self, stream: &Stream) -> Result<()> {
        if self.grad.is_none() && self.numel > 0 {
            let g = Arc::new(stream.device().alloc(stream, 4 * self.numel, Tag::Grad)?);
            let view = |(p, r): (&ParamDecl, &Range<u64>)| {
                Tensor::dense(g.clone(), 4 * r.start, p.shape, DType::F32)
            };
            self.grad_views = self.decls.iter().zip(&self.ranges).map(view).collect();
            self.written.iter().for_each(|w| w.set(false));
            self.grad = Some(g);
        }
        Ok(())
    }
    /// Parameters nobody used get a gradient of zero.
    pub fn complete_grad(&mut self, stream: &Stream) -> Result<()> {
        self.open_grad(stream)?;
        for (w, v) in self.written.iter().zip(&self.grad_views) {
            if !w.replace(true) {
                stream.fill(v.region(), 0, 1)?;
            }
        }
        Ok(())
    }
    /// Gives the gradient's memory back to the pool.
    pub fn close_grad(&mut self) {
        self.grad_views.clear();
        self.grad = None;
    }
}
