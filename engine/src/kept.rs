//! Reading and writing what optimizers keep, whatever form it is kept in: all callers see f32.

use crate::base;
use crate::error::Result;
use crate::state::{StateKind, UnitState};
use crate::trainer::Trainer;
use crossweave_hal::{DType, Stream};
use crossweave_tensor::{Decompositions, KernelCache, Run, Tensor};
use std::cell::{Cell, RefCell};
use std::ops::Range;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

/// Values on their way into a state that is not kept in f32: unit, parameter, kind, first element, and where they wait.
pub(crate) struct PendingStateLoad {
    unit: usize,
    param: usize,
    kind: StateKind,
    first: u64,
    values: Tensor,
}

/// State on its way out of the trainer and into it.
#[derive(Default)]
pub(crate) struct Saving {
    /// Copies of state for checkpoints; made by the first of them.
    pub snapshots: Option<Stream>,
    /// Values that were loaded and wait to be kept.
    landings: Vec<PendingStateLoad>,
    /// Rank 0 works alone, and the others serve it.
    pub leading: Cell<bool>,
}

/// A piece of a state in f32, and its first element among those this rank owns of the unit.
pub(crate) type Piece = (Tensor, u64);

impl Trainer {
    /// Shape of one kind of state of a parameter; none when it is not kept.
    pub(crate) fn state_shape(&self, u: usize, i: usize, kind: StateKind) -> Option<Vec<u64>> {
        let s = &self.state[u];
        match kind.state() {
            None => Some(s.decls[i].shape.dims().to_vec()),
            Some(name) => s.optim.shape(i, name),
        }
    }

    /// What lies in local elements `range` of a unit's state, of kinds shaped as the parameters.
    pub(crate) fn state_pieces(
        &self,
        run: &Run<'_>,
        s: &UnitState,
        kind: StateKind,
        range: &Range<u64>,
    ) -> Tensors<Vec<Piece>> {
        if kind == StateKind::Value {
            return Ok(vec![(s.value(range), range.start)]);
        }
        let mut out = vec![];
        for i in 0..s.decls.len() {
            let Some((part, local)) = s.pieces(i) else {
                continue;
            };
            for v in s.views(kind, i) {
                let at = local.start + v.range.start - part.start;
                let end = at + v.range.end - v.range.start;
                let (from, to) = (at.max(range.start), end.min(range.end));
                if from < to {
                    out.push((v.read(run)?.narrow(0, from - at, to - from), from));
                }
            }
        }
        Ok(out)
    }

    /// All this rank owns of a unit's state, flat in local elements; zero where nothing is kept.
    pub(crate) fn local_state(&self, s: &UnitState, kind: StateKind) -> Tensors<Tensor> {
        let all = 0..s.owned_len();
        if kind == StateKind::Value {
            return Ok(s.value(&all));
        }
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        let flat = run.zeros([all.end], DType::F32)?;
        for (t, at) in self.state_pieces(&run, s, kind, &all)? {
            let to = flat.narrow(0, at, t.numel());
            self.lanes.compute.copy(to.region(), t.region())?;
        }
        Ok(flat)
    }

    /// Puts f32 values to elements `from..` of a parameter's state, as far as they live here; returns how many did.
    pub(crate) fn put_state(
        &mut self,
        (u, i): (usize, usize),
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<u64> {
        if self.state[u].flat.params[i].base {
            return match kind {
                StateKind::Value => {
                    self.state[u].changed();
                    base::put(self, (u, i), from, bytes)
                }
                _ => Ok(0),
            };
        }
        self.state[u].changed();
        let mut taken = match self.hosted(u) {
            0 => 0,
            _ => self.put_hosted((u, i), kind, from, bytes)?,
        };
        let end = from.saturating_add(bytes.len() as u64 / 4);
        for v in self.state[u].views(kind, i) {
            let (a, b) = (v.range.start.max(from), v.range.end.min(end));
            if a >= b {
                continue;
            }
            let here = match v.direct() {
                Some(t) => t.clone(),
                None => self
                    .landing(u, i, kind, &v)
                    .map_err(|e| self.error("making room for a state", e))?,
            };
            let here = here.narrow(0, a - v.range.start, b - a);
            let bytes = &bytes[4 * (a - from) as usize..4 * (b - from) as usize];
            self.lanes
                .compute
                .write(here.region(), bytes)
                .map_err(|e| self.error("loading a state", e.into()))?;
            taken += b - a;
        }
        Ok(taken)
    }

    fn landing(
        &mut self,
        unit: usize,
        param: usize,
        kind: StateKind,
        v: &crate::optim::StateView,
    ) -> Tensors<Tensor> {
        let first = v.range.start;
        let known = self
            .saving
            .landings
            .iter()
            .find(|l| (l.unit, l.param, l.kind, l.first) == (unit, param, kind, first));
        if let Some(l) = known {
            return Ok(l.values.clone());
        }
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        // What is not loaded stays as it is.
        let values = v.read(&run)?;
        self.saving.landings.push(PendingStateLoad {
            unit,
            param,
            kind,
            first,
            values: values.clone(),
        });
        Ok(values)
    }

    /// Brings what has landed into the form it is kept in.
    pub(crate) fn keep_landed(&mut self) -> Result<()> {
        let landed = std::mem::take(&mut self.saving.landings);
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        for l in landed {
            for v in self.state[l.unit].views(l.kind, l.param) {
                if v.range.start == l.first {
                    v.keep(&run, &l.values)
                        .map_err(|e| self.error("keeping a loaded state", e))?;
                }
            }
        }
        Ok(())
    }

    /// A state that is the same on every rank, or lies here whole, on the host; empty when it is not kept.
    pub(crate) fn host_state(&self, u: usize, i: usize, kind: StateKind) -> Result<Vec<f32>> {
        if self.state[u].flat.params[i].base && kind == StateKind::Value {
            return base::host(self, u, i);
        }
        let at = |e| self.error("reading a state", e);
        let hosted = self.hosted(u) > 0 && self.state_shape(u, i, kind).is_some();
        if let (true, Some((_, local))) = (hosted, self.state[u].pieces(i)) {
            let bytes = self.read_local(u, kind, &local).map_err(at)?;
            let words = bytes.as_chunks::<4>().0.iter();
            return Ok(words.map(|b| f32::from_le_bytes(*b)).collect());
        }
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.lanes.compute, &Decompositions, &cache);
        let shape = self.state_shape(u, i, kind);
        let n = shape.map_or(0, |s| s.iter().product::<u64>());
        let mut out = vec![0f32; n as usize];
        for v in self.state[u].views(kind, i) {
            let values = v.read(&run).and_then(|t| run.to_f32(&t)).map_err(at)?;
            out[v.range.start as usize..v.range.end as usize].copy_from_slice(&values);
        }
        Ok(out)
    }
}
