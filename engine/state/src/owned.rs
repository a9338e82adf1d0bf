//! Reads and writes of what lies on this rank of one unit, whatever form it is kept in: all callers see f32.

use crate::error::Result;
use crate::unit::Unit;
use crate::ways::Ways;
use crate::words::{Tensors, floats};
use crossweave_hal::{DType, Tag};
use crossweave_program::{StateKind, clip};
use crossweave_tensor::{Run, Tensor};
use std::ops::Range;

/// A piece of a state in f32, and its first element among those this rank owns of the unit.
pub(crate) type Piece = (Tensor, u64);

impl Unit {
    /// What lies in owned elements `range` of a unit's state on the device, of kinds shaped as the parameters.
    pub fn pieces(
        &self,
        run: &Run<'_>,
        kind: StateKind,
        range: &Range<u64>,
    ) -> Tensors<Vec<Piece>> {
        if kind == StateKind::Value {
            return Ok(vec![(self.value(range), range.start)]);
        }
        let mut out = vec![];
        for (i, p) in self.table.params.iter().enumerate() {
            let Some((part, local)) = p.owned.as_ref().filter(|_| !p.base) else {
                continue;
            };
            for v in self.views(kind, i) {
                let at = local.start + v.range.start - part.start;
                let here = at..at + v.range.end - v.range.start;
                if let Some(r) = clip(&here, range) {
                    let values = v.read(run)?;
                    out.push((values.narrow(0, r.start - at, r.end - r.start), r.start));
                }
            }
        }
        Ok(out)
    }

    /// All this rank owns of a unit's state, flat in owned elements, where none of it is the host's; zero where nothing is kept.
    pub fn whole_slice(&self, w: &Ways<'_>, kind: StateKind) -> Tensors<Tensor> {
        let all = 0..self.table.flat.owned;
        if kind == StateKind::Value {
            return Ok(self.value(&all));
        }
        w.run(|run| {
            let flat = run.empty_for([all.end], DType::F32, Tag::Staging)?;
            run.stream().fill(flat.region(), 0, 1)?;
            for (t, at) in self.pieces(run, kind, &all)? {
                let to = flat.narrow(0, at, t.numel());
                w.compute.copy(to.region(), t.region())?;
            }
            Ok(flat)
        })
    }

    /// Owned elements of a unit's state as f32 bytes, wherever they rest.
    pub fn read_owned(&self, w: &Ways<'_>, kind: StateKind, r: &Range<u64>) -> Tensors<Vec<u8>> {
        let table = &self.table;
        let k = table.host;
        let mut bytes = match r.start < k {
            true => {
                let here = 4 * r.start..4 * r.end.min(k);
                match table.part(kind) {
                    Some(part) => w.host()?.read(table.flat.room, part, here)?,
                    // Nothing the host holds of the unit has such a state (it is frozen, say), and what the device holds may.
                    None => vec![0; (here.end - here.start) as usize],
                }
            }
            false => vec![],
        };
        let rest = r.start.max(k)..r.end;
        if rest.start < rest.end {
            bytes.resize(4 * (r.end - r.start) as usize, 0);
            w.run(|run| -> Tensors<()> {
                for (t, at) in self.pieces(run, kind, &rest)? {
                    let here = 4 * (at - r.start) as usize;
                    let to = &mut bytes[here..here + t.extent() as usize];
                    w.compute.read(t.region(), to)?;
                }
                Ok(())
            })?;
        }
        Ok(bytes)
    }

    /// Sets owned elements of the values from `from` on, wherever they rest.
    pub fn write_values(&self, w: &Ways<'_>, from: u64, bytes: &[u8]) -> Tensors<()> {
        let (k, end) = (self.table.host, from + bytes.len() as u64 / 4);
        let split = 4 * (k.clamp(from, end) - from) as usize;
        if split > 0 {
            self.write_hosted(w, StateKind::Value, from, &bytes[..split])?;
        }
        if split < bytes.len() {
            let here = self.value(&(from.max(k)..end));
            w.compute.write(here.region(), &bytes[split..])?;
        }
        Ok(())
    }

    /// Sets elements of a state on the host from `from` on.
    pub fn write_hosted(
        &self,
        w: &Ways<'_>,
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Tensors<()> {
        let table = &self.table;
        match table.part(kind) {
            Some(part) => w.host()?.write(table.flat.room, part, 4 * from, bytes),
            None => crossweave_tensor::shape_error(format!("the host keeps no {}", kind.name())),
        }
    }

    /// Puts values to elements `from..` of a parameter's state on the host, as far as they live here; how many did.
    pub fn put_hosted(
        &self,
        w: &Ways<'_>,
        i: usize,
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<u64> {
        let Some((part, local)) = &self.table.params[i].hosted else {
            return Ok(0);
        };
        let given = from..from.saturating_add(bytes.len() as u64 / 4);
        let kept = self.shape(i, kind).and_then(|_| clip(part, &given));
        let Some(r) = kept else {
            return Ok(0);
        };
        let bytes = &bytes[4 * (r.start - from) as usize..4 * (r.end - from) as usize];
        self.write_hosted(w, kind, local.start + r.start - part.start, bytes)
            .map_err(w.at("loading a state"))?;
        Ok(r.end - r.start)
    }

    /// A state that is the same on every rank, or of which all that its ranks hold lies here, on the host; empty when it is not kept.
    pub fn read_alone(&self, w: &Ways<'_>, i: usize, kind: StateKind) -> Result<Vec<f32>> {
        let p = &self.table.params[i];
        if p.base && kind == StateKind::Value {
            return self.read_base(w, i);
        }
        let failed = w.at("reading a state");
        let shape = self.shape(i, kind);
        let hosted = self.table.host > 0 && shape.is_some() && !p.base;
        if let (true, Some((_, local))) = (hosted, &p.owned) {
            let bytes = self.read_owned(w, kind, local).map_err(failed)?;
            return Ok(floats(&bytes));
        }
        let n = match shape {
            Some(s) if kind.is_replicated() => s.iter().product::<u64>(),
            Some(_) => p.held.numel(),
            None => 0,
        };
        let mut out = vec![0f32; n as usize];
        w.run(|run| -> Tensors<()> {
            for v in self.views(kind, i) {
                let values = run.to_f32(&v.read(run)?)?;
                out[v.range.start as usize..v.range.end as usize].copy_from_slice(&values);
            }
            Ok(())
        })
        .map_err(failed)?;
        Ok(out)
    }
}
