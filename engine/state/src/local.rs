//! Loads of what lies on this rank, by name or by place.

use crate::error::{Error, Result};
use crate::states::{PendingStateLoad, States};
use crate::view::StateView;
use crate::ways::Ways;
use crate::words::Tensors;
use crossweave_program::{StateKind, clip};
use crossweave_tensor::Tensor;

impl States {
    /// Puts f32 values to elements `from..` of what the ranks of its flat hold of a parameter's state, as far as they live here; returns
    /// how many did.
    pub(crate) fn put(
        &self,
        w: &Ways<'_>,
        (u, i): (usize, usize),
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<u64> {
        if self.units[u].table.params[i].base {
            return match kind {
                StateKind::Value => self.units[u].put_base(w, i, from, bytes),
                _ => Ok(0),
            };
        }
        let mut taken = self.units[u].put_hosted(w, i, kind, from, bytes)?;
        let given = from..from.saturating_add(bytes.len() as u64 / 4);
        for v in self.units[u].views(kind, i) {
            let Some(r) = clip(&v.range, &given) else {
                continue;
            };
            let here = match v.direct() {
                Some(t) => t.clone(),
                None => landing(self, w, (u, i), &v).map_err(w.at("making room for a state"))?,
            };
            let n = r.end - r.start;
            let here = here.narrow(0, r.start - v.range.start, n);
            let bytes = &bytes[4 * (r.start - from) as usize..4 * (r.end - from) as usize];
            w.compute
                .write(here.region(), bytes)
                .map_err(w.at("loading a state"))?;
            taken += n;
        }
        Ok(taken)
    }

    /// Sets elements of a parameter's state from `from` on, which counts as [`ShardPart::at`](crate::ShardPart::at) of what
    /// [`States::wanted`] names. Call [`States::publish`] after the last.
    ///
    /// # Errors
    /// Elements that do not live here; the device.
    pub fn load_part(
        &self,
        w: &Ways<'_>,
        param: &str,
        kind: StateKind,
        from: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let (u, i) = self.find(param)?;
        let n = bytes.len() as u64 / 4;
        if self.put(w, (u, i), kind, from, bytes)? != n {
            return Err(Error::Invalid(format!(
                "{param}: elements {from}..{} of its {} do not live on rank {}",
                from.saturating_add(n),
                kind.name(),
                w.rank
            )));
        }
        Ok(())
    }
}

/// Where values wait that are loaded into a run which is not kept in f32.
fn landing(
    s: &States,
    w: &Ways<'_>,
    (unit, param): (usize, usize),
    v: &StateView,
) -> Tensors<Tensor> {
    let (kind, first) = (v.kind, v.range.start);
    let mut pending_loads = s.moving.pending_loads.borrow_mut();
    let known =
        |l: &&PendingStateLoad| (l.unit, l.param, l.kind, l.first) == (unit, param, kind, first);
    if let Some(l) = pending_loads.iter().find(known) {
        return Ok(l.values.clone());
    }
    // What is not loaded stays as it is.
    let values = w.run(|run| v.read(run))?;
    pending_loads.push(PendingStateLoad {
        unit,
        param,
        kind,
        first,
        values: values.clone(),
    });
    Ok(values)
}
